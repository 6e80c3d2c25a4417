package executor

import (
	"crypto/sha256"
	"encoding/hex"
)

// callsHash is the hash of the calls for a row or an element, as [auditlog.Row.CallsHash]
// has it: it takes the same room however many calls there are. The zero value is the hash
// of no call.
type callsHash [sha256.Size]byte

// add adds a call by the hash of its event.
func (h *callsHash) add(event [sha256.Size]byte) {
	*h = sha256.Sum256(append(h[:], event[:]...))
}

// addText adds the calls for an element, by the text that its event has. It reports false
// for a text that is no hash.
func (h *callsHash) addText(text string) bool {
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != len(h) {
		return false
	}
	h.add([sha256.Size]byte(b))
	return true
}

// String returns the hash in hexadecimal, or "" if there was no call.
func (h *callsHash) String() string {
	if *h == (callsHash{}) {
		return ""
	}
	return hex.EncodeToString(h[:])
}
