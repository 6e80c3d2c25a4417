package llm

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/llm-stage/stage/llm/redact"
)

// Client asks one provider, one HTTP attempt a call. It is safe for concurrent
// use. Close it when no call is in the air.
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
	// Model is asked where the request names none. Required.
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

// SettingError says which setting of a client is wrong.
type SettingError struct {
	// Setting is the name of the field: "BaseURL", "APIKey", "Model", ...
	Setting string
	// Err says what is wrong with it and how to mend it.
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
	// connectTimeout bounds the making of one connection: a server that is
	// there answers in far less.
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

// NewClient makes a client. Its errors are all the faults of cfg, each a
// [*SettingError], joined. It opens no connection.
func NewClient(cfg ClientConfig) (*Client, error) {
	c := &Client{cfg: cfg}
	var faults []error
	fault := func(setting string, err error) {
		if err != nil {
			faults = append(faults, &SettingError{Setting: setting, Err: err})
		}
	}
	if cfg.Provider == "" {
		fault("Provider", errors.New("missing"))
	}
	if cfg.Wire == nil {
		fault("Wire", errors.New("missing"))
	}
	if cfg.Model == "" {
		fault("Model", errors.New("missing; name the model to ask"))
	}
	base, err := parseBaseURL(cfg.BaseURL)
	fault("BaseURL", err)
	c.base = base
	first, problems := readLogin(cfg.APIKey, cfg.ExtraHeaders)
	faults = append(faults, problems...)
	if cfg.Concurrency < 0 {
		fault("Concurrency", fmt.Errorf("%d is negative", cfg.Concurrency))
	}
	if cfg.Timeout < 0 {
		fault("Timeout", fmt.Errorf("%v is negative", cfg.Timeout))
	}
	if cfg.MaxReplyBytes < 0 {
		fault("MaxReplyBytes", fmt.Errorf("%d is negative", cfg.MaxReplyBytes))
	}
	roots, err := rootCAs(cfg.CAPEM)
	fault("CAPEM", err)
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	if cfg.Concurrency == 0 {
		c.cfg.Concurrency = defaultConcurrency
	}
	if cfg.Timeout == 0 {
		c.cfg.Timeout = defaultTimeout
	}
	if cfg.MaxReplyBytes == 0 {
		c.cfg.MaxReplyBytes = defaultMaxReplyBytes
	}
	if c.own, err = c.address(cfg.Model); err != nil {
		return nil, &SettingError{Setting: "Model", Err: err}
	}
	c.timedOut = fmt.Errorf("%w after %v", ErrTimeout, c.cfg.Timeout)
	c.transport = c.newTransport(roots)
	if cfg.Redactor == nil {
		c.cfg.Redactor = new(redact.Redactor)
	}
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
func (c *Client) Provider() string { return c.cfg.Provider }

// Model returns the model that is asked where a request names none.
func (c *Client) Model() string { return c.cfg.Model }

// Close closes the idle connections. Calls in the air go on; a later Do works
// and opens new ones.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// Exchange is one HTTP attempt: what was sent, what came back, and when. It
// holds no secret that the client's [redact.Redactor] knows.
type Exchange struct {
	// Status is the HTTP status. 0: no reply came.
	Status int
	// Sent says that the whole request was written.
	Sent bool
	// Unknown says that the request was sent and its outcome is not known: no
	// reply came, or one of success was cut off. It may have been billed.
	Unknown bool
	// Latency is the time from the start of the attempt until the whole reply
	// was read, or the attempt failed.
	Latency time.Duration
	// Request is the body sent, and Response the body that came: whole for a
	// success, at most 64 KiB for an error status or a reply over the bound.
	// In both "[redacted]" stands for each secret, or null for a number of the
	// response that holds one.
	Request, Response []byte
	// Reply is what the model answered. Nil where no body with a 2xx status
	// could be read. Beside an error only its Usage is of use.
	Reply *Reply
	// Wait is what the server told about when to come back. Zero on success.
	Wait
}

// Do sends a request once and judges the reply. The Exchange is never nil. The
// error is nil or an [*Error]; its Class is 0 only if ctx ended before the
// reply did, and it then wraps the cause. Do blocks until the whole reply is
// read, at most the attempt's time-out.
//
// All that a server says leaves the client here, in the Exchange and the Error,
// and secrets are removed here, from the answer of the model as from the rest:
// so they cannot get into results, audit, spans, logs or pages by way of a reply.
func (c *Client) Do(ctx context.Context, p *Prepared) (*Exchange, error) {
	call := new(call)
	x, o := &call.Exchange, &call.Outcome
	secrets := c.cfg.Redactor
	x.Request = secrets.Redact(p.Body)
	start := time.Now()
	o.Known = Known{
		Proven:          c.proven.Load(),
		RowModel:        p.rowModel,
		AcceptTruncated: c.cfg.AcceptTruncated,
		RequestBytes:    len(p.Body),
		Cached:          p.cached,
	}
	body := c.attempt(ctx, p, c.login.Load(), call)
	now := time.Now()
	x.Latency = now.Sub(start)
	x.Status = o.Status
	x.Unknown = x.Sent && o.Err != nil && (o.Status == 0 || o.Status/100 == 2)
	// Before anything is read, quoted or cut.
	x.Response = secrets.RedactJSON(body)
	if o.Form == FormTooLarge || o.Err != nil {
		x.Response = secrets.RedactCut(x.Response)
	}
	for _, name := range quotedHeaders {
		if text := o.Header.Get(name); text != "" {
			o.Header.Set(name, secrets.RedactString(text))
		}
	}
	if err := context.Cause(ctx); err != nil && o.Err != nil {
		return x, &Error{Provider: c.cfg.Provider, Status: o.Status, Err: err}
	}
	var err error
	x.Reply, err = parseReply(c.cfg.Wire, o, now, x.Response)
	if x.Reply != nil && !bytes.Equal(x.Response, body) {
		c.recount(x.Reply, o, body)
	}
	c.redactReply(x.Reply, o.Finish == FinishLength)
	if err == nil {
		if !o.Known.Proven { // many calls share it: it is written once
			c.proven.Store(true)
		}
		return x, nil
	}
	e, _ := errors.AsType[*Error](err)
	e.Provider = c.cfg.Provider
	if _, partial := e.Facts["partial"]; partial {
		e.Facts["partial"] = x.Reply.Text
	}
	x.Wait = Wait{RetryAfter: e.RetryAfter, Remaining0: e.Remaining0, Reset: e.Reset}
	c.redactError(e)
	return x, e
}

// recount takes the usage from the body as it came: a key of digits alone may be a count of tokens, which RedactJSON has
// taken out. A usage holds no text.
func (c *Client) recount(r *Reply, o *Outcome, body []byte) {
	var whole Reply
	c.cfg.Wire.ReadReply(body, &whole, &Outcome{Status: o.Status, Header: o.Header, Known: o.Known})
	r.Usage = whole.Usage
}

// quotedHeaders are those of a reply that errors quote and cut.
var quotedHeaders = [...]string{"Content-Type", "Location"}

// call is all that one attempt needs, in one allocation.
type call struct {
	Exchange
	Outcome
	sending
}

// sending is what one attempt sends, and how far it came. Safe for concurrent use: the
// transport's goroutines have it, and may outlive the attempt.
type sending struct {
	content  []byte
	body     bytes.Reader
	trace    httptrace.ClientTrace
	progress atomic.Uint32 // a Progress
}

// again returns the body for another connection, which may have to be made first. Nothing went over the one before,
// though the transport reported a request as written that was only buffered.
func (s *sending) again() (io.ReadCloser, error) {
	s.progress.Store(0)
	return io.NopCloser(bytes.NewReader(s.content)), nil
}

func (s *sending) reached(p Progress) { s.progress.Or(uint32(p)) }

func (s *sending) connected(httptrace.GotConnInfo) { s.reached(Connected) }

func (s *sending) replied() { s.reached(Replied) }

func (s *sending) wrote(info httptrace.WroteRequestInfo) {
	if info.Err == nil {
		s.reached(Sent)
	}
}

// attempt does the HTTP exchange, notes in call how it went, and returns the
// body as far as it was read.
func (c *Client) attempt(ctx context.Context, p *Prepared, login *login, call *call) []byte {
	ctx, cancel := context.WithTimeoutCause(ctx, c.cfg.Timeout, c.timedOut)
	defer cancel()
	s, o := &call.sending, &call.Outcome
	s.content = p.Body
	s.body.Reset(p.Body)
	s.trace.GotConn, s.trace.WroteRequest, s.trace.GotFirstResponseByte = s.connected, s.wrote, s.replied
	defer func() {
		o.Progress = Progress(s.progress.Load())
		call.Sent = o.Progress&Sent != 0
	}()
	req := (&http.Request{
		Method:     http.MethodPost,
		URL:        p.url,
		Host:       p.url.Host,
		Proto:      "HTTP/1.1",
		ProtoMajor: 1,
		ProtoMinor: 1,
		Header:     login.header,
		// Of this type net/http knows that it is in memory, and writes headers and body at once.
		Body:          io.NopCloser(&s.body),
		ContentLength: int64(len(p.Body)),
		// With GetBody the transport sends again by itself, but only if nothing was
		// written yet: an idle connection had been closed.
		GetBody: s.again,
	}).WithContext(httptrace.WithClientTrace(ctx, &s.trace))
	// The transport itself, not http.Client: it follows no redirect.
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		o.Err = attemptError(ctx, err)
		if errors.Is(o.Err, ErrTimeout) && s.progress.Load()&uint32(Replied) != 0 {
			o.Err = fmt.Errorf("%w; the header of the reply was not complete", o.Err)
		}
		return nil
	}
	defer func() { _ = resp.Body.Close() }()
	s.reached(Sent)
	o.Status, o.Header = resp.StatusCode, resp.Header
	limit := c.cfg.MaxReplyBytes
	if o.Status/100 != 2 {
		limit = min(limit, errorBytes)
	}
	body, err := readBounded(resp.Body, resp.ContentLength, limit)
	switch {
	case err != nil:
		o.Err = attemptError(ctx, fmt.Errorf("read reply: %w", err))
		if errors.Is(o.Err, ErrTimeout) {
			o.Err = fmt.Errorf("%w; %d bytes of the reply had come", o.Err, len(body))
		}
	case int64(len(body)) > limit:
		o.Form = FormTooLarge
		body = body[:min(limit, errorBytes)]
	}
	return body
}

// attemptError tells our own time-out from the transport's errors.
func attemptError(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, ErrTimeout) {
		return cause
	}
	return err
}

// readBounded reads at most limit+1 bytes: one more than limit tells that there
// is more. size is the length that the server announced, or -1.
func readBounded(r io.Reader, size, limit int64) ([]byte, error) {
	if size < 0 || size > limit {
		size = min(2048, limit)
	}
	body := make([]byte, 0, size+1) // of a length that was announced right this is all, end included
	for {
		n, err := r.Read(body[len(body):min(int64(cap(body)), limit+1)])
		body = body[:len(body)+n]
		switch {
		case errors.Is(err, io.EOF), int64(len(body)) > limit:
			return body, nil
		case err != nil:
			return body, err
		case len(body) == cap(body):
			body = slices.Grow(body, len(body))
		}
	}
}

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
