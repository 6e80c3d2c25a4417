// Package proof computes and checks what proves the results of a stage: the chain through
// the log of a partition. Each claim and result carries, as Stage-Chain, the hash of itself
// and of all messages of the log before it:
//
//	chain  = SHA-256(chain of the message before, 32 bytes; of the first: zeros ‖ record)
//	record = SHA-256(head) ‖ SHA-256(content)
//
// The head stays for ever, and the content may be erased: an erased message leaves a
// [Tombstone], from which its record follows, so the chain goes on over the gap. See
// docs/reliability.md for the bytes.
//
// The chain is in proof.go, its end in root.go, what an erased message leaves in
// tombstone.go, and the proof of a single row in file.go.
//
// All functions are pure and safe for concurrent use. The package shares no code with the
// one that writes the chain, which is consumer: a golden file of vectors binds both.
package proof

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The headers of the chain.
const (
	HeaderChain = "Stage-Chain"
	// HeaderEvent is, on a result, the name of its row event: see [EventName].
	HeaderEvent = "Stage-Event"
	// HeaderRecorded is, on an event of the audit that is stored shorter than it was
	// recorded, the SHA-256 of the event as recorded, in hexadecimal. The events of an
	// erased row have it, too.
	HeaderRecorded = "Stage-Recorded"

	headerObjectDigest = "Stage-Object-Digest"
)

// Hash is a SHA-256, or the value of a chain. The zero Hash is where a chain begins.
type Hash [sha256.Size]byte

// HashOf returns the SHA-256 of bytes.
func HashOf(b []byte) Hash { return sha256.Sum256(b) }

// String is the hash in lower-case hexadecimal.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// MarshalText returns what String returns. It never fails.
func (h Hash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText reads what MarshalText has written.
func (h *Hash) UnmarshalText(text []byte) (err error) {
	*h, err = ParseHash(string(text))
	return err
}

// ParseHash reads 64 lower-case hexadecimal digits.
func ParseHash(text string) (h Hash, err error) {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != len(h) || strings.ToLower(text) != text {
		return Hash{}, fmt.Errorf("%q is no SHA-256 of %d lower-case hexadecimal digits", text, hex.EncodedLen(len(h)))
	}
	return Hash(b), nil
}

// Kind is what a message of the log is.
type Kind string

// The kinds of messages of the log.
const (
	Result Kind = "result"
	Claim  Kind = "claim"
)

// headNames are the headers of a message that stay for ever, sorted.
var headNames = []string{
	"Stage-Ahead", "Stage-Ahead-From", "Stage-Low", "Stage-Origin-Seq", "Stage-Origin-Stream", "Stage-Owner",
	"Stage-Replaces", "Stage-Source-Seq", "Stage-Source-Stream", "Stage-State-Id", "Stage-Status",
}

// Head returns the part of a message that stays for ever: its kind, and the headers that
// say which row it is about, who has stored it and how far the log is with it.
func Head(kind Kind, header map[string][]string) string {
	var b strings.Builder
	b.WriteString("llm-stage " + string(kind) + "\n")
	for _, name := range headNames {
		writeHeader(&b, name, header[name])
	}
	return b.String()
}

// Content returns the part of a message that may be erased: the SHA-256 of its body, and
// its other headers except for the chain itself and the headers for the server. A body that
// is an object has the hash that the message names.
func Content(header map[string][]string, body Hash) string {
	if digest := header[headerObjectDigest]; len(digest) > 0 {
		if sum, err := base64.URLEncoding.DecodeString(strings.TrimPrefix(digest[0], "SHA-256=")); err == nil && len(sum) == len(body) {
			body = Hash(sum)
		}
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(header)) {
		if name != HeaderChain && !strings.HasPrefix(name, "Nats-") && !slices.Contains(headNames, name) {
			writeHeader(&b, name, header[name])
		}
	}
	b.WriteString("\n" + body.String() + "\n")
	return b.String()
}

func writeHeader(b *strings.Builder, name string, values []string) {
	for _, value := range values {
		b.WriteString(name + ": " + value + "\n")
	}
}

// Record stands for a message in the chain: the hash of its head and that of its content.
type Record struct {
	Head    Hash
	Content Hash
}

// RecordOf returns the record of a message with its headers as they are stored.
func RecordOf(kind Kind, header map[string][]string, body []byte) Record {
	return RecordOfHash(kind, header, HashOf(body))
}

// RecordOfHash is [RecordOf] for a body whose SHA-256 is known.
func RecordOfHash(kind Kind, header map[string][]string, body Hash) Record {
	return Record{Head: HashOf([]byte(Head(kind, header))), Content: HashOf([]byte(Content(header, body)))}
}

// MarshalText returns the record as 128 hexadecimal digits. It never fails.
func (r Record) MarshalText() ([]byte, error) {
	return []byte(r.Head.String() + r.Content.String()), nil
}

// UnmarshalText reads what MarshalText has written.
func (r *Record) UnmarshalText(text []byte) (err error) {
	const half = 2 * sha256.Size
	if len(text) != 2*half {
		return fmt.Errorf("a record has %d hexadecimal digits, not %d", 2*half, len(text))
	}
	if r.Head, err = ParseHash(string(text[:half])); err == nil {
		r.Content, err = ParseHash(string(text[half:]))
	}
	return err
}

// Next returns the value of the chain with one more message.
func (h Hash) Next(r Record) Hash {
	b := make([]byte, 0, 3*len(h))
	return sha256.Sum256(append(append(append(b, h[:]...), r.Head[:]...), r.Content[:]...))
}

// ChainOf returns the value of the chain that a message carries. ok is false if it
// carries none, because a version before the chain has stored it. It is an error if the
// header is no value of a chain.
func ChainOf(header map[string][]string) (value Hash, ok bool, err error) {
	values := header[HeaderChain]
	if len(values) == 0 {
		return Hash{}, false, nil
	}
	if len(values) > 1 {
		return Hash{}, true, fmt.Errorf("it has %d headers %s", len(values), HeaderChain)
	}
	value, err = ParseHash(values[0])
	return value, true, err
}

// EventName returns the name by which a result refers to its row event: the first 16 bytes
// of the event's SHA-256, in base64url without padding.
func EventName(event Hash) string { return base64.RawURLEncoding.EncodeToString(event[:16]) }

// Calls returns the hash of the calls of a row with one more call. h is the hash of the
// calls before, which is zero if there are none. event is the hash of the call's event as
// it was recorded. A row event has the hash of all its calls as calls_hash.
func (h Hash) Calls(event Hash) Hash {
	return sha256.Sum256(append(h[:], event[:]...))
}
