package gateway_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTheWireDetailsHaveTheirTests: the table in the docs names tests that there are.
func TestTheWireDetailsHaveTheirTests(t *testing.T) {
	raw, err := os.ReadFile("../../docs/openai.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(raw), "\n## What is tested of the wire\n")
	table, _, _ = strings.Cut(table, "\n## ")
	rows := regexp.MustCompile(`(?m)^\| \d+ \|.*$`).FindAllString(table, -1)
	if !found || len(rows) != 10 {
		t.Fatalf("the table has %d rows, want 10", len(rows))
	}
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(b)
	}
	name := regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9]+)`")
	for _, row := range rows {
		tests := name.FindAllStringSubmatch(row, -1)
		if len(tests) == 0 {
			t.Errorf("no test: %s", row)
		}
		for _, test := range tests {
			if !strings.Contains(all.String(), "\nfunc "+test[1]+"(") {
				t.Errorf("there is no %s", test[1])
			}
		}
	}
}
