package consumer_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
)

// patientLane has its first row answered again once all others are kept, as a batch decides about the rows that go again
// when no answer of it is on its way any more.
type patientLane struct {
	rows uint64

	mu     sync.Mutex
	parked uint64
	kept   map[uint64]bool
	term   consumer.LaneTerm
}

func (l *patientLane) Open(_ context.Context, term consumer.LaneTerm) error {
	l.term = term
	return nil
}

func (l *patientLane) Holds(*consumer.Row) bool { return false }
func (l *patientLane) Stop()                    {}
func (l *patientLane) Close()                   {}

// Kept implements [consumer.Lane].
func (l *patientLane) Kept(seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kept[seq] = true; uint64(len(l.kept)) == l.rows-1 && !l.kept[1] {
		l.term.Recall(1, "answer")
	}
}

func (l *patientLane) add() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.parked++; l.parked == l.rows {
		l.term.Recall(1, "failure")
		for seq := uint64(2); seq <= l.rows; seq++ {
			l.term.Recall(seq, "answer")
		}
	}
}

// patientExecutor takes its time to find that the first row is to be parked once more: meanwhile no row is.
type patientExecutor struct {
	*laneExecutor

	patient *patientLane
}

func (e *patientExecutor) Start(row *consumer.Row) {
	switch {
	case row.Kept == nil && row.Errand == nil:
		row.Reply(consumer.Reply{Parked: true})
		e.patient.add()
	case row.Errand == "failure":
		time.AfterFunc(10*time.Second, func() { row.Reply(consumer.Reply{Parked: true}) })
	default:
		e.laneExecutor.Start(row)
	}
}

// Rows that come back while none is parked wait in the window, where their replies are kept: the lane hears of it.
func TestTheLaneLearnsOfRepliesThatAreKept(t *testing.T) {
	virtual(t, func(t *testing.T) {
		const rows = 6
		b := newTestbed(t)
		b.load(rows)
		lane := &patientLane{rows: rows, kept: make(map[uint64]bool)}
		exec := &laneExecutor{sleeper: &sleeper{over: t.Context().Done()}, lane: newFakeLane(0, 0), live: func(uint64) bool { return false }}
		cfg := b.config("run", &patientExecutor{exec, lane})
		cfg.Order, cfg.WindowRows, cfg.LaneRows, cfg.Lane = streams.OrderStream, 16, 100, lane
		r := b.startWith(cfg)
		b.finish(r, rows)
	})
}
