package objectstore

import (
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// WebIdentity is a role that is taken with a token of another authority's, such as one that a
// cluster gives a service account (IRSA; AWS STS API reference, AssumeRoleWithWebIdentity).
type WebIdentity struct {
	// Role is the role's ARN.
	Role string
	// Session names who takes it, in the store's records; empty for "stationmaster".
	Session string
	// Endpoint is another token service's than Amazon's; empty for https://sts.<region>.amazonaws.com.
	Endpoint string
	// Token reads the token, which somebody else renews.
	Token func() ([]byte, error)
}

// session holds the keys that a role gave. It is safe for concurrent use.
type session struct {
	client  *http.Client
	role    WebIdentity
	service *url.URL
	now     func() time.Time

	mu      sync.Mutex
	keys    S3Credentials
	expires time.Time
}

// early is how long before they end keys are taken anew.
const early = 2 * time.Minute

func newSession(client *http.Client, role WebIdentity, region string) (*session, error) {
	service, err := serviceAddress(cmp.Or(role.Endpoint, "sts."+region+".amazonaws.com"))
	if err != nil {
		return nil, err
	}
	return &session{client: client, role: role, service: service, now: time.Now}, nil
}

// current returns keys that hold for a while, and takes the role where it has none. It blocks for
// one request at most.
func (s *session) current(ctx context.Context) (S3Credentials, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys.SecretKey != "" && s.now().Before(s.expires.Add(-early)) {
		return s.keys, nil
	}
	keys, expires, err := s.take(ctx)
	if err != nil {
		return S3Credentials{}, fmt.Errorf("take the role %s: %w", s.role.Role, err)
	}
	s.keys, s.expires = keys, expires
	return keys, nil
}

func (s *session) take(ctx context.Context) (S3Credentials, time.Time, error) {
	token, err := s.role.Token()
	if err != nil {
		return S3Credentials{}, time.Time{}, fmt.Errorf("%w: the service account's token: %w", errdef.ErrInvalid, err)
	}
	form := url.Values{
		"Action": {"AssumeRoleWithWebIdentity"}, "Version": {"2011-06-15"}, "RoleArn": {s.role.Role},
		"RoleSessionName": {cmp.Or(s.role.Session, "stationmaster")}, "WebIdentityToken": {strings.TrimSpace(string(token))},
	}.Encode()
	ctx, cancel := context.WithTimeout(ctx, tokenWait)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, under(s.service, "").String(), strings.NewReader(form))
	if err != nil {
		return S3Credentials{}, time.Time{}, err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	resp, err := s.client.Do(r)
	if err != nil {
		return S3Credentials{}, time.Time{}, fmt.Errorf("%w: %w", errdef.ErrUnavailable, bare(err))
	}
	defer func() { _ = resp.Body.Close() }()
	said, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return S3Credentials{}, time.Time{}, fmt.Errorf("%w: %w", errdef.ErrUnavailable, err)
	}
	if resp.StatusCode/100 != 2 {
		kind := kindOf(resp.StatusCode)
		if errors.Is(kind, errdef.ErrInvalid) {
			kind = errdef.ErrDenied // an expired token is answered with 400
		}
		var fault struct {
			Error struct{ Code, Message string }
		}
		_ = xml.Unmarshal(said, &fault) // what it says is of more use, but not needed
		return S3Credentials{}, time.Time{}, fmt.Errorf("%w: the token service answered %s%s", kind, resp.Status, excerpt([]byte(fault.Error.Code+" "+fault.Error.Message)))
	}
	var answer struct {
		Credentials struct {
			AccessKeyID     string `xml:"AccessKeyId"`
			SecretAccessKey string
			SessionToken    string
			Expiration      time.Time
		} `xml:"AssumeRoleWithWebIdentityResult>Credentials"`
	}
	if err := xml.Unmarshal(said, &answer); err != nil || answer.Credentials.SecretAccessKey == "" {
		return S3Credentials{}, time.Time{}, errdef.New(errdef.ErrUnavailable, "the token service's answer holds no keys")
	}
	c := answer.Credentials
	return S3Credentials{AccessKey: c.AccessKeyID, SecretKey: c.SecretAccessKey, SessionToken: c.SessionToken}, c.Expiration, nil
}
