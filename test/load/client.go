package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"stationmaster.dev/stationmaster/api/oip"
)

// kind is how a request is made.
type kind string

const (
	rest   kind = "REST"
	call   kind = "gRPC"
	stream kind = "stream"
)

// lost is a request without a right answer.
type lost struct {
	ID         string
	Kind       kind
	Service    string
	Began, End time.Time
	Why        string
}

func (l lost) String() string {
	return fmt.Sprintf("%s %s of %s at %s, after %v: %s", l.Kind, l.ID, l.Service, l.Began.Format("15:04:05.000"), l.End.Sub(l.Began).Round(time.Millisecond), l.Why)
}

// load asks at a constant rate, however long answers take.
type load struct {
	url  string
	http *http.Client
	grpc *grpc.ClientConn
	next atomic.Int64

	mu       sync.Mutex
	answered map[kind]int
	abandons map[string]context.CancelCauseFunc // of requests under way
	took     map[kind][]time.Duration
	lost     []lost
	wg       sync.WaitGroup
}

// errAbandoned ends a request that its own client gives up.
var errAbandoned = errors.New("given up by its client")

func newLoad(httpAddr, grpcAddr string) (*load, error) {
	conn, err := grpc.NewClient("passthrough:///"+grpcAddr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.5, MaxDelay: 500 * time.Millisecond}, MinConnectTimeout: 5 * time.Second}))
	if err != nil {
		return nil, err
	}
	return &load{
		url: "http://" + httpAddr, grpc: conn,
		http:     &http.Client{Timeout: time.Minute, Transport: &http.Transport{MaxIdleConns: 512, MaxIdleConnsPerHost: 512}},
		answered: map[kind]int{}, abandons: map[string]context.CancelCauseFunc{}, took: map[kind][]time.Duration{},
	}, nil
}

// run asks service rate times a second in the way of k until ctx ends.
func (l *load) run(ctx context.Context, k kind, service string, rate float64) {
	l.wg.Go(func() {
		began, sent := time.Now(), 0
		tick := time.NewTicker(max(time.Duration(float64(time.Second)/rate), time.Millisecond))
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			for due := int(time.Since(began).Seconds() * rate); sent < due; sent++ {
				l.wg.Go(func() { l.one(k, service) })
			}
		}
	})
}

// wait returns once the last answer is there.
func (l *load) wait() {
	l.wg.Wait()
	l.http.CloseIdleConnections()
}

func (l *load) close() error { return l.grpc.Close() }

func (l *load) one(k kind, service string) {
	id := strconv.FormatInt(l.next.Add(1), 10)
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	l.mu.Lock()
	l.abandons[id] = cancel
	l.mu.Unlock()
	began := time.Now()
	var err error
	switch k {
	case rest:
		_, err = l.infer(ctx, service, id)
	case call:
		err = l.call(ctx, service, id)
	case stream:
		err = l.stream(ctx, service, id)
	}
	end := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.abandons, id)
	switch {
	case err == nil:
		l.answered[k]++
		l.took[k] = append(l.took[k], end.Sub(began))
	case context.Cause(ctx) != errAbandoned: //nolint:errorlint // it is this very value
		l.lost = append(l.lost, lost{id, k, service, began, end, err.Error()})
	}
}

// abandon has up to n clients give up their requests.
func (l *load) abandon(n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	done := 0
	for _, cancel := range l.abandons {
		if done == n {
			break
		}
		cancel(errAbandoned)
		done++
	}
	return done
}

// infer returns the head of the answer.
func (l *load) infer(ctx context.Context, service, id string) (http.Header, error) {
	body := `{"id":"` + id + `","inputs":[{"name":"x","shape":[1,1],"datatype":"INT64","data":[` + id + `]}]}`
	resp, err := l.post(ctx, "/v2/models/"+service+"/infer", body)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("after the head: %w", err)
	}
	if resp.StatusCode != http.StatusOK || !strings.Contains(string(answer), `"id":"`+id+`"`) {
		return nil, fmt.Errorf("%s: %s", resp.Status, answer)
	}
	return resp.Header, nil
}

func (l *load) post(ctx context.Context, path, body string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	return l.http.Do(r)
}

func (l *load) call(ctx context.Context, service, id string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	n, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		return err
	}
	r, err := oip.NewGRPCInferenceServiceClient(l.grpc).ModelInfer(ctx, &oip.ModelInferRequest{
		ModelName: service, Id: id,
		Inputs: []*oip.ModelInferRequest_InferInputTensor{{
			Name: "x", Datatype: "INT64", Shape: []int64{1, 1}, Contents: &oip.InferTensorContents{Int64Contents: []int64{n}},
		}},
	}, grpc.WaitForReady(true))
	if err == nil && r.GetId() != id {
		err = fmt.Errorf("asked for %s, was told %s", id, r.GetId())
	}
	return err
}

// stream reads a whole stream, in order.
func (l *load) stream(ctx context.Context, service, id string) error {
	resp, err := l.post(ctx, "/openai/v1/chat/completions", `{"model":"`+service+`","user":"`+id+`","stream":true,"messages":[{"role":"user","content":"hello"}]}`)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		answer, _ := io.ReadAll(resp.Body)
		return fmt.Errorf("%s: %s", resp.Status, answer)
	}
	n := 0
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !ok:
		case data == "[DONE]":
			if n != chunks {
				return fmt.Errorf("a stream of %d chunks", n)
			}
			return nil
		case !strings.Contains(data, id+"-"+strconv.Itoa(n)):
			return fmt.Errorf("chunk %d is %s", n, data)
		default:
			n++
		}
	}
	return fmt.Errorf("a stream ended after %d chunks: %w", n, cmp.Or(lines.Err(), io.EOF))
}

// figures are what became of the requests of a kind; times in milliseconds.
type figures struct {
	Answered int     `json:"answered"`
	P50      float64 `json:"p50_ms"`
	P99      float64 `json:"p99_ms"`
	Max      float64 `json:"max_ms"`
}

func (l *load) figures() map[kind]figures {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[kind]figures{}
	for k, n := range l.answered {
		s := slices.Sorted(slices.Values(l.took[k]))
		at := func(q float64) float64 {
			i := max(int(math.Ceil(q*float64(len(s))))-1, 0)
			return math.Round(float64(s[i])/float64(time.Millisecond)*10) / 10
		}
		out[k] = figures{Answered: n, P50: at(0.5), P99: at(0.99), Max: at(1)}
	}
	return out
}

func (l *load) losses() []lost {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.lost)
}
