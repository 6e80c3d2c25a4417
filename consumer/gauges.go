package consumer

import "time"

// gauges publishes the state of a term's window in [Status]. The goroutine of the term
// owns it.
type gauges struct {
	head      uint64     // [Status.Head] as last published
	headSince time.Time  // when it became that
	term      termStatus // as last published
	// waitedForAt is when [Status.WaitedFor] was last looked for.
	waitedForAt time.Time
}

// waitedForEvery is the time between two looks for the row that others have waited for
// longest: it costs a look at each key that has rows.
const waitedForEvery = time.Second

// publish publishes what the window holds now.
func (g *gauges) publish(t *term) {
	head, _ := t.window.buf.Head()
	if head != g.head {
		g.head, g.headSince = head, time.Now()
	}
	m := t.window.buf.Mark()
	now := g.holding(t)
	g.term = now
	t.c.setStatus(func(s *Status) {
		s.term = now
		s.Window, s.Buffered, s.BufferedBytes = t.window.buf.Len(), t.window.buf.Completed(), t.window.buf.Bytes()
		s.Head, s.HeadSince = g.head, g.headSince
		s.Parked, s.SetAside = t.window.buf.Parked(), t.window.buf.Aside()
		s.HighWaterMark, s.Ahead = m.Low, m.Ahead
		if t.c.order.byKey() {
			g.publishWaiting(t, s)
		}
	})
}

// holding returns why all rows wait now. A reason that was there before keeps its time.
func (g *gauges) holding(t *term) (s termStatus) {
	before := g.term
	since := func(is bool, before time.Time) time.Time {
		switch {
		case !is:
			return time.Time{}
		case before.IsZero():
			return time.Now()
		}
		return before
	}
	s.uncertain = t.own.uncertainSince
	s.handOver = since(t.released, before.handOver)
	s.reading = since(t.journal.earlier.waiting, before.reading)
	if !t.stopping {
		s.fullOf = t.window.fullOf(t.in.pull.full)
	}
	s.full = since(s.fullOf != "", before.full)
	return s
}

// publishWaiting publishes which keys wait, and for which row they have waited longest.
func (g *gauges) publishWaiting(t *term, s *Status) {
	now := time.Now()
	s.KeysWaiting = t.window.buf.Waiting()
	waits, lookedLately := s.KeysWaiting > 0, now.Sub(g.waitedForAt) < waitedForEvery
	if waits && lookedLately && t.window.open[s.WaitedFor] != nil {
		return // it has not changed
	}
	s.WaitedFor, s.WaitedForKey, s.WaitedForSince = 0, "", time.Time{}
	if !waits || lookedLately { // else each row that others wait for a moment would cost a look
		return
	}
	g.waitedForAt = now
	if seq, key, ok := t.window.buf.WaitedFor(); ok {
		s.WaitedFor, s.WaitedForKey = seq, key.Name
		if row := t.window.open[seq]; row != nil {
			s.WaitedForSince = row.Taken
		}
	}
}
