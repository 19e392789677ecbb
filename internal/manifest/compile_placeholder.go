package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template"

	servingv1beta1 "stationmaster.dev/stationmaster/api/serving/v1beta1"
)

// subject is the dot of placeholders: what {{.Name}}, {{.Namespace}}, {{.Labels.x}} and
// {{.Annotations.x}} speak of.
type subject struct {
	Name        string
	Namespace   string
	UID         string
	Generation  int64
	Labels      map[string]string
	Annotations map[string]string
}

// subjectOf copies a service's metadata, so that defaults can be added to it.
func subjectOf(s *servingv1beta1.InferenceService) *subject {
	d := &subject{
		Name: s.Name, Namespace: s.Namespace, UID: string(s.UID), Generation: s.Generation,
		Labels: maps.Clone(s.Labels), Annotations: maps.Clone(s.Annotations),
	}
	if d.Labels == nil {
		d.Labels = map[string]string{}
	}
	if d.Annotations == nil {
		d.Annotations = map[string]string{}
	}
	return d
}

// renderer fills in placeholders. KServe renders a container's JSON as one html/template; here
// each string is a text/template of its own, so that a value can neither break the JSON around
// it nor be escaped for HTML. A label or annotation that is missing renders as nothing, as in
// KServe, and is noted in unset.
type renderer struct {
	dot *subject
	// unset holds the paths of strings with a placeholder that has no value.
	unset []string
}

// value replaces the placeholders in every string of a value that encodes as JSON. out must
// point to the same type as in.
func (r *renderer) value(path string, in, out any) error {
	text, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("render %s: %w", path, err)
	}
	if !bytes.Contains(text, []byte("{{")) {
		return json.Unmarshal(text, out)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var tree any
	if err := dec.Decode(&tree); err != nil {
		return fmt.Errorf("render %s: %w", path, err)
	}
	if tree, err = r.walk(path, tree); err != nil {
		return err
	}
	if text, err = json.Marshal(tree); err != nil {
		return fmt.Errorf("render %s: %w", path, err)
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("render %s: %w", path, err)
	}
	return nil
}

func (r *renderer) walk(path string, v any) (any, error) {
	var err error
	switch v := v.(type) {
	case string:
		return r.text(path, v)
	case []any:
		for i := range v {
			if v[i], err = r.walk(fmt.Sprintf("%s[%d]", path, i), v[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if v[k], err = r.walk(path+"."+k, v[k]); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

func (r *renderer) text(path, s string) (string, error) {
	if !strings.Contains(s, "{{") {
		return s, nil
	}
	t, err := template.New(path).Option("missingkey=error").Parse(s)
	if err != nil {
		return "", fmt.Errorf(`%s: %q isn't a valid template: %w; write {{"{{"}} for two literal braces`, path, s, err)
	}
	var b strings.Builder
	if err := t.Execute(&b, r.dot); err == nil {
		return b.String(), nil
	}
	b.Reset()
	if err := t.Option("missingkey=zero").Execute(&b, r.dot); err != nil {
		return "", fmt.Errorf("%s: %q can't be filled in: %w; there are .Name, .Namespace, .Labels.x and .Annotations.x of the InferenceService", path, s, err)
	}
	r.unset = append(r.unset, path)
	return b.String(), nil
}
