package app

import (
	"context"
	"fmt"
	"os"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/objectstore"
)

// secrets reads single secrets of namespaces, each when it is asked for: a cluster's gateway may
// read none but those that a namespace's owner lets it.
type secrets struct {
	// client is made at the first question: the API's address may be known only then.
	client func() (kubernetes.Interface, error)
}

var _ objectstore.Secrets = secrets{}

func secretsOf(config func() *rest.Config) secrets {
	return secrets{client: sync.OnceValues(func() (kubernetes.Interface, error) { return kubernetes.NewForConfig(config()) })}
}

// Secret implements objectstore.Secrets.
func (s secrets) Secret(ctx context.Context, namespace, name string) (objectstore.Secret, error) {
	c, err := s.client()
	if err != nil {
		return objectstore.Secret{}, fmt.Errorf("%w: %w", errdef.ErrUnavailable, err)
	}
	got, err := c.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return objectstore.Secret{}, fmt.Errorf("%w: read secret %s/%s: %w", kindOfAPI(err), namespace, name, err)
	}
	return objectstore.Secret{Annotations: got.Annotations, Data: got.Data}, nil
}

// Attached implements objectstore.Secrets.
func (s secrets) Attached(ctx context.Context, namespace, serviceAccount string) ([]string, error) {
	c, err := s.client()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errdef.ErrUnavailable, err)
	}
	got, err := c.CoreV1().ServiceAccounts(namespace).Get(ctx, serviceAccount, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("%w: read service account %s/%s: %w", kindOfAPI(err), namespace, serviceAccount, err)
	}
	var names []string
	for _, ref := range got.Secrets {
		names = append(names, ref.Name)
	}
	return names, nil
}

// ConfigMap implements objectstore.Secrets.
func (s secrets) ConfigMap(ctx context.Context, namespace, name string) (map[string]string, error) {
	c, err := s.client()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errdef.ErrUnavailable, err)
	}
	got, err := c.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("%w: read config map %s/%s: %w", kindOfAPI(err), namespace, name, err)
	}
	return got.Data, nil
}

func kindOfAPI(err error) error {
	switch {
	case apierrors.IsNotFound(err):
		return errdef.ErrNotFound
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return errdef.ErrDenied
	}
	return errdef.ErrUnavailable
}

// ownCredentials are those of this process's environment. On one machine its user is the services'
// owner; on a cluster nobody's service gets the gateway's own.
func ownCredentials(scheme string) (objectstore.Credentials, error) {
	return objectstore.FromEnv(scheme, os.Getenv, os.ReadFile)
}
