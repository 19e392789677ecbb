package modelagent

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// tree writes files and returns the folder.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o400); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// files reads a folder back.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		out[rel] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestModelsLieAsTheEngineWantsThem(t *testing.T) {
	const class = "mlserver_sklearn.SKLearnModel"
	for name, tc := range map[string]struct {
		layout   Layout
		class    string
		in, want map[string]string
		err      string
	}{
		"Triton, with a config":               {Triton, "", map[string]string{"config.pbtxt": `name: "x"`, "1/model.onnx": "m"}, map[string]string{"config.pbtxt": `name: "m"`, "1/model.onnx": "m"}, ""},
		"Triton, a repository of one model":   {Triton, "", map[string]string{"x/config.pbtxt": `name: "x"`, "x/1/a": "m"}, map[string]string{"config.pbtxt": `name: "m"`, "1/a": "m"}, ""},
		"Triton, versions alone":              {Triton, "", map[string]string{"1/model.onnx": "m", "2/model.onnx": "n"}, map[string]string{"1/model.onnx": "m", "2/model.onnx": "n"}, ""},
		"Triton, a file":                      {Triton, "", map[string]string{"model.plan": "m"}, map[string]string{"1/model.plan": "m"}, ""},
		"Triton, a folder that is the model":  {Triton, "", map[string]string{"model.savedmodel/saved_model.pb": "m"}, map[string]string{"1/model.savedmodel/saved_model.pb": "m"}, ""},
		"MLServer, a file":                    {MLServer, class, map[string]string{"any.joblib": "m"}, map[string]string{"any.joblib": "m", settingsFile: `{"implementation":"` + class + `","name":"m","parameters":{"uri":"./any.joblib"}}`}, ""},
		"MLServer, several files":             {MLServer, class, map[string]string{"model.joblib": "m", "b": "c"}, map[string]string{"model.joblib": "m", "b": "c", settingsFile: `{"implementation":"` + class + `","name":"m"}`}, ""},
		"MLServer, settings of its own":       {MLServer, class, map[string]string{"a": "m", settingsFile: `{"name":"x","implementation":"own.Model","inputs":[{"name":"x"}]}`}, map[string]string{"a": "m", settingsFile: `{"implementation":"own.Model","inputs":[{"name":"x"}],"name":"m"}`}, ""},
		"MLServer, settings that are none":    {MLServer, class, map[string]string{settingsFile: `{`}, nil, "can't be read"},
		"MLServer, nothing says what runs it": {MLServer, "", map[string]string{"a": "m"}, nil, "no model-settings.json"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &shelf{root: t.TempDir(), layout: tc.layout, class: tc.class}
			if _, err := s.open(); err != nil {
				t.Fatal(err)
			}
			source := tree(t, tc.in)
			p, err := s.place("m", source)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("got %v, want %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := files(t, s.at("m")); !reflect.DeepEqual(got, tc.want) {
				t.Errorf("got %v\nwant %v", got, tc.want)
			}
			if got := files(t, source); !reflect.DeepEqual(got, tc.in) {
				t.Errorf("the bytes themselves changed to %v", got)
			}
			again, err := s.place("m", tree(t, map[string]string{"1/other": "o", "b": "c", settingsFile: `{"implementation":"x"}`}))
			if err != nil {
				t.Fatal(err)
			}
			if err := again.undo(); err != nil || !reflect.DeepEqual(files(t, s.at("m")), tc.want) {
				t.Errorf("undone: %v, %v", files(t, s.at("m")), err)
			}
			if err := p.undo(); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(s.at("m")); !os.IsNotExist(err) {
				t.Errorf("what was the first is there yet: %v", err)
			}
		})
	}
	for _, name := range []string{"", ".", "..", "a/b", own} {
		if _, err := (&shelf{root: t.TempDir(), layout: Triton}).place(name, t.TempDir()); err == nil {
			t.Errorf("%q is a folder's name", name)
		}
	}
}

func TestAModelsNameInTritonsConfigIsReplaced(t *testing.T) {
	for in, want := range map[string]string{
		`name: "x"`: `name: "m"`,
		"# name: \"no\"\ninput [ { name: \"x\" dims: [ 1 ] } ]\nname: 'y' # the name\n": "# name: \"no\"\ninput [ { name: \"x\" dims: [ 1 ] } ]\nname: \"m\" # the name\n",
		`platform: "name" name: "a\"b" max_batch_size: 8`:                               `platform: "name" name: "m" max_batch_size: 8`,
		`input { name: "x" }`:                 `input { name: "x" }`,
		`backend: "python"`:                   `backend: "python"`,
		`parameters < key: "name" > name:"z"`: `parameters < key: "name" > name:"m"`,
	} {
		if got := rename(in, "m"); got != want {
			t.Errorf("%s\ngot  %s\nwant %s", in, got, want)
		}
	}
}

func FuzzRename(f *testing.F) {
	f.Add("name: \"x\"\ninput [ { name: \"y\" } ] # \"")
	f.Add(`name: "`)
	f.Fuzz(func(t *testing.T, in string) {
		once := rename(in, "m")
		if again := rename(once, "m"); again != once {
			t.Errorf("%q is renamed to %q, and that to %q", in, once, again)
		}
	})
}

func FuzzSettings(f *testing.F) {
	f.Add(`{"name":"x","implementation":"a.B"}`)
	f.Add(`null`)
	f.Fuzz(func(t *testing.T, text string) {
		to := filepath.Join(t.TempDir(), "to")
		if layMLServer("m", "c.D", tree(t, map[string]string{settingsFile: text}), to) != nil {
			return
		}
		var got map[string]any
		if raw, err := os.ReadFile(filepath.Join(to, settingsFile)); err != nil || json.Unmarshal(raw, &got) != nil || got["name"] != "m" {
			t.Errorf("%q became %v, %v", text, got, err)
		}
	})
}
