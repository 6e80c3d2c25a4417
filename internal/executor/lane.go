package executor

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	Again(seq uint64, e *lane.Errand, failure *llm.Error)
}

// A row of the batch lane needs no room in the pool: it is rendered and parked
// ([Executor.join]), or its answer is there ([Executor.judge]). So such rows have a queue
// and a goroutine of their own, and don't wait behind live ones. A row that can't be
// answered by a batch goes to the queue of the live ones ([Executor.goLive]).

// laneRowsAtOnce is how many rows of the lane are rendered before the first is parked.
const laneRowsAtOnce = 64

// laneWish is what a row's headers and the configuration say of its lane.
type laneWish struct {
	batch    bool
	deadline time.Time // zero: none
}

// readWish reads the headers. Its error is an [*llm.Error] of an invalid row.
func (e *Executor) readWish(row *consumer.Row) (w laneWish, err error) {
	if e.cfg.LaneCollects() {
		return w, nil // the stage has no lane for rows: the headers mean nothing
	}
	w.batch = e.cfg.Lane.Mode == config.LaneBatch
	switch name := row.Header.Get(streams.HeaderLane); name {
	case "":
	case config.LaneLive, config.LaneBatch:
		w.batch = name == config.LaneBatch
	default:
		return w, invalidHeader(streams.HeaderLane, name, "live or batch")
	}
	after := e.cfg.Lane.Deadline
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

// late reports that a batch that is sealed after STAGE_LANE_WAIT would come too late.
func (e *Executor) late(w laneWish) bool {
	return !w.deadline.IsZero() && time.Until(w.deadline) <= e.cfg.Lane.Wait
}

// errandOf returns the errand of a row that the lane has recalled, or nil.
func errandOf(row *consumer.Row) *lane.Errand {
	errand, _ := row.Errand.(*lane.Errand)
	return errand
}

// inLane reports whether a row that is started goes to the queue of the lane.
func (e *Executor) inLane(row *consumer.Row) bool {
	if e.Lanes == nil {
		return false
	}
	if before, ok := row.Spent.(*spent); ok && before.live {
		return false
	}
	if errand := errandOf(row); errand != nil && (errand.Live || errand.Line != nil) {
		return !errand.Live
	}
	w, err := e.readWish(row)
	return err == nil && w.batch
}

// runLane renders and parks rows of the lane, and takes their answers, until done is
// closed. Once ctx has ended it hands them back.
func (e *Executor) runLane(ctx context.Context, done <-chan struct{}) {
	anyRow := func(*consumer.Row) bool { return true } // the bytes of an answer are in memory already
	for {
		select {
		case <-e.laneReady:
		case <-done:
			return
		}
		for {
			rows := e.laneQueue.take(laneRowsAtOnce, anyRow)
			if len(rows) == 0 {
				break
			}
			jobs := e.prepareAll(ctx, rows)
			e.lookUp(ctx, slices.DeleteFunc(slices.Clone(jobs), answered))
			for _, j := range jobs {
				e.serve(ctx, j)
			}
		}
	}
}

// answered reports whether the job's answer from a batch is there.
func answered(j *job) bool {
	errand := errandOf(j.row)
	return errand != nil && errand.Line != nil
}

// serve answers or parks a row of the lane.
func (e *Executor) serve(ctx context.Context, j *job) {
	switch {
	case ctx.Err() != nil || !j.row.Wanted():
		e.handBack(j.row)
	case answered(j):
		e.judge(j, errandOf(j.row))
	case j.found != nil && e.answerWith(j, j.found, true):
	default:
		e.join(j)
	}
}

// join has a row wait in the lane.
func (e *Executor) join(j *job) {
	w, _ := e.readWish(j.row) // prepare has answered a row with a bad one
	if e.late(w) || !e.caller.AffordableByBatch(j.prepared) {
		e.goLive(j)
		return
	}
	r := lane.Request{Seq: j.row.Seq, Key: j.key, Prepared: j.prepared, Deadline: w.deadline}
	r.Tokens, r.Cost = e.caller.EstimateBatch(j.prepared, &j.request)
	e.Lanes(j.row.Partition).Add(r)
	e.park(j)
}

// goLive has a row called live after all, with what was spent on it so far.
func (e *Executor) goLive(j *job) {
	s := j.spent
	s.live, s.rejected, s.complaint = true, j.request.Rejected, j.request.Complaint
	j.row.Spent = &s
	e.queue.add(entry{row: j.row})
	e.signal()
}

// park leaves a row to the lane. What was spent on it is remembered until it is recalled.
func (e *Executor) park(j *job) {
	e.spentInLane.put(j.row, &j.spent)
	e.reply(j.row, consumer.Reply{Parked: true})
}

var errOtherRequest = errors.New("the batch answered another request than the row makes now: settings have changed since it was submitted; the row goes again")

// judge takes a row's answer from a batch.
func (e *Executor) judge(j *job, errand *lane.Errand) {
	x, err := e.caller.At(0).ReadReply(j.prepared, errand.Line.Status, errand.Line.Body)
	var reply *answer
	sent := j.prepared
	switch {
	case !errand.Answers(j.key): // what it cost counts all the same
		x.Request = nil
		err = &llm.Error{Class: llm.Transient, Reason: llm.ReasonAPICallFailed, Provider: e.caller.At(0).Provider(), Status: x.Status, Err: errOtherRequest}
	case err == nil:
		reply, err = e.accept(j, x)
	}
	a, call := pool.Attempt{Number: 1}, e.caller.LineOutcome(sent, x, err, errand.Line.ID, errand.BatchID)
	e.record(j, a, call)
	r := e.uncalled(j)
	verdict := call.Verdict()
	if r.Class = verdict.Class; r.Class == pool.Capacity {
		r.CapacityRetries = 1
	} else {
		r.Attempts = 1
	}
	switch failure := call.Err; {
	case failure == nil:
		if e.store != nil {
			e.store.put(j.key, reply)
		}
		e.succeed(j, r)
	case failure.Class == llm.Permanent:
		e.failed(j, a, failure, verdict)
		e.answerError(j, failure, r, auditlog.SourceCall)
	default:
		e.failed(j, a, failure, verdict)
		j.spent = j.after(r)
		if failure.Reason == llm.ReasonSchemaValidationFailed && errand.Tries > 0 {
			e.goLive(j) // with the complaint, which a batch could not carry
			return
		}
		e.Lanes(j.row.Partition).Again(j.row.Seq, errand, failure)
		e.park(j)
	}
}
