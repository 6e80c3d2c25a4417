package verify

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go"
)

// keyOf returns the key of a row as its result shows it. place says where the key is, in
// the form of STAGE_ORDER_KEY. ok is false if subject and headers cannot show the key: it
// is a member of the row, or the order is unknown here.
//
// The stage has its own code for this. It is written a second time on purpose: an error
// in one of the two is then found by comparing them.
func keyOf(place, subject string, header nats.Header) (key string, ok bool) {
	kind, name, _ := strings.Cut(place, ".")
	switch {
	case place == "subject":
		key = subject
	case kind == "subject":
		n, err := strconv.Atoi(name)
		if err != nil || n < 1 {
			return "", false
		}
		if tokens := strings.Split(subject, "."); n <= len(tokens) {
			key = tokens[n-1]
		}
	case kind == "header":
		if values := streams.CarriedValues(header, name); len(values) > 0 {
			key = values[0]
		}
	default:
		return "", false
	}
	return streams.KeyHeader(key), true
}

// keyOfResult is keyOf for what a result has kept of its row. ok is also false for a header
// that is not passed on, or not unchanged, or that an error result without room for the
// row's headers has lost.
func keyOfResult(place string, r *stored.ResultRow) (key string, ok bool) {
	if mayBeInvalid(r) {
		return "", false
	}
	if name, in := strings.CutPrefix(place, "header."); in && (!streams.PassHeader(name) || len(streams.CarriedValues(r.Header, name)) == 0) {
		return "", false
	}
	key, ok = keyOf(place, r.Subject, r.Header)
	if strings.HasPrefix(place, "header.") && r.Key != nil && key != *r.Key && isHash(*r.Key) {
		// A value with white space around it, or a line break in it, is passed on without
		// these.
		return "", false
	}
	return key, ok
}

// isHash reports whether a key is the hash of a key that a header can't have unchanged, see
// [streams.KeyHeader].
func isHash(key string) bool {
	_, err := hex.DecodeString(key)
	return err == nil && len(key) == hex.EncodedLen(sha256.Size)
}

// mayBeInvalid reports whether a result may be that of an invalid row, which has the
// empty key whatever its subject and headers are.
func mayBeInvalid(r *stored.ResultRow) bool {
	return r.Status == auditlog.RowError && r.Key != nil && *r.Key == ""
}
