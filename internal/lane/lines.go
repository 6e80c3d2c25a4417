package lane

import (
	"crypto/rand"
	"io"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/llm/batchapi"
)

// tokenLen is the length of every token.
const tokenLen = 20

// newToken returns the name of a batch, of [tokenLen] lower-case letters and digits.
func newToken() string { return strings.ToLower(rand.Text()[:tokenLen]) }

// customID is the id of a row's line.
func customID(token string, seq uint64) string {
	return token + "-" + strconv.FormatUint(seq, 10)
}

// parseID returns the row that a line's id names, and false if the id is none of the
// batch. Each row has one spelling: with token "t" the id of row 7 is "t-7", never "t-07"
// or "t-+7".
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
