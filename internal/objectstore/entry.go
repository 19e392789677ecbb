package objectstore

import (
	"context"
	"encoding/json"
	"fmt"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// Entry returns the bucket that an entry of a namespace's secret storage-config names, as KServe's
// storage.key has it. Errors are those of Secrets, errdef.ErrNotFound for an entry that isn't
// there, and errdef.ErrInvalid for one that names no bucket.
func (s *Stores) Entry(ctx context.Context, namespace, key string) (Place, error) {
	secret, err := s.secrets.Secret(ctx, namespace, storageConfig)
	if err != nil {
		return Place{}, fmt.Errorf("the secret %s: %w", storageConfig, err)
	}
	text, ok := secret.Data[key]
	if !ok {
		return Place{}, fmt.Errorf("%w: the secret %s has no entry %s", errdef.ErrNotFound, storageConfig, key)
	}
	var e struct{ Type, Bucket string }
	if json.Unmarshal(text, &e) != nil {
		return Place{}, errdef.New(errdef.ErrInvalid, fmt.Sprintf("the entry %s of the secret %s is no JSON object of strings", key, storageConfig))
	}
	return Place{Scheme: e.Type, Bucket: e.Bucket}, nil
}
