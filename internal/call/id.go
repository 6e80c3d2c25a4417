package call

import (
	"crypto/rand"
	"encoding/base32"
	"encoding/binary"
	mathrand "math/rand/v2"
)

// NewID returns a random identifier of 26 letters and digits that cannot be guessed.
func NewID() string { return rand.Text() }

// callIDs is the encoding of [rand.Text].
var callIDs = base32.StdEncoding.WithPadding(base32.NoPadding)

// newCallID returns a unique identifier in the form of [NewID]. There are many calls and
// their identifiers are not secret, so the bits come from the runtime's generator, not
// from the system.
func newCallID() string {
	var bits [16]byte
	binary.LittleEndian.PutUint64(bits[:8], mathrand.Uint64())
	binary.LittleEndian.PutUint64(bits[8:], mathrand.Uint64())
	var text [26]byte
	callIDs.Encode(text[:], bits[:])
	return string(text[:])
}
