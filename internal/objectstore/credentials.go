package objectstore

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"path"
	"strconv"
	"strings"

	"stationmaster.dev/stationmaster/internal/errdef"
)

// Credentials are those for one of the stores; the others are nil.
type Credentials struct {
	S3     *S3Credentials
	Google *GoogleCredentials
	Azure  *AzureCredentials
	Hub    *HubCredentials
}

// LogValue implements slog.LogValuer: credentials never reach a log.
func (c Credentials) LogValue() slog.Value { return slog.StringValue("(credentials)") }

// fits reports whether they are for a scheme.
func (c Credentials) fits(scheme string) bool {
	switch scheme {
	case S3:
		return c.S3 != nil
	case Google:
		return c.Google != nil
	case Azure:
		return c.Azure != nil
	case Hub:
		return c.Hub != nil
	}
	return false
}

// overridden returns them with another region and endpoint where these aren't empty.
func (c Credentials) overridden(region, endpoint string) Credentials {
	if c.S3 != nil {
		s := *c.S3
		s.Region, s.Endpoint = cmp.Or(region, s.Region), cmp.Or(endpoint, s.Endpoint)
		c.S3 = &s
	}
	if c.Google != nil {
		g := *c.Google
		g.Endpoint = cmp.Or(endpoint, g.Endpoint)
		c.Google = &g
	}
	if c.Azure != nil {
		a := *c.Azure
		a.Endpoint = cmp.Or(endpoint, a.Endpoint)
		c.Azure = &a
	}
	return c
}

// Secret is what a secret of a namespace holds.
type Secret struct {
	Annotations map[string]string
	Data        map[string][]byte
}

// FromSecret reads credentials from a secret as KServe has them for a service account
// (pkg/credentials): keys of the data say which store it is for. Credentials are empty where it is
// for none that is known here.
func FromSecret(s Secret) Credentials {
	data := func(names ...string) string {
		for _, name := range names {
			if v := strings.TrimSpace(string(s.Data[name])); v != "" {
				return v
			}
		}
		return ""
	}
	// An annotation goes before the data.
	said := func(annotation, name string) string {
		return cmp.Or(s.Annotations["serving.kserve.io/"+annotation], data(name))
	}
	file := s.Data["gcloud-application-credentials.json"]
	if secretKey := data("awsSecretAccessKey", "AWS_SECRET_ACCESS_KEY"); secretKey != "" {
		return Credentials{S3: &S3Credentials{
			AccessKey: data("awsAccessKeyID", "AWS_ACCESS_KEY_ID"), SecretKey: secretKey, SessionToken: data("awsSessionToken", "AWS_SESSION_TOKEN"),
			Region:      said("s3-region", "AWS_DEFAULT_REGION"),
			Endpoint:    withScheme(cmp.Or(said("s3-endpoint", "S3_ENDPOINT"), data("AWS_ENDPOINT_URL")), said("s3-usehttps", "S3_USE_HTTPS")),
			VirtualHost: said("s3-usevirtualbucket", "S3_USER_VIRTUAL_BUCKET"),
			Accelerate:  truth(said("s3-useaccelerate", "S3_USE_ACCELERATE"), false),
			Anonymous:   truth(said("s3-useanoncredential", "awsAnonymousCredential"), false),
			Insecure:    !truth(said("s3-verifyssl", "S3_VERIFY_SSL"), true),
			CAConfigMap: s.Annotations["serving.kserve.io/s3-cabundle-configmap"], CAKey: caKey(s.Annotations["serving.kserve.io/s3-cabundle"]),
		}}
	}
	switch {
	case len(file) > 0:
		return Credentials{Google: &GoogleCredentials{File: file}}
	case data("AZ_CLIENT_ID", "AZURE_CLIENT_ID", "AZURE_ACCESS_TOKEN", "AZURE_STORAGE_ACCESS_KEY") != "":
		return Credentials{Azure: azureFrom(data)}
	case data("HF_TOKEN") != "":
		return Credentials{Hub: &HubCredentials{Token: data("HF_TOKEN"), Endpoint: data("HF_ENDPOINT")}}
	}
	return Credentials{}
}

// caKey is the key of a config map that a bundle's path in KServe's container stands for; empty for none.
func caKey(at string) string {
	if at = strings.TrimSpace(at); at == "" {
		return ""
	}
	return path.Base(at)
}

func azureFrom(value func(names ...string) string) *AzureCredentials {
	return &AzureCredentials{
		Account: value("AZURE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT"), AccessKey: value("AZURE_STORAGE_ACCESS_KEY"), Token: value("AZURE_ACCESS_TOKEN"),
		Tenant: value("AZ_TENANT_ID", "AZURE_TENANT_ID"), ClientID: value("AZ_CLIENT_ID", "AZURE_CLIENT_ID"),
		ClientSecret: value("AZ_CLIENT_SECRET", "AZURE_CLIENT_SECRET"),
		Endpoint:     value("AZURE_SERVICE_URL"), Authority: value("AZURE_AUTHORITY_HOST"),
	}
}

// FromEntry reads credentials from an entry of KServe's secret storage-config: JSON with the type
// s3. An error, of errdef.ErrInvalid or errdef.ErrUnsupported, shows nothing of the entry but its type.
func FromEntry(entry []byte) (Credentials, error) {
	var e struct {
		Type            string `json:"type"`
		AccessKeyID     string `json:"access_key_id"`
		SecretAccessKey string `json:"secret_access_key"`
		SessionToken    string `json:"session_token"`
		EndpointURL     string `json:"endpoint_url"`
		Region          string `json:"region"`
		Anonymous       string `json:"anonymous"`
		VerifySSL       string `json:"verify_ssl"`
		Certificate     string `json:"certificate"`
		CABundle        string `json:"ca_bundle"`
		CAConfigMap     string `json:"cabundle_configmap"`
	}
	if json.Unmarshal(entry, &e) != nil {
		return Credentials{}, errdef.New(errdef.ErrInvalid, "it is no JSON object of strings")
	}
	if e.Type != S3 {
		return Credentials{}, errdef.New(errdef.ErrUnsupported, fmt.Sprintf("its type is %q; only s3 is known", e.Type))
	}
	return Credentials{S3: &S3Credentials{
		AccessKey: e.AccessKeyID, SecretKey: e.SecretAccessKey, SessionToken: e.SessionToken, Region: e.Region, Endpoint: e.EndpointURL,
		Anonymous: truth(e.Anonymous, false), Insecure: !truth(e.VerifySSL, true), CABundle: e.Certificate,
		CAConfigMap: e.CAConfigMap, CAKey: caKey(e.CABundle),
	}}, nil
}

// FromEnv reads credentials for a scheme from the environment, by the names that the stores' own
// tools have; empty where they aren't there. readFile reads the file that
// GOOGLE_APPLICATION_CREDENTIALS names, that of AWS_CA_BUNDLE, and the token of
// AWS_WEB_IDENTITY_TOKEN_FILE each time that one is needed; its errors come back.
func FromEnv(scheme string, getenv func(string) string, readFile func(string) ([]byte, error)) (Credentials, error) {
	value := func(names ...string) string {
		for _, name := range names {
			if v := getenv(name); v != "" {
				return v
			}
		}
		return ""
	}
	switch scheme {
	case S3:
		c := S3Credentials{
			AccessKey: value("AWS_ACCESS_KEY_ID"), SecretKey: value("AWS_SECRET_ACCESS_KEY"), SessionToken: value("AWS_SESSION_TOKEN"),
			Region:      value("AWS_REGION", "AWS_DEFAULT_REGION"),
			Endpoint:    cmp.Or(value("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), withScheme(value("S3_ENDPOINT"), value("S3_USE_HTTPS"))),
			VirtualHost: value("S3_USER_VIRTUAL_BUCKET"), Accelerate: truth(value("S3_USE_ACCELERATE"), false),
			Anonymous: truth(value("awsAnonymousCredential"), false), Insecure: !truth(value("S3_VERIFY_SSL"), true),
		}
		if name := value("AWS_CA_BUNDLE"); name != "" {
			bundle, err := readFile(name)
			if err != nil {
				return Credentials{}, fmt.Errorf("%w: AWS_CA_BUNDLE: %w", errdef.ErrInvalid, err)
			}
			c.CABundle = string(bundle)
		}
		if role, file := value("AWS_ROLE_ARN"), value("AWS_WEB_IDENTITY_TOKEN_FILE"); role != "" && file != "" && c.SecretKey == "" && !c.Anonymous {
			c.Role = &WebIdentity{
				Role: role, Session: value("AWS_ROLE_SESSION_NAME"), Endpoint: value("AWS_ENDPOINT_URL_STS"),
				Token: func() ([]byte, error) { return readFile(file) },
			}
		}
		if c.SecretKey != "" || c.Anonymous || c.Role != nil {
			return Credentials{S3: &c}, nil
		}
	case Google:
		c := GoogleCredentials{Endpoint: value("STORAGE_EMULATOR_HOST")}
		if c.Endpoint != "" {
			c.Endpoint = withScheme(c.Endpoint, "0")
		}
		if name := value("GOOGLE_APPLICATION_CREDENTIALS"); name != "" {
			var err error
			if c.File, err = readFile(name); err != nil {
				return Credentials{}, fmt.Errorf("%w: GOOGLE_APPLICATION_CREDENTIALS: %w", errdef.ErrInvalid, err)
			}
		}
		if c.Endpoint != "" || len(c.File) > 0 {
			return Credentials{Google: &c}, nil
		}
	case Azure:
		if c := azureFrom(value); c.AccessKey != "" || c.Token != "" || c.ClientID != "" {
			return Credentials{Azure: c}, nil
		}
	case Hub:
		if c := (HubCredentials{Token: value("HF_TOKEN"), Endpoint: value("HF_ENDPOINT")}); c != (HubCredentials{}) {
			return Credentials{Hub: &c}, nil
		}
	}
	return Credentials{}, nil
}

// withScheme is an endpoint's address; one that says nothing of it is https unless https is "0".
func withScheme(endpoint, https string) string {
	if endpoint = strings.TrimSpace(endpoint); endpoint == "" || strings.Contains(endpoint, "://") {
		return endpoint
	}
	if !truth(https, true) {
		return "http://" + endpoint
	}
	return "https://" + endpoint
}

// truth reads "1", "true", "0", "false" and the like; other is for what is empty or unreadable.
func truth(text string, other bool) bool {
	v, err := strconv.ParseBool(strings.ToLower(text))
	if err != nil {
		return other
	}
	return v
}
