package stage_test

import (
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// receiver is an OTLP receiver: it takes what an exporter sends over the wire, and keeps the spans.
type receiver struct {
	// answer returns the status of the response to a request, by its number from 0; 0 means 200. nil: all are accepted.
	answer func(n int) int
	// delay is how long each answer takes.
	delay time.Duration

	mu       sync.Mutex
	requests int
	faults   []error
	spans    []*span
}

// span is one span as it was received.
type span struct {
	Name       string
	Kind       tracepb.Span_SpanKind
	TraceID    string
	ID         string
	Parent     string // empty: none
	State      string
	Start, End time.Time
	Attributes map[string]any
	Events     []spanEvent
	Links      []string // ids of spans
	Failed     bool
	Message    string
	Resource   map[string]any
	Scope      string
}

type spanEvent struct {
	Name       string
	At         time.Time
	Attributes map[string]any
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	r.mu.Lock()
	n := r.requests
	r.requests++
	r.mu.Unlock()
	select {
	case <-time.After(r.delay):
	case <-req.Context().Done():
		return
	}
	if r.answer != nil && r.answer(n) != 0 {
		w.WriteHeader(r.answer(n))
		return
	}
	var export collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &export)
	}
	if got := req.Method + " " + req.URL.Path + " " + req.Header.Get("Content-Type"); got != "POST /v1/traces application/x-protobuf" {
		err = fmt.Errorf("not an export of traces: %s", got)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.faults = append(r.faults, err)
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	r.spans = append(r.spans, decodeSpans(&export)...)
	w.Header().Set("Content-Type", "application/x-protobuf") // an empty message: everything was accepted
}

func decodeSpans(export *collector.ExportTraceServiceRequest) (spans []*span) {
	for _, of := range export.GetResourceSpans() {
		resource := decodeAttributes(of.GetResource().GetAttributes())
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				one := &span{
					Name: s.GetName(), Kind: s.GetKind(), TraceID: hex.EncodeToString(s.GetTraceId()), ID: hex.EncodeToString(s.GetSpanId()),
					Parent: hex.EncodeToString(s.GetParentSpanId()), State: s.GetTraceState(), Attributes: decodeAttributes(s.GetAttributes()),
					Start: time.Unix(0, int64(s.GetStartTimeUnixNano())), End: time.Unix(0, int64(s.GetEndTimeUnixNano())),
					Failed: s.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR, Message: s.GetStatus().GetMessage(),
					Resource: resource, Scope: scope.GetScope().GetName(),
				}
				for _, e := range s.GetEvents() {
					one.Events = append(one.Events, spanEvent{e.GetName(), time.Unix(0, int64(e.GetTimeUnixNano())), decodeAttributes(e.GetAttributes())})
				}
				for _, l := range s.GetLinks() {
					one.Links = append(one.Links, hex.EncodeToString(l.GetSpanId()))
				}
				spans = append(spans, one)
			}
		}
	}
	return spans
}

func decodeAttributes(list []*common.KeyValue) map[string]any {
	attributes := make(map[string]any, len(list))
	for _, kv := range list {
		attributes[kv.GetKey()] = decodeValue(kv.GetValue())
	}
	return attributes
}

func decodeValue(v *common.AnyValue) any {
	switch v := v.GetValue().(type) {
	case *common.AnyValue_StringValue:
		return v.StringValue
	case *common.AnyValue_IntValue:
		return int(v.IntValue)
	case *common.AnyValue_DoubleValue:
		return v.DoubleValue
	case *common.AnyValue_BoolValue:
		return v.BoolValue
	case *common.AnyValue_ArrayValue:
		var list []any
		for _, e := range v.ArrayValue.GetValues() {
			list = append(list, decodeValue(e))
		}
		return list
	}
	return nil
}

// received returns the spans in the order of their start.
func (r *receiver) received(t *testing.T) []*span {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, fault := range r.faults {
		t.Error(fault)
	}
	spans := slices.Clone(r.spans)
	slices.SortStableFunc(spans, func(a, b *span) int { return a.Start.Compare(b.Start) })
	return spans
}

// rowSpan returns the span of a row, and the spans of its calls in the order of their start.
func (r *receiver) rowSpan(t *testing.T, seq int) (row *span, calls []*span) {
	t.Helper()
	all := r.received(t)
	for _, s := range all {
		if s.Attributes["messaging.message.id"] == fmt.Sprint(seq) {
			if row != nil {
				t.Errorf("row %d has two spans", seq)
			}
			row = s
		}
	}
	if row == nil {
		t.Fatalf("row %d has no span among %d", seq, len(all))
	}
	for _, s := range all {
		if s.Parent == row.ID {
			calls = append(calls, s)
		}
	}
	return row, calls
}

// trace makes replicas export to a receiver, with the real exporter over pipes.
func (s *site) trace(r *receiver) func(*deps) {
	s.t.Helper()
	pipe := llmtest.NewPipeListener()
	srv := &http.Server{Handler: r, ReadHeaderTimeout: time.Minute}
	var served sync.WaitGroup
	served.Go(func() { _ = srv.Serve(pipe) })
	transport := &http.Transport{DialContext: pipe.DialContext}
	s.t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = srv.Close()
		served.Wait()
	})
	return func(d *deps) { d.Spans = s.exporter(transport) }
}

func (s *site) exporter(transport http.RoundTripper) sdktrace.SpanExporter {
	s.t.Helper()
	e, err := otlptracehttp.New(s.t.Context(), otlptracehttp.WithEndpointURL("http://collector.test:4318/v1/traces"),
		otlptracehttp.WithHTTPClient(&http.Client{Transport: transport}))
	if err != nil {
		s.t.Fatal(err)
	}
	return e
}
