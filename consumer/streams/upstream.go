package streams

import (
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
)

// Upstream returns the name of the stage of whose results a row is one; empty: it is no result of a stage. The headers of
// a result agree: its state id names the stream and the sequence that it also has as its source. So a row on which a
// publisher has set one of them is not taken for a result.
func Upstream(header nats.Header) (stage string) {
	id := header.Get(HeaderStateID)
	if id == "" { // most rows
		return ""
	}
	stage, rest, _ := strings.Cut(id, "/")
	stream, rest, _ := strings.Cut(rest, "/")
	partition, seq, ok := strings.Cut(rest, "/")
	if !ok || !isStageName(stage) || stream == "" || stream != header.Get(HeaderSourceStream) {
		return ""
	}
	if n, err := strconv.Atoi(partition); err != nil || n < 0 || !isSequence(seq) || seq != header.Get(HeaderSourceSeq) {
		return ""
	}
	return stage
}

// Origin returns the values of [HeaderOriginStream] and [HeaderOriginSeq] on the result of a row: those of the row where it
// has both, else its own source. Both are empty for a row that is no result of a stage, whose result is the first of a
// chain.
func Origin(header nats.Header) (stream, seq string) {
	if Upstream(header) == "" {
		return "", ""
	}
	stream, seq = header.Get(HeaderOriginStream), header.Get(HeaderOriginSeq)
	if stream != "" && isSequence(seq) {
		return stream, seq
	}
	return header.Get(HeaderSourceStream), header.Get(HeaderSourceSeq)
}

// isSequence reports whether text is a sequence of a stream as a stage writes it.
func isSequence(text string) bool {
	n, err := strconv.ParseUint(text, 10, 64)
	return err == nil && n > 0 && text[0] != '0' && text[0] != '+'
}

// isStageName reports whether text can be the name of a stage.
func isStageName(text string) bool {
	return text != "" && len(text) <= 32 && strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}
