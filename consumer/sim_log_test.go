package consumer_test

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
)

// logOrder checks the order of the log of one partition, message by message, by the dumbest means.
type logOrder struct {
	rows []uint64          // of the input, in their order
	keys map[uint64]string // as headers have them
	span int
	fail func(format string, args ...any)

	order streams.Order     // of the last claim
	owner string            // that made it
	done  map[uint64]uint64 // rows that have their result, and where it is
	low   int               // rows[:low] are done
	said  uint64            // the low-water mark of the last message
	// before is the newest row that was done before the term began. Where it is above the low-water mark, the term may say
	// less than it could until after, when a row behind it is done: those that were done before have not come again.
	before uint64
	after  bool
}

// claim checks a claim at a place of the log. The mark of a first one is that of the message before it.
func (o *logOrder) claim(at uint64, header nats.Header, body []byte, want streams.Order) {
	var c streams.Claim
	if err := json.Unmarshal(body, &c); err != nil {
		o.fail("claim %d: %v", at, err)
		return
	}
	version, order, key := 2, want, ""
	switch want {
	case streams.OrderStream:
		version, order = 1, ""
	case streams.OrderKey:
		key = simKeyWords
	case streams.OrderNone:
	}
	if c.Version != version || c.Order != order || c.Key != key {
		o.fail("claim %d has version %d, order %q and key %q, want %d, %q and %q", at, c.Version, c.Order, c.Key, version, order, key)
	}
	owner := header.Get(streams.HeaderOwner)
	if first := owner != o.owner; first && c.HighWaterMark != o.said || !first && (c.HighWaterMark <= o.said || want == streams.OrderStream) {
		o.fail("claim %d of %s says %d after %d of %s", at, owner, c.HighWaterMark, o.said, o.owner)
	}
	if header.Get(streams.HeaderSourceSeq) != strconv.FormatUint(c.HighWaterMark, 10) {
		o.fail("claim %d says %d, and %s in its header", at, c.HighWaterMark, header.Get(streams.HeaderSourceSeq))
	}
	for _, seq := range o.rows {
		if o.done[seq] != 0 {
			o.before = seq
		}
	}
	o.owner, o.after = owner, o.before <= o.said
	if o.order = want; want == streams.OrderStream && len(o.done) > o.low {
		o.fail("claim %d begins with the order of the stream, and %d rows above %d are done", at, len(o.done)-o.low, o.mark())
	}
	o.marks(at, header)
}

// result checks a result at a place of the log.
func (o *logOrder) result(at, seq uint64, header nats.Header) {
	i, known := slices.BinarySearch(o.rows, seq)
	switch {
	case !known:
		o.fail("result %d is of row %d, which is none of the partition", at, seq)
		return
	case o.done[seq] != 0:
		o.fail("result %d is the second one of row %d, after %d", at, seq, o.done[seq])
		return
	}
	if first := o.waitsFor(i); first != 0 {
		o.fail("result %d of row %d comes before that of row %d (order %s, key %q)", at, seq, first, o.order, o.keys[seq])
	}
	if i-o.low >= o.span {
		o.fail("result %d of row %d is %d rows above the low-water mark %d, the span is %d", at, seq, i-o.low+1, o.mark(), o.span)
	}
	if key := header.Get(streams.HeaderKey); o.order == streams.OrderKey && key != o.keys[seq] {
		o.fail("result %d of row %d has the key %q, want %q", at, seq, key, o.keys[seq])
	}
	if _, has := header[streams.HeaderKey]; has != (o.order == streams.OrderKey) {
		o.fail("result %d in order %s: has a key: %v", at, o.order, has)
	}
	o.done[seq], o.after = at, o.after || seq > o.before
	for o.low < len(o.rows) && o.done[o.rows[o.low]] != 0 {
		o.low++
	}
	o.marks(at, header)
}

// waitsFor is the earlier row without a result that a row should have waited for; 0: none.
func (o *logOrder) waitsFor(i int) uint64 {
	if o.order == streams.OrderNone {
		return 0
	}
	for _, earlier := range o.rows[o.low:max(o.low, i)] {
		if o.done[earlier] == 0 && (o.order != streams.OrderKey || o.keys[earlier] == o.keys[o.rows[i]]) {
			return earlier
		}
	}
	return 0
}

// mark is the low-water mark.
func (o *logOrder) mark() uint64 {
	if o.low == 0 {
		return 0
	}
	return o.rows[o.low-1]
}

// marks checks what a message says of the rows that are done with it.
func (o *logOrder) marks(at uint64, header nats.Header) {
	if o.order == streams.OrderStream {
		o.said = o.mark()
		for _, name := range []string{streams.HeaderLow, streams.HeaderAhead, streams.HeaderAheadFrom} {
			if header.Get(name) != "" {
				o.fail("message %d in the order of the stream has %s: %s", at, name, header.Get(name))
			}
		}
		return
	}
	low, err := strconv.ParseUint(header.Get(streams.HeaderLow), 10, 64)
	if err != nil || low > o.mark() || low < o.said || o.after && low < o.mark() {
		o.fail("message %d has the low-water mark %q after %d, want %d", at, header.Get(streams.HeaderLow), o.said, o.mark())
	}
	o.said = max(o.said, low)
	ahead, first := 0, uint64(0)
	for seq, d := range o.done {
		if seq > low {
			ahead++
			first = cmp.Or(min(first, d), d)
		}
	}
	from, want := header.Get(streams.HeaderAheadFrom), ""
	if ahead > 0 {
		want = strconv.Itoa(ahead)
	}
	if got := header.Get(streams.HeaderAhead); got != want || (from == "") != (want == "") {
		o.fail("message %d has %q rows ahead from %q, want %q", at, got, from, want)
	}
	if n, err := strconv.ParseUint(from, 10, 64); ahead > 0 && (err != nil || n == 0 || n > first) {
		o.fail("message %d says that rows ahead begin at %s, the first is at %d", at, from, first)
	}
}

// end checks that all is done, and that the last message says so.
func (o *logOrder) end() {
	if o.low != len(o.rows) {
		o.fail("%d rows have a result, want %d; the first one without is %d", len(o.done), len(o.rows), o.rows[o.low])
	}
	if o.said != o.mark() {
		o.fail("the last low-water mark is %d, want %d", o.said, o.mark())
	}
}
