package launch

import (
	"bytes"
	"errors"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// What comes before the launcher delays every start of an engine; Go's specification (package
// initialization) has packages initialised by path, once what they import is.
func TestTheLauncherImportsAlmostNothing(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, imp := range parsed.Imports {
			if path, _ := strconv.Unquote(imp.Path.Value); !slices.Contains([]string{"errors", "syscall"}, path) {
				t.Errorf("%s imports %s: the packages that are initialised before this one delay each start", file, path)
			}
		}
	}
}

func TestARecordIsReadAsItWasWritten(t *testing.T) {
	for name, r := range map[string]Record{
		"everything": {
			Argv: []string{"python", "", "-c", "a\nb"}, Dir: "/work", Cgroups: []string{"/g/procs"}, Scratch: "/scratch",
			Mounts: []Mount{{Source: "/models", Target: "/mnt/models", ReadOnly: true}, {Source: "/v", Target: "/data"}},
		},
		"little": {Argv: []string{"true"}, Dir: "/", Scratch: "/s"},
	} {
		raw, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		back, ok := decode(raw)
		if !ok || !reflect.DeepEqual(*back, r) {
			t.Errorf("%s: %+v came back as %+v, %v", name, r, back, ok)
		}
	}
	r := Record{Argv: []string{"a\x00b"}}
	if raw, err := r.Encode(); err == nil {
		t.Errorf("an argument with a zero byte became %q", raw)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("apython\x00d/\x00m/a\x00r/b\x00s/s\x00"))
	f.Add([]byte("t/b\x00"))
	f.Add([]byte("m/b\x00"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, ok := decode(raw)
		if !ok {
			return
		}
		again, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if back, ok := decode(again); !ok || !reflect.DeepEqual(back, r) {
			t.Errorf("%q: %+v came back as %+v", raw, r, back)
		}
	})
}

func TestACommandIsFoundAsAShellFindsIt(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"one/tool": 0o755, "two/tool": 0o755, "two/plain": 0o644, "two/only": 0o755} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	path := dir + "/one::" + dir + "/two"
	for name, want := range map[string]string{
		"tool": dir + "/one/tool", "only": dir + "/two/only", "one/tool": dir + "/one/tool", dir + "/two/tool": dir + "/two/tool",
	} {
		if got, err := Find(path, name, dir); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", name, got, err, want)
		}
	}
	for name, kind := range map[string]error{"none": os.ErrNotExist, "plain": os.ErrNotExist, "two/plain": os.ErrPermission, "two": os.ErrNotExist, "./two": os.ErrPermission} {
		if got, err := Find(path, name, dir); !errors.Is(err, kind) {
			t.Errorf("%s: %s, %v; want %v", name, got, err, kind)
		}
	}
}

// The test binary is a launcher, too, as every program is that links the package.
func TestALaunchThatFailsSaysWhyAndExitsAsShellsDo(t *testing.T) {
	dir := t.TempDir()
	record := func(r Record) string {
		raw, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "record")
		if err := os.WriteFile(file, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	garbage := filepath.Join(dir, "garbage")
	if err := os.WriteFile(garbage, []byte("?"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"alone":          {nil, 126, "stationmaster's own use"},
		"no record":      {[]string{dir + "/none"}, 127, "no such file"},
		"garbage":        {[]string{garbage}, 126, "bad message"},
		"no command":     {[]string{record(Record{Dir: "/"})}, 126, "there is no command"},
		"not there":      {[]string{record(Record{Argv: []string{"no-such-command"}, Dir: "/"})}, 127, "no-such-command isn't on PATH"},
		"not executable": {[]string{record(Record{Argv: []string{garbage}, Dir: "/"})}, 126, "isn't executable"},
		"no directory":   {[]string{record(Record{Argv: []string{"true"}, Dir: dir + "/none"})}, 127, "enter"},
		"the command's":  {[]string{record(Record{Argv: []string{"sh", "-c", "echo it runs in $PWD; exit 7"}, Dir: dir})}, 7, "it runs in " + dir},
		"another":        {[]string{record(Record{Argv: []string{"false"}, Dir: "/"}), "echo", "instead"}, 0, "instead"},
	} {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(self, append([]string{Command}, c.args...)...)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		_ = cmd.Run()
		if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(out.String(), c.says) {
			t.Errorf("%s: exit code %d, %q; want %d and %q", name, code, out.String(), c.code, c.says)
		}
	}
}
