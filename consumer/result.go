package consumer

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"github.com/llm-stage/stage/consumer/objects"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// deadLetters stores the originals of the failed rows among rows, where the stage has a
// subject for them.
func (c *Consumer) deadLetters(ctx context.Context, rows []*Row) error {
	for _, row := range rows {
		if !row.reply.Failed || c.cfg.DeadLetterSubject == "" {
			continue
		}
		if err := c.deadLetter(ctx, row); err != nil {
			return err
		}
	}
	return nil
}

// deadLetter stores the original of a failed row on the dead letter subject, before its
// result: a crash in between stores it again, and the message id drops the second copy
// within the stream's window.
func (c *Consumer) deadLetter(ctx context.Context, row *Row) error {
	form := deadWhole
	msg := c.deadLetterMsg(row, form)
	for form < deadCut && c.tooLarge(msg) {
		form++
		msg = c.deadLetterMsg(row, form)
	}
	for range streams.Retry(ctx, storeRetryFirst, storeRetryMost) {
		_, err := streams.Append(ctx, c.nc, []*nats.Msg{msg})
		for form < deadCut && streams.TooLarge(err) {
			form++
			msg = c.deadLetterMsg(row, form)
			_, err = streams.Append(ctx, c.nc, []*nats.Msg{msg})
		}
		if err == nil {
			c.setRefused(false)
			c.problems.clear(problemDeadLetter)
			return nil
		}
		if ctx.Err() == nil {
			c.setRefused(true)
			c.problems.set(problemDeadLetter, c.denied(fmt.Errorf("%s: %w", rowsText(row.Seq, row.Seq), err)))
		}
	}
	return context.Cause(ctx)
}

// tooLarge reports whether the server would refuse the message.
func (c *Consumer) tooLarge(msg *nats.Msg) bool {
	headers := streams.HeaderBytes(msg.Header)
	return headers > streams.HeaderBytesMax || headers+len(msg.Data) > int(c.nc.MaxPayload())
}

// headerError is why a dead letter's row failed, in one line.
const headerError = "Stage-Error"

// deadForm is how much of a failed row its dead letter holds: the most that fits into a
// message.
type deadForm int

const (
	deadWhole   deadForm = iota // the row, and what is known of it
	deadNoError                 // without the error's text: a row that fits must not be lost for its sake
	deadCut                     // without body and headers of the row
)

func (c *Consumer) deadLetterMsg(row *Row, form deadForm) *nats.Msg {
	reason := cmp.Or(row.reply.Event.Reason, row.reply.UpstreamReason)
	msg := &nats.Msg{Subject: c.cfg.DeadLetterSubject, Data: row.message(), Header: nats.Header{
		streams.HeaderReason:  {reason},
		jetstream.MsgIDHeader: {row.StateID + "/dead-letter"},
	}}
	if form == deadCut {
		msg.Data = nil
		msg.Header[streams.HeaderTruncated] = []string{"true"}
		c.nameSource(msg.Header, row)
		return msg
	}
	streams.Carry(msg.Header, row.Header, func(name string) bool { return !streams.ForServer(name) })
	msg.Header[streams.HeaderReason] = []string{reason}
	if msg.Header[streams.HeaderSourceStream] == nil { // else the row is another stage's result, and its headers are its lineage
		msg.Header[streams.HeaderSourceSeq] = []string{strconv.FormatUint(row.Seq, 10)}
		msg.Header[streams.HeaderSourceSubject] = []string{row.Subject}
	}
	delete(msg.Header, headerError) // an earlier stage's
	if text := errorLine(row); text != "" && form == deadWhole {
		msg.Header[headerError] = []string{text}
	}
	return msg
}

// message is the body of the row's message, which is empty where the row's body is an
// object.
func (r *Row) message() []byte {
	if r.elsewhere != nil {
		return nil
	}
	return r.Body
}

// nameSource writes into the headers of a dead letter which row it is.
func (c *Consumer) nameSource(h nats.Header, row *Row) {
	h[streams.HeaderSourceStream] = []string{c.cfg.InputStream}
	h[streams.HeaderSourceSeq] = []string{strconv.FormatUint(row.Seq, 10)}
	h[streams.HeaderSourceSubject] = []string{row.Subject}
}

// errorBytesMax bounds the text of headerError.
const errorBytesMax = 500

// errorLine is the last error of a failed row as the value of a header: one line, in UTF-8.
func errorLine(row *Row) string {
	errs := row.reply.Event.Errors
	if len(errs) == 0 {
		return ""
	}
	text := errs[len(errs)-1].Error
	text = strings.ToValidUTF8(text[:min(len(text), errorBytesMax)], "")
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
}

// roomMin is the room that a result body is given at least: if the row's own headers
// leave less, they go.
const roomMin = 1024

// room is the room for a row's result body in one message of the results stream. bare
// says that the row's own headers don't go with it, because with them there would be
// none, or more headers than a server takes.
func (c *Consumer) room(row *Row) (bytes int, bare bool) {
	stage, own := c.headerBytes(row)
	left := int(c.maxMessage.Load()) - stage
	if left-own < roomMin || stage+own > streams.HeaderBytesMax {
		return max(0, left), own > 0
	}
	return left - own, false
}

// headerBytes is how many bytes the headers of a row's result take: those of the stage,
// with its subject, and those that the row itself has.
func (c *Consumer) headerBytes(row *Row) (stage, own int) {
	// Status line, our own headers with generous values, the condition and the batch.
	const fixed, separators = 640, len(": \r\n")
	stage = fixed + len(c.cfg.RunID) + len(c.resultSubject) + len(row.Subject) + 2*len(row.StateID)
	if c.replaced(row) > 0 {
		stage += len(streams.HeaderReplaces) + len("18446744073709551615") + separators
	}
	if stream, seq := streams.Origin(row.Header); seq != "" {
		stage += len(streams.HeaderOriginStream+streams.HeaderOriginSeq) + len(stream) + len(seq) + 2*separators
	}
	trace := row.traceHeader()
	stage += c.order.headerBytes(row) + carriedBytes(trace, nil)
	return stage, carriedBytes(row.Header, trace)
}

// carriedBytes is the size of the headers of a row that go with its result, but for those
// that its trace replaces.
func carriedBytes(row, trace nats.Header) (bytes int) {
	const separators = len(": \r\n")
	for name, values := range row {
		if !streams.PassHeader(name) || trace[name] != nil {
			continue
		}
		name = streams.CarriedName(name)
		for _, value := range values {
			bytes += len(name) + len(value) + separators
		}
	}
	return bytes
}

// fit decides how a reply is stored: in a message of the results stream or, where that
// has no room for it, in the bucket of large results. It replaces one that neither has
// room for: a stream must never stand still for one row. That happens where the limit was
// lowered after the executor had looked at it.
func (c *Consumer) fit(row *Row) {
	room, bare := c.room(row)
	size := len(row.reply.Body)
	row.form.bare, row.form.large = bare, false
	switch {
	case size <= room:
		return
	case size <= c.roomInBucket():
		row.form.large = true
		stage, own := c.headerBytes(row)
		row.form.bare = bare || own > 0 && stage+own+objects.HeaderBytesMost > streams.HeaderBytesMax
		return
	}
	row.form.object = objects.Ref{}
	reply := *row.reply
	reply.Failed, reply.Event.Reason = true, reasonTooLarge
	row.MaxBodyBytes = room
	if f, ok := c.cfg.Executor.(Fitter); ok {
		reply.Body = f.ResultTooLarge(row, size, room)
	} else {
		reply.Body = fmt.Appendf(nil, `{"error":{"reason":%q,"error":"the result has %d bytes, the results stream has room for %d","errors":[]}}`, reasonTooLarge, size, room)
	}
	if len(reply.Body) > room {
		reply.Body = nil
	}
	row.reply = &reply
}

const reasonTooLarge = "result_too_large"
