package measure

import (
	"context"
	"fmt"
	"io"

	"stationmaster.dev/stationmaster/internal/engine"
	"stationmaster.dev/stationmaster/internal/engine/adapter"
	"stationmaster.dev/stationmaster/internal/wire/exposition"
)

// reader reads one value of a replica's page; kept is what is known of the replica.
type reader func(ctx context.Context, page string, kept *series) (float64, error)

// reader returns how a metric is read from the pages of an engine: one of those that hold for all
// engines through its adapter, any other as it is.
func (c client) reader(query, name string) (reader, error) {
	if !adapter.Unified(query) {
		which, err := exposition.ParseSelector(query)
		return func(ctx context.Context, page string, _ *series) (float64, error) {
			return c.scrape(ctx, page, which)
		}, err
	}
	n, err := adapter.ParseName(query)
	if err != nil {
		return nil, err
	}
	a := engine.ByName(name)
	if a == nil {
		return nil, fmt.Errorf("which engine it runs isn't known; say so with the annotation %s", engine.Annotation)
	}
	if !a.Metrics.Tells(n) {
		return nil, fmt.Errorf("the engine %s doesn't tell %s", a.Name, n)
	}
	return func(ctx context.Context, page string, kept *series) (float64, error) {
		r, err := c.read(ctx, page, a)
		if err != nil {
			return 0, err
		}
		before := kept.reading
		kept.reading = r
		v, ok := r.Value(n, before)
		switch {
		case ok:
			return v, nil
		case n == adapter.BatchSize && before == nil && r.Batches > 0:
			return 0, errSoon
		}
		return 0, because(exposition.ErrNotTold, a)
	}, nil
}

// read reads an engine's page with its adapter.
func (c client) read(ctx context.Context, page string, a *adapter.Adapter) (*adapter.Reading, error) {
	var out *adapter.Reading
	err := c.page(ctx, page, maxSampled, func(body io.Reader) (err error) {
		out, err = a.Metrics.Read(body)
		return err
	})
	if err != nil {
		return nil, because(err, a)
	}
	return out, nil
}

// because adds to an error what an engine's adapter says of it.
func because(err error, a *adapter.Adapter) error {
	if a.Page.Needs == "" {
		return err
	}
	return fmt.Errorf("%w; %s", err, a.Page.Needs)
}
