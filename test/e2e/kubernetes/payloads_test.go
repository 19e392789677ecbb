package kubernetes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"stationmaster.dev/stationmaster/internal/objectstore"
)

// documentedRole is what the documentation has the owner of a namespace apply, so that gateways may
// read the logger's credentials there.
func documentedRole(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../../docs/pipelines.md")
	if err != nil {
		t.Fatal(err)
	}
	for block := range strings.SplitSeq(string(text), "```yaml\n") {
		if manifest, _, _ := strings.Cut(block, "```"); strings.Contains(manifest, "kind: RoleBinding") {
			return manifest
		}
	}
	t.Fatal("the documentation has no RoleBinding")
	return ""
}

// bucketOf opens the bucket of a store that serveBucket started.
func bucketOf(t *testing.T, host string) objectstore.Reader {
	t.Helper()
	near, err := shared.Forward(t.Context(), host)
	if err != nil {
		t.Fatal(err)
	}
	credentials, err := objectstore.FromEntry(storeEntry(near, storeSecret))
	if err != nil {
		t.Fatal(err)
	}
	bucket, err := objectstore.Open(objectstore.Place{Scheme: objectstore.S3, Bucket: "shelf"}, credentials)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(bucket.Close)
	return bucket.(objectstore.Reader)
}

// storeEntry is an entry of storage-config for the store.
func storeEntry(host, secret string) []byte {
	return fmt.Appendf(nil, `{"type": "s3", "bucket": "shelf", "endpoint_url": "http://%s", "region": "us-east-1", "access_key_id": %q, "secret_access_key": %q}`,
		host, storeAccess, secret)
}

// testPayloads logs requests to a bucket, which the gateway can do once the namespace lets it read
// the keys.
func (s *installation) testPayloads(t *testing.T) {
	host := serveBucket(t)
	bucket := bucketOf(t, host)
	ns := namespace(t, restricted)
	create(t, ns, `
apiVersion: v1
kind: Secret
metadata: {name: storage-config}
stringData: {logs: '`+string(storeEntry(host, storeSecret))+`'}
`)
	service := iris(t, ns, "oci://"+irisImage, func(predictor map[string]any) {
		predictor["logger"] = map[string]any{
			"mode": "all", "url": "s3://shelf/logged",
			"storage": map[string]any{"path": "own", "key": "logs", "parameters": map[string]any{"format": "json"}},
		}
	})
	s.start(t, service)
	ask := func(id string) {
		t.Helper()
		if err := s.asked(t.Context(), ns, id); err != nil {
			t.Fatal(err)
		}
	}
	labels := []string{`namespace="` + ns + `"`, `service="iris"`}
	ask("early")
	eventually(t, "what can't be stored is counted, and the log says why", func() error {
		failed := 0.0
		for _, g := range running(t, gateway) {
			page, err := get(t.Context(), "http://"+g.Status.PodIP+":9090/metrics")
			if err != nil {
				return err
			}
			failed += sum(page, "stationmaster_payload_events_total", append(labels, `result="failed"`)...)
		}
		log := s.kubectl(t, nil, "-n", system, "logs", "-l", "app="+gateway, "--tail=-1")
		if failed < 2 || !strings.Contains(log, "storage-config") {
			return fmt.Errorf("%v failed; the log is %s", failed, log)
		}
		return nil
	})

	create(t, ns, strings.TrimSpace(documentedRole(t)))
	folder := "logged/" + ns + "/iris/predictor/own/"
	tries := 0
	var stored string
	eventually(t, "requests and answers are stored", func() error {
		tries++
		ask(fmt.Sprint("later-", tries))
		listed, err := bucket.List(t.Context(), folder, 1000)
		if err != nil {
			return err
		}
		for _, o := range listed {
			if strings.HasSuffix(o.Key, "-response.json") {
				stored = strings.TrimSuffix(strings.TrimPrefix(o.Key, folder), "-response.json")
				return nil
			}
		}
		return fmt.Errorf("%d objects are there", len(listed))
	})
	var answer []byte
	eventually(t, "the request of a stored answer is there, too", func() (err error) {
		if _, err = entryOf(t.Context(), bucket, folder+stored+"-request.json"); err == nil {
			answer, err = entryOf(t.Context(), bucket, folder+stored+"-response.json")
		}
		return err
	})
	if err := rightAnswer(answer); err != nil {
		t.Errorf("the stored answer: %v", err)
	}
	if listed, err := bucket.List(t.Context(), folder+"early", 10); err != nil || len(listed) > 0 {
		t.Errorf("what came before the Role: %v, %v", listed, err)
	}
}

// entryOf returns the payload of an entry that was stored.
func entryOf(ctx context.Context, bucket objectstore.Reader, key string) ([]byte, error) {
	r, err := bucket.Get(ctx, objectstore.Object{Key: key}, 0)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	var entry struct{ Bytes []byte }
	if err := json.Unmarshal(text, &entry); err != nil {
		return nil, err
	}
	if len(entry.Bytes) == 0 {
		return nil, errors.New("the entry is empty: " + string(text))
	}
	return entry.Bytes, nil
}

// asked asks the iris model under an id by which it is logged.
func (s *installation) asked(ctx context.Context, namespace, id string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.address+"/serving/"+namespace+"/iris/v2/models/iris/infer", bytes.NewReader(setosa))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Ce-Id", id)
	text, err := answerTo(req)
	if err != nil {
		return err
	}
	return rightAnswer(text)
}
