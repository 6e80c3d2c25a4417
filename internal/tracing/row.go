package tracing

import (
	"cmp"
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// rowTracer begins the spans of one partition's rows. It implements [consumer.Tracer].
type rowTracer struct {
	*Tracing
	name       string // of the spans
	attributes []attribute.KeyValue
}

// Tracer returns the tracer of a partition's rows, nil if tracing is off. t must be
// started before the first row.
func (t *Tracing) Tracer(cfg *config.Config, partition int) consumer.Tracer {
	if t == nil {
		return nil
	}
	filter := cfg.Input.PartitionSubject(partition)
	return &rowTracer{Tracing: t, name: "process " + filter, attributes: []attribute.KeyValue{
		attrMessagingSystem.String("nats"),
		attrMessagingOperationName.String("process"),
		attrMessagingOperationType.String("process"),
		attrMessagingTemplate.String(filter),
		attrMessagingPartition.String(strconv.Itoa(partition)),
		attrMessagingGroup.String(streams.DurableName(cfg.Name, partition)),
		attrRowStream.String(cfg.Input.Stream),
	}}
}

// Row is the span of a row, from taken to emitted. It implements [consumer.Trace]. A nil
// Row is valid and means that the row is not traced. It is safe for concurrent use.
type Row struct {
	span    trace.Span
	tracing *Tracing
	taken   time.Time
	header  nats.Header // of the row's result
	started atomic.Bool // a call has begun: of a row that fans out the first of several
}

// FromRow returns the span of a row, or nil.
func FromRow(row *consumer.Row) *Row {
	if row == nil {
		return nil
	}
	t, _ := row.Trace().(*Row)
	return t
}

// RowTaken begins the span of a row, as a child of the span that the row's traceparent
// names.
func (t *rowTracer) RowTaken(row *consumer.Row) consumer.Trace {
	format := propagation.TraceContext{}
	ctx := format.Extract(context.Background(), rowCarrier(row.Header))
	_, span := t.tracer.Start(ctx, t.name, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithTimestamp(row.Taken),
		trace.WithAttributes(t.attributes...), trace.WithAttributes(
			attrMessagingDestination.String(streams.Text(row.Subject)),
			attrMessagingMessageID.String(strconv.FormatUint(row.Seq, 10)),
			attrMessagingBodySize.Int(len(row.Body)),
			attrRowStateID.String(row.StateID),
		))
	carrier := propagation.MapCarrier{}
	format.Inject(trace.ContextWithSpan(ctx, span), carrier)
	return &Row{span: span, tracing: t.Tracing, taken: row.Taken, header: resultHeader(row.Header, carrier)}
}

// rowCarrier reads the headers of a row in any case: NATS keeps the case, and some
// clients write Traceparent.
type rowCarrier nats.Header

// Get returns the first value of a header.
func (c rowCarrier) Get(name string) string {
	if values := c[name]; len(values) > 0 {
		return values[0]
	}
	for key, values := range c {
		if strings.EqualFold(key, name) && len(values) > 0 {
			return values[0]
		}
	}
	return ""
}

// Set does nothing, and is not called: a row is never changed.
func (rowCarrier) Set(string, string) {}

// Keys returns nothing: the propagator in use does not call it.
func (c rowCarrier) Keys() []string { return nil }

// resultHeader returns the tracing headers of a result: the context of the row's span
// replaces the row's own, in whichever case the row wrote its header names. A tracestate
// without a valid traceparent was dropped; it gets no value, so it is not passed on.
func resultHeader(own nats.Header, carrier propagation.MapCarrier) nats.Header {
	header := make(nats.Header, 2)
	for key := range own {
		if name := strings.ToLower(key); name == headerTraceParent || name == headerTraceState {
			header[key] = []string{}
		}
	}
	for name, value := range carrier {
		spelt := false
		for key := range header {
			if strings.EqualFold(key, name) {
				header[key], spelt = []string{value}, true
			}
		}
		if !spelt {
			header[name] = []string{value}
		}
	}
	return header
}

// Header returns the headers of the row's result. It implements [consumer.Trace].
func (t *Row) Header() nats.Header { return t.header }

// Emitted ends the span with the facts of the row event. It implements [consumer.Trace].
func (t *Row) Emitted(reply *consumer.Reply, at time.Time) {
	if !t.span.IsRecording() {
		return
	}
	e := &reply.Event
	status := auditlog.RowSuccess
	if reply.Failed {
		status = auditlog.RowError
		t.fail(reply)
	}
	t.span.SetAttributes(attrRowStatus.String(status), attrRowAttempts.Int(e.Attempts), attrRowCapacityRetries.Int(e.CapacityRetries))
	if e.Source != "" {
		t.span.SetAttributes(attrRowSource.String(e.Source))
	}
	// A reply from the journal was begun and finished in an earlier term, before this
	// span.
	if !e.StartedAt.Before(t.taken) {
		t.span.SetAttributes(attrRowQueued.Float64(e.StartedAt.Sub(t.taken).Seconds()))
	}
	if e.FinishedAt.After(t.taken) {
		t.span.AddEvent(eventRowFinished, trace.WithTimestamp(e.FinishedAt))
		t.span.SetAttributes(attrRowHeld.Float64(at.Sub(e.FinishedAt).Seconds()))
	}
	t.span.End(trace.WithTimestamp(at))
}

// fail records why the result is an error, by the result's reason. Error texts may quote
// a payload and are left out.
func (t *Row) fail(reply *consumer.Reply) {
	reason := cmp.Or(reply.Event.Reason, reply.UpstreamReason)
	t.span.SetAttributes(AttrErrorType.String(reason))
	t.span.SetStatus(codes.Error, reason)
}

// Abandoned ends the span of a row that another term of ownership emits. It implements
// [consumer.Trace].
func (t *Row) Abandoned(at time.Time) {
	t.span.SetAttributes(attrRowStatus.String(rowStatusAbandoned))
	t.span.End(trace.WithTimestamp(at))
}

// SharesWith links the span to the span of the row whose call answered this one too.
// Either may be nil.
func (t *Row) SharesWith(other *Row) {
	if t != nil && other != nil && t != other { // equal elements of one row share a call, too
		t.span.AddLink(trace.Link{SpanContext: other.span.SpanContext()})
	}
}
