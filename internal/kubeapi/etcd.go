package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/server/egressselector"

	"stationmaster.dev/stationmaster/internal/errdef"
)

const (
	// quotaBytes bounds the database; etcd refuses writes beyond it. 2 GiB is etcd's own
	// default, and about 200,000 objects of 10 KiB.
	quotaBytes = 2 << 30
	// snapshotCount and catchUpEntries bound the raft log that is held in memory. There is no
	// follower that could need more of it.
	snapshotCount  = 1000
	catchUpEntries = 100
	// maxSocketPath is what fits in sockaddr_un on every Unix (104 bytes on macOS), with its NUL.
	maxSocketPath = 100
	// advertised is the member's name for itself. Nobody dials it: there is one member.
	advertised = "unix://stationmaster"
	// etcdEndpoint is what the API's etcd clients are told; they dial the socket whatever it says.
	etcdEndpoint  = "http://etcd"
	defragAboveMB = 64
)

// store is an etcd in this process that listens on a Unix socket only.
type store struct {
	etcd      *embed.Etcd
	socket    string
	socketDir string // removed on close, "" when the socket lies in the data directory
	closing   atomic.Bool
}

// startStore opens the database in dir and waits until it takes requests. The data is synced to
// disk on each commit, as etcd does by default.
func startStore(ctx context.Context, dir string, log *slog.Logger) (_ *store, err error) {
	if err := os.MkdirAll(dir, privateDirMode); err != nil {
		return nil, fmt.Errorf("make etcd's directory: %w", err)
	}
	s := &store{}
	sockets := dir
	if len(filepath.Join(dir, "client.sock")) > maxSocketPath {
		if s.socketDir, err = os.MkdirTemp("", "stationmaster-"); err != nil {
			return nil, fmt.Errorf("make a directory for etcd's socket: %w", err)
		}
		sockets = s.socketDir
	}
	s.socket = filepath.Join(sockets, "client.sock")
	defer func() {
		if err != nil {
			s.close()
		}
	}()

	self, err := url.Parse(advertised)
	if err != nil {
		return nil, err
	}
	cfg := embed.NewConfig()
	cfg.Name = "stationmaster"
	cfg.Dir = filepath.Join(dir, "data")
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(etcdLog{log: log, closing: &s.closing}))
	cfg.ListenClientUrls = []url.URL{{Scheme: "unix", Path: s.socket}}
	// etcd takes a peer socket's path from the host part; without one it would listen on a name
	// that every user of the machine can reach.
	cfg.ListenPeerUrls = []url.URL{{Scheme: "unix", Host: filepath.Join(sockets, "peer.sock")}}
	cfg.AdvertiseClientUrls = []url.URL{*self}
	cfg.AdvertisePeerUrls = []url.URL{*self}
	cfg.InitialCluster = cfg.Name + "=" + advertised
	cfg.EnableGRPCGateway = false
	cfg.QuotaBackendBytes = quotaBytes
	cfg.SnapshotCount = snapshotCount
	cfg.SnapshotCatchUpEntries = catchUpEntries
	cfg.BootstrapDefragThresholdMegabytes = defragAboveMB
	// One member elects itself as soon as its timer fires.
	cfg.TickMs, cfg.ElectionMs = 20, 100
	if s.etcd, err = embed.StartEtcd(cfg); err != nil {
		return nil, fmt.Errorf("%w: start etcd in %s: %w", errdef.ErrInternal, dir, err)
	}
	select {
	case <-s.etcd.Server.ReadyNotify():
		return s, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case err := <-s.etcd.Err():
		return nil, fmt.Errorf("%w: etcd in %s: %w", errdef.ErrInternal, dir, err)
	case <-time.After(time.Minute):
		return nil, fmt.Errorf("%w: etcd in %s took no requests within a minute; see its log above", errdef.ErrTimeout, dir)
	}
}

// close stops etcd and waits until it has.
func (s *store) close() {
	s.closing.Store(true)
	if s.etcd != nil {
		s.etcd.Close()
	}
	if s.socketDir != "" {
		_ = os.RemoveAll(s.socketDir)
	}
}

// egress makes every etcd client of the API dial the socket.
func (s *store) egress(egressselector.NetworkContext) (utilnet.DialFunc, error) {
	return func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", s.socket)
	}, nil
}

// failed waits for a failure of etcd while it runs; nil when ctx ends first.
func (s *store) failed(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-s.etcd.Err():
		if err == nil || errors.Is(err, net.ErrClosed) {
			return nil
		}
		return fmt.Errorf("%w: etcd: %w", errdef.ErrInternal, err)
	}
}

// etcdLog passes etcd's errors on.
type etcdLog struct {
	log     *slog.Logger
	closing *atomic.Bool // errors of closing sockets are no news then
	fields  []zapcore.Field
}

func (etcdLog) Enabled(l zapcore.Level) bool { return l >= zapcore.ErrorLevel }

func (c etcdLog) With(f []zapcore.Field) zapcore.Core {
	c.fields = append(slices.Clone(c.fields), f...)
	return c
}

func (c etcdLog) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return checked.AddCore(e, c)
	}
	return checked
}

func (c etcdLog) Write(e zapcore.Entry, fields []zapcore.Field) error {
	// A new member says once that it can't know its storage version before its first snapshot.
	level := slog.LevelError
	if c.closing.Load() || e.Message == "failed to update storage version" {
		level = slog.LevelDebug
	}
	enc := zapcore.NewMapObjectEncoder()
	for _, f := range append(slices.Clone(c.fields), fields...) {
		f.AddTo(enc)
	}
	c.log.Log(context.Background(), level, "etcd", "message", e.Message, "fields", enc.Fields)
	return nil
}

func (etcdLog) Sync() error { return nil }
