package consumer_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/stagetest"
)

// Wherever a row of the partition is, one kind says why it waits; what makes all of them wait is in the status.
func TestTheConsumerSaysWhyARowWaits(t *testing.T) {
	first := func(after time.Duration) *sleeper { return slowRow(1, after, 50*time.Millisecond) }
	for name, tt := range map[string]struct {
		change func(b *testbed, cfg *consumer.Config) // before it starts
		then   func(b *testbed, r *replica)           // once it runs
		seq    uint64
		kind   hold.Kind
		by     string
		listed hold.Kind // in the status, or empty
	}{
		"the executor has it":    {nil, nil, 1, hold.Turn, "", ""},
		"an earlier one is open": {nil, nil, 2, hold.Order, "row 1", ""},
		"the window is full":     {func(_ *testbed, cfg *consumer.Config) { cfg.WindowRows = 4 }, nil, 9, hold.Pending, "rows", hold.Window},
		"it is paused":           {func(_ *testbed, cfg *consumer.Config) { cfg.Executor = first(0) }, func(b *testbed, r *replica) { b.until(12); r.Pause(true); b.load(3) }, 13, hold.Operator, "", ""},
		"the process stops":      {func(_ *testbed, cfg *consumer.Config) { cfg.Executor = first(scaled().aLongTime) }, func(b *testbed, r *replica) { r.Pause(true); b.load(3); time.Sleep(2 * time.Second); r.soft() }, 13, hold.Stopping, "", ""},
		"it goes elsewhere": {func(_ *testbed, cfg *consumer.Config) { cfg.Executor = first(scaled().aLongTime) }, func(b *testbed, r *replica) {
			r.Pause(true)
			b.load(3)
			time.Sleep(2 * time.Second)
			r.StandAside(true)
		}, 13, hold.HandOver, "", hold.HandOver},
		"results are full": {func(_ *testbed, cfg *consumer.Config) { cfg.Executor = first(0) }, func(b *testbed, _ *replica) {
			b.until(12)
			stagetest.Fill(b.t, b.js, "RESULTS", true)
			b.load(40)
		}, 40, hold.Results, "", hold.Results},
		"its key has its share": {func(b *testbed, cfg *consumer.Config) {
			*cfg = b.ordered(streams.OrderKey, "run1", first(scaled().aLongTime))
			cfg.OrderSpan = 4096
			b.loadHot(300)
		}, nil, 120, hold.SetAside, "row 1", ""},
		"it has its result": {nil, nil, 0, "", "", ""},
	} {
		runOnTestbed(t, name, func(t *testing.T, b *testbed) {
			cfg := b.config("run1", first(scaled().aLongTime))
			if tt.change != nil {
				tt.change(b, &cfg)
			}
			b.load(12)
			r := b.startWith(cfg)
			time.Sleep(2 * time.Second)
			if tt.then != nil {
				tt.then(b, r)
				time.Sleep(2 * time.Second)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			h := r.RowHold(ctx, tt.seq)
			switch {
			case tt.kind == "":
				if h != nil {
					t.Errorf("got %+v, want nothing", h)
				}
			case h == nil || h.Kind != tt.kind || h.Scope != hold.Row || h.Name != hold.RowName(tt.seq) || !strings.HasPrefix(h.By, tt.by):
				t.Errorf("got %+v, want %s by %q", h, tt.kind, tt.by)
			}
			listed := hold.List(r.Status().Holds)
			if tt.listed == "" && len(listed) > 0 || tt.listed != "" && (len(listed) != 1 || listed[0].Kind != tt.listed || listed[0].Name != "0" || listed[0].Since.IsZero()) {
				t.Errorf("listed: %v, want %q", listed, tt.listed)
			}
			r.kill()
		})
	}
}
