package app

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/lora"
	"stationmaster.dev/stationmaster/internal/lora/keeper"
	"stationmaster.dev/stationmaster/internal/manifest"
	"stationmaster.dev/stationmaster/internal/modelstore"
	"stationmaster.dev/stationmaster/internal/route"
	"stationmaster.dev/stationmaster/internal/state"
)

// adaptersHere keeps the LoRA adapters of one machine: their bytes come through the model store.
func adaptersHere(board *lora.Board, table *state.Topic[route.Table], store *modelstore.Store, storeDir string, log *slog.Logger) *keeper.Keeper {
	own := storeDir + string(filepath.Separator)
	return keeper.New(keeper.Config{
		Table: table, Known: &board.Known, Wanted: &board.Wanted, Logger: log,
		Ours: func(root string) bool { return strings.HasPrefix(root, own) },
		Fetch: func(ctx context.Context, namespace, uri string) (string, func(), error) {
			if name, ok := strings.CutPrefix(uri, manifest.HubPrefix); ok {
				return name, func() {}, nil
			}
			path, _, release, err := store.Fetch(ctx, namespace, uri, "")
			return path, release, err
		},
	})
}

// adaptersOfCluster keeps those of a cluster, whose engines have the bytes or fetch them.
func adaptersOfCluster(board *lora.Board, table *state.Topic[route.Table], log *slog.Logger) *keeper.Keeper {
	return keeper.New(keeper.Config{
		Table: table, Known: &board.Known, Wanted: &board.Wanted, Logger: log,
		Fetch: func(_ context.Context, _, uri string) (string, func(), error) {
			for _, prefix := range []string{manifest.HubPrefix, "file://"} {
				if rest, ok := strings.CutPrefix(uri, prefix); ok {
					return rest, func() {}, nil
				}
			}
			return "", nil, errdef.New(errdef.ErrUnsupported, manifest.CanFetchAdapter(uri, false))
		},
	})
}
