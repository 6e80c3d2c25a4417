package consumer

import (
	"strconv"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
)

// logMark says how far the rows are emitted with a message of the log: all up to low, and
// ahead others above it. No result of those lies before from, a sequence of the results
// stream.
//
// For example, rows 1 to 5 have the keys a, b, a, b, b, and row 3 takes long. The results
// of 1, 2, 4 and 5 lie at 10, 11, 12 and 13. The last one says low 2, ahead 2, from 12:
// whoever takes over reads the log from 12 on, finds rows 4 and 5, and answers row 3
// alone.
//
// In stream order no row is ahead, and low is the message's own row.
type logMark struct {
	low   uint64
	ahead int
	from  uint64
}

const (
	// markHeaders is how many headers [logMark.setHeader] sets at most.
	markHeaders = 4
	// markHeaderBytes is the room for them without the key.
	markHeaderBytes = len(streams.HeaderLow+streams.HeaderAhead+streams.HeaderAheadFrom) +
		3*len("18446744073709551615") + len(streams.HeaderKey) + markHeaders*len(": \r\n")
)

// setHeader writes the mark for the next owner, and the row's key where there is one.
// The values share one array and one string, because every result has them.
func (m logMark) setHeader(h nats.Header, key *string) {
	var digits [3 * len("18446744073709551615")]byte
	low := strconv.AppendUint(digits[:0], m.low, 10)
	ahead := strconv.AppendInt(low, int64(m.ahead), 10)
	text := string(strconv.AppendUint(ahead, m.from, 10))
	values := &[markHeaders]string{text[:len(low)], text[len(low):len(ahead)], text[len(ahead):]}
	h[streams.HeaderLow] = values[:1:1]
	if m.ahead > 0 {
		h[streams.HeaderAhead] = values[1:2:2]
		h[streams.HeaderAheadFrom] = values[2:3:3]
	}
	if key != nil {
		values[3] = *key
		h[streams.HeaderKey] = values[3:]
	}
}

// readMark reads the mark of a message about row.
func readMark(h nats.Header, row uint64) (m logMark, err error) {
	if h.Get(streams.HeaderLow) == "" {
		return logMark{low: row}, nil
	}
	m.low, err = strconv.ParseUint(h.Get(streams.HeaderLow), 10, 64)
	if err != nil || h.Get(streams.HeaderAhead) == "" {
		return m, err
	}
	if m.ahead, err = strconv.Atoi(h.Get(streams.HeaderAhead)); err == nil {
		m.from, err = strconv.ParseUint(h.Get(streams.HeaderAheadFrom), 10, 64)
	}
	return m, err
}

// aheadLog knows where in the log the results of the rows above the low-water mark lie,
// in blocks.
type aheadLog struct{ blocks []aheadBlock }

// aheadBlock is some results that follow each other in the log, none of them before at.
type aheadBlock struct {
	at     uint64
	newest uint64 // the highest row among them
	rows   int
}

const aheadBlockRows = 64

// add notes a result that is stored at or after a place in the log.
func (l *aheadLog) add(at, row uint64) {
	if n := len(l.blocks); n > 0 && l.blocks[n-1].rows < aheadBlockRows {
		b := &l.blocks[n-1]
		b.newest, b.rows = max(b.newest, row), b.rows+1
		return
	}
	l.blocks = append(l.blocks, aheadBlock{at: at, newest: row, rows: 1})
}

// from returns the place before which no result of a row above low lies; next, if there
// is none in the log. It forgets the blocks that are passed, because low never falls.
func (l *aheadLog) from(low, next uint64) uint64 {
	for len(l.blocks) > 0 && l.blocks[0].newest <= low {
		l.blocks = l.blocks[1:]
	}
	if len(l.blocks) == 0 {
		return next
	}
	return l.blocks[0].at
}
