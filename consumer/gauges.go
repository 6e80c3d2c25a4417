package consumer

import "time"

// gauges publishes the state of a term's window in [Status]. The goroutine of the term
// owns it.
type gauges struct {
	// head is the oldest row of the window as last published, and headSince when it
	// became that.
	head      uint64
	headSince time.Time
	term      termStatus
	// waitedForAt is when [Status.WaitedFor] was last looked for.
	waitedForAt time.Time
}

// waitedForEvery is the time between two looks for the row that others have waited for
// longest: it costs a look at each key that has rows.
const waitedForEvery = time.Second

// publish publishes what the window holds now.
func (g *gauges) publish(t *term) {
	head, _ := t.buf.Head()
	if head != g.head {
		g.head, g.headSince = head, time.Now()
	}
	m := t.buf.Mark()
	now := t.status(g.term)
	g.term = now
	t.c.setStatus(func(s *Status) {
		s.term = now
		s.Window, s.Buffered, s.BufferedBytes = t.buf.Len(), t.buf.Completed(), t.buf.Bytes()
		s.Head, s.HeadSince = g.head, g.headSince
		s.Parked, s.SetAside = t.buf.Parked(), t.buf.Aside()
		s.HighWaterMark, s.Ahead = m.Low, m.Ahead
		if t.c.order.byKey() {
			g.publishWaiting(t, s)
		}
	})
}

// publishWaiting publishes which keys wait, and for which row they have waited longest.
func (g *gauges) publishWaiting(t *term, s *Status) {
	s.KeysWaiting = t.buf.Waiting()
	waits := s.KeysWaiting > 0
	now := time.Now()
	looked := waits && now.Sub(g.waitedForAt) < waitedForEvery
	if looked && t.open[s.WaitedFor] != nil {
		return
	}
	s.WaitedFor, s.WaitedForKey, s.WaitedForSince = 0, "", time.Time{}
	if looked || !waits {
		return // or each row that others wait for a moment would cost a look when it has its result
	}
	g.waitedForAt = now
	if seq, key, ok := t.buf.WaitedFor(); ok {
		s.WaitedFor, s.WaitedForKey = seq, key.Name
		if row := t.open[seq]; row != nil {
			s.WaitedForSince = row.Taken
		}
	}
}
