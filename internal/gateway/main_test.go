package gateway_test

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain looks for leaks. After it answered a request without reading its body, net/http keeps
// the connection's goroutine for half a second, and offers nothing to wait for it.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}
