//go:build long

package stage

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go/jetstream"
)

// keyedLoad is rows that a stage with 64 slots answers: at first a window full of a hot key, from then on one row in ten
// with a key of its own.
type keyedLoad struct {
	hot, mixed int
	took       func(n int) time.Duration // of the call of row n
}

const others = 10 // every so many rows of the mixed ones there is one of another key

// around50 is calls of 50 ms on average. Were all equal, they would start in waves for ever.
func around50(n int) time.Duration { return time.Duration(25+n*7919%51) * time.Millisecond }

// someSlow is the same with a slow call now and then.
func someSlow(n int) time.Duration {
	if n%67 == 50 {
		return 2 * time.Second
	}
	return around50(n)
}

func (k keyedLoad) keyOf(n int) string {
	if n > k.hot && n%others == 0 {
		return "k" + strconv.Itoa(n)
	}
	return "hot"
}

func (k keyedLoad) rows() int { return k.hot + k.mixed }

// run has a stage answer the load, and returns, of the mixed rows of other keys, how long each was in the stage: until it
// was answered, and until its result was stored.
func (k keyedLoad) run(t *testing.T) (answered, emitted []time.Duration) {
	t.Helper()
	l := newLab(t, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
		n, err := strconv.Atoi(c.Prompt)
		if err != nil {
			t.Errorf("prompt %q", c.Prompt)
		}
		return &llmtest.Step{Delay: k.took(n)}
	}}, nil)
	l.vars["STAGE_POOL_SIZE"], l.vars["STAGE_WINDOW"] = "64", "1024"
	l.vars["STAGE_ORDER"], l.vars["STAGE_ORDER_KEY"] = "key", "subject.2"
	if _, err := l.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ROWS", Subjects: []string{"rows.>"}}); err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= k.rows(); n++ {
		stagetest.Value(l.js.PublishAsync("rows."+k.keyOf(n), fmt.Appendf(nil, `{"q":"%d"}`, n)))(t)
	}
	<-l.js.PublishAsyncComplete()
	l.work(k.rows(), nil)
	stored := make(map[uint64]time.Time)
	for _, m := range l.stored("RESULTS", "results.stage.0.rows", k.rows()) {
		seq := stagetest.Value(strconv.ParseUint(m.Header.Get(streams.HeaderSourceSeq), 10, 64))(t)
		stored[seq] = m.Time
	}
	for _, e := range l.events(auditlog.KindRow) {
		r := e.Row
		if n := int(r.Sequence); n > k.hot && k.keyOf(n) != "hot" {
			answered, emitted = append(answered, r.FinishedAt.Sub(r.QueuedAt)), append(emitted, stored[r.Sequence].Sub(r.QueuedAt))
		}
	}
	if len(answered) != k.mixed/others {
		t.Fatalf("%d rows of other keys, want %d", len(answered), k.mixed/others)
	}
	return answered, emitted
}

func (k keyedLoad) calls() (took []time.Duration) {
	for n := k.hot + others; n <= k.rows(); n += others {
		took = append(took, k.took(n))
	}
	return took
}

func quantile(d []time.Duration, q int) time.Duration {
	slices.Sort(d)
	return d[(len(d)-1)*q/100]
}

// TestAHotKeyDelaysNoOther: nine rows in ten are of one key, and it has a window full of rows when the others come. With
// slow calls the rows behind a slow one of the hot key leave the window all at once, and for a moment more rows of other
// keys come in than there are slots: nine in ten of them may wait for two more calls.
func TestAHotKeyDelaysNoOther(t *testing.T) {
	for _, c := range []struct {
		name string
		took func(int) time.Duration
		most int // tenths of a call, for nine rows in ten
	}{{"calls of 50ms", around50, 12}, {"three in two hundred take 2s", someSlow, 30}} {
		t.Run(c.name, func(t *testing.T) {
			stagetest.Virtual(t, func(t *testing.T) {
				k := keyedLoad{hot: 1200, mixed: 4000, took: c.took}
				answered, emitted := k.run(t)
				for _, bound := range []struct{ share, most int }{{99, 12}, {90, c.most}} {
					call, got := quantile(k.calls(), bound.share), quantile(emitted, bound.share)
					t.Logf("%d in 100 calls take %v, rows until answered %v, until emitted %v", bound.share, call, quantile(answered, bound.share), got)
					if got > call*time.Duration(bound.most)/10 {
						t.Errorf("%d of 100 rows of other keys are emitted within %v, and calls take %v", bound.share, got, call)
					}
				}
			})
		})
	}
}
