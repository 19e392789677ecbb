package control

import (
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
)

func TestWhatWasWrittenIsReadUntilTheCacheShowsIt(t *testing.T) {
	c := &Controller{written: map[types.UID]client.Object{}}
	at := func(version int, note string) *v1beta1.InferenceService {
		return &v1beta1.InferenceService{ObjectMeta: metav1.ObjectMeta{
			UID: "1", ResourceVersion: strconv.Itoa(version), Annotations: map[string]string{"note": note},
		}}
	}
	reads := func(o *v1beta1.InferenceService, want string) {
		t.Helper()
		if got := newest(c, o).Annotations["note"]; got != want {
			t.Errorf("version %s reads %q, want %q", o.ResourceVersion, got, want)
		}
	}
	reads(at(5, "cache"), "cache")
	o := at(12, "ours")
	c.wrote(o)
	o.Annotations["note"] = "changed afterwards"
	reads(at(9, "cache"), "ours")
	newest(c, at(9, "cache")).Annotations["note"] = "changed by a reader"
	reads(at(9, "cache"), "ours")
	reads(at(13, "somebody else's"), "somebody else's")
	reads(at(9, "cache"), "cache") // the cache went on, so nothing is remembered
	c.wrote(at(14, "ours"))
	reads(at(14, "cache"), "cache")
	c.wrote(at(15, "ours"))
	c.forget(at(15, ""))
	reads(at(14, "cache"), "cache")
}
