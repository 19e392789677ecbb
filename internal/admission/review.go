// Package admission answers the API server of a cluster that asks whether an object may be
// stored: a webhook with the words of the manifest room, and the care for the certificate that
// it proves itself with.
package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/manifest"
)

// Path is where reviews are posted to.
const Path = "/admission"

// maxReview bounds a review, which holds an object and what is stored of it.
const maxReview = 16 << 20

// Reviewer answers reviews. It is an http.Handler, safe for concurrent use, and keeps nothing of
// what it is asked, so that it may be asked for what is never stored.
type Reviewer struct {
	// Runtimes lists the runtimes of a namespace, or the cluster's for none.
	Runtimes func(ctx context.Context, namespace string) ([]manifest.NamedRuntime, error)
	// Preview returns what else is to be told of an object that is let in: what would be wrong with it,
	// or do nothing, beside what exists. old is nil for a new one. Nil means that nobody looks.
	Preview func(ctx context.Context, namespace string, obj, old manifest.Object) ([]string, error)
	// Namespaces restricts it to objects of some namespaces, and cluster-wide ones; it lets the
	// others in without a word. Empty means all.
	Namespaces []string
	Logger     *slog.Logger
}

// ServeHTTP answers one AdmissionReview.
func (r *Reviewer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "an admission review is posted", http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxReview))
	if err != nil {
		http.Error(w, fmt.Sprintf("read the review: %v", err), http.StatusBadRequest)
		return
	}
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(body, &review); err != nil || review.Request == nil {
		http.Error(w, "this is no AdmissionReview with a request", http.StatusBadRequest)
		return
	}
	answer := r.review(req.Context(), review.Request)
	answer.UID = review.Request.UID
	text, err := json.Marshal(admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: answer})
	if err != nil {
		http.Error(w, fmt.Sprintf("write the answer: %v", err), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if _, err := w.Write(text); err != nil {
		r.Logger.DebugContext(req.Context(), "whoever asked for a review is gone", "err", err)
	}
}

// review decides about one request.
func (r *Reviewer) review(ctx context.Context, req *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	if req.SubResource != "" || req.Namespace != "" && len(r.Namespaces) > 0 && !slices.Contains(r.Namespaces, req.Namespace) {
		return &admissionv1.AdmissionResponse{Allowed: true}
	}
	verdict, err := r.ask(ctx, req)
	if err != nil {
		return undecided(err)
	}
	if len(verdict.Refused) > 0 {
		kind := schema.GroupKind{Group: req.Kind.Group, Kind: req.Kind.Kind}
		return &admissionv1.AdmissionResponse{
			Result:   status(apierrors.NewInvalid(kind, req.Name, verdict.Refused)),
			Warnings: verdict.Warnings,
		}
	}
	return &admissionv1.AdmissionResponse{Allowed: true, Warnings: verdict.Warnings}
}

// ask puts a request to the manifest room.
func (r *Reviewer) ask(ctx context.Context, req *admissionv1.AdmissionRequest) (manifest.Verdict, error) {
	object, err := content(req.Object)
	if err != nil {
		return manifest.Verdict{}, err
	}
	if meta, _ := object["metadata"].(map[string]any); meta["deletionTimestamp"] != nil {
		return manifest.Verdict{}, nil // finalizers can always be taken away
	}
	ask := manifest.Admission{Object: object, FieldValidation: fieldValidation(req.Options), Cluster: true}
	if req.Operation == admissionv1.Update {
		if ask.Old, err = content(req.OldObject); err != nil {
			return manifest.Verdict{}, err
		}
	}
	var listErr error
	ask.Runtimes = func() (out []manifest.NamedRuntime) {
		out, listErr = r.Runtimes(ctx, req.Namespace)
		return out
	}
	verdict, err := manifest.Admit(ask)
	if err = errors.Join(err, listErr); err != nil || verdict.Object == nil || len(verdict.Refused) > 0 || r.Preview == nil {
		return verdict, err
	}
	ctx, cancel := context.WithTimeout(ctx, previewWait)
	defer cancel()
	told, err := r.Preview(ctx, req.Namespace, verdict.Object, verdict.Old)
	verdict.Warnings = append(verdict.Warnings, told...)
	if err != nil {
		verdict.Warnings = append(verdict.Warnings, Unseen(err))
	}
	return verdict, nil
}

// previewWait bounds what is looked up for warnings: API servers wait five seconds for an answer, and
// let in without one what would be refused.
const previewWait = 2 * time.Second

// Unseen is the warning where an object couldn't be looked at beside what exists.
func Unseen(err error) string {
	return fmt.Sprintf("not compared with what exists: %v; the object's status will tell what is wrong with it", err)
}

// content decodes an object as an API server sends it.
func content(raw runtime.RawExtension) (map[string]any, error) {
	object := map[string]any{}
	if len(raw.Raw) == 0 {
		return nil, errdef.New(errdef.ErrInvalid, "the review holds no object")
	}
	if err := utiljson.Unmarshal(raw.Raw, &object); err != nil {
		return nil, fmt.Errorf("%w: the review's object isn't one: %w", errdef.ErrInvalid, err)
	}
	return object, nil
}

// fieldValidation is what to do with fields that we don't know. The API server has refused those
// of its own schema already; what is left stands in a schema newer than we are, and is told.
func fieldValidation(raw runtime.RawExtension) string {
	var options struct {
		FieldValidation string `json:"fieldValidation"`
	}
	if json.Unmarshal(raw.Raw, &options) == nil && options.FieldValidation == metav1.FieldValidationIgnore {
		return metav1.FieldValidationIgnore
	}
	return metav1.FieldValidationWarn
}

// undecided is the answer where the manifest room could say nothing. What is no fault of the
// object doesn't keep it out, as an operator that can't be reached doesn't.
func undecided(err error) *admissionv1.AdmissionResponse {
	if errors.Is(err, errdef.ErrInvalid) || errors.Is(err, errdef.ErrUnsupported) {
		return &admissionv1.AdmissionResponse{Result: status(apierrors.NewBadRequest(err.Error()))}
	}
	return &admissionv1.AdmissionResponse{
		Allowed:  true,
		Warnings: []string{fmt.Sprintf("not checked: %v; the object's status will tell what is wrong with it", err)},
	}
}

func status(err *apierrors.StatusError) *metav1.Status { return &err.ErrStatus }
