package lane

import "time"

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
	// Owned: a term of ownership is under way. The rest is empty without.
	Owned   bool
	Batches []BatchStatus
	Rows    RowStatus
	// Paused is why nothing is submitted or fetched, the billing or a bad key; empty: it is not.
	Paused string
	// Problem is what the lane waits for besides; empty: nothing.
	Problem string
}

// RowStatus counts rows by where they are.
type RowStatus struct {
	// Gathering: in a batch that is not sealed yet. Waiting: until one may be gathered.
	Gathering, Waiting int
	// Submitted: in a batch, without an answer. Answered: on the way from the answer to the journal. Live: called live.
	Submitted, Answered, Live int
}

// BatchStatus is one batch.
type BatchStatus struct {
	Token string
	// BatchID is the provider's id; empty: not known (yet).
	BatchID string
	Model   string
	State   State
	Rows    int
	Bytes   int64
	// Answered counts the rows that are answered, as far as the provider or the lane has said; -1: not known.
	Answered int
	// Since is when its intent was recorded, Submitted when the provider took it; zero: not yet.
	Since, Submitted time.Time
	// Problem is what is wrong with it; empty: nothing.
	Problem string
}

// show reports the state of the term, not too often.
func (t *term) show() {
	now := t.now
	if at := t.shown.Add(statusEvery); t.wait(at, now) {
		return
	}
	t.shown = now
	s := Status{Owned: true, Paused: t.pause.why, Problem: t.book.problem}
	if s.Paused == "" && t.denial.err != nil {
		s.Paused = t.denial.err.Error()
	}
	if s.Paused == "" && t.cfg.Halted != nil {
		if why := t.cfg.Halted(); why != nil {
			s.Paused = why.Error()
		}
	}
	if s.Paused == "" && t.heldBy != nil {
		s.Paused = t.heldBy.Error()
	}
	for _, w := range t.waiting {
		s.Rows.Waiting += w.n
	}
	s.Rows.Waiting += len(t.coming)
	for _, half := range t.splits {
		s.Rows.Waiting += half.left.n
	}
	if t.split != nil {
		s.Rows.Waiting += t.split.left.n
		s.Rows.Gathering += len(t.split.gather.rows)
	}
	for _, g := range t.gathers {
		s.Rows.Gathering += len(g.rows)
	}
	s.Rows.Live = t.live.n
	for _, b := range t.batches {
		if b.stage != stageClosed {
			s.Batches = append(s.Batches, b.status())
			s.Rows.Submitted += b.count[rowSubmitted] + b.count[rowAgain]
			s.Rows.Answered += b.count[rowAnswered]
		}
	}
	t.l.status.Store(&s)
}

func (b *batch) status() BatchStatus {
	s := BatchStatus{
		Token: b.token, BatchID: b.id, Model: b.model, State: stageStates[b.stage], Rows: len(b.state), Bytes: b.bytes,
		Answered: b.remote.Answered, Since: b.intent, Submitted: b.submitted, Problem: b.problem,
	}
	if b.id == "" {
		s.Answered = -1
	}
	if settled := b.count[rowKept] + b.count[rowAnswered]; b.ended() {
		s.Answered = settled
	}
	return s
}
