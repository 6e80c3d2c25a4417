package streams

import (
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
)

// Upstream returns the name of the stage that made a row, as one of its results. It is
// empty if the row is no result of a stage. The headers of a result agree: its state id
// names the stream and the sequence that it also has as its source. So a row on which a
// publisher has set one of them is not taken for a result.
func Upstream(header nats.Header) (stage string) {
	id := header.Get(HeaderStateID)
	if id == "" { // most rows
		return ""
	}
	stage, rest, _ := strings.Cut(id, "/")
	stream, rest, _ := strings.Cut(rest, "/")
	partition, seq, ok := strings.Cut(rest, "/")
	if !ok || !isStageName(stage) || !isStreamName(stream) ||
		stream != header.Get(HeaderSourceStream) {
		return ""
	}
	n, err := strconv.Atoi(partition)
	if err != nil || n < 0 || !isSequence(seq) || seq != header.Get(HeaderSourceSeq) {
		return ""
	}
	return stage
}

// Origin returns the values of [HeaderOriginStream] and [HeaderOriginSeq] on the result
// of a row: the row's own if it has both, and otherwise its source. Both are empty for a
// row that is no result of a stage, whose result is the first of a chain.
func Origin(header nats.Header) (stream, seq string) {
	if Upstream(header) == "" {
		return "", ""
	}
	stream, seq = header.Get(HeaderOriginStream), header.Get(HeaderOriginSeq)
	if isStreamName(stream) && isSequence(seq) {
		return stream, seq
	}
	return header.Get(HeaderSourceStream), header.Get(HeaderSourceSeq)
}

// lineage are the headers that make a row a result of a stage, and those that a stage
// after it reads.
var lineage = []string{
	HeaderSourceStream, HeaderSourceSeq, HeaderSourceSubject, HeaderStatus, HeaderStateID,
	HeaderOriginStream, HeaderOriginSeq, HeaderKey,
	HeaderObject, HeaderObjectDigest, HeaderObjectBytes,
}

// CopyLineage copies to a copy of a row what makes that a result of a stage. It copies
// nothing of any other row.
func CopyLineage(to, row nats.Header) {
	if Upstream(row) == "" {
		return
	}
	for _, key := range lineage {
		if values := row[key]; values != nil {
			to[key] = values
		}
	}
}

// InLog returns the stage whose log a message is part of, as one of its results. It is
// empty for any other message, and for a copy of a result that lies elsewhere. Nobody but
// that stage may publish on the subject, as it could not append to its log any more.
func InLog(subject string, header nats.Header) (stage string) {
	tokens := strings.Split(subject, ".")
	n := len(tokens)
	if n <= logTokens || tokens[n-1] != "rows" {
		return ""
	}
	if _, err := strconv.Atoi(tokens[n-2]); err != nil || tokens[n-3] != Upstream(header) {
		return ""
	}
	return tokens[n-3]
}

// logTokens are the tokens of the subject of a result after the prefix: name, partition,
// rows.
const logTokens = 3

// CopySubject returns the subject on which the stage of that name publishes a row of its
// input again that is in the log of another ([InLog]): the row's own subject, with a
// token of the stage in the place of the partition. For example, a stage reduce publishes
// a row of results.map.0.rows on results.map.redriven-reduce.rows. ok is false where
// filter, the input subject of the partition, does not match it: only one with a wildcard
// there, such as results.map.*.rows, does.
func CopySubject(filter, subject, name string) (copied string, ok bool) {
	tokens := strings.Split(subject, ".")
	if len(tokens) <= logTokens {
		return "", false
	}
	tokens[len(tokens)-2] = "redriven-" + name
	copied = strings.Join(tokens, ".")
	return copied, covers(filter, copied)
}

// isSequence reports whether text is a sequence of a stream as a stage writes it.
func isSequence(text string) bool {
	n, err := strconv.ParseUint(text, 10, 64)
	return err == nil && n > 0 && text[0] != '0' && text[0] != '+'
}

// isStreamName reports whether text can be the name of a stream: it goes into a header of
// the result.
func isStreamName(text string) bool { return text != "" && len(text) <= 255 }

// isStageName reports whether text can be the name of a stage.
func isStageName(text string) bool {
	return text != "" && len(text) <= 32 &&
		strings.Trim(text, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}
