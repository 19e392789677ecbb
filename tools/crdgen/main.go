// Command crdgen writes what is generated from the types under api/: deep copies, and the
// CRDs in two sizes. The full CRDs (config/crd/full) hold whole pod schemas and are for
// clusters; in the slim ones (config/crd/slim), for the embedded API, pod parts are open
// objects that internal/manifest checks at admission.
//
//	go -C tools run ./crdgen          # write
//	go -C tools run ./crdgen -check   # fail where a file differs from what would be written
//
// It reads the module cache and the work tree, nothing else.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-tools/pkg/crd"
	"sigs.k8s.io/controller-tools/pkg/deepcopy"
	"sigs.k8s.io/controller-tools/pkg/genall"
	"sigs.k8s.io/controller-tools/pkg/loader"
	"sigs.k8s.io/controller-tools/pkg/markers"
)

const header = "# Generated from the types under api/ by tools/crdgen; do not edit.\n"

func main() {
	root := flag.String("root", "..", "directory of the module stationmaster.dev/stationmaster")
	check := flag.Bool("check", false, "write nothing; fail where a file is out of date")
	flag.Parse()
	if err := run(*root, *check); err != nil {
		fmt.Fprintln(os.Stderr, "crdgen:", err)
		os.Exit(1)
	}
}

// run generates everything and writes it under root, or with check compares it.
func run(root string, check bool) error {
	files, err := generate(root)
	if err != nil {
		return err
	}
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	if check {
		return compare(root, names, files)
	}
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(root, name), files[name], 0o644); err != nil {
			return err
		}
	}
	return nil
}

func compare(root string, names []string, files map[string][]byte) error {
	var stale []string
	for _, name := range names {
		have, err := os.ReadFile(filepath.Join(root, name))
		if err != nil && !os.IsNotExist(err) {
			return err
		}
		if !bytes.Equal(have, files[name]) {
			stale = append(stale, name)
		}
	}
	for _, dir := range []string{"config/crd/full", "config/crd/slim"} {
		entries, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil {
			return err
		}
		for _, e := range entries {
			if name := dir + "/" + e.Name(); files[name] == nil {
				stale = append(stale, name+" (nothing generates it)")
			}
		}
	}
	if len(stale) > 0 {
		return fmt.Errorf("out of date, run 'make generate': %s", strings.Join(stale, ", "))
	}
	return nil
}

// source is the loaded packages under api/ with what reading them needs.
type source struct {
	roots     []*loader.Package
	collector *markers.Collector
	checker   *loader.TypeChecker
}

// generate returns every generated file by its slash-separated path under root.
func generate(root string) (map[string][]byte, error) {
	api := filepath.ToSlash(filepath.Join(root, "api"))
	roots, err := loader.LoadRoots(api+"/serving/...", api+"/stationmaster/...")
	if err != nil {
		return nil, err
	}
	registry := &markers.Registry{}
	src := source{
		roots:     roots,
		collector: &markers.Collector{Registry: registry},
		checker:   &loader.TypeChecker{NodeFilters: []loader.NodeFilter{crd.Generator{}.CheckFilter()}},
	}
	if err := (crd.Generator{}).RegisterMarkers(registry); err != nil {
		return nil, err
	}
	if err := (deepcopy.Generator{}).RegisterMarkers(registry); err != nil {
		return nil, err
	}

	files := map[string][]byte{}
	full := src.parser(nil)
	fullCRDs := crds(full, src)
	// The first parse only collects the schema of every type; a second one, which starts
	// from the collected ones with those of Kubernetes changed, makes each size.
	for _, size := range []struct {
		dir    string
		reduce func(pkg, name string, s *apiextensionsv1.JSONSchemaProps)
	}{
		{"config/crd/full", undescribe},
		{"config/crd/slim", slim},
	} {
		dir := size.dir
		p := src.parser(reduced(full.Schemata, size.reduce))
		made := crds(p, src)
		if len(made) != len(fullCRDs) {
			return nil, fmt.Errorf("%s: %d CRDs instead of %d", dir, len(made), len(fullCRDs))
		}
		for i := range made {
			isSlim := dir == "config/crd/slim"
			finish(&made[i], isSlim)
			out, err := marshal(&made[i], isSlim)
			if err != nil {
				return nil, err
			}
			suffix := "yaml"
			if isSlim {
				suffix = "json" // the embedded API reads it at each start, and JSON reads faster
			}
			files[fmt.Sprintf("%s/%s_%s.%s", dir, made[i].Spec.Group, made[i].Spec.Names.Plural, suffix)] = out
		}
	}

	copies := &deepCopies{root: root, files: files}
	err = deepcopy.Generator{}.Generate(&genall.GenerationContext{
		Collector:  src.collector,
		Roots:      roots,
		Checker:    &loader.TypeChecker{NodeFilters: []loader.NodeFilter{deepcopy.Generator{}.CheckFilter()}},
		OutputRule: copies,
	})
	if err != nil {
		return nil, err
	}
	for _, p := range roots {
		for _, e := range p.Errors {
			// Only what the filters let through is type-checked, so type errors mean nothing.
			if e.Kind != packages.TypeError {
				return nil, fmt.Errorf("%s: %w", p.PkgPath, e)
			}
		}
	}
	return files, nil
}

// parser returns a parser over the source that already knows the given schemata.
func (s source) parser(known map[crd.TypeIdent]apiextensionsv1.JSONSchemaProps) *crd.Parser {
	p := &crd.Parser{
		Collector: s.collector,
		Checker:   s.checker,
		Schemata:  known,
		// A pod template's labels and annotations must survive in a Revision.
		GenerateEmbeddedObjectMeta: true,
	}
	crd.AddKnownTypes(p)
	for _, r := range s.roots {
		p.NeedPackage(r)
	}
	return p
}

// crds returns a CRD for each kind of the source, in order of group and kind.
func crds(p *crd.Parser, s source) []apiextensionsv1.CustomResourceDefinition {
	var out []apiextensionsv1.CustomResourceDefinition
	for _, gk := range crd.FindKubeKinds(p, crd.FindMetav1(s.roots)) {
		p.NeedCRDFor(gk, nil)
		c := p.CustomResourceDefinitions[gk]
		crd.FixTopLevelMetadata(c)
		out = append(out, c)
	}
	return out
}

// reduced returns deep copies of the schemata after reduce has seen each, with the path of
// its package and its name.
func reduced(in map[crd.TypeIdent]apiextensionsv1.JSONSchemaProps, reduce func(pkg, name string, s *apiextensionsv1.JSONSchemaProps)) map[crd.TypeIdent]apiextensionsv1.JSONSchemaProps {
	out := make(map[crd.TypeIdent]apiextensionsv1.JSONSchemaProps, len(in))
	for id, s := range in {
		c := s.DeepCopy()
		reduce(id.Package.PkgPath, id.Name, c)
		out[id] = *c
	}
	return out
}

// undescribe drops descriptions from the types of Kubernetes: they are long, and known.
func undescribe(pkg, _ string, s *apiextensionsv1.JSONSchemaProps) {
	if strings.HasPrefix(pkg, "k8s.io/") {
		walk(s, func(s *apiextensionsv1.JSONSchemaProps) { s.Description = "" })
	}
}

// slim makes open objects of the types that pods are made of.
func slim(pkg, name string, s *apiextensionsv1.JSONSchemaProps) {
	undescribe(pkg, name, s)
	open := true
	switch {
	case name == "PodSpec" && strings.HasSuffix(pkg, "/api/serving/v1beta1"):
		*s = apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &open}
	case name == "ServingRuntimePodSpec":
		// Labels and annotations are the runtime's own; containers are its printer column.
		for prop := range s.Properties {
			if prop != "labels" && prop != "annotations" && prop != "containers" {
				delete(s.Properties, prop)
			}
		}
		s.XPreserveUnknownFields = &open
	case strings.HasPrefix(pkg, "k8s.io/api/") && s.Type == "object" && len(s.Properties) > 0:
		*s = apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &open}
	}
}

// walk calls f for s and every schema within it.
func walk(s *apiextensionsv1.JSONSchemaProps, f func(*apiextensionsv1.JSONSchemaProps)) {
	f(s)
	for name, p := range s.Properties {
		walk(&p, f)
		s.Properties[name] = p
	}
	if s.Items != nil && s.Items.Schema != nil {
		walk(s.Items.Schema, f)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		walk(s.AdditionalProperties.Schema, f)
	}
	for i := range s.AllOf {
		walk(&s.AllOf[i], f)
	}
}

// finish makes the changes to a CRD that no marker can express.
func finish(c *apiextensionsv1.CustomResourceDefinition, isSlim bool) {
	for i := range c.Spec.Versions {
		root := c.Spec.Versions[i].Schema.OpenAPIV3Schema
		if c.Spec.Names.Kind == "InferenceService" {
			relax(root)
			if isSlim {
				// The canary's predictor repeats the predictor's schema; describing it once
				// is enough for explain.
				canary := root.Properties["spec"].Properties["canary"].Items.Schema
				predictor := canary.Properties["predictor"]
				for name, p := range predictor.Properties {
					walk(&p, func(s *apiextensionsv1.JSONSchemaProps) { s.Description = "" })
					predictor.Properties[name] = p
				}
			}
		}
		walk(root, func(s *apiextensionsv1.JSONSchemaProps) {
			s.Description = strings.Join(strings.Fields(s.Description), " ")
			slices.Sort(s.Required)
			s.Required = slices.Compact(s.Required)
		})
	}
}

// relax loosens what the types alone would make too strict, as KServe does.
//
// The members of each component lose their required lists: model and the framework fields
// inline a container, whose name would be required otherwise but must not be set here. Probes
// may leave out the port, which is then that of the container. Ephemeral containers, which
// make sense only in a running pod, are no field of a component.
//
// Where KServe forgets the canary's predictor (no canary with a model could be valid there),
// its model and framework fields are relaxed as well.
func relax(root *apiextensionsv1.JSONSchemaProps) {
	spec := root.Properties["spec"]
	for _, name := range []string{"predictor", "transformer", "explainer"} {
		component := spec.Properties[name]
		delete(component.Properties, "ephemeralContainers")
		for name, member := range component.Properties {
			member.Required = nil
			component.Properties[name] = member
			relaxProbes(member, "httpGet", "tcpSocket")
		}
		relaxProbes(*orEmpty(component.Properties["containers"].Items), "httpGet")
	}
	canary := spec.Properties["canary"].Items.Schema.Properties["predictor"]
	for name, member := range canary.Properties {
		if _, isModel := member.Properties["storageUri"]; isModel {
			member.Required = nil
			canary.Properties[name] = member
		}
	}
}

// relaxProbes makes the port of a container's liveness and readiness probes optional.
func relaxProbes(container apiextensionsv1.JSONSchemaProps, actions ...string) {
	for _, probe := range []string{"livenessProbe", "readinessProbe"} {
		for _, action := range actions {
			if a, ok := container.Properties[probe].Properties[action]; ok {
				a.Required = nil
				container.Properties[probe].Properties[action] = a
			}
		}
	}
}

func orEmpty(items *apiextensionsv1.JSONSchemaPropsOrArray) *apiextensionsv1.JSONSchemaProps {
	if items == nil || items.Schema == nil {
		return &apiextensionsv1.JSONSchemaProps{}
	}
	return items.Schema
}

// deepCopies is the output rule that keeps generated Go files in memory.
type deepCopies struct {
	root  string
	files map[string][]byte
}

// Open implements genall.OutputRule.
func (d *deepCopies) Open(pkg *loader.Package, name string) (io.WriteCloser, error) {
	if pkg == nil || len(pkg.GoFiles) == 0 {
		return nil, fmt.Errorf("no directory for %s", name)
	}
	root, err := filepath.Abs(d.root)
	if err != nil {
		return nil, err
	}
	rel, err := filepath.Rel(root, filepath.Dir(pkg.GoFiles[0]))
	if err != nil {
		return nil, err
	}
	return &file{path: filepath.ToSlash(filepath.Join(rel, name)), into: d.files}, nil
}

// file is a file that is kept in memory when closed.
type file struct {
	bytes.Buffer
	path string
	into map[string][]byte
}

// Close keeps the content.
func (f *file) Close() error {
	f.into[f.path] = bytes.Clone(f.Bytes())
	return nil
}
