package lane

import (
	"fmt"
	"time"
)

// statusEvery is the least time between two reports.
const statusEvery = 100 * time.Millisecond

// State is where a batch is on its way, as [Status] shows it.
type State string

// The states of a batch.
const (
	// StateIntent: its rows are decided, and it is being recorded, uploaded and created.
	StateIntent State = "intent"
	// StateLooking: whether the provider has it is being found out.
	StateLooking State = "looking"
	// StateRunning: the provider works on it.
	StateRunning State = "running"
	// StateCollecting: the provider is done with it, and its answers are read.
	StateCollecting State = "collecting"
	// StateSettling: all answers are read, and some rows are not kept yet.
	StateSettling State = "settling"
)

// States returns all states of a batch.
func States() []State {
	return []State{StateIntent, StateLooking, StateRunning, StateCollecting, StateSettling}
}

// Status is what there is to see of a lane.
type Status struct {
	// Owned says that a term of ownership is under way. Otherwise the rest is empty.
	Owned   bool
	Batches []BatchStatus
	Rows    RowStatus
	// Paused is why nothing is submitted or fetched, such as a bad key, or empty.
	Paused string
	// Problem is another reason to wait, such as a full stream, or empty. Retry is when
	// the next batch is tried, where the provider's queue had no room for one; else it is
	// zero.
	Problem string
	Retry   time.Time
}

// RowStatus counts rows by where they are.
type RowStatus struct {
	// Gathering rows are in a batch that is not sealed yet. Waiting ones wait until they
	// may gather.
	Gathering, Waiting int
	// Submitted rows are in a batch, without an answer. Answered ones are on the way from
	// the answer to the journal. Live ones are called live.
	Submitted, Answered, Live int
}

// BatchStatus is one batch.
type BatchStatus struct {
	Token string
	// BatchID is the provider's id, empty until it is known.
	BatchID string
	Model   string
	State   State
	Rows    int
	Bytes   int64
	// Answered counts the rows that are answered, as far as the provider or the lane has
	// said. It is -1 if nobody has.
	Answered int
	// Since is when its intent was recorded, Submitted when the provider took it, zero
	// until then.
	Since, Submitted time.Time
	// Problem is the last failure, or empty.
	Problem string
}

// show reports the state of the term, not too often.
func (k *keeper) show() {
	now := k.loop.now
	if at := k.shown.Add(statusEvery); k.loop.wait(at, now) {
		return
	}
	k.shown = now
	s := Status{Owned: true, Paused: k.whyPaused(), Problem: k.book.problem}
	if s.Problem == "" {
		s.Problem, s.Retry = k.whyRefused(now)
	}
	s.Rows.Gathering, s.Rows.Waiting = k.places.intake.count()
	s.Rows.Live = k.places.live.rows.n
	for _, b := range k.batches.all {
		if b.phase != phaseClosed {
			s.Batches = append(s.Batches, b.status())
			s.Rows.Submitted += b.count[rowSubmitted] + b.count[rowAgain]
			s.Rows.Answered += b.count[rowAnswered]
		}
	}
	k.lane.status.Store(&s)
}

// whyPaused returns why nothing is submitted, or "".
func (k *keeper) whyPaused() string {
	if why := k.standing.pause.why; why != "" {
		return why
	}
	if err := k.standing.denial.err; err != nil {
		return err.Error()
	}
	if k.cfg.Halted != nil {
		if err := k.cfg.Halted(); err != nil {
			return err.Error()
		}
	}
	if err := k.standing.noBudget.err; err != nil {
		return err.Error()
	}
	return ""
}

// whyRefused returns why rows that gather, or wait to, can't be submitted yet: the
// provider's queue had no room for the last batch of their model. That batch may be over,
// so that no other field shows it. It is "" if no row waits for that.
func (k *keeper) whyRefused(now time.Time) (why string, retry time.Time) {
	models := k.places.intake.models()
	for model := range k.places.intake.gathers {
		models = append(models, model)
	}
	for _, model := range models {
		c := k.standing.room[model]
		if c != nil && c.retry.After(now) && (retry.IsZero() || c.retry.Before(retry)) {
			why, retry = fmt.Sprintf("the provider had no room for a batch of model %s: %s", model, c.why), c.retry
		}
	}
	return why, retry
}
