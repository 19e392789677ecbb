package objectstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// Mounted reads secrets that are mounted as folders, each named as the secret, with a file for each
// key. A secret's annotations aren't to be seen there: Settings stand for those that it has not.
type Mounted struct {
	// Folders holds the secrets' folders.
	Folders fs.FS
	// Names are the secrets that there may be, in the order in which they are looked at.
	Names []string
	// Settings are by the names that a secret's data has, such as AWS_DEFAULT_REGION.
	Settings map[string]string
}

var _ Secrets = Mounted{}

// maxSecret bounds a key of a secret: Kubernetes allows a whole one a mebibyte.
const maxSecret = 1 << 20

// Secret implements Secrets. The namespace is that of the pod, whatever is asked for.
func (m Mounted) Secret(_ context.Context, _, name string) (Secret, error) {
	if !fs.ValidPath(name) || strings.Contains(name, "/") {
		return Secret{}, fmt.Errorf("%w: %q is no secret's name", errdef.ErrNotFound, name)
	}
	entries, err := fs.ReadDir(m.Folders, name)
	if err != nil {
		return Secret{}, fmt.Errorf("%w: %w", mountError(err), err)
	}
	out := Secret{Data: map[string][]byte{}}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "..") {
			continue // the kubelet's own
		}
		// The files are links; Stat follows them.
		info, err := fs.Stat(m.Folders, path.Join(name, e.Name()))
		if err != nil || !info.Mode().IsRegular() || info.Size() > maxSecret {
			continue
		}
		value, err := fs.ReadFile(m.Folders, name+"/"+e.Name())
		if err != nil {
			return Secret{}, fmt.Errorf("%w: %w", mountError(err), err)
		}
		out.Data[e.Name()] = value
	}
	if len(out.Data) == 0 {
		return Secret{}, fmt.Errorf("%w: nothing is mounted for %s", errdef.ErrNotFound, name)
	}
	for setting, value := range m.Settings {
		if len(out.Data[setting]) == 0 {
			out.Data[setting] = []byte(value)
		}
	}
	return out, nil
}

// Attached implements Secrets: whoever mounted the secrets knew which.
func (m Mounted) Attached(context.Context, string, string) ([]string, error) { return m.Names, nil }

// ConfigMap implements Secrets: none is mounted but the file that the environment names.
func (m Mounted) ConfigMap(_ context.Context, _, name string) (map[string]string, error) {
	return nil, fmt.Errorf("%w: the config map %s: name it by the annotation serving.kserve.io/s3-cabundle-configmap of the service or its service account", errdef.ErrUnsupported, name)
}

// settings are the names, in a secret's data or an environment, of how a store is reached; those of
// the keys themselves aren't among them.
var settings = []string{
	"S3_ENDPOINT", "AWS_ENDPOINT_URL", "S3_USE_HTTPS", "AWS_DEFAULT_REGION", "S3_VERIFY_SSL",
	"S3_USER_VIRTUAL_BUCKET", "S3_USE_ACCELERATE", "awsAnonymousCredential",
}

// SettingsFromEnv reads what a Mounted's Settings may hold from an environment.
func SettingsFromEnv(getenv func(string) string) map[string]string {
	out := map[string]string{}
	for _, name := range settings {
		if v := getenv(name); v != "" {
			out[name] = v
		}
	}
	return out
}

func mountError(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errdef.ErrNotFound
	case errors.Is(err, fs.ErrPermission):
		return errdef.ErrDenied
	}
	return errdef.ErrUnavailable
}
