// Package identity authorises calls by the identity that a cloud gives the process: a role
// of AWS, a service account of Google Cloud, an identity of Microsoft Entra ID. The clouds'
// own SDKs find the credential, in all places where they look for one; this package renews
// it ahead of time, with one renewal for all calls, and keeps it out of what others see.
//
//	ids := identity.New(identity.Options{Redactor: secrets})
//	defer ids.Close()
//	auth, region, err := ids.AWS("", "https://bedrock-runtime.eu-central-1.amazonaws.com")
//	client, err := llm.NewProvider("bedrock", llm.ProviderConfig{Auth: auth, Region: region, ...})
//
// Nothing is sent before the first call. It is a package of its own, so that package llm
// needs no SDK.
package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/llm-stage/stage/llm/redact"
)

// Options configure the identities of a process.
type Options struct {
	// Redactor learns each credential before a call can send it. Without it the identities
	// make one of their own, which keeps the credentials out of their errors alone.
	Redactor *redact.Redactor
	// Roots are the certificate authorities that may sign the certificates of token
	// endpoints. By default they are those of the system.
	Roots *x509.CertPool
	// DialContext opens connections to token endpoints and metadata servers. The default
	// opens TCP connections.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
}

// Identities are the identities of one process: at most one for each cloud, which all
// clients share. They are safe for concurrent use, and must be closed with
// [Identities.Close].
type Identities struct {
	options Options

	mu        sync.Mutex
	aws       *keeper[awsKeys]
	awsRegion string // where STS is asked
	google    *keeper[googleToken]
	entra     map[string]*keeper[string] // by scope
}

// New makes the identities. It looks for no credential: each is found when it is first
// used.
func New(o Options) *Identities {
	if o.Redactor == nil {
		o.Redactor = new(redact.Redactor)
	}
	return &Identities{options: o, entra: make(map[string]*keeper[string])}
}

// Close ends the renewals that are in flight. Calls must have ended.
func (i *Identities) Close() {
	for _, k := range i.keepers() {
		k.close()
	}
}

// Problems returns why the last renewal of each identity failed, as long as it does.
func (i *Identities) Problems() (problems []error) {
	for _, k := range i.keepers() {
		if err := k.problem(); err != nil {
			problems = append(problems, err)
		}
	}
	return problems
}

// kept is what all keepers have in common.
type kept interface {
	close()
	problem() error
}

func (i *Identities) keepers() (all []kept) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.aws != nil {
		all = append(all, i.aws)
	}
	if i.google != nil {
		all = append(all, i.google)
	}
	for _, k := range i.entra {
		all = append(all, k)
	}
	return all
}

// connectTimeout bounds the set-up of a connection to a token endpoint.
const connectTimeout = 5 * time.Second

// prepare sets up a transport that reaches token endpoints and metadata servers.
func (i *Identities) prepare(t *http.Transport) {
	t.Proxy = proxy
	if t.DialContext = i.options.DialContext; t.DialContext == nil {
		t.DialContext = (&net.Dialer{Timeout: connectTimeout}).DialContext
	}
	t.TLSClientConfig = &tls.Config{RootCAs: i.options.Roots, MinVersion: tls.VersionTLS12}
	t.TLSHandshakeTimeout = connectTimeout
	t.DisableKeepAlives = true // the next renewal is an hour away
}

// client returns a client for token endpoints and metadata servers, whose requests end with
// ctx.
func (i *Identities) client(ctx context.Context) *http.Client {
	t := new(http.Transport)
	i.prepare(t)
	return &http.Client{Transport: &bounded{ctx, t}}
}

// bounded ends requests with a context. Some SDKs make requests without one.
type bounded struct {
	ctx  context.Context //nolint:containedctx // see above
	next http.RoundTripper
}

// RoundTrip implements [http.RoundTripper].
func (b *bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	return b.next.RoundTrip(r.WithContext(until(r.Context(), b.ctx)))
}

// until returns ctx, which also ends with end. What it takes is freed when end does.
func until(ctx, end context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	context.AfterFunc(end, func() { cancel(context.Cause(end)) })
	return ctx
}

// proxy returns the proxy of the environment, but none for metadata servers: those answer
// to the machine that asks, which a proxy is not.
func proxy(r *http.Request) (*url.URL, error) {
	host := r.URL.Hostname()
	if ip := net.ParseIP(host); ip != nil && (ip.IsLinkLocalUnicast() || ip.IsLoopback() ||
		ip.IsPrivate() && strings.Contains(host, ":")) {
		return nil, nil //nolint:nilnil // no proxy, as net/http has it
	}
	if host == "metadata.google.internal" || host == "metadata" {
		return nil, nil //nolint:nilnil // no proxy, as net/http has it
	}
	return http.ProxyFromEnvironment(r)
}

// rememberEnv keeps the secrets in variables out of errors. An endpoint may repeat what it
// was sent.
func (i *Identities) rememberEnv(names ...string) {
	for _, name := range names {
		i.options.Redactor.AddPassing(os.Getenv(name))
	}
}

// rememberFiles keeps the tokens in files out of errors.
func (i *Identities) rememberFiles(paths ...string) {
	for _, path := range paths {
		if text, err := os.ReadFile(path); path != "" && err == nil {
			i.options.Redactor.AddPassing(strings.TrimSpace(string(text)))
		}
	}
}

// bearer adds an access token to a request.
func bearer(r *http.Request, token string) {
	r.Header["Authorization"] = []string{"Bearer " + token}
}

// authorizer is an identity as clients use it, which is made of the keeper of its
// credential, and of how a credential authorises a request.
type authorizer[T comparable] struct {
	*keeper[T]

	account  string
	describe func() string
	apply    func(ctx context.Context, r *http.Request, body []byte, credential T) error
}

// Authorize implements [llm.Authorizer].
func (a *authorizer[T]) Authorize(
	ctx context.Context, r *http.Request, body []byte,
) (credential int, err error) {
	h, err := a.get(ctx)
	if err != nil {
		return 0, err
	}
	return h.number, a.apply(ctx, r, body, h.value)
}

// String names the identity, as far as the settings tell which it is, without any secret.
func (a *authorizer[T]) String() string { return a.cloud + ": " + a.describe() }

// Outdated implements [llm.Authorizer].
func (a *authorizer[T]) Outdated(credential int) bool { return a.outdated(credential) }

// Account implements [llm.Authorizer].
func (a *authorizer[T]) Account() string { return a.account }
