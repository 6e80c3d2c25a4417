package consumer

import (
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/sequencer"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// order knows everything that depends on the order of the results. For the rest of the
// program rows of the same key wait for each other, and nothing else: in stream order all
// rows have one key, in no order each row has its own.
//
//	         key of a row   keys share the window   results may be ahead   one ack covers
//	stream   the same       no                      no                     all rows before it
//	key      its key        yes                     yes                    one row
//	none     its own        no                      yes                    one row
//
// A result is ahead where it is stored while an earlier row has none. The end of the log
// then says more than one number can, so results and claims carry headers for it: see
// [logMark]. An older stage that took the last result for the place to go on at would
// lose the rows that wait; the claim's version keeps it away.
type order struct {
	name streams.Order
	// keyName says in words what the key is, for the claim; empty unless the order is by
	// key.
	keyName string
}

func (o order) byKey() bool { return o.name == streams.OrderKey }

// getsAhead reports whether a result may be stored while an earlier row has none.
func (o order) getsAhead() bool { return o.name != streams.OrderStream }

// key returns the key by which a row waits for others.
func (o order) key(row *Row) sequencer.Key {
	return sequencer.Key{Name: row.Key, Own: o.name == streams.OrderNone}
}

// limits bounds the rows that a term has taken and not emitted.
func (o order) limits(cfg *Config) sequencer.Limits {
	l := sequencer.Limits{
		Rows: cfg.WindowRows, Bytes: cfg.WindowBytes, Span: cfg.OrderSpan, Shared: o.byKey(),
	}
	if cfg.Lane != nil {
		l.Parked = cfg.LaneRows + cfg.WindowRows // rows of the window may be parked, too
	}
	if !o.getsAhead() { // no row above the mark is emitted, so there is nothing more to bound
		l.Span = l.Rows + l.Parked
	}
	return l
}

// ackAll reports whether the ack of a row acks all rows before it.
func (o order) ackAll(policy jetstream.AckPolicy) bool {
	return !o.getsAhead() && policy == jetstream.AckAllPolicy
}

// claim completes a claim that is made at mark, and its message.
func (o order) claim(cl *streams.Claim, h nats.Header, mark logMark) {
	cl.Version = 1
	if o.getsAhead() {
		cl.Version, cl.Order, cl.Key = streams.ClaimVersion, o.name, o.keyName
		mark.setHeader(h, nil)
	}
}

// setHeader completes the headers of a row's result.
func (o order) setHeader(h nats.Header, row *Row) {
	switch {
	case o.byKey():
		row.inTerm.after.setHeader(h, &row.Key)
	case o.getsAhead():
		row.inTerm.after.setHeader(h, nil)
	}
}

// headers is how many headers setHeader sets at most, and headerBytes the room for them.
func (o order) headers() int {
	if o.getsAhead() {
		return markHeaders
	}
	return 0
}

func (o order) headerBytes(row *Row) int {
	if o.getsAhead() {
		return markHeaderBytes + len(row.Key)
	}
	return 0
}
