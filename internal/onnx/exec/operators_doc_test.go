package exec_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"stationmaster.dev/stationmaster/internal/onnx/exec"
)

func TestDocumentListsTheOperators(t *testing.T) {
	raw, err := os.ReadFile("../../../docs/onnx-operators.md")
	if err != nil {
		t.Fatal(err)
	}
	_, list, ok := strings.Cut(string(raw), "## Operators of the built-in executor\n")
	if !ok {
		t.Fatal("the document has lost the heading above its list")
	}
	var got []string
	for line := range strings.Lines(list) {
		if op, isItem := strings.CutPrefix(strings.TrimSpace(line), "- "); isItem {
			got = append(got, strings.Trim(op, "`"))
		}
	}
	want := exec.Operators()
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("docs/onnx-operators.md (-operators +document):\n%s", diff)
	}
}
