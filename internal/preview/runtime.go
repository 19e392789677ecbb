package preview

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/catalogue"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/spec"
)

// named is how many services a warning names.
const named = 10

// runtimeShape is a runtime as it is or as it would be.
type runtimeShape struct {
	name        string
	spec        *v1alpha1.ServingRuntimeSpec
	annotations map[string]string
}

// runtime says which services a changed runtime would roll, or leave without one.
func (s *sight) runtime(ctx context.Context, kind string, next, before runtimeShape) error {
	var services v1beta1.InferenceServiceList
	// A namespaced runtime has its own namespace, a cluster-wide one all.
	if err := s.Cached.List(ctx, &services, client.InNamespace(s.namespace)); err != nil {
		return fmt.Errorf("list services: %w", err)
	}
	var rolled, lost []string
	for i := range services.Items {
		if ctx.Err() != nil {
			return fmt.Errorf("look at %d services: %w", len(services.Items), context.Cause(ctx))
		}
		is := services.Items[i].DeepCopy()
		using := is.Status.ServingRuntimeName
		if kind == catalogue.KindClusterServingRuntime {
			using = is.Status.ClusterServingRuntimeName
		}
		if using != next.name || is.Annotations[manifest.DisableAutoUpdateAnnotation] == "true" {
			continue
		}
		manifest.Default(is, manifest.Defaults{})
		was, had := s.shapeWith(ctx, is, kind, before)
		will, has := s.shapeWith(ctx, is, kind, next)
		name := is.Name
		if s.namespace == "" {
			name = is.Namespace + "/" + is.Name
		}
		switch {
		case had && !has:
			lost = append(lost, name)
		case was != will:
			rolled = append(rolled, name)
		}
	}
	if len(rolled) > 0 {
		s.say("this rolls out a new revision of %s; the annotation %s keeps a service as it is", list(rolled), manifest.DisableAutoUpdateAnnotation)
	}
	if len(lost) > 0 {
		s.say("this runtime serves %s and won't any longer: another one is chosen for them, or none", list(lost))
	}
	return nil
}

// shapeWith is what the predictor of a service is with a runtime, and false where the runtime isn't
// chosen for it or doesn't fit it.
func (s *sight) shapeWith(ctx context.Context, is *v1beta1.InferenceService, kind string, r runtimeShape) (string, bool) {
	request, needs := catalogue.RequestOf(&is.Spec.Predictor)
	if !needs {
		return "", false
	}
	var namespaced []v1alpha1.ServingRuntime
	var cluster []v1alpha1.ClusterServingRuntime
	if kind == catalogue.KindServingRuntime {
		namespaced = []v1alpha1.ServingRuntime{{Spec: *r.spec}}
		namespaced[0].Name, namespaced[0].Annotations = r.name, r.annotations
	} else {
		cluster = []v1alpha1.ClusterServingRuntime{{Spec: *r.spec}}
		cluster[0].Name, cluster[0].Annotations = r.name, r.annotations
	}
	chosen, err := catalogue.Select(request, namespaced, cluster)
	if err != nil {
		return "", false
	}
	compiled, err := manifest.Compile(manifest.Input{
		Service: is, Component: spec.Predictor,
		Runtime: chosen.Spec, RuntimeName: chosen.Name, RuntimeKind: chosen.Kind, RuntimeAnnotations: chosen.Annotations,
		ConfigMap: func(name string) (map[string]string, error) { return s.configMap(ctx, is.Namespace, name) },
	})
	return compiled.Workload.Hash, err == nil
}

func list(names []string) string {
	slices.Sort(names)
	if len(names) <= named {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:named], ", "), len(names)-named)
}
