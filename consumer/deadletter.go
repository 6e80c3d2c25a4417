package consumer

import (
	"cmp"
	"context"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// deadLetters stores the originals of the failed rows among rows, where the stage has a subject for them.
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

// deadLetter stores the original of a failed row on the dead letter subject, before its result: a crash in between
// stores it again, and the message id drops the second copy within the stream's window.
func (c *Consumer) deadLetter(ctx context.Context, row *Row) error {
	msg := c.deadLetterMsg(row, false)
	if msg.Size() > int(c.nc.MaxPayload()) {
		msg = c.deadLetterMsg(row, true)
	}
	for range streams.Retry(ctx, storeRetryFirst, storeRetryMost) {
		_, err := streams.Append(ctx, c.nc, []*nats.Msg{msg})
		if streams.TooLarge(err) && msg.Header.Get(headerCut) == "" {
			msg = c.deadLetterMsg(row, true)
			_, err = streams.Append(ctx, c.nc, []*nats.Msg{msg})
		}
		if err == nil {
			c.problems.clear(problemDeadLetter)
			return nil
		}
		if ctx.Err() == nil {
			c.problems.set(problemDeadLetter, c.denied(err))
		}
	}
	return context.Cause(ctx)
}

// headerCut says of a dead letter that the original, which is named, left no room for the reason and is not in it.
const headerCut = "Stage-Truncated"

func (c *Consumer) deadLetterMsg(row *Row, cut bool) *nats.Msg {
	reason := cmp.Or(row.reply.Event.Reason, row.reply.UpstreamReason)
	msg := &nats.Msg{Subject: c.cfg.DeadLetterSubject, Data: row.Body, Header: nats.Header{
		streams.HeaderReason:  {reason},
		jetstream.MsgIDHeader: {row.StateID + "/dead-letter"},
	}}
	if cut {
		msg.Data = nil
		msg.Header[headerCut] = []string{"true"}
		msg.Header[streams.HeaderSourceStream] = []string{c.cfg.InputStream}
		msg.Header[streams.HeaderSourceSeq] = []string{strconv.FormatUint(row.Seq, 10)}
		return msg
	}
	for key, values := range row.Header {
		if !strings.HasPrefix(key, "Nats-") { // they spoke to the server about the first publication
			msg.Header[key] = values
		}
	}
	msg.Header[streams.HeaderReason] = []string{reason}
	return msg
}
