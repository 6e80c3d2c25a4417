package streams

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
)

const (
	// HeaderRedriveOf names the failed row that a redriven row was, by its state id.
	HeaderRedriveOf = "Stage-Redrive-Of"
	// HeaderReplaces on a redriven row, and on its result, is the sequence of the row
	// whose place the result takes: the first one, however often the row was redriven.
	HeaderReplaces = "Stage-Replaces"
)

// Replaces returns the sequence in [HeaderReplaces]. It is 0 if there is none, or it is
// damaged.
func Replaces(header nats.Header) (seq uint64) {
	seq, err := strconv.ParseUint(header.Get(HeaderReplaces), 10, 64)
	if err != nil {
		return 0
	}
	return seq
}

// RedriveOf returns the sequence of the failed row that was redriven as this row. It is 0
// for a row that no redrive of this stage has published. Stages that share an input see
// the redriven rows of each other, which replace nothing of theirs, and a stage in a
// chain sees the headers that the stage before it has set.
func RedriveOf(header nats.Header, name, input string) (seq uint64) {
	rest, ok := strings.CutPrefix(header.Get(HeaderRedriveOf), name+"/"+input+"/")
	if !ok {
		return 0
	}
	_, number, _ := strings.Cut(rest, "/") // after the partition
	seq, _ = strconv.ParseUint(number, 10, 64)
	return seq
}

// Replaced returns the sequence of the row whose place the result of a redriven row
// takes. It is 0 if it takes no other's place. A row that a redrive of an older version
// has published names only the failed row before it.
func Replaced(header nats.Header, name, input string) (seq uint64) {
	of := RedriveOf(header, name, input)
	if of == 0 {
		return 0
	}
	return cmp.Or(Replaces(header), of)
}
