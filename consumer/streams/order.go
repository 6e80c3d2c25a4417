package streams

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Order is the order in which the results of a partition are stored.
type Order string

const (
	// OrderStream is that of the rows in the input stream. The empty order means the same.
	OrderStream Order = "stream"
	// OrderKey is that of the rows among those of the same key. Keys don't wait for each other.
	OrderKey Order = "key"
	// OrderNone is that in which the rows are done.
	OrderNone Order = "none"
)

// keyBytesMax is the longest key that a header holds as it is.
const keyBytesMax = 256

// KeyHeader returns a key as [HeaderKey] has it: the key itself or, where it is longer than 256 bytes or a header would
// not hold it unchanged (control characters, spaces around it), its SHA-256 in hex.
func KeyHeader(key string) string {
	plain := len(key) <= keyBytesMax && strings.TrimSpace(key) == key &&
		strings.IndexFunc(key, func(r rune) bool { return r < ' ' || r == 0x7f }) < 0
	if plain {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}
