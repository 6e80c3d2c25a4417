// Package hold says why rows wait: one type for a reason, and one table of all reasons.
//
// A row that is taken and has no result waits for something: a slot of the pool, the reply
// to its call, an earlier row, a stream that is full, an operator. Each part of the program
// that makes rows wait reports that as a [Hold], with a [Kind] from the table in kinds.go.
// Whoever shows it (status, metrics, log, dashboard, /readyz) reads the same list, so the
// same wait has the same word and the same advice everywhere:
//
//	h := hold.Hold{Scope: hold.Partition, Name: "3", Kind: hold.Results, Why: err.Error(), Since: began}
//	h.Advise(places)
//	fmt.Println(h) // partition 3: results: maximum bytes exceeded
//
// The package is pure: it has no clock, and imports nothing of the program.
package hold

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Scope is how much a hold is about.
type Scope string

// The scopes.
const (
	Stage     Scope = "stage"     // all rows of this process
	Partition Scope = "partition" // the rows of a partition
	Key       Scope = "key"       // the rows of a partition with one key
	Row       Scope = "row"       // one row
	Server    Scope = "server"    // the calls to one provider
)

// Hold is one reason why rows wait.
type Hold struct {
	Scope Scope `json:"scope"`
	// Name is the number of the partition, the key, the sequence of the row or the name of
	// the server. It is empty for the stage, and for a key that may not be shown.
	Name string `json:"name,omitempty"`
	Kind Kind   `json:"kind"`
	// By is who or what makes them wait: an operator, a server, a stream, a row, a setting.
	// It is empty where the kind says it all.
	By string `json:"by,omitempty"`
	// Why is what was seen, such as the text of an error, or empty.
	Why string `json:"why,omitempty"`
	// Since is when the wait began, and Next when it is looked at again. Both are zero
	// where that is not known.
	Since time.Time `json:"since,omitzero"`
	Next  time.Time `json:"next,omitzero"`
	// Do is what an operator can do, in one sentence.
	Do string `json:"do"`

	// Err is the error behind Why, for whoever judges it further.
	Err error `json:"-"`
}

// OfPartition returns a hold on a partition.
func OfPartition(partition int, kind Kind) Hold {
	return Hold{Scope: Partition, Name: strconv.Itoa(partition), Kind: kind}
}

// OfRow returns a hold on one row.
func OfRow(seq uint64, kind Kind) Hold {
	return Hold{Scope: Row, Name: RowName(seq), Kind: kind}
}

// LaneRows is what a full [Window] is full of where as many rows wait for batches as may.
const LaneRows = "lane rows"

// RowName is how a hold names a row.
func RowName(seq uint64) string { return strconv.FormatUint(seq, 10) }

// Class returns what the kind has in common with others.
func (h *Hold) Class() Class { return Find(h.Kind).Class }

// About reports whether the hold is about a partition: about that one, or about the stage.
func (h *Hold) About(partition int) bool {
	return h.Scope == Stage || h.Scope == Partition && h.Name == strconv.Itoa(partition)
}

// String describes the hold in a line, as in "partition 3: results: maximum bytes
// exceeded". What an operator wants is said in the operator's words, as in "partition 3:
// paused by alice@laptop".
func (h Hold) String() string {
	text := strings.ReplaceAll(string(h.Kind), "_", " ")
	switch {
	case h.By != "" && (h.Kind == Operator || h.Kind == Drained):
		text = h.By
	case h.By != "":
		text += " (" + h.By + ")"
	}
	if h.Why != "" {
		text += ": " + h.Why
	}
	switch {
	case h.Scope == Stage:
		return text
	case h.Name == "":
		return fmt.Sprintf("a %s: %s", h.Scope, text)
	}
	return fmt.Sprintf("%s %s: %s", h.Scope, h.Name, text)
}

// RowText says what a row waits for, as in "waits: slots, for 4s: all slots of the pool are
// in use. To do: nothing; a larger STAGE_POOL_SIZE …".
func (h *Hold) RowText(now time.Time) string {
	text := "waits: " + string(h.Kind)
	if h.By != "" {
		text += " (" + h.By + ")"
	}
	if !h.Since.IsZero() {
		text += ", for " + now.Sub(h.Since).Round(time.Second).String()
	}
	if in := h.Next.Sub(now); in > 0 {
		text += ", next look in " + in.Round(time.Second).String()
	}
	if why := cmp.Or(h.Why, Find(h.Kind).Means); why != "" {
		text += ": " + why
	}
	return text + ". To do: " + h.Do
}

// List is why rows wait now. What stops the stage comes first.
type List []Hold

// First returns the first hold that matches, or nil.
func (l List) First(match func(*Hold) bool) *Hold {
	for i := range l {
		if match(&l[i]) {
			return &l[i]
		}
	}
	return nil
}

// Of returns the first hold of a kind on the stage, or nil.
func (l List) Of(kind Kind) *Hold {
	return l.First(func(h *Hold) bool { return h.Kind == kind && h.Scope == Stage })
}

// Paused returns the hold that pauses all calls, or nil.
func (l List) Paused() *Hold {
	return l.First(func(h *Hold) bool { return h.Scope == Stage && h.Class() == Paused })
}

// shownMost bounds the holds that a report shows.
const shownMost = 100

// Shown returns a copy of the list, of at most 100 holds. Of more it leaves out the
// partitions that are simply with another replica, and then the last: a replica that stands
// by for a thousand partitions says so a thousand times.
func (l List) Shown() List {
	shown := append(List{}, l...)
	if len(shown) > shownMost {
		shown = slices.DeleteFunc(shown, func(h Hold) bool { return h.Kind == Standby })
	}
	return shown[:min(len(shown), shownMost)]
}

// Text names the kinds of the list once each, but for partitions that are simply with
// another replica, as in "order, window".
func (l List) Text() string {
	var kinds []string
	for i := range l {
		if kind := string(l[i].Kind); l[i].Kind != Standby && !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	return strings.Join(kinds, ", ")
}

// Counts returns how many holds there are of each kind that a list may have. Kinds
// without any are in it, too.
func (l List) Counts() map[Kind]int {
	counts := make(map[Kind]int, len(table))
	for _, e := range table {
		if e.Shown != AboutRow {
			counts[e.Kind] = 0
		}
	}
	for i := range l {
		counts[l[i].Kind]++
	}
	return counts
}

// Memory remembers since when holds last, for those whose owners don't know. It is bounded
// by the holds of one list. The zero value is empty. One goroutine at a time uses it.
type Memory struct{ since map[memoryKey]time.Time }

type memoryKey struct {
	scope Scope
	name  string
	kind  Kind
}

// Fill sets Since where it is missing: to when a list first had the hold, without a gap.
// So it is never too early, and late by the time between two lists.
func (m *Memory) Fill(l List, now time.Time) {
	last := m.since
	m.since = make(map[memoryKey]time.Time)
	for i := range l {
		h := &l[i]
		if !h.Since.IsZero() {
			continue
		}
		key := memoryKey{h.Scope, h.Name, h.Kind}
		since, known := last[key]
		if !known {
			since = now
		}
		h.Since, m.since[key] = since, since
	}
}

// Kinds returns all kinds, in the order of the table.
func Kinds() (kinds []Kind) {
	for _, e := range table {
		kinds = append(kinds, e.Kind)
	}
	return kinds
}

// Find returns the line of the table that a kind has; the zero value where it has none.
func Find(kind Kind) Entry {
	if i := slices.IndexFunc(table, func(e Entry) bool { return e.Kind == kind }); i >= 0 {
		return table[i]
	}
	return Entry{}
}
