package erase

import (
	"cmp"
	"slices"

	"github.com/llm-stage/stage/consumer/objects"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/nats-io/nats.go"
)

// erasure is one row that is erased. It may have been erased before: then what is left of
// it is found again.
type erasure struct {
	partition int
	row       uint64
	at        uint64      // place of its result, or 0 if that is gone already
	header    nats.Header // of the result
	tombstone *proof.Tombstone
	found     []found
	batches   []Batch
}

// found is one message, or one object, that is removed.
type found struct {
	place  Place
	stream string
	seq    uint64
	object string // name in the bucket, for PlaceObject
	bucket string
	copied bool // of an event: what stays of it is stored already
	shared bool // of a call event: it served rows that stay
}

// add notes something of the row that goes.
func (e *erasure) add(f found) { e.found = append(e.found, f) }

// addObject notes an object, once.
func (e *erasure) addObject(bucket, name string) {
	if !slices.ContainsFunc(e.found, func(f found) bool { return f.object == name && f.bucket == bucket }) {
		e.add(found{place: PlaceObject, stream: streams.BucketStream(bucket), bucket: bucket, object: name})
	}
}

// addBody notes the object that is the body of a message, if it has one.
func (e *erasure) addBody(h nats.Header) {
	if ref, is := objects.RefOf(h); is {
		e.addObject(ref.Bucket, ref.Name)
	}
}

// addBatch notes a batch that the row was in, once. One without an id was never submitted.
func (e *erasure) addBatch(b Batch) {
	if b.ID != "" && !slices.Contains(e.batches, b) {
		e.batches = append(e.batches, b)
	}
}

// begun reports whether an erasure has stored the tombstone of the present result, and the
// result is still there.
func (e *erasure) begun() bool { return e.tombstone != nil && e.tombstone.Sequence == e.at }

// chosenRows are the rows of an erasure. While rows are chosen they are in no order. After
// sort they are found by sequence.
type chosenRows struct {
	list  []*erasure
	byRow map[uint64]*erasure // all that were ever in list
}

// take returns the erasure of a row, and makes it where there is none yet.
func (c *chosenRows) take(partition int, row uint64) *erasure {
	e := c.byRow[row]
	if e == nil {
		e = &erasure{partition: partition, row: row}
		c.byRow[row] = e
		c.list = append(c.list, e)
	}
	return e
}

// sort puts the rows in order.
func (c *chosenRows) sort() {
	slices.SortFunc(c.list, func(a, b *erasure) int { return cmp.Compare(a.row, b.row) })
}

// drop leaves out the rows that can't be erased yet.
func (c *chosenRows) drop(pending []Pending) {
	waits := make(map[uint64]bool, len(pending))
	for _, w := range pending {
		waits[w.Row] = true
	}
	c.list = slices.DeleteFunc(c.list, func(e *erasure) bool { return waits[e.row] })
}

// between reports whether a row is between two sequences, both included.
func (c *chosenRows) between(from, to uint64) bool {
	i, _ := slices.BinarySearchFunc(c.list, from, func(e *erasure, seq uint64) int { return cmp.Compare(e.row, seq) })
	return i < len(c.list) && c.list[i].row <= to
}

// at returns the erasure of a row, or nil.
func (c *chosenRows) at(row uint64) *erasure {
	if !c.between(row, row) {
		return nil
	}
	return c.byRow[row]
}
