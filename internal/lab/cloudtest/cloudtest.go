// Package cloudtest plays the parts of AWS, Google Cloud and Microsoft Entra ID that issue
// credentials, and checks the requests that are authorised by them. What it issues expires,
// and it refuses, throttles or hangs on demand. It computes signatures by itself, from the
// published rules, not by an SDK.
//
//	cloud := cloudtest.New()
//	defer cloud.Close()
//	t.Setenv("GCE_METADATA_HOST", cloud.Host())
//	llm := cloud.Guard(server)
package cloudtest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
)

// Behaviour is how a cloud answers those who ask for a credential.
type Behaviour int

// The behaviours of a cloud.
const (
	Works     Behaviour = iota
	Refuses             // as if the role or the client did not exist
	Throttles           // with 429
	Hangs               // until the client goes away
	Expires             // issues what has expired already
)

// Cloud issues credentials: each time another one, with the number of those issued so far
// in it. Safe for concurrent use.
type Cloud struct {
	mu        sync.Mutex
	behaviour Behaviour
	throttled int // requests that are throttled before it works
	life      time.Duration
	asked     int
	issued    int
	dead      map[int]bool      // revoked, by number
	ends      map[int]time.Time // by number

	plain, secure *llmtest.PipeListener
	servers       []*http.Server
	wg            sync.WaitGroup
	cert          tls.Certificate
	roots         *x509.CertPool
}

// Host is the name of the cloud's servers, which serve HTTP on port 80 and HTTPS on 443.
const Host = "cloud.example.com"

// New makes a cloud whose credentials live for an hour. It is reached by
// [Cloud.DialContext] without any socket, so that it works in a testing/synctest bubble, or
// served as a handler.
func New() *Cloud {
	c := &Cloud{
		life: time.Hour, dead: make(map[int]bool), ends: make(map[int]time.Time),
		plain: llmtest.NewPipeListener(), secure: llmtest.NewPipeListener(), roots: x509.NewCertPool(),
	}
	known := httptest.NewUnstartedServer(nil) // for its certificate, which is good for *.example.com
	known.StartTLS()
	c.cert = known.TLS.Certificates[0]
	c.roots.AddCert(known.Certificate())
	known.Close()
	for _, l := range []net.Listener{c.plain, tls.NewListener(c.secure, &tls.Config{Certificates: []tls.Certificate{c.cert}})} {
		server := &http.Server{Handler: c, ReadHeaderTimeout: time.Minute}
		c.servers = append(c.servers, server)
		c.wg.Go(func() { _ = server.Serve(l) })
	}
	return c
}

// Roots returns the authority that has signed the certificate of the cloud.
func (c *Cloud) Roots() *x509.CertPool { return c.roots }

// Certificate returns the certificate of the cloud, which is its own authority.
func (c *Cloud) Certificate() tls.Certificate { return c.cert }

// DialContext connects to the cloud, whatever the address.
func (c *Cloud) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if strings.HasSuffix(address, ":443") {
		return c.secure.DialContext(ctx, network, address)
	}
	return c.plain.DialContext(ctx, network, address)
}

// Plain is what connects to the cloud over HTTP.
func (c *Cloud) Plain() *llmtest.PipeListener { return c.plain }

// Close ends the servers.
func (c *Cloud) Close() {
	for _, s := range c.servers {
		_ = s.Close()
	}
	c.wg.Wait()
}

// Set changes how the cloud answers from now on.
func (c *Cloud) Set(b Behaviour) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.behaviour = b
}

// Throttle has the next n requests for a credential be answered with 429.
func (c *Cloud) Throttle(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.throttled = n
}

// SetLife changes how long the credentials live that are issued from now on.
func (c *Cloud) SetLife(life time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.life = life
}

// Revoke has the guarded server refuse all that was issued so far.
func (c *Cloud) Revoke() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n := 1; n <= c.issued; n++ {
		c.dead[n] = true
	}
}

// Asked returns how often the cloud was asked for a credential, and how many it has issued.
func (c *Cloud) Asked() (asked, issued int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked, c.issued
}

// grant decides about one request for a credential: the number of the new one and its end,
// or a status.
func (c *Cloud) grant(ctx context.Context) (number int, ends time.Time, status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	b := c.behaviour
	if c.throttled > 0 {
		c.throttled--
		b = Throttles
	}
	switch b {
	case Refuses:
		return 0, ends, http.StatusForbidden
	case Throttles:
		return 0, ends, http.StatusTooManyRequests
	case Hangs:
		c.mu.Unlock()
		<-ctx.Done()
		c.mu.Lock()
		return 0, ends, http.StatusGatewayTimeout
	case Works, Expires:
	}
	c.issued++
	ends = time.Now().Add(c.life)
	if b == Expires {
		ends = time.Now().Add(-time.Minute)
	}
	c.ends[c.issued] = ends
	return c.issued, ends, 0
}

// check returns why the credential of this number is no good.
func (c *Cloud) check(number int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	ends, known := c.ends[number]
	switch {
	case !known:
		return fmt.Errorf("credential %d was never issued", number)
	case c.dead[number]:
		return fmt.Errorf("credential %d is revoked", number)
	case !time.Now().Before(ends):
		return fmt.Errorf("credential %d has expired", number)
	}
	return nil
}

// Secrets of the credential of a number.
func accessKey(n int) string { return fmt.Sprintf("ASIACLOUDTEST%07d", n) }
func secretKey(n int) string { return fmt.Sprintf("secret-key-of-cloudtest/%07d", n) }
func session(n int) string   { return fmt.Sprintf("session-token-of-cloudtest/%07d", n) }
func token(n int) string     { return fmt.Sprintf("access-token-of-cloudtest.%07d", n) }

// What the cloud asks of those who want a credential.
const (
	Assertion    = "eyJhbGciOiJub25lIn0.projected-token-of-a-service-account.c2ln" // a web identity
	AgentToken   = "authorization-token-of-the-pod-identity-agent"
	ClientSecret = "client-secret-of-an-application"
	Tenant       = "11111111-2222-3333-4444-555555555555"
)

// ServeHTTP implements [http.Handler].
func (c *Cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	form, _ := url.ParseQuery(string(body))
	switch path := r.URL.Path; {
	case form.Get("Action") == "AssumeRoleWithWebIdentity":
		c.sts(w, r, form)
	case path == "/latest/api/token" && r.Method == http.MethodPut:
		w.Header().Set("X-Aws-Ec2-Metadata-Token-Ttl-Seconds", "21600")
		_, _ = io.WriteString(w, "imds-token-of-cloudtest")
	case strings.HasPrefix(path, "/latest/meta-data/iam/security-credentials"):
		c.imds(w, r)
	case path == "/v1/credentials":
		c.agent(w, r)
	case strings.HasPrefix(path, "/computeMetadata/v1/"):
		c.metadata(w, r)
	case path == "/token", path == "/v1/token":
		c.googleToken(w, r, form)
	case strings.HasSuffix(path, "/.well-known/openid-configuration"):
		at := "https://" + r.Host + "/" + Tenant
		writeJSON(w, 200, map[string]any{
			"token_endpoint": at + "/oauth2/v2.0/token", "authorization_endpoint": at + "/oauth2/v2.0/authorize", "issuer": at + "/v2.0",
		})
	case strings.HasSuffix(path, "/oauth2/v2.0/token"):
		c.entra(w, r, form)
	case path == "/msi/token":
		c.managedIdentity(w, r)
	default:
		http.Error(w, "cloudtest: no such thing: "+r.Method+" "+path, http.StatusNotFound)
	}
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	text, _ := json.Marshal(v)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(text)
}
