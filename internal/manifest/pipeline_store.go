package manifest

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"stationmaster.dev/stationmaster/api/serving/v1beta1"
	"stationmaster.dev/stationmaster/internal/spec"
)

const (
	// storageSecretAnnotation names the secret with the credentials, before any service account's.
	storageSecretAnnotation = "serving.kserve.io/storageSecretName"
	// loggerAccount is KServe's default of a logger's service account.
	loggerAccount = "logger-sa"
	// agentMarshaller is the address of the marshaller within KServe's agent, which makes the files
	// that are made here without one.
	agentMarshaller = "http://localhost:9083/marshal"
)

// loggerFormats are those of files; the first one is the default.
var loggerFormats = []string{"json", "csv", "parquet"}

// stores reports whether an address with the scheme is a bucket's.
func stores(scheme string) bool { return scheme == "s3" || scheme == "gs" || scheme == "abfs" }

// storesIn reports whether a logger writes to a bucket, and with which scheme.
func storesIn(l *v1beta1.LoggerSpec) (string, bool) {
	if l.URL == nil {
		return "", false
	}
	u, err := url.Parse(*l.URL)
	if err != nil {
		return "", false
	}
	return u.Scheme, stores(u.Scheme)
}

// anyStores reports whether a component's logger writes to a bucket.
func anyStores(is *v1beta1.InferenceService) bool {
	for _, c := range []spec.Component{spec.Predictor, spec.Transformer, spec.Explainer} {
		if ext := extensionOf(is, c); ext != nil && ext.Logger != nil && loggerReason(ext.Logger) == "" {
			if _, ok := storesIn(ext.Logger); ok {
				return true
			}
		}
	}
	return false
}

// payloadStoreOf returns how a logger's entries are stored; nil where they go to a collector.
// annotations are the component's and the service's; the first that has a key counts.
func payloadStoreOf(l *v1beta1.LoggerSpec, annotations ...map[string]string) *spec.PayloadStore {
	if _, ok := storesIn(l); !ok {
		return nil
	}
	out := &spec.PayloadStore{Format: loggerFormats[0], BatchSize: 1, ServiceAccount: loggerAccount}
	for _, a := range annotations {
		out.Secret = cmp.Or(out.Secret, a[storageSecretAnnotation])
	}
	if l.MarshallerURL != agentMarshaller {
		out.Marshaller = l.MarshallerURL
	}
	if l.BatchSize != nil && *l.BatchSize > 1 {
		out.BatchSize = *l.BatchSize
		out.BatchInterval, _ = batchInterval(l)
	}
	st := l.Storage
	if st == nil {
		return out
	}
	out.ServiceAccount = cmp.Or(st.ServiceAccountName, loggerAccount)
	if st.Path != nil {
		out.Path = *st.Path
	}
	if st.StorageKey != nil {
		out.Key = *st.StorageKey
	}
	if st.Parameters != nil {
		p := *st.Parameters
		out.Region, out.Endpoint = p["region"], p["endpoint_url"]
		if slices.Contains(loggerFormats, p["format"]) {
			out.Format = p["format"]
		}
	}
	return out
}

// batchInterval returns how long an entry waits for others; zero for no bound of its own.
func batchInterval(l *v1beta1.LoggerSpec) (time.Duration, error) {
	if l.BatchInterval == nil || *l.BatchInterval == "" {
		return 0, nil
	}
	return time.ParseDuration(*l.BatchInterval)
}

// validateLogger checks a logger's files.
func validateLogger(l *v1beta1.LoggerSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if n := l.BatchSize; n != nil && *n < 0 {
		errs = append(errs, field.Invalid(at.Child("batchSize"), *n, "must be 0 or more"))
	}
	if d, err := batchInterval(l); err != nil || d < 0 {
		errs = append(errs, field.Invalid(at.Child("batchInterval"), *l.BatchInterval, "must be a duration of 0 or more such as 10s"))
	}
	if l.MarshallerURL != "" {
		if u, err := url.Parse(l.MarshallerURL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			errs = append(errs, field.Invalid(at.Child("marshallerUrl"), l.MarshallerURL, "must be an http or https address"))
		}
	}
	return errs
}

// storeNotInEffect reports what a logger says of files that aren't made so.
func storeNotInEffect(l *v1beta1.LoggerSpec, at *field.Path) []NotInEffect {
	var out []NotInEffect
	add := func(p *field.Path, reason string) { out = append(out, NotInEffect{Field: p.String(), Reason: reason}) }
	batches := l.BatchSize != nil && *l.BatchSize > 1
	waits := l.BatchInterval != nil && *l.BatchInterval != ""
	scheme, ok := storesIn(l)
	if !ok {
		const toCollector = "a collector of CloudEvents gets each entry by itself, at once; for files name a bucket in url by s3, gs or abfs"
		if l.Storage != nil {
			add(at.Child("storage"), toCollector)
		}
		if l.MarshallerURL != "" {
			add(at.Child("marshallerUrl"), toCollector)
		}
		if batches {
			add(at.Child("batchSize"), toCollector)
		}
		if waits {
			add(at.Child("batchInterval"), toCollector)
		}
		return out
	}
	if waits && !batches {
		add(at.Child("batchInterval"), "each entry is a file of its own, stored at once, unless batchSize is above 1")
	}
	if l.Storage == nil || l.Storage.Parameters == nil {
		return out
	}
	parameters := *l.Storage.Parameters
	for _, name := range slices.Sorted(maps.Keys(parameters)) {
		p, v := at.Child("storage", "parameters").Key(name), parameters[name]
		switch {
		case name == "region" || name == "endpoint_url" || name == "type" && v == scheme:
		case name == "format":
			if l.MarshallerURL != "" && l.MarshallerURL != agentMarshaller {
				add(p, "the service at marshallerUrl says what form files have")
			} else if !slices.Contains(loggerFormats, v) {
				add(p, fmt.Sprintf("files are JSON: the known formats are %v", loggerFormats))
			}
		case name == "type" || name == "bucket":
			add(p, "url names the store and the bucket")
		default:
			add(p, "the known parameters of a logger's files are format, region and endpoint_url; all else is in the secret")
		}
	}
	return out
}
