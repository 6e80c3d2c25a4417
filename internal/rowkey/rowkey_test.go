package rowkey

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/llm/row"
	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"
)

func TestEachPlaceIsReadAndWrittenAlike(t *testing.T) {
	for text, problem := range map[string]string{
		"subject":            "",
		"subject.1":          "",
		"subject.12":         "",
		"header.Customer":    "",
		"header.x-tenant.id": "",
		"field.customer":     "",
		"field.a.b":          "",
		"field. a ":          "",
		"field.größe":        "",

		"":                                   "is no place of a key",
		"customer":                           "is no place of a key",
		"Subject":                            "is no place of a key",
		"field":                              "is no place of a key",
		"subject.":                           "counted from 1",
		"subject.0":                          "counted from 1",
		"subject.-1":                         "counted from 1",
		"subject.+1":                         "counted from 1",
		"subject.01":                         "counted from 1",
		"subject.x":                          "counted from 1",
		"subject.99999999999999999999":       "counted from 1",
		"header.":                            "the name of the header is missing",
		"header.a b":                         "no header has such a name",
		"header.a:":                          "no header has such a name",
		"header.größe":                       "no header has such a name",
		"field.":                             "the name of the member of the row is missing",
		"field.\xff":                         "not UTF-8",
		"field." + strings.Repeat("a", 257):  "the name has 257 bytes",
		"header." + strings.Repeat("a", 257): "the name has 257 bytes",
	} {
		place, err := Parse(text)
		switch {
		case problem == "" && err != nil:
			t.Errorf("%q: %v", text, err)
		case problem == "" && place.String() != text:
			t.Errorf("%q is written as %q", text, place)
		case problem != "" && (err == nil || !strings.Contains(err.Error(), problem)):
			t.Errorf("%q: %v, want %q", text, err, problem)
		}
		decoded := Place{kind: ofField, name: "before"}
		if err := decoded.EnvDecode(text); err != nil && decoded.name != "before" {
			t.Errorf("%q: %s after an error", text, decoded)
		}
	}
}

func TestTheKeyOfARow(t *testing.T) {
	header := nats.Header{"Customer": {"acme", "other"}, "empty": {""}}
	tooLarge := nats.Header{streams.HeaderRowError: {"row_too_large"}}
	for _, tt := range []struct {
		place, subject string
		header         nats.Header
		body, want     string
	}{
		{"subject", "rows.eu.acme", nil, `{}`, "rows.eu.acme"},
		{"subject", "rows." + strings.Repeat("a", 252), nil, `{}`, streams.KeyHeader("rows." + strings.Repeat("a", 252))},
		{"subject", "rows.\xff\xfe", nil, `{}`, "rows.\ufffd\ufffd"},
		{"subject.2", "rows.\xc3.acme", nil, `{}`, "\ufffd"},
		{"header.Customer", "rows", nats.Header{"Customer": {"a\xffb"}}, `{}`, "a\ufffdb"},
		{"subject.1", "rows.eu.acme", nil, `{}`, "rows"},
		{"subject.2", "rows.eu.acme", nil, `{}`, "eu"},
		{"subject.3", "rows.eu.acme", nil, `{}`, "acme"},
		{"subject.4", "rows.eu.acme", nil, `{}`, ""},
		{"subject.2", "rows", nil, `{}`, ""},
		{"header.Customer", "rows", header, `{}`, "acme"},
		{"header.customer", "rows", header, `{}`, ""},
		{"header.empty", "rows", header, `{}`, ""},
		{"header.Customer", "rows", nil, `{}`, ""},
		{"field.c", "rows", nil, `{"c":"acme"}`, `"acme"`},
		{"field.c", "rows", nil, ` {"a": {"c":1}, "c" : 1.0 } `, `1.0`},
		{"field.c", "rows", nil, `{"c":1,"c":2}`, `2`},
		{"field.c", "rows", nil, `{"c":1,"\u0063":2}`, `2`},
		{"field.a.b", "rows", nil, `{"a":{"b":1},"a.b":2}`, `2`},
		{"field.a\"\\", "rows", nil, `{"a\"\\":2}`, `2`},
		{"field.größe", "rows", nil, `{"gr\u00f6\u00dfe":"\u0061"}`, `"\u0061"`},
		{"field.c", "rows", nil, `{"c":null}`, `null`},
		{"field.c", "rows", nil, `{"c":{"b": [1, 2]}}`, `{"b": [1, 2]}`},
		{"field.c", "rows", nil, "{\"c\":[1,\n2]}", streams.KeyHeader("[1,\n2]")},
		{"field.c", "rows", nil, `{"c":"` + strings.Repeat("a", 255) + `"}`, streams.KeyHeader(`"` + strings.Repeat("a", 255) + `"`)},
		{"field.c", "rows", nil, `{}`, ""},
		{"field.c", "rows", nil, `{"C":1}`, ""},
		{"field.c", "rows", nil, "", ""},
		{"field.c", "rows", nil, `["c"]`, ""},
		{"field.c", "rows", nil, `{"c":1} x`, ""},
		{"field.c", "rows", nil, `{"c":1,"d":}`, ""},
		{"field.c", "rows", nil, "{\"c\":1,\"d\":\"\xff\"}", ""},
		{"field.c", "rows", tooLarge, `{"c":1}`, ""},
		{"field.c", "rows", nats.Header{streams.HeaderRowError: {"else"}}, `{"c":1}`, "1"},
		{"field.c", "rows", nats.Header{streams.HeaderRowProblem: {`{"c"`}}, `{"c": 1}`, ""},
		{"field.c", "rows", nats.Header{streams.HeaderRowProblem: {"a word"}}, `{"c":1}`, "1"},
		{"header.Customer", "rows", header, `no row`, ""},
		{"subject", "rows.a", nil, `[1]`, ""},
		{"subject.1", "rows.a", tooLarge, `{}`, ""},
	} {
		place, err := Parse(tt.place)
		if err != nil {
			t.Fatal(err)
		}
		if got := place.Of(tt.subject, tt.header, []byte(tt.body)); got != tt.want {
			t.Errorf("%s of %s %v %q: %q, want %q", tt.place, tt.subject, tt.header, tt.body, got, tt.want)
		}
	}
}

func TestATokenThatNoSubjectHas(t *testing.T) {
	for _, tt := range []struct {
		place, filter string
		outside       bool
	}{
		{"subject.3", "rows.*", true},
		{"subject.2", "rows.*", false},
		{"subject.1", "rows", false},
		{"subject.2", "rows", true},
		{"subject.9", "rows.>", false},
		{"subject.9", ">", false},
		{"subject", "rows", false},
		{"field.a", "rows", false},
	} {
		place, err := Parse(tt.place)
		if err != nil {
			t.Fatal(err)
		}
		if got := place.OutsideOf(tt.filter); got != tt.outside {
			t.Errorf("%s of %s: %v", tt.place, tt.filter, got)
		}
	}
}

// modelKey is the key of field.NAME by encoding/json: slow, and plainly right.
func modelKey(body []byte, name string) string {
	if _, err := row.Parse(body); err != nil {
		return ""
	}
	d := json.NewDecoder(bytes.NewReader(body))
	if _, err := d.Token(); err != nil {
		return ""
	}
	key := ""
	for d.More() {
		member, err := d.Token()
		if err != nil {
			return ""
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return ""
		}
		if member == name {
			key = string(value)
		}
	}
	return key
}

func TestTheMemberIsThatOfEncodingJSON(t *testing.T) {
	names := []string{"c", "a.b", "é", `"`, "\\", "cc", ""}
	quoted := func(t *rapid.T, s string) string {
		if rapid.Bool().Draw(t, "escaped") {
			var b strings.Builder
			for _, r := range s {
				fmt.Fprintf(&b, `\u%04x`, r)
			}
			return `"` + b.String() + `"`
		}
		text, _ := json.Marshal(s)
		return string(text)
	}
	rapid.Check(t, func(t *rapid.T) {
		var members []string
		for range rapid.IntRange(0, 40).Draw(t, "members") {
			value := rapid.SampledFrom([]string{`1`, `1.0`, `-0`, `"x"`, `"\u0041"`, `{"c":2}`, `[1, {"c":3}]`, `null`, `true`, `""`}).Draw(t, "value")
			space := rapid.SampledFrom([]string{"", " ", "\n"}).Draw(t, "space")
			members = append(members, space+quoted(t, rapid.SampledFrom(names).Draw(t, "name"))+space+":"+space+value+space)
		}
		body := []byte("{" + strings.Join(members, ",") + "}")
		if rapid.IntRange(0, 9).Draw(t, "damage") == 0 {
			body[rapid.IntRange(0, len(body)-1).Draw(t, "at")] ^= byte(rapid.IntRange(1, 255).Draw(t, "bits"))
		}
		name := rapid.SampledFrom(names[:6]).Draw(t, "key")
		checkMember(t, body, name)
	})
}

func checkMember(t interface {
	Helper()
	Fatalf(format string, args ...any)
}, body []byte, name string,
) {
	t.Helper()
	place, err := Parse("field." + name)
	if err != nil {
		return
	}
	if got, want := place.Of("rows", nil, body), streams.KeyHeader(modelKey(body, name)); got != want {
		t.Fatalf("field.%s of %q: %q, want %q", name, body, got, want)
	}
}

func FuzzMember(f *testing.F) {
	f.Add([]byte(`{"c":1,"\u0063":"x"}`), "c")
	f.Add([]byte(`{"a.b":[1,{"c":2}]} `), "a.b")
	f.Add([]byte(`{"\ud800":1}`), "\ufffd")
	f.Fuzz(func(t *testing.T, body []byte, name string) {
		if utf8.ValidString(name) {
			checkMember(t, body, name)
		}
	})
}

func TestAKeyCostsAtMostOneAllocation(t *testing.T) {
	header := nats.Header{"Customer": {"acme"}}
	for text, most := range map[string]float64{"subject": 0, "subject.2": 0, "header.Customer": 0, "field.customer": 1} {
		place, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		key := ""
		if got := testing.AllocsPerRun(100, func() { key = place.Of("rows.eu.acme", header, benchmarkRow) }); got > most || key == "" {
			t.Errorf("%s: %.0f allocations for %q, want at most %.0f", text, got, key, most)
		}
	}
}

var benchmarkRow = []byte(`{"id":123456789,"customer":"acme","product":{"name":"Kettle","tags":["kitchen","steel"]},` +
	`"text":"` + strings.Repeat(`It boils water \"quickly\" and looks good. `, 20) + `","votes":12}`)

func BenchmarkKey(b *testing.B) {
	header := nats.Header{"Customer": {"acme"}}
	for _, text := range []string{"subject", "subject.2", "header.Customer", "field.customer"} {
		place, err := Parse(text)
		if err != nil {
			b.Fatal(err)
		}
		b.Run("place="+text, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if place.Of("rows.eu.acme", header, benchmarkRow) == "" {
					b.Fatal("no key")
				}
			}
		})
	}
}
