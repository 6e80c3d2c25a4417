package executor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/internal/lane"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/pool"
)

// Lane is the batch lane of a partition, a [*lane.Lane].
type Lane interface {
	// Add takes a row into the lane, and Again one whose answer there did not settle it.
	// The row is parked right after.
	Add(r lane.Request)
	Again(seq uint64, e *lane.Errand)
}

// laneRows serves the rows of the batch lane. Such a row needs no room in the pool: it is
// rendered and parked ([laneRows.join]), or its answer is there ([laneRows.judge]). So these
// rows have a backlog and a goroutine of their own, and don't wait behind live ones. A row
// that can't be answered by a batch goes to the backlog of the live ones ([laneRows.goLive]).
type laneRows struct {
	e       *Executor
	backlog *backlog
	spent   parkedSpent
}

func newLaneRows(e *Executor) *laneRows { return &laneRows{e: e, backlog: newBacklog()} }

// laneRowsAtOnce is how many rows of the lane are rendered before the first is parked.
const laneRowsAtOnce = 64

// laneWish is what a row's headers and the configuration say of its lane.
type laneWish struct {
	batch    bool
	deadline time.Time // or zero if there is none
}

// readWish reads the headers. Its error is an [*llm.Error] of an invalid row.
func readWish(cfg *config.Config, row *consumer.Row) (w laneWish, err error) {
	if cfg.LaneCollects() {
		return w, nil // the stage has no lane for rows: the headers mean nothing
	}
	w.batch = cfg.Lane.Mode == config.LaneBatch
	switch name := row.Header.Get(streams.HeaderLane); name {
	case "":
	case config.LaneLive, config.LaneBatch:
		w.batch = name == config.LaneBatch
	default:
		return w, invalidHeader(streams.HeaderLane, name, "live or batch")
	}
	after := cfg.Lane.Deadline
	if text := row.Header.Get(streams.HeaderDeadline); text != "" {
		at, err := time.Parse(time.RFC3339, text)
		if err == nil {
			w.deadline = at
			return w, nil
		}
		if after, err = time.ParseDuration(text); err != nil || after < 0 {
			return w, invalidHeader(streams.HeaderDeadline, text, "a duration such as 90m, or an instant such as 2026-11-23T18:00:00Z")
		}
	}
	if after > 0 {
		w.deadline = row.Arrived.Add(after)
	}
	return w, nil
}

func invalidHeader(name, text, want string) error {
	return &llm.Error{
		Class: llm.Permanent, Reason: llm.ReasonInvalidRow,
		Err: fmt.Errorf("the row's header %s is %q: give %s", name, excerpt.Of(text), want),
	}
}

// late reports whether a batch that is sealed after wait (STAGE_LANE_WAIT) would come too
// late for the row.
func (w laneWish) late(wait time.Duration) bool {
	return !w.deadline.IsZero() && time.Until(w.deadline) <= wait
}

// errandOf returns the errand of a row that the lane has recalled, or nil.
func errandOf(row *consumer.Row) *lane.Errand {
	errand, _ := row.Errand.(*lane.Errand)
	return errand
}

// has reports whether a row that is started goes to the backlog of the lane.
func (l *laneRows) has(row *consumer.Row) bool {
	if l.e.Lanes == nil {
		return false
	}
	if before, ok := row.Spent.(*spent); ok && before.live {
		return false
	}
	if errand := errandOf(row); errand != nil && (errand.Live || errand.Line != nil) {
		return !errand.Live
	}
	w, err := readWish(l.e.cfg, row)
	return err == nil && w.batch
}

// run renders and parks rows of the lane, and takes their answers, until done is
// closed. Once ctx has ended it hands them back.
func (l *laneRows) run(ctx context.Context, done <-chan struct{}) {
	// The bytes of an answer are in memory already.
	mayBegin := func(*consumer.Row) bool { return l.e.media.hasRoom() || ctx.Err() != nil }
	serve := func(jobs []*job) {
		l.e.Sharing.lookUp(ctx, slices.DeleteFunc(slices.Clone(jobs), answered))
		for _, j := range jobs {
			l.serve(ctx, j)
		}
	}
	for {
		select {
		case <-l.backlog.ready:
		case <-done:
			return
		}
		serve(l.e.finishAll(ctx, l.backlog.takeDescribed()))
		for {
			rows := l.backlog.queue.take(laneRowsAtOnce, mayBegin)
			if len(rows) == 0 {
				break
			}
			serve(l.e.media.begin(ctx, l.e.prepareAll(ctx, rows), l.backlog))
		}
	}
}

// answered reports whether the job's answer from a batch is there.
func answered(j *job) bool {
	errand := errandOf(j.row)
	return errand != nil && errand.Line != nil
}

// serve answers or parks a row of the lane.
func (l *laneRows) serve(ctx context.Context, j *job) {
	switch {
	case ctx.Err() != nil || !j.row.Wanted():
		l.e.handBack(j.row)
	case answered(j):
		l.judge(j, errandOf(j.row))
	case j.found != nil && l.e.answerWith(j, j.found, true):
	default:
		l.join(ctx, j)
	}
}

// load reads the media of a row that joins. The row's line has their bytes, which count
// as bytes of the batch from then on. A row whose media can't be read is answered, or
// waits for their store.
func (l *laneRows) load(ctx context.Context, j *job) (loaded *llm.Prepared, ok bool) {
	loaded, release, err := l.e.media.loadBytes(ctx, j)
	if err == nil {
		release() // the lane counts them
		return loaded, true
	}
	_, away := errors.AsType[*llm.AwayError](err)
	switch {
	case ctx.Err() != nil:
		l.e.giveBack(j)
	case away:
		j.prepared = nil
		l.e.media.begin(ctx, []*job{j}, l.backlog)
	default:
		l.e.answerError(j, err, l.e.uncalled(j), "")
	}
	return nil, false
}

// join makes a row wait in the lane.
func (l *laneRows) join(ctx context.Context, j *job) {
	w, _ := readWish(l.e.cfg, j.row) // prepare has answered a row with a bad one
	if w.late(l.e.cfg.Lane.Wait) || !l.e.caller.AffordableByBatch(j.prepared) {
		l.goLive(j)
		return
	}
	loaded, ok := l.load(ctx, j)
	if !ok {
		return
	}
	r := lane.Request{Seq: j.row.Seq, Key: j.key, Prepared: loaded, Deadline: w.deadline}
	r.Tokens, r.Cost = l.e.caller.EstimateBatch(j.prepared, &j.request)
	l.e.Lanes(j.row.Partition).Add(r)
	l.park(j)
}

// goLive makes a row be called live after all, with what was spent on it so far.
func (l *laneRows) goLive(j *job) {
	s := j.spent
	s.live, s.rejected, s.complaint = true, j.request.Rejected, j.request.Complaint
	j.row.Spent = &s
	l.e.backlog.add(entry{row: j.row})
}

// park leaves a row to the lane. What was spent on it is remembered until it is recalled.
func (l *laneRows) park(j *job) {
	l.spent.put(j.row, &j.spent)
	l.e.reply(j.row, &consumer.Reply{Parked: true})
}

var errOtherRequest = errors.New("the batch answered another request than the row makes now: settings have changed since it was submitted; the row goes again")

// judge takes a row's answer from a batch.
func (l *laneRows) judge(j *job, errand *lane.Errand) {
	x, err := l.e.caller.At(0).ReadReply(j.prepared, errand.Line.Status, errand.Line.Body)
	var reply *answer
	sent := j.prepared
	switch {
	case !errand.Answers(j.key): // what it cost counts all the same
		x.Request = nil
		err = &llm.Error{Class: llm.Transient, Reason: llm.ReasonAPICallFailed, Provider: l.e.caller.At(0).Provider(), Status: x.Status, Err: errOtherRequest}
	case err == nil:
		reply, err = l.e.accept(j, x)
	}
	a := pool.Attempt{Number: 1}
	outcome := l.e.caller.LineOutcome(sent, x, err, errand.Line.ID, errand.BatchID)
	l.e.record(j, a, outcome)
	r := l.e.uncalled(j)
	verdict := outcome.Verdict()
	if r.Class = verdict.Class; r.Class == pool.Capacity {
		r.CapacityRetries = 1
	} else {
		r.Attempts = 1
	}
	switch failure := outcome.Err; {
	case failure == nil:
		l.e.Sharing.keep(j, reply)
		l.e.succeed(j, r)
	case failure.Class == llm.Permanent:
		l.e.failed(j, a, failure, verdict)
		l.e.answerError(j, failure, r, auditlog.SourceCall)
	default:
		l.e.failed(j, a, failure, verdict)
		j.spent = j.after(r)
		if failure.Reason == llm.ReasonSchemaValidationFailed && errand.Tries > 0 {
			l.goLive(j) // with the complaint, which a batch could not carry
			return
		}
		l.e.Lanes(j.row.Partition).Again(j.row.Seq, errand)
		l.park(j)
	}
}

// parkedErrorsMax is how many parked rows of a partition are remembered with the errors
// of their attempts. Of further rows only the numbers of attempts are.
const parkedErrorsMax = 4096

// parkedSpent remembers what was spent on rows that are parked, in this term of
// ownership: their row events count all their calls in it. Rows without a call take
// nothing. The first row of a later term replaces what was spent in an earlier one. The
// zero value is empty. It is safe for concurrent use.
type parkedSpent struct {
	mu   sync.Mutex
	rows map[int]*termSpent // by partition
}

type termSpent struct {
	owner string
	rows  map[uint64]*spent
}

// put remembers what was spent on a row that is about to be parked.
func (p *parkedSpent) put(row *consumer.Row, s *spent) {
	if s.calls == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.rows[row.Partition]
	if owner := row.Owner(); t == nil || t.owner != owner {
		if p.rows == nil {
			p.rows = make(map[int]*termSpent)
		}
		t = &termSpent{owner: owner, rows: make(map[uint64]*spent)}
		p.rows[row.Partition] = t
	}
	all := *s
	if len(t.rows) >= parkedErrorsMax {
		all.errors = nil
	}
	t.rows[row.Seq] = &all
}

// take returns what was spent on a row in its term and forgets it, or nil.
func (p *parkedSpent) take(row *consumer.Row) *spent {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.rows[row.Partition]
	if t == nil || t.owner != row.Owner() {
		return nil
	}
	s := t.rows[row.Seq]
	delete(t.rows, row.Seq)
	return s
}
