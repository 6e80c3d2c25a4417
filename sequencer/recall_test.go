package sequencer_test

import (
	"testing"

	"github.com/llm-stage/stage/sequencer"
)

// Rows that are on their way back have their place in the buffer, whatever comes meanwhile.
func TestRecalledRowsHaveTheirRoom(t *testing.T) {
	b, err := sequencer.NewKeyed[int](sequencer.Limits{Rows: 8, Bytes: 1000}, 64, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	for seq := uint64(1); seq <= 5; seq++ { // the first waits, and the others for it
		if _, err := b.Open(seq, "a", 1); err != nil {
			t.Fatal(err)
		}
		if seq > 1 {
			if _, err := b.Complete(seq, 0, 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	for seq := uint64(6); seq <= 30; seq++ {
		if !b.Outside("a") {
			t.Fatalf("row %d is not to be set aside", seq)
		}
		if err := b.SetAside(seq, "a", ""); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Complete(1, 0, 1); err != nil {
		t.Fatal(err)
	}
	b.Release(5)
	var recalled []uint64
	for seq, ok := b.Recall(); ok; seq, ok = b.Recall() {
		recalled = append(recalled, seq)
	}
	if len(recalled) > 8 || len(recalled) == 0 {
		t.Fatalf("%d rows are recalled into a buffer of 8", len(recalled))
	}
	for seq := uint64(31); b.Room() > 0; seq++ {
		if _, err := b.Open(seq, "b", 1); err != nil {
			t.Fatal(err)
		}
	}
	for _, seq := range recalled {
		if _, _, _, err := b.Reopen(seq, 1); err != nil {
			t.Fatal(err)
		}
	}
	if b.Len() > 8 {
		t.Errorf("%d rows in a buffer of 8", b.Len())
	}
}
