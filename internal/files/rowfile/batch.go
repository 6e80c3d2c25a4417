package rowfile

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"regexp"
	"unicode/utf8"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

// batchIDs are the names of the requests that a batch file has had so far. OpenAI refuses a
// file in which two requests have one name, since their answers could not be told apart.
//
// Each name is kept as 16 bytes of a hash, with the line that has it. Only the first
// [batchIDsMax] names are compared, in about 4 MB: OpenAI takes files of half as many.
type batchIDs map[[16]byte]int64

const batchIDsMax = 100_000

// check returns what is wrong with a request's name, and whether another request has it.
func (s batchIDs) check(line int64, request []byte) (problem string, twice bool) {
	if !jsonbytes.Valid(request) {
		return "", false // the stage reports that it is not JSON
	}
	id := jsonbytes.Find(request, "custom_id")
	if len(id) < 3 || id[0] != '"' {
		return `the request has no text "custom_id"`, false
	}
	name := jsonbytes.Text(id)
	hash := sha256.Sum256([]byte(name))
	sum := [16]byte(hash[:16])
	if first, taken := s[sum]; taken {
		return fmt.Sprintf("the custom_id %.80q is that of line %d: it must be unique in the file", name, first), true
	}
	if len(s) < batchIDsMax {
		s[sum] = line
	}
	return "", false
}

// checkBatch returns a row with a Fault in place of a request without a name of its own, or
// the row itself. The beginning that the Fault keeps has the name first, however long the
// request is, so that [BatchID] finds it in the error result.
func (r *Reader) checkBatch(row Row) Row {
	if r.ids == nil {
		r.ids = make(batchIDs)
	}
	problem, twice := r.ids.check(row.Line, row.Body)
	if problem == "" {
		return row
	}
	return faultyRow(&Fault{Line: row.Line, Problem: problem, Twice: twice}, nameFirst(row.Body))
}

// nameFirst returns a request with its name as its first member.
func nameFirst(request []byte) []byte {
	id := jsonbytes.Find(request, "custom_id")
	if id == nil {
		return request
	}
	begin := append([]byte(`{"custom_id":`), id...)
	for name, value := range jsonbytes.Members(request) {
		if string(name) != "custom_id" {
			begin = append(jsonbytes.AppendString(append(begin, ','), name), ':')
			begin = append(begin, value...)
		}
	}
	return append(begin, '}')
}

var batchID = regexp.MustCompile(`^\s*\{\s*"custom_id"\s*:\s*("(?:[^"\\]|\\.)*")`)

// BatchID returns the name of a request, a JSON string, from the beginning of its line. It is
// nil if the line does not begin with it.
func BatchID(begin []byte) []byte {
	if m := batchID.FindSubmatch(begin); m != nil && utf8.Valid(m[1]) && jsonbytes.Valid(m[1]) {
		return bytes.Clone(m[1])
	}
	return nil
}
