package consumer

import (
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
)

// acks acks the rows of a term. An ack needs no answer: the next ack, or the reset of the
// next term, makes up for a lost one.
//
// Where one ack covers all rows before it, acks gather: of up to 64 rows, or 100 ms. One
// that goes alone costs both sides a wake-up, and no row waits for it. One that comes
// late, after another owner's reset, changes nothing: the reset went to a row behind all
// that may have been acked.
type acks struct {
	nc  *nats.Conn
	log *slog.Logger
	all bool // an ack covers all rows before it

	next string    // the ack of the newest row that waits for its ack; empty where none does
	rows int       // how many rows wait
	by   time.Time // when to ack them at the latest; unset where none waits
}

const (
	ackEvery  = 64
	ackWithin = 100 * time.Millisecond
)

// emitted acks a row whose result is stored, at once or with those that follow soon. Rows
// come in the order in which they were emitted.
func (a *acks) emitted(ack string, now time.Time) {
	if !a.all {
		a.send(ack)
		return
	}
	if a.next == "" {
		a.by = now.Add(ackWithin)
	}
	a.next, a.rows = ack, a.rows+1
	if a.rows >= ackEvery {
		a.flush()
	}
}

// step acks the rows that have waited long enough.
func (a *acks) step(now time.Time) {
	if !a.by.IsZero() && !now.Before(a.by) {
		a.flush()
	}
}

// flush acks the rows that wait for their ack, if any do.
func (a *acks) flush() {
	if a.next != "" {
		a.send(a.next)
		a.next, a.rows, a.by = "", 0, time.Time{}
	}
}

// send acks one row, or all up to it, at once.
func (a *acks) send(ack string) {
	if err := a.nc.Publish(ack, ackBody); err != nil {
		a.log.Debug("ack not sent", slog.Any("error", err))
	}
}

var ackBody = []byte("+ACK")
