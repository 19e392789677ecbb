package kubernetes

import (
	"bufio"
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The keys of the store, which answers nobody without them.
const (
	storeAccess = "model-reader"
	storeSecret = "its-own-secret"
)

// serveBucket serves the bucket "shelf" with the iris model by S3's API on a node's address until
// the test ends, and returns its host and port.
func serveBucket(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "s3")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", program, ".")
	build.Dir = filepath.Join("testdata", "s3")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the store: %v: %s", err, out)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	server := shared.Command(ctx, program, "-listen", shared.NodeIP(1)+":0", "-bucket", "shelf",
		"-access-key", storeAccess, "-secret-key", storeSecret, "iris/model.onnx="+irisModel)
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		server.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// testCredentials has models pulled from a store that wants keys, in each way that a namespace can
// have them. The operator never reads one: it has no right to.
func (s *installation) testCredentials(t *testing.T) {
	host := serveBucket(t)
	for name, tc := range map[string]struct {
		// objects are the namespace's; service is what the predictor has besides its model.
		objects string
		service map[string]any
		model   map[string]any
		failure string
	}{
		"a secret of the service account": {
			objects: `
apiVersion: v1
kind: Secret
metadata: {name: shelf}
stringData: {AWS_ACCESS_KEY_ID: ` + storeAccess + `, AWS_SECRET_ACCESS_KEY: ` + storeSecret + `}
---
apiVersion: v1
kind: ServiceAccount
metadata:
  name: reader
  annotations: {serving.kserve.io/s3-endpoint: "` + host + `", serving.kserve.io/s3-usehttps: "0"}
secrets: [{name: not-there}, {name: shelf}]
`,
			service: map[string]any{"serviceAccountName": "reader"},
			model:   map[string]any{"storageUri": "s3://shelf/iris"},
		},
		"an entry of storage-config": {
			objects: `
apiVersion: v1
kind: Secret
metadata: {name: storage-config}
stringData:
  mine: '{"type": "s3", "bucket": "shelf", "endpoint_url": "http://` + host + `", "access_key_id": "` + storeAccess + `", "secret_access_key": "` + storeSecret + `"}'
`,
			model: map[string]any{"storage": map[string]any{"key": "mine", "path": "iris"}},
		},
		"a wrong key": {
			objects: `
apiVersion: v1
kind: Secret
metadata: {name: storage-config}
stringData:
  default_s3: '{"type": "s3", "bucket": "shelf", "endpoint_url": "http://` + host + `", "access_key_id": "` + storeAccess + `", "secret_access_key": "another"}'
`,
			model:   map[string]any{"storage": map[string]any{"path": "iris", "parameters": map[string]any{"type": "s3"}}},
			failure: "SignatureDoesNotMatch",
		},
		"none": {
			objects: `
apiVersion: v1
kind: Secret
metadata: {name: unrelated}
stringData: {a: b}
`,
			model:   map[string]any{"storageUri": "s3://shelf/iris"},
			failure: "no credentials for s3://",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := namespace(t, restricted)
			create(t, ns, strings.TrimSpace(tc.objects))
			service := iris(t, ns, "", func(predictor map[string]any) {
				delete(modelOf(predictor), "storageUri")
				for k, v := range tc.model {
					modelOf(predictor)[k] = v
				}
				for k, v := range tc.service {
					predictor[k] = v
				}
			})
			if tc.failure == "" {
				s.start(t, service)
				if _, err := (infer{url: "http://" + s.address + "/serving/" + ns + "/iris/v2/models/iris"}).rest(t.Context()); err != nil {
					t.Error(err)
				}
				return
			}
			apply(t, service)
			t.Cleanup(func() { remove(t, service) })
			eventually(t, "the status tells why", func() error {
				got := s.kubectl(t, nil, "-n", ns, "get", "isvc", "iris", "-o", "jsonpath={.status.modelStatus.lastFailureInfo.message}")
				if !strings.Contains(got, tc.failure) {
					return fmt.Errorf("it says %q", got)
				}
				return nil
			})
		})
	}
}
