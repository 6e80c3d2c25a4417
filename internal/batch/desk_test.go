package batch

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// TestTheEndOfARemovalLeavesTheNextBatchAlone: a client may submit a batch again under the id of one that another replica
// has removed, before this one is done with its own removal.
func TestTheEndOfARemovalLeavesTheNextBatchAlone(t *testing.T) {
	d := &desk{table: newTable()}
	const removedSeq, nextSeq = 3, 9
	note := func(seq uint64) {
		d.table.note("id", partRequest, &jetstream.RawStreamMsg{Sequence: seq, Header: nats.Header{}}, time.Now())
	}
	note(removedSeq)
	note(nextSeq)
	d.removed(removed{"id", removedSeq, nil})
	if _, known, _ := d.table.look("id"); !known {
		t.Error("the next batch was forgotten, too")
	}
	d.removed(removed{"id", nextSeq, nil})
	if _, known, _ := d.table.look("id"); known {
		t.Error("a batch that was removed is still known")
	}
}
