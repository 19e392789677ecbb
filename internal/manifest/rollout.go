package manifest

import (
	"errors"
	"strings"

	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
)

// StickyAnnotation names what tells clients apart whose requests stay on one revision and one
// replica: "header=<name>" or "cookie=<name>".
const StickyAnnotation = "stationmaster.dev/sticky"

var errSticky = errors.New("must be header=<name> or cookie=<name>; requests are spread without it")

// ParseSticky reads the value of StickyAnnotation; an empty one gives nil.
func ParseSticky(value string) (*smv1alpha1.Sticky, error) {
	if value == "" {
		return nil, nil //nolint:nilnil // there is none, and that is no error
	}
	kind, name, _ := strings.Cut(value, "=")
	name = strings.TrimSpace(name)
	if name == "" || len(name) > 256 || strings.ContainsAny(name, " \t;,=") {
		return nil, errSticky
	}
	switch strings.TrimSpace(kind) {
	case "header":
		return &smv1alpha1.Sticky{Header: name}, nil
	case "cookie":
		return &smv1alpha1.Sticky{Cookie: name}, nil
	}
	return nil, errSticky
}
