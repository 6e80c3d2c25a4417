package consumer_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
)

// logLine is a message of a log: the result of a row, or a claim (no row).
type logLine struct {
	row, low, from uint64
	ahead          int
	key            string
	order          streams.Order
}

func (l logLine) header() nats.Header {
	h := nats.Header{streams.HeaderSourceSeq: {strconv.FormatUint(max(l.row, l.low), 10)}}
	if l.row > 0 {
		h.Set(streams.HeaderSourceSeq, strconv.FormatUint(l.row, 10))
		if l.order == streams.OrderKey {
			h.Set(streams.HeaderKey, l.key)
		}
	}
	if l.order != streams.OrderStream {
		h.Set(streams.HeaderLow, strconv.FormatUint(l.low, 10))
	}
	if l.ahead > 0 {
		h.Set(streams.HeaderAhead, strconv.Itoa(l.ahead))
		h.Set(streams.HeaderAheadFrom, strconv.FormatUint(l.from, 10))
	}
	return h
}

func (l logLine) claim() []byte {
	c := streams.Claim{Version: 1, HighWaterMark: l.low}
	if l.order != streams.OrderStream {
		c.Version, c.Order = 2, l.order
	}
	if l.order == streams.OrderKey {
		c.Key = simKeyWords
	}
	body, _ := json.Marshal(c) // it can always be encoded
	return body
}

// The rows are 2 (a), 3 (b), 5 (a), 8 (b) and 9 (c). In order by key 2 is slow.
func keyedLog() []logLine {
	const k = streams.OrderKey
	return []logLine{
		{order: k},
		{order: k, row: 3, key: "b", ahead: 1, from: 2},
		{order: k, row: 9, key: "c", ahead: 2, from: 2},
		{order: k, ahead: 2, from: 2},
		{order: k, row: 2, key: "a", low: 3, ahead: 1, from: 3},
		{order: k, row: 5, key: "a", low: 5, ahead: 1, from: 3},
		{order: k, row: 8, key: "b", low: 9},
		{order: k, low: 9},
	}
}

func TestTheCheckOfTheLogFindsWhatIsPlanted(t *testing.T) {
	swap := func(i, j int) func([]logLine) []logLine {
		return func(l []logLine) []logLine {
			l[i].row, l[j].row, l[i].key, l[j].key = l[j].row, l[i].row, l[j].key, l[i].key
			return l
		}
	}
	set := func(i int, change func(*logLine)) func([]logLine) []logLine {
		return func(l []logLine) []logLine {
			change(&l[i])
			return l
		}
	}
	for _, c := range []struct {
		name  string
		span  int
		spoil func([]logLine) []logLine
		finds string // first
	}{
		{"nothing", 5, func(l []logLine) []logLine { return l }, ""},
		{"two of a key swapped", 5, swap(4, 5), "result 5 of row 5 comes before that of row 2"},
		{"one before an earlier one of its key", 5, swap(1, 6), "result 2 of row 8 comes before that of row 3"},
		{"a doubled one", 5, func(l []logLine) []logLine { return append(l, l[6]) }, "result 9 is the second one of row 8, after 7"},
		{"a lost one", 5, func(l []logLine) []logLine { return l[:6] }, "the first one without is 8"},
		{"one of no row", 5, set(6, func(l *logLine) { l.row = 7 }), "result 7 is of row 7, which is none"},
		{"a mark too high", 5, set(4, func(l *logLine) { l.low = 5 }), `message 5 has the low-water mark "5"`},
		{"a mark too low", 5, set(1, func(l *logLine) { l.order, l.row, l.key, l.ahead, l.from = streams.OrderKey, 2, "a", 1, 2 }), `message 2 has the low-water mark "0" after 0, want 2`},
		{"a falling mark", 5, set(6, func(l *logLine) { l.low, l.ahead, l.from = 3, 3, 3 }), `message 7 has the low-water mark "3" after 5`},
		{"a claim of another mark", 5, set(7, func(l *logLine) { l.low = 8 }), "claim 8 of 8 says 8 after 9 of 4"},
		{"too many ahead", 5, set(2, func(l *logLine) { l.ahead = 3 }), `message 3 has "3" rows ahead`},
		{"too few ahead", 5, set(3, func(l *logLine) { l.ahead = 1 }), `message 4 has "1" rows ahead`},
		{"none ahead", 5, set(3, func(l *logLine) { l.ahead = 0 }), `message 4 has "" rows ahead`},
		{"a beginning too late", 5, set(2, func(l *logLine) { l.from = 3 }), "rows ahead begin at 3, the first is at 2"},
		{"no beginning", 5, set(2, func(l *logLine) { l.from = 0 }), "rows ahead begin at 0"},
		{"another key", 5, set(1, func(l *logLine) { l.key = "a" }), `result 2 of row 3 has the key "a"`},
		{"beyond the span", 4, func(l []logLine) []logLine { return l }, "result 3 of row 9 is 5 rows above the low-water mark 0, the span is 4"},
		{"a claim of another order", 5, set(3, func(l *logLine) { l.order = streams.OrderNone }), `claim 4 has version 2, order "none"`},
		{"a claim in stream order", 5, set(3, func(l *logLine) { l.order = streams.OrderStream }), "claim 4 has version 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			found := []string{""}
			check := logOrder{
				rows: []uint64{2, 3, 5, 8, 9}, keys: map[uint64]string{2: "a", 3: "b", 5: "a", 8: "b", 9: "c"},
				span: c.span, done: make(map[uint64]uint64),
				fail: func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) },
			}
			for i, l := range c.spoil(keyedLog()) {
				at, header := uint64(i)+1, l.header()
				if l.row > 0 {
					check.result(at, l.row, header)
					continue
				}
				header.Set(streams.HeaderOwner, strconv.Itoa(i+1))
				check.claim(at, header, l.claim(), streams.OrderKey)
			}
			check.end()
			if first := found[min(1, len(found)-1)]; (first == "") != (c.finds == "") || !strings.Contains(first, c.finds) {
				t.Errorf("found %q, want %q first", found[1:], c.finds)
			}
		})
	}
}
