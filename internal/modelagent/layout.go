package modelagent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/modellist"
)

// Layout is how an engine wants a model to lie in its repository.
type Layout string

// The layouts. Triton wants a config.pbtxt, where there is one, and a folder for each version;
// MLServer wants a model-settings.json that names the model.
const (
	Triton   Layout = "triton"
	MLServer Layout = "mlserver"
)

// own is the agent's folder in the repository. Engines pass over it: it has no model.
const own = ".stationmaster"

// shelf is the engine's model repository.
type shelf struct {
	root   string
	layout Layout
	class  string
}

// open makes the repository ready, and returns the models that lie in it, nil for one of which
// nothing is written down.
func (s *shelf) open() (map[string]*modellist.Model, error) {
	for _, dir := range []string{s.stage(""), s.aside("")} {
		if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
			return nil, fmt.Errorf("make the model repository ready: %w", err)
		}
	}
	noted := map[string]*modellist.Model{}
	if text, err := os.ReadFile(s.notes()); err == nil {
		if json.Unmarshal(text, &noted) != nil {
			noted = nil // cut off, by a full disk for example
		}
	}
	there := map[string]*modellist.Model{}
	entries, err := os.ReadDir(s.root)
	if err != nil {
		return nil, fmt.Errorf("read the model repository: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			there[e.Name()] = noted[e.Name()]
		}
	}
	return there, nil
}

// note writes down what the engine has.
func (s *shelf) note(have map[string]*modellist.Model) error {
	text, err := json.Marshal(have)
	if err != nil {
		return fmt.Errorf("write down what the engine has: %w", err)
	}
	return errors.Join(os.WriteFile(s.notes()+".new", text, 0o600), os.Rename(s.notes()+".new", s.notes()))
}

func (s *shelf) notes() string { return filepath.Join(s.root, own, "have.json") }

func (s *shelf) stage(name string) string { return filepath.Join(s.root, own, "new", name) }
func (s *shelf) aside(name string) string { return filepath.Join(s.root, own, "old", name) }
func (s *shelf) at(name string) string    { return filepath.Join(s.root, name) }

// placement is a model that took its place in the repository, for good or not.
type placement struct {
	shelf *shelf
	name  string
	had   bool // there was one before, which lies aside
}

// place lays a model's files out, and puts them where the engine finds them. What lay there is kept
// aside until the placement is kept or undone. Files are links to those of dir, which must be on the
// same disk, or else copies.
func (s *shelf) place(name, dir string) (*placement, error) {
	if filepath.Base(name) != name || strings.HasPrefix(name, ".") {
		return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("%q is no name for a folder", name))
	}
	new := s.stage(name)
	if err := errors.Join(os.RemoveAll(new), os.RemoveAll(s.aside(name))); err != nil {
		return nil, fmt.Errorf("lay out the model: %w", err)
	}
	var err error
	switch s.layout {
	case Triton:
		err = layTriton(name, dir, new)
	default:
		err = layMLServer(name, s.class, dir, new)
	}
	if err != nil {
		return nil, fmt.Errorf("lay out the model: %w", err)
	}
	p := &placement{shelf: s, name: name}
	switch err := os.Rename(s.at(name), s.aside(name)); {
	case err == nil:
		p.had = true
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("put the model before aside: %w", err)
	}
	if err := os.Rename(new, s.at(name)); err != nil {
		return nil, errors.Join(fmt.Errorf("place the model: %w", err), p.undo())
	}
	return p, nil
}

// keep lets go of what was there before.
func (p *placement) keep() error { return os.RemoveAll(p.shelf.aside(p.name)) }

// undo puts back what was there before, or nothing.
func (p *placement) undo() error {
	err := os.RemoveAll(p.shelf.at(p.name))
	if p.had {
		err = errors.Join(err, os.Rename(p.shelf.aside(p.name), p.shelf.at(p.name)))
	}
	return err
}

func (s *shelf) remove(name string) error {
	if err := os.RemoveAll(s.at(name)); err != nil {
		return fmt.Errorf("remove a model from the repository: %w", err)
	}
	return nil
}

// layTriton lays a model out for Triton: as it is, where dir has a config.pbtxt or folders of
// versions; what is in its only folder, where that has them; else all of it as version 1. The name
// in the config becomes the model's, for Triton refuses another.
func layTriton(name, dir, to string) error {
	root := dir
	is, err := isTriton(root)
	if err != nil {
		return err
	}
	if !is {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		if len(entries) == 1 && entries[0].IsDir() {
			below := filepath.Join(dir, entries[0].Name())
			if is, err = isTriton(below); err != nil {
				return err
			}
			if is {
				root = below
			}
		}
	}
	if !is {
		return link(dir, filepath.Join(to, "1"))
	}
	if err := link(root, to); err != nil {
		return err
	}
	config := filepath.Join(to, "config.pbtxt")
	text, err := os.ReadFile(config)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return replace(config, []byte(rename(string(text), name)))
}

func isTriton(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(entries, func(e os.DirEntry) bool {
		_, err := strconv.ParseUint(e.Name(), 10, 63)
		return e.Name() == "config.pbtxt" || e.IsDir() && err == nil
	}), nil
}

// rename sets the name of a model in Triton's configuration, a protocol buffer as text: the field
// "name" outside of all braces and brackets. Where there is none, it stays so: Triton then takes the
// folder's name.
func rename(config, name string) string {
	depth, field := 0, ""
	for i := 0; i < len(config); {
		switch c := config[i]; {
		case c == '#':
			for i < len(config) && config[i] != '\n' {
				i++
			}
		case c == '"' || c == '\'':
			end := i + 1
			for end < len(config) && config[end] != c {
				if config[end] == '\\' {
					end++
				}
				end++
			}
			end = min(end+1, len(config))
			if depth == 0 && field == "name" {
				return config[:i] + strconv.Quote(name) + config[end:]
			}
			field, i = "", end
		case c == '{' || c == '[' || c == '<':
			depth++
			i++
		case c == '}' || c == ']' || c == '>':
			depth--
			i++
		case c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9':
			start := i
			for i < len(config) && (config[i] == '_' || config[i] >= 'a' && config[i] <= 'z' || config[i] >= 'A' && config[i] <= 'Z' || config[i] >= '0' && config[i] <= '9') {
				i++
			}
			field = config[start:i]
		default:
			i++
		}
	}
	return config
}

const settingsFile = "model-settings.json"

// layMLServer lays a model out for MLServer, with settings that name it and, where they name no
// implementation, that of the service's format. The only file is told as the model's, whatever it
// is called.
func layMLServer(name, class, dir, to string) error {
	if err := link(dir, to); err != nil {
		return err
	}
	settings := map[string]any{}
	text, err := os.ReadFile(filepath.Join(to, settingsFile))
	switch {
	case err == nil:
		if err := json.Unmarshal(text, &settings); err != nil {
			return errdef.New(errdef.ErrInvalid, fmt.Sprintf("the model's %s can't be read: %v", settingsFile, err))
		}
		if settings == nil { // "null"
			settings = map[string]any{}
		}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	default:
		entries, err := os.ReadDir(to)
		if err != nil {
			return err
		}
		if len(entries) == 1 && !entries[0].IsDir() {
			settings["parameters"] = map[string]any{"uri": "./" + entries[0].Name()}
		}
	}
	settings["name"] = name
	if settings["implementation"] == nil {
		if class == "" {
			return errdef.New(errdef.ErrInvalid, fmt.Sprintf("the model has no %s with an implementation, and the service's format has none of its own", settingsFile))
		}
		settings["implementation"] = class
	}
	if text, err = json.Marshal(settings); err != nil {
		return fmt.Errorf("write %s: %w", settingsFile, err)
	}
	return replace(filepath.Join(to, settingsFile), text)
}

// replace writes a file anew, for others may hold links to the one that is there.
func replace(path string, text []byte) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(path, text, 0o644) //nolint:gosec // the engine may run as somebody else
}

// link makes a tree anew, of links to its files or else of copies.
func link(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		at := filepath.Join(to, rel)
		if d.IsDir() {
			return os.MkdirAll(at, 0o755)
		}
		if os.Link(path, at) == nil {
			return nil
		}
		return duplicate(path, at)
	})
}

func duplicate(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644) //nolint:gosec // as above
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return errors.Join(err, out.Close())
	}
	return out.Close()
}
