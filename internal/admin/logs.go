package admin

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/spec"
)

// LogQuery chooses an engine's log. Service is required; the zero value of the rest means all
// of the newest replica's server.
type LogQuery struct {
	Service   spec.ServiceKey
	Component spec.Component
	Replica   string
	Container string
	Tail      int
	Previous  bool
	Follow    bool
}

func (q LogQuery) values() url.Values {
	v := url.Values{}
	for key, value := range map[string]string{"component": string(q.Component), "replica": q.Replica, "container": q.Container} {
		if value != "" {
			v.Set(key, value)
		}
	}
	if q.Tail > 0 {
		v.Set("tail", strconv.Itoa(q.Tail))
	}
	for key, value := range map[string]bool{"previous": q.Previous, "follow": q.Follow} {
		if value {
			v.Set(key, "true")
		}
	}
	return v
}

func logQuery(r *http.Request) (LogQuery, error) {
	v := r.URL.Query()
	q := LogQuery{
		Service:   spec.ServiceKey{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")},
		Component: spec.Component(v.Get("component")), Replica: v.Get("replica"), Container: v.Get("container"),
		Previous: v.Get("previous") == "true", Follow: v.Get("follow") == "true",
	}
	if t := v.Get("tail"); t != "" {
		n, err := strconv.Atoi(t)
		if err != nil || n < 0 {
			return q, errdef.New(errdef.ErrInvalid, fmt.Sprintf("tail=%q: want a number of lines", t))
		}
		q.Tail = n
	}
	return q, nil
}

func authorized(token string, next http.Handler) http.Handler {
	want := []byte("Bearer " + token)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), want) != 1 {
			http.Error(w, "logs need the token in the data dir's admin.json: use 'stationmaster logs'", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// statusOf is this edge's mapping of error kinds; what isn't here is 500.
var statusOf = map[error]int{
	errdef.ErrInvalid: http.StatusBadRequest, errdef.ErrNotFound: http.StatusNotFound, errdef.ErrUnavailable: http.StatusServiceUnavailable,
}

// ErrStopped ends a log that is followed when the control plane stops, however it does.
var ErrStopped = errors.New("the control plane stopped")

// stoppedTrailer follows a log that ended only because the control plane stops.
const stoppedTrailer = "Stationmaster-Stopped"

func logs(serving context.Context, open func(context.Context, LogQuery) (io.ReadCloser, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q, err := logQuery(r)
		var log io.ReadCloser
		if err == nil {
			log, err = open(r.Context(), q)
		}
		if err != nil {
			code, ok := statusOf[errdef.KindOf(err)]
			if !ok {
				code = http.StatusInternalServerError
			}
			http.Error(w, err.Error(), code)
			return
		}
		defer log.Close()
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		out := http.NewResponseController(w)
		if q.Follow {
			w.Header().Set("Trailer", stoppedTrailer)
			_ = out.Flush() // so that the client knows that the log is open, though nothing may come for long
			defer func() {
				if serving.Err() != nil {
					w.Header().Set(stoppedTrailer, "true")
				}
			}()
		}
		buf := make([]byte, 32<<10)
		for {
			n, err := log.Read(buf)
			if n > 0 {
				if _, werr := w.Write(buf[:n]); werr != nil {
					return
				}
				if q.Follow {
					_ = out.Flush() // a client that is gone shows at the next write
				}
			}
			if err != nil {
				return
			}
		}
	})
}

// access is what the command line needs to find and use the side door.
type access struct {
	Address string `json:"address"`
	Token   string `json:"token"`
}

const accessFile = "admin.json"

// WriteAccess makes a token and writes it with the address to the data dir, readable by its
// owner only. It returns the token.
func WriteAccess(dataDir, address string) (string, error) {
	a := access{Address: address, Token: rand.Text()}
	raw, err := json.Marshal(a)
	if err != nil {
		return "", fmt.Errorf("encode admin access: %w", err)
	}
	path := filepath.Join(dataDir, accessFile)
	if err := os.WriteFile(path+".new", raw, 0o600); err != nil {
		return "", fmt.Errorf("write admin access: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return "", fmt.Errorf("write admin access: %w", err)
	}
	return a.Token, nil
}

// HasAccess reports whether a folder is the data dir of an `up`, running or not.
func HasAccess(dataDir string) bool {
	_, err := os.Stat(filepath.Join(dataDir, accessFile))
	return err == nil
}

// OpenLogs asks the `up` of a data dir for a log. The caller closes it. Errors are of kind
// errdef.ErrUnavailable where none runs, else what it answered. Reading a log that is followed
// ends with io.EOF when its replica is gone and with ErrStopped when the control plane stops.
func OpenLogs(ctx context.Context, dataDir string, q LogQuery) (io.ReadCloser, error) {
	raw, err := os.ReadFile(filepath.Join(dataDir, accessFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errdef.New(errdef.ErrUnavailable, fmt.Sprintf("no 'stationmaster up' has run on the data dir %s: start it, or name another with --data-dir", dataDir))
	}
	if err != nil {
		return nil, fmt.Errorf("read admin access: %w", err)
	}
	var a access
	if err := json.Unmarshal(raw, &a); err != nil {
		return nil, fmt.Errorf("read admin access: %w", err)
	}
	u := url.URL{Scheme: "http", Host: a.Address, Path: "/logs/" + q.Service.Namespace + "/" + q.Service.Name, RawQuery: q.values().Encode()}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask for logs: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+a.Token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w: nothing answers at %s, the admin address of %s; is 'stationmaster up' running? %w", errdef.ErrUnavailable, a.Address, dataDir, err)
	}
	switch {
	case resp.StatusCode == http.StatusOK && q.Follow:
		return &followed{ReadCloser: resp.Body, resp: resp}, nil
	case resp.StatusCode == http.StatusOK:
		return resp.Body, nil
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err != nil {
		return nil, fmt.Errorf("read logs: %w", err)
	}
	kind := errdef.ErrInternal
	for k, code := range statusOf {
		if code == resp.StatusCode {
			kind = k
		}
	}
	return nil, errdef.New(kind, string(text[:max(len(text)-1, 0)]))
}

// followed is a log that is followed, as it comes over the side door.
type followed struct {
	io.ReadCloser
	resp *http.Response
}

func (f *followed) Read(b []byte) (int, error) {
	n, err := f.ReadCloser.Read(b)
	switch {
	case errors.Is(err, io.EOF) && f.resp.Trailer.Get(stoppedTrailer) != "":
		err = ErrStopped
	case err != nil && !errors.Is(err, io.EOF) && f.resp.Request.Context().Err() == nil:
		// It was killed: nothing else cuts a connection of this machine.
		err = fmt.Errorf("%w: %w", ErrStopped, err)
	}
	return n, err
}
