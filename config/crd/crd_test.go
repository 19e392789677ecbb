package crd

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

const slimLimit = 72 << 10 // bytes of JSON; DESIGN.md has what schema weight costs

func fullCRDs(t *testing.T) []*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crds, err := read(os.DirFS("."), "full", func(raw []byte, into any) error { return yaml.UnmarshalStrict(raw, into) })
	if err != nil {
		t.Fatal(err)
	}
	return crds
}

func embedded(t *testing.T) []*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	crds, err := Slim()
	if err != nil {
		t.Fatal(err)
	}
	return crds
}

func TestAPIServerAcceptsEveryCRD(t *testing.T) {
	for size, crds := range map[string][]*apiextensionsv1.CustomResourceDefinition{"full": fullCRDs(t), "slim": embedded(t)} {
		var names []string
		for _, c := range crds {
			names = append(names, c.Name)
			t.Run(size+"/"+c.Name, func(t *testing.T) {
				c := c.DeepCopy()
				apiextensionsv1.SetDefaults_CustomResourceDefinition(c)
				apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&c.Spec)
				c.Status.StoredVersions = []string{c.Spec.Versions[0].Name}
				var internal apiextensions.CustomResourceDefinition
				if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(c, &internal, nil); err != nil {
					t.Fatal(err)
				}
				for _, err := range validation.ValidateCustomResourceDefinition(t.Context(), &internal) {
					t.Error(err)
				}
			})
		}
		want := []string{
			"clusterservingruntimes.serving.kserve.io", "inferencegraphs.serving.kserve.io", "inferenceservices.serving.kserve.io",
			"servingruntimes.serving.kserve.io", "trainedmodels.serving.kserve.io", "revisions.stationmaster.dev", "routes.stationmaster.dev",
		}
		if diff := cmp.Diff(want, names); diff != "" {
			t.Errorf("%s CRDs (-want +got):\n%s", size, diff)
		}
	}
}

func TestSlimCRDsAreSmall(t *testing.T) {
	for _, c := range embedded(t) {
		raw, err := yaml.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if raw, err = yaml.YAMLToJSON(raw); err != nil {
			t.Fatal(err)
		}
		if len(raw) > slimLimit {
			t.Errorf("%s has %d bytes, more than %d", c.Name, len(raw), slimLimit)
		}
	}
}

func TestExplainKnowsOurFields(t *testing.T) {
	for _, c := range embedded(t) {
		if c.Spec.Group != "stationmaster.dev" && c.Spec.Names.Kind != "InferenceService" {
			continue
		}
		root := c.Spec.Versions[0].Schema.OpenAPIV3Schema
		for _, part := range []string{"spec", "status"} {
			for name, p := range root.Properties[part].Properties {
				if p.Description == "" {
					t.Errorf("%s: %s.%s has no description", c.Name, part, name)
				}
			}
		}
	}
}

// property is what is compared of a schema at one path.
type property struct {
	Type, Format, Pattern string
	Required              []string
	Enum                  []string
	Default               string
	IntOrString, Open     bool
	Nullable              bool
	List, Map             string
	Limits                [6]int64
}

// flatten maps each path of a schema to its property; elements are [] and values {}.
func flatten(s *apiextensionsv1.JSONSchemaProps, path string, into map[string]property) {
	p := property{
		Type: s.Type, Format: s.Format, Pattern: s.Pattern, Nullable: s.Nullable,
		Required: slices.Sorted(slices.Values(s.Required)), IntOrString: s.XIntOrString,
		Open: s.XPreserveUnknownFields != nil && *s.XPreserveUnknownFields,
	}
	for _, e := range s.Enum {
		p.Enum = append(p.Enum, string(e.Raw))
	}
	slices.Sort(p.Enum)
	if s.Default != nil {
		p.Default = string(s.Default.Raw)
	}
	if s.XListType != nil {
		p.List = *s.XListType + ":" + strings.Join(s.XListMapKeys, ",")
	}
	if s.XMapType != nil {
		p.Map = *s.XMapType
	}
	for i, limit := range []*int64{s.MinLength, s.MaxLength, s.MinItems, s.MaxItems} {
		if limit != nil {
			p.Limits[i] = *limit + 1
		}
	}
	for i, limit := range []*float64{s.Minimum, s.Maximum} {
		if limit != nil {
			p.Limits[4+i] = int64(*limit) + 1
		}
	}
	into[path] = p
	for name, child := range s.Properties {
		flatten(&child, path+"."+name, into)
	}
	if s.Items != nil && s.Items.Schema != nil {
		flatten(s.Items.Schema, path+"[]", into)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		flatten(s.AdditionalProperties.Schema, path+"{}", into)
	}
}

// shared is the directory of the corpus; tests that need it skip where it is absent.
func shared(t *testing.T) string {
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

func TestFullCRDsCoverKServes(t *testing.T) {
	dir := filepath.Join(shared(t), "config", "crd", "full")
	used := map[string]bool{}
	defer func() {
		for _, list := range []map[string]string{deviations, additions} {
			for suffix, why := range list {
				if !used[suffix] {
					t.Errorf("%s is listed (%s), but no longer differs", suffix, why)
				}
			}
		}
	}()
	for _, ours := range fullCRDs(t) {
		if ours.Spec.Group != "serving.kserve.io" {
			continue
		}
		t.Run(ours.Spec.Names.Plural, func(t *testing.T) {
			raw, err := os.ReadFile(filepath.Join(dir, ours.Spec.Group+"_"+ours.Spec.Names.Plural+".yaml"))
			if err != nil {
				t.Fatal(err)
			}
			var theirs apiextensionsv1.CustomResourceDefinition
			if err := yaml.Unmarshal(raw, &theirs); err != nil {
				t.Fatal(err)
			}
			got, want := ours.Spec.Versions[0], theirs.Spec.Versions[0]
			if ours.Spec.Names.Kind == "InferenceService" {
				theirs.Spec.Names.Categories = []string{"all"} // ours besides: kubectl get all lists services
			}
			if diff := cmp.Diff(theirs.Spec.Names, ours.Spec.Names); diff != "" {
				t.Errorf("names (-theirs +ours):\n%s", diff)
			}
			if diff := cmp.Diff(want.AdditionalPrinterColumns, got.AdditionalPrinterColumns); diff != "" {
				t.Errorf("printer columns (-theirs +ours):\n%s", diff)
			}
			if theirs.Spec.Scope != ours.Spec.Scope || want.Name != got.Name || (want.Subresources == nil) != (got.Subresources == nil) {
				t.Errorf("scope, version or subresources differ")
			}
			compare(t, want.Schema.OpenAPIV3Schema, got.Schema.OpenAPIV3Schema, used)
		})
	}
}

func compare(t *testing.T, theirs, ours *apiextensionsv1.JSONSchemaProps, used map[string]bool) {
	t.Helper()
	want, got := map[string]property{}, map[string]property{}
	flatten(theirs, "", want)
	flatten(ours, "", got)
	for _, path := range slices.Sorted(maps.Keys(want)) {
		have, ok := got[path]
		if !ok {
			t.Errorf("%s is missing", path)
			continue
		}
		if diff := cmp.Diff(want[path], have); diff != "" && bySuffix(deviations, path, used) == "" {
			t.Errorf("%s (-theirs +ours):\n%s", path, diff)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[path]; !ok && bySuffix(additions, path, used) == "" {
			t.Errorf("%s is ours alone and not listed", path)
		}
	}
}

// deviations are the paths, by suffix, where our schema differs from KServe's, and why.
var deviations = map[string]string{
	".spec.canary[].predictor.huggingface":    canaryName,
	".spec.canary[].predictor.lightgbm":       canaryName,
	".spec.canary[].predictor.model":          canaryName,
	".spec.canary[].predictor.onnx":           canaryName,
	".spec.canary[].predictor.paddle":         canaryName,
	".spec.canary[].predictor.pmml":           canaryName,
	".spec.canary[].predictor.pytorch":        canaryName,
	".spec.canary[].predictor.sklearn":        canaryName,
	".spec.canary[].predictor.tensorflow":     canaryName,
	".spec.canary[].predictor.triton":         canaryName,
	".spec.canary[].predictor.xgboost":        canaryName,
	".status.conditions[].lastTransitionTime": "Knative's own time type hides the format, which is the same",
}

const (
	canaryName = "KServe requires the container's name here, which its admission then refuses; and modelFormat, which is the stable predictor's where left out"
	newer      = "k8s.io/api is newer than the one KServe's CRD was made from"
	claimMeta  = "KServe's CRD drops a claim template's metadata; ours keeps labels and annotations"
)

// additions are the paths, by suffix, that KServe's schema lacks, and why ours has them.
var additions = map[string]string{
	".httpGet.protocol":                           newer,
	"Probe.grpc.mode":                             newer,
	".volumeMounts[].bindMountOptions":            newer,
	".volumeMounts[].bindMountOptions[]":          newer,
	".configMap.defaultUser":                      newer,
	".downwardAPI.defaultUser":                    newer,
	".projected.defaultUser":                      newer,
	".secret.defaultUser":                         newer,
	".items[].user":                               newer,
	".clusterTrustBundle.user":                    newer,
	".podCertificate.user":                        newer,
	".podCertificate.userAnnotations":             newer,
	".podCertificate.userAnnotations{}":           newer,
	".serviceAccountToken.user":                   newer,
	".emptyDir.mode":                              newer,
	".volumeClaimTemplate.metadata.annotations":   claimMeta,
	".volumeClaimTemplate.metadata.annotations{}": claimMeta,
	".volumeClaimTemplate.metadata.finalizers":    claimMeta,
	".volumeClaimTemplate.metadata.finalizers[]":  claimMeta,
	".volumeClaimTemplate.metadata.labels":        claimMeta,
	".volumeClaimTemplate.metadata.labels{}":      claimMeta,
	".volumeClaimTemplate.metadata.name":          claimMeta,
	".volumeClaimTemplate.metadata.namespace":     claimMeta,
}

// bySuffix returns the reason listed for the path and notes that its entry was needed.
func bySuffix(list map[string]string, path string, used map[string]bool) string {
	for suffix, why := range list {
		if strings.HasSuffix(path, suffix) {
			used[suffix] = true
			return why
		}
	}
	return ""
}

func TestOwnKindsKeepTheirRules(t *testing.T) {
	revision := func(image string) map[string]any {
		return map[string]any{"spec": map[string]any{
			"service": "iris", "component": "predictor", "hash": "h",
			"podTemplate": map[string]any{"spec": map[string]any{"containers": []any{
				map[string]any{"name": "kserve-container", "image": image},
			}}},
		}}
	}
	route := func(tag string, percents ...int64) map[string]any {
		targets := []any{}
		for _, p := range percents {
			targets = append(targets, map[string]any{"revisionName": "r", "percent": p, "tag": "prev"})
		}
		return map[string]any{"spec": map[string]any{"service": "iris", "components": []any{map[string]any{
			"component": "predictor", "targets": targets,
			"headerRules": []any{map[string]any{"header": "X-Canary", "tag": tag}},
		}}}}
	}
	trained := func(memory any) map[string]any {
		return map[string]any{"spec": map[string]any{"model": map[string]any{"memory": memory}}}
	}
	graph := func(node string) map[string]any {
		return map[string]any{"spec": map[string]any{"nodes": map[string]any{node: map[string]any{}}}}
	}
	service := func(percent int64) map[string]any {
		return map[string]any{"spec": map[string]any{"predictor": map[string]any{"canaryTrafficPercent": percent}}}
	}
	for name, tc := range map[string]struct {
		plural   string
		old, new map[string]any
		want     string
		fullOnly bool
	}{
		"an unchanged revision":          {plural: "revisions", old: revision("a"), new: revision("a")},
		"a revision with another image":  {plural: "revisions", old: revision("a"), new: revision("b"), want: "immutable", fullOnly: true},
		"percents that sum to 100":       {plural: "routes", new: route("prev", 30, 70)},
		"percents that sum to 90":        {plural: "routes", new: route("prev", 20, 70), want: "sum to 100"},
		"the same memory in other words": {plural: "trainedmodels", old: trained("1Gi"), new: trained("1024Mi")},
		"the same memory as a number":    {plural: "trainedmodels", old: trained("1k"), new: trained(int64(1000))},
		"a trained model with other memory": {
			plural: "trainedmodels", old: trained("1Gi"), new: trained("2Gi"),
			want: "spec.model.memory: Forbidden: can't be changed from 1Gi to 2Gi; delete the TrainedModel and create it anew",
		},
		"a graph with a root":               {plural: "inferencegraphs", new: graph("root")},
		"a graph without one":               {plural: "inferencegraphs", new: graph("other"), want: "spec.nodes: Required value: a request meets the node named root first: add it"},
		"a share of all":                    {plural: "inferenceservices", new: service(100)},
		"a share of more than all":          {plural: "inferenceservices", new: service(101), want: "must be 0 to 100"},
		"a share of less than nothing":      {plural: "inferenceservices", new: service(-1), want: "must be 0 to 100"},
		"a header rule to no target at all": {plural: "routes", new: route("next", 100), want: "tag of a target"},
	} {
		for size, crds := range map[string][]*apiextensionsv1.CustomResourceDefinition{"full": fullCRDs(t), "slim": embedded(t)} {
			t.Run(name+"/"+size, func(t *testing.T) {
				if tc.fullOnly && size != "full" {
					t.Skip("CEL doesn't see open objects; manifest.ValidateRevision compares them")
				}
				i := slices.IndexFunc(crds, func(c *apiextensionsv1.CustomResourceDefinition) bool { return c.Spec.Names.Plural == tc.plural })
				var internal apiextensions.JSONSchemaProps
				if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(crds[i].Spec.Versions[0].Schema.OpenAPIV3Schema, &internal, nil); err != nil {
					t.Fatal(err)
				}
				s, err := structuralschema.NewStructural(&internal)
				if err != nil {
					t.Fatal(err)
				}
				v := cel.NewValidator(s, true, celconfig.PerCallLimit)
				var old any
				if tc.old != nil {
					old = tc.old
				}
				errs, _ := v.Validate(t.Context(), nil, s, tc.new, old, celconfig.RuntimeCELCostBudget)
				text := ""
				if err := errs.ToAggregate(); err != nil {
					text = err.Error()
				}
				if tc.want == "" && text != "" || !strings.Contains(text, tc.want) {
					t.Errorf("got %q, want %q", text, tc.want)
				}
			})
		}
	}
}

// BenchmarkSlim is a part of the time from start to ready.
func BenchmarkSlim(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Slim(); err != nil {
			b.Fatal(err)
		}
	}
}
