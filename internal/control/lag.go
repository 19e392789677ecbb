package control

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// cacheLag is how long to wait for the cache to show what was written; it takes a few
// milliseconds.
const cacheLag = 20 * time.Millisecond

var errBehind = errors.New("the cache is behind what was written")

// wrote remembers o as it came back from a write.
func (c *Controller) wrote(o client.Object) {
	v, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		return // versions that aren't numbers can't be compared; reconciling on an old object is mended by the next
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.written[o.GetUID()] = v
}

// upToDate returns errBehind where o, from the cache, is older than what was written. Deciding
// on an old status could leave a wrong one standing: what is computed anew may equal the old
// one, and nothing would be written.
func (c *Controller) upToDate(o client.Object) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	want, ok := c.written[o.GetUID()]
	if !ok {
		return nil
	}
	if v, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64); err == nil && v < want {
		return fmt.Errorf("%w: %s %s", errBehind, o.GetNamespace(), o.GetName())
	}
	delete(c.written, o.GetUID())
	return nil
}

// forget drops what wrote remembers of an object that is to be deleted.
func (c *Controller) forget(o client.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.written, o.GetUID())
}
