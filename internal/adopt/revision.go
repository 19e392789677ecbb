package adopt

import (
	"context"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"stationmaster.dev/stationmaster/api/serving/v1alpha1"
	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	smv1alpha1 "stationmaster.dev/stationmaster/api/stationmaster/v1alpha1"
	"stationmaster.dev/stationmaster/internal/catalogue"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/spec"
)

const labelService = "serving.kserve.io/inferenceservice"

// runtimes are those that the operator chooses from.
type runtimes struct {
	namespaced []v1alpha1.ServingRuntime
	cluster    []v1alpha1.ClusterServingRuntime
}

// runtimes reads what the cluster has, and adds what the operator brings when it starts: it leaves
// runtimes of others as they are.
func (cfg *Config) runtimes(ctx context.Context) (runtimes, error) {
	var namespaced v1alpha1.ServingRuntimeList
	if err := cfg.API.List(ctx, &namespaced, client.InNamespace(cfg.Namespace)); err != nil {
		return runtimes{}, fmt.Errorf("list serving runtimes: %w", err)
	}
	var cluster v1alpha1.ClusterServingRuntimeList
	if err := cfg.API.List(ctx, &cluster); err != nil {
		return runtimes{}, fmt.Errorf("list cluster serving runtimes: %w", err)
	}
	shipped, err := catalogue.Runtimes()
	if err != nil {
		return runtimes{}, err
	}
	out := runtimes{namespaced: namespaced.Items, cluster: cluster.Items}
	for _, s := range shipped {
		if !slices.ContainsFunc(out.cluster, func(have v1alpha1.ClusterServingRuntime) bool { return have.Name == s.Name }) {
			out.cluster = append(out.cluster, *s)
		}
	}
	return out, nil
}

// revision returns the first revision that the operator makes of a component.
func (r runtimes) revision(asWritten *v1beta1.InferenceService, c spec.Component) (*smv1alpha1.Revision, error) {
	is := asWritten.DeepCopy()
	manifest.Default(is, manifest.Defaults{})
	if errs := manifest.Validate(is, nil); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	in := manifest.Input{Service: is, Component: c}
	switch {
	case c == spec.Predictor && is.Spec.Predictor.Model != nil:
		request, _ := catalogue.RequestOf(&is.Spec.Predictor)
		chosen, err := catalogue.Select(request, r.namespaced, r.cluster)
		if err != nil {
			return nil, err
		}
		in.Runtime, in.RuntimeName, in.RuntimeKind, in.RuntimeAnnotations = chosen.Spec, chosen.Name, chosen.Kind, chosen.Annotations
	case c != spec.Predictor:
		in.PredictorHost = manifest.ComponentName(is.Name, spec.Predictor) + "." + is.Namespace
	}
	compiled, err := manifest.Compile(in)
	if err != nil {
		return nil, err
	}
	return &smv1alpha1.Revision{
		ObjectMeta: metav1.ObjectMeta{Namespace: is.Namespace, Name: manifest.RevisionName(is.Name, c, 1)},
		Spec:       compiled.RevisionSpec(),
	}, nil
}

// modelsOf returns the models of a revision that an init container fetches, by URI and path.
func modelsOf(rev *smv1alpha1.Revision) map[string]string {
	out := map[string]string{}
	for _, m := range rev.Spec.Models {
		switch scheme, _, _ := strings.Cut(m.URI, "://"); scheme {
		case "pvc", "oci", "oci+native", "oci+modelcar":
		default:
			out[m.URI] = m.MountPath
			if m.MountPath == "" {
				out[m.URI] = manifest.DefaultModelPath
			}
		}
	}
	return out
}
