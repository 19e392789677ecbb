package modelserver

import (
	"context"

	"stationmaster.dev/stationmaster/internal/wire/oip"
)

// served is what a server serves: one model, or many that come and go.
type served interface {
	// run makes ready what there is and blocks while that takes, or while there may be more to
	// do. An error ends the server.
	run(ctx context.Context) error
	// close frees all; run has ended, and no request runs.
	close() error
	// serving is an error while requests should go elsewhere.
	serving() error
	names() []string
	// check says whether there is such a model, and checkReady whether it is of use to ask it.
	check(name, version string) error
	checkReady(name, version string) error
	describe(ctx context.Context, name, version string) (*oip.ModelMetadata, error)
	index(readyOnly bool) []oip.IndexedModel
	infer(ctx context.Context, req *oip.InferRequest) (*oip.InferResponse, error)
	// load and unload do what a client of the repository API asks for.
	load(ctx context.Context, name string) error
	unload(ctx context.Context, name string) error
}

// single serves one model from the start to the end.
type single struct {
	server *Server
	*model
}

func (s single) run(ctx context.Context) error {
	if err := s.model.load(ctx); err != nil {
		return err
	}
	s.server.logLoaded(ctx, s.model)
	return nil
}

func (s single) close() error { return s.model.unload(unloaded) }

// serving is none for a model that was unloaded at a client's wish, as Triton's: were it an
// error, no gateway would lead a later load here.
func (s single) serving() error {
	if s.away() {
		return nil
	}
	return s.model.checkReady(s.name, "")
}

func (s single) names() []string { return []string{s.name} }

func (s single) describe(_ context.Context, name, version string) (*oip.ModelMetadata, error) {
	return s.model.describe(name, version)
}

func (s single) index(readyOnly bool) []oip.IndexedModel {
	line := s.indexed()
	if readyOnly && line.State != oip.StateReady {
		return []oip.IndexedModel{}
	}
	return []oip.IndexedModel{line}
}

// load goes on when the client goes away: half a load is no state to be left in.
func (s single) load(ctx context.Context, name string) error {
	if err := s.check(name, ""); err != nil {
		return err
	}
	s.server.log.InfoContext(ctx, "loading at a client's wish")
	return s.model.load(context.WithoutCancel(ctx))
}

func (s single) unload(ctx context.Context, name string) error {
	if err := s.check(name, ""); err != nil {
		return err
	}
	s.server.log.InfoContext(ctx, "unloading at a client's wish")
	return s.model.unload(unloaded)
}
