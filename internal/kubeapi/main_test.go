package kubeapi_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"stationmaster.dev/stationmaster/internal/kubeapi"
	"stationmaster.dev/stationmaster/internal/kubeapi/kubectl"
)

// The test binary doubles as the programs that tests kill or run: a server in the directory
// named by serveEnv, or kubectl with its own arguments.
const (
	serveEnv   = "KUBEAPI_TEST_SERVE"
	listenEnv  = "KUBEAPI_TEST_LISTEN"
	kubectlEnv = "KUBEAPI_TEST_KUBECTL"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(serveEnv) != "":
		os.Exit(serveForParent(os.Getenv(serveEnv)))
	case os.Getenv(kubectlEnv) != "":
		os.Exit(kubectl.Run(context.Background(), os.Args[1:], os.Getenv(kubectlEnv),
			kubectl.Streams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}))
	}
	os.Exit(m.Run())
}

func serveForParent(dir string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	listen := os.Getenv(listenEnv)
	if listen == "" {
		listen = "127.0.0.1:0"
	}
	began := time.Now()
	crds, err := readCRDs(os.Getenv("KUBEAPI_TEST_CRDS"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	s, err := kubeapi.New(kubeapi.Config{
		DataDir: dir, Listen: listen, CRDs: crds,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	select {
	case <-s.Ready():
		fmt.Printf("ready %s after %v\n", s.Addr(), time.Since(began).Round(time.Millisecond))
	case err := <-done:
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// readCRDs reads the definitions in a directory, or the one of this room's tests for "".
func readCRDs(dir string) (crds []*apiextensionsv1.CustomResourceDefinition, err error) {
	files := []string{"testdata/inferenceservices.yaml"}
	if dir != "" {
		if files, err = filepath.Glob(filepath.Join(dir, "*")); err != nil {
			return nil, err
		}
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(b, crd); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if crd.Kind == "CustomResourceDefinition" {
			crds = append(crds, crd)
		}
	}
	return crds, nil
}
