package manifest

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
)

// TestADryRunTellsEveryFieldWithoutEffect sets each field that a table says does nothing, alone in
// an object, and demands that admission says so: for one machine, and for a cluster where it holds
// there as well.
func TestADryRunTellsEveryFieldWithoutEffect(t *testing.T) {
	for _, root := range []struct {
		kind, version string
		spec          reflect.Type
	}{
		{"InferenceService", "v1beta1", reflect.TypeFor[v1beta1.InferenceServiceSpec]()},
		{"InferenceGraph", "v1alpha1", reflect.TypeFor[v1alpha1.InferenceGraphSpec]()},
		{"ServingRuntime", "v1alpha1", reflect.TypeFor[v1alpha1.ServingRuntimeSpec]()},
		{"ClusterServingRuntime", "v1alpha1", reflect.TypeFor[v1alpha1.ServingRuntimeSpec]()},
	} {
		told := 0
		eachIdle(root.spec, nil, func(steps []step, e effect) {
			told++
			path := "spec"
			for _, s := range steps {
				path += "." + s.name
				if s.list {
					path += "[0]"
				}
			}
			path = strings.TrimSuffix(path, "[0]")
			for _, cluster := range []bool{false, true} {
				want := e.kind == later || !cluster
				var said []string
				// What exempts a value exempts not each: true or false, empty or not.
				for _, full := range []bool{false, true} {
					spec := reflect.New(root.spec).Elem()
					// What each has to have.
					switch s := spec.Addr().Interface().(type) {
					case *v1alpha1.InferenceGraphSpec:
						s.Nodes = map[string]v1alpha1.InferenceRouter{}
					case *v1alpha1.ServingRuntimeSpec:
						s.Containers = []corev1.Container{{Name: "x"}}
					}
					fillIn(spec, steps, full)
					said = append(said, warnings(t, root.kind, root.version, spec.Interface(), nil, cluster)...)
				}
				has := slices.ContainsFunc(said, func(w string) bool { return strings.HasPrefix(w, path+" has no effect here: "+e.reason) })
				parent := path[:strings.LastIndex(path, ".")]
				// What can't be stored needs no warning: a sibling that has to be there, or no such field.
				refused := slices.ContainsFunc(said, func(w string) bool {
					return parent != "spec" && strings.HasPrefix(w, refusedAt+parent) || strings.HasPrefix(w, refusedAt+path+".") || w == fmt.Sprintf("unknown field %q", path)
				})
				if has != want && (has || !refused) {
					t.Errorf("%s %s, on a cluster %v: told %v, want %v; it said %q", root.kind, path, cluster, has, want, said)
				}
			}
		})
		if told == 0 {
			t.Errorf("nothing of %s was looked at", root.kind)
		}
	}
}

// TestADryRunTellsEveryAnnotationWithoutEffect does the same for annotations.
func TestADryRunTellsEveryAnnotationWithoutEffect(t *testing.T) {
	for key := range annotations {
		for _, cluster := range []bool{false, true} {
			var said []string
			for _, value := range []string{"x", "true", "false"} {
				said = append(said, warnings(t, "InferenceService", "v1beta1", map[string]any{"predictor": map[string]any{}}, map[string]any{key: value}, cluster)...)
			}
			has := slices.ContainsFunc(said, func(w string) bool { return strings.HasPrefix(w, "metadata.annotations["+key+"] has no effect here") })
			if want := !cluster || !slices.Contains(podAnnotations, key); has != want {
				t.Errorf("%s, on a cluster %v: told %v, want %v; it said %q", key, cluster, has, want, said)
			}
		}
	}
}

// TestWhatReportsIsAsked reads the source: each function that makes a NotInEffect has to be one that
// admission comes to, by Admit or by the preview of an object beside what exists.
func TestWhatReportsIsAsked(t *testing.T) {
	const here = "manifest"
	calls, reports := map[string][]string{}, map[string]bool{}
	for _, room := range []string{here, "control", "graphs", "direct", "preview", "routing", "platform/kube", "app"} {
		files, err := filepath.Glob(filepath.Join("..", room, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no files in %s: %v", room, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, decl := range tree.Decls {
				fn, ok := decl.(*ast.FuncDecl)
				if !ok {
					continue
				}
				name := room + "." + fn.Name.Name
				ast.Inspect(fn, func(n ast.Node) bool {
					switch n := n.(type) {
					case *ast.CallExpr:
						calls[name] = append(calls[name], callee(room, n))
					case *ast.CompositeLit:
						if made(n.Type) && len(n.Elts) > 0 {
							reports[name] = true
						}
					}
					return true
				})
			}
		}
	}
	if len(reports) < 5 {
		t.Fatalf("only %v report anything: the test looks at the wrong place", reports)
	}
	met := map[string]bool{}
	next := []string{here + ".Admit", "preview.Warnings"}
	for len(next) > 0 {
		name := next[0]
		next = next[1:]
		if !met[name] {
			met[name] = true
			next = append(next, calls[name]...)
		}
	}
	for name := range reports {
		if !met[name] {
			t.Errorf("%s reports fields without effect, and admission never asks it: call it from Admit or from the preview", name)
		}
	}
}

// callee names the function that is called in a room: another room's, or one of its own, where all
// methods of a name are one.
func callee(room string, call *ast.CallExpr) string {
	switch fun := call.Fun.(type) {
	case *ast.Ident:
		return room + "." + fun.Name
	case *ast.SelectorExpr:
		if of, ok := fun.X.(*ast.Ident); ok && slices.Contains([]string{"manifest", "control"}, of.Name) {
			return of.Name + "." + fun.Sel.Name
		}
		return room + "." + fun.Sel.Name
	}
	return ""
}

// made says whether a literal's type is NotInEffect or a list of them.
func made(t ast.Expr) bool {
	switch t := t.(type) {
	case *ast.Ident:
		return t.Name == "NotInEffect"
	case *ast.SelectorExpr:
		return t.Sel.Name == "NotInEffect"
	case *ast.ArrayType:
		return made(t.Elt)
	}
	return false
}

// step is a field on the way to another.
type step struct {
	name string
	// list says that it holds many, of which the first is meant.
	list  bool
	index []int
}

// eachIdle calls f with each field that does nothing, by the way to it. A type within itself isn't
// entered twice.
func eachIdle(typ reflect.Type, way []step, f func([]step, effect)) {
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
		typ = typ.Elem()
	}
	if typ == reflect.TypeFor[corev1.ResourceList]() || len(way) > 8 {
		return
	}
	table := effects[typ]
	eachField(typ, func(field reflect.StructField, name string) {
		at := append(slices.Clone(way), step{name, field.Type.Kind() == reflect.Slice, field.Index})
		switch e := table[name]; e.kind {
		case later, clusterOnly:
			f(at, e)
		case into:
			eachIdle(field.Type, at, f)
		}
	})
}

// fillIn sets the last field of a way: to as little as counts as set, or to something.
func fillIn(v reflect.Value, way []step, full bool) {
	v = v.FieldByIndex(way[0].index)
	if len(way) == 1 {
		set(v, full)
		return
	}
	for v.Kind() == reflect.Pointer || v.Kind() == reflect.Slice {
		if v.Kind() == reflect.Slice {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			v = v.Index(0)
			continue
		}
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	fillIn(v, way[1:], full)
}

func set(v reflect.Value, full bool) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		if k := v.Elem().Kind(); full && (k == reflect.Bool || k == reflect.String) {
			set(v.Elem(), full)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("x").Convert(v.Type().Key()), reflect.Zero(v.Type().Elem()))
	case reflect.Struct:
		set(v.Field(0), full)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString("x")
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	}
}

// warnings are those of a dry run of an object.
func warnings(t *testing.T, kind, version string, spec any, annotations map[string]any, cluster bool) []string {
	t.Helper()
	text, err := json.Marshal(map[string]any{
		"apiVersion": "serving.kserve.io/" + version, "kind": kind, "spec": spec,
		"metadata": map[string]any{"name": "iris", "annotations": annotations},
	})
	if err != nil {
		t.Fatal(err)
	}
	object := map[string]any{}
	if err := json.Unmarshal(text, &object); err != nil {
		t.Fatal(err)
	}
	v, err := Admit(Admission{Object: object, FieldValidation: "Warn", Cluster: cluster})
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for _, r := range v.Refused {
		v.Warnings = append(v.Warnings, refusedAt+r.Field)
	}
	return v.Warnings
}

// refusedAt begins what stands for a refusal among the warnings.
const refusedAt = "refused: "
