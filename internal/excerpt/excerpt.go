// Package excerpt shortens foreign text, so that errors and logs can quote it.
package excerpt

import (
	"strings"
	"unicode/utf8"
)

// BytesMax bounds what [Of] returns.
const BytesMax = 500

// Of returns the start of b as valid UTF-8, at most [BytesMax] bytes long and never cut
// inside a character.
func Of[T ~string | ~[]byte](b T) string {
	end := min(len(b), BytesMax)
	if end < len(b) {
		for end > 0 && !utf8.RuneStart(b[end]) {
			end--
		}
	}
	// A bad byte is dropped, not replaced: a replacement is longer than what it replaces.
	return strings.ToValidUTF8(string(b[:end]), "")
}

// Clip returns s, or at most its first bytesMax bytes and an ellipsis.
func Clip(s string, bytesMax int) string {
	if len(s) <= bytesMax {
		return s
	}
	return Of(s[:bytesMax]) + "…"
}
