package gateway_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"stationmaster.dev/stationmaster/api/oip"
	"stationmaster.dev/stationmaster/internal/enginetls"
	"stationmaster.dev/stationmaster/internal/gateway"
	"stationmaster.dev/stationmaster/internal/route"
)

const engineName = "iris-predictor.default.svc"

// authority signs engines' certificates.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  string
}

func newAuthority(tb testing.TB) *authority {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		tb.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatal(err)
	}
	return &authority{key, cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))}
}

// issue signs a certificate for a name.
func (a *authority) issue(tb testing.TB, serial int64, name string) *tls.Certificate {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{name}, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		tb.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// secureEngine serves HTTP and gRPC over TLS with the certificate that proof holds.
func secureEngine(tb testing.TB, proof *atomic.Pointer[tls.Certificate]) route.Endpoint {
	tb.Helper()
	cfg := &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return proof.Load(), nil }}
	overHTTP := cfg.Clone()
	overHTTP.NextProtos = []string{"h2", "http/1.1"}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/models/iris:predict", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Server-Name", r.TLS.ServerName)
		w.Header().Set("X-Proto", r.Proto)
		_, _ = w.Write(body)
	})
	mux.HandleFunc("GET /close", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		_, _ = io.WriteString(w, "bye")
	})
	mux.HandleFunc("GET /stream", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			_, _ = fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
		}
		<-r.Context().Done()
	})
	mux.HandleFunc("GET /ws", func(w http.ResponseWriter, _ *http.Request) {
		c, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n")
		_, _ = io.Copy(c, buffered)
	})
	l := listen(tb)
	s := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute, TLSConfig: overHTTP}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.ServeTLS(l, "", "") }()
	tb.Cleanup(func() { _ = s.Close(); <-done })

	gl := listen(tb)
	gs := grpc.NewServer(grpc.Creds(credentials.NewTLS(cfg)))
	oip.RegisterGRPCInferenceServiceServer(gs, secureModel{})
	gdone := make(chan struct{})
	go func() { defer close(gdone); _ = gs.Serve(gl) }()
	tb.Cleanup(func() { gs.Stop(); <-gdone })
	return route.Endpoint{Replica: "a", HTTP: l.Addr().String(), GRPC: gl.Addr().String()}
}

type secureModel struct {
	oip.UnimplementedGRPCInferenceServiceServer
}

func (secureModel) ModelReady(ctx context.Context, _ *oip.ModelReadyRequest) (*oip.ModelReadyResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	return &oip.ModelReadyResponse{Ready: len(md[":authority"]) == 1 && md[":authority"][0] == engineName}, nil
}

// readiness asks the gateway over gRPC.
func readiness(tb testing.TB, g *running) (bool, error) {
	tb.Helper()
	conn, err := grpc.NewClient("passthrough:///"+g.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("iris-default.localhost"))
	if err != nil {
		tb.Fatal(err)
	}
	defer conn.Close()
	resp, err := oip.NewGRPCInferenceServiceClient(conn).ModelReady(tb.Context(), &oip.ModelReadyRequest{Name: "iris"})
	return resp.GetReady(), err
}

func predictOver(tb testing.TB, g *running, body string) (*http.Response, string) {
	tb.Helper()
	resp, err := http.Post(g.url("/serving/default/iris/v1/models/iris:predict"), "application/json", strings.NewReader(body))
	if err != nil {
		tb.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return resp, string(got)
}

func TestEnginesAreReachedOverTLS(t *testing.T) {
	ca := newAuthority(t)
	var proof atomic.Pointer[tls.Certificate]
	proof.Store(ca.issue(t, 2, engineName))
	e := secureEngine(t, &proof)
	e.Security = enginetls.Of(enginetls.TLS{ServerName: engineName, Roots: ca.pem})
	g := start(t, nil, service("iris", e))

	t.Run("requests of any size go through, over HTTP/1.1 and under the engine's name", func(t *testing.T) {
		for _, n := range []int{0, 1, 100, 20_000, 3 << 20} {
			body := `{"instances":["` + strings.Repeat("x", n) + `"]}`
			resp, got := predictOver(t, g, body)
			if resp.StatusCode != http.StatusOK || got != body {
				t.Errorf("%d bytes: %d, %d bytes: %.100s", n, resp.StatusCode, len(got), got)
			}
			if name, proto := resp.Header.Get("X-Server-Name"), resp.Header.Get("X-Proto"); name != engineName || proto != "HTTP/1.1" {
				t.Errorf("%d bytes: the engine was asked as %q over %s", n, name, proto)
			}
		}
	})
	t.Run("a connection that the engine closes is replaced", func(t *testing.T) {
		for range 3 {
			resp, err := http.Get(g.url("/serving/default/iris/close"))
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if string(body) != "bye" {
				t.Errorf("%d: %q", resp.StatusCode, body)
			}
		}
	})
	t.Run("events come while the engine still speaks", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, g.url("/serving/default/iris/stream"), http.NoBody)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		got := make([]byte, len("data: 0\n\ndata: 1\n\ndata: 2\n\n"))
		if _, err := io.ReadFull(resp.Body, got); err != nil || !bytes.HasSuffix(got, []byte("data: 2\n\n")) {
			t.Errorf("%q, %v", got, err)
		}
	})
	t.Run("a connection changes its protocol, and each side may end first", func(t *testing.T) {
		c, err := net.Dial("tcp", g.HTTP)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, "GET /serving/default/iris/ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		r := bufio.NewReader(c)
		resp, err := http.ReadResponse(r, nil)
		if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("%v, %v", resp, err)
		}
		_, _ = io.WriteString(c, "hello")
		_ = c.(*net.TCPConn).CloseWrite()
		if got, err := io.ReadAll(r); err != nil || string(got) != "hello" {
			t.Errorf("%q, %v", got, err)
		}
	})
	t.Run("gRPC calls go through under the engine's name", func(t *testing.T) {
		if ready, err := readiness(t, g); err != nil || !ready {
			t.Errorf("ready %v, %v", ready, err)
		}
	})
	t.Run("a new certificate of the same authority needs nothing", func(t *testing.T) {
		proof.Store(ca.issue(t, 3, engineName))
		g.table.Publish(route.Compile(nil)) // all connections end
		g.table.Publish(route.Compile([]route.Service{service("iris", e)}))
		if resp, got := predictOver(t, g, "{}"); resp.StatusCode != http.StatusOK {
			t.Errorf("%d %s", resp.StatusCode, got)
		}
	})
}

func TestEnginesThatDoNotProveThemselvesGetNothing(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	var proof atomic.Pointer[tls.Certificate]
	proof.Store(ca.issue(t, 2, engineName))
	e := secureEngine(t, &proof)
	soon := func(c *gateway.Config) { c.Timeouts.Hold = 100 * time.Millisecond }
	for name, tc := range map[string]struct {
		security enginetls.TLS
		why      string // empty for one that is reached
	}{
		"another authority":                                 {enginetls.TLS{ServerName: engineName, Roots: other.pem}, "unknown authority"},
		"another name":                                      {enginetls.TLS{ServerName: "wine-predictor.default.svc", Roots: ca.pem}, engineName},
		"no authority that can be read":                     {enginetls.TLS{ServerName: engineName, Roots: "none"}, "unknown authority"},
		"the authorities of this machine":                   {enginetls.TLS{ServerName: engineName}, "certificate"},
		"both authorities, as while one replaces the other": {enginetls.TLS{ServerName: engineName, Roots: other.pem + ca.pem}, ""},
		"no proof is asked for":                             {enginetls.TLS{ServerName: engineName, SkipVerify: true}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			e := e
			e.Security = enginetls.Of(tc.security)
			g := start(t, soon, service("iris", e))
			resp, got := predictOver(t, g, "{}")
			_, err := readiness(t, g)
			if tc.why == "" {
				if resp.StatusCode != http.StatusOK || err != nil {
					t.Errorf("%d %s, gRPC %v", resp.StatusCode, got, err)
				}
				return
			}
			if resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(got, "TLS") || !strings.Contains(got, tc.why) {
				t.Errorf("HTTP: %d %s", resp.StatusCode, got)
			}
			if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), tc.why) {
				t.Errorf("gRPC: %v", err)
			}
		})
	}
	t.Run("an engine without TLS", func(t *testing.T) {
		plain := engine(t, func(http.ResponseWriter, *http.Request) { t.Error("it got a request") })
		g := start(t, soon, service("iris", route.Endpoint{Replica: "a", HTTP: plain, Security: enginetls.Of(enginetls.TLS{ServerName: engineName, SkipVerify: true})}))
		if resp, got := predictOver(t, g, "{}"); resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(got, "TLS") {
			t.Errorf("%d %s", resp.StatusCode, got)
		}
	})
}
