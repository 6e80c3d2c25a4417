package terminal

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	nonJoiner = '\u200c'
	joiner    = '\u200d'
)

// isHidden reports whether a character is not seen but changes what is: U+202E turns the
// text behind it round, U+200B makes two names look alike, U+2028 breaks a line, a tag
// hides a text in a text. Each is shown by its number instead.
//
// The two joiners are characters of words in Persian and Hindi and of emoji, which
// consist of characters outside ASCII. So a joiner behind one of these stays, and any
// other is hidden: in "pay\u200dpal" it shows. before is the character before c.
func isHidden(c, before rune) bool {
	switch {
	case c < utf8.RuneSelf:
		return false
	case c == nonJoiner || c == joiner:
		return before < utf8.RuneSelf
	case unicode.Is(unicode.Prepended_Concatenation_Mark, c): // signs of numbers in Arabic, which are seen
		return false
	}
	return unicode.In(c, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Other_Default_Ignorable_Code_Point)
}

// OneLine returns foreign text as one line that neither breaks a line, nor controls the
// terminal, nor hides or reorders anything: control characters are spaces, and hidden
// ones are shown as \u202e or \U000e0041.
func OneLine(text string) string {
	return strings.TrimRight(visible(text, "", ' '), " ")
}

// Lines is [OneLine] for text over several lines: line feeds and tabs stay, and another
// control character is shown as the replacement character.
func Lines(text string) string {
	return visible(text, "\n\t", unicode.ReplacementChar)
}

// visible returns text without control characters, but for those to keep, and with the
// hidden ones shown.
func visible(text, keep string, control rune) string {
	plain := true
	for i := 0; i < len(text) && plain; i++ {
		plain = text[i] >= ' ' && text[i] < 0x7f || strings.IndexByte(keep, text[i]) >= 0
	}
	if plain {
		return text
	}
	var b strings.Builder
	before := rune(0)
	for _, c := range text {
		switch {
		case unicode.IsControl(c) && !strings.ContainsRune(keep, c):
			b.WriteRune(control)
		case isHidden(c, before) && c < 0x10000:
			fmt.Fprintf(&b, `\u%04x`, c)
		case isHidden(c, before):
			fmt.Fprintf(&b, `\U%08x`, c)
		default:
			b.WriteRune(c)
		}
		before = c
	}
	return b.String()
}

// JSON returns the writer for JSON to a stream. On a terminal it writes the control
// characters and the hidden ones in strings as escapes, which mean the same; elsewhere it
// is w, so that a file or a program gets the bytes that are stored.
func JSON(w io.Writer) io.Writer {
	if !Is(w) {
		return w
	}
	return &jsonWriter{w: w}
}

// jsonWriter escapes characters in JSON that is written in pieces.
type jsonWriter struct {
	w      io.Writer
	cut    []byte // the beginning of a character whose rest is in the next piece
	before rune   // the last character
}

// Write implements [io.Writer].
func (j *jsonWriter) Write(piece []byte) (int, error) {
	text := append(j.cut, piece...)
	whole := len(text)
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if c := text[len(text)-n]; utf8.RuneStart(c) {
			if !utf8.FullRune(text[len(text)-n:]) {
				whole = len(text) - n
			}
			break
		}
	}
	escaped, last := escapeJSON(text[:whole], j.before)
	j.cut, j.before = bytes.Clone(text[whole:]), last
	if _, err := j.w.Write(escaped); err != nil {
		return 0, err
	}
	return len(piece), nil
}

// EscapeJSON returns JSON as [JSON] writes it on a terminal.
func EscapeJSON(text []byte) []byte {
	escaped, _ := escapeJSON(text, 0)
	return escaped
}

// escapeJSON returns JSON with the control characters and hidden ones in its strings as
// escapes, and the last character of it. Valid JSON has such characters in strings alone,
// and those of ASCII as escapes already, but for U+007F.
func escapeJSON(text []byte, before rune) (escaped []byte, last rune) {
	plain := true
	for i := 0; i < len(text) && plain; i++ {
		plain = text[i] < 0x7f
	}
	if plain {
		if len(text) > 0 {
			before = rune(text[len(text)-1])
		}
		return text, before
	}
	escaped = make([]byte, 0, len(text)+len(text)/8)
	for i := 0; i < len(text); {
		c, size := utf8.DecodeRune(text[i:])
		switch {
		case c < 0x7f || !unicode.IsControl(c) && !isHidden(c, before):
			escaped = append(escaped, text[i:i+size]...)
		case c < 0x10000:
			escaped = fmt.Appendf(escaped, `\u%04x`, c)
		default:
			high, low := utf16.EncodeRune(c)
			escaped = fmt.Appendf(escaped, `\u%04x\u%04x`, high, low)
		}
		before = c
		i += size
	}
	return escaped, before
}
