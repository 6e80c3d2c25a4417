package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// singleCostReplicas and groupCostReplicas are the first guesses of what an append
	// costs where a stream has replicas.
	singleCostReplicas = 700 * time.Microsecond
	groupCostReplicas  = 3 * time.Millisecond
	// From groupPaysRows on a group costs client and server far less CPU than single
	// appends: 4.3 ms and 17 µs a row against 216 µs a row, measured on one replica. So it
	// may take groupPatience times as long, which it spends waiting for the disk. Fewer
	// rows would wait for little gain, and it would stay so: at 500 rows/s, 25 rows come
	// while a group of 25 rows is stored in 50 ms.
	groupPaysRows = 64
	groupPatience = 4
	// Each row of n that is stored by itself, where n is groupForgetRows at least, lets the
	// measure of a group fade by 1/n of the fraction groupForgetFraction. For example, 16
	// rows that are stored one by one let it fade by 1.2%. Without that, a group that was
	// slow once would never be tried again.
	groupForgetRows     = 8
	groupForgetFraction = 64
	// singleForgetFraction is the fraction by which each group lets the measure of a
	// single append fade. Without it, a server that was slow for a moment would be sent
	// groups for as long as each takes long enough for the next to gather.
	singleForgetFraction = 16
	// fastAgainAfter is how long no fast group is tried after one was not stored as a
	// whole. Others write to the stream then, such as another partition, and would end the
	// next one as well.
	fastAgainAfter = time.Second

	storeRetryFirst = 50 * time.Millisecond
	storeRetryMost  = 5 * time.Second
)

// errLimitLowered ends a term: the next one learns the limit and makes the result fit.
var errLimitLowered = errors.New("the results stream takes only smaller messages than before")

// emitter appends results to the log, in order, each on condition that the log still ends
// where this term left it.
//
// One append is in flight at a time. Several at once, each with the end that the one
// before it would make, are no fence: a rival's claim can take a number in between, and a
// later append of the fenced owner fits the log again.
//
// An append is one message or one group, see [appendWay]. A group has the condition on its
// first message.
//
// It runs on a goroutine of its own, which owns it.
type emitter struct {
	c          *Consumer
	owner      string
	end        logEnd
	chainer    chainer
	takes      struct{ atomic, fast bool } // the groups that the stream takes
	single     streams.Cost
	group      streams.Cost // of an atomic group
	fast       streams.FastCost
	groupsFrom time.Time         // when groups may go again after one was refused
	fastFrom   time.Time         // when fast groups may go again after one was not stored as a whole
	appends    *streams.Appender // nil until something is appended
}

// appendWay is how results go to the server. Which way is cheapest depends on the server, so
// all costs are measured as they happen.
type appendWay uint8

const (
	// oneByOne appends one result, which has its own answer.
	oneByOne appendWay = iota
	// fastGroup is a fast group, see [streams.Appender.AppendFast]. Results are stored as
	// they come, so the first part of a group may be stored and the rest not. It is for a
	// stream without replicas to which nobody else writes at the moment.
	fastGroup
	// atomicGroup is stored as a whole (the server's atomic batch), which costs a flat 20-30
	// ms on one replica, where a message takes about 0.1 ms. It wins on three replicas, and
	// where each message is synced to disk. A large one may take longer than its messages
	// would, since it costs less work.
	atomicGroup
)

func newEmitter(c *Consumer, owner string, end logEnd, results jetstream.StreamConfig) *emitter {
	e := &emitter{
		c: c, owner: owner, end: end, fast: streams.NewFastCost(),
		single: streams.Cost(streams.SingleCostGuess), group: streams.Cost(streams.GroupCostGuess),
	}
	e.takes.atomic = results.AllowAtomicPublish
	e.takes.fast = results.AllowBatchPublish && results.Replicas <= 1
	if results.Replicas > 1 {
		e.single, e.group = streams.Cost(singleCostReplicas), streams.Cost(groupCostReplicas)
	}
	return e
}

// run stores the groups that arrive until there are no more or one can't be stored.
func (e *emitter) run(ctx context.Context, groups <-chan []*Row, stored chan<- emitted) {
	defer func() {
		if e.appends != nil {
			e.appends.Close()
		}
	}()
	for rows := range groups {
		began := time.Now()
		sure, err := e.emit(ctx, rows)
		stored <- emitted{rows: rows, end: e.end, began: began, at: time.Now(), sure: sure, err: err}
		if err != nil {
			return
		}
	}
}

// outlet passes groups of rows from the term to the emitter and takes their outcomes.
// While it is busy one group is on its way and its outcome was not taken yet, so neither
// channel, of one place each, ever blocks the term.
type outlet struct {
	groups  chan []*Row  // to the emitter
	stored  chan emitted // from it
	busy    bool         // the term's
	cancel  context.CancelFunc
	emitter sync.WaitGroup
}

// open starts the emitter, which runs until close.
func (o *outlet) open(ctx context.Context, e *emitter) {
	ctx, o.cancel = context.WithCancel(ctx)
	o.groups, o.stored = make(chan []*Row, 1), make(chan emitted, 1)
	o.emitter.Go(func() { e.run(ctx, o.groups, o.stored) })
}

// send has rows appended, or the log looked at where there are none. It must not be busy.
func (o *outlet) send(rows []*Row) {
	o.busy = true
	o.groups <- rows
}

// close waits for the emitter. A group in flight is left to the log: the next term reads
// whether it was stored.
func (o *outlet) close() {
	o.cancel()
	close(o.groups)
	o.emitter.Wait()
}

// emitted is the outcome of one group.
type emitted struct {
	rows  []*Row // all of the group; none where it was a look at the log
	end   logEnd // as the emitter knows it after that
	began time.Time
	at    time.Time // when it ended
	sure  bool      // the log was ours at some time since it began
	err   error     // ErrFenced, or the context's cause
}

// emit stores rows; none means to see whether the log still ends where this term left it.
// It returns ErrFenced when another replica has appended, and otherwise retries until ctx
// ends: a full, missing or leaderless stream recovers by itself or is fixed by a person.
func (e *emitter) emit(ctx context.Context, rows []*Row) (sure bool, err error) {
	if len(rows) == 0 {
		return e.look(ctx)
	}
	for len(rows) > 0 {
		way, n := e.choose(len(rows), time.Now())
		if err := e.deadLetters(ctx, rows[:n]); err != nil {
			return false, err
		}
		e.c.at("appending")
		n, err := e.store(ctx, way, rows[:n])
		if err != nil {
			return false, err
		}
		e.c.at("appended")
		rows = rows[n:]
	}
	return true, nil
}

// look reads the end of the log. One that can't be read proves nothing, and the term
// continues: its appends are conditional.
func (e *emitter) look(ctx context.Context) (sure bool, err error) {
	err = e.c.results.stillEndsAt(ctx, e.end)
	switch {
	case ctx.Err() != nil:
		return false, context.Cause(ctx)
	case errors.Is(err, ErrFenced):
		return false, err
	case err != nil:
		e.c.problems.set(problemResults, err)
		return false, nil
	}
	e.c.problems.clear(problemResults)
	return true, nil
}

// choose returns how many of n rows are appended next, and how.
func (e *emitter) choose(n int, now time.Time) (appendWay, int) {
	switch {
	case n == 1 || now.Before(e.groupsFrom):
		return oneByOne, 1
	case e.takes.fast && !now.Before(e.fastFrom) && (!e.takes.atomic || !e.fast.Dearer(n, e.group)):
		return fastGroup, min(n, e.fast.Most())
	case !e.takes.atomic:
		return oneByOne, 1
	case e.single*streams.Cost(n) > e.group, n >= groupPaysRows && groupPatience*e.single*streams.Cost(n) > e.group:
		return atomicGroup, min(n, streams.AppendMax)
	case n >= groupForgetRows:
		e.group -= e.group / groupForgetFraction / streams.Cost(n)
	}
	return oneByOne, 1
}

// measure notes how long n results took.
func (e *emitter) measure(way appendWay, n int, took time.Duration) {
	switch way {
	case oneByOne:
		e.single.Add(took)
	case fastGroup:
		e.fast.Add(took, n)
	case atomicGroup:
		e.group.Add(took)
		e.single -= e.single / singleForgetFraction
		e.fast.Fade()
	}
}

// deadLetters stores the originals of the failed rows among rows, where the stage has a
// subject for them.
func (e *emitter) deadLetters(ctx context.Context, rows []*Row) error {
	for _, row := range rows {
		if !row.reply.Failed || e.c.cfg.DeadLetterSubject == "" {
			continue
		}
		if err := e.deadLetter(ctx, row); err != nil {
			return err
		}
	}
	return nil
}

// deadLetter stores the original of a failed row on the dead letter subject, before its
// result: a crash in between stores it again, and the message id drops the second copy
// within the stream's window.
func (e *emitter) deadLetter(ctx context.Context, row *Row) error {
	form := deadWhole
	msg := e.c.messages.deadLetterMsg(row, form)
	for form < deadCut && e.c.messages.tooLarge(msg) {
		form++
		msg = e.c.messages.deadLetterMsg(row, form)
	}
	for range streams.Retry(ctx, storeRetryFirst, storeRetryMost) {
		_, err := streams.Append(ctx, e.c.nc, []*nats.Msg{msg})
		for form < deadCut && streams.TooLarge(err) {
			form++
			msg = e.c.messages.deadLetterMsg(row, form)
			_, err = streams.Append(ctx, e.c.nc, []*nats.Msg{msg})
		}
		if err == nil {
			e.c.setRefused(false)
			e.c.problems.clear(problemDeadLetter)
			return nil
		}
		if ctx.Err() == nil {
			e.c.setRefused(true)
			e.c.problems.set(problemDeadLetter, e.c.denied(fmt.Errorf("%s: %w", rowsText(row.Seq, row.Seq), err)))
		}
	}
	return context.Cause(ctx)
}

// store appends rows until they are stored, and returns how many are: all of them, or
// fewer of a group that should be tried in another way.
func (e *emitter) store(ctx context.Context, way appendWay, rows []*Row) (n int, err error) {
	first, last := rows[0], rows[len(rows)-1]
	for range streams.Retry(ctx, storeRetryFirst, storeRetryMost) {
		if err := e.c.cfg.Streams.Verdict(); err != nil {
			return 0, err // each result could push out another, as in a full stream edited to drop old ones
		}
		begin := time.Now()
		seq, chain, err := e.try(ctx, way, rows)
		if err == nil {
			e.end = logEnd{seq: seq, owner: e.owner, row: last.Seq, chain: chain, logMark: last.inTerm.after}
			e.measure(way, len(rows), time.Since(begin))
			e.stored()
			return len(rows), nil
		}
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		// Was it stored after all? A time-out proves nothing, and a conflict may be with
		// our own first copy: the answer to it was lost, and the second copy finds the
		// log one further.
		now, readErr := e.c.results.readEnd(ctx)
		switch {
		case readErr != nil:
			err = errors.Join(e.c.denied(err), readErr)
		case now.owner == e.owner && now.seq > e.end.seq && upTo(rows, now.row) > 0:
			e.end = now
			e.stored()
			if n = upTo(rows, now.row); n < len(rows) {
				e.fastFrom = time.Now().Add(fastAgainAfter)
			}
			return n, nil
		case now.seq != e.end.seq:
			return 0, fmt.Errorf("%w: the log ends at %d with owner %s", ErrFenced, now.seq, now.owner)
		case streams.TooLarge(err):
			return 0, fmt.Errorf("%w: %w", errLimitLowered, err)
		case way == fastGroup && errors.Is(err, streams.ErrRefused): // another way shows whether it is for good
			e.fastFrom = time.Now().Add(fastAgainAfter)
			return 0, nil
		case way == atomicGroup && streams.RefusedForGood(err): // single results may be taken
			e.groupsFrom = time.Now().Add(streams.GroupRefusedFor)
			return 0, nil
		}
		e.c.setRefused(true)
		e.c.problems.set(problemResults, e.c.denied(fmt.Errorf("%s: %w", rowsText(first.Seq, last.Seq), err)))
		if way == fastGroup {
			e.fastFrom = time.Now().Add(fastAgainAfter)
			return 0, nil
		}
	}
	return 0, context.Cause(ctx)
}

// upTo returns how many of rows there are up to the row seq, or 0 if it is none of them.
func upTo(rows []*Row, seq uint64) int {
	return 1 + slices.IndexFunc(rows, func(row *Row) bool { return row.Seq == seq })
}

// stored notes that the append is stored, which ends any problem with the results stream.
func (e *emitter) stored() {
	e.c.cfg.Streams.Stored()
	e.c.setRefused(false)
	e.c.problems.clear(problemResults)
}

// rowsText names the first and the last of some rows, for errors.
func rowsText(first, last uint64) string {
	if first == last {
		return fmt.Sprintf("row %d", first)
	}
	return fmt.Sprintf("rows %d to %d", first, last)
}

// try appends rows once, and returns the end of the log and its chain if they are stored.
// A second try makes the same messages, so whichever is stored, the chain is the same.
func (e *emitter) try(ctx context.Context, way appendWay, rows []*Row) (seq uint64, chain chainValue, err error) {
	msgs := make([]*nats.Msg, len(rows))
	chain = e.end.chain
	for i, row := range rows {
		msgs[i] = e.c.messages.resultMsg(row, e.owner)
		chain = e.chainer.next(chain, chainedResult, msgs[i].Header, row.inTerm.bodyHash)
		msgs[i].Header[streams.HeaderChain][0] = chain.String()
	}
	msgs[0].Header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(e.end.seq, 10)}
	msgs[0].Header[jetstream.ExpectedLastSubjSeqSubjHeader] = []string{e.c.results.filter}
	if e.appends == nil {
		if e.appends, err = streams.NewAppender(e.c.nc); err != nil {
			return 0, chain, err
		}
	}
	if way == fastGroup {
		seq, err = e.appends.AppendFast(ctx, msgs, e.end.seq+1)
	} else {
		seq, err = e.appends.Append(ctx, msgs)
	}
	return seq, chain, err
}
