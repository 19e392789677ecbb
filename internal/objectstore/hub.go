package objectstore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// Hub is the scheme of repositories on a Hugging Face hub: hf://owner/model, or with :revision behind.
const Hub = "hf"

// HubCredentials say how a hub is reached.
type HubCredentials struct {
	// Token may be empty for what everybody may read.
	Token string
	// Endpoint is another hub than Hugging Face's; empty for that.
	Endpoint string
}

// hubAddress is the hub's that the scheme is named after.
const hubAddress = "huggingface.co"

// hub reads one repository at one revision. Objects are those of the commit that List found.
type hub struct {
	client         *http.Client
	service        *url.URL
	repo, revision string
	token          string
}

func openHub(p Place, c Credentials) (*hub, error) {
	cred := HubCredentials{}
	if c.Hub != nil {
		cred = *c.Hub
	}
	client, err := newClient("", true)
	if err != nil {
		return nil, err
	}
	// Files lie elsewhere: net/http follows, and leaves the token behind where the host is another.
	client.CheckRedirect = func(r *http.Request, via []*http.Request) error {
		switch {
		case len(via) > 5:
			return errors.New("more than 5 redirects")
		case via[0].URL.Scheme == "https" && r.URL.Scheme != "https":
			return errors.New("the hub redirects from https to " + r.URL.Scheme)
		case r.URL.Host != via[0].URL.Host:
			r.Header.Del("Authorization")
		}
		return nil
	}
	h := &hub{client: client, repo: p.Bucket, revision: cmp.Or(p.Revision, "main"), token: cred.Token}
	h.service, err = serviceAddress(cmp.Or(cred.Endpoint, hubAddress))
	return h, err
}

// List implements Reader: all files of the repository.
func (h *hub) List(ctx context.Context, prefix string, most int) ([]Object, error) {
	var at struct{ SHA string }
	resp, err := h.get(ctx, "api/models/"+h.repo+"/revision/"+h.revision, nil, nil)
	if err != nil {
		return nil, err
	}
	err = json.NewDecoder(io.LimitReader(resp.Body, maxListing)).Decode(&at)
	_ = resp.Body.Close()
	if err != nil || at.SHA == "" {
		return nil, errdef.New(errdef.ErrUnavailable, "the hub's answer names no commit")
	}
	var out []Object
	query := url.Values{"recursive": {"true"}}
	for {
		resp, err := h.get(ctx, "api/models/"+h.repo+"/tree/"+at.SHA, query, nil)
		if err != nil {
			return nil, err
		}
		var files []struct {
			Type, Path, OID string
			Size            int64
			LFS             *struct{ Size int64 }
		}
		err = json.NewDecoder(io.LimitReader(resp.Body, maxListing)).Decode(&files)
		_ = resp.Body.Close()
		if err != nil {
			return nil, fmt.Errorf("%w: the hub's listing can't be read: %w", errdef.ErrUnavailable, err)
		}
		for _, f := range files {
			if f.Type != "file" || !strings.HasPrefix(f.Path, prefix) {
				continue
			}
			if f.LFS != nil {
				f.Size = f.LFS.Size
			}
			out = append(out, Object{Key: f.Path, Size: f.Size, ETag: at.SHA + "/" + f.OID})
		}
		next := nextCursor(resp.Header.Get("Link"))
		switch {
		case len(out) > most:
			return nil, fmt.Errorf("%w: more than %d objects", errdef.ErrTooLarge, most)
		case next == "":
			return out, nil
		}
		query.Set("cursor", next)
	}
}

// nextCursor reads the cursor of a Link field's next page (RFC 8288); empty for none.
func nextCursor(link string) string {
	for part := range strings.SplitSeq(link, ",") {
		target, rest, _ := strings.Cut(part, ";")
		if !strings.Contains(rest, `rel="next"`) {
			continue
		}
		if u, err := url.Parse(strings.Trim(strings.TrimSpace(target), "<>")); err == nil {
			return u.Query().Get("cursor")
		}
	}
	return ""
}

// Get implements Reader: the file as it was in the commit.
func (h *hub) Get(ctx context.Context, o Object, offset int64) (io.ReadCloser, error) {
	commit, _, _ := strings.Cut(o.ETag, "/")
	header := http.Header{}
	return partOf(offset, header, "Range", func() (*http.Response, error) {
		return h.get(ctx, h.repo+"/resolve/"+commit+"/"+o.Key, nil, header)
	})
}

// Put implements Bucket: nothing is written to a hub.
func (*hub) Put(context.Context, string, string, []byte) error {
	return errdef.New(errdef.ErrUnsupported, "objects aren't written to hf://")
}

func (h *hub) Close() { h.client.CloseIdleConnections() }

func (h *hub) get(ctx context.Context, path string, query url.Values, header http.Header) (*http.Response, error) {
	resp, err := fetch(ctx, h.client, under(h.service, path), query, header, func(r *http.Request) error {
		if h.token != "" {
			r.Header.Set("Authorization", "Bearer "+h.token)
		}
		return nil
	})
	if errors.Is(err, errdef.ErrDenied) && h.token == "" {
		err = fmt.Errorf("%w; no HF_TOKEN was found in a secret that the service account lists, nor in the environment", err)
	}
	return resp, err
}

// parseHub reads hf://owner/model[:revision].
func parseHub(address string) (Place, error) {
	rest, _ := strings.CutPrefix(address, Hub+"://")
	rest, revision, _ := strings.Cut(rest, ":")
	owner, model, ok := strings.Cut(rest, "/")
	if !ok || owner == "" || model == "" || strings.Contains(model, "/") || strings.ContainsAny(rest+revision, "?#%") || owner == ".." || model == ".." {
		return Place{}, errdef.New(errdef.ErrInvalid, "a model on the hub is named hf://<owner>/<model>, or with :<revision> behind")
	}
	return Place{Scheme: Hub, Bucket: rest, Revision: revision}, nil
}
