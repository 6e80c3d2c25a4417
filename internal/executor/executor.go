// Package executor answers rows: it renders each, shares the call of an equal one, calls
// through the pool, and builds the result. It is the one place where a row becomes a
// request.
//
// A row goes through these steps in this order, each one function; the files are read in
// the same order:
//
//  1. [Executor.Start] puts the row into the backlog (executor.go, backlog.go, queue.go).
//  2. [Executor.take] takes out as many rows as the pool has room for (executor.go).
//     Partitions, their keys, and prompts of batched requests take turns. The pool keeps
//     the order.
//  3. [Executor.prepare] makes a [job] of the row, or answers one that needs no call
//     (prepare.go, job.go). Within it [Executor.render] makes the request (prompt.go),
//     [Executor.finish] its bytes, and [Executor.restore] answers from the journal
//     (journal.go). With STAGE_FOREACH it puts the row back as a fan instead, and each of
//     its elements, taken in turn, is a job from here on to step 11. With the last of them
//     the row is answered (fan.go). A request with media waits between render and finish
//     until these have been looked up ([mediaLookups.begin], media.go).
//  4. [sharing.lookUp] finds stored replies to equal requests (dedupe.go, store.go).
//  5. [sharing.join] answers the job from an equal request, or has it wait for that one's
//     call (dedupe.go, flights.go).
//  6. [Executor.submit] hands the job to the pool (executor.go). With STAGE_TASK=embed it
//     joins a group of others first, which share one call ([gathering.add], group.go).
//     [gathering.attempt] and [gathering.done] then stand for the steps 7 to 11.
//  7. [Executor.attempt] makes one call, on a worker of the pool, as often as the pool
//     decides (attempt.go): [Executor.refuse], [job.address], [Executor.reloadKey],
//     [mediaLookups.load], [Executor.call].
//  8. [Executor.accept] validates the reply and builds the result (attempt.go).
//  9. [Executor.record] adds the call to the audit, the cost ledger and the log
//     (attempt.go).
//  10. [sharing.reply] answers the jobs that wait for this one (dedupe.go).
//  11. [Executor.done] takes the job's outcome from the pool (answer.go).
//  12. [Executor.reply] answers the row (answer.go); its consumer stores the result and
//     acknowledges the row.
//
// A row of the batch lane has a backlog and a goroutine of its own, [laneRows.run], and
// goes another way from step 5 on (lane.go): it is parked ([laneRows.join]). When the lane
// has its answer it is started again. Then it skips step 4, and [laneRows.judge] takes the
// answer, with the steps 8, 9 and 12. A prompt of a batched request takes its turn among
// the rows, and has no other step than its attempt ([promptTurns.submit], once.go).
package executor

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/pooled"
	"github.com/llm-stage/stage/pool"
)

// Executor answers rows. It implements [consumer.Executor], [consumer.Recaller],
// [consumer.Resumer], [consumer.Waiter] and [consumer.Fitter], and is safe for concurrent
// use.
//
// Rows are rendered by one goroutine, those of a key in stream order, only as far ahead
// of the calls as the pool has room; the others wait unparsed. Partitions take turns, and
// so do the keys of each. Rows without keys have one in common, and those of a partition
// are in stream order. The rows of the batch lane have a goroutine of their own.
type Executor struct {
	// Pool makes the calls. Its Run and Drain are the caller's to call.
	Pool *pool.Pool[*job, struct{}]
	// Show is called after each call with its identifier and the row's body, secrets
	// redacted. It is set before Run, must be safe for concurrent use and must not block.
	// It may be nil.
	Show func(callID string, row []byte)
	// Failed is called with the sequence of each row that fails and why, without text of
	// the row, or empty if it is unknown. It is set before Run, must be safe for concurrent
	// use and must not block. It may be nil.
	Failed func(sequence uint64, cause string)
	// Lanes returns the batch lane of a partition. It is set before Run. It is nil in a
	// stage without lanes, which calls each row live.
	Lanes func(partition int) Lane
	// Sharing makes equal requests share one call. Its store must be opened before Run.
	Sharing *sharing

	cfg    *config.Config
	caller *call.Caller
	prompt *Prompt
	log    rowLog

	backlog *backlog
	work    atomic.Uint64 // how often Run has begun to work or ended it: odd while it works
	steps   steps         // what takes long

	media     *mediaLookups
	gathering *gathering   // or nil, and then no call serves several rows
	lane      *laneRows    // rows of the batch lane
	prompts   *promptTurns // of batched requests
}

// New returns an executor and its pool, or what is wrong with poolConfig. It starts
// nothing: run both [Executor.Run] and Pool.Run.
func New(cfg *config.Config, caller *call.Caller, prompt *Prompt, poolConfig pool.Config, log *slog.Logger) (*Executor, error) {
	e := &Executor{
		cfg: cfg, caller: caller, prompt: prompt, log: rowLog{log, cfg.Process.LogLevel == "debug"},
		backlog: newBacklog(),
	}
	e.lane, e.media, e.gathering = newLaneRows(e), newMediaLookups(e), newGathering(e)
	e.Sharing, e.prompts = newSharing(e), &promptTurns{e: e}
	var once sync.Once
	prompt.format.Replaced = func(field string) { once.Do(func() { e.log.replaced(field) }) }
	poolConfig.OnRoom, poolConfig.Expected = e.backlog.wake, e.expected
	e.prompts.followPauses(&poolConfig)
	var err error
	e.Pool, err = pool.New(poolConfig, e.attempt)
	return e, err
}

// Start queues the row and returns at once. It implements [consumer.Executor].
func (e *Executor) Start(row *consumer.Row) {
	e.log.queued(row)
	to := e.backlog
	if e.lane.has(row) {
		to = e.lane.backlog
	}
	to.add(entry{row: row})
}

// Run renders rows and hands them to the pool until ctx ends; then it hands back the rows
// that wait, and those that are still started. It returns when done is closed: the caller
// closes done when no more rows can come.
func (e *Executor) Run(ctx context.Context, done <-chan struct{}) {
	defer context.AfterFunc(ctx, e.Resume)()
	defer e.media.group.Wait()
	if e.Lanes != nil {
		var lane sync.WaitGroup
		lane.Go(func() { e.lane.run(ctx, done) })
		defer lane.Wait()
	}
	found := 0 // rows of the last take whose replies were stored
	for {
		select {
		case <-e.backlog.ready:
		case <-done:
			return
		}
		e.work.Add(1)
		e.submit(ctx, e.Sharing.flights.takeRequeued())
		e.media.begin(ctx, e.media.takeAgain(), e.backlog)
		e.prompts.refuse()
		if jobs := e.finishAll(ctx, e.backlog.takeDescribed()); len(jobs) > 0 {
			e.Sharing.lookUp(ctx, jobs)
			e.submit(ctx, jobs)
		}
		for taken := e.take(ctx, found); len(taken) > 0; taken = e.take(ctx, found) {
			jobs := e.media.begin(ctx, e.prepareAll(ctx, taken), e.backlog)
			e.Sharing.lookUp(ctx, jobs)
			found = countFound(jobs)
			e.submit(ctx, jobs)
		}
		if ctx.Err() == nil {
			e.gathering.flush()
		} else {
			e.gathering.handBack(func(*job) bool { return true })
		}
		e.work.Add(1)
	}
}

// take takes the first rows of the queue that may begin, or elements of them, as many as
// the pool has room for. They are valid until the next call.
//
// Without a store it takes one at a time, or enough to fill a group where several rows
// share a call. With a store, look-ups go together, and rows that turn out to be stored
// need no room: it takes as many more as were stored of the last ones. For example, where
// the pool has room for four rows and all rows are stored, the takes are of 4, 8, 12 rows
// and so on, up to lookUpRows.
func (e *Executor) take(ctx context.Context, found int) []entry {
	room := e.Pool.Room()
	most := min(room, 1)
	if e.gathering != nil && room > 0 {
		room = e.gathering.room(room)
		most = min(room, lookUpRows)
	}
	if e.Sharing.Store != nil {
		most = min(max(0, room)+found, lookUpRows)
	}
	if ctx.Err() != nil {
		most = lookUpRows // to be handed back
	}
	return e.backlog.queue.take(most, func(row *consumer.Row) bool {
		return ctx.Err() != nil || row.MayBegin() && e.media.hasRoom()
	})
}

// expected reports whether a row is about to go to the pool. Such a row may show whose
// fault it is that others fail, see [pool.Config].
//
// Run moves rows between the places that are looked at here. So while it works, or if it
// has begun to since the first look, a row is taken to be on its way. Otherwise this could
// happen to the only one:
//
//  1. expected finds Run asleep, and no row in the queue: it waits in an open group.
//  2. Run wakes, and closes the group.
//  3. expected finds no open group, and reports false.
//  4. Run hands the group to the pool, which has declared an outage for lack of a witness.
func (e *Executor) expected() bool {
	before := e.work.Load()
	works := before%2 == 1
	return works || e.backlog.queue.mayGo() || e.media.soon() || e.Sharing.flights.anyRequeued() ||
		e.gathering.any() || e.work.Load() != before
}

// countFound counts the jobs whose replies are stored.
func countFound(jobs []*job) (found int) {
	for _, j := range jobs {
		if j.found != nil {
			found++
		}
	}
	return found
}

// Recall hands back the waiting rows that are no longer wanted. Those that wait for the
// call of another row are among them: it may wait for capacity for ever, and the
// hand-over of a partition must not. It implements [consumer.Recaller].
func (e *Executor) Recall() {
	for _, w := range e.backlog.queue.recall((*consumer.Row).Wanted) {
		if w.fan != nil {
			w.fan.handBackRest()
			continue
		}
		e.handBack(w.row)
	}
	for _, w := range e.lane.backlog.queue.recall((*consumer.Row).Wanted) {
		e.handBack(w.row)
	}
	for _, j := range e.Sharing.flights.recall() {
		e.giveBack(j)
	}
	e.gathering.handBack((*job).unwanted)
	e.media.recall()
	e.Pool.Recall((*job).unwanted)
}

// Resume looks at the waiting rows again, and at the slots that were held. It implements
// [consumer.Resumer].
func (e *Executor) Resume() {
	e.backlog.resume()
	e.Pool.Wake()
}

// submit hands jobs to the pool, except those that share the call of another. It does not
// block, even if the pool's queue has filled up since: a job kept here could not be
// recalled, and would block those of other partitions.
func (e *Executor) submit(ctx context.Context, jobs []*job) {
	for len(jobs) > 0 {
		j := jobs[0]
		jobs = jobs[1:]
		switch {
		case ctx.Err() != nil || !j.row.Wanted():
			e.giveBack(j)
		case e.Sharing.join(j):
		case e.unaffordable(j):
		case e.gathering != nil:
			e.gathering.add(j)
		default:
			if err := e.Pool.Add(j, e.done); err != nil { // it has stopped
				e.done(result{In: j, Class: pool.Cancelled})
			}
		}
		if requeued := e.Sharing.flights.takeRequeued(); len(requeued) > 0 {
			jobs = append(requeued, jobs...) // they are older
		}
	}
}

// unaffordable answers a row that names a model without a price where there is a cost
// ceiling.
func (e *Executor) unaffordable(j *job) bool {
	err := e.caller.Affordable(j.model)
	if err == nil {
		return false
	}
	r := e.uncalled(j)
	r.Err, r.Class = err, pooled.Judge(call.AsError(err), &llm.Exchange{}).Class
	e.Sharing.finish(r)
	e.answerError(j, err, r, "")
	return true
}
