package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/modelstore"
	"stationmaster.dev/stationmaster/internal/modelstore/buckets"
	"stationmaster.dev/stationmaster/internal/modelstore/registry"
	"stationmaster.dev/stationmaster/internal/objectstore"
)

// Pull is one model to be put into a directory, as the init container of a replica does.
type Pull struct {
	URI string
	// To is the directory; what is in it stays beside the model's files.
	To string
	// Digest pins the content ("sha256:…"); empty takes what the source has.
	Digest string
	// Report is a file that gets a PullReport as JSON; empty for none. On a cluster it is the
	// container's termination message.
	Report string
	// Secrets is a directory where secrets are mounted, each in a directory of its name, and
	// SecretNames are those that may hold credentials, in the order in which they are tried.
	Secrets     string
	SecretNames []string
	// RegistryKeys are files with keys of registries as Docker has them, in the order in which they are
	// looked at; those that aren't there are passed over.
	RegistryKeys []string
	Logger       *slog.Logger
}

// PullReport is what a pull brought.
type PullReport struct {
	Models []PulledModel `json:"models"`
}

// PulledModel is one model that was brought.
type PulledModel struct {
	URI       string `json:"uri"`
	Digest    string `json:"digest"`
	SizeBytes int64  `json:"sizeBytes"`
}

// PullModel fetches a model into a directory, with the code and the checks of the model store,
// and blocks until it is there. Errors are those of modelstore.Store.Fetch.
func PullModel(ctx context.Context, p Pull) (err error) {
	if p.To == "" || p.URI == "" {
		return errdef.New(errdef.ErrInvalid, "a pull needs a URI and a directory")
	}
	to, err := filepath.Abs(p.To)
	if err != nil {
		return fmt.Errorf("directory %s: %w", p.To, err)
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return fmt.Errorf("make directory for the model: %w", err)
	}
	// The store stands within the directory, so that its files move by a change of name.
	dir := filepath.Join(to, ".stationmaster-pull")
	stores, from, err := p.stores()
	if err != nil {
		return err
	}
	defer stores.Close()
	web := httpOf(stores, from)
	sources := bucketSources(stores, from)
	if err := addImages(sources, web, p.RegistryKeys); err != nil {
		return err
	}
	store, err := modelstore.Open(modelstore.Config{
		Dir: dir, HTTP: web, Logger: p.Logger, OnProgress: progress(p.Logger), Sources: sources,
	})
	if err != nil {
		return fmt.Errorf("open model store: %w", err)
	}
	defer func() {
		err = errors.Join(err, store.Close(), os.RemoveAll(dir))
	}()
	tree, digest, release, err := store.Fetch(ctx, "", p.URI, p.Digest)
	if err != nil {
		return err
	}
	defer release()
	size, err := place(tree, to)
	if err != nil {
		return fmt.Errorf("put the model into %s: %w", to, err)
	}
	p.Logger.InfoContext(ctx, "model is in place", "digest", digest, "bytes", size, "to", to)
	return report(p.Report, PullReport{Models: []PulledModel{{URI: p.URI, Digest: digest, SizeBytes: size}}})
}

// stores are those of buckets, and say where the credentials are: in the secrets that are mounted, or
// in the environment.
func (p Pull) stores() (*objectstore.Stores, func(string) objectstore.Source, error) {
	mounted := objectstore.Mounted{Folders: os.DirFS(p.Secrets), Names: p.SecretNames, Settings: objectstore.SettingsFromEnv(os.Getenv)}
	from := objectstore.Source{}
	if len(p.SecretNames) > 0 {
		from.ServiceAccount = "the pod's"
	}
	stores := objectstore.NewStores(mounted, ownCredentials)
	if name := os.Getenv("AWS_CA_BUNDLE"); name != "" {
		bundle, err := os.ReadFile(name)
		if err != nil {
			return nil, nil, fmt.Errorf("%w: AWS_CA_BUNDLE: %w", errdef.ErrInvalid, err)
		}
		stores.Trust(string(bundle))
	}
	return stores, func(string) objectstore.Source { return from }, nil
}

// bucketSources are the model store's for buckets.
func bucketSources(stores *objectstore.Stores, from func(namespace string) objectstore.Source) map[string]modelstore.Source {
	source := buckets.Source{Stores: stores, From: from}
	return map[string]modelstore.Source{
		objectstore.S3: source, objectstore.Google: source, objectstore.Azure: source, objectstore.Hub: source, buckets.Scheme: source,
		"https://*" + objectstore.AzureHosts: source,
	}
}

// addImages adds the model store's source for images. Keys are files with keys of registries.
func addImages(sources map[string]modelstore.Source, web modelstore.HTTPConfig, keys []string) error {
	client, err := modelstore.Client(web)
	if err != nil {
		return err
	}
	source := registry.Source{Client: client, Keys: func(_, host string) (user, password string, err error) {
		for _, file := range keys {
			config, err := os.ReadFile(file)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return "", "", fmt.Errorf("%w: read a registry's keys: %w", errdef.ErrDenied, err)
			}
			if user, password, err := registry.KeysIn(config, host); err != nil || user != "" {
				return user, password, err
			}
		}
		return "", "", nil
	}}
	for _, scheme := range registry.Schemes() {
		sources[scheme] = source
	}
	return nil
}

// ownRegistryKeys are those of whoever started the process: $DOCKER_CONFIG/config.json.
func ownRegistryKeys(getenv func(string) string) []string {
	if dir := getenv("DOCKER_CONFIG"); dir != "" {
		return []string{filepath.Join(dir, "config.json")}
	}
	return nil
}

// httpOf is how models are downloaded, with the fields that a namespace's secrets have for a host.
func httpOf(stores *objectstore.Stores, from func(namespace string) objectstore.Source) modelstore.HTTPConfig {
	cfg := modelstore.HTTPConfigFromEnv(os.Getenv)
	cfg.Headers = func(ctx context.Context, namespace, host string) (map[string]string, error) {
		return stores.Fields(ctx, from(namespace), host)
	}
	return cfg
}

// place gives every file of a tree a second name below to, replacing what has its name, and
// returns their sizes' sum.
func place(tree, to string) (int64, error) {
	var size int64
	err := filepath.WalkDir(tree, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(tree, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		if d.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		size += info.Size()
		if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return os.Rename(path, target)
	})
	return size, err
}

func report(file string, r PullReport) error {
	if file == "" {
		return nil
	}
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, raw, 0o644); err != nil { //nolint:gosec // the kubelet's user reads it
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// progress tells each tenth of a model whose size is known.
func progress(log *slog.Logger) func(modelstore.Progress) {
	last := int64(-1)
	return func(p modelstore.Progress) {
		if p.Total <= 0 {
			return
		}
		if tenth := p.Done * 10 / p.Total; tenth > last {
			last = tenth
			log.Info("fetching", "uri", p.URI, "done", p.Done, "total", p.Total)
		}
	}
}
