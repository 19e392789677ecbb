package objectstore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/jwt"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// GoogleCredentials say how Google Cloud Storage is reached.
type GoogleCredentials struct {
	// File is what gcloud writes: a service account's key, or an authorized user's refresh token.
	// Empty means that requests are anonymous.
	File []byte
	// Endpoint is another store's than Google's, e.g. an emulator's; empty for Google's.
	Endpoint string
}

// googleScope lets objects be read and written.
const googleScope = "https://www.googleapis.com/auth/devstorage.read_write"

const googleTokens = "https://oauth2.googleapis.com/token" //nolint:gosec // an address

type googleBucket struct {
	client  *http.Client
	tokens  oauth2.TokenSource // nil for none
	service *url.URL
	bucket  string
}

func openGoogle(bucket string, c Credentials) (Bucket, error) {
	if c.Google == nil {
		return nil, errdef.New(errdef.ErrInvalid, "there are no credentials for gs")
	}
	client, err := newClient("", true)
	if err != nil {
		return nil, err
	}
	b := &googleBucket{client: client, bucket: bucket}
	if b.service, err = serviceAddress(cmp.Or(c.Google.Endpoint, "storage.googleapis.com")); err != nil {
		return nil, err
	}
	if len(c.Google.File) > 0 {
		b.tokens, err = googleTokenSource(c.Google.File, client)
	}
	return b, err
}

// googleTokenSource reads a file of credentials.
func googleTokenSource(file []byte, client *http.Client) (oauth2.TokenSource, error) {
	var f struct {
		Type         string `json:"type"`
		ClientEmail  string `json:"client_email"`
		PrivateKey   string `json:"private_key"`
		PrivateKeyID string `json:"private_key_id"`
		TokenURI     string `json:"token_uri"`
		ClientID     string `json:"client_id"`
		ClientSecret string `json:"client_secret"`
		RefreshToken string `json:"refresh_token"`
	}
	if json.Unmarshal(file, &f) != nil {
		return nil, errdef.New(errdef.ErrInvalid, "the credentials for gs are no JSON") // and their text is secret
	}
	ctx := withClient(client)
	switch f.Type {
	case "service_account":
		conf := &jwt.Config{
			Email: f.ClientEmail, PrivateKey: []byte(f.PrivateKey), PrivateKeyID: f.PrivateKeyID,
			Scopes: []string{googleScope}, TokenURL: cmp.Or(f.TokenURI, googleTokens),
		}
		return conf.TokenSource(ctx), nil
	case "authorized_user":
		conf := &oauth2.Config{ClientID: f.ClientID, ClientSecret: f.ClientSecret, Endpoint: oauth2.Endpoint{TokenURL: cmp.Or(f.TokenURI, googleTokens)}}
		return conf.TokenSource(ctx, &oauth2.Token{RefreshToken: f.RefreshToken}), nil
	}
	return nil, errdef.New(errdef.ErrInvalid, fmt.Sprintf("the credentials for gs are of type %q; service_account and authorized_user are known", f.Type))
}

// withClient is a context for tokens, whose requests no object's context bounds.
func withClient(client *http.Client) context.Context {
	bounded := *client
	bounded.Timeout = tokenWait
	return context.WithValue(context.Background(), oauth2.HTTPClient, &bounded)
}

// authorize sets a token, which it fetches where the last one is used up.
func authorize(r *http.Request, tokens oauth2.TokenSource) error {
	token, err := tokens.Token()
	if err != nil {
		var refused *oauth2.RetrieveError
		if errors.As(err, &refused) && refused.Response != nil && refused.Response.StatusCode/100 == 4 {
			return fmt.Errorf("%w: no token for the store: %s%s", errdef.ErrDenied, refused.Response.Status, excerpt(refused.Body))
		}
		return fmt.Errorf("%w: no token for the store: %w", errdef.ErrUnavailable, err)
	}
	token.SetAuthHeader(r)
	return nil
}

func (b *googleBucket) Close() { b.client.CloseIdleConnections() }

// Put implements Bucket (Cloud Storage JSON API, Objects: insert, simple upload).
func (b *googleBucket) Put(ctx context.Context, key, contentType string, data []byte) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "", http.NoBody)
	if err != nil {
		return err
	}
	r.URL = under(b.service, "upload/storage/v1/b/"+b.bucket+"/o")
	r.URL.RawQuery = url.Values{"uploadType": {"media"}, "name": {key}}.Encode()
	r.Host = r.URL.Host
	r.Header.Set("Content-Type", contentType)
	if b.tokens != nil {
		if err := authorize(r, b.tokens); err != nil {
			return err
		}
	}
	return send(b.client, r, data)
}
