package tracing

import (
	"context"
	"errors"
	"net"
	"net/url"
	"strconv"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/pool"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Call is the span of one attempt; nil means that the attempt is not recorded. Only one
// goroutine may use it.
//
// The span's context is not sent to the provider: it would show a third party which
// requests belong together, it has no use there, and the request would no longer be the
// same bytes in each attempt.
type Call struct {
	span   trace.Span
	row    *Row
	number int       // of the attempt
	ended  time.Time // when the exchange ended
}

// Call begins the span of an attempt to send a request to a provider. It must be ended
// with [Call.End].
func (t *Row) Call(ctx context.Context, provider string, p *llm.Prepared, r *llm.Request, a pool.Attempt) *Call {
	if t == nil || !t.span.IsRecording() {
		return nil
	}
	if a.Number == 1 && t.started.CompareAndSwap(false, true) {
		t.span.AddEvent(eventRowStarted, trace.WithTimestamp(a.Dispatched))
	}
	operation := Operation(len(r.Inputs) > 0)
	attributes := append(make([]attribute.KeyValue, 0, 12),
		AttrGenAIOperation.String(operation),
		AttrGenAIProvider.String(GenAIProvider(provider)),
		AttrGenAIRequestModel.String(p.Model),
		attrCallAttempt.Int(a.Number),
		attrCallDispatchDelay.Float64(a.DispatchDelay.Seconds()),
	)
	attributes = appendServer(attributes, p.Target())
	if v := r.Temperature; v != nil {
		attributes = append(attributes, attrGenAITemperature.Float64(*v))
	}
	if v := r.MaxTokens; v != nil {
		attributes = append(attributes, attrGenAIMaxTokens.Int(*v))
	}
	if a.Number > 1 {
		attributes = append(attributes, attrHTTPResendCount.Int(a.Number-1))
	}
	if a.Probe {
		attributes = append(attributes, attrCallProbe.Bool(true))
	}
	_, span := t.tracing.tracer.Start(trace.ContextWithSpan(ctx, t.span), operation+" "+p.Model,
		trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attributes...))
	return &Call{span: span, row: t, number: a.Number}
}

// appendServer adds the server of a target, which is host, port and path.
func appendServer(attributes []attribute.KeyValue, target string) []attribute.KeyValue {
	address, port := Server(target)
	if address != "" {
		attributes = append(attributes, AttrServerAddress.String(address))
	}
	if n, err := strconv.Atoi(port); err == nil {
		attributes = append(attributes, AttrServerPort.Int(n))
	}
	return attributes
}

// Server returns the host and the port of a target, which is host, port and path. port is
// empty where the target leaves it to the scheme.
func Server(target string) (address, port string) {
	u, err := url.Parse("//" + target)
	if err != nil {
		return "", ""
	}
	if host, port, err := net.SplitHostPort(u.Host); err == nil {
		return host, port
	}
	return u.Host, ""
}

// ExchangeEnded sets when the span ends: the work that follows is the stage's own.
func (c *Call) ExchangeEnded() {
	if c != nil {
		c.ended = time.Now()
	}
}

// End ends the span with the outcome of the attempt; failure is nil if it succeeded. A
// failure is an event of the row's span too: from then on the row waits for its next
// attempt.
func (c *Call) End(call *auditlog.Call, x *llm.Exchange, failure *llm.Error) {
	if c == nil {
		return
	}
	attributes := append(make([]attribute.KeyValue, 0, 16), attrCallID.String(call.CallID), attrCallStatus.String(string(call.Status)))
	var item []attribute.KeyValue
	if call.Item != nil {
		item = []attribute.KeyValue{attrCallItem.Int(*call.Item)}
		attributes = append(attributes, item...)
	}
	if x.Status != 0 {
		attributes = append(attributes, attrHTTPStatus.Int(x.Status))
	}
	if x.RetryAfter > 0 {
		attributes = append(attributes, attrCallRetryAfter.Float64(x.RetryAfter.Seconds()))
	}
	attributes = appendReply(attributes, x.Reply)
	if u := call.Usage; u != nil && u.CostUSD != nil {
		attributes = append(attributes, attrCallCost.Float64(*u.CostUSD))
	}
	if failure != nil {
		kind := ErrorType(failure, x)
		why := append(make([]attribute.KeyValue, 0, 3), AttrErrorType.String(kind))
		if class := failure.Class.String(); class != "" {
			why = append(why, attrCallErrorClass.String(class))
		}
		c.span.SetStatus(codes.Error, kind)
		c.row.span.AddEvent(eventAttemptFailed, trace.WithTimestamp(c.ended), trace.WithAttributes(attrCallAttempt.Int(c.number)), trace.WithAttributes(item...), trace.WithAttributes(why...))
		attributes = append(attributes, why...)
	}
	c.span.SetAttributes(attributes...)
	c.span.End(trace.WithTimestamp(c.ended))
}

// appendReply adds what the server reported of its reply.
func appendReply(attributes []attribute.KeyValue, r *llm.Reply) []attribute.KeyValue {
	if r == nil {
		return attributes
	}
	text := func(key attribute.Key, value string) {
		if value != "" {
			attributes = append(attributes, key.String(value))
		}
	}
	text(attrGenAIResponseModel, r.Model)
	text(attrGenAIResponseID, r.ID)
	if r.FinishReason != "" {
		attributes = append(attributes, attrGenAIFinishReasons.StringSlice([]string{r.FinishReason}))
	}
	u := r.Usage
	if u == nil {
		return attributes
	}
	attributes = append(attributes, attrGenAIInputTokens.Int64(u.PromptTokens), attrGenAIOutputTokens.Int64(u.CompletionTokens))
	known := func(key attribute.Key, tokens *int64) {
		if tokens != nil {
			attributes = append(attributes, key.Int64(*tokens))
		}
	}
	known(attrGenAICachedTokens, u.CachedTokens)
	known(attrGenAICacheWrites, u.CacheWriteTokens)
	known(attrGenAIReasoningTokens, u.ReasoningTokens)
	return attributes
}

// ErrorType classifies a failure in one of few words: the HTTP status of an error
// response or, without one, the failure of the connection or of the reply's content.
func ErrorType(failure *llm.Error, x *llm.Exchange) string {
	switch {
	case failure == nil:
		return ""
	case failure.Class == 0:
		return "cancelled"
	case x.Status >= 400:
		return strconv.Itoa(x.Status)
	case errors.Is(failure, llm.ErrTimeout):
		return "timeout"
	case x.Status == 0:
		return "connection"
	default:
		return string(failure.Reason)
	}
}
