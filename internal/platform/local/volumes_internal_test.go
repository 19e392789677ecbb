package local

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"stationmaster.dev/stationmaster/internal/spec"
)

func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		out[rel] = string(raw)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestAVolumeChangesUnderARunningProcess keeps the directory, which a process may have mounted.
func TestAVolumeChangesUnderARunningProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "v")
	r := &instance{}
	write := func(v spec.Volume, values map[string][]byte, want map[string]string) {
		t.Helper()
		if err := r.writeKeys(dir, &v, values); err != nil {
			t.Fatal(err)
		}
		if got := files(t, dir); !maps.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	write(spec.Volume{}, map[string][]byte{"a": []byte("1"), "b": []byte("2")}, map[string]string{"a": "1", "b": "2"})
	held, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	kept, err := os.Stat(filepath.Join(dir, "b"))
	if err != nil {
		t.Fatal(err)
	}
	write(spec.Volume{}, map[string][]byte{"b": []byte("2"), "c": []byte("3")}, map[string]string{"b": "2", "c": "3"})
	names, err := held.Readdirnames(-1)
	if err != nil || len(names) != 2 {
		t.Errorf("whoever has the directory open sees %v, %v", names, err)
	}
	if now, err := os.Stat(filepath.Join(dir, "b")); err != nil || !os.SameFile(kept, now) {
		t.Errorf("a file that stayed the same was replaced: %v", err)
	}
	write(spec.Volume{Items: map[string]string{"c": "deep/c"}}, map[string][]byte{"b": nil, "c": []byte("3")}, map[string]string{"deep/c": "3"})
}
