package llm

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync/atomic"
	"time"
)

// Exchange is one HTTP attempt: the bytes sent, the bytes received, and when. It holds no
// secret that the client's [redact.Redactor] knows.
type Exchange struct {
	// Status is the HTTP status. It is 0 if no reply arrived.
	Status int
	// Sent is set when the whole request was written.
	Sent bool
	// Unknown is set when the request was sent and its outcome is not known: no
	// reply arrived, or a successful one was cut off. It may have been billed.
	Unknown bool
	// Latency is the time from the start of the attempt until the whole reply was read,
	// or the attempt failed.
	Latency time.Duration
	// Request is the body sent, and Response the body received: whole for a success, at
	// most 64 KiB for an error status or a reply over the bound. In both "[redacted]"
	// stands for each secret, or null for a number of the response that holds one.
	Request, Response []byte
	// Reply is what the model answered. It is nil where no body with a 2xx status could be
	// read. Beside an error only its Usage is of use.
	Reply *Reply
	// Wait is what the server reported about when to retry. It is zero on success.
	Wait

	login      int // number of the one in use when the call was made, or its reply read
	credential int // number of the one that an [Authorizer] used
}

// Do sends a request once and judges the reply. The Exchange is never nil. The error is
// nil or an [*Error]; its Class is 0 only if ctx ended before the reply did, and it then
// wraps the cause. Do blocks until the whole reply is read, at most the attempt's
// time-out.
//
// All that a server sends leaves the client here, in the Exchange and the Error, and
// secrets are removed here, from the answer of the model as from the rest: so they cannot
// get into results, audit, spans, logs or pages by way of a reply.
func (c *Client) Do(ctx context.Context, p *Prepared) (*Exchange, error) {
	a := new(attempt)
	x, o := &a.Exchange, &a.ending
	x.Request = c.cfg.Redactor.Redact(p.Body)
	p, err := p.Load(ctx)
	if err != nil {
		return x, c.unloaded(ctx, err)
	}
	start := time.Now()
	o.Known, o.URL = c.known(p), p.url
	login := c.login.Load()
	x.login = login.number
	body := c.attempt(ctx, p, login, a)
	now := time.Now()
	x.Latency = now.Sub(start)
	x.Status = o.Status
	x.Unknown = x.Sent && o.Err != nil && (o.Status == 0 || o.Status/100 == 2)
	c.redactAnswer(x, o, body)
	if err := context.Cause(ctx); err != nil && o.Err != nil {
		return x, &Error{Provider: c.provider, Status: o.Status, Err: err}
	}
	return x, c.read(p.format, x, o, now, body)
}

// unloaded is the error of a request whose media could not be read, so that it was not sent.
func (c *Client) unloaded(ctx context.Context, err error) *Error {
	e, is := errors.AsType[*Error](err)
	switch {
	case is:
		copied := *e
		e = &copied
	case context.Cause(ctx) != nil:
		e = &Error{Err: context.Cause(ctx)}
	default:
		e = &Error{Class: Transient, Reason: ReasonAPICallFailed, Origin: OfHost, Err: err}
	}
	e.Provider = c.provider
	return e
}

// ReadReply judges a reply to p that came by another way than an exchange of its own,
// such as a line of a batch's results. It redacts and judges as [Client.Do] does. Its
// Exchange is never nil, and may share body. Status 0 means that the line has no status;
// then the body alone decides.
func (c *Client) ReadReply(p *Prepared, status int, body []byte) (*Exchange, error) {
	a := new(attempt)
	x, o := &a.Exchange, &a.ending
	x.Request, x.Status, x.Sent = c.cfg.Redactor.Redact(p.Body), status, true
	x.login = c.login.Load().number
	o.Known, o.URL, o.Status = c.known(p), p.url, cmp.Or(status, http.StatusOK)
	if limit := c.replyLimit(o); int64(len(body)) > limit {
		o.Form = formTooLarge
		body = body[:min(limit, errorBytes)]
	}
	c.redactAnswer(x, o, body)
	return x, c.read(p.format, x, o, time.Now(), body)
}

// known collects the facts about p that come from outside the attempt.
func (c *Client) known(p *Prepared) Known {
	return Known{
		Proven:          c.proven.Load(),
		RowModel:        p.rowModel,
		Identity:        c.cfg.Auth != nil,
		AcceptTruncated: c.cfg.AcceptTruncated,
		RequestBytes:    len(p.Sent()),
		Cached:          p.cached,
		Keep:            p.keep,
		Inputs:          p.inputs,
	}
}

// read judges the reply in x, whose body was body before redaction. The error is nil or
// an [*Error].
func (c *Client) read(w Wire, x *Exchange, o *ending, now time.Time, body []byte) error {
	var err error
	x.Reply, err = parseReply(w, o, now, x.Response)
	if x.Reply != nil && !bytes.Equal(x.Response, body) {
		c.recount(w, x.Reply, o, body)
	}
	if w, long := w.(eliding); long && err == nil {
		// a body that was cut, or a proxy's page, is no JSON.
		x.Response = w.elide(x.Response)
	}
	c.redactReply(x.Reply, o.Finish == finishLength)
	if err != nil {
		return c.failed(x, err)
	}
	if !o.Known.Proven { // many calls share it: it is written once
		c.proven.Store(true)
	}
	return nil
}

// redactAnswer takes over the body and removes secrets from it and from the headers that
// errors quote, before anything is read, quoted or cut.
func (c *Client) redactAnswer(x *Exchange, o *ending, body []byte) {
	secrets := c.cfg.Redactor
	x.Response = secrets.RedactJSON(body)
	if o.Form == formTooLarge || o.Err != nil {
		x.Response = secrets.RedactCut(x.Response)
	}
	for _, name := range quotedHeaders {
		text := o.Header.Get(name)
		if clean := secrets.RedactString(text); clean != text {
			o.Header.Set(name, clean)
		}
	}
}

// failed completes the error of a reply that was judged.
func (c *Client) failed(x *Exchange, err error) *Error {
	e, _ := errors.AsType[*Error](err)
	e.Provider = c.provider
	if _, partial := e.Facts["partial"]; partial {
		e.Facts["partial"] = x.Reply.Text
	}
	x.Wait = e.Wait
	c.redactError(e)
	return e
}

// recount takes the usage from the body before redaction: a key of digits alone may equal
// a count of tokens, which RedactJSON has removed. A usage contains no text.
func (c *Client) recount(w Wire, r *Reply, o *ending, body []byte) {
	var whole Reply
	readReply(w, body, &whole, &ending{Status: o.Status, Header: o.Header, Known: o.Known})
	r.Usage = whole.Usage
}

// quotedHeaders are the headers of a reply that errors quote and cut.
var quotedHeaders = [...]string{"Content-Type", "Location"}

// attempt is all that one attempt needs, in one allocation.
type attempt struct {
	Exchange
	ending
	sending
}

// sending is what one attempt sends, and how far it got. It is safe for concurrent use: the
// transport's goroutines have it, and may outlive the attempt.
type sending struct {
	content  []byte
	body     bytes.Reader
	trace    httptrace.ClientTrace
	progress atomic.Uint32 // a progress
}

// again returns the body for another connection, which may have to be made first. Nothing
// went over the one before, though the transport reported a request as written that was
// only buffered.
func (s *sending) again() (io.ReadCloser, error) {
	s.progress.Store(0)
	return io.NopCloser(bytes.NewReader(s.content)), nil
}

func (s *sending) reached(p progress) { s.progress.Or(uint32(p)) }

func (s *sending) connected(httptrace.GotConnInfo) { s.reached(stepConnected) }

func (s *sending) replied() { s.reached(stepReplied) }

func (s *sending) wrote(info httptrace.WroteRequestInfo) {
	if info.Err == nil {
		s.reached(stepSent)
	}
}

// attempt does the HTTP exchange, notes in a how it went, and returns the body as far
// as it was read.
func (c *Client) attempt(ctx context.Context, p *Prepared, login *login, a *attempt) []byte {
	ctx, limit := c.limits.begin(ctx, c.cfg.Timeout, c.timedOut)
	s, o := &a.sending, &a.ending
	defer func() {
		c.limits.end(limit)
		o.Progress = progress(s.progress.Load())
		a.Sent = o.Progress&stepSent != 0
	}()
	// The transport is used, and not an http.Client, because it follows no redirect.
	req := s.request(ctx, p, login)
	var err error
	if a.credential, err = c.authorize(req, s.content); err != nil {
		o.Err = err // even if the time of the call has ended: the provider has seen nothing of it
		return nil
	}
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		o.Err = attemptError(ctx, err)
		if errors.Is(o.Err, ErrTimeout) && s.progress.Load()&uint32(stepReplied) != 0 {
			o.Err = fmt.Errorf("%w; the header of the reply was not complete", o.Err)
		}
		return nil
	}
	defer func() { _ = resp.Body.Close() }()
	s.reached(stepSent)
	return c.readBody(ctx, resp, o)
}

// request begins to send the body of p.
func (s *sending) request(ctx context.Context, p *Prepared, login *login) *http.Request {
	s.content = p.Sent()
	s.body.Reset(s.content)
	s.trace.GotConn, s.trace.WroteRequest, s.trace.GotFirstResponseByte = s.connected, s.wrote,
		s.replied
	return (&http.Request{
		Method:     http.MethodPost,
		URL:        p.url,
		Host:       p.url.Host,
		Proto:      "HTTP/1.1",
		ProtoMajor: 1,
		ProtoMinor: 1,
		Header:     login.header,
		// Of this type net/http knows that it is in memory, and writes headers and body
		// at once.
		Body:          io.NopCloser(&s.body),
		ContentLength: int64(len(s.content)),
		// With GetBody the transport sends again by itself, but only if nothing was
		// written yet: an idle connection had been closed.
		GetBody: s.again,
	}).WithContext(httptrace.WithClientTrace(ctx, &s.trace))
}

// readBody reads a reply, within the bound on its size.
func (c *Client) readBody(ctx context.Context, resp *http.Response, o *ending) []byte {
	o.Status, o.Header = resp.StatusCode, resp.Header
	limit := c.replyLimit(o)
	body, err := readBounded(resp.Body, resp.ContentLength, limit)
	switch {
	case err != nil:
		o.Err = attemptError(ctx, fmt.Errorf("read reply: %w", err))
		if errors.Is(o.Err, ErrTimeout) {
			o.Err = fmt.Errorf("%w; %d bytes of the reply had arrived", o.Err, len(body))
		}
	case int64(len(body)) > limit:
		o.Form = formTooLarge
		body = body[:min(limit, errorBytes)]
	}
	return body
}

// replyLimit bounds the body of a reply, see [ProviderConfig.MaxReplyBytes]. A reply above
// the bound is paid for and lost, so it grows with the vectors that were asked for.
func (c *Client) replyLimit(o *ending) int64 {
	if o.Status/100 != 2 {
		return min(c.cfg.MaxReplyBytes, errorBytes)
	}
	return c.cfg.MaxReplyBytes * int64(max(1, (o.Known.Inputs+inputsPerBound-1)/inputsPerBound))
}

// attemptError distinguishes our own time-out from the transport's errors.
func attemptError(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, ErrTimeout) {
		return cause
	}
	return err
}

// readBounded reads at most limit+1 bytes: one more than limit shows that there
// is more. size is the length that the server announced, or -1.
func readBounded(r io.Reader, size, limit int64) ([]byte, error) {
	if size < 0 || size > limit {
		size = min(2048, limit)
	}
	// If the announced length is right, this is enough for all, end included.
	body := make([]byte, 0, size+1)
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

// redactReply removes secrets from what the model answered. With cut, the text of the
// answer is not complete.
func (c *Client) redactReply(r *Reply, cut bool) {
	if r == nil {
		return
	}
	secrets := c.cfg.Redactor
	r.Text = secrets.RedactString(r.Text)
	if cut {
		r.Text = string(secrets.RedactCut([]byte(r.Text)))
	}
	r.Model, r.ID, r.FinishReason = secrets.RedactString(r.Model), secrets.RedactString(r.ID),
		secrets.RedactString(r.FinishReason)
	if r.Kept == nil {
		return
	}
	// The body has been redacted, so tokens and the raw reply are clean. The others were
	// put together from several texts of it, or had their escapes taken off.
	r.Kept.Reasoning = secrets.RedactString(r.Kept.Reasoning)
	for i := range r.Kept.ToolCalls {
		call := &r.Kept.ToolCalls[i]
		call.ID, call.Name, call.Arguments = secrets.RedactString(call.ID),
			secrets.RedactString(call.Name), secrets.RedactJSON(call.Arguments)
	}
	for i := range r.Kept.Citations {
		c := &r.Kept.Citations[i]
		c.URL, c.Title = secrets.RedactString(c.URL), secrets.RedactString(c.Title)
	}
}

// redactError removes secrets from an error.
func (c *Client) redactError(e *Error) {
	secrets := c.cfg.Redactor
	text := e.Err.Error()
	if clean := secrets.RedactString(text); clean != text {
		e.Err = errors.New(clean)
	}
	e.Code, e.Type, e.Alike = secrets.RedactString(e.Code), secrets.RedactString(e.Type),
		secrets.RedactString(e.Alike)
	for name, fact := range e.Facts {
		switch v := fact.(type) {
		case string:
			e.Facts[name] = secrets.RedactString(v)
		case []string:
			for i := range v {
				v[i] = secrets.RedactString(v[i])
			}
		case json.RawMessage:
			e.Facts[name] = json.RawMessage(secrets.Redact(v))
		}
	}
}
