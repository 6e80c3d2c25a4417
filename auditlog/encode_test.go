package auditlog

import (
	"math"
	"strings"
	"testing"
	"time"
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
		if got := string(millis(nil, tt.d)); got != tt.want {
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
		if got := string(instant(nil, tt.t)); got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
}

func TestACostThatIsNoNumberIsUnknown(t *testing.T) {
	for _, f := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		c := Call{Usage: &Usage{CostUSD: &f}}
		if b := c.AppendJSON(nil, PayloadsFull, 0); !strings.Contains(string(b), `"cost_usd":null`) {
			t.Errorf("%v: got %s", f, b)
		}
	}
}

func TestCallsAndRowsAreEncodedWithoutAllocation(t *testing.T) {
	call := *samples()["call_success"].(*Call)
	text := call
	text.Response = []byte(strings.Repeat("caf\xe9 é 🙂 <html>", 50))
	large := call
	large.Error = strings.Repeat("é", 1000)
	tests := []struct {
		name     string
		event    encoder
		bytesMax int
		want     float64
	}{
		{"call", &call, 0, 0},
		{"call at the limit", &call, 16 << 10, 0},
		{"call without its bodies", &call, 1300, 0},
		{"call with its error cut", &large, 1300, 1},
		{"call with a reply that is no JSON", &text, 0, 0},
		{"row", samples()["row_error"], 0, 0},
	}
	buf := make([]byte, 0, 16<<10)
	for _, tt := range tests {
		if got := testing.AllocsPerRun(100, func() { buf = tt.event.AppendJSON(buf[:0], PayloadsFull, tt.bytesMax) }); got > tt.want {
			t.Errorf("%s: %v allocations, want at most %v", tt.name, got, tt.want)
		}
	}
}
