package executor

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"
)

// The calls for a row are those for its elements, in their order.
func TestCallsOfElementsAddUp(t *testing.T) {
	var none, one, both, swapped callsHash
	first, second := sha256.Sum256([]byte("first")), sha256.Sum256([]byte("second"))
	one.add(first)
	for _, h := range [][32]byte{first, second} {
		if !both.addText(hex.EncodeToString(h[:])) {
			t.Fatal("a hash is refused")
		}
	}
	swapped.add(second)
	swapped.add(first)
	byHand := sha256.Sum256(append(one[:], second[:]...))
	if got := both.String(); got != hex.EncodeToString(byHand[:]) || got == swapped.String() || none.String() != "" {
		t.Errorf("got %s, want %x; swapped %s, none %q", got, byHand, swapped.String(), none.String())
	}
	for _, text := range []string{"", "xyz", hex.EncodeToString(first[:31])} {
		if h := both; h.addText(text) || h != both {
			t.Errorf("%q is taken for a hash", text)
		}
	}
}
