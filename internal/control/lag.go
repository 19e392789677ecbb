package control

import (
	"strconv"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// cacheLag is how long to wait for the cache to show what somebody else wrote, or what was made
// a moment ago; it takes a few milliseconds.
const cacheLag = 20 * time.Millisecond

// wrote remembers o as it came back from a write. The caller may change it afterwards.
func (c *Controller) wrote(o client.Object) {
	if _, err := version(o); err != nil {
		return // versions that aren't numbers can't be compared; reconciling on an old object is mended by the next
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.written[o.GetUID()] = o.DeepCopyObject().(client.Object)
}

// newest returns o, from the cache, or what was written of it where the cache doesn't show that
// yet. Deciding on an old status could leave a wrong one standing: what is computed anew may
// equal the old one, and nothing would be written. To wait for the cache instead would delay
// the first request of a service that was woken.
func newest[T client.Object](c *Controller, o T) T {
	c.mu.Lock()
	defer c.mu.Unlock()
	written, ok := c.written[o.GetUID()]
	if !ok {
		return o
	}
	have, err := version(o)
	if want, _ := version(written); err == nil && have < want {
		return written.DeepCopyObject().(T)
	}
	delete(c.written, o.GetUID())
	return o
}

func version(o client.Object) (uint64, error) {
	return strconv.ParseUint(o.GetResourceVersion(), 10, 64)
}

// forget drops what wrote remembers of an object that is to be deleted.
func (c *Controller) forget(o client.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.written, o.GetUID())
}
