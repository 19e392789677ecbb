package app

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"stationmaster.dev/stationmaster/internal/errdef"
)

const (
	one = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one}\n"
	two = "# a comment alone makes no object\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: two}\n---\n"
)

func TestManifestsAreReadInOrderOrRefusedWithTheirFile(t *testing.T) {
	tests := map[string]struct {
		files map[string]string
		path  string
		want  string // names, or part of the error
		kind  error
	}{
		"a folder's files come by name, other files and subfolders are left alone": {
			files: map[string]string{"b.yml": two, "a.yaml": one, "notes.txt": "x", "sub/c.yaml": one, "c.json": `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"three"}}`},
			want:  "one two three",
		},
		"a file of several":         {files: map[string]string{"x": one + "---\n" + two}, path: "x", want: "one two"},
		"nothing there":             {path: "nope", want: "there is no such file or folder", kind: errdef.ErrNotFound},
		"a folder without manifest": {files: map[string]string{"notes.txt": "x"}, want: "holds no .yaml, .yml or .json file", kind: errdef.ErrInvalid},
		"broken YAML":               {files: map[string]string{"a.yaml": one, "bad.yaml": "a: ["}, want: "bad.yaml", kind: errdef.ErrInvalid},
		"an object without a name":  {files: map[string]string{"a.yaml": "apiVersion: v1\nkind: Secret\n"}, want: "lacks apiVersion, kind or metadata.name", kind: errdef.ErrInvalid},
		"a scalar":                  {files: map[string]string{"a.yaml": "hello"}, want: "a.yaml", kind: errdef.ErrInvalid},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for f, content := range tc.files {
				f = filepath.Join(dir, f)
				if err := os.MkdirAll(filepath.Dir(f), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(f, []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			objects, err := readAll([]string{filepath.Join(dir, tc.path)})
			if tc.kind != nil {
				if !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "--apply") {
					t.Errorf("got %v, want %v with %q", err, tc.kind, tc.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, o := range objects {
				names = append(names, o.GetName())
			}
			if got := strings.Join(names, " "); got != tc.want {
				t.Errorf("read %s, want %s", got, tc.want)
			}
		})
	}
}
