package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"

	"stationmaster.dev/stationmaster/internal/admin"
	"stationmaster.dev/stationmaster/internal/errdef"
)

// where is the API that a command asks: that of a kubeconfig, else of a named data dir, else of
// KUBECONFIG, else of the usual data dir.
type where struct {
	dataDir, kubeconfig string
	// dataDirNamed says that dataDir was said, not assumed.
	dataDirNamed bool
}

// byDataDir reports whether the data dir says which API is meant.
func (w *where) byDataDir() bool {
	return w.kubeconfig == "" && (w.dataDirNamed || os.Getenv(clientcmd.RecommendedConfigPathEnvVar) == "")
}

// rules say where the kubeconfig is. The error is of kind errdef.ErrNotFound where no `up` has run
// on the data dir.
func (w *where) rules() (*clientcmd.ClientConfigLoadingRules, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = w.kubeconfig
	if w.byDataDir() {
		rules.ExplicitPath = filepath.Join(w.dataDir, "kubeconfig")
		if _, err := os.Stat(rules.ExplicitPath); errors.Is(err, fs.ErrNotExist) {
			return nil, errdef.New(errdef.ErrNotFound, fmt.Sprintf("no 'stationmaster up' has run on the data dir %s: start it, or name another with --data-dir, or a cluster with --kubeconfig", w.dataDir))
		}
	}
	return rules, nil
}

// up returns the data dir of the `up` that is meant; false means that it is a cluster.
func (w *where) up() (dir string, ok bool, err error) {
	if w.byDataDir() {
		return w.dataDir, true, nil
	}
	rules, err := w.rules()
	if err != nil {
		return "", false, err
	}
	config, err := rules.Load()
	if err != nil {
		return "", false, errdef.New(errdef.ErrInvalid, "read kubeconfig: "+err.Error())
	}
	current, has := config.Contexts[config.CurrentContext]
	if !has {
		return "", false, nil
	}
	dir = filepath.Dir(current.LocationOfOrigin)
	return dir, admin.HasAccess(dir), nil
}
