// Package rowkey finds the key of a row, by which results are in order where STAGE_ORDER
// is key.
//
//	place, err := rowkey.Parse("field.customer")
//	key := place.Of(subject, header, body)
package rowkey

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm"
	"github.com/nats-io/nats.go"
)

// Place is where the key of a row is, as STAGE_ORDER_KEY says. The zero value is the
// whole subject. Its methods are safe for concurrent use but for EnvDecode.
type Place struct {
	kind  kind
	token int    // of subject.N
	name  string // of header.NAME and field.NAME
}

type kind uint8

const (
	ofSubject kind = iota
	ofToken
	ofHeader
	ofField
)

const (
	wholeSubject  = "subject"
	tokenPrefix   = "subject."
	headerPrefix  = "header."
	fieldPrefix   = "field."
	nameBytesMax  = 256
	headerExample = headerPrefix + "Customer"
	fieldExample  = fieldPrefix + "customer"
)

// Parse reads a place: subject, subject.N, header.NAME or field.NAME.
func Parse(text string) (Place, error) {
	if text == wholeSubject {
		return Place{}, nil
	}
	if number, ok := strings.CutPrefix(text, tokenPrefix); ok {
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 || strconv.Itoa(n) != number {
			return Place{}, fmt.Errorf("%q: tokens of the subject are counted from 1, such as subject.2", text)
		}
		return Place{kind: ofToken, token: n}, nil
	}
	if name, ok := strings.CutPrefix(text, headerPrefix); ok {
		if strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == ':' || r >= 0x7f }) {
			return Place{}, fmt.Errorf("%q: no header has such a name: give one without spaces and colons, such as %s", text, headerExample)
		}
		return Place{kind: ofHeader, name: name}, checkName(text, name, "header", headerExample)
	}
	if name, ok := strings.CutPrefix(text, fieldPrefix); ok {
		if !utf8.ValidString(name) {
			return Place{}, fmt.Errorf("%q: no member has such a name: it is not UTF-8", text)
		}
		return Place{kind: ofField, name: name}, checkName(text, name, "member of the row", fieldExample)
	}
	return Place{}, fmt.Errorf("%q is no place of a key: give subject, subject.N (its token N, from 1), header.NAME or field.NAME", text)
}

func checkName(text, name, what, example string) error {
	switch {
	case name == "":
		return fmt.Errorf("%q: the name of the %s is missing: write it as %s", text, what, example)
	case len(name) > nameBytesMax:
		return fmt.Errorf("%q: the name has %d bytes: give one of at most %d", text[:32]+"…", len(name), nameBytesMax)
	}
	return nil
}

// EnvDecode reads what [Parse] reads.
func (p *Place) EnvDecode(text string) error {
	place, err := Parse(text)
	if err == nil {
		*p = place
	}
	return err
}

// String returns what [Parse] reads as the same place.
func (p Place) String() string {
	switch p.kind {
	case ofToken:
		return tokenPrefix + strconv.Itoa(p.token)
	case ofHeader:
		return headerPrefix + p.name
	case ofField:
		return fieldPrefix + p.name
	case ofSubject:
	}
	return wholeSubject
}

// OutsideOf reports whether the place is a token that no subject of this filter has: then
// all keys are empty.
func (p Place) OutsideOf(filter string) bool {
	return p.kind == ofToken && filter != ">" && !strings.HasSuffix(filter, ".>") && p.token > 1+strings.Count(filter, ".")
}

// Field returns the name of the row's member that is the key; ok is false where it is no
// member.
func (p Place) Field() (name string, ok bool) { return p.name, p.kind == ofField }

// Of returns the key of a row as [streams.KeyHeader] writes it. It is empty where the row
// has none, and for an invalid row, wherever the key is: one that is no JSON object, or
// stands for one that its file did not hold correctly.
//
// The key of field.NAME is the JSON text of the member as the row has it, of several with
// that name the last one: "1" is not 1, and 1.0 is neither.
func (p Place) Of(subject string, header nats.Header, body []byte) string {
	if substitute(header, body) {
		return ""
	}
	space, _ := scratch.Get().(*[]jsonbytes.Member)
	members, err := jsonbytes.ReadObject((*space)[:0], body)
	if cap(members) > 0 && cap(members) <= maxPooledMembers {
		*space = members
	}
	defer scratch.Put(space)
	if err != nil {
		return ""
	}
	switch p.kind {
	case ofToken:
		return streams.KeyHeader(token(subject, p.token))
	case ofHeader:
		if values := streams.CarriedValues(header, p.name); len(values) > 0 {
			return streams.KeyHeader(values[0])
		}
		return ""
	case ofField:
		return streams.KeyHeader(p.member(members, body))
	case ofSubject:
	}
	return streams.KeyHeader(subject)
}

// token returns a token of a subject, counted from 1; empty means that it has fewer.
func token(subject string, n int) string {
	for ; n > 1; n-- {
		var more bool
		if _, subject, more = strings.Cut(subject, "."); !more {
			return ""
		}
	}
	first, _, _ := strings.Cut(subject, ".")
	return first
}

// scratch holds slices for the members of a row, of at most maxPooledMembers, so that no
// huge row's is held for ever.
var scratch = sync.Pool{New: func() any {
	space := make([]jsonbytes.Member, 0, 32)
	return &space
}}

const maxPooledMembers = 1024

func (p Place) member(members []jsonbytes.Member, body []byte) string {
	for i := len(members) - 1; i >= 0; i-- {
		if m := &members[i]; p.named(body[m.Start:m.KeyEnd]) {
			return string(body[m.Value:m.End])
		}
	}
	return ""
}

// named reports whether a member's key, in its quotes, is the name.
func (p Place) named(quoted []byte) bool {
	if bytes.IndexByte(quoted, '\\') >= 0 {
		return jsonbytes.Text(quoted) == p.name
	}
	return string(quoted[1:len(quoted)-1]) == p.name
}

// substitute reports whether a row was published in the place of one that is too large
// for a message, or that its file does not hold correctly. What is left of such a row may
// look like an object.
func substitute(header nats.Header, body []byte) bool {
	if len(header) == 0 {
		return false
	}
	if llm.Reason(header.Get(streams.HeaderRowError)) == llm.ReasonRowTooLarge {
		return true
	}
	problem := header.Get(streams.HeaderRowProblem)
	return problem != "" && bytes.HasPrefix(body, []byte(problem+": "))
}
