package kubeapi_test

import (
	"fmt"
	"testing"

	"k8s.io/client-go/discovery"

	"stationmaster.dev/stationmaster/internal/kubeapi"
)

// A client that asks once, at its start, would go without the kinds that are missing.
func TestEveryKindIsDiscoveredFromReadyOn(t *testing.T) {
	crds, err := readCRDs("")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for i := range 4 { // the definitions are made by the first start, and found by the others
		t.Run(fmt.Sprintf("start %d on one data dir", i+1), func(t *testing.T) {
			s := start(t, kubeapi.Config{DataDir: dir})
			disco, err := discovery.NewDiscoveryClientForConfig(s.RESTConfig())
			if err != nil {
				t.Fatal(err)
			}
			_, lists, err := disco.ServerGroupsAndResources()
			if err != nil {
				t.Fatal(err)
			}
			found := map[string]bool{}
			for _, list := range lists {
				for _, r := range list.APIResources {
					found[list.GroupVersion+" "+r.Name] = true
				}
			}
			for _, crd := range crds {
				for _, v := range crd.Spec.Versions {
					if kind := crd.Spec.Group + "/" + v.Name + " " + crd.Spec.Names.Plural; v.Served && !found[kind] {
						t.Errorf("ready, and discovery doesn't list %s", kind)
					}
				}
			}
		})
	}
}
