package auditlog

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/llm-stage/stage/internal/jsonbytes"
	"pgregory.net/rapid"
)

func TestDurationsAreMillisecondsToTheMicrosecond(t *testing.T) {
	tests := []struct {
		d    time.Duration
		want string
	}{
		{0, "0"},
		{time.Millisecond, "1"},
		{1500 * time.Microsecond, "1.5"},
		{time.Microsecond, "0.001"},
		{10 * time.Microsecond, "0.01"},
		{100 * time.Microsecond, "0.1"},
		{1234567 * time.Microsecond, "1234.567"},
		{499, "0"},
		{500, "0.001"},
		{-1500 * time.Microsecond, "-1.5"},
		{-time.Microsecond, "-0.001"},
		{math.MaxInt64, "9223372036854.775"},
		{math.MinInt64, "-9223372036854.775"},
	}
	for _, tt := range tests {
		if got := string(appendMillis(nil, tt.d)); got != tt.want {
			t.Errorf("%d ns: got %s, want %s", tt.d, got, tt.want)
		}
	}
}

func TestTimesAreUTCWithNineDecimals(t *testing.T) {
	zone := time.FixedZone("east", 5*3600+1800)
	tests := []struct {
		t    time.Time
		want string
	}{
		{time.Date(2026, 1, 1, 3, 0, 0, 0, zone), `"2025-12-31T21:30:00.000000000Z"`},
		{time.Date(2026, 1, 1, 3, 0, 0, 120, time.UTC), `"2026-01-01T03:00:00.000000120Z"`},
		{time.Date(2026, 1, 1, 3, 0, 0, 999999999, time.UTC), `"2026-01-01T03:00:00.999999999Z"`},
	}
	for _, tt := range tests {
		if got := string(appendInstant(nil, tt.t)); got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
}

func TestNumbersAreThoseOfEncodingJSON(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := rapid.OneOf(rapid.Float64(), rapid.Float64Range(0, 1e-5)).Draw(t, "number")
		want, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		if got := appendFloat(nil, f); string(got) != string(want) {
			t.Fatalf("got %s, want %s", got, want)
		}
	})
}

func TestACostThatIsNoNumberIsUnknown(t *testing.T) {
	for _, f := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		c := Call{Usage: &Usage{CostUSD: &f}}
		if b := c.AppendJSON(nil, PayloadsFull, 0); !strings.Contains(string(b), `"cost_usd":null`) {
			t.Errorf("%v: got %s", f, b)
		}
	}
}

// A [sync.Pool] drops some of its content now and then, and more often under the race detector. So the least of several
// tries counts.
func TestCallsAndRowsAreEncodedWithoutAllocation(t *testing.T) {
	call := *samples()["call_success"].(*Call)
	text := call
	text.Response = []byte(strings.Repeat("caf\xe9 é 🙂 <html>", 50))
	large := call
	large.Error = strings.Repeat("é", 1000)
	tests := []struct {
		name     string
		event    event
		bytesMax int
		want     float64
	}{
		{"call", &call, 0, 0},
		{"call at the limit", &call, 16 << 10, 0},
		{"call without its bodies", &call, 900, 1}, // the copy that has none
		{"call with its error cut", &large, 1300, 2},
		{"call with a reply that is no JSON", &text, 0, 0},
		{"row", samples()["row_error"], 0, 0},
	}
	buf := make([]byte, 0, 16<<10)
	for _, tt := range tests {
		least := math.Inf(1)
		for range 50 {
			least = min(least, testing.AllocsPerRun(1, func() { buf = tt.event.AppendJSON(buf[:0], PayloadsFull, tt.bytesMax) }))
		}
		if least > tt.want {
			t.Errorf("%s: %v allocations, want at most %v", tt.name, least, tt.want)
		}
	}
}

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
			if got := string(appendBody(nil, []byte(tt.body))); got != tt.want {
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
