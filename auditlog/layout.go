package auditlog

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

// layout describes how the values of one struct type are written in JSON. Writing and
// reading both follow it, so a field of an event is declared once, by its tag:
//
//	Owner  string `event:"owner,null"` // "owner":"reviews-0-7", and "owner":null where it is empty
//	Lane   string `event:"lane,omit"`  // "lane":"batch", and nothing where it is empty
//	Status string `event:"status"`     // "status":"success", and "status":"" where it is empty
//	Usage  *Usage `event:",inline"`    // the members of the usage stand among the members of this struct
//
// Members come in the order of the fields. The members of an embedded struct take its
// place. If the pointer of an inline field is nil, its members are null.
//
// The package encoding/json can't write the events: it removes the white space of a body,
// which would no longer match its hash, and it cannot write an empty string as null.
type layout struct {
	of       reflect.Type
	members  []member
	byName   map[string]*member
	encoders sync.Pool // of *encoder
}

// member is one tagged field.
type member struct {
	name    string
	opening string // the name as it is written, with the comma before it: `,"owner":`
	path    []int  // the indexes of the fields that lead to it: one, or more where it is inline
	inline  bool   // a pointer is on the way
	zero    zeroRule
	form
}

// zeroRule says how the zero value of a field is written.
type zeroRule string

// The values of zeroRule, which are the options of a tag.
const (
	zeroWritten zeroRule = ""     // like any other value
	zeroNull    zeroRule = "null" // null
	zeroOmitted zeroRule = "omit" // nothing: the member is left out
)

var (
	callLayout  = layoutOf(reflect.TypeFor[Call]())
	rowLayout   = layoutOf(reflect.TypeFor[Row]())
	runLayout   = layoutOf(reflect.TypeFor[Run]())
	batchLayout = layoutOf(reflect.TypeFor[Batch]())
)

// layoutOf returns the layout of a struct type. It panics if a field has no tag, or a
// type that has no form.
func layoutOf(t reflect.Type) *layout {
	l := &layout{of: t, byName: make(map[string]*member)}
	l.encoders.New = func() any { return l.newEncoder() }
	l.add(t, nil, false)
	for i := range l.members {
		l.byName[l.members[i].name] = &l.members[i]
	}
	return l
}

// add adds the fields of t, which path leads to.
func (l *layout) add(t reflect.Type, path []int, inline bool) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, option, _ := strings.Cut(f.Tag.Get("event"), ",")
		here := append(slices.Clip(path), i)
		switch {
		case f.Anonymous:
			l.add(f.Type, here, inline)
		case option == "inline":
			l.add(f.Type.Elem(), here, true)
		case name == "" || !slices.Contains([]zeroRule{zeroWritten, zeroNull, zeroOmitted}, zeroRule(option)):
			panic(fmt.Sprintf("auditlog: %v.%s: tag %q", t, f.Name, f.Tag))
		default:
			opening := `,"` + name + `":`
			l.members = append(l.members, member{name, opening, here, inline, zeroRule(option), formOf(f.Type)})
		}
	}
}

// field returns the field of v, a struct. It is not valid where the pointer on the way to
// an inline member is nil.
func (m *member) field(v reflect.Value) reflect.Value {
	v = v.Field(m.path[0])
	for _, i := range m.path[1:] {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				return reflect.Value{}
			}
			v = v.Elem()
		}
		v = v.Field(i)
	}
	return v
}

// settable returns the field of v, and allocates what an inline pointer on the way points
// to.
func (m *member) settable(v reflect.Value) reflect.Value {
	v = v.Field(m.path[0])
	for _, i := range m.path[1:] {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
		v = v.Field(i)
	}
	return v
}

// encoder writes events of one layout. It has a struct of its own, with a writer for each
// member of that struct, and an event is copied there to be written. So the fields are
// looked up by reflection when the encoder is made, and not for each event, which would
// take as long as all the rest.
type encoder struct {
	event   reflect.Value
	members []memberWriter
}

func (l *layout) newEncoder() *encoder {
	event := reflect.New(l.of).Elem()
	return &encoder{event, l.writers(event)}
}

// memberWriter writes a member of one struct.
type memberWriter struct {
	opening string
	zero    zeroRule
	isZero  func() bool // nil with zeroWritten
	write   writer
}

// writers returns the writers of the members of v.
func (l *layout) writers(v reflect.Value) []memberWriter {
	writers := make([]memberWriter, 0, len(l.members))
	for i := range l.members {
		m := &l.members[i]
		w := memberWriter{opening: m.opening, zero: m.zero}
		if m.inline {
			w.isZero, w.write = m.lookedUp(v)
		} else {
			w.isZero, w.write = zeroTest(m.field(v)), m.writer(m.field(v))
		}
		if m.zero == zeroWritten {
			w.isZero = nil
		}
		writers = append(writers, w)
	}
	return writers
}

// lookedUp is the writer of a field that is looked up each time, since it is behind a
// pointer.
func (m *member) lookedUp(v reflect.Value) (isZero func() bool, write writer) {
	isZero = func() bool {
		f := m.field(v)
		return !f.IsValid() || zeroTest(f)()
	}
	return isZero, func(dst []byte) []byte {
		f := m.field(v)
		if !f.IsValid() {
			return append(dst, "null"...)
		}
		return m.writer(f)(dst)
	}
}

// appendEvent appends an event of this layout, a pointer to a struct, with the two
// members that every event begins with.
func (l *layout) appendEvent(dst []byte, kind Kind, event any) []byte {
	e := l.encoders.Get().(*encoder)
	e.event.Set(reflect.ValueOf(event).Elem())
	dst = append(dst, `{"schema_version":`...)
	dst = strconv.AppendInt(dst, SchemaVersion, 10)
	dst = append(append(append(dst, `,"event":"`...), kind...), '"')
	dst = append(appendMembers(dst, e.members), '}')
	e.event.SetZero() // keeps no body from being freed
	l.encoders.Put(e)
	return dst
}

// appendMembers appends members, each with a comma before it.
func appendMembers(dst []byte, members []memberWriter) []byte {
	for i := range members {
		m := &members[i]
		null := m.isZero != nil && m.isZero()
		if null && m.zero == zeroOmitted {
			continue
		}
		dst = append(dst, m.opening...)
		if null {
			dst = append(dst, "null"...)
		} else {
			dst = m.write(dst)
		}
	}
	return dst
}

// objectWriter returns the writer of v as an object. At least one of its members is always
// written, and the comma before the first one gives its place to the brace.
func (l *layout) objectWriter(v reflect.Value) writer {
	members := l.writers(v)
	return func(dst []byte) []byte {
		start := len(dst)
		dst = appendMembers(dst, members)
		dst[start] = '{'
		return append(dst, '}')
	}
}

// read sets the fields of v from an object, which is valid JSON, and reports whether any
// member of it is known and not null. A null leaves its field as it is, and a member of
// another name is ignored.
func (l *layout) read(v reflect.Value, object []byte) (found bool, err error) {
	if object[0] != '{' {
		return false, fmt.Errorf("%.40s: want an object", object)
	}
	for name, value := range jsonbytes.Members(object) {
		m := l.byName[string(name)]
		if m == nil || isNull(value) && !m.required {
			continue
		}
		found = true
		if err := m.read(m.settable(v), value); err != nil {
			return false, fmt.Errorf("%s: %w", m.name, err)
		}
	}
	return found, nil
}

func isNull(value []byte) bool { return string(value) == "null" }
