package app

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
)

// leaseOf names the lease that the operators of some namespaces compete for; no namespaces stand for
// all. Operators of other namespaces have another one, so that a cluster can be shared out among them.
func leaseOf(namespaces []string) string {
	const name = "stationmaster-operator"
	if len(namespaces) == 0 {
		return name
	}
	of := slices.Compact(slices.Sorted(slices.Values(namespaces)))
	sum := sha256.Sum256([]byte(strings.Join(of, ",")))
	return name + "-" + hex.EncodeToString(sum[:4])
}
