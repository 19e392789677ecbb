package manifest_test

import (
	"slices"
	"strings"
	"testing"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/manifest"
)

func TestWhatIsNotInEffectOfADirectRoute(t *testing.T) {
	annotation := "metadata.annotations[" + manifest.DirectAnnotation + "]"
	zero, four := int32(0), int64(4)
	for name, tc := range map[string]struct {
		value    string
		possible bool
		change   func(*v1beta1.InferenceService)
		fields   []string
		reason   string
	}{
		"not asked for":                 {value: "false"},
		"all of it":                     {value: "true", possible: true},
		"neither true nor false":        {value: "yes", possible: true, fields: []string{annotation}, reason: `"true" or "false"`},
		"no Gateway to hang it on":      {value: "true", fields: []string{annotation}, reason: "--direct-gateway"},
		"nobody holds requests at zero": {value: "true", possible: true, change: func(s *v1beta1.InferenceService) { s.Spec.Predictor.MinReplicas = &zero }, fields: []string{annotation}, reason: "spec.predictor.minReplicas is 0"},
		"no way in from outside": {value: "true", possible: true, change: func(s *v1beta1.InferenceService) {
			s.Labels = map[string]string{"networking.kserve.io/visibility": "cluster-local"}
		}, fields: []string{annotation}, reason: "cluster-local"},
		"replicas by a load that isn't seen": {value: "true", possible: true, change: func(s *v1beta1.InferenceService) {
			one := int32(1)
			s.Spec.Predictor.MinReplicas, s.Spec.Predictor.MaxReplicas = &one, 4
		}, fields: []string{"spec.predictor.maxReplicas"}, reason: "class hpa"},
		"what the gateway does": {
			value: "true", possible: true, reason: "through the gateway",
			change: func(s *v1beta1.InferenceService) {
				s.Spec.Predictor.ContainerConcurrency, s.Spec.Predictor.Batcher = &four, &v1beta1.Batcher{}
				s.Annotations[manifest.StickyAnnotation] = "cookie=a"
			},
			fields: []string{"spec.predictor.batcher", "spec.predictor.containerConcurrency", "metadata.annotations[" + manifest.StickyAnnotation + "]"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			is := &v1beta1.InferenceService{}
			is.Annotations = map[string]string{manifest.DirectAnnotation: tc.value}
			if tc.change != nil {
				tc.change(is)
			}
			var fields []string
			for _, n := range manifest.DirectNotInEffect(is, tc.possible) {
				fields = append(fields, n.Field)
				if !strings.Contains(n.Reason, tc.reason) {
					t.Errorf("of %s it says %q", n.Field, n.Reason)
				}
			}
			if !slices.Equal(fields, tc.fields) {
				t.Errorf("not in effect are %q", fields)
			}
		})
	}
}
