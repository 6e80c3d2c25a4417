package llm

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
)

// ending is all that an attempt is judged by, in terms that every wire format shares.
// Its zero value means nothing; a usable reply with status 200 is ending{Status: 200}.
type ending struct {
	// Err is why no complete reply arrived. It is nil if one did.
	Err error
	// Progress is how far the attempt got. It is only read where no reply arrived.
	Progress progress
	// Status is the HTTP status. It is 0 if none arrived.
	Status int
	// URL is where the request went. It is nil if that is not known.
	URL *url.URL
	// Header holds the reply's headers. It may be nil.
	Header http.Header
	// Form is what the body was.
	Form form
	// Problem says what is wrong with a malformed body. It is nil if nothing more is known.
	Problem error
	// Fault is the error object in the body. It is nil if there was none.
	Fault *fault
	// Finish is why the model stopped.
	Finish finish
	// Known is what the caller knows from outside this attempt.
	Known Known
}

// Known is what judging an attempt needs to know beyond the attempt itself.
type Known struct {
	// Proven is set when this client has had a success before, so that address, key and
	// model were right once.
	Proven bool
	// RowModel is set when the row chose the model: if that is unknown, the error is the
	// row's and not the stage's.
	RowModel bool
	// Identity is set when a cloud's identity authorises the calls, and no key.
	Identity bool
	// AcceptTruncated takes replies that end at the token limit.
	AcceptTruncated bool
	// RequestBytes is the length of the request's body. It is 0 if not known.
	RequestBytes int
	// Cached is set when the request marks parts for the provider's cache. Tokens read
	// from the cache count towards no limit.
	Cached bool
	// Keep is what to read of the reply beside the answer.
	Keep Keep
	// Inputs is how many texts the request asks vectors for. It is 0 for other tasks than
	// [TaskEmbed].
	Inputs int
	// Raw is set if the request was no call of a model but asked, for example, for a
	// file: then a 404 is about the file.
	Raw bool
}

// progress is a set of the steps that an attempt has completed.
type progress uint8

// The steps of an attempt. The zero progress is an attempt that has no connection yet.
const (
	stepConnected progress = 1 << iota // it had a connection to the server, TLS included
	stepSent                           // the whole request was written
	stepReplied                        // the first byte of a reply arrived
)

// form is what the body of a reply was.
type form uint8

// The zero form is a reply in the wire format, or an error object.
const (
	formReply      form = iota
	formNotJSON         // no JSON, cut short, or followed by more
	formNotUTF8         // some bytes are not UTF-8
	formMalformed       // JSON, but not of the wire format's shape
	formDimensions      // vectors that have not the dimensions that were asked for
	formNoChoices       // an empty list of answers
	formEmpty           // an answer without text
	formReasoning       // an answer without text besides its reasoning
	formTooLarge        // longer than the bound
)

// finish is why the model stopped.
type finish uint8

// The zero finish is a natural end: the answer is whole.
const (
	finishStop    finish = iota
	finishLength         // at the token limit or the end of the context window
	finishFilter         // stopped by a content filter
	finishRefusal        // the model refused
	// finishUnfinished is an early end for any other reason, or for none. Another attempt
	// may end naturally.
	finishUnfinished
	finishDeadEnd // ended early for a reason in the request, so every attempt ends there
)

// ErrTimeout is the cause of an attempt that took longer than its time-out.
var ErrTimeout = errors.New("attempt timed out")

// proxyError is a proxy's refusal to open a tunnel.
type proxyError struct{ status int }

func (e *proxyError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("proxy answered %d %s", e.status,
		http.StatusText(e.status)))
}

// judgement is what an attempt means. Its zero value belongs to success and to an attempt
// that the caller cancelled.
type judgement struct {
	class  Class
	reason Reason
	origin Origin
	// general marks an error that wrong settings would produce for every request: it does
	// not depend on a row's content.
	general bool
}

// callFailed returns a judgement with reason ReasonAPICallFailed.
func callFailed(class Class, origin Origin) judgement {
	return judgement{class: class, reason: ReasonAPICallFailed, origin: origin}
}

// rejected returns the judgement of a request that the provider refuses.
func rejected(general bool) judgement {
	return judgement{
		class: Permanent, reason: ReasonAPICallFailed, origin: OfRequest, general: general,
	}
}

// judge decides what an attempt means, from status, typed fields and documented headers,
// never from the wording of a message: the few sentences that a provider sends in place
// of a typed field have become fields of fault before. It is pure, and allocates
// nothing on success.
func judge(o *ending) judgement {
	switch {
	case o.Err != nil && (o.Status == 0 || o.Status/100 == 2):
		// An error status means the same whether or not its body is complete.
		return judgeErr(o)
	case o.Status/100 != 2:
		return applyShouldRetry(o.Header, judgeStatus(o, o.Status))
	case o.Fault != nil:
		return judgeStatus(o, o.Fault.Status)
	}
	return judgeReply(o)
}

// judgeReply judges a reply with a 2xx status and no error object.
func judgeReply(o *ending) judgement {
	switch o.Form {
	case formTooLarge:
		return judgement{class: Permanent, reason: ReasonResponseTooLarge}
	case formNotJSON:
		// A proxy's page, or a truncated body: the model's server writes JSON.
		return judgement{
			class: Transient, reason: ReasonInvalidJSONResponse, origin: OfServer, general: true,
		}
	case formNotUTF8:
		// The body was damaged on its way, as a truncated one was: the model's server
		// writes JSON, which is UTF-8.
		return judgement{
			class: Transient, reason: ReasonMalformedResponse, origin: OfServer, general: true,
		}
	case formDimensions:
		// The model has no choice of dimensions, or the server does not know the setting.
		// Each call would be paid for, and so would its halves.
		if !o.Known.Proven {
			return judgement{class: Fatal, reason: ReasonMalformedResponse, origin: OfRequest}
		}
		return judgement{class: Transient, reason: ReasonMalformedResponse, general: true}
	case formMalformed:
		return judgement{class: Transient, reason: ReasonMalformedResponse, general: true}
	case formReply, formNoChoices, formEmpty, formReasoning:
	}
	switch o.Finish {
	case finishFilter:
		return judgement{class: Permanent, reason: ReasonContentFiltered}
	case finishRefusal:
		return judgement{class: Permanent, reason: ReasonRefused}
	case finishLength:
		// Without text there is nothing to accept: the reasoning took all tokens.
		if !o.Known.AcceptTruncated || o.Form == formEmpty || o.Form == formReasoning {
			return judgement{class: Permanent, reason: ReasonTruncated}
		}
	case finishUnfinished:
		// The model decides each time whether it calls a tool or stops early, so a few
		// further attempts are worth their cost.
		return judgement{class: Transient, reason: ReasonTruncated, general: true}
	case finishDeadEnd:
		return judgement{class: Permanent, reason: ReasonTruncated, general: true}
	case finishStop:
	}
	switch o.Form {
	case formNoChoices:
		return judgement{class: Transient, reason: ReasonEmptyChoices, general: true}
	case formEmpty, formReasoning:
		return judgement{class: Transient, reason: ReasonEmptyContent, general: true}
	case formReply, formNotJSON, formNotUTF8, formMalformed, formDimensions, formTooLarge:
	}
	return judgement{}
}

// judgeStatus judges an error by the words of its error object first, since one status
// may mean several things, and then by status. status is the status of the reply, or the
// one that an error object inside a 200 names; 0 means that it names none.
func judgeStatus(o *ending, status int) judgement {
	if o.Fault != nil {
		if j := judgeFault(o, status); j.class != 0 {
			return j
		}
	}
	switch status {
	case 0:
		return callFailed(Transient, OfServer) // an error object of unknown words
	case 429, 498, 503, 529:
		return callFailed(Capacity, OfRequest)
	case 401, 402, 403, 407:
		return callFailed(Fatal, OfRequest)
	case 404:
		// Most servers answer an unknown model and a wrong address alike.
		return unknownModel(o.Known)
	case 408, 499:
		return callFailed(Transient, OfServer) // a time-out on the server's side
	case 409, 424, 425:
		return callFailed(Transient, OfRequest)
	case 413:
		return callFailed(Permanent, OfRequest) // the row is too large
	case 501, 505, 506, 508, 510, 511:
		return rejected(true) // the same request meets the same answer
	}
	switch status / 100 {
	case 3:
		return callFailed(Fatal, OfRequest)
	case 4:
		return rejected(true)
	}
	return callFailed(Transient, OfServer)
}

// judgeFault judges by the typed fields of an error object; a zero class leaves the
// verdict to the status.
func judgeFault(o *ending, status int) judgement {
	f := o.Fault
	if dashScopeLimit(o) {
		return callFailed(Capacity, OfRequest)
	}
	// A status that speaks of this request alone is not turned into a limit.
	mayBeLimit := status == 0 || status == 402 || status == 429 || status >= 500
	// The narrowest word decides: a detail refines the code, the code the type.
	for _, means := range [...]meaning{f.means, words[f.Detail], words[f.Code], words[f.Type]} {
		switch means {
		case meansNothing:
		case meansCapacity:
			if mayBeLimit {
				return callFailed(Capacity, OfRequest)
			}
		case meansQuota:
			return callFailed(Capacity, OfRequest)
		case meansTransient:
			if status == 0 {
				return callFailed(Transient, OfServer)
			}
		case meansPermanent:
			return callFailed(Permanent, OfRequest)
		case meansFatal, meansNoCredit, meansDisabled:
			return callFailed(Fatal, OfRequest)
		case meansFiltered:
			return judgement{class: Permanent, reason: ReasonContentFiltered}
		case meansRefused:
			return judgement{class: Permanent, reason: ReasonRefused}
		case meansUnknownModel:
			return unknownModel(o.Known)
		case meansForbidden:
			// The key has worked before, so the server has refused the row. If many rows
			// in succession meet this, the key's permissions have changed.
			if o.Known.Proven {
				return rejected(true)
			}
		}
	}
	return judgement{}
}

// unknownModel judges an unknown model, and a 404 in general: the stage's own
// mistake until an attempt has succeeded, the row's afterwards.
func unknownModel(k Known) judgement {
	if k.Proven || k.RowModel {
		return rejected(!k.RowModel) // a model that the settings name may be withdrawn
	}
	return callFailed(Fatal, OfRequest)
}

// applyShouldRetry moves an error between transient and permanent, by the x-should-retry
// header of OpenAI and Anthropic. An error of capacity stays: a limit passes, even if the
// server advises against retrying this call. A fatal error stays, because a retry cannot
// fix it, and so does the origin.
func applyShouldRetry(h http.Header, j judgement) judgement {
	if j.class != Transient && j.class != Permanent {
		return j
	}
	switch h.Get("X-Should-Retry") {
	case "true":
		j.class, j.general = Transient, false
	case "false":
		j.class = Permanent
	}
	return j
}

// judgeErr judges an attempt whose reply did not come, or not whole.
func judgeErr(o *ending) judgement {
	err := o.Err
	transient := callFailed(Transient, OfNetwork)
	if o.Status != 0 || o.Progress&stepReplied != 0 || errors.Is(err, ErrTimeout) &&
		o.Progress&stepConnected != 0 {
		transient.origin = OfServer
	}
	if errors.Is(err, context.Canceled) {
		return judgement{}
	}
	if wraps[*unauthorizedError](err) || isTLS(err, o.Known.Proven) {
		return callFailed(Fatal, OfRequest)
	}
	if shortage(o) != nil {
		return callFailed(Transient, OfHost)
	}
	if e, ok := errors.AsType[*proxyError](err); ok {
		j := judgeStatus(&ending{Known: o.Known}, e.status)
		if j.class == Transient || e.status/100 == 5 {
			return transient // the server is unreachable, even if the proxy calls it otherwise
		}
		return j
	}
	if e, ok := errors.AsType[*net.DNSError](err); ok && e.IsNotFound && !o.Known.Proven {
		return callFailed(Fatal, OfRequest)
	}
	return transient
}

// isTLS reports whether the server's certificate was refused, or the other side refused
// ours or does not speak TLS. A certificate may expire at any time; the others, once a
// call has succeeded, are accidents.
func isTLS(err error, proven bool) bool {
	if wraps[*tls.CertificateVerificationError](err) {
		return true
	}
	return !proven && (errors.Is(err, http.ErrSchemeMismatch) ||
		wraps[tls.RecordHeaderError](err) || wraps[tls.AlertError](err))
}

func wraps[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

// hostShortage is something that this machine may lack for a connection.
type hostShortage struct {
	errno  syscall.Errno
	remedy string // what to change
}

var hostShortages = [...]hostShortage{
	{syscall.EMFILE, "this process has no file descriptor left: raise ulimit -n, LimitNOFILE or " +
		"the container's limit, or lower the pool size"},
	{syscall.ENFILE, "this machine has no file descriptor left: raise fs.file-max"},
	{syscall.EADDRNOTAVAIL, "this machine has no ephemeral port left: widen " +
		"net.ipv4.ip_local_port_range or lower the pool size; with an IPv6 address, check that " +
		"IPv6 is enabled"},
	{syscall.ENOBUFS, "this machine has no memory left for network buffers: free some or lower " +
		"the pool size"},
	{syscall.ENOMEM, "this machine has no memory left: free some or lower the pool size"},
	{syscall.ENETUNREACH, "this machine has no route to the server: check its network"},
	{syscall.EHOSTUNREACH, "this machine has no route to the server: check its network"},
}

// shortage returns what this machine lacked, where that kept the request from being sent,
// and nil otherwise.
func shortage(o *ending) *hostShortage {
	if o.Status != 0 || o.Progress&(stepSent|stepReplied) != 0 {
		return nil
	}
	dns, _ := errors.AsType[*net.DNSError](o.Err)
	for i := range hostShortages {
		s := &hostShortages[i]
		if errors.Is(o.Err, s.errno) {
			return s
		}
		// Go's resolver keeps the text alone of what it met.
		if dns != nil && strings.HasSuffix(dns.Err, s.errno.Error()) {
			return s
		}
	}
	return nil
}

// alikeWordBytes is longer than any provider's code or type. With a status before them,
// two such words keep [Error.Alike] within its bound.
const alikeWordBytes = 44

// alike returns [Error.Alike] of an attempt with judgement j. r holds the members read
// from the reply, or is nil without a reply.
func alike(o *ending, j *judgement, r *Reply, body []byte) string {
	if !j.general {
		return ""
	}
	if j.reason == ReasonAPICallFailed {
		return alikeStatus(o)
	}
	if j.reason == ReasonTruncated && isWord(r.FinishReason) {
		// Tools that the settings offer end every answer alike.
		return string(j.reason) + " " + r.FinishReason
	}
	if page, _ := readHTML(body); page && j.reason == ReasonInvalidJSONResponse {
		return "html"
	}
	return string(j.reason)
}

// alikeStatus names an error status by the provider's words. The member of the request
// that OpenAI names beside them is left out: one wrong setting may show up in several.
func alikeStatus(o *ending) string {
	name := strconv.Itoa(o.Status)
	if e, ok := errors.AsType[*proxyError](o.Err); ok {
		name = "proxy " + strconv.Itoa(e.status)
	}
	if o.Fault == nil {
		return name
	}
	if o.Status/100 == 2 {
		name = strconv.Itoa(o.Fault.Status)
	}
	for _, word := range [...]string{o.Fault.Type, o.Fault.Code} {
		if isWord(word) {
			name += " " + word
		}
	}
	return name
}

// isWord reports whether text is a code, and not a message that may quote the row.
func isWord(text string) bool {
	for _, c := range []byte(text) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return text != "" && len(text) <= alikeWordBytes
}

// connectionRefused is ECONNREFUSED as Windows spells it; no other system has an error of
// that number.
const connectionRefused = syscall.Errno(10061)

// absent reports whether nothing listens at the server's address, and no call has
// succeeded yet: the server has not been started, or the address is wrong. Later a
// refused connection is an outage like any other.
func absent(o *ending) bool {
	if o.Status != 0 || o.Progress != 0 || o.Known.Proven {
		return false
	}
	return errors.Is(o.Err, syscall.ECONNREFUSED) || errors.Is(o.Err, connectionRefused)
}

// defaultPorts are the ports of URLs that name none.
var defaultPorts = map[string]string{"http": "80", "https": "443"}

// explainAbsent is the text of an attempt for which [absent] holds.
func explainAbsent(o *ending) error {
	if proxy, ok := proxyAddress(o.Err); ok {
		return fmt.Errorf("nothing listens at %s: is the proxy started? (%w)", proxy, o.Err)
	}
	return fmt.Errorf("nothing listens at %s: is the server started? (%w)", serverAddress(o), o.Err)
}

// proxyAddress returns the address of the proxy that could not be reached, if it is one.
func proxyAddress(err error) (addr string, ok bool) {
	outer, ok := errors.AsType[*net.OpError](err)
	if !ok || outer.Op != "proxyconnect" {
		return "", false
	}
	if dial, ok := errors.AsType[*net.OpError](outer.Err); ok && dial.Addr != nil {
		return dial.Addr.String(), true
	}
	return "the proxy's address", true
}

// serverAddress returns host and port as the base URL names them or, without one, as they
// were dialled.
func serverAddress(o *ending) string {
	if u := o.URL; u != nil {
		return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), defaultPorts[u.Scheme]))
	}
	if dial, ok := errors.AsType[*net.OpError](o.Err); ok && dial.Addr != nil {
		return dial.Addr.String()
	}
	return "the server's address"
}
