package registry

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// conversation is what passes between a source and a registry for one model.
type conversation struct {
	source    Source
	image     name
	namespace string
	// authorization is the field that the registry takes, once it asked for one.
	authorization string
}

// get asks for something of the registry, once more where it wants to know who asks. The body is the
// caller's to close.
func (c *conversation) get(ctx context.Context, where, accept string) (*http.Response, error) {
	for again := false; ; again = true {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, where, http.NoBody)
		if err != nil {
			return nil, errdef.Terminal(fmt.Errorf("%w: the URI isn't one that can be read", errdef.ErrInvalid))
		}
		if accept != "" {
			req.Header.Set("Accept", accept)
		}
		if c.authorization != "" {
			req.Header.Set("Authorization", c.authorization)
		}
		resp, err := c.source.Client.Do(req)
		if err != nil {
			return nil, fmt.Errorf("%w: ask the registry: %w", errdef.ErrUnavailable, err)
		}
		if resp.StatusCode == http.StatusOK {
			return resp, nil
		}
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusUnauthorized && !again {
			if err := c.authorize(ctx, resp.Header.Values("WWW-Authenticate")); err != nil {
				return nil, err
			}
			continue
		}
		return nil, answered(resp.StatusCode, "the registry")
	}
}

// answered is the error of an answer.
func answered(status int, who string) error {
	kind := errdef.ErrUnavailable
	switch status {
	case http.StatusNotFound:
		kind = errdef.ErrNotFound
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("%w: %s answered %d: check the image's name, and the pull secret", errdef.ErrDenied, who, status)
	}
	return fmt.Errorf("%w: %s answered %d", kind, who, status)
}

var parameter = regexp.MustCompile(`([a-z]+)="([^"]*)"`)

// authorize finds what the registry takes, by what it asked for: the keys, or a token for them.
func (c *conversation) authorize(ctx context.Context, challenges []string) error {
	var user, password string
	if c.source.Keys != nil {
		var err error
		if user, password, err = c.source.Keys(c.namespace, c.image.host); err != nil {
			return err
		}
	}
	for _, challenge := range challenges {
		scheme, rest, _ := strings.Cut(challenge, " ")
		switch {
		case strings.EqualFold(scheme, "basic") && user != "":
			c.authorization = basic(user, password)
			return nil
		case strings.EqualFold(scheme, "bearer"):
			asked := map[string]string{}
			for _, m := range parameter.FindAllStringSubmatch(rest, -1) {
				asked[m[1]] = m[2]
			}
			return c.token(ctx, asked, user, password)
		}
	}
	return answered(http.StatusUnauthorized, "the registry")
}

func basic(user, password string) string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
}

// token asks the authority that the registry named.
func (c *conversation) token(ctx context.Context, asked map[string]string, user, password string) error {
	u, err := url.Parse(asked["realm"])
	if err != nil || u.Host == "" || u.Scheme != "https" && !c.image.local() {
		return fmt.Errorf("%w: the registry names no authority that can be asked for a token", errdef.ErrDenied)
	}
	q := u.Query()
	if s := asked["service"]; s != "" {
		q.Set("service", s)
	}
	q.Set("scope", "repository:"+c.image.repository+":pull")
	u.RawQuery = q.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return fmt.Errorf("%w: the registry names no authority that can be asked for a token", errdef.ErrDenied)
	}
	if user != "" {
		req.Header.Set("Authorization", basic(user, password))
	}
	resp, err := c.source.Client.Do(req)
	if err != nil {
		return fmt.Errorf("%w: ask for the registry's token: %w", errdef.ErrUnavailable, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return answered(resp.StatusCode, "the registry's authority")
	}
	var got struct {
		Token       string `json:"token"`
		AccessToken string `json:"access_token"` //nolint:gosec // the field's name
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxManifest)).Decode(&got); err != nil || got.Token+got.AccessToken == "" {
		return fmt.Errorf("%w: the registry's authority answered without a token", errdef.ErrUnavailable)
	}
	if got.Token == "" {
		got.Token = got.AccessToken
	}
	c.authorization = "Bearer " + got.Token
	return nil
}

// KeysIn finds a registry's keys in a configuration of Docker's, as pull secrets hold it under
// .dockerconfigjson. None for it is empty. An error is of kind errdef.ErrInvalid and holds no secret.
func KeysIn(config []byte, host string) (user, password string, err error) {
	var c struct {
		Auths map[string]struct {
			Auth, Username, Password string
		} `json:"auths"`
	}
	if json.Unmarshal(config, &c) != nil {
		return "", "", fmt.Errorf("%w: a registry's keys aren't JSON as Docker has it", errdef.ErrInvalid)
	}
	for at, key := range c.Auths {
		at = strings.TrimPrefix(strings.TrimPrefix(at, "https://"), "http://")
		if at, _, _ = strings.Cut(at, "/"); at != host {
			continue
		}
		if key.Auth == "" {
			return key.Username, key.Password, nil
		}
		both, err := base64.StdEncoding.DecodeString(key.Auth)
		user, password, ok := strings.Cut(string(both), ":")
		if err != nil || !ok {
			return "", "", fmt.Errorf("%w: the keys for %s aren't user:password in base64", errdef.ErrInvalid, host)
		}
		return user, password, nil
	}
	return "", "", nil
}
