package lane

import (
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/llm/batchapi"
)

// rowState is where a row of a batch is.
type rowState uint8

const (
	// rowSubmitted: it has no answer, and one is wanted.
	rowSubmitted rowState = iota
	// rowAnswered: its answer is on its way through the executor.
	rowAnswered
	// rowAgain: its answer did not settle it, or there is none. What becomes of it is decided when all are read.
	rowAgain
	// rowLive: it is called live.
	rowLive
	// rowElsewhere: it waits for, or gathers in, another batch, which is not recorded yet.
	rowElsewhere
	// rowMoved: it is in a later batch that is recorded.
	rowMoved
	// rowKept: nothing is wanted of it any more.
	rowKept

	rowStates = iota
)

// stage is how far a batch has come.
type stage uint8

const (
	stageSealed    stage = iota // its intent is on its way to the stream
	stageRecorded               // to be uploaded
	stageUploaded               // to be created
	stageLooking                // whether it exists is to be found out
	stageFound                  // the record of its id is on its way to the stream
	stageRunning                // the provider works on it
	stageOver                   // to be read
	stageSettling               // read; some rows are not kept yet
	stageAbandoned              // the record of that is on its way to the stream
	stageDone                   // likewise that it is done
	stageClosed                 // its files are to be deleted, and its records purged
)

var stageStates = map[stage]State{
	stageSealed: StateIntent, stageRecorded: StateIntent, stageUploaded: StateIntent, stageLooking: StateLooking, stageFound: StateRunning,
	stageRunning: StateRunning, stageOver: StateCollecting, stageSettling: StateSettling, stageAbandoned: StateLooking, stageDone: StateSettling,
}

// batch is one batch from its intent on.
type batch struct {
	token, model, account string
	intent, submitted     time.Time
	bytes, tokens         int64
	cost                  float64

	rows  Rows
	state []rowState
	wasIn bits // rows that have gone live from here, so that an answer is of no use
	count [rowStates]int

	stage stage
	body  []*gathered // until it is created
	file  string      // uploaded

	// busy: something is under way for it. next is when it is looked at again, tried how often that has failed in a row.
	busy    bool
	next    time.Time
	tried   int
	problem string
	noAPI   int // answers in a row that there is no Batch API

	remote    batchapi.Batch // as the provider reported it last
	id        string
	tentative bool // it may be another's
	adopted   bool
	cancelled bool // we have asked for it

	lookUntil time.Time // until when it counts as not listed yet
	withdrawn bool
	excluded  map[string]bool // ids that turned out to be of others
	missing   time.Time       // since when the provider does not know it

	overSince    time.Time
	passes, cuts int    // read to the end, and answered with unknown
	seen         bits   // rows with a line in the last pass
	readTo       uint64 // rows taken when that began
	pending      bool   // it had lines of rows that had not come
	counted      bits   // rows whose line is in sum
	settled      bits   // rows whose line a row has taken in this term, or that was recorded as unused
	gone         bool   // the provider no longer has its results
	judged       bool   // a line is a reply, or so few failed alike that each is its row's own
	sum          tally
	reported     bool // the event of its end is out
	untold       int  // events that are not stored yet

	sha     string // of its lines
	cleaned bool   // its files are deleted
	keep    bool   // its last record stays: it was given up without certainty
}

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

func newBatch(r *Record) *batch {
	return &batch{
		token: r.Token, model: r.Model, account: r.Account, intent: r.Time, bytes: r.Bytes, tokens: r.Tokens, cost: r.Cost,
		rows: *r.Rows, state: make([]rowState, len(r.Rows.Seqs)), count: [rowStates]int{rowSubmitted: len(r.Rows.Seqs)},
	}
}

func (b *batch) find(seq uint64) int { return find(b.rows.Seqs, seq) }

func (b *batch) set(i int, s rowState) {
	b.count[b.state[i]]--
	b.state[i] = s
	b.count[s]++
	if s == rowLive {
		if b.wasIn == nil {
			b.wasIn = newBits(len(b.state))
		}
		b.wasIn.add(i)
	}
}

// wentLive reports whether a row has been called live since it was submitted, so that it takes no answer of the batch.
//
// A row that was kept before this term leaves no other trace of that than its deadline: where it had come before the
// batch was over, only a live call can have answered the row.
func (b *batch) wentLive(i int) bool {
	at := b.deadline(i)
	return b.wasIn.has(i) || b.state[i] == rowKept && !b.settled.has(i) && at != 0 && at <= b.overSince.UnixMilli()
}

func (b *batch) tries(i int) int {
	if b.rows.Tries == nil {
		return 0
	}
	return int(b.rows.Tries[i])
}

func (b *batch) deadline(i int) int64 {
	if b.rows.Deadlines == nil {
		return 0
	}
	return b.rows.Deadlines[i]
}

// settled reports whether nothing is wanted of it, and nothing of it could be wanted after a crash.
func (b *batch) isSettled() bool { return b.count[rowKept]+b.count[rowMoved] == len(b.state) }

// wanted reports whether an answer to a row of it is.
func (b *batch) wanted() bool { return b.count[rowSubmitted] > 0 }

// futile: the provider works on it, and nothing is wanted of it.
func (b *batch) futile() bool {
	return b.stage == stageRunning && b.ours() && !b.wanted() && b.count[rowAnswered]+b.count[rowAgain] == 0
}

// ended: it no longer counts as open, as the provider is done with it.
func (b *batch) ended() bool { return b.stage >= stageOver }

// ours reports whether it is certain that the provider's batch is this one.
func (b *batch) ours() bool { return b.id != "" && !b.tentative }

// lowest returns the first row without an answer.
func (b *batch) lowest() uint64 {
	for i, s := range b.state {
		if s == rowSubmitted {
			return b.rows.Seqs[i]
		}
	}
	return 0
}

// fail notes that something was tried in vain, and when to try again.
func (b *batch) fail(err error, now time.Time, least time.Duration) {
	wait := min(time.Second<<min(b.tried, 6), time.Minute)
	b.tried++
	b.problem, b.next = err.Error(), now.Add(max(wait, least))
}

func (b *batch) fine() { b.tried, b.noAPI, b.problem, b.next = 0, 0, "", time.Time{} }
