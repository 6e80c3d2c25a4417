package rowfile

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"unicode/utf8"
)

// settingBytesMax is the length of the longest first line that is a setting: "sep=;" in
// quotes, and its end.
const settingBytesMax = len("\"sep=;\"\r\n")

// csvSetting returns the delimiter that the first line of a CSV file sets, as Excel reads
// and writes it: sep=; says that semicolons separate the columns. Quotes around it are
// allowed. size is the length of the line with its end, or 0 if it is no setting. more
// says that text is the beginning of a setting, and its rest is needed.
func csvSetting(text []byte) (delimiter byte, size int, more bool) {
	rest, quote := text, ""
	if bytes.HasPrefix(rest, []byte(`"`)) {
		rest, quote = rest[1:], `"`
	}
	const word = "sep="
	if n := min(len(rest), len(word)); !strings.EqualFold(string(rest[:n]), word[:n]) {
		return 0, 0, false
	}
	if len(rest) <= len(word) {
		return 0, 0, true
	}
	delimiter, rest = rest[len(word)], rest[len(word)+1:]
	if !separates(delimiter) {
		return 0, 0, false
	}
	for _, end := range []string{quote + "\n", quote + "\r\n"} {
		if bytes.HasPrefix(rest, []byte(end)) {
			return delimiter, len(text) - len(rest) + len(end), false
		}
		more = more || strings.HasPrefix(end, string(rest))
	}
	return 0, 0, more
}

// separates reports whether a byte can stand between the columns of CSV.
func separates(b byte) bool { return b < utf8.RuneSelf && b != '"' && b != '\r' && b != '\n' && b != 0 }

// skipSetting takes the delimiter from a first line that is a setting, and skips that
// line. It waits for no more of the text than it needs.
func (r *Reader) skipSetting() error {
	for n := 1; n <= settingBytesMax; n++ {
		text, err := r.in.Peek(n)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		delimiter, size, more := csvSetting(text)
		if size > 0 {
			r.layout.Delimiter = delimiter
			r.line++
			_, _ = r.in.Discard(size) // it is buffered
		}
		if !more || len(text) < n { // the file has less than n bytes
			break
		}
	}
	return nil
}
