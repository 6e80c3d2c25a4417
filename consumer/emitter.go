package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// groupRowsMax is the server's limit on the messages of one atomic batch.
	groupRowsMax = 1000
	// groupBytesMax bounds the bytes of one group; the server holds a batch in memory until it commits.
	groupBytesMax = 16 << 20
	// The first guess of what an append costs, until it has been measured: a round trip, and the flat price of an atomic
	// batch on one replica.
	singleCostGuess = 150 * time.Microsecond
	batchCostGuess  = 25 * time.Millisecond

	storeRetryMin = 50 * time.Millisecond
	storeRetryMax = 5 * time.Second
)

// emitter appends results to the log, in order, each on condition that the log still ends where this term left it.
//
// One append is under way at a time. Several at once, each with the end that the one before it would make, are no fence:
// a rival's claim can take a number in between, and a later append of the fenced owner fits the log again.
//
// An append is one message, or one atomic batch with the condition on its first message. Which is cheaper depends on the
// server: a batch costs a flat 20-30 ms on one replica, where a message takes about 0.1 ms; it wins on three replicas, and
// where each message is synced to disk. So both are measured as they happen and the cheaper one is taken.
type emitter struct {
	c      *Consumer
	owner  string
	end    logEnd
	batch  bool // the stream allows atomic batches
	single cost
	group  cost
}

// cost is a moving average of the time that one append takes.
type cost time.Duration

func (c *cost) add(d time.Duration) { *c += (cost(d) - *c) / 4 }

// run stores the groups that arrive until there are no more or one can't be stored.
func (e *emitter) run(ctx context.Context, groups <-chan []*Row, stored chan<- emitted) {
	for rows := range groups {
		err := e.emit(ctx, rows)
		stored <- emitted{rows: rows, end: e.end, at: time.Now(), err: err}
		if err != nil {
			return
		}
	}
}

// emitted is the outcome of one group.
type emitted struct {
	rows []*Row
	end  logEnd
	at   time.Time
	err  error // ErrFenced, or the context's cause
}

// emit stores rows. It returns ErrFenced when somebody else has appended, and otherwise goes on until ctx ends: a stream
// that is full, gone or without a leader is a matter for a person or for time.
func (e *emitter) emit(ctx context.Context, rows []*Row) error {
	for len(rows) > 0 {
		n := 1
		if e.batch && time.Duration(e.single)*time.Duration(len(rows)) > time.Duration(e.group) && len(rows) > 1 {
			n = min(len(rows), groupRowsMax)
		}
		if err := e.c.deadLetters(ctx, rows[:n]); err != nil {
			return err
		}
		if err := e.store(ctx, rows[:n]); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

// store appends one message or one batch until it is stored.
func (e *emitter) store(ctx context.Context, rows []*Row) error {
	last := rows[len(rows)-1]
	for wait := storeRetryMin; ; wait = min(2*wait, storeRetryMax) {
		begin := time.Now()
		seq, err := e.try(ctx, rows)
		if err == nil {
			e.end = logEnd{seq: seq, owner: e.owner, mark: last.Seq}
			if len(rows) == 1 {
				e.single.add(time.Since(begin))
			} else {
				e.group.add(time.Since(begin))
			}
			e.c.problems.clear(problemResults)
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		// Was it stored all the same? A time-out says nothing, and a conflict may be with our own first copy: the answer
		// to it was lost, and the second copy finds the log one further.
		now, readErr := e.c.readEnd(ctx)
		switch {
		case readErr != nil:
			err = errors.Join(err, readErr)
		case now.owner == e.owner && now.mark == last.Seq && now.seq > e.end.seq:
			e.end = now
			e.c.problems.clear(problemResults)
			return nil
		case now.seq != e.end.seq:
			return fmt.Errorf("%w: the log ends at %d with owner %s", ErrFenced, now.seq, now.owner)
		}
		e.c.problems.set(problemResults, err)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		}
	}
}

func (e *emitter) try(ctx context.Context, rows []*Row) (uint64, error) {
	msgs := make([]*nats.Msg, len(rows))
	for i, row := range rows {
		msgs[i] = e.c.resultMsg(row, e.owner)
	}
	msgs[0].Header[headerExpectedSeq] = []string{strconv.FormatUint(e.end.seq, 10)}
	msgs[0].Header[headerExpectedSubject] = []string{e.c.filter}
	return Append(ctx, e.c.nc, msgs)
}

// resultMsg is the result of a row as it goes into the log.
func (c *Consumer) resultMsg(row *Row, owner string) *nats.Msg {
	header := make(nats.Header, len(row.Header)+8)
	for key, values := range row.Header {
		if passHeader(key) {
			header[key] = values
		}
	}
	status := statusSuccess
	if row.reply.Failed {
		status = statusError
	}
	header[HeaderSourceStream] = []string{c.cfg.InputStream}
	header[HeaderSourceSeq] = []string{strconv.FormatUint(row.Seq, 10)}
	header[HeaderSourceSubject] = []string{row.Subject}
	header[HeaderStatus] = []string{status}
	header[HeaderStateID] = []string{row.StateID}
	header[HeaderOwner] = []string{owner}
	return &nats.Msg{Subject: c.resultSubject, Header: header, Data: row.reply.Body}
}

// Values of the Stage-Status header.
const (
	statusSuccess = "success"
	statusError   = "error"
)

// maxBody is the room for a row's result body in a message of at most limit bytes.
func maxBody(limit int, subject string, row *Row) int {
	// Status line, our own headers with generous values, the condition and the batch.
	const fixed = 640
	size := fixed + len(subject) + len(row.Subject) + 2*len(row.StateID)
	for key, values := range row.Header {
		if !passHeader(key) {
			continue
		}
		for _, v := range values {
			size += len(key) + len(v) + 4
		}
	}
	return max(0, limit-size)
}

// deadLetters stores the originals of the failed rows among rows, where the stage has a subject for them.
func (c *Consumer) deadLetters(ctx context.Context, rows []*Row) error {
	if c.cfg.DeadLetterSubject == "" {
		return nil
	}
	for _, row := range rows {
		if row.reply.Failed {
			if err := c.deadLetter(ctx, row); err != nil {
				return err
			}
		}
	}
	return nil
}

// deadLetter stores the original of a failed row on the dead letter subject, before its result: a crash in between stores
// it again, and the message id drops the second copy within the stream's window.
func (c *Consumer) deadLetter(ctx context.Context, row *Row) error {
	header := maps.Clone(row.Header)
	if header == nil {
		header = make(nats.Header, 2)
	}
	for key := range header {
		if strings.HasPrefix(key, "Nats-") {
			delete(header, key) // they spoke to the server about the first publication
		}
	}
	header[HeaderReason] = []string{row.reply.Event.Reason}
	header[headerMsgID] = []string{row.StateID + "/dead-letter"}
	msg := &nats.Msg{Subject: c.cfg.DeadLetterSubject, Header: header, Data: row.Body}
	for wait := storeRetryMin; ; wait = min(2*wait, storeRetryMax) {
		_, err := Append(ctx, c.nc, []*nats.Msg{msg})
		if err == nil {
			c.problems.clear(problemDeadLetter)
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		c.problems.set(problemDeadLetter, err)
		c.log.Warn("dead letter not stored, will be sent again", slog.Uint64("sequence", row.Seq), slog.Any("error", err))
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(wait):
		}
	}
}
