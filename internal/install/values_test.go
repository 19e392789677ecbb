package install_test

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"stationmaster.dev/stationmaster/internal/install"
)

func TestEveryValueOfTheChartIsUsedAndDocumented(t *testing.T) {
	files, err := install.Chart()
	if err != nil {
		t.Fatal(err)
	}
	docs, err := os.ReadFile("../../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(files["values.yaml"], &values); err != nil {
		t.Fatal(err)
	}
	if len(values) < 10 {
		t.Fatalf("only the values %v", values)
	}
	var templates []byte
	for name, text := range files {
		if strings.HasPrefix(name, "templates/") {
			templates = append(templates, text...)
		}
	}
	for name := range values {
		if !bytes.Contains(templates, []byte(".Values."+name)) {
			t.Errorf("no template uses the value %s", name)
		}
		if !bytes.Contains(docs, []byte("`"+name+"`")) {
			t.Errorf("docs/kubernetes.md says nothing of the value %s", name)
		}
	}
}
