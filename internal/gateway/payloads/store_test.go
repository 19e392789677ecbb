package payloads_test

import (
	"context"
	"encoding/base64"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/gateway/payloads"
	"stationmaster.dev/stationmaster/internal/objectstore"
	"stationmaster.dev/stationmaster/internal/spec"
)

// shelf is a store in memory, whose first answers are those given.
type shelf struct {
	mu      sync.Mutex
	answers []error
	asked   int
	files   map[string]string // by bucket and key
	types   map[string]string
	from    objectstore.Source
}

func (s *shelf) Put(_ context.Context, p objectstore.Place, from objectstore.Source, key, contentType string, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if len(s.answers) > 0 {
		err := s.answers[0]
		s.answers = s.answers[1:]
		if err != nil {
			return err
		}
	}
	if s.files == nil {
		s.files, s.types = map[string]string{}, map[string]string{}
	}
	name := p.Scheme + "://" + p.Bucket + "/" + key
	s.files[name], s.types[name], s.from = string(data), contentType, from
	return nil
}

func (s *shelf) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for name := range s.files {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// stored is an event for a bucket.
func stored(id string, kind payloads.Kind, store spec.PayloadStore) *payloads.Event {
	ev := event("s3://bucket/all")
	if store.Format == "" {
		store.Format = payloads.JSON
	}
	store.BatchSize = max(store.BatchSize, 1)
	ev.ID, ev.Kind, ev.Store = id, kind, &store
	return ev
}

func TestAnEntryIsAFileWithKServesName(t *testing.T) {
	s := &shelf{}
	e, count := newEmitter(t, payloads.Config{Objects: s})
	store := spec.PayloadStore{Path: "/my/logs/", Secret: "a", Key: "b", ServiceAccount: "c", Region: "d", Endpoint: "e"}
	e.Emit(stored("id-1", payloads.Request, store))
	e.Emit(stored("id-1", payloads.Response, store))
	e.Emit(stored("../../x y", payloads.Request, store))
	e.Close(t.Context())
	const folder = "s3://bucket/all/default/iris/predictor/my/logs/"
	if diff := cmp.Diff([]string{folder + ".._.._x_y-request.json", folder + "id-1-request.json", folder + "id-1-response.json"}, s.names()); diff != "" {
		t.Fatalf("files (-want +got):\n%s", diff)
	}
	if count("delivered") != 3 {
		t.Errorf("%v delivered", count("delivered"))
	}
	want := map[string]any{
		"url":   map[string]any{"Scheme": "s3", "Host": "bucket", "Path": "/all", "Opaque": "", "User": nil, "Fragment": "", "RawQuery": "", "RawPath": "", "RawFragment": "", "ForceQuery": false, "OmitHost": false},
		"bytes": base64.StdEncoding.EncodeToString([]byte(`{"predictions":[1]}`)), "contentType": "application/json",
		"reqType": "org.kubeflow.serving.inference.response", "id": "id-1", "inferenceService": "iris", "namespace": "default",
		"component": "predictor", "endpoint": "default", "metadata": map[string]any{"X-Tenant": []any{"100% naïve 😀"}},
		"annotations": map[string]any{"team": "red"}, "occurrenceTime": "2023-11-14T22:13:20.5Z",
		"revision": "iris-predictor-00001", "requestId": "r1", "statusCode": 404.0,
	}
	got := map[string]any{}
	if err := json.Unmarshal([]byte(s.files[folder+"id-1-response.json"]), &got); err != nil {
		t.Fatal(err)
	}
	if source, _ := got["sourceUri"].(map[string]any); source["Path"] != "iris-predictor-00001" {
		t.Errorf("source %v", got["sourceUri"])
	}
	delete(got, "sourceUri")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("entry (-want +got):\n%s", diff)
	}
	if want := (objectstore.Source{Namespace: "default", Secret: "a", Key: "b", ServiceAccount: "c", Region: "d", Endpoint: "e"}); s.from != want {
		t.Errorf("credentials from %+v", s.from)
	}
}

func TestBatchesAreOfOneKindAndNamedAfterTheirFirst(t *testing.T) {
	s := &shelf{}
	e, _ := newEmitter(t, payloads.Config{Objects: s})
	store := spec.PayloadStore{BatchSize: 2}
	for i := range 3 {
		e.Emit(stored(fmt.Sprint(i), payloads.Request, store))
		e.Emit(stored(fmt.Sprint(i), payloads.Response, store))
	}
	e.Close(t.Context()) // which lets go what isn't full
	const folder = "s3://bucket/all/default/iris/predictor/"
	want := map[string]int{"0-request": 2, "0-response": 2, "2-request": 0, "2-response": 0} // 0: a single object
	for name, n := range want {
		text := s.files[folder+name+".json"]
		var several []map[string]any
		var one map[string]any
		if n > 0 && (json.Unmarshal([]byte(text), &several) != nil || len(several) != n) || n == 0 && json.Unmarshal([]byte(text), &one) != nil {
			t.Errorf("%s: %s", name, text)
		}
	}
	if len(s.files) != len(want) {
		t.Errorf("files %v", s.names())
	}
}

func TestABatchThatDoesntFillGoesInTime(t *testing.T) {
	for name, tc := range map[string]struct {
		interval, after time.Duration
	}{
		"its own interval": {interval: 10 * time.Second, after: 10 * time.Second},
		"without interval": {after: 5 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &shelf{}
				e, _ := newEmitter(t, payloads.Config{Objects: s})
				for range 2 { // the clock starts anew
					e.Emit(stored(time.Now().Format("150405"), payloads.Request, spec.PayloadStore{BatchSize: 9, BatchInterval: tc.interval}))
					before := len(s.names())
					time.Sleep(tc.after - time.Nanosecond)
					synctest.Wait()
					if len(s.names()) != before {
						t.Errorf("too early: %v", s.names())
					}
					time.Sleep(time.Nanosecond)
					synctest.Wait()
					if len(s.names()) != before+1 {
						t.Errorf("too late: %v", s.names())
					}
				}
				e.Close(t.Context())
			})
		})
	}
}

func TestWhatWaitsForOthersDoesntTakeTheRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{}
		e, count := newEmitter(t, payloads.Config{Objects: s, MaxEvents: 40})
		for i := range 100 { // no file of 30 could ever fill: a place may have half of 40, and there are ten
			ev := stored(fmt.Sprint(i), payloads.Request, spec.PayloadStore{BatchSize: 30})
			ev.Service.Name = fmt.Sprint("service-", i%10)
			e.Emit(ev)
			synctest.Wait()
		}
		e.Close(t.Context())
		if count("dropped") != 0 {
			t.Errorf("%v dropped", count("dropped"))
		}
		large := stored("l", payloads.Request, spec.PayloadStore{BatchSize: 1000})
		e, _ = newEmitter(t, payloads.Config{Objects: s})
		large.Data = make([]byte, 3<<20)
		for range 3 {
			e.Emit(large)
		}
		synctest.Wait()
		if got := s.names(); !slices.Contains(got, "s3://bucket/all/default/iris/predictor/l-request.json") {
			t.Errorf("9 MiB wait for more: %v", got)
		}
		e.Close(t.Context())
	})
}

func TestWhatWaitsOfAGoneServiceGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{}
		e, _ := newEmitter(t, payloads.Config{Objects: s})
		e.Emit(stored("1", payloads.Request, spec.PayloadStore{BatchSize: 9}))
		e.Prune(func(spec.ServiceKey) bool { return true })
		synctest.Wait()
		if len(s.names()) != 0 {
			t.Errorf("one that is there: %v", s.names())
		}
		e.Prune(func(spec.ServiceKey) bool { return false })
		synctest.Wait()
		if len(s.names()) != 1 {
			t.Errorf("one that is gone: %v", s.names())
		}
		e.Close(t.Context())
	})
}

func TestStoring(t *testing.T) {
	for name, tc := range map[string]struct {
		answers []error
		tries   int
		result  string
	}{
		"at once":                          {tries: 1, result: "delivered"},
		"a store that comes back":          {answers: []error{errdef.ErrUnavailable, errdef.ErrUnavailable}, tries: 3, result: "delivered"},
		"credentials that come":            {answers: []error{errdef.ErrDenied}, tries: 2, result: "delivered"},
		"a store that isn't there":         {answers: slices.Repeat([]error{errdef.ErrUnavailable}, 5), tries: 4, result: "failed"},
		"a bucket that isn't there":        {answers: []error{errdef.ErrNotFound}, tries: 1, result: "rejected"},
		"something wrong with the request": {answers: []error{errdef.ErrInvalid}, tries: 1, result: "rejected"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &shelf{answers: tc.answers}
			e, count := newEmitter(t, payloads.Config{Objects: s})
			for _, id := range []string{"1", "2"} {
				e.Emit(stored(id, payloads.Request, spec.PayloadStore{BatchSize: 2}))
			}
			e.Close(t.Context())
			if s.asked != tc.tries || count(tc.result) != 2 {
				t.Errorf("%d tries, want %d; %v of 2 counted as %s", s.asked, tc.tries, count(tc.result), tc.result)
			}
		})
	}
	e, count := newEmitter(t, payloads.Config{})
	e.Emit(stored("1", payloads.Request, spec.PayloadStore{}))
	e.Close(t.Context())
	if count("rejected") != 1 {
		t.Errorf("without a store %v are rejected", count("rejected"))
	}
}

func TestFormats(t *testing.T) {
	s := &shelf{}
	e, _ := newEmitter(t, payloads.Config{Objects: s})
	for _, format := range []string{payloads.CSV, payloads.Parquet} {
		for _, id := range []string{"1", "2"} {
			e.Emit(stored(id, payloads.Response, spec.PayloadStore{Format: format, BatchSize: 2}))
		}
	}
	e.Close(t.Context())
	const name = "s3://bucket/all/default/iris/predictor/1-response."
	rows, err := csv.NewReader(strings.NewReader(s.files[name+"csv"])).ReadAll()
	if err != nil || len(rows) != 3 {
		t.Fatalf("%v: %q", err, rows)
	}
	want := [][]string{
		{"url", "bytes", "contentType", "reqType", "id", "sourceUri", "inferenceService", "namespace", "component", "endpoint", "metadata", "annotations", "certName", "tlsSkipVerify"},
		{
			"s3://bucket/all", "eyJwcmVkaWN0aW9ucyI6WzFdfQ==", "application/json", "org.kubeflow.serving.inference.response", "1",
			"iris-predictor-00001", "iris", "default", "predictor", "default", `{"X-Tenant":["100% naïve 😀"]}`, `{"team":"red"}`, "", "false",
		},
	}
	if diff := cmp.Diff(want, rows[:2]); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	if got := s.types[name+"csv"]; got != "text/csv" {
		t.Errorf("type %q", got)
	}
	if got := s.files[name+"parquet"]; !strings.HasPrefix(got, "PAR1") || !strings.HasSuffix(got, "PAR1") || !strings.Contains(got, "tlsSkipVerify") {
		t.Errorf("parquet: %q", got)
	}
}

func TestAMarshallersAnswerIsStored(t *testing.T) {
	for name, tc := range map[string]struct {
		statuses  []int
		extension string
		want      string // the file's extension
		result    string
		asked     int
	}{
		"with an extension":              {extension: "avro", want: "avro", result: "delivered", asked: 1},
		"without":                        {want: "json", result: "delivered", asked: 1},
		"an extension that leads away":   {extension: "../x", want: ".._x", result: "delivered", asked: 1},
		"one that fails at first":        {statuses: []int{500}, want: "json", result: "delivered", asked: 2},
		"one that refuses":               {statuses: []int{400}, result: "rejected", asked: 1},
		"one that fails each time":       {statuses: []int{500, 500, 500, 500, 500}, result: "failed", asked: 4},
		"one that leads somewhere other": {statuses: []int{307}, result: "rejected", asked: 1},
	} {
		t.Run(name, func(t *testing.T) {
			var asked int
			m := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var batch []map[string]any
				body, _ := io.ReadAll(r.Body)
				if json.Unmarshal(body, &batch) != nil || len(batch) != 2 || r.Header.Get("Content-Type") != "application/json" {
					t.Errorf("a marshaller got %s", body)
				}
				status := http.StatusOK
				if asked++; asked <= len(tc.statuses) {
					status = tc.statuses[asked-1]
				}
				if tc.extension != "" {
					w.Header().Set("X-Log-Marshal-Extension", tc.extension)
				}
				w.Header().Set("Content-Type", "application/x-test")
				w.WriteHeader(status)
				fmt.Fprint(w, "made")
			}))
			t.Cleanup(m.Close)
			s := &shelf{answers: []error{errdef.ErrUnavailable}} // the file is made once for both tries
			e, count := newEmitter(t, payloads.Config{Objects: s})
			for _, id := range []string{"1", "2"} {
				e.Emit(stored(id, payloads.Request, spec.PayloadStore{Marshaller: m.URL, BatchSize: 2}))
			}
			e.Close(t.Context())
			if asked != tc.asked || count(tc.result) != 2 {
				t.Errorf("asked %d times, want %d; %v of 2 counted as %s", asked, tc.asked, count(tc.result), tc.result)
			}
			if tc.want == "" {
				return
			}
			file := "s3://bucket/all/default/iris/predictor/1-request." + tc.want
			if s.files[file] != "made" || s.types[file] != "application/x-test" {
				t.Errorf("files %v", s.files)
			}
		})
	}
}
