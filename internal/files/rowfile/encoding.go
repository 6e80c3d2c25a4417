package rowfile

import (
	"bytes"
	"unicode/utf8"
)

// encodingSample is how much of a text is looked at for its encoding.
const encodingSample = 4 << 10

// foreignEncoding returns the problem of a text that is in UTF-16 or UTF-32, with or
// without a byte order mark; "" if it is not. start is what it begins with, three bytes
// unless it is shorter. Such a text would be read as UTF-8 with names such as "\0i\0d",
// and paid for.
//
// The verdict depends on the bytes of the text alone, never on how many of them a pipe has
// brought so far: either text that certainly comes before the first row is taken, or the
// whole sample. The price: UTF-16BE without a mark whose first character ends in the byte
// of a line feed, such as 上 (4E 0A), passes as a first line of one letter.
func (r *Reader) foreignEncoding(start []byte) string {
	marked := bytes.HasPrefix(start, []byte("\xff\xfe")) || bytes.HasPrefix(start, []byte("\xfe\xff"))
	// An emoji such as A9 F4 01 00, in UTF-32LE, has its NUL only after these three bytes.
	wide := len(start) == 3 && start[2] <= 3
	if !marked && !wide && bytes.IndexByte(start, 0) < 0 && r.firstLineIsUTF8() {
		return ""
	}
	text, _ := r.in.Peek(encodingSample)
	name, iconv := encodingOf(text)
	if name == "" {
		return ""
	}
	return "the input is " + name + ": convert it to UTF-8, as iconv -f " + iconv + " -t UTF-8 does"
}

// firstLineIsUTF8 reports whether the first line with more than white space is UTF-8
// without a NUL, or begins as JSON does: its rows are taken as a pipe brings them, so
// nothing behind the bracket is waited for.
func (r *Reader) firstLineIsUTF8() bool {
	for {
		text, _ := r.in.Peek(min(r.in.Buffered(), encodingSample))
		line := bytes.TrimLeft(bytes.TrimPrefix(text, []byte("\xef\xbb\xbf")), whiteSpace)
		if len(line) > 0 && (line[0] == '{' || line[0] == '[') {
			return true
		}
		line, _, ended := bytes.Cut(line, []byte("\n"))
		if !ended && len(text) < encodingSample {
			if _, err := r.in.Peek(len(text) + 1); err == nil {
				continue
			}
		}
		valid := utf8.Valid(line) || !ended && validStart(line)
		return valid && bytes.IndexByte(line, 0) < 0
	}
}

// encodingOf returns the name of the encoding that a text begins in, and what iconv calls
// it; "" if it may be UTF-8. With a mark iconv finds out the order of the bytes, and
// removes the mark.
func encodingOf(text []byte) (name, iconv string) {
	for _, m := range []struct{ mark, name, iconv string }{
		{"\xff\xfe\x00\x00", "UTF-32LE", "UTF-32"}, // before UTF-16LE, a prefix of it
		{"\x00\x00\xfe\xff", "UTF-32BE", "UTF-32"},
		{"\xff\xfe", "UTF-16LE", "UTF-16"},
		{"\xfe\xff", "UTF-16BE", "UTF-16"},
	} {
		if bytes.HasPrefix(text, []byte(m.mark)) {
			return m.name + " with a byte order mark", m.iconv
		}
	}
	if bytes.IndexByte(text, 0) < 0 {
		return "", ""
	}
	for _, e := range []struct {
		name  string
		looks bool
	}{
		{"UTF-32LE", looksUTF32(text, 3, 2)},
		{"UTF-32BE", looksUTF32(text, 0, 1)},
		{"UTF-16LE", looksUTF16(text, 0, 1)},
		{"UTF-16BE", looksUTF16(text, 1, 0)},
	} {
		if e.looks {
			return e.name, e.name
		}
	}
	return "", ""
}

// looksUTF32 reports whether a text looks like UTF-32 with the highest byte of each
// character at one index of four, and the next one at another: the highest is zero, and
// so is the next, or at most 3 as in an emoji. Zeros alone, as a crash may leave them,
// are no text.
func looksUTF32(text []byte, highest, next int) bool {
	for i := 0; i+4 <= len(text); i += 4 {
		if text[i+highest] != 0 || text[i+next] > 3 || bytes.Count(text[i:i+4], []byte{0}) == 4 {
			return false
		}
	}
	return len(text) >= 4
}

// looksUTF16 reports whether a text with a NUL looks like UTF-16 with the low byte of
// each character at one index of two, and the high byte at the other. A NUL alone says
// little, since tables exported from a database have single ones:
//
//   - In UTF-16, the end of a line is a character of its own, 0A 00. If the sample has no
//     such end, the first character must be one of ASCII, such as a bracket or the first
//     letter of a name. Then a byte of a line feed is half of a character, such as 上, in a
//     sample that is not valid in UTF-8, and else the end of a line in UTF-8.
//   - In UTF-16, two letters or digits of ASCII side by side would be one Chinese character.
//     A text of such characters is hardly ever valid in UTF-8. So a valid text with such a
//     pair is UTF-8.
func looksUTF16(text []byte, low, high int) bool {
	lineEnds := 0
	valid := validStart(text)
	for i := 0; i+2 <= len(text); i += 2 {
		switch l, h := text[i+low], text[i+high]; {
		case l == '\n' && h == 0:
			lineEnds++
		case valid && isAlphanumeric(l) && isAlphanumeric(h):
			return false
		}
	}
	if lineEnds > 0 {
		return true
	}
	ascii := len(text) >= 2 && text[high] == 0 && text[low] > 0 && text[low] < utf8.RuneSelf
	return ascii && (!valid || bytes.IndexByte(text, '\n') < 0)
}

// validStart reports whether a text is valid UTF-8, but for a last character that may be
// cut.
func validStart(text []byte) bool {
	for cut := range min(utf8.UTFMax, len(text)) {
		if utf8.Valid(text[:len(text)-cut]) {
			return true
		}
	}
	return false
}

// isAlphanumeric reports whether a byte is a letter or digit of ASCII.
func isAlphanumeric(b byte) bool {
	return b >= '0' && b <= '9' || b|0x20 >= 'a' && b|0x20 <= 'z'
}
