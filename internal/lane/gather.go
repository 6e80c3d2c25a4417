package lane

import (
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/batchapi"
)

// gathered is a row that waits for its batch to be submitted.
type gathered struct {
	seq, hash uint64
	tries     uint8
	deadline  int64 // Unix milliseconds; 0: none
	prepared  *llm.Prepared
	size      int // of its line
	tokens    int64
	cost      float64
}

// gather is a batch that is not sealed yet.
type gather struct {
	model  string
	since  time.Time // of its first row
	last   time.Time // of its newest
	rows   map[uint64]*gathered
	bytes  int64
	tokens int64
	full   bool // a row did not fit any more
}

func newGather(model string) *gather {
	return &gather{model: model, rows: make(map[uint64]*gathered)}
}

func (g *gather) add(r *gathered, now time.Time) {
	if len(g.rows) == 0 {
		g.since = now
	}
	g.last = now
	g.rows[r.seq] = r
	g.bytes += int64(r.size)
	g.tokens += r.tokens
}

func (g *gather) remove(seq uint64) *gathered {
	r := g.rows[seq]
	if r != nil {
		delete(g.rows, seq)
		g.bytes -= int64(r.size)
		g.tokens -= r.tokens
	}
	return r
}

// sorted returns the rows by sequence.
func (g *gather) sorted() []*gathered {
	rows := make([]*gathered, 0, len(g.rows))
	for _, r := range g.rows {
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(a, b *gathered) int {
		if a.seq < b.seq {
			return -1
		}
		return 1
	})
	return rows
}

// rowsOf returns what is recorded of rows.
func rowsOf(body []*gathered) Rows {
	r := Rows{Seqs: make([]uint64, len(body)), Hashes: make([]uint64, len(body))}
	for i, g := range body {
		r.Seqs[i], r.Hashes[i] = g.seq, g.hash
		if g.tries > 0 && r.Tries == nil {
			r.Tries = make([]uint8, len(body))
		}
		if g.deadline != 0 && r.Deadlines == nil {
			r.Deadlines = make([]int64, len(body))
		}
	}
	for i, g := range body {
		if r.Tries != nil {
			r.Tries[i] = g.tries
		}
		if r.Deadlines != nil {
			r.Deadlines[i] = g.deadline
		}
	}
	return r
}

// tokenLen is the length of every token.
const tokenLen = 20

// customID is the id of a row's line.
func customID(token string, seq uint64) string {
	return token + "-" + strconv.FormatUint(seq, 10)
}

// parseID returns the row that a line's id names; false: the id is not one of the batch.
func parseID(token, id string) (uint64, bool) {
	rest, found := strings.CutPrefix(id, token+"-")
	if !found || rest == "" || rest[0] == '0' || rest[0] == '+' {
		return 0, false
	}
	seq, err := strconv.ParseUint(rest, 10, 64)
	return seq, err == nil
}

// lineReader writes the lines of a batch as they are read.
type lineReader struct {
	api   batchapi.API
	token string
	rows  []*gathered
	line  []byte
	rest  []byte // of line
}

// Read implements [io.Reader].
func (r *lineReader) Read(p []byte) (n int, err error) {
	for n < len(p) {
		if len(r.rest) == 0 {
			if len(r.rows) == 0 {
				break
			}
			r.line = r.api.AppendLine(r.line[:0], customID(r.token, r.rows[0].seq), r.rows[0].prepared)
			r.rest, r.rows = r.line, r.rows[1:]
			continue
		}
		c := copy(p[n:], r.rest)
		n, r.rest = n+c, r.rest[c:]
	}
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// linesOf returns the body of a batch.
func linesOf(api batchapi.API, token string, rows []*gathered) batchapi.Lines {
	l := batchapi.Lines{
		Rows: len(rows),
		Open: func() io.Reader { return &lineReader{api: api, token: token, rows: rows} },
	}
	for _, r := range rows {
		l.Size += int64(r.size)
	}
	return l
}
