package manifest

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/spec"
)

func TestPayloadLogOf(t *testing.T) {
	logged := func(l v1beta1.LoggerSpec, annotations map[string]string) *v1beta1.InferenceService {
		return with(func(s *v1beta1.InferenceService) {
			s.Spec.Predictor.Logger, s.Spec.Predictor.Annotations = &l, map[string]string{"own": "component"}
			s.Annotations = annotations
		})
	}
	sink := ptr("http://collector.default:8080/in")
	for name, tc := range map[string]struct {
		is   *v1beta1.InferenceService
		want *spec.PayloadLog
	}{
		"no logger":        {is: with(func(*v1beta1.InferenceService) {})},
		"no address":       {is: logged(v1beta1.LoggerSpec{Mode: v1beta1.LogAll}, nil)},
		"an empty address": {is: logged(v1beta1.LoggerSpec{Mode: v1beta1.LogAll, URL: ptr("")}, nil)},
		"no host":          {is: logged(v1beta1.LoggerSpec{Mode: v1beta1.LogAll, URL: ptr("http:///in")}, nil)},
		"not a URL":        {is: logged(v1beta1.LoggerSpec{Mode: v1beta1.LogAll, URL: ptr("http://%zz")}, nil)},
		"no bucket":        {is: logged(v1beta1.LoggerSpec{Mode: v1beta1.LogAll, URL: ptr("s3:///x")}, nil)},
		"a bucket": {
			is: logged(v1beta1.LoggerSpec{Mode: v1beta1.LogRequest, URL: ptr("s3://bucket/x"), MarshallerURL: "http://localhost:9083/marshal"}, nil),
			want: &spec.PayloadLog{URL: "s3://bucket/x", Requests: true, Store: &spec.PayloadStore{
				Format: "json", BatchSize: 1, ServiceAccount: "logger-sa",
			}},
		},
		"a bucket with all that can be said of it": {
			is: logged(v1beta1.LoggerSpec{
				Mode: v1beta1.LogRequest, URL: ptr("gs://bucket"), MarshallerURL: "http://m/x", BatchSize: ptr(5), BatchInterval: ptr("10s"),
				Storage: &v1beta1.LoggerStorageSpec{ServiceAccountName: "sa", StorageSpec: v1beta1.StorageSpec{
					Path: ptr("logs"), StorageKey: ptr("k"),
					Parameters: &map[string]string{"format": "parquet", "region": "r", "endpoint_url": "http://e"},
				}},
			}, map[string]string{"serving.kserve.io/storageSecretName": "mine"}),
			want: &spec.PayloadLog{URL: "gs://bucket", Requests: true, Store: &spec.PayloadStore{
				Path: "logs", Format: "parquet", Marshaller: "http://m/x", BatchSize: 5, BatchInterval: 10 * time.Second,
				Secret: "mine", Key: "k", ServiceAccount: "sa", Region: "r", Endpoint: "http://e",
			}},
		},
		"an interval without a size": {
			is:   logged(v1beta1.LoggerSpec{Mode: v1beta1.LogRequest, URL: ptr("abfs://c@a.dfs.core.windows.net"), BatchInterval: ptr("10s")}, nil),
			want: &spec.PayloadLog{URL: "abfs://c@a.dfs.core.windows.net", Requests: true, Store: &spec.PayloadStore{Format: "json", BatchSize: 1, ServiceAccount: "logger-sa"}},
		},
		"requests":  {is: logged(v1beta1.LoggerSpec{Mode: v1beta1.LogRequest, URL: sink}, nil), want: &spec.PayloadLog{URL: *sink, Requests: true}},
		"responses": {is: logged(v1beta1.LoggerSpec{Mode: v1beta1.LogResponse, URL: sink}, nil), want: &spec.PayloadLog{URL: *sink, Responses: true}},
		"all, with what the service and the component have of the metadata": {
			is: logged(v1beta1.LoggerSpec{
				Mode: v1beta1.LogAll, URL: sink, MetadataHeaders: []string{"x-tenant"}, MetadataAnnotations: []string{"team", "own", "missing"},
			}, map[string]string{"team": "red", "own": "service", "other": "x"}),
			want: &spec.PayloadLog{
				URL: *sink, Requests: true, Responses: true, Headers: []string{"x-tenant"},
				Annotations: map[string]string{"team": "red", "own": "component"},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, PayloadLogOf(tc.is, spec.Predictor)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got := PayloadLogOf(tc.is, spec.Explainer); got != nil {
				t.Errorf("a component that isn't there: %v", got)
			}
		})
	}
}

func TestBatchingOf(t *testing.T) {
	for name, tc := range map[string]struct {
		batcher *v1beta1.Batcher
		want    *spec.Batching
	}{
		"no batcher":    {},
		"KServe's ways": {batcher: &v1beta1.Batcher{}, want: &spec.Batching{MaxSize: 32, MaxLatency: 5 * time.Second}},
		"zeros":         {batcher: &v1beta1.Batcher{MaxBatchSize: ptr(0), MaxLatency: ptr(0), Timeout: ptr(0)}, want: &spec.Batching{MaxSize: 32, MaxLatency: 5 * time.Second}},
		"all of it": {
			batcher: &v1beta1.Batcher{MaxBatchSize: ptr(8), MaxLatency: ptr(50), Timeout: ptr(7)},
			want:    &spec.Batching{MaxSize: 8, MaxLatency: 50 * time.Millisecond, Timeout: 7 * time.Second},
		},
	} {
		t.Run(name, func(t *testing.T) {
			is := with(func(s *v1beta1.InferenceService) { s.Spec.Predictor.Batcher = tc.batcher })
			if diff := cmp.Diff(tc.want, BatchingOf(is, spec.Predictor)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
