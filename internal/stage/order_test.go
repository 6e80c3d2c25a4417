package stage

import (
	"testing"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

func TestTheOrderIsThatOfTheSettings(t *testing.T) {
	row := &consumer.Row{Subject: "rows.eu", Header: nats.Header{"Tenant": {"acme"}}, Body: []byte(`{"tenant":7}`)}
	for _, tt := range []struct {
		order, place string
		want         streams.Order
		key          string
	}{
		{"stream", "subject", streams.OrderStream, ""},
		{"none", "field.tenant", streams.OrderNone, ""},
		{"key", "subject", streams.OrderKey, "rows.eu"},
		{"key", "subject.2", streams.OrderKey, "eu"},
		{"key", "header.Tenant", streams.OrderKey, "acme"},
		{"key", "field.tenant", streams.OrderKey, "7"},
	} {
		cfg := stagetest.Config(t, "STAGE_ORDER", tt.order, "STAGE_ORDER_KEY", tt.place, "STAGE_ORDER_SPAN", "3000")
		got := (&Stage{view: view{Cfg: cfg}}).consumerConfig(0)
		if got.Order != tt.want || got.OrderSpan != 3000 {
			t.Errorf("%s: order %s, span %d", tt.order, got.Order, got.OrderSpan)
		}
		switch {
		case tt.key == "" && (got.Key != nil || got.OrderKey != ""):
			t.Errorf("%s: a key without need: %s", tt.order, got.OrderKey)
		case tt.key != "" && (got.OrderKey != tt.place || got.Key(row) != tt.key):
			t.Errorf("%s: key %s is %q, want %q", tt.place, got.OrderKey, got.Key(row), tt.key)
		}
	}
}
