package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestDocsAreWhatTheRecordingsMake fails where somebody recorded anew, or changed how we decide,
// and didn't draw.
func TestDocsAreWhatTheRecordingsMake(t *testing.T) {
	files, err := render("../golden/kpa")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join("../../docs", name))
		if err != nil {
			t.Error(err)
			continue
		}
		if !bytes.Equal(got, want) {
			t.Errorf("docs/%s is out of date: go run ./test/autoscaling", name)
		}
	}
	drawn, err := filepath.Glob("../../docs/autoscaling/*")
	if err != nil {
		t.Fatal(err)
	}
	if len(drawn) != len(files)-1 {
		t.Errorf("docs/autoscaling has %d pictures, of %d traces", len(drawn), len(files)-1)
	}
}
