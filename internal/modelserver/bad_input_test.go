package modelserver

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"stationmaster.dev/stationmaster/internal/wire/oip"
)

func TestTwoLengthsOfTheJSONPart(t *testing.T) {
	r := start(t, nil)
	r.waitReady(t)
	post := func(lengths ...string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.http+"/v2/models/m/infer", strings.NewReader(inferBody))
		if err != nil {
			t.Fatal(err)
		}
		req.Header[oip.HeaderLength] = lengths
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res.StatusCode
	}
	n := fmt.Sprint(len(inferBody))
	if got := post(n, "5"); got != http.StatusBadRequest {
		t.Errorf("two different ones: %d", got)
	}
	if got := post(n, n); got != http.StatusOK {
		t.Errorf("the same one twice: %d", got)
	}
}

func TestErrorsKeepTheirSigns(t *testing.T) {
	r := start(t, nil)
	r.waitReady(t)
	for path, want := range map[string]string{
		"/v2/models/a<b>&c/infer":   `model \"a<b>&c\" is not found`,
		"/v1/models/a<b>&c:predict": `model \"a<b>&c\" is not found`,
	} {
		if code, _, body := r.call(t, "POST", path, "{}"); code != 404 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
}
