package auditlog

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

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
	members []member
	byName  map[string]*member
}

// member is one tagged field.
type member struct {
	name    string
	opening string // the name as it is written, with the comma before it: `,"owner":`
	path    []int  // the indexes of the fields that lead to it: one, or more where it is inline
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
	l := &layout{byName: make(map[string]*member)}
	l.add(t, nil)
	for i := range l.members {
		l.byName[l.members[i].name] = &l.members[i]
	}
	return l
}

// add adds the fields of t, which path leads to.
func (l *layout) add(t reflect.Type, path []int) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, option, _ := strings.Cut(f.Tag.Get("event"), ",")
		here := append(slices.Clip(path), i)
		switch {
		case f.Anonymous:
			l.add(f.Type, here)
		case option == "inline":
			l.add(f.Type.Elem(), here)
		case name == "" || !slices.Contains([]zeroRule{zeroWritten, zeroNull, zeroOmitted}, zeroRule(option)):
			panic(fmt.Sprintf("auditlog: %v.%s: tag %q", t, f.Name, f.Tag))
		default:
			opening := `,"` + name + `":`
			l.members = append(l.members, member{name, opening, here, zeroRule(option), formOf(f.Type)})
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

// appendEvent appends an event of this layout, a pointer to a struct, with the two
// members that every event begins with.
func (l *layout) appendEvent(dst []byte, kind Kind, event any) []byte {
	dst = append(dst, `{"schema_version":`...)
	dst = strconv.AppendInt(dst, SchemaVersion, 10)
	dst = append(append(append(dst, `,"event":"`...), kind...), '"')
	return append(l.appendMembers(dst, reflect.ValueOf(event).Elem()), '}')
}

// appendMembers appends the members of v, each with a comma before it.
func (l *layout) appendMembers(dst []byte, v reflect.Value) []byte {
	for i := range l.members {
		m := &l.members[i]
		f := m.field(v)
		null := !f.IsValid()
		if m.zero != zeroWritten && (null || isZero(f)) {
			if m.zero == zeroOmitted {
				continue
			}
			null = true
		}
		dst = append(dst, m.opening...)
		if null {
			dst = append(dst, "null"...)
		} else {
			dst = m.append(dst, f)
		}
	}
	return dst
}

// appendObject appends v as an object. At least one of its members is always written, and
// the comma before the first one gives its place to the brace.
func (l *layout) appendObject(dst []byte, v reflect.Value) []byte {
	start := len(dst)
	dst = l.appendMembers(dst, v)
	dst[start] = '{'
	return append(dst, '}')
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
