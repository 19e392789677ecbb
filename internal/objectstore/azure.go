package objectstore

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// AzureCredentials say how Azure Blob Storage is reached. Of the ways to prove who asks, the first
// that is there is used: AccessKey, Token, ClientID with ClientSecret and Tenant.
type AzureCredentials struct {
	// Account is the storage account; an address that names one goes before it.
	Account string
	// AccessKey is the account's key, in base64.
	AccessKey string
	// Token is a token that somebody else renews.
	Token string
	// Tenant, ClientID and ClientSecret are an application's.
	Tenant, ClientID, ClientSecret string
	// Endpoint is the address of the account's blobs; empty for
	// https://<account>.blob.core.windows.net.
	Endpoint string
	// Authority is where applications get tokens; empty for login.microsoftonline.com.
	Authority string
	// Anonymous proves nothing, for containers that anybody may read.
	Anonymous bool
}

type azureBucket struct {
	client    *http.Client
	container *url.URL
	account   string
	key       []byte             // nil where tokens are used
	tokens    oauth2.TokenSource // nil where the key is used, or nothing is proved
	now       func() time.Time
}

func openAzure(p Place, c Credentials) (Bucket, error) {
	cred := c.Azure
	if cred == nil {
		return nil, errdef.New(errdef.ErrInvalid, "there are no credentials for abfs")
	}
	client, err := newClient("", true)
	if err != nil {
		return nil, err
	}
	b := &azureBucket{client: client, account: cmp.Or(p.Account, cred.Account), now: time.Now}
	if b.account == "" && cred.Endpoint == "" {
		return nil, errdef.New(errdef.ErrInvalid, "no storage account is named: write abfs://container@account.dfs.core.windows.net/folder, or give AZURE_ACCOUNT_NAME")
	}
	service, err := serviceAddress(cmp.Or(cred.Endpoint, b.account+".blob.core.windows.net"))
	if err != nil {
		return nil, err
	}
	b.container = under(service, p.Bucket)
	switch {
	case cred.Anonymous:
	case cred.AccessKey != "":
		if b.key, err = base64.StdEncoding.DecodeString(cred.AccessKey); err != nil || b.account == "" {
			return nil, errdef.New(errdef.ErrInvalid, "AZURE_STORAGE_ACCESS_KEY has to be base64, and AZURE_ACCOUNT_NAME has to say whose it is")
		}
	case cred.Token != "":
		b.tokens = oauth2.StaticTokenSource(&oauth2.Token{AccessToken: cred.Token})
	case cred.ClientID != "" && cred.ClientSecret != "" && cred.Tenant != "":
		authority, err := serviceAddress(cmp.Or(cred.Authority, "login.microsoftonline.com"))
		if err != nil {
			return nil, err
		}
		conf := &clientcredentials.Config{
			ClientID: cred.ClientID, ClientSecret: cred.ClientSecret, AuthStyle: oauth2.AuthStyleInParams,
			TokenURL: under(authority, cred.Tenant+"/oauth2/v2.0/token").String(), Scopes: []string{"https://storage.azure.com/.default"},
		}
		b.tokens = conf.TokenSource(withClient(client))
	default:
		return nil, errdef.New(errdef.ErrInvalid, "the credentials for abfs hold neither an access key, nor a token, nor an application's tenant, id and secret")
	}
	return b, nil
}

func (b *azureBucket) Close() { b.client.CloseIdleConnections() }

// azureVersion is the version of the API that is spoken.
const azureVersion = "2021-08-06"

// Put implements Bucket (Blob service REST API, Put Blob).
func (b *azureBucket) Put(ctx context.Context, key, contentType string, data []byte) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, "", http.NoBody)
	if err != nil {
		return err
	}
	r.URL = under(b.container, key)
	r.Host = r.URL.Host
	for name, value := range map[string]string{
		"Content-Type": contentType, "X-Ms-Blob-Type": "BlockBlob", "X-Ms-Version": azureVersion, "X-Ms-Date": b.now().UTC().Format(http.TimeFormat),
	} {
		r.Header.Set(name, value)
	}
	if b.key != nil {
		b.sign(r, len(data))
	} else if err := authorize(r, b.tokens); err != nil {
		return err
	}
	return send(b.client, r, data)
}

// sign adds the signature of the account's key ("Authorize with Shared Key", Blob service).
func (b *azureBucket) sign(r *http.Request, size int) {
	length := ""
	if size > 0 {
		length = strconv.Itoa(size)
	}
	var fields []string
	for name := range r.Header {
		if lower := strings.ToLower(name); strings.HasPrefix(lower, "x-ms-") {
			fields = append(fields, lower+":"+r.Header.Get(name)+"\n")
		}
	}
	slices.Sort(fields)
	// Encoding, language, length, MD5, type, date, the four conditions, and range.
	text := strings.Join([]string{r.Method, "", "", length, "", r.Header.Get("Content-Type"), "", "", r.Header.Get("If-Match"), "", "", "", ""}, "\n") +
		strings.Join(fields, "") + "/" + b.account + r.URL.EscapedPath()
	query := r.URL.Query()
	for _, name := range slices.Sorted(maps.Keys(query)) {
		text += "\n" + strings.ToLower(name) + ":" + strings.Join(query[name], ",")
	}
	h := hmac.New(sha256.New, b.key)
	h.Write([]byte(text))
	r.Header.Set("Authorization", "SharedKey "+b.account+":"+base64.StdEncoding.EncodeToString(h.Sum(nil)))
}
