package rowfile

import (
	"bytes"
	"errors"
	"io"
)

// arrayPlace is where in a JSON array the next byte is.
type arrayPlace uint8

const (
	arrayBefore arrayPlace = iota
	arrayOpened            // a row or the end comes
	arrayRow               // after a row
	arrayComma             // after a comma: a row comes
	arrayAfter             // after the end
)

// nextElement returns the next row of a JSON array. It only looks for the end of the
// element. The stage finds out whether that is a JSON object.
func (r *Reader) nextElement() (Row, error) {
	for {
		b, err := r.nextText()
		if errors.Is(err, io.EOF) && r.place != arrayAfter {
			return Row{}, &Error{Line: r.line, Problem: "the array has no end: the file was cut off, or a ] is missing"}
		}
		if err != nil {
			return Row{}, err
		}
		switch {
		case r.place == arrayAfter:
			return Row{}, &Error{Line: r.line, Problem: "text after the end of the array: give --format jsonl if each line is a row"}
		case r.place == arrayBefore: // it is "[", or the file would not be read as an array
			r.place = arrayOpened
		case b == ']' && r.place != arrayComma:
			r.place = arrayAfter
		case b == ',' && r.place == arrayRow:
			r.place = arrayComma
		case b == ']' || b == ',':
			return Row{}, &Error{Line: r.line, Problem: "a comma too many in the array"}
		default:
			r.place = arrayRow
			return r.element()
		}
		r.skip(1)
	}
}

// nextText returns the next byte that is not white space, without taking it.
func (r *Reader) nextText() (byte, error) {
	for {
		text, err := r.buffered()
		if err != nil {
			return 0, err
		}
		rest := bytes.TrimLeft(text, " \t\r\n")
		r.skip(len(text) - len(rest))
		if len(rest) > 0 {
			return rest[0], nil
		}
	}
}

// buffered returns the bytes that are there, at least one, without taking them.
func (r *Reader) buffered() ([]byte, error) {
	text, err := r.in.Peek(max(1, r.in.Buffered()))
	if len(text) > 0 {
		return text, nil
	}
	return nil, err
}

// skip takes bytes that are buffered, and counts their lines.
func (r *Reader) skip(n int) {
	text, _ := r.in.Peek(n)
	r.line += int64(bytes.Count(text, []byte("\n")))
	_, _ = r.in.Discard(n)
}

// element reads an element of the array to its end, and keeps as much of it as the bound
// admits.
func (r *Reader) element() (Row, error) {
	start := r.line
	var end elementEnd
	var size, text int64 // bytes so far, and up to the last that is not white space
	r.raw = r.raw[:0]
	for !end.found {
		piece, err := r.buffered()
		if errors.Is(err, io.EOF) {
			return Row{}, &Error{Line: start, Problem: "the row that begins here has no end"}
		}
		if err != nil {
			return Row{}, err
		}
		piece = piece[:end.find(piece)]
		if n := len(bytes.TrimRight(piece, " \t\r\n")); n > 0 {
			text = size + int64(n)
		}
		size += int64(len(piece))
		r.raw = append(r.raw, piece[:min(r.bytesMax-len(r.raw), len(piece))]...)
		r.skip(len(piece))
	}
	if text > int64(r.bytesMax) {
		return r.tooLarge(start, text, r.raw), nil
	}
	return Row{Line: start, Body: bytes.Clone(r.raw[:text])}, nil
}

// elementEnd looks for the end of an element: a comma or the closing bracket of the array.
type elementEnd struct {
	depth   int
	quoted  bool
	escaped bool // the last byte was a backslash in a string
	found   bool
}

// find returns the length of the element in piece, all of it unless the end is found.
func (e *elementEnd) find(piece []byte) int {
	for i, b := range piece {
		switch {
		case e.escaped:
			e.escaped = false
		case e.quoted:
			e.escaped = b == '\\'
			e.quoted = b != '"'
		case b == '"':
			e.quoted = true
		case b == '{' || b == '[':
			e.depth++
		case e.depth == 0 && (b == ',' || b == ']'):
			e.found = true
			return i
		case (b == '}' || b == ']') && e.depth > 0:
			e.depth--
		}
	}
	return len(piece)
}
