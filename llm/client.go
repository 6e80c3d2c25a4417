package llm

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/llm/redact"
)

// Client calls one provider, one HTTP attempt per call. It is safe for concurrent
// use. Close it when no call is in flight.
type Client struct {
	provider  string
	wire      Wire // of the client's own model
	cfg       ProviderConfig
	base      *url.URL
	formatOf  func(model string) (Wire, error)
	own       *address // where requests for the client's own model go
	transport *http.Transport
	side      *http.Transport // for Exchange, whose streams must not take the connections of calls
	login     atomic.Pointer[login]
	loginMu   sync.Mutex  // held while a login is replaced
	timedOut  error       // wraps ErrTimeout
	limits    timeLimits  // of attempts
	proven    atomic.Bool // had a success
}

// ProviderConfig configures a [Client] for one of the providers known by name. The zero
// value of a field is its default, except where it is required.
type ProviderConfig struct {
	// BaseURL replaces the provider's own address: http or https, without credentials,
	// query or fragment. It is required for "azure" (https://NAME.openai.azure.com) and
	// "mock". For "openai" it may be any compatible server, with its version:
	// http://localhost:11434/v1.
	BaseURL string
	// APIKey is the credential. It is required at the provider's own address and for
	// "azure". If it is empty, none is sent.
	APIKey redact.Secret `json:"-"`
	// Auth authorises the calls in place of an APIKey. It is nil where a key does.
	Auth Authorizer `json:"-"`
	// Task is [TaskChat] or [TaskEmbed]. The default is [TaskChat].
	Task string
	// Vectors is what [TaskEmbed] should answer with.
	Vectors VectorFormat
	// Region and Project are where a cloud has its models: eu-central-1, my-project.
	Region, Project string
	// ExtraHeaders is a JSON object of strings, sent as headers with each request, in
	// place of the client's own of the same names. The names of the connection and the
	// body's (Host, Content-Length, Content-Type, ...) are refused, and with an APIKey
	// the name that carries it. See [ValidateExtraHeaders]. If it is empty, none are sent.
	ExtraHeaders redact.Secret `json:"-"`
	// Redactor knows the secrets that servers may repeat: nothing that [Client.Do]
	// returns holds one. The client adds APIKey, ExtraHeaders (but for well-known headers
	// without secrets) and the credentials of the proxy. Without a Redactor the client
	// makes one of its own.
	Redactor *redact.Redactor `json:"-"`
	// Model is called where the request names none. For "azure" it is the name of the
	// deployment. It is required, except for "mock".
	Model string
	// AzureAPIVersion, such as 2024-10-21, chooses Azure's dated path. Without it,
	// requests take the v1 path.
	AzureAPIVersion string
	// CAFile is a PEM file of further certificate authorities that may sign the server's
	// certificate. Without it, only the system's are.
	CAFile string
	// Concurrency is the most calls in flight: further ones wait for a connection, within
	// their time-out. The default is 64.
	Concurrency int
	// Timeout bounds one attempt, connecting included. The default is 120 s.
	Timeout time.Duration
	// MaxReplyBytes bounds the body of a reply after decompression. A reply with vectors
	// may have as many for each 64 texts, or part of them. The default is 8 MiB, which has
	// room for 64 vectors of 5,000 numbers of 26 bytes.
	MaxReplyBytes int64
	// AcceptTruncated takes replies that end at the token limit as success.
	AcceptTruncated bool
	// Control is called with each new socket before it is connected, see [net.Dialer]. An
	// error fails the call. It may be nil, and is not used with DialContext.
	Control func(network, address string, conn syscall.RawConn) error
	// DialContext opens connections. The default opens TCP connections.
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
	// inputsPerBound is for how many texts a reply with vectors may have MaxReplyBytes.
	inputsPerBound = 64
	// connectTimeout bounds the set-up of one connection: a server that is up answers in
	// far less.
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

// NewProvider makes a client for a provider known by name. "mock" speaks
// [ChatCompletions] to the base URL, where package llmtest serves. It opens no
// connection. Its error joins all problems of name and cfg, each a [*SettingError] that
// names the field of cfg (or "Provider").
func NewProvider(name string, cfg ProviderConfig) (*Client, error) {
	p, ok := LookupProvider(name)
	if !ok {
		return nil, &SettingError{
			Setting: "Provider", Err: fmt.Errorf("%q is unknown; use one of %s", name,
				strings.Join(Providers(), ", ")),
		}
	}
	var problems settingErrors
	switch {
	case cfg.Auth != nil && cfg.APIKey.IsSet():
		problems.add("APIKey", errors.New("a cloud's identity authorises the calls: set one of "+
			"both"))
	case cfg.Auth == nil && !cfg.APIKey.IsSet() && p.needsKey(cfg.BaseURL):
		problems.add("APIKey", errors.New("missing; "+name+" needs one"))
	}
	cfg.BaseURL = cmp.Or(cfg.BaseURL, p.Address(cfg.Region))
	cfg.Model = cmp.Or(cfg.Model, p.Model)
	c := &Client{provider: name, cfg: cfg}
	problems.add("Task", c.chooseWire(&p))
	roots, err := RootCAs(cfg.CAFile)
	problems.add("CAFile", err)
	problems.checkRanges(&p, &cfg)
	if c.base, err = parseBaseURL(p.base(cfg.BaseURL)); cfg.BaseURL != "" || p.address == nil {
		problems.add("BaseURL", err)
	} else if cfg.Region == "" { // else it was checked above
		problems.add("Region",
			errors.New("missing; give the region of the models, such as eu-central-1"))
	}
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
	c.limits.most = c.cfg.Concurrency
	c.timedOut = fmt.Errorf("%w after %v", ErrTimeout, c.cfg.Timeout)
	c.transport, c.side = c.newTransport(roots), c.newTransport(roots)
	c.side.MaxConnsPerHost = 0
	if err := c.use(first); err != nil {
		return nil, err
	}
	c.cfg.APIKey, c.cfg.ExtraHeaders = redact.Secret{}, redact.Secret{} // they live in login alone
	return c, nil
}

// chooseWire sets the wire format of the client's task. The error is that the task, or the
// provider, has none.
func (c *Client) chooseWire(p *Provider) error {
	cfg := c.cfg
	c.wire = p.wire(&cfg)
	if p.wireOf != nil {
		place := ProviderConfig{BaseURL: cfg.BaseURL, Region: cfg.Region, Project: cfg.Project}
		c.formatOf = func(model string) (Wire, error) { return p.wireOf(&place, model) }
	}
	switch {
	case cfg.Task == "" || cfg.Task == TaskChat:
		return nil
	case cfg.Task != TaskEmbed:
		return fmt.Errorf("%q is unknown; use chat or embed", cfg.Task)
	case p.embed == nil:
		return fmt.Errorf("%s has no embeddings; use one of %s", c.provider,
			strings.Join(embedders(), ", "))
	}
	c.wire, c.formatOf = p.embed(&cfg), nil
	return nil
}

// settingErrors are the problems of a configuration, each a [*SettingError].
type settingErrors []error

// add adds the problem of a setting, if err is not nil.
func (s *settingErrors) add(setting string, err error) {
	if err != nil {
		*s = append(*s, &SettingError{Setting: setting, Err: err})
	}
}

// checkRanges adds the problem of each setting that is out of its range.
func (s *settingErrors) checkRanges(p *Provider, cfg *ProviderConfig) {
	if cfg.Model == "" {
		s.add("Model", errors.New("missing; name the model to call"))
	}
	if strings.Trim(cfg.Region, regionBytes) != "" {
		s.add("Region", fmt.Errorf("%q is no name of a region, such as eu-central-1",
			excerpt.Of(cfg.Region)))
	}
	switch {
	case strings.Trim(cfg.Project, projectBytes) != "":
		s.add("Project", fmt.Errorf("%q is no id of a project, such as my-project-123",
			excerpt.Of(cfg.Project)))
	case cfg.Project == "" && p.Auth == AuthGoogle && !cfg.APIKey.IsSet():
		s.add("Project",
			errors.New("missing; give the id of the Google Cloud project that pays for the calls"))
	}
	if cfg.Concurrency < 0 {
		s.add("Concurrency", fmt.Errorf("%d is negative", cfg.Concurrency))
	}
	if cfg.Timeout < 0 {
		s.add("Timeout", fmt.Errorf("%v is negative", cfg.Timeout))
	}
	if cfg.MaxReplyBytes < 0 {
		s.add("MaxReplyBytes", fmt.Errorf("%d is negative", cfg.MaxReplyBytes))
	}
}

// regionBytes are the bytes of a cloud's region, which becomes a part of the server's name,
// and projectBytes those of a project's id, which becomes a part of the path.
const (
	regionBytes  = "abcdefghijklmnopqrstuvwxyz0123456789-"
	projectBytes = regionBytes + ".:"
)

func (c *Client) newTransport(roots *x509.CertPool) *http.Transport {
	dial := c.cfg.DialContext
	if dial == nil {
		dialer := &net.Dialer{
			Timeout:   min(connectTimeout, c.cfg.Timeout/2),
			KeepAlive: 15 * time.Second,
			Control:   c.cfg.Control,
		}
		dial = dialer.DialContext
	}
	// The client speaks HTTP/1.1 alone: with as many connections as calls in flight nothing
	// waits for anything else, and a lost connection costs one call.
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
		// The buffers have half of the default size: with one connection for each call in
		// flight they are a quarter of its memory. Larger pieces bypass the buffers, and so
		// does a body that is read or written in one piece.
		ReadBufferSize:  2 << 10,
		WriteBufferSize: 2 << 10,
		IdleConnTimeout: idleTimeout,

		MaxResponseHeaderBytes: headerBytes,
		OnProxyConnectResponse: func(
			_ context.Context, _ *url.URL, _ *http.Request, r *http.Response,
		) error {
			if r.StatusCode != http.StatusOK {
				return &proxyError{status: r.StatusCode}
			}
			return nil
		},
	}
}

// Provider returns the name of the provider.
func (c *Client) Provider() string { return c.provider }

// Task returns what the client asks of models: [TaskChat] or [TaskEmbed].
func (c *Client) Task() string { return cmp.Or(c.cfg.Task, TaskChat) }

// Model returns the model that is called where a request names none.
func (c *Client) Model() string { return c.cfg.Model }

// Close closes the idle connections. Calls in flight continue; a later Do works and opens
// new ones.
func (c *Client) Close() {
	c.limits.drop()
	c.transport.CloseIdleConnections()
	c.side.CloseIdleConnections()
}

func parseBaseURL(raw string) (*url.URL, error) {
	if raw == "" {
		return nil, errors.New("missing; give the address of the server, such as " +
			"http://localhost:11434/v1")
	}
	u, err := url.Parse(strings.TrimRight(raw, "/"))
	switch {
	case err != nil:
		// The error of url.Parse repeats it, credentials and all.
		return nil, errors.New("not a URL")
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

// RootCAs returns the system's certificate authorities and those in the PEM file at path,
// or nil, for the system's alone, where path is empty.
func RootCAs(path string) (*x509.CertPool, error) {
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

// Call makes one attempt at a request: [Client.Prepare], then [Client.Do]. It implements
// [BatchCaller].
func (c *Client) Call(ctx context.Context, r *Request) (*Reply, error) {
	p, err := c.Prepare(r)
	if err != nil {
		return nil, err
	}
	x, err := c.Do(ctx, p)
	return x.Reply, err
}

// RawRequest is an exchange with another part of the provider's API than [Client.Do]
// calls, such as its files.
type RawRequest struct {
	Method string
	// URL is a path below the base URL, with its query, or an absolute URL. Only where it
	// leads to the scheme, host and port of the base URL it gets the credential and the
	// extra headers.
	URL string
	// Header is sent in place of the client's own headers of the same names.
	Header http.Header
	// Body has Size bytes and is read once. It is nil for a request without a body.
	Body io.Reader
	Size int64
	// MaxBytes bounds the body of a reply with a 2xx status.
	MaxBytes int64
	// Stream leaves the body of such a reply to the caller instead, however long it is.
	Stream bool
}

// RawReply is what came back.
type RawReply struct {
	// Connected is set when the exchange had a connection to the server. Without one the
	// server knows nothing of it.
	Connected bool
	// Status is the HTTP status. It is 0 if no reply arrived.
	Status int
	Header http.Header
	// Body is the whole body, without secrets.
	Body []byte
	// Stream is the body with [RawRequest.Stream], secrets and all, and has to be closed.
	// A read of it takes at most the time-out of an attempt.
	Stream io.ReadCloser
}

// redirectsMax is how often Exchange follows a redirect.
const redirectsMax = 3

// Exchange makes one HTTP exchange: a redirect of a GET is followed, to another host
// without the credential, and nothing is repeated. The time-out of an attempt bounds the
// time without progress while the body is sent, and the time that the reply takes. The
// reply is never nil. The error is nil for a 2xx status, or an [*Error] as [Client.Do]
// returns it, with one difference: a 404, and what else may be the row's fault there, is
// Fatal here, since no row is asked for.
func (c *Client) Exchange(ctx context.Context, r *RawRequest) (*RawReply, error) {
	u, err := c.resolve(r.URL)
	for hops := 0; err == nil; hops++ {
		reply, next, failed := c.exchange(ctx, r, u)
		if next == nil || hops == redirectsMax {
			return reply, failed
		}
		u = next
	}
	return new(RawReply), &Error{
		Provider: c.provider, Class: Permanent, Reason: ReasonAPICallFailed, Err: err,
	}
}

// BaseURL returns the address below which all requests go.
func (c *Client) BaseURL() string { return c.base.String() }

// MaxReplyBytes returns the bound on the body of a reply.
func (c *Client) MaxReplyBytes() int64 { return c.cfg.MaxReplyBytes }

// Redacted returns text without the secrets that the client knows.
func (c *Client) Redacted(text string) string { return c.cfg.Redactor.RedactString(text) }

// Account names whose data a server shows to this client, without disclosing the
// credential: provider, base URL, key, and the headers that choose an account, hashed.
func (c *Client) Account() string {
	l := c.login.Load()
	text := []byte(c.provider + "\n" + c.base.String() + "\n" + l.key)
	if c.cfg.Auth != nil {
		text = append(text, c.cfg.Auth.Account()...)
	}
	for _, h := range l.extra {
		if l.key == "" || slices.Contains(accountHeaders[:], h.name) {
			text = append(text, "\n"+h.name+":"+h.value...)
		}
	}
	return Hash(text)[:32]
}

// accountHeaders choose between the accounts of one key.
var accountHeaders = [...]string{"Openai-Organization", "Openai-Project", "X-Goog-User-Project"}

// resolve returns the address that raw means.
func (c *Client) resolve(raw string) (*url.URL, error) {
	if strings.HasPrefix(raw, "/") {
		raw = c.base.String() + raw
	}
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != c.base.Scheme {
		return nil, fmt.Errorf("%q is no address to call", excerpt.Of(raw))
	}
	return u, nil
}

// exchange makes one exchange with u. next is where a GET is redirected to.
func (c *Client) exchange(
	ctx context.Context, r *RawRequest, u *url.URL,
) (reply *RawReply, next *url.URL, err error) {
	a := new(attempt)
	o := &a.ending
	o.URL = u
	o.Known.Proven, o.Known.Identity = c.proven.Load(), c.cfg.Auth != nil
	within, cancel := context.WithCancelCause(ctx)
	w := &watch{
		timer: time.AfterFunc(c.cfg.Timeout, func() { cancel(c.timedOut) }), timeout: c.cfg.Timeout,
		cancel: cancel, ctx: within,
	}
	reply = new(RawReply)
	req := a.raw(within, r, u, c.headers(r, u), w)
	if c.isOwn(u) {
		a.credential, err = c.authorize(req, nil)
	}
	var resp *http.Response
	if err == nil {
		if resp, err = c.side.RoundTrip(req); err != nil {
			err = attemptError(within, err)
		}
	}
	if err == nil {
		a.reached(stepConnected | stepSent | stepReplied)
		if r.Method == http.MethodGet && resp.StatusCode/100 == 3 {
			next, _ = resp.Location() // without one the redirect is the answer
			if next != nil && next.Scheme != "https" && next.Scheme != c.base.Scheme {
				next = nil
			}
		}
		reply.Status, reply.Header = resp.StatusCode, resp.Header
		w.timer.Reset(c.cfg.Timeout)
		if r.Stream && resp.StatusCode/100 == 2 {
			w.Closer, w.r = resp.Body, resp.Body
			w.timer.Stop()
			reply.Stream, reply.Connected = w, true
			return reply, nil, nil
		}
		a.Response = c.readRaw(within, resp, r.MaxBytes, o)
		_ = resp.Body.Close()
	} else {
		o.Err = err
	}
	w.timer.Stop()
	cancel(nil)
	o.Progress = progress(a.progress.Load())
	reply.Connected = o.Progress&stepConnected != 0
	return reply, next, c.judgeRaw(ctx, reply, a)
}

// isOwn reports whether u leads to the server of the base URL, which alone gets the
// credential.
func (c *Client) isOwn(u *url.URL) bool {
	return u.Scheme == c.base.Scheme && u.Host == c.base.Host
}

// headers returns the headers of a request to u.
func (c *Client) headers(r *RawRequest, u *url.URL) http.Header {
	h := http.Header{"User-Agent": {"llm-stage"}}
	if c.isOwn(u) {
		h = c.login.Load().header.Clone()
		h.Del("Content-Type")
	}
	maps.Copy(h, r.Header)
	return h
}

// raw begins to send r to u.
func (s *sending) raw(
	ctx context.Context, r *RawRequest, u *url.URL, h http.Header, w *watch,
) *http.Request {
	s.trace.GotConn, s.trace.WroteRequest, s.trace.GotFirstResponseByte = s.connected, s.wrote,
		s.replied
	req := (&http.Request{
		Method: r.Method, URL: u, Host: u.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: h,
	}).WithContext(httptrace.WithClientTrace(ctx, &s.trace))
	if r.Body != nil && r.Size > 0 {
		req.Body, req.ContentLength = io.NopCloser(&watch{
			r: r.Body, timer: w.timer,
			timeout: w.timeout,
		}), r.Size
	}
	return req
}

// readRaw reads the body of a reply.
func (c *Client) readRaw(ctx context.Context, resp *http.Response, limit int64, o *ending) []byte {
	o.Status, o.Header = resp.StatusCode, resp.Header
	if o.Status/100 != 2 {
		limit = errorBytes
	}
	body, err := readBounded(resp.Body, resp.ContentLength, limit)
	if err != nil {
		o.Err = attemptError(ctx, fmt.Errorf("read reply: %w", err))
	} else if int64(len(body)) > limit {
		o.Form = formTooLarge
	}
	return body
}

// judgeRaw judges what came back, and puts the body into reply.
func (c *Client) judgeRaw(ctx context.Context, reply *RawReply, a *attempt) error {
	o := &a.ending
	c.redactAnswer(&a.Exchange, o, a.Response)
	reply.Body = a.Response
	if o.Err == nil && o.Form != formTooLarge && o.Status/100 == 2 {
		return nil
	}
	if err := context.Cause(ctx); err != nil && o.Err != nil {
		return &Error{Provider: c.provider, Status: o.Status, Err: err}
	}
	if o.Status != 0 {
		o.Known = Known{Raw: true}
	}
	_, err := parseReply(c.wire, o, time.Now(), reply.Body)
	return c.failed(&a.Exchange, err)
}

// watch is a body under a time-out. The body of a reply has a time-out for each read. The
// body of a request has one for the time since its last read.
type watch struct {
	io.Closer

	r       io.Reader
	timer   *time.Timer
	timeout time.Duration
	cancel  context.CancelCauseFunc // nil: of a request
	ctx     context.Context         //nolint:containedctx // its end cancels a read of the reply
}

// Read implements [io.Reader].
func (w *watch) Read(p []byte) (int, error) {
	w.timer.Reset(w.timeout)
	n, err := w.r.Read(p)
	if w.cancel == nil {
		return n, err
	}
	w.timer.Stop()
	if err != nil && !errors.Is(err, io.EOF) {
		err = attemptError(w.ctx, err)
	}
	return n, err
}

// Close implements [io.Closer].
func (w *watch) Close() error {
	w.timer.Stop()
	err := w.Closer.Close()
	w.cancel(nil)
	return err
}
