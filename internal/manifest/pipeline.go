package manifest

import (
	"cmp"
	"fmt"
	"math"
	"net/url"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/spec"
)

// KServe's defaults of a batcher (pkg/batcher/handler.go: MaxBatchSize, MaxLatency).
const (
	defaultBatchSize    = 32
	defaultBatchLatency = 5000 * time.Millisecond
)

// PayloadLogOf returns what of a component's requests is logged; nil for nothing, also where a
// logger can't have its effect (NotInEffectOf says why).
func PayloadLogOf(is *v1beta1.InferenceService, c spec.Component) *spec.PayloadLog {
	ext := extensionOf(is, c)
	if ext == nil || ext.Logger == nil || loggerReason(ext.Logger) != "" {
		return nil
	}
	l := ext.Logger
	out := &spec.PayloadLog{
		URL: *l.URL, Requests: l.Mode != v1beta1.LogResponse, Responses: l.Mode != v1beta1.LogRequest,
		Headers: l.MetadataHeaders, Store: payloadStoreOf(l, ext.Annotations, is.Annotations),
	}
	for _, key := range l.MetadataAnnotations {
		v, has := ext.Annotations[key]
		if !has {
			v, has = is.Annotations[key]
		}
		if has {
			if out.Annotations == nil {
				out.Annotations = map[string]string{}
			}
			out.Annotations[key] = v
		}
	}
	return out
}

// BatchingOf returns how a component's requests are put together; nil for not at all.
func BatchingOf(is *v1beta1.InferenceService, c spec.Component) *spec.Batching {
	ext := extensionOf(is, c)
	if ext == nil || ext.Batcher == nil {
		return nil
	}
	of := func(n *int) int {
		if n == nil {
			return 0
		}
		return min(*n, math.MaxInt32) // which no product overflows
	}
	b := ext.Batcher
	return &spec.Batching{
		MaxSize:    cmp.Or(of(b.MaxBatchSize), defaultBatchSize),
		MaxLatency: cmp.Or(time.Duration(of(b.MaxLatency))*time.Millisecond, defaultBatchLatency),
		Timeout:    time.Duration(of(b.Timeout)) * time.Second,
	}
}

func extensionOf(is *v1beta1.InferenceService, c spec.Component) *v1beta1.ComponentExtensionSpec {
	switch {
	case c == spec.Predictor:
		return &is.Spec.Predictor.ComponentExtensionSpec
	case c == spec.Transformer && is.Spec.Transformer != nil:
		return &is.Spec.Transformer.ComponentExtensionSpec
	case c == spec.Explainer && is.Spec.Explainer != nil:
		return &is.Spec.Explainer.ComponentExtensionSpec
	}
	return nil
}

// loggerReason says why a logger's url leads nowhere; empty where it leads to a collector or a bucket.
func loggerReason(l *v1beta1.LoggerSpec) string {
	if l.URL == nil || *l.URL == "" {
		return "nothing is logged without a collector: name its http or https address in url"
	}
	u, err := url.Parse(*l.URL)
	switch {
	case err != nil || u.Host == "" && (u.Scheme == "http" || u.Scheme == "https"):
		return "this is no address that entries can be posted to: give one such as http://collector.default"
	case stores(u.Scheme) && u.Host == "":
		return fmt.Sprintf("this names no bucket: give an address such as %s://bucket/folder", u.Scheme)
	case u.Scheme != "http" && u.Scheme != "https" && !stores(u.Scheme):
		return fmt.Sprintf("a scheme %q isn't known here: name a collector of CloudEvents by http or https, or a bucket by s3, gs or abfs", u.Scheme)
	}
	return ""
}

// pipelineNotInEffect reports what the walk over single fields can't see: loggers without an
// address, those of canaries, whose requests are logged and put together as the predictor's, and a
// built-in explainer that one machine can't run.
func pipelineNotInEffect(is *v1beta1.InferenceService) []NotInEffect {
	var out []NotInEffect
	for _, c := range []spec.Component{spec.Predictor, spec.Transformer, spec.Explainer} {
		ext := extensionOf(is, c)
		if ext == nil || ext.Logger == nil {
			continue
		}
		if reason := loggerReason(ext.Logger); reason != "" {
			at := field.NewPath("spec", string(c), "logger")
			if ext.Logger.URL != nil {
				at = at.Child("url")
			}
			out = append(out, NotInEffect{Field: at.String(), Reason: reason})
			continue
		}
		out = append(out, storeNotInEffect(ext.Logger, field.NewPath("spec", string(c), "logger"))...)
	}
	if e := is.Spec.Explainer; e != nil && e.ART != nil && len(e.ART.Command) == 0 {
		out = append(out, NotInEffect{
			Field: field.NewPath("spec", "explainer", "art").String(), ClusterOnly: true,
			Reason: "the built-in explainer is an image, which needs a cluster; on one machine give what to run in command, or a container of your own in containers",
		})
	}
	for i := range is.Spec.Canary {
		at := field.NewPath("spec", "canary").Index(i).Child("predictor")
		p := &is.Spec.Canary[i].Predictor
		if p.Logger != nil {
			out = append(out, NotInEffect{Field: at.Child("logger").String(), Reason: "requests to a canary are logged as spec.predictor.logger says"})
		}
		if p.Batcher != nil {
			out = append(out, NotInEffect{Field: at.Child("batcher").String(), Reason: "requests to a canary are put together as spec.predictor.batcher says"})
		}
	}
	return out
}
