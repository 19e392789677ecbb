package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"
	sigsjson "sigs.k8s.io/json"
	sigsyaml "sigs.k8s.io/yaml"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
)

// judge decides about objects as an API server does with one CRD.
type judge struct {
	structural *structuralschema.Structural
	validator  validation.SchemaValidator
}

func newJudge(t testing.TB, file string) *judge {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var c apiextensionsv1.CustomResourceDefinition
	if err := sigsyaml.Unmarshal(raw, &c); err != nil {
		t.Fatal(err)
	}
	var internal apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(c.Spec.Versions[0].Schema.OpenAPIV3Schema, &internal, nil); err != nil {
		t.Fatal(err)
	}
	j := &judge{}
	if j.structural, err = structuralschema.NewStructural(&internal); err != nil {
		t.Fatal(err)
	}
	if j.validator, _, err = validation.NewSchemaValidator(&internal); err != nil {
		t.Fatal(err)
	}
	return j
}

// faults returns the paths of unknown fields and the messages about the rest. Metadata is an
// API server's own business.
func (j *judge) faults(obj map[string]any) (unknown, invalid []string) {
	obj = runtime.DeepCopyJSON(obj)
	delete(obj, "metadata")
	defaulting.PruneNonNullableNullsWithoutDefaults(obj, j.structural)
	pruned := pruning.PruneWithOptions(obj, j.structural, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	defaulting.Default(obj, j.structural)
	for _, err := range validation.ValidateCustomResource(nil, obj, j.validator) {
		invalid = append(invalid, err.Error())
	}
	return pruned, invalid
}

// ours are the faults that the embedded API finds: those of the slim CRD and of CheckFields.
func (j *judge) ours(obj map[string]any) (unknown, invalid []string) {
	unknown, invalid = j.faults(obj)
	obj = runtime.DeepCopyJSON(obj)
	delete(obj, "metadata")
	if f := IsFieldErrors(CheckFields(obj)); f != nil {
		unknown = append(unknown, f.Unknown...)
		for _, err := range f.Invalid {
			invalid = append(invalid, err.Error())
		}
	}
	slices.Sort(unknown)
	return slices.Compact(unknown), invalid
}

func corpus(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("STATIONMASTER_SHARED")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared")
	}
	dir = filepath.Join(dir, "corpus", "kserve")
	if _, err := os.Stat(dir); err != nil {
		t.Skip("the corpus of KServe's manifests is not here; set STATIONMASTER_SHARED to its parent")
	}
	return dir
}

type document struct {
	name string
	obj  map[string]any
	raw  []byte
}

// documents returns the objects of our kinds in the corpus.
func documents(t testing.TB) []document {
	t.Helper()
	dir := corpus(t)
	var docs []document
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".yaml" && filepath.Ext(path) != ".yml" || strings.Contains(path, "/crd/") {
			return err
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for i, text := range splitYAML(raw) {
			var obj map[string]any
			if err := sigsyaml.Unmarshal(text, &obj); err != nil {
				continue // no YAML, or a template
			}
			apiVersion, _ := obj["apiVersion"].(string)
			if kind, _ := obj["kind"].(string); slices.Contains([]string{"InferenceService", "ServingRuntime", "ClusterServingRuntime"}, kind) &&
				strings.HasPrefix(apiVersion, "serving.kserve.io/v1") {
				rel, _ := filepath.Rel(dir, path)
				docs = append(docs, document{name: fmt.Sprintf("%s#%d", filepath.ToSlash(rel), i), obj: normal(t, obj), raw: text})
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(docs) < 60 {
		t.Fatalf("only %d documents in the corpus; it has about 100", len(docs))
	}
	return docs
}

func splitYAML(raw []byte) [][]byte {
	var out [][]byte
	for _, part := range bytes.Split(append([]byte("\n"), raw...), []byte("\n---")) {
		if len(bytes.TrimSpace(part)) > 0 {
			out = append(out, part)
		}
	}
	return out
}

// normal returns obj with integers as int64, as unstructured objects have them.
func normal(t testing.TB, obj map[string]any) map[string]any {
	t.Helper()
	raw, err := json.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if err := sigsjson.UnmarshalCaseSensitivePreserveInts(raw, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

var judges = sync.OnceValue(func() map[string]map[string]*judge { return map[string]map[string]*judge{} })

// judgesOf returns KServe's CRD, our full and our slim one for a kind.
func judgesOf(t testing.TB, kind string) map[string]*judge {
	t.Helper()
	if j, ok := judges()[kind]; ok {
		return j
	}
	file := "serving.kserve.io_" + strings.ToLower(kind) + "s.yaml"
	j := map[string]*judge{
		"kserve": newJudge(t, filepath.Join(corpus(t), "config", "crd", "full", file)),
		"full":   newJudge(t, filepath.Join("..", "..", "config", "crd", "full", file)),
		"slim":   newJudge(t, filepath.Join("..", "..", "config", "crd", "slim", strings.TrimSuffix(file, "yaml")+"json")),
	}
	judges()[kind] = j
	return j
}

func TestCorpusIsAcceptedOrRefusedAsKServesSchemaSays(t *testing.T) {
	accepted, refused := 0, 0
	for _, d := range documents(t) {
		t.Run(d.name, func(t *testing.T) {
			if d.obj["apiVersion"] != "serving.kserve.io/v1beta1" && d.obj["kind"] == "InferenceService" {
				if err := CheckFields(d.obj); err == nil {
					t.Error("accepted, but KServe doesn't serve this version")
				}
				return
			}
			j := judgesOf(t, d.obj["kind"].(string))
			wantUnknown, wantInvalid := j["kserve"].faults(d.obj)
			for name, got := range map[string]func() ([]string, []string){
				"full CRD":                 func() ([]string, []string) { return j["full"].faults(d.obj) },
				"slim CRD and CheckFields": func() ([]string, []string) { return j["slim"].ours(d.obj) },
			} {
				unknown, invalid := got()
				if !slices.Equal(unknown, wantUnknown) {
					t.Errorf("%s: unknown fields %q, KServe's schema says %q", name, unknown, wantUnknown)
				}
				if (len(invalid) == 0) != (len(wantInvalid) == 0) {
					t.Errorf("%s: faults %q, KServe's schema says %q", name, invalid, wantInvalid)
				}
			}
			if len(wantUnknown)+len(wantInvalid) > 0 {
				refused++
				if _, err := DecodeStrict(d.raw); err == nil && len(wantUnknown) > 0 {
					t.Errorf("DecodeStrict takes unknown fields %q", wantUnknown)
				}
				return
			}
			accepted++
			obj, err := DecodeStrict(d.raw)
			if err != nil {
				t.Fatal(err)
			}
			back, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
			if err != nil {
				t.Fatal(err)
			}
			for _, lost := range missing(d.obj, back, "") {
				t.Errorf("lost or changed: %s", lost)
			}
		})
	}
	t.Logf("%d accepted, %d refused by both", accepted, refused)
}

// missing returns the paths of want that have is without or holds another value for.
func missing(want, have any, path string) []string {
	switch w := want.(type) {
	case map[string]any:
		h, ok := have.(map[string]any)
		if !ok && len(w) > 0 {
			return []string{path}
		}
		var out []string
		for k, e := range w {
			if e != nil {
				out = append(out, missing(e, h[k], path+"."+k)...)
			}
		}
		return out
	case []any:
		h, _ := have.([]any)
		if len(h) != len(w) {
			return []string{path}
		}
		var out []string
		for i := range w {
			out = append(out, missing(w[i], h[i], fmt.Sprintf("%s[%d]", path, i))...)
		}
		return out
	case bool:
		if have == nil && !w {
			return nil // Go's omitempty drops a false that means the same as absent
		}
	case int64:
		if have == nil && w == 0 {
			return nil
		}
	case string:
		if have == nil && w == "" {
			return nil
		}
	}
	if fmt.Sprint(want) == fmt.Sprint(have) || sameQuantity(want, have) {
		return nil
	}
	return []string{fmt.Sprintf("%s: %v became %v", path, want, have)}
}

func sameQuantity(a, b any) bool {
	x, errX := resource.ParseQuantity(fmt.Sprint(a))
	y, errY := resource.ParseQuantity(fmt.Sprint(b))
	return errX == nil && errY == nil && x.Cmp(y) == 0
}

// TestSlimCRDJudgesAsTheFullOne breaks manifests in random places and compares verdicts.
func TestSlimCRDJudgesAsTheFullOne(t *testing.T) {
	docs := slices.DeleteFunc(documents(t), func(d document) bool {
		return d.obj["kind"] == "InferenceService" && d.obj["apiVersion"] != "serving.kserve.io/v1beta1"
	})
	rich := richService(t)
	rapid.Check(t, func(rt *rapid.T) {
		var obj map[string]any
		if rapid.Bool().Draw(rt, "rich") {
			obj = runtime.DeepCopyJSON(rich)
		} else {
			obj = runtime.DeepCopyJSON(rapid.SampledFrom(docs).Draw(rt, "document").obj)
		}
		spec, ok := obj["spec"].(map[string]any)
		if !ok {
			return
		}
		breakSomething(rt, spec)
		j := judgesOf(t, obj["kind"].(string))
		wantUnknown, wantInvalid := j["full"].faults(obj)
		unknown, invalid := j["slim"].ours(obj)
		if len(wantInvalid) == 0 {
			// Schemas give some integers no size; Go's types do.
			invalid = slices.DeleteFunc(invalid, func(m string) bool { return strings.Contains(m, "must fit into") })
		}
		// An object of the wrong type in the place of another hides what is within it.
		if len(wantInvalid) == 0 && len(invalid) == 0 && !slices.Equal(unknown, wantUnknown) {
			rt.Fatalf("unknown fields: %q, full CRD says %q\n%v", unknown, wantUnknown, obj)
		}
		if (len(invalid)+len(unknown) == 0) != (len(wantInvalid)+len(wantUnknown) == 0) {
			rt.Fatalf("faults %q %q, full CRD says %q %q\n%v", unknown, invalid, wantUnknown, wantInvalid, obj)
		}
	})
}

// breakSomething goes down to a random place below v and changes it.
func breakSomething(rt *rapid.T, v any) {
	for {
		var set func(any)
		var child any
		switch x := v.(type) {
		case map[string]any:
			if len(x) == 0 {
				return
			}
			keys := make([]string, 0, len(x))
			for k := range x {
				keys = append(keys, k)
			}
			slices.Sort(keys)
			key := rapid.SampledFrom(keys).Draw(rt, "key")
			child, set = x[key], func(v any) { x[key] = v }
			if rapid.IntRange(0, 3).Draw(rt, "here") == 0 {
				switch rapid.IntRange(0, 2).Draw(rt, "how") {
				case 0:
					delete(x, key)
					return
				case 1:
					x[key+"X"] = x[key]
					delete(x, key)
					return
				}
				set(wrongValue(rt))
				return
			}
		case []any:
			if len(x) == 0 {
				return
			}
			i := rapid.IntRange(0, len(x)-1).Draw(rt, "index")
			child, set = x[i], func(v any) { x[i] = v }
		default:
			return
		}
		switch child.(type) {
		case map[string]any, []any:
			v = child
		default:
			set(wrongValue(rt))
			return
		}
	}
}

func wrongValue(rt *rapid.T) any {
	return rapid.SampledFrom([]any{
		"text", "", "10s", "4Gi", int64(1), int64(-1), int64(1 << 40), 1.5, true,
		map[string]any{}, map[string]any{"x": "y"}, []any{}, []any{"a"}, []any{int64(1)},
	}).Draw(rt, "value")
}

// richService is a service with a field of every sort of pod part.
func richService(t *testing.T) map[string]any {
	t.Helper()
	raw, err := os.ReadFile("testdata/rich.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var obj map[string]any
	if err := sigsyaml.Unmarshal(raw, &obj); err != nil {
		t.Fatal(err)
	}
	obj = normal(t, obj)
	if err := CheckFields(obj); err != nil {
		t.Fatal(err)
	}
	j := judgesOf(t, "InferenceService")
	if unknown, invalid := j["kserve"].faults(obj); len(unknown)+len(invalid) > 0 {
		t.Fatal(unknown, invalid)
	}
	return obj
}

// refusedSamples are KServe's own samples that Validate refuses, and why KServe's admission
// does too.
var refusedSamples = map[string]string{
	"docs/samples/rollout-strategy/rollout-strategy-example.yaml#2": "model beside a container named kserve-container",
}

func TestCorpusPassesValidation(t *testing.T) {
	for _, d := range documents(t) {
		obj, err := DecodeStrict(d.raw)
		is, ok := obj.(*v1beta1.InferenceService)
		if err != nil || !ok {
			continue
		}
		t.Run(d.name, func(t *testing.T) {
			why, refused := refusedSamples[d.name]
			if errs := Validate(is, nil); (len(errs) > 0) != refused {
				t.Errorf("errors %v, refused by KServe: %t %s", errs, refused, why)
			}
			NotInEffectOf(is) // panics where a type has no table
		})
	}
}

func TestKServesRuntimesDontTie(t *testing.T) {
	var all []NamedRuntime
	for _, d := range documents(t) {
		obj, err := DecodeStrict(d.raw)
		if r, ok := obj.(*v1alpha1.ClusterServingRuntime); ok && err == nil && strings.HasPrefix(d.name, "config/runtimes/") {
			all = append(all, NamedRuntime{Name: r.Name, Spec: &r.Spec})
		}
	}
	if len(all) < 14 {
		t.Fatalf("only %d runtimes", len(all))
	}
	for _, r := range all {
		if errs := ValidateRuntime(r, all); len(errs) > 0 {
			t.Errorf("%s: %v", r.Name, errs)
		}
	}
}
