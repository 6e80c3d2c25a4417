package stage

import (
	"bufio"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/lane"
	"github.com/llm-stage/stage/internal/ops/control"
	"github.com/llm-stage/stage/internal/ops/replicas"
	"github.com/llm-stage/stage/internal/ops/tail"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// tailOf returns what stage tail --row prints of a row.
func tailOf(l *lab, r *running, seq uint64) string {
	l.t.Helper()
	var text strings.Builder
	out := bufio.NewWriter(&text)
	err := tail.History(l.t.Context(), l.js, r.Cfg, out, tail.Options{Row: seq, Now: func(ctx context.Context) (calls []tail.InFlight, waits string) {
		_, wait := replicas.AskRow(ctx, l.nc, r.Cfg.Name, seq)
		if wait != nil {
			waits = wait.RowText(time.Now())
		}
		return nil, waits
	}})
	if err != nil && !tail.IsNoEvent(err) {
		l.t.Fatal(err)
	}
	_ = out.Flush()
	return text.String()
}

// checkPrinted compares what an operator reads: the row's kind is in its history, and each kind of the list
// may be listed, and is on the page of the status.
func checkPrinted(l *lab, r *running, seq uint64, kind hold.Kind, by string) {
	l.t.Helper()
	text, want := tailOf(l, r, seq), "waits: "+string(kind)
	if by != "" {
		want += " (" + by
	}
	if kind == "" {
		if strings.Contains(text, "waits: ") {
			l.t.Errorf("printed of row %d:\n%s\nwant no wait", seq, text)
		}
	} else if !strings.Contains(text, want) || strings.Contains(text, "waited for no") || hold.Find(kind).Shown == hold.Listed {
		l.t.Errorf("printed of row %d:\n%s\nwant %q", seq, text, want)
	}
	report := r.Status()
	var page strings.Builder
	stagetest.Must(l.t, report.WriteText(&page))
	for i := range report.Holds {
		h := &report.Holds[i]
		if hold.Find(h.Kind).Shown == hold.AboutRow || !strings.Contains(page.String(), h.String()) && (h.Why == "" || !strings.Contains(page.String(), h.Why)) {
			l.t.Errorf("%s is in the list, and printed is\n%s", h, &page)
		}
	}
}

// wait is why a row waits.
type wait struct {
	seq  uint64
	kind hold.Kind // empty: it does not
	by   string    // its beginning
	do   string    // a part of what to do
}

// Of each row that has no result one kind says why, wherever it is: not yet taken, before the executor, in the queue,
// behind an equal row, in the pool, in flight, or answered behind another. Tail prints it.
func TestARowThatWaitsSaysWhy(t *testing.T) {
	slow := llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
		if strings.HasPrefix(c.Prompt, "slow") {
			return &llmtest.Step{Delay: 3 * time.Hour}
		}
		return nil
	}}
	long := []string{"slow " + strings.Repeat("a", 400<<10), strings.Repeat("b", 400<<10)}
	for name, tt := range map[string]struct {
		llm   llmtest.Config
		vars  map[string]string
		rows  []string
		waits []wait
	}{
		"slow calls": {
			slow,
			map[string]string{"STAGE_POOL_SIZE": "2", "STAGE_DEDUPE": "inflight", "STAGE_WINDOW": "5"},
			[]string{"slow", "b", "slow", "slow, too", "e", "f"},
			[]wait{
				{1, hold.Call, "openai", "STAGE_LLM_TIMEOUT"},
				{2, hold.Order, "row 1", "stage tail --row 1"},
				{3, hold.Shared, "row 1", "by itself"},
				{5, hold.Slots, "", "STAGE_POOL_SIZE"},
				{6, hold.Pending, "rows", "order of the stream"},
				{9, "", "", ""},
			},
		},
		"no room for its bytes": {slow, map[string]string{"STAGE_WINDOW_BYTES": "1MiB"}, long, []wait{{2, hold.Pending, "bytes", "order of the stream"}}},
		"alone in a budget": {
			llmtest.Config{},
			map[string]string{"STAGE_BUDGET": "team", "STAGE_LLM_RPM": "1", "STAGE_POOL_SIZE": "2"},
			times("a", 5),
			[]wait{{5, hold.Throttle, "openai", "throttle"}},
		},
		"a limit per minute": {
			llmtest.Config{},
			map[string]string{"STAGE_LLM_RPM": "1", "STAGE_POOL_SIZE": "2"},
			times("a", 5),
			[]wait{{5, hold.Limit, "calls per minute", "STAGE_LLM_RPM"}},
		},
		"a bad key":   {llmtest.Config{Errors: map[int]float64{401: 1}}, nil, times("a", 2), []wait{{2, hold.Credentials, "openai", "correct the key"}}},
		"an outage":   {llmtest.Config{Errors: map[int]float64{500: 1}}, nil, times("a", 6), []wait{{6, hold.Outage, "openai", "status page"}}},
		"no capacity": {llmtest.Config{Errors: map[int]float64{429: 1}, RetryAfter: time.Hour}, nil, times("a", 1), []wait{{1, hold.Capacity, "openai", "STAGE_ROW_TIMEOUT"}}},
		"an operator, a partition": {
			llmtest.Config{},
			map[string]string{"STAGE_CONTROL": "true"},
			times("a", 1),
			[]wait{{1, "", "", ""}, {2, hold.Operator, "paused by alice", "stage resume"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			stagetest.Virtual(t, func(t *testing.T) {
				l := newLab(t, tt.llm, map[string]string{"STAGE_LLM_TIMEOUT": "4h", "STAGE_STOP_TIMEOUT": "5h"})
				l.load(tt.rows...)
				r := l.start(tt.vars, Options{})
				if name == "an operator, a partition" {
					l.await(1)
					r.steering.carryOut(t.Context(), &control.Order{Verb: control.Pause, Partition: new(0), By: control.By{User: "alice"}})
					l.load("b")
				}
				time.Sleep(90 * time.Second)
				for _, w := range tt.waits {
					w.check(l, r)
				}
				r.hard()
			})
		})
	}
}

func (w wait) check(l *lab, r *running) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), time.Second)
	defer cancel()
	h := r.RowHold(ctx, w.seq)
	if w.kind == "" {
		if h != nil {
			l.t.Errorf("row %d: got %+v, want nothing", w.seq, h)
		}
	} else if h == nil || h.Scope != hold.Row || h.Name != hold.RowName(w.seq) || h.Kind != w.kind ||
		!strings.HasPrefix(h.By, w.by) || w.by == "" && h.By != "" || !strings.Contains(h.Do, w.do) {
		l.t.Errorf("row %d: got  %+v\nwant %s by %q, to do %q", w.seq, h, w.kind, w.by, w.do)
	}
	checkPrinted(l, r, w.seq, w.kind, w.by)
}

// Row 1 is in a batch, and row 2 is answered: it is parked, too, and waits for row 1. Row 8 has no room in the lane.
func TestRowsOfTheLaneSayWhyTheyWait(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLaneLab(t, map[string]string{"STAGE_LANE_ROWS": "2", "STAGE_LANE_OPEN": "1"})
		l.load("a")
		l.publish(&nats.Msg{Header: nats.Header{streams.HeaderLane: {"live"}}, Data: []byte(`{"q":"b"}`)})
		r := l.start(nil, Options{lane: func(*batchLanes, int) (batchLane, error) { return silentLane{}, nil }})
		time.Sleep(30 * time.Second)
		l.load("c", "d", "e", "f", "g", "h")
		time.Sleep(30 * time.Second)
		checkPrinted(l.lab, r, 1, hold.Batch, "")
		checkPrinted(l.lab, r, 2, hold.Order, "row 1")
		checkPrinted(l.lab, r, 8, hold.Pending, hold.LaneRows)
		if full := r.gauges().Holds.First(func(h *hold.Hold) bool { return h.Kind == hold.Window }); full == nil || full.By != hold.LaneRows {
			t.Errorf("listed: %v, want the window, full of lane rows", full)
		}
		r.hard()
	})
}

// silentLane is a lane in which no row is ever answered.
type silentLane struct{ batchLane }

func (silentLane) Open(context.Context, consumer.LaneTerm) error { return nil }
func (silentLane) Use(*nats.Conn)                                {}
func (silentLane) Holds(*consumer.Row) bool                      { return false }
func (silentLane) Kept(uint64)                                   {}
func (silentLane) Stop()                                         {}
func (silentLane) Close()                                        {}
func (silentLane) Status() lane.Status                           { return lane.Status{Owned: true} }
func (silentLane) Add(lane.Request)                              {}

// With several partitions the one that the row is in answers: row 2 is called, row 4 waits in the stream behind it, and
// row 3 of the other partition has its result.
func TestEachPartitionAnswersForItsRows(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
			if c.Prompt == "slow" {
				return &llmtest.Step{Delay: 3 * time.Hour}
			}
			return nil
		}}, map[string]string{
			"STAGE_PARTITIONS": "2", "STAGE_INPUT_SUBJECT": "rows.{partition}.>", "STAGE_WINDOW": "1", "STAGE_LLM_TIMEOUT": "4h", "STAGE_STOP_TIMEOUT": "5h",
		})
		r := l.start(nil, Options{})
		time.Sleep(3 * time.Second) // it creates the streams
		for i, subject := range []string{"rows.1.a", "rows.0.a", "rows.1.a", "rows.0.a"} {
			question := []string{"a", "slow", "b", "c"}[i]
			stagetest.Value(l.js.Publish(t.Context(), subject, []byte(`{"q":"`+question+`"}`)))(t)
		}
		time.Sleep(90 * time.Second)
		checkPrinted(l, r, 1, "", "")
		checkPrinted(l, r, 2, hold.Call, "openai")
		checkPrinted(l, r, 3, "", "")
		checkPrinted(l, r, 4, hold.Pending, "rows")
		checkPrinted(l, r, 9, "", "")
		r.hard()
	})
}
