package objectstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// The keys of a secret with fields for a host of https (KServe: pkg/credentials/https).
const (
	fieldsHost = "https-host"
	fieldsData = "headers"
)

// Fields returns the fields of the header that a namespace has for requests to a host, from the
// secrets that the source names: those with the keys https-host and headers, a JSON object of
// strings. Nil means none. Errors are errdef.ErrUnavailable where secrets can't be looked at, and
// errdef.ErrInvalid for fields that can't be read; they show nothing of them.
func (s *Stores) Fields(ctx context.Context, from Source, host string) (map[string]string, error) {
	var names []string
	if from.Secret != "" {
		names = append(names, from.Secret)
	}
	if from.ServiceAccount != "" {
		attached, err := s.secrets.Attached(ctx, from.Namespace, from.ServiceAccount)
		if errors.Is(err, errdef.ErrUnavailable) {
			return nil, err
		}
		names = append(names, attached...)
	}
	bare := host
	if name, _, err := net.SplitHostPort(host); err == nil {
		bare = name
	}
	for _, name := range names {
		secret, err := s.secrets.Secret(ctx, from.Namespace, name)
		if errors.Is(err, errdef.ErrUnavailable) {
			return nil, err
		}
		of := strings.TrimSpace(string(secret.Data[fieldsHost]))
		if err != nil || of == "" || !strings.EqualFold(of, host) && !strings.EqualFold(of, bare) {
			continue
		}
		var fields map[string]string
		if json.Unmarshal(secret.Data[fieldsData], &fields) != nil {
			return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("%s of the secret %s is no JSON object of strings", fieldsData, name))
		}
		return fields, nil
	}
	return nil, nil
}
