package replicas

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

func TestMain(m *testing.M) { stagetest.Main(m) }

// lab is a server with replicas that answer.
type lab struct {
	t   *testing.T
	srv *server.Server
}

func newLab(t *testing.T) *lab {
	t.Helper()
	return &lab{t, stagetest.Core(t)}
}

// replica is one that answers, and counts its summaries.
type replica struct {
	*Answerer
	nc    *nats.Conn
	asked atomic.Int64 // of its own state
	stop  func()       // in order
}

func (l *lab) serve(id string, rows ...func(context.Context, uint64) ([]Call, *hold.Hold)) *replica {
	l.t.Helper()
	r := &replica{nc: stagetest.Join(l.t, l.srv)}
	r.Answerer = New(r.nc, "s", func() Summary {
		r.asked.Add(1)
		return of(id, nil)
	}, slog.New(slog.DiscardHandler))
	if len(rows) > 0 {
		r.Row = rows[0]
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Run(ctx)
	}()
	r.stop = func() {
		cancel()
		<-ended
	}
	l.t.Cleanup(r.stop)
	time.Sleep(10 * time.Millisecond) // in the bubble: it is subscribed then
	return r
}

// sees checks what a look of a replica shows.
func (r *replica) sees(t *testing.T, want string) {
	t.Helper()
	w := r.Look(t.Context())
	if got := brief(&w); got != want+"; 0:[] 1:[] 2:[] 3:[]" {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// A replica that ends in order is gone at once, also for one that has never seen it and
// one that did not look since. One whose connection breaks is missing, and those who have
// not looked learn it from those who have.
func TestAReplicaThatEndsIsNotMissedAndOneThatIsKilledIs(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t)
		a, b, c, d := l.serve("a"), l.serve("b"), l.serve("c"), l.serve("d")
		a.sees(t, "a answers []; b answers []; c answers []; d answers []")
		b.stop()
		c.nc.Close()
		time.Sleep(time.Second)
		a.sees(t, "a answers []; d answers []; c missing []")
		time.Sleep(time.Second)
		d.sees(t, "a answers []; d answers []; c missing []")
		// Someone who asks for the first time knows the same.
		w := Merge(Ask(t.Context(), stagetest.Join(l.t, l.srv), "s", nil), NewMemory(), time.Now())
		if got, want := brief(&w), "a answers []; d answers []; c missing []; 0:[] 1:[] 2:[] 3:[]"; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		time.Sleep(MissingFor)
		a.sees(t, "a answers []; d answers []")
	})
}

// One look serves all who look within 300 ms, and a replica makes up its answer at most
// ten times a second. Who does not wait for the answers, because it goes away, must not
// see the others as missing.
func TestLooksAreShared(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t)
		a, b := l.serve("a"), l.serve("b")
		began := time.Now()
		looks := make(chan Whole)
		for range 5 {
			go func() { looks <- a.Look(t.Context()) }()
			time.Sleep(10 * time.Millisecond)
		}
		for range 5 {
			if w := <-looks; brief(&w) != "a answers []; b answers []; 0:[] 1:[] 2:[] 3:[]" {
				t.Errorf("got %s", brief(&w))
			}
		}
		if took := time.Since(began); took != GatherFor {
			t.Errorf("five looks took %v, want %v", took, GatherFor)
		}
		if n := b.asked.Load(); n != 1 {
			t.Errorf("the other was asked %d times, want once", n)
		}
		time.Sleep(time.Second)
		ctx, leave := context.WithTimeout(t.Context(), time.Microsecond)
		defer leave()
		b.nc.Close()
		if w := a.Look(ctx); w.Problem == "" || brief(&w) != "a answers []; 0:[] 1:[] 2:[] 3:[]" {
			t.Errorf("a look that was given up shows %s, problem %q", brief(&w), w.Problem)
		}
		asker, made := stagetest.Join(l.t, l.srv), a.asked.Load()
		for range 50 {
			stagetest.Must(t, asker.PublishRequest(Subject("s"), "nobody.listens", nil))
			time.Sleep(10 * time.Millisecond)
		}
		if n := a.asked.Load() - made; n > 6 {
			t.Errorf("%d summaries were made in half a second, want at most ten a second", n)
		}
	})
}

// Nothing is sent while nobody asks, and no summary made.
func TestNobodyAsksUnlessSomebodyLooks(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t)
		a, b := l.serve("a"), l.serve("b")
		before := l.srv.NumSubscriptions()
		a.Look(t.Context())
		made := a.asked.Load() + b.asked.Load()
		sent := a.nc.Stats().OutMsgs + b.nc.Stats().OutMsgs
		time.Sleep(time.Hour)
		if n := a.nc.Stats().OutMsgs + b.nc.Stats().OutMsgs - sent; n != 0 {
			t.Errorf("%d messages were sent in an hour", n)
		}
		if n := a.asked.Load() + b.asked.Load() - made; n != 0 {
			t.Errorf("%d summaries were made in an hour", n)
		}
		if after := l.srv.NumSubscriptions(); after != before {
			t.Errorf("%d subscriptions, before %d: a look leaves some behind", after, before)
		}
	})
}

// A stranger's last word removes nobody from another stage, and what is none is ignored.
func TestOnlyTheWordOfAReplicaThatLeavesCounts(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t)
		a, b := l.serve("a"), l.serve("b")
		a.sees(t, "a answers []; b answers []")
		for _, body := range []any{
			"garbage",
			Summary{Format: Format, Stage: "other", Departing: true, Facts: Facts{Replica: "b"}},
			Summary{Format: Format + 1, Stage: "s", Departing: true, Facts: Facts{Replica: "b"}},
			Summary{Format: Format, Stage: "s", Facts: Facts{Replica: "b", State: status.StateIdle}},
		} {
			m := stagetest.Value(json.Marshal(body))(t)
			stagetest.Must(t, stagetest.Join(l.t, l.srv).Publish(Subject("s"), m))
		}
		time.Sleep(time.Second)
		b.nc.Close()
		time.Sleep(time.Second)
		a.sees(t, "a answers []; b missing []")
	})
}

// On a busy machine a replica may take seconds to answer. A program that asks waits for the
// first of them, and then for the others as long as ever. The page of a replica, which has
// its own answer, does not wait for a first one.
func TestAProgramWaitsLongerForTheFirstAnswer(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t)
		a := l.serve("a")
		asker := stagetest.Join(t, l.srv)
		answer := Ask(t.Context(), asker, "s", nil).answers[0]
		a.stop()
		// Its last word must be out before others subscribe: a subscriber that hears it first
		// would only then get to the question, and be late by as much.
		time.Sleep(10 * time.Millisecond)
		for _, after := range []time.Duration{time.Second, time.Second + GatherFor/2, time.Second + 2*GatherFor} {
			_, err := stagetest.Join(t, l.srv).Subscribe(Subject("s"), func(m *nats.Msg) {
				time.Sleep(after)
				_ = m.Respond(answer)
			})
			stagetest.Must(t, err)
		}
		time.Sleep(10 * time.Millisecond) // in the bubble: they are subscribed then
		if g := Ask(t.Context(), asker, "s", nil); len(g.answers) != 2 {
			t.Errorf("a program got %d answers, want those after 1 s and 1.15 s", len(g.answers))
		}
		if g := Ask(t.Context(), asker, "s", new(Summary)); len(g.answers) != 0 {
			t.Errorf("a replica got %d answers within %v, want none", len(g.answers), GatherFor)
		}
		began := time.Now()
		if g := Ask(t.Context(), asker, "nobody", nil); len(g.answers) != 0 || time.Since(began) > GatherFor {
			t.Errorf("where nobody listens it took %v", time.Since(began))
		}
		time.Sleep(10 * time.Second) // until the last of them has answered
	})
}

// The audit holds a call when it has ended: until then the replica that makes it is asked.
func TestTheCallsInFlightOfARowAreThoseOfAllReplicas(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t)
		now := time.Now()
		of := func(row uint64, c Call, wait *hold.Hold) func(context.Context, uint64) ([]Call, *hold.Hold) {
			return func(_ context.Context, asked uint64) ([]Call, *hold.Hold) {
				if asked != row {
					return nil, nil
				}
				return []Call{c}, wait
			}
		}
		l.serve("a", of(7, Call{Attempt: 2, Provider: "openai", Since: now}, nil))
		l.serve("b", of(7, Call{Attempt: 1, Provider: "mock", Since: now.Add(-time.Minute)}, new(hold.OfRow(7, hold.Call))))
		l.serve("c", of(8, Call{Attempt: 1}, nil))
		l.serve("d") // of an earlier version: it answers with its summary
		calls, wait := AskRow(t.Context(), stagetest.Join(t, l.srv), "s", 7)
		if len(calls) != 2 || calls[0].Replica != "b" || calls[0].Attempt != 1 || calls[1].Replica != "a" || calls[1].Provider != "openai" {
			t.Errorf("got %+v", calls)
		}
		if wait == nil || wait.Kind != hold.Call || wait.Name != "7" {
			t.Errorf("it waits for %v, want what its owner says", wait)
		}
	})
}
