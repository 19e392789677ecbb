package measure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"stationmaster.dev/stationmaster/internal/demand"
	"stationmaster.dev/stationmaster/internal/enginetls"
	"stationmaster.dev/stationmaster/internal/errdef"
	"stationmaster.dev/stationmaster/internal/wire/exposition"
)

const (
	// maxAnswer and maxPage bound what is read of a server's answer, and of an engine's page.
	maxAnswer = 1 << 20
	maxPage   = 16 << 20
	// maxSampled bounds what is read of a page through an adapter.
	maxSampled = 4 << 20
)

// errSoon says that a value will be known at the next look.
var errSoon = errors.New("it is known from the next look on")

var errNoPage = errors.New("it has no page of metrics that is reached here")

// client asks servers and engines. Errors are short and don't change while their cause doesn't,
// for they stand in statuses; nothing of what an unknown server answers is in them.
type client struct{ http.Client }

func newClient() client { return clientOver(enginetls.Security{}) }

// over is a client of engines that are reached by a Security. Over TLS it keeps no connections, so
// that nothing of it is left when it has been used.
func (c client) over(security enginetls.Security) client {
	if !security.On() {
		return c
	}
	return clientOver(security)
}

func clientOver(security enginetls.Security) client {
	dialer := net.Dialer{Timeout: patience, Control: notLinkLocal}
	return client{http.Client{
		Transport: &http.Transport{
			DialContext: dialer.DialContext, MaxIdleConnsPerHost: 2, IdleConnTimeout: 30 * time.Second,
			TLSHandshakeTimeout: patience, MaxResponseHeaderBytes: 64 << 10, TLSClientConfig: security.Config(),
			DisableKeepAlives: security.On(),
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// notLinkLocal keeps manifests from having clouds' metadata services asked.
func notLinkLocal(_, address string, _ syscall.RawConn) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if host, _, _ = strings.Cut(host, "%"); net.ParseIP(host).IsLinkLocalUnicast() {
		return errdef.New(errdef.ErrDenied, "link-local addresses aren't asked")
	}
	return nil
}

// get returns the body of an answer with a status that is accepted; the caller closes it.
func (c client) get(ctx context.Context, at string, accepted func(status int) bool) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, errdef.New(errdef.ErrInvalid, "the address can't be read")
	}
	req.Header.Set("Accept", "application/json, text/plain;version=0.0.4")
	resp, err := c.Do(req)
	if err != nil {
		return nil, unreachable(err)
	}
	if !accepted(resp.StatusCode) {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("it answers with status %d", resp.StatusCode)
	}
	return resp.Body, nil
}

// unreachable is a transport's error less what differs from try to try, such as our own port.
func unreachable(err error) error {
	var op *net.OpError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return errdef.New(errdef.ErrUnavailable, fmt.Sprintf("it doesn't answer within %v", patience))
	case errors.As(err, &op):
		return errdef.New(errdef.ErrUnavailable, op.Op+": "+op.Err.Error())
	}
	var about *url.Error
	if errors.As(err, &about) {
		err = about.Err
	}
	return errdef.New(errdef.ErrUnavailable, err.Error())
}

// query has a Prometheus server evaluate a query now. A result of several series is an error, and
// so is an empty one or one that is no number: none of them is zero.
func (c client) query(ctx context.Context, q demand.PrometheusQuery) (float64, error) {
	v, err := c.ask(ctx, q)
	if err != nil {
		return 0, fmt.Errorf("the server %s: %w", q.Server, err)
	}
	return v, nil
}

func (c client) ask(ctx context.Context, q demand.PrometheusQuery) (float64, error) {
	base, err := url.Parse(q.Server)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return 0, errdef.New(errdef.ErrInvalid, "the address must be a URL with http or https")
	}
	at := base.JoinPath("api/v1/query")
	args := at.Query()
	args.Set("query", q.Query)
	if q.Namespace != "" {
		args.Set("namespace", q.Namespace)
	}
	at.RawQuery = args.Encode()
	// Prometheus tells with 400, 422 and 503 what is wrong with a query.
	body, err := c.get(ctx, at.String(), func(status int) bool {
		return status == http.StatusOK || status == http.StatusBadRequest || status == http.StatusUnprocessableEntity || status == http.StatusServiceUnavailable
	})
	if err != nil {
		return 0, err
	}
	defer body.Close()
	raw, err := io.ReadAll(io.LimitReader(body, maxAnswer+1))
	if err != nil {
		return 0, unreachable(err)
	}
	if len(raw) > maxAnswer {
		return 0, fmt.Errorf("its answer is longer than %d bytes", maxAnswer)
	}
	return result(raw)
}

// answer is what the query API says.
type answer struct {
	Status string `json:"status"`
	Error  string `json:"error"`
	Data   struct {
		ResultType string          `json:"resultType"`
		Result     json.RawMessage `json:"result"`
	} `json:"data"`
}

// maxError is how much of a server's own words is kept.
const maxError = 200

// result reads the one value of an answer.
func result(raw []byte) (float64, error) {
	var a answer
	if err := json.Unmarshal(raw, &a); err != nil || a.Status == "" {
		return 0, errors.New("its answer isn't that of Prometheus' query API")
	}
	if a.Status != "success" {
		return 0, fmt.Errorf("it refuses the query: %.*s", maxError, a.Error)
	}
	var sample [2]any
	switch a.Data.ResultType {
	case "scalar":
		if err := json.Unmarshal(a.Data.Result, &sample); err != nil {
			return 0, errors.New("its answer isn't that of Prometheus' query API")
		}
	case "vector":
		var vector []struct {
			Value [2]any `json:"value"`
		}
		if err := json.Unmarshal(a.Data.Result, &vector); err != nil {
			return 0, errors.New("its answer isn't that of Prometheus' query API")
		}
		switch len(vector) {
		case 0:
			return 0, errors.New("the query finds nothing")
		case 1:
			sample = vector[0].Value
		default:
			return 0, errors.New("the query finds several series; sum them up or choose one")
		}
	default:
		return 0, fmt.Errorf("the query gives a %.20q; it must give a scalar or one series", a.Data.ResultType)
	}
	text, ok := sample[1].(string)
	if !ok {
		return 0, errors.New("its answer isn't that of Prometheus' query API")
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, fmt.Errorf("the query gives %.20q, which is no number to scale on", text)
	}
	return v, nil
}

// scrape reads a metric from an engine's page.
func (c client) scrape(ctx context.Context, page string, which exposition.Selector) (float64, error) {
	var v float64
	err := c.page(ctx, page, maxPage, func(body io.Reader) (err error) {
		v, err = exposition.Sum(body, which)
		return err
	})
	return v, err
}

// page has an engine's page read, of which no more than limit bytes.
func (c client) page(ctx context.Context, at string, limit int64, read func(io.Reader) error) error {
	if at == "" {
		return errNoPage
	}
	body, err := c.get(ctx, at, func(status int) bool { return status == http.StatusOK })
	if err != nil {
		return err
	}
	defer body.Close()
	limited := &io.LimitedReader{R: body, N: limit}
	err = read(limited)
	if limited.N <= 0 {
		return fmt.Errorf("its page is longer than %d bytes", limit)
	}
	return err
}
