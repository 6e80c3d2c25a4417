package consumer

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/test/cluster"
	"github.com/nats-io/nats.go"
)

// A stream that does not, or no longer, accept atomic batches gets its messages one by one.
func TestARefusedBatchGoesOneByOne(t *testing.T) {
	nc := stagetest.Value(nats.Connect(cluster.Start(t, 1)[0].ClientURL()))(t)
	defer nc.Close()
	cfg := resultsStream(1)
	cfg.AllowAtomicPublish = false
	cluster.CreateStream(t, nc, cfg)
	w := newConditionWriter(t, nc, 0, 0)
	e := w.begin(t)
	e.takes.atomic, e.single, e.group = true, streams.Cost(time.Second), 1
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stagetest.Value(e.emit(ctx, w.group(0, 50)))(t)
	checkLog(t, nc, 0, 50)
}

// A group that is refused for a reason that passes is sent again as a group. Any other refusal may be about groups alone,
// so the results go one by one.
func TestWhichRefusalMakesAGroupGoOneByOne(t *testing.T) {
	for _, c := range []struct {
		why             string
		code            int
		groups, singles int
	}{
		{"the cluster has no leader", 10008, 2, 0},
		{"the condition can't be checked yet", 10163, 2, 0},
		{"a new leader has half of the group", 10176, 1, 3},
	} {
		t.Run(c.why, func(t *testing.T) {
			stagetest.Virtual(t, func(t *testing.T) {
				srv := stagetest.Core(t)
				nc, server := stagetest.Join(t, srv), stagetest.Join(t, srv)
				groups, singles := 0, 0
				answer := func(subject string, f func(m *nats.Msg) string) {
					stagetest.Value(server.Subscribe(subject, func(m *nats.Msg) {
						if m.Reply != "" { // the last of its group has one
							_ = m.Respond([]byte(f(m)))
						}
					}))(t)
				}
				answer("$JS.API.STREAM.MSG.GET.RESULTS", func(*nats.Msg) string { return `{"error":{"code":404,"err_code":10037}}` })
				answer("results.>", func(m *nats.Msg) string {
					if m.Header.Get(streams.HeaderBatchCommit) == "" {
						singles++
						return fmt.Sprintf(`{"stream":"RESULTS","seq":%d}`, singles)
					}
					if groups++; groups == 1 {
						return fmt.Sprintf(`{"error":{"code":503,"err_code":%d,"description":"no"}}`, c.code)
					}
					return `{"stream":"RESULTS","seq":3}`
				})
				stagetest.Must(t, server.Flush())
				w := newConditionWriter(t, nc, 0, 0)
				e := &emitter{c: w.Consumer, owner: "owner", single: streams.Cost(time.Second), group: 1}
				defer func() { e.appends.Close() }()
				e.takes.atomic = true
				stagetest.Value(e.emit(t.Context(), w.group(0, 3)))(t)
				if groups != c.groups || singles != c.singles {
					t.Errorf("%d groups and %d single results are sent, want %d and %d", groups, singles, c.groups, c.singles)
				}
			})
		})
	}
}

func TestABatchIsForRowsThatWouldWaitLongerWithoutIt(t *testing.T) {
	const ms = streams.Cost(time.Millisecond)
	for _, c := range []struct {
		name          string
		single, group streams.Cost
		rows, want    int
	}{
		{"one row", ms, ms / 2, 1, 1},
		{"what has gathered while the server was busy for a moment", ms / 5, 25 * ms, 40, 1},
		{"the same on a busy machine", ms, 50 * ms, 40, 1},
		{"more than singles keep up with", ms / 5, 25 * ms, 64, 64},
		{"few, where each is synced", 5 * ms, 25 * ms, 6, 6},
		{"few, where replicas are asked", ms, 3 * ms, 4, 4},
		{"more than the server takes", ms, 3 * ms, 5000, streams.AppendMax},
	} {
		e := &emitter{single: c.single, group: c.group}
		e.takes.atomic = true
		if _, got := e.choose(c.rows, time.Now()); got != c.want {
			t.Errorf("%s: %d of %d rows are appended, want %d", c.name, got, c.rows, c.want)
		}
	}
}

// A single append that was slow once, for another reason than the server's usual pace, must not mean batches for ever.
func TestBatchesLetTheMeasureOfASingleAppendFade(t *testing.T) {
	nc := stagetest.Value(nats.Connect(cluster.Start(t, 1)[0].ClientURL()))(t)
	defer nc.Close()
	cluster.CreateStream(t, nc, resultsStream(1))
	w := newConditionWriter(t, nc, 0, 0)
	e := w.begin(t)
	e.takes.atomic, e.single, e.group = true, streams.Cost(time.Minute), 1
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i := range 20 {
		stagetest.Value(e.emit(ctx, w.group(uint64(10*i), 10)))(t)
	}
	if e.single > streams.Cost(20*time.Second) {
		t.Errorf("after 20 batches a single append still counts %v", time.Duration(e.single))
	}
}
