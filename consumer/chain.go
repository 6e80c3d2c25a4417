package consumer

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/textproto"
	"slices"
	"strings"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
)

// chainValue is what a message of the log carries as [streams.HeaderChain]: the hash of
// all messages of the log up to it. The zero value is where a chain begins: at the first
// message, and at the first claim behind messages of a version that wrote no chain.
//
// Whoever alters, inserts or removes a message breaks the chain there, which verify finds.
// Verify has an implementation of its own, in the package proof of internal/ops, and a
// file of vectors binds both. docs/reliability.md has the bytes.
type chainValue [sha256.Size]byte

// readChain returns the value that a stored message carries, or the beginning of a chain
// where it carries none.
func readChain(h nats.Header) (v chainValue) {
	b, err := hex.DecodeString(h.Get(streams.HeaderChain))
	if err == nil && len(b) == len(v) {
		v = chainValue(b)
	}
	return v
}

// String is the value as the header has it.
func (v *chainValue) String() string {
	var text [2 * sha256.Size]byte
	hex.Encode(text[:], v[:])
	return string(text[:])
}

// The kinds of messages of the log, as their heads name them.
const (
	chainedResult = "llm-stage result\n"
	chainedClaim  = "llm-stage claim\n"
)

// chainer computes the chain. Its buffers are used again, so it is not safe for concurrent
// use. The zero value is ready.
type chainer struct {
	headers       []chainedHeader // of the last message, in the order of their names
	head, content []byte
}

// chainedHeader is a header of a message.
type chainedHeader struct {
	name    string
	values  []string
	leftOut bool // it is no part of the chain
	head    bool // see [inHead]
}

// next returns the value of a message that follows one with the value before. The message
// must have all its headers by then, and body is the hash of its body or of the object
// that holds it.
func (c *chainer) next(before chainValue, kind string, h nats.Header, body [sha256.Size]byte) chainValue {
	if !c.sameNames(h) {
		c.list(h)
	}
	c.head, c.content = append(c.head[:0], kind...), c.content[:0]
	for i := range c.headers {
		header := &c.headers[i]
		to := &c.content
		switch {
		case header.leftOut:
			continue
		case header.head:
			to = &c.head
		}
		for _, value := range header.values {
			*to = append(append(append(append(*to, header.name...), ": "...), storedValue(value)...), '\n')
		}
	}
	c.content = append(hex.AppendEncode(append(c.content, '\n'), body[:]), '\n')
	var all [3 * sha256.Size]byte
	head, content := sha256.Sum256(c.head), sha256.Sum256(c.content)
	copy(all[:], before[:])
	copy(all[sha256.Size:], head[:])
	copy(all[2*sha256.Size:], content[:])
	return sha256.Sum256(all[:])
}

// sameNames reports whether a message has headers of the names of the last one, as almost
// all results have, and takes their values then.
func (c *chainer) sameNames(h nats.Header) bool {
	if len(h) != len(c.headers) {
		return false
	}
	for i := range c.headers {
		values, ok := h[c.headers[i].name]
		if !ok {
			return false
		}
		c.headers[i].values = values
	}
	return true
}

// list takes the headers of a message.
func (c *chainer) list(h nats.Header) {
	c.headers = c.headers[:0]
	for name, values := range h {
		leftOut := name == streams.HeaderChain || streams.ForServer(name)
		c.headers = append(c.headers, chainedHeader{name, values, leftOut, inHead(name)})
	}
	slices.SortFunc(c.headers, func(a, b chainedHeader) int { return strings.Compare(a.name, b.name) })
}

// inHead reports whether a header stays when the message's content is erased: those that
// say which row the message is of, who has stored it, and how far the log is with it.
func inHead(name string) bool {
	switch name {
	case streams.HeaderAhead, streams.HeaderAheadFrom, streams.HeaderLow, streams.HeaderOriginSeq, streams.HeaderOriginStream, streams.HeaderOwner,
		streams.HeaderReplaces, streams.HeaderSourceSeq, streams.HeaderSourceStream, streams.HeaderStateID, streams.HeaderStatus:
		return true
	}
	return false
}

// storedValue is the value of a header as the client library writes it.
func storedValue(value string) string {
	value = textproto.TrimString(value)
	if strings.IndexByte(value, '\r') >= 0 || strings.IndexByte(value, '\n') >= 0 {
		value = strings.NewReplacer("\r", " ", "\n", " ").Replace(value)
	}
	return value
}

// eventName is what a result calls its row event, from the event's hash, see
// [streams.HeaderEvent].
func eventName(event [sha256.Size]byte) string {
	return base64.RawURLEncoding.EncodeToString(event[:16])
}
