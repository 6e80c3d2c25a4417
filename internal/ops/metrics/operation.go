package metrics

import (
	"context"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/internal/tracing"
	"github.com/llm-stage/stage/internal/version"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// The duration of calls as OpenTelemetry's conventions for generative AI have it. It is a
// histogram of Prometheus like all others, under the name that Prometheus gives to the
// metric of the conventions: gen_ai.client.operation.duration in seconds is
// gen_ai_client_operation_duration_seconds, and gen_ai.provider.name is the label
// gen_ai_provider_name. What is exported over OTLP has the names of the conventions again.
const (
	operationName           = "gen_ai_client_operation_duration_seconds"
	operationConventionName = "gen_ai.client.operation.duration"
)

// operationAttributes are the attributes of this metric, in the order of
// [operationValues].
var operationAttributes = [...]attribute.Key{
	tracing.AttrGenAIOperation, tracing.AttrGenAIProvider, tracing.AttrGenAIRequestModel, tracing.AttrServerAddress, tracing.AttrServerPort, tracing.AttrErrorType,
}

// operationLabels returns the labels of Prometheus for the attributes.
func operationLabels() []string {
	labels := make([]string, len(operationAttributes))
	for i, key := range operationAttributes {
		labels[i] = labelOf(key)
	}
	return labels
}

// labelOf returns the label of Prometheus for an attribute.
func labelOf(key attribute.Key) string { return strings.ReplaceAll(string(key), ".", "_") }

// operationValues returns the values of the attributes of a call. One that the call lacks
// is empty: for Prometheus, a label with an empty value is the same as no label.
func operationValues(provider, model, target, failure string, embeds bool) []string {
	address, port := tracing.Server(target)
	return []string{tracing.Operation(embeds), tracing.GenAIProvider(provider), model, address, port, failure}
}

// conventional produces the metrics of another producer with the names, units and scope
// that OpenTelemetry gives them.
type conventional struct{ sdkmetric.Producer }

// Produce implements [sdkmetric.Producer].
func (c conventional) Produce(ctx context.Context) ([]metricdata.ScopeMetrics, error) {
	scopes, err := c.Producer.Produce(ctx)
	for i := range scopes {
		scopes[i].Scope = instrumentation.Scope{Name: tracing.ScopeName, Version: version.Current().Version}
		for j := range scopes[i].Metrics {
			conventions(&scopes[i].Metrics[j])
		}
	}
	return scopes, err
}

// conventions gives a metric its unit, which Prometheus has in the name, and restores the
// names of the conventions.
func conventions(m *metricdata.Metrics) {
	switch name := strings.TrimSuffix(m.Name, "_total"); {
	case strings.HasSuffix(name, "_seconds"):
		m.Unit = "s"
	case strings.HasSuffix(name, "_bytes"):
		m.Unit = "By"
	}
	histogram, ok := m.Data.(metricdata.Histogram[float64])
	if m.Name != operationName || !ok {
		return
	}
	m.Name = operationConventionName
	for i := range histogram.DataPoints {
		point := &histogram.DataPoints[i]
		point.Attributes = conventionalAttributes(point.Attributes)
	}
}

// conventionalAttributes returns attributes made of labels with the names and types of the
// conventions, and without those that have no value.
func conventionalAttributes(labels attribute.Set) attribute.Set {
	attributes := make([]attribute.KeyValue, 0, labels.Len())
	for _, label := range labels.ToSlice() {
		for _, key := range operationAttributes {
			if labelOf(key) == string(label.Key) {
				label.Key = key
			}
		}
		text := label.Value.AsString()
		if port, err := strconv.Atoi(text); err == nil && label.Key == tracing.AttrServerPort {
			label = label.Key.Int(port)
		}
		if text != "" {
			attributes = append(attributes, label)
		}
	}
	return attribute.NewSet(attributes...)
}
