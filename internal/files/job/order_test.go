package job

import (
	"strings"
	"testing"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

func TestTheOrderOfAJobStaysWhileRowsWait(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	end := func(subject, body, ahead string) {
		m := &nats.Msg{Subject: subject, Data: []byte(body), Header: nats.Header{streams.HeaderLow: {"3"}}}
		if ahead != "" {
			m.Header.Set(streams.HeaderAhead, ahead)
		}
		b.Publish(m)
	}
	claim := func(order, ahead string) func() {
		return func() { end("results.stage.0.claim", `{"version":2,`+order+`}`, ahead) }
	}
	for _, tt := range []struct {
		name  string
		store func()
		may   []string // orders that are not refused
		way   string
	}{
		{"nothing", func() {}, []string{"stream", "none", "key field.a", "key field.b"}, ""},
		{"nothing waits", claim(`"order":"none"`, ""), []string{"stream", "none", "key field.a", "key field.b"}, ""},
		{"rows wait", claim(`"order":"none"`, "2"), []string{"none"}, "run the same command with --order none until"},
		{"by key", claim(`"order":"key","order_key":"field.a"`, "2"), []string{"key field.a"}, "run the same command with --order key --order-key field.a until"},
		{"a result after the claim", func() { end("results.stage.0.rows", "{}", "1") }, []string{"key field.a"}, "from --order key --order-key field.a to"},
		{"the last of them", func() { end("results.stage.0.rows", "{}", "") }, []string{"stream", "none", "key field.a", "key field.b"}, ""},
		{"no claim", func() { b.Purge("RESULTS", 0); end("results.stage.0.rows", "{}", "1") }, []string{"stream", "none", "key field.a", "key field.b"}, ""},
		{"no stream", func() { b.Drop("RESULTS") }, []string{"stream", "none", "key field.a", "key field.b"}, ""},
	} {
		tt.store()
		for _, order := range []string{"stream", "none", "key field.a", "key field.b"} {
			mode, place, _ := strings.Cut(order, " ")
			err := checkOrder(t.Context(), b.NC, stagetest.Config(t, "STAGE_ORDER", mode, "STAGE_ORDER_KEY", place), "j")
			may := strings.Contains(strings.Join(tt.may, ","), order)
			if may != (err == nil) || err != nil && (!config.IsInvalid(err) || !strings.Contains(err.Error(), tt.way) || !strings.HasPrefix(err.Error(), "job j: ")) {
				t.Errorf("%s: order %s: %v", tt.name, order, err)
			}
		}
	}
}

func TestALimitKeepsRowsFromRunningAhead(t *testing.T) {
	cfg := stagetest.Config(t, "STAGE_ORDER", "none", "STAGE_WINDOW", "200")
	if all, some := spanOf(cfg, 0), spanOf(cfg, 1000); all != 65536 || some != 200 {
		t.Errorf("got %d, and %d with a limit, want 65536 and the window, 200", all, some)
	}
}
