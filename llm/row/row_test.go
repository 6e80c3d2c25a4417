package row

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cockroachdb/datadriven"
	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm"
	"pgregory.net/rapid"
)

func TestParseTakesOneObject(t *testing.T) {
	for _, body := range []string{
		`{}`, " \t\r\n{ } \n", `{"a":1}`, `{"":{"":[]}}`, `{"a":[],"b":{},"c":[[],{}]}`,
		`{"n":[0,-0,10,1.5,-1e5,1E+5,0.0e-0,123456789012345678901234567890]}`,
		`{"s":["\"\\\/\b\f\n\r\t\u00e9","é😀","\ud83d\ude00"]}`,
		`{"lone surrogate":"\ud800"}`, `{"l":[true,false,null]}`, `{"a":1,"a":2}`, `{ "a" : [ 1 , 2 ] , "b" : { } }`,
		nested(jsonbytes.DepthMax),
	} {
		r, err := Parse([]byte(body))
		if err != nil {
			t.Errorf("%.60q: %v", body, err)
			continue
		}
		if string(r.Body()) != body {
			t.Errorf("%.60q: body became %.60q", body, r.Body())
		}
	}
}

// nested is a row of the given depth.
func nested(depth int) string {
	return `{"a":` + strings.Repeat("[", depth-1) + strings.Repeat("]", depth-1) + `}`
}

// TestParseSaysWhatIsWrong runs testdata/invalid.txt.
func TestParseSaysWhatIsWrong(t *testing.T) {
	check := func(t *testing.T, body string) string {
		t.Helper()
		_, err := Parse([]byte(body))
		if e, ok := errors.AsType[*llm.Error](err); !ok || e.Reason != llm.ReasonInvalidRow || e.Class != llm.Permanent {
			t.Errorf("%.60q: error %#v", body, err)
		}
		return fmt.Sprintln(err)
	}
	datadriven.RunTest(t, "testdata/invalid.txt", func(t *testing.T, d *datadriven.TestData) string {
		if d.HasArg("quoted") {
			return check(t, must.Value(strconv.Unquote(d.Input))(t))
		}
		return check(t, d.Input)
	})
	want := fmt.Sprintf("row: nested deeper than %d at byte %d\n", jsonbytes.DepthMax, jsonbytes.DepthMax+len(`{"a":`)-1)
	if got := check(t, nested(jsonbytes.DepthMax+1)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestPreviewOfAnInvalidRowIsShortAndUTF8(t *testing.T) {
	for _, body := range []string{"x", strings.Repeat("é", 251), strings.Repeat("x", 499) + "😀", strings.Repeat("\xff", 600)} {
		_, err := Parse([]byte(body))
		e, _ := errors.AsType[*llm.Error](err)
		got, _ := e.Facts["body_preview"].(string)
		if len(got) > 500 || !utf8.ValidString(got) || !strings.HasPrefix(strings.ToValidUTF8(body, ""), got) {
			t.Errorf("%.20q: preview of %d bytes: %q", body, len(got), got)
		}
	}
}

func TestVariablesKeepNumbersAndText(t *testing.T) {
	r := mustRow(t, `{"i":-9223372036854775808,"big":9223372036854775808,"f":1.50,"e":1e3,"huge":1e999,
		"s":"a\u00e9\ud83d\ude00\n\/","lone":"x\ud800y\udc00\ud800\u0041","l":[],"o":{"a":null},"twice":1,"twice":true}`)
	want := map[string]any{
		"i": int64(math.MinInt64), "big": json.Number("9223372036854775808"), "f": 1.5, "e": 1000.0, "huge": math.Inf(1),
		"s": "aé😀\n/", "lone": "x\uFFFDy\uFFFD\uFFFDA", "l": []any{}, "o": map[string]any{"a": nil}, "twice": true,
	}
	if got := decoded(r); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %#v\nwant %#v", got, want)
	}
	checkMembers(t, r, want)
}

func mustRow(tb testing.TB, body string) *Row {
	tb.Helper()
	r, err := Parse([]byte(body))
	if err != nil {
		tb.Fatalf("%.80q: %v", body, err)
	}
	return r
}

// isRow is Parse by way of encoding/json.
func isRow(body []byte) bool {
	if !utf8.Valid(body) || !json.Valid(body) {
		return false
	}
	return bytes.TrimLeft(body, " \t\r\n")[0] == '{'
}

// decodeModel is what encoding/json makes of a row, in the types of templates.
func decodeModel(body []byte) (map[string]any, error) {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	var m map[string]any
	if err := d.Decode(&m); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("data after the object")
	}
	return modelValue(m).(map[string]any), nil //nolint:forcetypeassert // a map in, a map out
}

func modelValue(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, member := range v {
			v[k] = modelValue(member)
		}
	case []any:
		for i, item := range v {
			v[i] = modelValue(item)
		}
	case json.Number:
		if strings.ContainsAny(v.String(), ".eE") {
			f, _ := strconv.ParseFloat(v.String(), 64)
			return f
		}
		if i, err := v.Int64(); err == nil {
			return i
		}
	}
	return v
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":[1,-2.5e3,{"b":"\u00e9\ud800"}]} `, `{"a":1}x`, "{\"\xff\":1}", `{"a":"\`, `[{}]`, `{"a":{"a":1,"a":[]},"n":18446744073709551616}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := Parse(body)
		if want := isRow(body); (err == nil) != want {
			t.Fatalf("%q: error %v, but encoding/json takes it: %v", body, err, want)
		}
		if err != nil {
			e, _ := errors.AsType[*llm.Error](err)
			if p, _ := e.Facts["body_preview"].(string); len(p) > 500 || !utf8.ValidString(p) {
				t.Fatalf("%q: preview %q", body, p)
			}
			return
		}
		want := must.Value(decodeModel(body))(t)
		if got := decoded(r); !reflect.DeepEqual(got, want) {
			t.Fatalf("%q\n got %#v\nwant %#v", body, got, want)
		}
		checkMembers(t, r, want)
		checkHash(t, r)
	})
}

func decoded(r *Row) map[string]any {
	v := r.Variables()
	return v.All()
}

// checkMembers compares what a template is given for each name, decoded by itself, with the whole.
func checkMembers(t interface {
	Helper()
	Fatalf(format string, args ...any)
}, r *Row, want map[string]any,
) {
	t.Helper()
	v := r.Variables()
	for range 2 { // the second time from memory
		for name, value := range want {
			if got, ok := v.Member(name); !ok || !reflect.DeepEqual(got, value) {
				t.Fatalf("%q: member %q is %#v (%v), want %#v", r.body, name, got, ok, value)
			}
		}
	}
	if got, ok := v.Member("\x00 none"); ok && want["\x00 none"] == nil {
		t.Fatalf("%q: member that is not there: %#v", r.body, got)
	}
}

// drawJSON draws a JSON value in some spelling: with spaces, escapes and unusual numbers.
func drawJSON(t *rapid.T, depth int) string {
	space := func() string { return rapid.SampledFrom([]string{"", "", "", " ", "\n", " \t"}).Draw(t, "space") }
	kinds := []string{"number", "string", "literal", "object", "list"}
	if depth == 0 {
		kinds = kinds[:3]
	}
	var b strings.Builder
	b.WriteString(space())
	switch rapid.SampledFrom(kinds).Draw(t, "kind") {
	case "number":
		b.WriteString(rapid.StringMatching(`-?(0|[1-9][0-9]{0,22})(\.[0-9]{1,3})?([eE][+-]?[0-9]{1,2})?`).Draw(t, "number"))
	case "string":
		b.WriteString(drawString(t))
	case "literal":
		b.WriteString(rapid.SampledFrom([]string{"true", "false", "null"}).Draw(t, "literal"))
	case "object":
		b.WriteString(drawObject(t, depth))
	case "list":
		b.WriteByte('[')
		for i := range rapid.IntRange(0, 3).Draw(t, "items") {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(drawJSON(t, depth-1))
		}
		b.WriteString(space() + "]")
	}
	return b.String() + space()
}

func drawObject(t *rapid.T, depth int, keys ...string) string {
	var b strings.Builder
	b.WriteString("{ ")
	for i := range rapid.IntRange(0, 5).Draw(t, "members") {
		if i > 0 {
			b.WriteByte(',')
		}
		key := drawString(t)
		if len(keys) > 0 && rapid.Bool().Draw(t, "known") {
			key = spell(t, rapid.SampledFrom(keys).Draw(t, "key"))
		}
		b.WriteString(key + " :" + drawJSON(t, depth-1))
	}
	return b.String() + "}"
}

// drawString draws a string of few different characters, so that keys repeat.
func drawString(t *rapid.T) string {
	return spell(t, rapid.StringOfN(rapid.SampledFrom([]rune{'a', 'b', 'é', '😀', '"', '\\', '\n', 'F', '\u2028', '\x7f', '\b'}), 0, 3, -1).Draw(t, "text"))
}

// spell writes a string with some of its characters escaped that need not be.
func spell(t *rapid.T, s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range s {
		switch {
		case c >= 0x10000 && rapid.Bool().Draw(t, "escape"):
			fmt.Fprintf(&b, `\u%04x\u%04X`, 0xD800+(c-0x10000)>>10, 0xDC00+(c-0x10000)&0x3FF)
		case c < 0x10000 && (c < ' ' || c == '"' || c == '\\' || rapid.Bool().Draw(t, "escape")):
			fmt.Fprintf(&b, `\u%04X`, c)
		default:
			b.WriteRune(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func BenchmarkParse(b *testing.B) {
	body := []byte(benchmarkRow())
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(body); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkParseDecoded is what checking a row costs with encoding/json.
func BenchmarkParseDecoded(b *testing.B) {
	body := []byte(benchmarkRow())
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		var m map[string]any
		must.Do(b, json.Unmarshal(body, &m))
	}
}
