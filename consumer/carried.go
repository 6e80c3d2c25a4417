package consumer

import "time"

// carried holds the rows that a consumer carries over from one term to the next: they
// were taken, and are not known to be emitted. A reply that was paid for is not thrown
// away because the connection broke. For example, a term has 100 rows when it loses the
// connection, and 30 of them are answered meanwhile. The next term of this process finds
// from the log that 10 have their results, takes the other 90 again, and has the replies
// to 20 of them at once.
//
// A row leaves when the next term takes it, or when it turns out to be emitted. The
// goroutine of [Consumer.Run] owns it, and the window bounds it.
type carried struct {
	rows map[uint64]*Row
	// inputCreated is when the input stream was created, to whose sequences the rows and
	// the journal refer.
	inputCreated time.Time
}

// has reports whether a row is carried over.
func (c *carried) has(row *Row) bool { return c.rows[row.Seq] == row }

// keep carries over a row that somebody works on, or that is answered.
func (c *carried) keep(row *Row) {
	row.wanted.Store(false)
	c.rows[row.Seq] = row
}

// keepIdle carries over a row that nobody works on, if it has replies to elements. Any
// other such row is abandoned.
func (c *carried) keepIdle(row *Row) {
	if row.idle = len(row.answeredItems()) > 0; !row.idle {
		row.abandon()
		return
	}
	c.keep(row)
}

// collect takes the replies that arrive between two terms.
func (c *carried) collect(s *shared) {
	rows := s.mail.take(nil)
	for _, row := range rows {
		c.answered(row)
	}
	s.resumeIf(s.mail.count(len(rows), 0))
}

// answered takes the reply to a row that is not open in the present term.
func (c *carried) answered(row *Row) {
	switch {
	case row.element.parent != nil:
		row.answered = true
	case !c.has(row): // emitted elsewhere, or of an input stream that is gone
	case row.reply.HandedBack, row.reply.Parked:
		delete(c.rows, row.Seq)
		c.keepIdle(row)
	default:
		row.answered = true
	}
}

// forget drops the rows that have been emitted, and all of them when the input
// stream has been replaced.
func (c *carried) forget(mark uint64, created time.Time) {
	if !created.Equal(c.inputCreated) {
		c.abandonAll()
		c.inputCreated = created
	}
	for seq := range c.rows {
		if seq <= mark {
			c.emitted(seq)
		}
	}
}

// emitted drops a row that is emitted.
func (c *carried) emitted(seq uint64) {
	if row := c.rows[seq]; row != nil {
		delete(c.rows, seq)
		row.abandon()
	}
}

func (c *carried) abandonAll() {
	for _, row := range c.rows {
		row.abandon()
	}
	clear(c.rows)
}
