package consumer

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer/objects"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
)

// A body that no message holds is an object of a bucket, and the message names it, see
// package objects. Four things have such bodies:
//
//   - a result goes to the bucket as soon as its row is answered, if the stage has one
//     ([Config.ResultBucket]). The result, and the entry of the journal, wait until the
//     object is stored, and name it;
//   - a reply that fits into a result but not into an entry of the journal goes there
//     when it must be kept, and the object is removed when the row is emitted;
//   - a row may be such a result of another stage. Its body is read before it starts;
//   - a reply that an earlier term has kept is read before its row starts.
//
// An object counts only if the log names it, so any step may be the last:
//
//	A stores the object of row 7, and is killed. Nobody names the object. B finds no
//	reply in the journal, and calls again.
//
//	A stores the object and the entry of the journal, and is killed. B reads both, and
//	stores the same result, whose object is there already.
//
//	A is fenced, and stores its object of row 7 late. The name has the hash of the body,
//	so B's object stays as it is.
//
//	A stores the result and is killed before it has removed an object that only the
//	journal named. That object stays.
//
// No result names an object that stays for ever. A kill leaves at most one for each row of
// the window, and the objects that waited to be removed.

// largestPart is the part of the window that one result may have. For example, with a
// window of 256 MiB a result has at most 64 MiB, so four of the largest fit.
const largestPart = 4

// resultForm is how the reply to a row, or to an element, is stored.
type resultForm struct {
	bare    bool        // the row's own headers leave no room for a result and are left out
	large   bool        // no message has room for the body: the result names an object
	object  objects.Ref // holds the reply's body, once it is stored
	putting bool        // the body is being stored in the bucket
	awaited bool        // the result waits for its object as for an event, see [Row.eventStored]
}

// bodies are the bodies of one term that no message holds, on their way to the object
// store and back. Its queue of transfers moves them; bodies knows who waits for each.
//
// The goroutine of the term owns it.
type bodies struct {
	transfers
	window *window
	unkept *unkept

	// keys has, by sequence, the keys of rows in order by key whose bodies are objects: the
	// key may be in the body, which is read for it before the row enters.
	keys map[uint64]string
	// forKey is the row that is being read for its key, or 0. No other is taken meanwhile.
	forKey uint64
	// keyed says that a row was read for its key, and must come again.
	keyed bool
}

// elsewhere returns the object that holds the body of a row, or nil: such a row is a
// result of another stage.
func elsewhere(m *nats.Msg) *objects.Ref {
	if len(m.Data) > 0 {
		return nil
	}
	ref, is := objects.RefOf(m.Header)
	if !is || streams.Upstream(m.Header) == "" {
		return nil
	}
	return &ref
}

// keyKnown reports whether the key of a row is known before it enters. Where the key may
// be in a body that is an object it reads that, and the row must come again.
//
// No row is asked for meanwhile, but the pin is renewed.
func (b *bodies) keyKnown(seq uint64, m *nats.Msg) bool {
	if !b.c.order.byKey() || b.c.carried.rows[seq] != nil {
		return true
	}
	ref := elsewhere(m)
	if _, known := b.keys[seq]; ref == nil || known {
		return true
	}
	row := &Row{Seq: seq, Subject: m.Subject, Header: m.Header}
	b.forKey = seq
	b.get(seq, "its body, for its key", *ref, nil, nil, func(body []byte, err error) {
		if b.forKey = 0; errors.Is(err, errTermOver) {
			return
		}
		row.Body = body
		if b.keys == nil {
			b.keys = make(map[uint64]string)
		}
		b.keys[seq], b.keyed = strings.Clone(b.c.cfg.Key(row)), true
	})
	return false
}

// keyRead reports whether a key was read since it was asked last: the row must come again.
func (b *bodies) keyRead() bool {
	read := b.keyed
	b.keyed = false
	return read
}

// fetch reads the body of a row before it starts. It reports false while the body is
// being read, and while it has to wait for room. A row whose body is gone for good starts
// all the same, with the reason in [Row.Unreadable].
func (b *bodies) fetch(row *Row) bool {
	switch {
	case row.elsewhere == nil, len(row.Body) > 0, row.Unreadable != "":
		return true
	case row.inTerm.fetching:
		return false
	}
	row.inTerm.fetching = true
	needed := func() bool { return b.window.has(row) }
	b.get(row.Seq, "its body", *row.elsewhere, needed, b.admits(row), func(body []byte, err error) {
		row.inTerm.fetching = false
		switch {
		case err == nil && needed():
			row.Body = body
			b.window.weighBody(row)
		case objects.Lasts(err):
			row.Unreadable = err.Error()
		}
	})
	return false
}

// admits says when there is room for the body of a row.
func (b *bodies) admits(row *Row) func() bool {
	return func() bool { return b.c.gate.admits(row) }
}

// get reads an object that a row, or an entry of the journal about it, names.
func (b *bodies) get(seq uint64, what string, ref objects.Ref, needed, may func() bool, ended func([]byte, error)) {
	var body []byte
	most := b.c.cfg.WindowBytes
	b.add(&transfer{
		what: rowsText(seq, seq) + ": read " + what, needed: needed, may: may,
		do: func(ctx context.Context, nc *nats.Conn) (err error) {
			body, err = ref.Get(ctx, nc, most)
			return err
		},
		ended: func(err error) { ended(body, err) },
	})
}

// getForJournal reads the body of a kept reply, which is an object. kept gets the reply,
// or nil where its body can't be read any more.
func (b *bodies) getForJournal(seq uint64, of *Kept, kept func(*Kept)) {
	var may func() bool
	if row := b.window.open[seq]; row != nil { // else it comes back from the lane, and has room
		may = b.admits(row)
	}
	b.get(seq, "its kept reply", of.object, nil, may, func(body []byte, err error) {
		if err != nil {
			kept(nil)
			return
		}
		of.Reply.Body = body
		kept(of)
	})
}

// stowResult has a result wait for the object that holds its body, if that is not stored
// yet.
func (b *bodies) stowResult(row *Row) {
	if row.form.object.Name != "" {
		return
	}
	row.form.awaited = true
	row.unstored.Add(1)
	b.stow(row)
}

// stowForJournal stores the body of a reply that is too large for an entry of the journal
// as an object, and reports whether it does. The row is offered again when it is stored.
func (b *bodies) stowForJournal(row *Row, now time.Time) bool {
	if len(row.reply.Body) > b.c.messages.roomInBucket() || row.form.object.Name != "" {
		return false // also without a bucket, or where the event alone is too large
	}
	row.journal.keepAt = now.Add(journalRetry)
	b.stow(row)
	return true
}

// stow stores the body of the reply to a row, or an element, as an object. The result
// waits for the object if no message has room for its body, and so does the entry of the
// journal.
func (b *bodies) stow(row *Row) {
	if row.form.putting || row.form.object.Name != "" {
		return
	}
	of, body := row, row.reply.Body
	if parent := row.element.parent; parent != nil {
		of = parent
	}
	bucket, name := b.c.cfg.ResultBucket, objects.Name(b.c.cfg.Name, of.Partition, of.Seq, body)
	var ref objects.Ref
	row.form.putting = true
	b.add(&transfer{
		what: rowsText(of.Seq, of.Seq) + ": put its body", put: true,
		needed: func() bool { return row.form.awaited || b.unkept.has(row) },
		do: func(ctx context.Context, nc *nats.Conn) (err error) {
			b.c.at("stowing")
			ref, err = objects.Put(ctx, nc, bucket, name, body)
			return err
		},
		ended: func(err error) {
			row.form.putting = false
			if err == nil {
				row.form.object = ref
				b.c.at("stowed")
			}
			if row.form.awaited {
				row.form.awaited = false
				row.eventStored()
			}
			b.unkept.hurry(row, time.Now())
		},
	})
}

// removeUnnamed removes the objects of emitted rows that no result names. Only the journal
// named them, and nobody reads its entries about these rows any more.
func (b *bodies) removeUnnamed(rows []*Row) {
	for _, row := range rows {
		delete(b.keys, row.Seq)
		named := ""
		if row.form.large {
			named = row.form.object.Name
		}
		for _, ref := range row.objects() {
			if ref.Name == named {
				continue
			}
			b.add(&transfer{
				what: rowsText(row.Seq, row.Seq) + ": remove " + ref.String(), once: true,
				do: func(ctx context.Context, nc *nats.Conn) error {
					return objects.Remove(ctx, nc, ref.Bucket, ref.Name)
				},
				ended: func(error) { b.c.at("tidied") },
			})
		}
	}
}
