package cloudtest

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Project is the project of the machine.
const Project = "project-of-cloudtest"

// metadata is the metadata server of Google Cloud.
func (c *Cloud) metadata(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Metadata-Flavor") != "Google" {
		http.Error(w, "Missing Metadata-Flavor:Google header", http.StatusForbidden)
		return
	}
	w.Header().Set("Metadata-Flavor", "Google")
	switch path := strings.TrimPrefix(r.URL.Path, "/computeMetadata/v1/"); path {
	case "project/project-id":
		_, _ = io.WriteString(w, Project)
	case "instance/service-accounts/default/token":
		c.writeToken(w, r)
	default:
		http.NotFound(w, r)
	}
}

// writeToken answers with an access token, or with an error of OAuth.
func (c *Cloud) writeToken(w http.ResponseWriter, r *http.Request) {
	n, ends, status := c.grant(r.Context())
	if status != 0 {
		writeJSON(w, status, map[string]any{"error": "access_denied", "error_description": "AADSTS70000: " + http.StatusText(status), "error_codes": []int{70000}})
		return
	}
	writeJSON(w, 200, map[string]any{
		"access_token": token(n), "token_type": "Bearer", "expires_in": int(time.Until(ends).Seconds()),
		"issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
	})
}

// googleToken is the token endpoint of Google, for keys of service accounts and for the
// tokens of other identity providers.
func (c *Cloud) googleToken(w http.ResponseWriter, r *http.Request, form url.Values) {
	var err error
	switch grant := form.Get("grant_type"); grant {
	case "urn:ietf:params:oauth:grant-type:jwt-bearer":
		err = verifyJWT(form.Get("assertion"))
	case "urn:ietf:params:oauth:grant-type:token-exchange":
		if form.Get("subject_token") != Assertion {
			err = fmt.Errorf("the subject token %q is not good", form.Get("subject_token"))
		}
	default:
		err = fmt.Errorf("unknown grant type %q", grant)
	}
	if err != nil {
		writeJSON(w, 400, map[string]any{"error": "invalid_grant", "error_description": err.Error()})
		return
	}
	c.writeToken(w, r)
}

// serviceKey is the key of the service account.
var serviceKey = sync.OnceValue(func() *rsa.PrivateKey {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return key
})

// ServiceAccount returns a credential file of a service account.
func ServiceAccount(tokenURL string) []byte {
	der, _ := x509.MarshalPKCS8PrivateKey(serviceKey())
	text, _ := json.Marshal(map[string]string{
		"type": "service_account", "project_id": Project, "private_key_id": "1", "client_email": "stage@" + Project + ".iam.gserviceaccount.com",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), "token_uri": tokenURL,
	})
	return text
}

// ExternalAccount returns a credential file of workload identity federation, whose tokens
// are in the file at path.
func ExternalAccount(tokenURL, path string) []byte {
	text, _ := json.Marshal(map[string]any{
		"type": "external_account", "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q",
		"subject_token_type": "urn:ietf:params:oauth:token-type:jwt", "token_url": tokenURL, "quota_project_id": Project,
		"credential_source": map[string]string{"file": path},
	})
	return text
}

// verifyJWT checks what a service account has signed.
func verifyJWT(text string) error {
	parts := strings.Split(text, ".")
	if len(parts) != 3 {
		return errors.New("the assertion is no JWT")
	}
	claims, _ := base64.RawURLEncoding.DecodeString(parts[1])
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	sig, _ := base64.RawURLEncoding.DecodeString(parts[2])
	if err := rsa.VerifyPKCS1v15(&serviceKey().PublicKey, crypto.SHA256, sum[:], sig); err != nil {
		return errors.New("the signature of the assertion is not good")
	}
	if !bytes.Contains(claims, []byte("https://www.googleapis.com/auth/cloud-platform")) {
		return fmt.Errorf("the scope is missing in %s", claims)
	}
	return nil
}

// entra is the token endpoint of Microsoft Entra ID.
func (c *Cloud) entra(w http.ResponseWriter, r *http.Request, form url.Values) {
	good := form.Get("client_secret") == ClientSecret || form.Get("client_assertion") == Assertion
	if !good || !strings.HasPrefix(r.URL.Path, "/"+Tenant+"/") || !strings.Contains(form.Get("scope"), "https://cognitiveservices.azure.com/.default") {
		writeJSON(w, 401, map[string]any{
			"error": "invalid_client", "error_description": "AADSTS7000215: Invalid client secret provided: " + form.Get("client_secret"), "error_codes": []int{7000215},
		})
		return
	}
	c.writeToken(w, r)
}

// managedIdentity is the endpoint of a managed identity in App Service and Container Apps.
func (c *Cloud) managedIdentity(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("X-Identity-Header") != ClientSecret || r.URL.Query().Get("resource") != "https://cognitiveservices.azure.com" {
		writeJSON(w, 401, map[string]any{"statusCode": 401, "message": "unauthorized"})
		return
	}
	n, ends, status := c.grant(r.Context())
	if status != 0 {
		writeJSON(w, status, map[string]any{"statusCode": status, "message": http.StatusText(status)})
		return
	}
	writeJSON(w, 200, map[string]any{
		"access_token": token(n), "token_type": "Bearer", "expires_on": strconv.FormatInt(ends.Unix(), 10), "resource": "https://cognitiveservices.azure.com",
	})
}

// VerifyToken checks the access token in the header of a request.
func (c *Cloud) VerifyToken(h http.Header) error {
	n, err := strconv.Atoi(strings.TrimPrefix(h.Get("Authorization"), "Bearer access-token-of-cloudtest."))
	if err != nil {
		return errors.New("no access token of this cloud")
	}
	return c.check(n)
}

// Guard returns a handler that passes on what is authorised, by a signature for this
// service in this region, or, if service is empty, by an access token. What it refuses it
// repeats, as careless servers do.
func (c *Cloud) Guard(service, region string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil && service != "" {
			err = c.VerifySignature(r, body, service, region)
		} else if err == nil {
			err = c.VerifyToken(r.Header)
		}
		if err != nil {
			status := http.StatusUnauthorized
			if service != "" {
				status = http.StatusForbidden
			}
			message := fmt.Sprintf("%v (Authorization: %s, %s)", err, r.Header.Get("Authorization"), r.Header.Get("X-Amz-Security-Token"))
			writeJSON(w, status, map[string]any{"error": map[string]any{"message": message, "type": "authentication_error"}})
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}
