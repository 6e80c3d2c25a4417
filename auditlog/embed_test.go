package auditlog

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

func nested(n int) string { return strings.Repeat(`[{"a":`, n/2) + "[0]" + strings.Repeat("}]", n/2) }

func TestBodiesAreEmbeddedOnlyWhereTheEventStaysReadable(t *testing.T) {
	tests := []struct{ name, body, want string }{
		{"empty", "", "null"},
		{"object with its bytes", `{"b": 1.0, "a":1e5}`, `{"b": 1.0, "a":1e5}`},
		{"space around", " [1]\r\n", " [1]\r\n"},
		{"not JSON", "<html>", `"<html>"`},
		{"cut JSON", `{"a":`, `"{\"a\":"`},
		{"two values", `{} {}`, `"{} {}"`},
		{"bad UTF-8 in a string", "\"\xff\"", `"\"\ufffd\""`},
		{"null", "null", "null"},
		{"string", `"x"`, `"x"`},
		{"as deep as it can be", nested(depthMax - 1), nested(depthMax - 1)},
		{"deeper", nested(depthMax), string(jsonbytes.AppendEscaped(nil, nested(depthMax)))},
		{"wide", "[" + strings.Repeat("[],", depthMax) + "[]]", "[" + strings.Repeat("[],", depthMax) + "[]]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := string(body(nil, []byte(tt.body))); got != tt.want {
				t.Errorf("got %.200s, want %.200s", got, tt.want)
			}
			c := Call{Request: []byte(tt.body)}
			if b := c.AppendJSON(nil, PayloadsFull, 0); !json.Valid(b) {
				t.Errorf("not JSON: %.400s", b)
			}
		})
	}
}

var jsonSeeds = []string{
	`{}`, `[]`, `{"a":[1,-2.5e+10,true,false,null,"\u00e9\n\/"],"b":{"c":""}}`, ` 0 `, `-0`, `00`, `01`, `-`, `1.`, `.5`, `1e`, `1E-2`,
	`+1`, `1e+`, `tru`, `nulll`, `truefalse`, `"`, `"\`, `"\x"`, `"\u12"`, `"\u12G4"`, `"\ud800"`, "\"\t\"", "\"\x7f\"", "\"é🙂\"",
	`[1,]`, `[,1]`, `[1 2]`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{a:1}`, `{"a":1 "b":2}`, `[1}`, `{]`, `]`, `[`, `{`, `{"a":1`, "\v[]", "\ufeff{}",
}

func TestEmbeddableIsValidJSONInUTF8(t *testing.T) {
	for _, s := range jsonSeeds {
		if got, want := embeddable([]byte(s)), json.Valid([]byte(s)) && utf8.ValidString(s); got != want {
			t.Errorf("%q: got %v, want %v", s, got, want)
		}
	}
}

// Against the standard library: the same verdict on everything but depth, where ours is the stricter.
func FuzzEmbeddable(f *testing.F) {
	for _, s := range jsonSeeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, want := embeddable(b), json.Valid(b) && utf8.Valid(b)
		if got != want && (got || strings.Count(string(b), "[")+strings.Count(string(b), "{") <= depthMax) {
			t.Fatalf("%q: got %v, want %v", b, got, want)
		}
	})
}
