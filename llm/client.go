package llm

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/llm-stage/stage/llm/redact"
)

// Client calls one provider, one HTTP attempt per call. It is safe for concurrent
// use. Close it when no call is in flight.
type Client struct {
	provider  string
	wire      Wire
	cfg       ProviderConfig
	base      *url.URL
	own       *address // where requests for the client's own model go
	transport *http.Transport
	login     atomic.Pointer[login]
	loginMu   sync.Mutex  // held while a login is replaced
	timedOut  error       // wraps ErrTimeout
	proven    atomic.Bool // had a success
}

// ProviderConfig configures a [Client] for one of the providers known by name. The zero value of a field is its
// default, except where it is required.
type ProviderConfig struct {
	// BaseURL replaces the provider's own address: http or https, without credentials, query or fragment. Required for
	// "azure" (https://NAME.openai.azure.com) and "mock". For "openai" it may be any compatible server, with its version:
	// http://localhost:11434/v1.
	BaseURL string
	// APIKey is the credential. Required at the provider's own address and for "azure". Empty: none is sent.
	APIKey redact.Secret `json:"-"`
	// ExtraHeaders is a JSON object of strings, sent as headers with each request, in place of the client's own of the
	// same names. The names of the connection and the body's (Host, Content-Length, Content-Type, ...) are refused, and
	// with an APIKey the name that carries it. See [ValidateExtraHeaders]. Empty: none.
	ExtraHeaders redact.Secret `json:"-"`
	// Redactor knows the secrets that servers may repeat: nothing that [Client.Do] returns holds one. The client adds
	// APIKey, ExtraHeaders (but for well-known headers without secrets) and the credentials of the proxy. Nil: the client
	// makes its own.
	Redactor *redact.Redactor `json:"-"`
	// Model is called where the request names none; for "azure" the name of the deployment. Required, except for "mock".
	Model string
	// AzureAPIVersion, such as 2024-10-21, chooses Azure's dated path. Empty: its v1 path.
	AzureAPIVersion string
	// CAFile is a PEM file of further certificate authorities that may sign the server's certificate. Empty: those of the
	// system alone.
	CAFile string
	// Concurrency is the most calls in flight: further ones wait for a connection, within their time-out. Default 64.
	Concurrency int
	// Timeout bounds one attempt, connecting included. Default 120s.
	Timeout time.Duration
	// MaxReplyBytes bounds the body of a reply after decompression. Default 8 MiB.
	MaxReplyBytes int64
	// AcceptTruncated takes replies that end at the token limit as success.
	AcceptTruncated bool
	// DialContext opens connections. Nil: TCP.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
}

// SettingError is an invalid setting of a client.
type SettingError struct {
	// Setting is the name of the field: "BaseURL", "APIKey", "Model", ...
	Setting string
	// Err is the problem and how to fix it.
	Err error
}

// Error implements error.
func (e *SettingError) Error() string { return e.Setting + ": " + e.Err.Error() }

// Unwrap returns Err.
func (e *SettingError) Unwrap() error { return e.Err }

const (
	defaultConcurrency   = 64
	defaultTimeout       = 120 * time.Second
	defaultMaxReplyBytes = 8 << 20
	// connectTimeout bounds the set-up of one connection: a server that is up answers in far less.
	connectTimeout = 10 * time.Second
	// idleTimeout is below the 75 s after which nginx and others close an idle
	// connection, so that they rarely close one that we are about to use.
	idleTimeout = 60 * time.Second
	// errorBytes bounds the body of a reply that is not a success.
	errorBytes = 64 << 10
	// headerBytes bounds the header of a reply, informational replies (1xx)
	// before it included. Providers send a few KiB; the default is 10 MiB.
	headerBytes = 64 << 10
)

// NewProvider makes a client for a provider known by name. "mock" speaks [ChatCompletions] to the base URL, where
// package llmtest serves. It opens no connection. Its error joins all problems of name and cfg, each a [*SettingError]
// that names the field of cfg (or "Provider").
func NewProvider(name string, cfg ProviderConfig) (*Client, error) {
	p, ok := LookupProvider(name)
	if !ok {
		return nil, &SettingError{Setting: "Provider", Err: fmt.Errorf("%q is unknown; use one of %s", name, strings.Join(Providers(), ", "))}
	}
	var problems []error
	check := func(setting string, err error) {
		if err != nil {
			problems = append(problems, &SettingError{Setting: setting, Err: err})
		}
	}
	if !cfg.APIKey.IsSet() && p.needsKey(cfg.BaseURL) {
		check("APIKey", errors.New("missing; "+name+" needs one"))
	}
	cfg.BaseURL = cmp.Or(cfg.BaseURL, p.BaseURL)
	cfg.Model = cmp.Or(cfg.Model, p.Model)
	c := &Client{provider: name, wire: p.wire(&cfg), cfg: cfg}
	roots, err := rootCAs(cfg.CAFile)
	check("CAFile", err)
	if cfg.Model == "" {
		check("Model", errors.New("missing; name the model to call"))
	}
	if cfg.Concurrency < 0 {
		check("Concurrency", fmt.Errorf("%d is negative", cfg.Concurrency))
	}
	if cfg.Timeout < 0 {
		check("Timeout", fmt.Errorf("%v is negative", cfg.Timeout))
	}
	if cfg.MaxReplyBytes < 0 {
		check("MaxReplyBytes", fmt.Errorf("%d is negative", cfg.MaxReplyBytes))
	}
	c.base, err = parseBaseURL(p.base(cfg.BaseURL))
	check("BaseURL", err)
	first, ofLogin := readLogin(cfg.APIKey, cfg.ExtraHeaders)
	if err := errors.Join(append(problems, ofLogin...)...); err != nil {
		return nil, err
	}
	c.cfg.Concurrency = cmp.Or(cfg.Concurrency, defaultConcurrency)
	c.cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	c.cfg.MaxReplyBytes = cmp.Or(cfg.MaxReplyBytes, defaultMaxReplyBytes)
	if cfg.Redactor == nil {
		c.cfg.Redactor = new(redact.Redactor)
	}
	if c.own, err = c.address(cfg.Model); err != nil {
		return nil, &SettingError{Setting: "Model", Err: err}
	}
	c.timedOut = fmt.Errorf("%w after %v", ErrTimeout, c.cfg.Timeout)
	c.transport = c.newTransport(roots)
	if err := c.use(first); err != nil {
		return nil, err
	}
	c.cfg.APIKey, c.cfg.ExtraHeaders = redact.Secret{}, redact.Secret{} // they live in login alone
	return c, nil
}

func (c *Client) newTransport(roots *x509.CertPool) *http.Transport {
	dial := c.cfg.DialContext
	if dial == nil {
		dialer := &net.Dialer{
			Timeout:   min(connectTimeout, c.cfg.Timeout/2),
			KeepAlive: 15 * time.Second,
		}
		dial = dialer.DialContext
	}
	// HTTP/1.1 alone: with as many connections as calls in flight nothing waits
	// for anything else, and a lost connection costs one call.
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         dial,
		TLSClientConfig:     &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: connectTimeout,
		Protocols:           protocols,
		MaxIdleConns:        c.cfg.Concurrency,
		MaxIdleConnsPerHost: c.cfg.Concurrency,
		MaxConnsPerHost:     c.cfg.Concurrency,
		// Half of the default: with one connection a call in flight they are a quarter of its memory. What is larger passes
		// them by, as a body does that is read or written in one piece.
		ReadBufferSize:  2 << 10,
		WriteBufferSize: 2 << 10,
		IdleConnTimeout: idleTimeout,

		MaxResponseHeaderBytes: headerBytes,
		OnProxyConnectResponse: func(_ context.Context, _ *url.URL, _ *http.Request, r *http.Response) error {
			if r.StatusCode != http.StatusOK {
				return &proxyError{status: r.StatusCode}
			}
			return nil
		},
	}
}

// Provider returns the name of the provider.
func (c *Client) Provider() string { return c.provider }

// Model returns the model that is called where a request names none.
func (c *Client) Model() string { return c.cfg.Model }

// Close closes the idle connections. Calls in flight continue; a later Do works and opens new ones.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

func parseBaseURL(raw string) (*url.URL, error) {
	if raw == "" {
		return nil, errors.New("missing; give the address of the server, such as http://localhost:11434/v1")
	}
	u, err := url.Parse(strings.TrimRight(raw, "/"))
	switch {
	case err != nil:
		return nil, errors.New("not a URL") // the error of url.Parse repeats it, credentials and all
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("scheme %q; start it with http:// or https://", u.Scheme)
	case u.Hostname() == "":
		return nil, errors.New("has no host")
	case u.User != nil:
		return nil, errors.New("contains credentials; give them as the API key")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return nil, errors.New("contains a query or a fragment; remove it")
	}
	return u, nil
}

// rootCAs returns the system's certificate authorities and those in the PEM file at path, or nil, for the system's
// alone, where path is empty.
func rootCAs(path string) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if len(pem) > 0 && !pool.AppendCertsFromPEM(pem) {
		return nil, errors.New("contains no PEM certificate")
	}
	return pool, nil
}

// Call makes one attempt at a request: [Client.Prepare], then [Client.Do]. It implements [BatchCaller].
func (c *Client) Call(ctx context.Context, r *Request) (*Reply, error) {
	p, err := c.Prepare(r)
	if err != nil {
		return nil, err
	}
	x, err := c.Do(ctx, p)
	return x.Reply, err
}
