package replicas

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/llm-stage/stage/internal/hold"
	"github.com/nats-io/nats.go"
)

// answerEvery is the shortest time between two summaries. A question that comes sooner gets
// the last one again.
const answerEvery = 100 * time.Millisecond

const (
	// rowWithin is how long the parts of a replica have to say where a row is. It is less
	// than the time for which answers are waited for.
	rowWithin = 200 * time.Millisecond
	// rowsAtOnce bounds the rows that are looked for.
	rowsAtOnce = 4
)

// Answerer answers for a replica, and looks at the whole stage on its behalf. It is created
// by [New], runs once by [Answerer.Run], and is safe for concurrent use.
type Answerer struct {
	// Row returns the calls in flight of a row, and why the row waits. It is set before
	// Run, and is called with a context of [rowWithin]. It is nil if nobody knows.
	Row func(ctx context.Context, row uint64) ([]Call, *hold.Hold)

	nc   atomic.Pointer[nats.Conn]
	own  func() Summary
	log  *slog.Logger
	name string

	moved  chan struct{} // holds a token when nc was replaced
	memory *Memory
	looks  chan struct{} // holds a token while nobody asks the others
	rows   chan struct{} // holds a token for each row that is looked for
	mu     sync.Mutex
	last   Whole // of the last look
}

// New returns an answerer of a stage; own returns the summary of this replica, without
// Departed and what its own looks have missed. It must not block.
func New(nc *nats.Conn, stage string, own func() Summary, log *slog.Logger) *Answerer {
	a := &Answerer{own: own, log: log, name: stage, moved: make(chan struct{}, 1), memory: NewMemory(), looks: make(chan struct{}, 1), rows: make(chan struct{}, rowsAtOnce)}
	a.nc.Store(nc)
	a.looks <- struct{}{}
	return a
}

// Use makes it answer and ask over another connection, since the present one is closed for
// good.
func (a *Answerer) Use(nc *nats.Conn) {
	a.nc.Store(nc)
	select {
	case a.moved <- struct{}{}:
	default:
	}
}

// Run answers until ctx ends. Then it sends the others word that this replica has left, so
// that it is not missed. Where the server does not allow the subscription the
// connection's error handler reports that.
func (a *Answerer) Run(ctx context.Context) {
	asked := make(chan *nats.Msg, 64) // for a burst: beyond it a question gets no answer
	stop := a.listen(asked)
	defer func() { stop() }()
	var answer []byte
	var made time.Time
	var rows sync.WaitGroup
	defer rows.Wait()
	for {
		select {
		case <-ctx.Done():
			a.depart()
			return
		case <-a.moved:
			stop = a.listen(asked)
		case m := <-asked:
			if m.Reply == "" {
				a.heard(m.Data)
				continue
			}
			if row := a.rowAsked(m.Data); row != 0 {
				a.answerRow(ctx, &rows, row, m.Reply)
				continue
			}
			if now := time.Now(); answer == nil || now.Sub(made) >= answerEvery {
				answer, made = a.answer(), now
			}
			if err := a.nc.Load().Publish(m.Reply, answer); err != nil {
				a.log.Debug("summary not sent", slog.Any("error", err))
			}
		}
	}
}

// listen sends questions to asked until stop is called.
func (a *Answerer) listen(asked chan *nats.Msg) (stop func()) {
	sub, err := a.nc.Load().ChanSubscribe(Subject(a.name), asked)
	if err != nil {
		a.log.Warn("this replica is not shown to others: no subscription", slog.String("subject", Subject(a.name)), slog.Any("error", err))
		return func() {}
	}
	return func() { _ = sub.Unsubscribe() } // no listener remains either way
}

// rowAsked returns the row that a question is about. It returns 0 for another question.
func (a *Answerer) rowAsked(body []byte) uint64 {
	var q question
	if a.Row == nil || len(body) == 0 || json.Unmarshal(body, &q) != nil {
		return 0
	}
	return q.Row
}

// answerRow answers a question about a row, by a summary that has nothing but the calls of
// the row that are in flight, and why it waits. The parts that know this answer between two
// steps of their work, so other questions are answered meanwhile. Beyond rowsAtOnce such
// questions get no answer.
func (a *Answerer) answerRow(ctx context.Context, rows *sync.WaitGroup, row uint64, reply string) {
	select {
	case a.rows <- struct{}{}:
	default:
		return
	}
	rows.Go(func() {
		defer func() { <-a.rows }()
		ctx, cancel := context.WithTimeout(ctx, rowWithin)
		defer cancel()
		calls, wait := a.Row(ctx, row)
		own := a.own()
		answer, err := json.Marshal(&Summary{
			Format: Format, Stage: a.name, Calls: first(calls, callsMax), Hold: wait,
			Facts: Facts{Replica: own.Replica, Host: own.Host, PID: own.PID, Version: own.Version, Time: own.Time, State: own.State},
		})
		if err == nil {
			err = a.nc.Load().Publish(reply, answer)
		}
		if err != nil {
			a.log.Debug("what a row waits for was not sent", slog.Any("error", err))
		}
	})
}

// answer returns the encoded summary.
func (a *Answerer) answer() []byte {
	s := a.summary()
	body, err := s.encode(a.bytesMax())
	if err != nil {
		a.log.Warn("summary for other replicas not encoded", slog.Any("error", err))
	}
	return body
}

// summary returns the summary of this replica, with the replicas that it misses and those
// that have left.
func (a *Answerer) summary() Summary {
	s := a.own()
	missing, departed := a.memory.known(time.Now())
	s.Departed = departed
	for _, m := range missing {
		if !slices.ContainsFunc(s.Missing, func(o Missing) bool { return o.Replica == m.Replica }) {
			s.Missing = append(s.Missing, m)
		}
	}
	s.Missing = first(slices.DeleteFunc(s.Missing, func(m Missing) bool { return slices.Contains(departed, m.Replica) }), lostMax)
	return s
}

// bytesMax bounds a summary, far below what the server takes.
func (a *Answerer) bytesMax() int { return int(min(summaryBytesMax, a.nc.Load().MaxPayload()/2)) }

// heard notes the last word of another replica, which has left.
func (a *Answerer) heard(body []byte) {
	if s, note := decode(a.name, body); note == "" && s.Departing {
		a.memory.depart(s.Replica, time.Now())
	}
}

// depart sends the others word that this replica has ended in order. If the message is
// lost, the replica is shown as missing for a minute.
func (a *Answerer) depart() {
	if !a.nc.Load().IsConnected() {
		return
	}
	own := a.own()
	body, err := json.Marshal(&Summary{
		Format: Format, Stage: a.name, Departing: true,
		Facts: Facts{Replica: own.Replica, Host: own.Host, PID: own.PID, Version: own.Version, Time: own.Time, State: own.State},
	})
	if err == nil {
		err = a.nc.Load().Publish(Subject(a.name), body)
	}
	if err != nil {
		a.log.Debug("the other replicas were not told that this one leaves", slog.Any("error", err))
	}
}

// Look returns the whole stage. It asks the others, unless somebody looked within the last
// [GatherFor]. Several looks at the same time share one question. It takes [GatherFor], or
// less if ctx ends.
func (a *Answerer) Look(ctx context.Context) Whole {
	began := time.Now()
	select {
	case <-a.looks:
		defer func() { a.looks <- struct{}{} }()
	case <-ctx.Done():
		return a.lastLook()
	}
	if w := a.lastLook(); began.Sub(w.Time) < GatherFor || w.Time.After(began) {
		return w
	}
	own := a.summary()
	g := Ask(ctx, a.nc.Load(), a.name, &own)
	if ctx.Err() != nil { // not all have answered, and none of them is missing
		g.Problem = "the question was given up"
		return Merge(g, nil, time.Now())
	}
	w := Merge(g, a.memory, time.Now())
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = w
	return w
}

func (a *Answerer) lastLook() Whole {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last
}
