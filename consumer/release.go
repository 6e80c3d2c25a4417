package consumer

import (
	"log/slog"

	"github.com/llm-stage/stage/consumer/streams"
)

// ackEvery bounds the rows between two acks where one ack covers all before it.
const ackEvery = 64

// emit hands the contiguous head to the emitter, if it is free. What gathers while one group is under way is the next.
func (t *term) emit() {
	if t.emitting {
		return
	}
	var group []*Row
	bytes := 0
	// A part of the window only: the rest is filled and answered while the group is on its way.
	for i := range min(streams.AppendMax, max(batchPaysRows, t.c.cfg.WindowRows/4)) {
		entry, ok := t.buf.Ready(i)
		if !ok || !entry.Value.emittable() {
			break
		}
		if bytes += entry.Bytes; bytes > streams.AppendBytesMax && len(group) > 0 {
			break
		}
		group = append(group, entry.Value)
	}
	if len(group) == 0 {
		return
	}
	t.emitting = true
	t.journal.emitting()
	t.groups <- group
}

// emitted releases what is stored and acks it. Only now: an ack before the result is stored would lose the row in a crash.
func (t *term) emitted(e emitted) error {
	t.emitting = false
	if e.err != nil {
		return e.err
	}
	t.settled(e)
	if len(e.rows) == 0 {
		return nil
	}
	t.end, t.checked = e.end, e.at
	t.moved(e.at)
	t.buf.Release(len(e.rows))
	failed := 0
	for i, row := range e.rows {
		delete(t.open, row.Seq)
		if row.reply.Failed {
			failed++
		}
		if !t.ackAll || i == len(e.rows)-1 || i%ackEvery == ackEvery-1 {
			t.ack(row.ackReply)
		}
		if row.trace != nil {
			row.trace.Emitted(row.reply, e.at)
		}
		if o := t.c.cfg.Observer; o != nil {
			o.RowEmitted(t.c.cfg.Partition, row.reply.Failed, e.at.Sub(row.Taken), e.at.Sub(row.reply.Event.FinishedAt))
		}
	}
	t.journal.emitted(e.end.mark, e.rows)
	t.c.at("acked")
	t.c.setStatus(func(s *Status) {
		s.Emitted += uint64(len(e.rows))
		s.Failed += uint64(failed)
		s.HighWaterMark = e.end.mark
	})
	return nil
}

// ack needs no answer: an ack that gets lost is made good by the next one, or by the reset of the next term.
func (t *term) ack(reply string) {
	if err := t.c.nc.Publish(reply, ackBody); err != nil {
		t.c.log.Debug("ack not sent", slog.Any("error", err))
	}
}

var ackBody = []byte("+ACK")
