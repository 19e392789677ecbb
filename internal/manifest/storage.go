package manifest

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
)

// StorageScheme is that of URIs that name an entry of a namespace's secret storage-config and a path
// in the bucket that the entry names: storage://key/path, with what goes before the entry's own
// words in its query.
const StorageScheme = "storage"

// storageParameters are those that go before what an entry says.
var storageParameters = []string{"type", "bucket", "region", "endpoint_url"}

// storageURI returns the URI that stands for a storage spec.
func storageURI(s *v1beta1.StorageSpec) string {
	query := url.Values{}
	kind := ""
	if s.Parameters != nil {
		for _, name := range storageParameters {
			if v := (*s.Parameters)[name]; v != "" {
				query.Set(name, v)
			}
		}
		kind = query.Get("type")
	}
	key := "default"
	if kind != "" {
		key = "default_" + kind
	}
	if s.StorageKey != nil {
		key = cmp.Or(*s.StorageKey, key)
	}
	u := url.URL{Scheme: StorageScheme, Host: key, RawQuery: query.Encode()}
	if s.Path != nil {
		u.Path = "/" + strings.TrimPrefix(*s.Path, "/")
	}
	return u.String()
}

// storageNotInEffect returns the parameters of a predictor's storage spec that do nothing.
func storageNotInEffect(is *v1beta1.InferenceService) []NotInEffect {
	var out []NotInEffect
	look := func(p *v1beta1.PredictorSpec, at *field.Path) {
		for name, m := range modelFields(p) {
			if m.Storage == nil || m.Storage.Parameters == nil {
				continue
			}
			for _, key := range slices.Sorted(maps.Keys(*m.Storage.Parameters)) {
				if !slices.Contains(storageParameters, key) {
					out = append(out, NotInEffect{
						Field:  at.Child(name, "storage", "parameters").Key(key).String(),
						Reason: fmt.Sprintf("the parameters %s count; give this one in the secret's entry", strings.Join(storageParameters, ", ")),
					})
				}
			}
		}
	}
	look(&is.Spec.Predictor, field.NewPath("spec", "predictor"))
	for i := range is.Spec.Canary {
		look(&is.Spec.Canary[i].Predictor, field.NewPath("spec", "canary").Index(i).Child("predictor"))
	}
	return out
}

// modelFields returns the model parts of a predictor by their fields.
func modelFields(p *v1beta1.PredictorSpec) map[string]*v1beta1.PredictorExtensionSpec {
	out := map[string]*v1beta1.PredictorExtensionSpec{}
	if p.Model != nil {
		out["model"] = &p.Model.PredictorExtensionSpec
	}
	for _, f := range frameworks(p) {
		if *f.spec != nil {
			out[f.name] = &(*f.spec).PredictorExtensionSpec
		}
	}
	return out
}
