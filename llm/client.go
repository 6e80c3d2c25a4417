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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/llm-stage/stage/llm/redact"
)

// Client calls one provider, one HTTP attempt per call. It is safe for concurrent
// use. Close it when no call is in flight.
type Client struct {
	cfg       ClientConfig
	base      *url.URL
	own       *address // where requests for the client's own model go
	transport *http.Transport
	login     atomic.Pointer[login]
	loginMu   sync.Mutex  // held while a login is replaced
	timedOut  error       // wraps ErrTimeout
	proven    atomic.Bool // had a success
}

// ClientConfig configures a [Client]. The zero value of a field is its default,
// except where it is required.
type ClientConfig struct {
	// Provider is the name in errors, events and metrics. Required.
	Provider string
	// Wire is the wire format. Required.
	Wire Wire
	// BaseURL is what the wire format's paths are appended to, http or https,
	// without credentials, query or fragment. Required.
	BaseURL string
	// APIKey is the credential. Empty: none is sent.
	APIKey redact.Secret `json:"-"`
	// ExtraHeaders is a JSON object of strings, sent as headers with each
	// request, in place of the client's own of the same names. The names of the
	// connection and the body's (Host, Content-Length, Content-Type, ...) are
	// refused, and with an APIKey the name that carries it. See
	// [ValidateExtraHeaders]. Empty: none.
	ExtraHeaders redact.Secret `json:"-"`
	// Redactor knows the secrets that servers may repeat: nothing that [Client.Do]
	// returns holds one. The client adds APIKey, ExtraHeaders (but for well-known
	// headers without secrets) and the credentials of the proxy. Nil: a Redactor
	// of the client's own.
	Redactor *redact.Redactor `json:"-"`
	// Model is called where the request names none. Required.
	Model string
	// Concurrency is the most calls in flight: further ones wait for a
	// connection, within their time-out. Default 64.
	Concurrency int
	// Timeout bounds one attempt, connecting included. Default 120s.
	Timeout time.Duration
	// MaxReplyBytes bounds the body of a reply after decompression. Default
	// 8 MiB.
	MaxReplyBytes int64
	// CAPEM holds further certificate authorities in PEM that may sign the
	// server's certificate. Empty: those of the system alone.
	CAPEM []byte
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
	// connectTimeout bounds the set-up of one connection: a server that is
	// up answers in far less.
	connectTimeout = 10 * time.Second
	// idleTimeout is below the 75 s after which nginx and others close an idle
	// connection, so that they seldom close one that we are about to use.
	idleTimeout = 60 * time.Second
	// errorBytes bounds the body of a reply that is no success.
	errorBytes = 64 << 10
	// headerBytes bounds the header of a reply, informational replies (1xx)
	// before it included. Providers send a few KiB; the default is 10 MiB.
	headerBytes = 64 << 10
)

// NewClient makes a client. Its error joins all problems of cfg, each a
// [*SettingError]. It opens no connection.
func NewClient(cfg ClientConfig) (*Client, error) {
	c := &Client{cfg: cfg}
	problems := c.cfg.complete()
	check := func(setting string, err error) {
		if err != nil {
			problems = append(problems, &SettingError{Setting: setting, Err: err})
		}
	}
	var err error
	c.base, err = parseBaseURL(cfg.BaseURL)
	check("BaseURL", err)
	first, ofLogin := readLogin(cfg.APIKey, cfg.ExtraHeaders)
	problems = append(problems, ofLogin...)
	roots, err := rootCAs(cfg.CAPEM)
	check("CAPEM", err)
	if err := errors.Join(problems...); err != nil {
		return nil, err
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

// complete fills in defaults. It returns every problem of a single field, each a [*SettingError].
func (cfg *ClientConfig) complete() (problems []error) {
	for _, c := range [...]struct {
		setting string
		bad     bool
		problem string
	}{
		{"Provider", cfg.Provider == "", "missing"},
		{"Wire", cfg.Wire == nil, "missing"},
		{"Model", cfg.Model == "", "missing; name the model to call"},
		{"Concurrency", cfg.Concurrency < 0, fmt.Sprintf("%d is negative", cfg.Concurrency)},
		{"Timeout", cfg.Timeout < 0, fmt.Sprintf("%v is negative", cfg.Timeout)},
		{"MaxReplyBytes", cfg.MaxReplyBytes < 0, fmt.Sprintf("%d is negative", cfg.MaxReplyBytes)},
	} {
		if c.bad {
			problems = append(problems, &SettingError{Setting: c.setting, Err: errors.New(c.problem)})
		}
	}
	cfg.Concurrency = cmp.Or(cfg.Concurrency, defaultConcurrency)
	cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	cfg.MaxReplyBytes = cmp.Or(cfg.MaxReplyBytes, defaultMaxReplyBytes)
	if cfg.Redactor == nil {
		cfg.Redactor = new(redact.Redactor)
	}
	return problems
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
func (c *Client) Provider() string { return c.cfg.Provider }

// Model returns the model that is called where a request names none.
func (c *Client) Model() string { return c.cfg.Model }

// Close closes the idle connections. Calls in flight go on; a later Do works
// and opens new ones.
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
		return nil, errors.New("names no host")
	case u.User != nil:
		return nil, errors.New("holds credentials; give them as the API key")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return nil, errors.New("holds a query or a fragment; remove it")
	}
	return u, nil
}

// rootCAs returns the system's certificate authorities and those in pem, or nil
// for the system's alone.
func rootCAs(pem []byte) (*x509.CertPool, error) {
	if len(pem) == 0 {
		return nil, nil
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, errors.New("holds no certificate in PEM")
	}
	return pool, nil
}

// Call makes one attempt at a request: [Client.Prepare], then [Client.Do]. It
// is a caller of package batch.
func (c *Client) Call(ctx context.Context, r *Request) (*Reply, error) {
	p, err := c.Prepare(r)
	if err != nil {
		return nil, err
	}
	x, err := c.Do(ctx, p)
	return x.Reply, err
}
