package lane

// liveMost bounds the rows that are called live at a time.
const liveMost = 1024

// liveRows are the rows that go live, which means that the lane gives them back to be
// called like rows without a lane. Each is in rows until it is kept. At most [liveMost]
// are in sent, since their bodies are in memory, and every row that is not in sent waits
// in queue. The queue may also have rows that were kept since: they are skipped when
// their turn comes.
type liveRows struct {
	rows  rowSet
	sent  rowSet // recalled
	queue []uint64
}

// liveErrands are the errands of rows that go live, by the number of batches that they
// were in.
var liveErrands = [triesMax + 1]*Errand{{Live: true}, {Live: true, Tries: 1}, {Live: true, Tries: 2}, {Live: true, Tries: 3}}

// add has a row go live, when it is its turn.
func (l *liveRows) add(seq uint64) {
	if l.rows.add(seq) {
		l.queue = append(l.queue, seq)
	}
}

// next returns the next row to recall and counts it as sent. It returns false while
// enough are sent.
func (l *liveRows) next() (seq uint64, ok bool) {
	for len(l.queue) > 0 && l.sent.n < liveMost {
		seq, l.queue = l.queue[0], l.queue[1:]
		if l.rows.has(seq) {
			l.sent.add(seq)
			return seq, true
		}
	}
	if len(l.queue) == 0 {
		l.queue = nil
	}
	return 0, false
}

// again queues a row that was recalled and has come back without a reply.
func (l *liveRows) again(seq uint64) {
	if l.sent.remove(seq) {
		l.queue = append(l.queue, seq)
	}
}

// forget removes a row that is kept, which makes room for another.
func (l *liveRows) forget(seq uint64) {
	l.rows.remove(seq)
	l.sent.remove(seq)
}
