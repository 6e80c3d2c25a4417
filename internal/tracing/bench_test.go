package tracing

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/redact"
	"github.com/llm-stage/stage/pool"
	"github.com/nats-io/nats.go"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// noSpans is an exporter that drops spans at no cost.
type noSpans struct{}

func (noSpans) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return nil }

func (noSpans) Shutdown(context.Context) error { return nil }

// traced is a row with its one call, as tracing sees them.
type traced struct {
	tracer   consumer.Tracer
	row      *consumer.Row
	prepared *llm.Prepared
	call     *auditlog.Call
	exchange *llm.Exchange
	reply    *consumer.Reply
}

// newTraced returns a row with tracing on, or off as it is by default.
func newTraced(tb testing.TB, on bool) *traced {
	tb.Helper()
	environ := map[string]string{"STAGE_LLM_PROVIDER": "openai", "STAGE_LLM_MODEL": "m", "STAGE_LLM_API_KEY": "sk-bench-0123456789", "STAGE_LLM_BASE_URL": "http://llm.test/v1", "STAGE_TEMPLATE": "x"}
	cfg, err := config.Source{Environ: environ}.Load(tb.Context(), config.NeedCalls)
	if err != nil {
		tb.Fatal(err)
	}
	client, err := llm.NewProvider(llm.OpenAI, llm.ProviderConfig{APIKey: redact.NewSecret("sk-bench-0123456789"), BaseURL: "http://llm.test/v1", Model: "m", Concurrency: 1, Timeout: time.Minute, MaxReplyBytes: 1 << 20})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(client.Close)
	var spans sdktrace.SpanExporter
	if on {
		spans = noSpans{}
	}
	t := New(cfg, spans, io.Discard, "run", slog.New(slog.DiscardHandler))
	if err := t.Start(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { t.Close(context.WithoutCancel(tb.Context())) })
	prepared, err := client.Prepare(&llm.Request{Prompt: "x"})
	if err != nil {
		tb.Fatal(err)
	}
	now := time.Now()
	return &traced{
		tracer: t.Tracer(cfg, 0), prepared: prepared,
		row: &consumer.Row{
			Seq: 1, Subject: "rows.a", StateID: "stage/ROWS/0/1", Taken: now,
			Header: nats.Header{"traceparent": {"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}},
		},
		call:     &auditlog.Call{CallID: "id", Status: auditlog.CallSuccess},
		exchange: &llm.Exchange{Status: 200, Reply: &llm.Reply{Model: "m", FinishReason: "stop", Usage: &llm.Usage{PromptTokens: 1}}},
		reply:    &consumer.Reply{Event: auditlog.Row{StartedAt: now, FinishedAt: now.Add(1), Source: auditlog.SourceCall}},
	}
}

// walk makes the spans, as consumer and executor do.
func (w *traced) walk(ctx context.Context) {
	var trace *Row
	if w.tracer != nil {
		trace = w.tracer.RowTaken(w.row).(*Row)
	} else {
		trace = FromRow(w.row)
	}
	span := trace.Call(ctx, llm.OpenAI, w.prepared, &llm.Request{}, pool.Attempt{Number: 1})
	span.ExchangeEnded()
	span.End(w.call, w.exchange, nil)
	if trace != nil {
		trace.Emitted(w.reply, time.Now())
	}
}

func TestTracingThatIsOffCostsNoAllocation(t *testing.T) {
	w := newTraced(t, false)
	if w.tracer != nil {
		t.Error("there is a tracer without any OTEL_* variable")
	}
	if n := testing.AllocsPerRun(100, func() { w.walk(t.Context()) }); n != 0 {
		t.Errorf("%v allocations a row, want none", n)
	}
}

// BenchmarkTracing measures the cost of tracing one row with one call.
func BenchmarkTracing(b *testing.B) {
	for _, name := range []string{"off", "on"} {
		b.Run(name, func(b *testing.B) {
			w := newTraced(b, name == "on")
			ctx := b.Context()
			b.ReportAllocs()
			for b.Loop() {
				w.walk(ctx)
			}
		})
	}
}
