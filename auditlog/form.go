package auditlog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

// form is how the values of one type stand in JSON.
type form struct {
	// writer returns the writer of an addressable value.
	writer func(v reflect.Value) writer
	// read sets v from valid JSON.
	read func(v reflect.Value, raw []byte) error
	// required is set where null is an error. Elsewhere null stands for the zero value,
	// and read is not called with it.
	required bool
}

// writer appends the value that a variable has at the time.
type writer func(dst []byte) []byte

// formOf returns the form of a type. It panics if there is none.
func formOf(t reflect.Type) form {
	switch t {
	case reflect.TypeFor[time.Time]():
		return formBy(appendInstant, readInstant)
	case reflect.TypeFor[time.Duration]():
		return formBy(appendMillis, readMillis)
	case reflect.TypeFor[Partition]():
		f := formBy(appendPartition, readPartition)
		f.required = true
		return f
	case reflect.TypeFor[[]byte]():
		return formBy(appendBody, readBody)
	case reflect.TypeFor[map[string]string]():
		return formBy(appendSettings, readSettings)
	}
	switch t.Kind() { //nolint:exhaustive // the kinds that events have
	case reflect.String:
		return form{writer: stringWriter, read: readString}
	case reflect.Int, reflect.Int64:
		return form{writer: intWriter, read: readInt}
	case reflect.Uint64:
		return form{writer: uintWriter, read: readUint}
	case reflect.Bool:
		return form{writer: boolWriter, read: readBool}
	case reflect.Float64:
		return form{writer: floatWriter, read: readFloat}
	case reflect.Pointer:
		if t.Elem().Kind() == reflect.Struct {
			return objectPointerForm(t.Elem())
		}
		return pointerForm(formOf(t.Elem()), t.Elem())
	case reflect.Slice:
		return sliceForm(formOf(t.Elem()), t.Elem())
	case reflect.Struct:
		return objectForm(t)
	default:
		panic(fmt.Sprintf("auditlog: %v has no form", t))
	}
}

// formBy is the form of T by functions that know its type.
func formBy[T any](write func(dst []byte, value T) []byte, read func(raw []byte) (T, error)) form {
	return form{
		writer: func(v reflect.Value) writer {
			value := v.Addr().Interface().(*T)
			return func(dst []byte) []byte { return write(dst, *value) }
		},
		read: func(v reflect.Value, raw []byte) (err error) {
			*v.Addr().Interface().(*T), err = read(raw)
			return err
		},
	}
}

// objectForm is the form of a struct.
func objectForm(t reflect.Type) form {
	l := layoutOf(t)
	return form{writer: l.objectWriter, read: func(v reflect.Value, raw []byte) error {
		_, err := l.read(v, raw)
		return err
	}}
}

// pointerForm writes nil as null.
func pointerForm(f form, elem reflect.Type) form {
	return form{
		writer: func(v reflect.Value) writer {
			target := reflect.New(elem).Elem()
			write := f.writer(target)
			return func(dst []byte) []byte {
				if v.IsNil() {
					return append(dst, "null"...)
				}
				target.Set(v.Elem())
				return write(dst)
			}
		},
		read: func(v reflect.Value, raw []byte) error {
			v.Set(reflect.New(elem))
			return f.read(v.Elem(), raw)
		},
	}
}

// objectPointerForm writes nil as null. It reads an object as nil if every member is null
// or unknown: a usage without a reported number is no usage.
func objectPointerForm(t reflect.Type) form {
	l := layoutOf(t)
	f := pointerForm(form{writer: l.objectWriter}, t)
	f.read = func(v reflect.Value, raw []byte) error {
		p := reflect.New(t)
		found, err := l.read(p.Elem(), raw)
		if found {
			v.Set(p)
		}
		return err
	}
	return f
}

// sliceForm writes nil like an empty slice, and reads an empty array as nil.
func sliceForm(f form, elem reflect.Type) form {
	return form{
		writer: func(v reflect.Value) writer {
			element := reflect.New(elem).Elem()
			write := f.writer(element)
			return func(dst []byte) []byte {
				dst = append(dst, '[')
				for i := range v.Len() {
					if i > 0 {
						dst = append(dst, ',')
					}
					element.Set(v.Index(i))
					dst = write(dst)
				}
				return append(dst, ']')
			}
		},
		read: func(v reflect.Value, raw []byte) error {
			if raw[0] != '[' {
				return fmt.Errorf("%.40s: want an array", raw)
			}
			for value := range jsonbytes.Elements(raw) {
				v.Set(reflect.Append(v, reflect.Zero(elem)))
				if isNull(value) {
					continue
				}
				if err := f.read(v.Index(v.Len()-1), value); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// zeroTest returns a function that reports whether v, which is addressable, has the value
// that its zero rule is about: of a slice, that it is empty.
func zeroTest(v reflect.Value) func() bool {
	switch {
	case v.Kind() == reflect.Slice:
		return func() bool { return v.Len() == 0 }
	case v.Kind() == reflect.String:
		text := textAt(v)
		return func() bool { return *text == "" }
	case v.Type() == reflect.TypeFor[time.Time]():
		instant := v.Addr().Interface().(*time.Time)
		return func() bool { return instant.IsZero() } // in any zone
	}
	return v.IsZero
}

// textAt returns the address of a string of any type.
func textAt(v reflect.Value) *string {
	return v.Addr().Convert(reflect.TypeFor[*string]()).Interface().(*string)
}

func stringWriter(v reflect.Value) writer {
	text := textAt(v)
	return func(dst []byte) []byte { return jsonbytes.AppendEscaped(dst, *text) }
}

func readString(v reflect.Value, raw []byte) error {
	if raw[0] != '"' {
		return fmt.Errorf("%.40s: want a string", raw)
	}
	v.SetString(jsonbytes.Text(raw))
	return nil
}

func intWriter(v reflect.Value) writer {
	return func(dst []byte) []byte { return strconv.AppendInt(dst, v.Int(), 10) }
}

func readInt(v reflect.Value, raw []byte) error {
	n, err := strconv.ParseInt(string(raw), 10, v.Type().Bits())
	if err != nil {
		return fmt.Errorf("%.40s: want a whole number of %d bits", raw, v.Type().Bits())
	}
	v.SetInt(n)
	return nil
}

func uintWriter(v reflect.Value) writer {
	return func(dst []byte) []byte { return strconv.AppendUint(dst, v.Uint(), 10) }
}

func readUint(v reflect.Value, raw []byte) error {
	n, err := strconv.ParseUint(string(raw), 10, 64)
	if err != nil {
		return fmt.Errorf("%.40s: want a whole number from 0, of 64 bits", raw)
	}
	v.SetUint(n)
	return nil
}

func boolWriter(v reflect.Value) writer {
	return func(dst []byte) []byte { return strconv.AppendBool(dst, v.Bool()) }
}

func readBool(v reflect.Value, raw []byte) error {
	if raw[0] != 't' && raw[0] != 'f' {
		return fmt.Errorf("%.40s: want true or false", raw)
	}
	v.SetBool(raw[0] == 't')
	return nil
}

func floatWriter(v reflect.Value) writer {
	return func(dst []byte) []byte { return appendFloat(dst, v.Float()) }
}

// appendFloat writes the fewest digits that give the number again, with an exponent where
// encoding/json writes one: 0.00042, 1e-7. What JSON has no number for is null.
func appendFloat(dst []byte, f float64) []byte {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return append(dst, "null"...)
	}
	abs := math.Abs(f)
	if abs == 0 || 1e-6 <= abs && abs < 1e21 {
		return strconv.AppendFloat(dst, f, 'f', -1, 64)
	}
	dst = strconv.AppendFloat(dst, f, 'e', -1, 64)
	if n := len(dst); dst[n-4] == 'e' && dst[n-2] == '0' { // e-09 becomes e-9
		dst[n-2] = dst[n-1]
		dst = dst[:n-1]
	}
	return dst
}

func readFloat(v reflect.Value, raw []byte) error {
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil {
		return fmt.Errorf("%.40s: want a number", raw)
	}
	v.SetFloat(f)
	return nil
}

// appendMillis writes d in milliseconds, rounded to microseconds, without a fraction
// where there is none: 1203.482, 50.
func appendMillis(dst []byte, d time.Duration) []byte {
	us := d.Round(time.Microsecond).Microseconds()
	if us < 0 {
		dst = append(dst, '-')
		us = -us
	}
	dst = strconv.AppendInt(dst, us/1000, 10)
	if rest := int(us % 1000); rest != 0 {
		dst = append(dst, '.')
		for unit := 100; rest > 0; unit /= 10 {
			dst = append(dst, byte('0'+rest/unit))
			rest %= unit
		}
	}
	return dst
}

// readMillis reads a number, fractions included, to the microsecond.
func readMillis(raw []byte) (time.Duration, error) {
	ms, err := strconv.ParseFloat(string(raw), 64)
	us := math.Round(ms * 1000)
	if err != nil || math.Abs(us) > float64(math.MaxInt64/int64(time.Microsecond)) {
		return 0, fmt.Errorf("duration %.40s: want a number of milliseconds within 292 years", raw)
	}
	return time.Duration(us) * time.Microsecond, nil
}

// appendInstant writes t in UTC by RFC 3339, always with nine decimals, because such
// times sort as text. The layout with decimals is the slow path of package time, so they
// are written here.
func appendInstant(dst []byte, t time.Time) []byte {
	dst = append(dst, '"')
	dst = t.UTC().AppendFormat(dst, time.RFC3339)
	dst[len(dst)-1] = '.' // was Z
	dst = append(dst, `000000000Z"`...)
	for i, ns := len(dst)-3, t.Nanosecond(); ns > 0; i, ns = i-1, ns/10 {
		dst[i] += byte(ns % 10)
	}
	return dst
}

// readInstant reads a time in any zone.
func readInstant(raw []byte) (time.Time, error) {
	var t time.Time
	if err := t.UnmarshalJSON(raw); err != nil {
		return t, err
	}
	t = t.UTC()
	if t.Year() < 0 || t.Year() > 9999 {
		return t, fmt.Errorf("time %.40s: its year in UTC has not four digits", raw)
	}
	return t, nil
}

func appendPartition(dst []byte, p Partition) []byte {
	if p == All {
		return append(dst, `"all"`...)
	}
	return strconv.AppendInt(dst, int64(p), 10)
}

func readPartition(raw []byte) (p Partition, err error) {
	err = p.UnmarshalJSON(raw)
	return p, err
}

// appendSettings writes the keys in order, so that equal settings are equal bytes. A nil
// map is null.
func appendSettings(dst []byte, settings map[string]string) []byte {
	if settings == nil {
		return append(dst, "null"...)
	}
	dst = append(dst, '{')
	for i, key := range slices.Sorted(maps.Keys(settings)) {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = jsonbytes.AppendEscaped(append(jsonbytes.AppendEscaped(dst, key), ':'), settings[key])
	}
	return append(dst, '}')
}

func readSettings(raw []byte) (settings map[string]string, err error) {
	err = json.Unmarshal(raw, &settings)
	return settings, err
}

// appendBody embeds JSON as it is, so that a reader of the event can hash it again, and
// quotes anything else. An empty body is null.
func appendBody(dst, body []byte) []byte {
	switch {
	case len(body) == 0:
		return append(dst, "null"...)
	case embeddable(body):
		return append(dst, body...)
	}
	return jsonbytes.AppendEscaped(dst, body)
}

// depthMax is how deep a body may be nested to be embedded. Real ones stay below 20. Some
// readers stop at a thousand levels, and the event itself is one more.
const depthMax = 500

// embeddable reports whether b is one JSON value, in UTF-8, that every reader of the
// event can parse. encoding/json would accept bad UTF-8 and deep nesting.
func embeddable(b []byte) bool { return utf8.Valid(b) && jsonbytes.ValidDepth(b, depthMax) }

func readBody(raw []byte) ([]byte, error) { return bytes.Clone(raw), nil }

// cut shortens s to at most n bytes, whole characters and a mark that something is
// missing.
func cut(s string, n int) string {
	const mark = "…"
	if len(s) <= n {
		return s
	}
	n -= len(mark)
	if n < 0 {
		return ""
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + mark
}
