package metrics

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stagetest"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	genai "go.opentelemetry.io/otel/semconv/v1.41.0/genaiconv" // the last one that has generative AI
	collector "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/protobuf/proto"
)

// exported returns an exporter of metrics with the log that it writes.
func exported(t *testing.T, to sdkmetric.Exporter) (*Exporter, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	m := busyMetrics()
	m.CallDone(&auditlog.Call{Provider: "openai", Model: "gpt-5", Status: auditlog.CallSuccess, Lane: auditlog.LaneBatch, Latency: time.Hour}, "", "")
	m.CallDone(&auditlog.Call{Provider: "openai", Model: "small", Status: auditlog.CallSuccess, Rows: []uint64{1, 2}, Latency: 2 * time.Second}, "", "")
	x := NewExporter(config.MetricsConfig{OTLP: true}, m, "run", slog.New(slog.NewTextHandler(&log, nil)))
	x.start(t.Context(), to)
	return x, &log
}

// The histogram of calls has the names of the conventions at the collector, and all
// others keep those of Prometheus.
func TestMetricsReachTheCollectorAtTheEnd(t *testing.T) {
	var got []*metricspb.ResourceMetrics
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var export collector.ExportMetricsServiceRequest
		if err := proto.Unmarshal(stagetest.Value(io.ReadAll(r.Body))(t), &export); err != nil {
			t.Error(err)
		}
		got = append(got, export.GetResourceMetrics()...)
	}))
	t.Cleanup(srv.Close)
	x, log := exported(t, stagetest.Value(otlpmetrichttp.New(t.Context(), otlpmetrichttp.WithEndpointURL(srv.URL+"/v1/metrics")))(t))
	x.Close(t.Context())
	if len(got) != 1 || log.Len() > 0 {
		t.Fatalf("%d exports, log %s", len(got), log)
	}
	if resource := got[0].GetResource().String(); !strings.Contains(resource, "llm-stage") || !strings.Contains(resource, "service.instance.id") {
		t.Errorf("resource %s", resource)
	}
	byName := make(map[string]*metricspb.Metric)
	for _, m := range got[0].GetScopeMetrics()[0].GetMetrics() {
		byName[m.GetName()] = m
	}
	if scope := got[0].GetScopeMetrics()[0].GetScope().GetName(); scope != "github.com/llm-stage/stage" {
		t.Errorf("scope %s", scope)
	}
	for _, name := range []string{"llm_stage_calls_total", "llm_stage_rows_total", "llm_stage_in_flight_calls", "go_goroutines"} {
		if byName[name] == nil {
			t.Errorf("%s is missing", name)
		}
	}
	if m := byName["llm_stage_call_duration_seconds"]; m.GetUnit() != "s" || m.GetHistogram().GetAggregationTemporality() != metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE {
		t.Errorf("duration of calls: %v", m)
	}
	theirs := genai.ClientOperationDuration{}
	m := byName[theirs.Name()]
	if m.GetUnit() != theirs.Unit() || m.GetDescription() != theirs.Description() || byName[operationName] != nil {
		t.Errorf("%s: unit %q, description %q", theirs.Name(), m.GetUnit(), m.GetDescription())
	}
	var points []string
	for _, p := range m.GetHistogram().GetDataPoints() {
		var attributes []string
		for _, a := range p.GetAttributes() {
			value := fmt.Sprint(a.GetValue().GetStringValue())
			if a.GetValue().GetIntValue() != 0 {
				value = fmt.Sprint(a.GetValue().GetIntValue())
			}
			attributes = append(attributes, a.GetKey()+"="+value)
		}
		slices.Sort(attributes)
		points = append(points, fmt.Sprint(strings.Join(attributes, " "), ": ", p.GetCount(), " calls in ", p.GetSum(), " s"))
		if !slices.Equal(p.GetExplicitBounds(), operationBuckets) {
			t.Errorf("buckets %v", p.GetExplicitBounds())
		}
	}
	slices.Sort(points)
	const common = "gen_ai.operation.name=chat gen_ai.provider.name=openai gen_ai.request.model=gpt-5 server.address=llm.test server.port=8080: "
	if want := []string{"error.type=429 " + common + "1 calls in 0.02 s", common + "1 calls in 1.2 s", "gen_ai.operation.name=embeddings gen_ai.provider.name=openai gen_ai.request.model=small: 1 calls in 2 s"}; !slices.Equal(points, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(points, "\n"), strings.Join(want, "\n"))
	}
}

// unreachable is an exporter whose collector does not answer, or answers with an error.
type unreachable struct {
	sdkmetric.Exporter
	hangs bool
}

func (u unreachable) Temporality(sdkmetric.InstrumentKind) metricdata.Temporality {
	return metricdata.CumulativeTemporality
}

func (u unreachable) Aggregation(k sdkmetric.InstrumentKind) sdkmetric.Aggregation {
	return sdkmetric.DefaultAggregationSelector(k)
}

func (u unreachable) Export(ctx context.Context, _ *metricdata.ResourceMetrics) error {
	if u.hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return errors.New("connection refused")
}

func (u unreachable) Shutdown(context.Context) error { return nil }

func TestACollectorThatIsAwayCostsAFewLinesInTheLog(t *testing.T) {
	x, log := (*Exporter)(nil), (*bytes.Buffer)(nil)
	t.Setenv("OTEL_METRIC_EXPORT_INTERVAL", "10000")
	synctest.Test(t, func(t *testing.T) {
		x, log = exported(t, unreachable{})
		time.Sleep(time.Hour)
		x.Close(t.Context())
	})
	if n := strings.Count(log.String(), `msg="metrics were not exported"`); n != 6 {
		t.Errorf("%d lines in an hour, want one in ten minutes:\n%s", n, log)
	}
	if !strings.Contains(log.String(), "the last metrics were not exported") {
		t.Errorf("the end is not in the log:\n%s", log)
	}
}

func TestTheEndWaitsForACollectorThatHangsNoLongerThanItsBound(t *testing.T) {
	for _, hard := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			x := NewExporter(config.MetricsConfig{OTLP: true}, busyMetrics(), "run", slog.New(slog.DiscardHandler))
			x.start(ctx, unreachable{hangs: true})
			time.Sleep(61 * time.Second) // an export hangs, too
			want := flushTimeout
			if hard {
				cancel()
				want = hardFlushTimeout
			}
			begin := time.Now()
			x.Close(ctx)
			if took := time.Since(begin); took != want {
				t.Errorf("hard %v: the end took %v, want %v", hard, took, want)
			}
			cancel()
		})
	}
}

func TestWithoutAnExporterThereIsNone(t *testing.T) {
	x := NewExporter(config.MetricsConfig{}, nil, "run", nil)
	if err := x.Start(t.Context()); x != nil || err != nil {
		t.Errorf("got %v, %v", x, err)
	}
	x.Close(t.Context())
}
