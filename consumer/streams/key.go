package streams

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode/utf8"
)

// Text returns a subject, or another text of strangers, as JSON holds it: each byte that
// is not UTF-8 is U+FFFD, and "rows.\xff" becomes "rows.\ufffd". NATS takes any bytes in
// a subject, but audit events and the answers of its API are JSON. Whatever is compared
// with a key, such as the key of another row, has to be spelled in the same way. Two keys
// that differ in such bytes alone are one: their rows only wait for each other.
func Text(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return string([]rune(s))
}

// keyBytesMax is the longest key that a header holds as it is.
const keyBytesMax = 256

// KeyHeader returns a key as [HeaderKey] has it: its [Text] or, where that is longer than
// 256 bytes or a header would not hold it unchanged (control characters, spaces around
// it), its SHA-256 in hex.
func KeyHeader(key string) string {
	key = Text(key)
	plain := len(key) <= keyBytesMax && strings.TrimSpace(key) == key &&
		strings.IndexFunc(key, func(r rune) bool { return r < ' ' || r == 0x7f }) < 0
	if plain {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}
