package app

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"k8s.io/client-go/rest"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// What an API server answers to a gateway that may read one secret and one service account.
func TestSecretsAreReadOneByOne(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answers := map[string]struct {
			status int
			body   string
		}{
			"/api/v1/namespaces/team/secrets/mine":          {200, `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"mine","annotations":{"a":"b"}},"data":{"k":"dg=="}}`},
			"/api/v1/namespaces/team/secrets/hidden":        {403, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`},
			"/api/v1/namespaces/team/secrets/broken":        {500, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"InternalError","code":500}`},
			"/api/v1/namespaces/team/serviceaccounts/robot": {200, `{"kind":"ServiceAccount","apiVersion":"v1","metadata":{"name":"robot"},"secrets":[{"name":"mine"},{"name":"other"}]}`},
		}
		a, ok := answers[r.URL.Path]
		if !ok || r.Method != http.MethodGet || r.URL.RawQuery != "" {
			a.status, a.body = 404, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`
		}
		w.WriteHeader(a.status)
		_, _ = w.Write([]byte(a.body))
	}))
	t.Cleanup(api.Close)
	asked := 0
	s := secretsOf(func() *rest.Config { asked++; return &rest.Config{Host: api.URL} })
	got, err := s.Secret(t.Context(), "team", "mine")
	if err != nil || string(got.Data["k"]) != "v" || got.Annotations["a"] != "b" {
		t.Errorf("%+v, %v", got, err)
	}
	for name, want := range map[string]error{"hidden": errdef.ErrDenied, "absent": errdef.ErrNotFound, "broken": errdef.ErrUnavailable} {
		if _, err := s.Secret(t.Context(), "team", name); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	names, err := s.Attached(t.Context(), "team", "robot")
	if err != nil || !slices.Equal(names, []string{"mine", "other"}) {
		t.Errorf("%v, %v", names, err)
	}
	if _, err := s.Attached(t.Context(), "team", "absent"); !errors.Is(err, errdef.ErrNotFound) {
		t.Errorf("an account that isn't there: %v", err)
	}
	if asked != 1 {
		t.Errorf("%d clients were made", asked)
	}
	api.Close()
	if _, err := s.Secret(t.Context(), "team", "mine"); !errors.Is(err, errdef.ErrUnavailable) {
		t.Errorf("an API that isn't there: %v", err)
	}
}
