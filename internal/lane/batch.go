package lane

import (
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/llm/batchapi"
)

// batch is one batch, from the moment that it is sealed until its records are purged. It
// is made of parts: what was decided when it was sealed, its rows, what the provider has,
// how far its results are read, and the attempts at the request that is due.
type batch struct {
	sealed
	batchRows
	submission
	reading
	attempts

	phase phase
	// body is what the rows send. It is in memory until the batch is created.
	body []*gathered
	// unstored counts its audit events that are not stored yet.
	unstored int
	// cleaned says that its files at the provider are deleted.
	cleaned bool
	// keep says that its last record stays, since the batch was given up without
	// certainty.
	keep bool
}

// sealed holds the decisions made when a batch is sealed. They are the intent, and never
// change.
type sealed struct {
	token, model, account string
	intent                time.Time
	bytes, tokens         int64
	cost                  float64 // estimated, in USD
	sha                   string  // of its lines
}

// batchRows are the rows of a batch by their places, in the order of their sequences. A
// row has one state, and count is how many rows have each. When nothing more is wanted of
// the batch all of it is dropped, see [batchRows.forgetRows].
type batchRows struct {
	rows     Rows
	state    []rowState
	count    [rowStates]int
	goneLive bits // rows that have gone live from here, so that an answer is of no use
}

// submission is the batch at the provider. It is ours for certain if it has an id and is
// not tentative. Until then it is looked for.
type submission struct {
	file      string         // the provider's name of the uploaded lines
	remote    batchapi.Batch // as the provider reported it last
	id        string
	submitted time.Time
	tentative bool // it may be another's
	adopted   bool
	cancelled bool // we have asked for it

	lookUntil time.Time       // until when it counts as not listed yet
	withdrawn bool            // its file is deleted, so that no creation on its way can succeed
	excluded  map[string]bool // ids that turned out to be of others
	missing   time.Time       // since when the provider does not know it
}

// reading says how far the results of a batch are read. Every pass begins at the first
// line, so the counts must be remembered by rows: counted and settled only grow during a
// term. For example, a first pass ends after 60 of 100 lines, when the connection breaks.
// The next pass meets the same 60 lines, and must not count them again.
type reading struct {
	overSince time.Time // when this term found that the provider is done
	passes    int       // read to the end
	cuts      int       // answered with unknown, since the last pass
	seen      bits      // rows with a line in the last pass
	readTo    uint64    // the highest row that had come when the last pass began
	pending   bool      // it had lines of rows that had not come
	counted   bits      // rows whose line is in sum
	settled   bits      // rows whose line a row has taken in this term, or that was recorded as unused
	gone      bool      // the provider no longer has the results
	judged    bool      // a line is a reply, or so few failed alike that each is its row's own
	reported  bool      // the event of the end is out
	sum       tally
}

// attempts are the requests for one batch: one at a time, and after a failure again with
// growing waits of 1, 2, 4 and so on up to 60 s.
type attempts struct {
	busy    bool      // a request or a record is under way
	next    time.Time // when the batch is looked at again
	tried   int       // failures in a row
	noAPI   int       // answers in a row that there is no Batch API
	problem string    // the last failure, for people
}

// rowState is where a row of a batch is.
type rowState uint8

const (
	// rowSubmitted means that the row has no answer, and one is wanted.
	rowSubmitted rowState = iota
	// rowAnswered means that its answer is on its way through the executor.
	rowAnswered
	// rowAgain means that its answer did not settle it, or that there is none. What
	// becomes of it is decided when all lines are read.
	rowAgain
	// rowLive means that it is called live.
	rowLive
	// rowElsewhere means that it waits for, or gathers in, another batch, which is not
	// recorded yet.
	rowElsewhere
	// rowMoved means that it is in a later batch that is recorded.
	rowMoved
	// rowKept means that nothing is wanted of it any more.
	rowKept

	rowStates = iota
)

// phase is how far a batch has come.
type phase uint8

const (
	phaseSealed    phase = iota // its intent is on its way to the stream
	phaseRecorded               // to be uploaded, or created where no file is needed
	phaseUploaded               // to be created
	phaseLooking                // it may or may not exist at the provider: the lane looks
	phaseFound                  // the record of its id is on its way to the stream
	phaseRunning                // the provider works on it
	phaseOver                   // to be read
	phaseSettling               // read; some rows are not kept yet
	phaseAbandoned              // the record of that is on its way to the stream
	phaseDone                   // the record that nothing is wanted of it is on its way
	phaseClosed                 // its files are to be deleted, and its records purged
)

var phaseStates = map[phase]State{
	phaseSealed: StateIntent, phaseRecorded: StateIntent, phaseUploaded: StateIntent, phaseLooking: StateLooking, phaseFound: StateRunning,
	phaseRunning: StateRunning, phaseOver: StateCollecting, phaseSettling: StateSettling, phaseAbandoned: StateLooking, phaseDone: StateSettling,
}

func newBatch(r *Record) *batch {
	n := len(r.Rows.Seqs)
	return &batch{
		sealed: sealed{
			token: r.Token, model: r.Model, account: r.Account, intent: r.Time,
			bytes: r.Bytes, tokens: r.Tokens, cost: r.Cost,
		},
		batchRows: batchRows{rows: *r.Rows, state: make([]rowState, n), count: [rowStates]int{rowSubmitted: n}},
	}
}

// wentLive reports whether a row has been called live since it was submitted, so that it
// takes no answer of the batch.
//
// Of a row that was kept before this term only its deadline is known. If that had passed
// when this term found the batch over, the row went live.
func (b *batch) wentLive(i int) bool {
	at := b.deadline(i)
	return b.goneLive.has(i) || b.state[i] == rowKept && !b.settled.has(i) && at != 0 && at <= b.overSince.UnixMilli()
}

// futile reports whether the provider works on the batch though no answer of it is wanted,
// and none is on its way.
func (b *batch) futile() bool {
	return b.phase == phaseRunning && b.ours() && !b.wanted() && b.count[rowAnswered]+b.count[rowAgain] == 0
}

// ended reports whether the provider is done with the batch, so that it no longer counts
// as open.
func (b *batch) ended() bool { return b.phase >= phaseOver }

// ours reports whether it is certain that the provider's batch is this one.
func (b *batch) ours() bool { return b.id != "" && !b.tentative }

// notOurs goes on looking, where the results of a batch that seemed to be ours have other
// ids.
func (b *batch) notOurs(now time.Time) {
	if b.excluded == nil {
		b.excluded = make(map[string]bool)
	}
	b.excluded[b.id] = true
	b.id, b.remote, b.tentative, b.adopted = "", batchapi.Batch{}, false, false
	b.phase, b.next, b.missing, b.cuts = phaseLooking, time.Time{}, time.Time{}, 0
	b.lookUntil = now
}

// note adds the line of a row to the sums, the first time that it is read.
func (b *batch) note(i int, r *lineRead) {
	if !b.counted.add(i) {
		return
	}
	switch {
	case r.line.Kind == batchapi.Lapsed:
		b.sum.lapsed++
		return
	case r.reply():
		b.sum.answered++
	default:
		b.sum.failed++
	}
	b.sum.usage.Add(r.usage, r.reply() && (r.usage == nil || r.usage.CostUSD == nil))
}

func (b *batch) status() BatchStatus {
	s := BatchStatus{
		Token: b.token, BatchID: b.id, Model: b.model, State: phaseStates[b.phase], Rows: len(b.state), Bytes: b.bytes,
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

func (b *batchRows) find(seq uint64) int { return find(b.rows.Seqs, seq) }

func (b *batchRows) set(i int, s rowState) {
	b.count[b.state[i]]--
	b.state[i] = s
	b.count[s]++
	if s == rowLive {
		if b.goneLive == nil {
			b.goneLive = newBits(len(b.state))
		}
		b.goneLive.add(i)
	}
}

func (b *batchRows) tries(i int) int {
	if b.rows.Tries == nil {
		return 0
	}
	return int(b.rows.Tries[i])
}

func (b *batchRows) deadline(i int) int64 {
	if b.rows.Deadlines == nil {
		return 0
	}
	return b.rows.Deadlines[i]
}

// isSettled reports whether each row is kept or moved, so that a crash now would lose
// nothing.
func (b *batchRows) isSettled() bool { return b.count[rowKept]+b.count[rowMoved] == len(b.state) }

// wanted reports whether any row still waits for its answer.
func (b *batchRows) wanted() bool { return b.count[rowSubmitted] > 0 }

// forgetRows frees the memory of the rows: nothing more is wanted of them.
func (b *batchRows) forgetRows() { *b = batchRows{} }

// lowest returns the first row that waits for its answer, or 0.
func (b *batchRows) lowest() uint64 {
	for i, s := range b.state {
		if s == rowSubmitted {
			return b.rows.Seqs[i]
		}
	}
	return 0
}

// fail notes that something was tried in vain, and when to try again.
func (b *attempts) fail(err error, now time.Time, least time.Duration) {
	wait := min(time.Second<<min(b.tried, 6), time.Minute)
	b.tried++
	b.problem, b.next = err.Error(), now.Add(max(wait, least))
}

func (b *attempts) fine() { b.tried, b.noAPI, b.problem, b.next = 0, 0, "", time.Time{} }

// tally counts what the passes over the results have found, the line of each row once.
type tally struct {
	answered, failed, lapsed, foreign, dropped int
	usage                                      auditlog.UsageSum
}

// bits are a set of rows by their places in a batch. Nil is empty, and takes none.
type bits []uint64

func newBits(n int) bits { return make(bits, (n+63)/64) }

func (b bits) has(i int) bool { return b != nil && b[i/64]&(1<<(i%64)) != 0 }

// add adds a place, and reports whether it is new.
func (b bits) add(i int) bool {
	if b.has(i) {
		return false
	}
	b[i/64] |= 1 << (i % 64)
	return true
}
