package row

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm"
	"pgregory.net/rapid"
)

func canonical(r *Row) string {
	var c jsonbytes.Canonicalizer
	return string(c.Canonical(r.body))
}

func TestHashIsSHA256InHexadecimal(t *testing.T) {
	const abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	if got := llm.Hash([]byte("abc")); got != abc {
		t.Errorf("got %s, want %s", got, abc)
	}
}

func TestVariablesHashIsTheSameEverywhere(t *testing.T) {
	for body, want := range map[string]struct{ canonical, hash string }{
		`{}`:                            {`{}`, "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"},
		`{"text":"hi","id":1}`:          {`{"id":1,"text":"hi"}`, ""},
		` { "b" : [ 1 , 2 ] , "a":{} }`: {`{"a":{},"b":[1,2]}`, ""},
		`{"n":[1.0,1,1e0,-0,0.10]}`:     {`{"n":[1.0,1,1e0,-0,0.10]}`, ""},
		`{"é":1,"e":2,"😀":3,"\uffff":4,"\u0065":5}`:        {"{\"e\":5,\"é\":1,\"\uffff\":4,\"😀\":3}", ""},
		`{"s":"\u0041\/\"\\\b\f\n\r\t\u001f\u007f\u2028"}`: {"{\"s\":\"A/\\\"\\\\\\b\\f\\n\\r\\t\\u001f\x7f\u2028\"}", ""},
		`{"s":"\uD83D\uDE00\ud800\uDC01\uDFFFx"}`:          {"{\"s\":\"😀\U00010001\\udfffx\"}", ""},
		`{"\ud800":1,"\udc00":2,"\uffff":3}`:               {"{\"\\ud800\":1,\"\\udc00\":2,\"\uffff\":3}", ""},
		`{"a":1,"b":{"y":1,"x":{"d":1,"c":[{"z":1,"a":2}]}},"a":{"q":1,"p":2}}`: {
			`{"a":{"p":2,"q":1},"b":{"x":{"c":[{"a":2,"z":1}],"d":1},"y":1}}`, "",
		},
		// As Python's json.dumps and hashlib have it.
		`{"id":123,"text":"hé \u0001\b\f\/\u0022","a":[1.5,true,null]}`: {
			`{"a":[1.5,true,null],"id":123,"text":"hé \u0001\b\f/\""}`, "84c67fb869368f64d534c4e8b3ad6b3b6fe528627a216b797f0f85e9abcde894",
		},
	} {
		r := mustRow(t, body)
		if got := canonical(r); got != want.canonical {
			t.Errorf("%s\n got %s\nwant %s", body, got, want.canonical)
		}
		if want.hash == "" {
			want.hash = llm.Hash([]byte(want.canonical))
		}
		if got := r.VariablesHash(); got != want.hash {
			t.Errorf("%s: hash %s, want %s", body, got, want.hash)
		}
	}
}

// checkHash checks that the canonical form has the same value as the row, that it is its own
// canonical form, and that it is the shortest spelling.
func checkHash(t interface {
	Helper()
	Fatalf(string, ...any)
}, r *Row,
) {
	t.Helper()
	text := canonical(r)
	again, err := Parse([]byte(text))
	if err != nil {
		t.Fatalf("%q: canonical form %q: %v", r.body, text, err)
	}
	if got := canonical(again); got != text {
		t.Fatalf("%q: canonical form of %q is %q", r.body, text, got)
	}
	if strings.Contains(text, `\ud`) {
		return // a lone surrogate: to encoding/json, and to a template, all of them are equal
	}
	if !reflect.DeepEqual(decoded(again), decoded(r)) {
		t.Fatalf("%q: canonical form has another value: %q", r.body, text)
	}
	var v any
	d := json.NewDecoder(bytes.NewReader(r.body))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%q: %v", r.body, err)
	}
	var model bytes.Buffer
	e := json.NewEncoder(&model)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		t.Fatalf("%q: %v", r.body, err)
	}
	if want := unescapeSeparators(strings.TrimSuffix(model.String(), "\n")); text != want {
		t.Fatalf("%q\n got %s\nwant %s", r.body, text, want)
	}
}

// unescapeSeparators takes back the two escapes that encoding/json always writes.
func unescapeSeparators(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case strings.HasPrefix(s[i:], `\u2028`):
			b.WriteString("\u2028")
			i += 5
		case strings.HasPrefix(s[i:], `\u2029`):
			b.WriteString("\u2029")
			i += 5
		case s[i] == '\\':
			b.WriteString(s[i : i+2])
			i++
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

func TestEqualObjectsHaveEqualHashes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		checkHash(t, mustParse(t, drawObject(t, 3)))
	})
}

func mustParse(t *rapid.T, body string) *Row {
	r, err := Parse([]byte(body))
	if err != nil {
		t.Fatalf("%q: %v", body, err)
	}
	return r
}

func BenchmarkVariablesHash(b *testing.B) {
	r := mustRow(b, benchmarkRow())
	b.SetBytes(int64(len(r.body)))
	b.ReportAllocs()
	for b.Loop() {
		_ = r.VariablesHash()
	}
}

// benchmarkRow is a row of 1 KiB: a review as shops have them.
func benchmarkRow() string {
	return `{"id":123456789,"product":{"name":"Kettle","price":29.90,"tags":["kitchen","steel"]},"stars":4,"language":"en","verified":true,` +
		`"title":"Does what it says","text":"` + strings.Repeat(`It boils water \"quickly\" and looks good. `, 18) + `","date":"2025-03-01T12:00:00Z","votes":12}`
}
