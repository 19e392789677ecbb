package app

import "testing"

func TestOperatorsOfTheSameNamespacesCompeteForOneLease(t *testing.T) {
	if got := leaseOf(nil); got != "stationmaster-operator" {
		t.Errorf("all namespaces: %s", got)
	}
	if a, b := leaseOf([]string{"a", "b"}), leaseOf([]string{"b", "a", "b"}); a != b {
		t.Errorf("the same namespaces: %s and %s", a, b)
	}
	seen := map[string]bool{}
	for _, namespaces := range [][]string{nil, {"a"}, {"b"}, {"a", "b"}, {"ab"}} {
		seen[leaseOf(namespaces)] = true
	}
	if len(seen) != 5 {
		t.Errorf("five sets of namespaces have %d leases", len(seen))
	}
}
