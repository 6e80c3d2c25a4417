package proof

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Tombstone stands for an erased message of the log. It is stored before anything is
// erased, and says what the chain needs of the message: its head and the hash of its
// content.
type Tombstone struct {
	// Row and Sequence are the row that was erased, and the place of its message in the
	// results stream.
	Row      uint64 `json:"row"`
	Sequence uint64 `json:"sequence"`
	// Head is the message's head, see [Head]. Content is the hash of its content, and Chain
	// the value of the chain that the message carried.
	Head    string `json:"head"`
	Content Hash   `json:"content"`
	Chain   Hash   `json:"chain"`
	// Who erased it, and when. Removed counts the messages and objects that were found, by
	// the place where they were.
	Who     string         `json:"who"`
	At      time.Time      `json:"at"`
	Removed map[string]int `json:"removed,omitempty"`
}

// NewTombstone returns the tombstone of a stored message.
func NewTombstone(kind Kind, sequence uint64, header map[string][]string, body []byte) (*Tombstone, error) {
	chain, ok, err := ChainOf(header)
	if err == nil && !ok {
		err = fmt.Errorf("it has no header %s: a version before the chain has stored it", HeaderChain)
	}
	if err != nil {
		return nil, fmt.Errorf("message %d of the results: %w", sequence, err)
	}
	t := &Tombstone{Sequence: sequence, Head: Head(kind, header), Content: RecordOf(kind, header, body).Content, Chain: chain}
	if t.Row, err = t.rowOfHead(); err != nil {
		return nil, fmt.Errorf("message %d of the results: %w", sequence, err)
	}
	return t, nil
}

// ParseTombstone reads the body of a tombstone's message. It is an error if that is no
// tombstone, because it is no JSON or its head is about another row.
func ParseTombstone(body []byte) (*Tombstone, error) {
	t := new(Tombstone)
	if err := json.Unmarshal(body, t); err != nil {
		return nil, fmt.Errorf("a tombstone can't be read: %w", err)
	}
	row, err := t.rowOfHead()
	switch {
	case err != nil:
		return nil, fmt.Errorf("a tombstone of row %d: %w", t.Row, err)
	case row != t.Row:
		return nil, fmt.Errorf("a tombstone of row %d has the head of row %d", t.Row, row)
	}
	return t, nil
}

// Record returns the record of the erased message, with which the chain goes on.
func (t *Tombstone) Record() Record { return Record{Head: HashOf([]byte(t.Head)), Content: t.Content} }

// Follows reports whether the erased message followed one with this value of the chain.
func (t *Tombstone) Follows(before Hash) bool { return before.Next(t.Record()) == t.Chain }

// Kind returns what the erased message was.
func (t *Tombstone) Kind() Kind {
	first, _, _ := strings.Cut(t.Head, "\n")
	return Kind(strings.TrimPrefix(first, "llm-stage "))
}

// Header returns a header of the erased message that its head still has, or empty.
func (t *Tombstone) Header(name string) string {
	for line := range strings.Lines(t.Head) {
		if value, ok := strings.CutPrefix(line, name+": "); ok {
			return strings.TrimSuffix(value, "\n")
		}
	}
	return ""
}

func (t *Tombstone) rowOfHead() (row uint64, err error) {
	if kind := t.Kind(); kind != Result && kind != Claim {
		return 0, errors.New("its head is that of no message of a log")
	}
	if row, err = strconv.ParseUint(t.Header("Stage-Source-Seq"), 10, 64); err != nil {
		return 0, errors.New("its head names no row")
	}
	return row, nil
}
