package llm

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestWaitIsReadFromTheFirstHeaderThatTells(t *testing.T) {
	const date = "Sun, 01 Mar 2026 12:00:00 GMT"
	tests := []struct {
		name string
		h    map[string]string
		want Wait
	}{
		{"nothing", nil, Wait{}},
		{"seconds", map[string]string{"Retry-After": "20"}, Wait{RetryAfter: 20 * time.Second}},
		{"fraction", map[string]string{"Retry-After": " 0.25 "}, Wait{RetryAfter: 250 * time.Millisecond}},
		{"date", map[string]string{"Retry-After": "Sun, 01 Mar 2026 12:01:30 GMT"}, Wait{RetryAfter: 90 * time.Second}},
		{
			"date by the server's clock",
			map[string]string{"Date": "Sun, 01 Mar 2026 13:00:00 GMT", "Retry-After": "Sun, 01 Mar 2026 13:00:07 GMT"},
			Wait{RetryAfter: 7 * time.Second},
		},
		{"date gone by", map[string]string{"Date": date, "Retry-After": "Sun, 01 Mar 2026 11:00:00 GMT"}, Wait{}},
		{"go duration", map[string]string{"Retry-After": "1m30s"}, Wait{RetryAfter: 90 * time.Second}},
		{"milliseconds first", map[string]string{"Retry-After-Ms": "1370.5", "Retry-After": "2"}, Wait{RetryAfter: 1370500 * time.Microsecond}},
		{"milliseconds malformed", map[string]string{"Retry-After-Ms": "soon", "Retry-After": "2"}, Wait{RetryAfter: 2 * time.Second}},
		{"milliseconds zero", map[string]string{"Retry-After-Ms": "0", "Retry-After": "2"}, Wait{RetryAfter: 2 * time.Second}},
		{"zero", map[string]string{"Retry-After": "0"}, Wait{}},
		{"negative", map[string]string{"Retry-After": "-5"}, Wait{}},
		{"not a number", map[string]string{"Retry-After": "NaN"}, Wait{}},
		{"infinite", map[string]string{"Retry-After": "Infinity"}, Wait{}},
		{"infinite in short", map[string]string{"Retry-After": "+Inf"}, Wait{}},
		{"minus infinity", map[string]string{"Retry-After": "-Infinity"}, Wait{}},
		{"milliseconds infinite", map[string]string{"Retry-After-Ms": "Infinity", "Retry-After": "2"}, Wait{RetryAfter: 2 * time.Second}},
		{"milliseconds not a number", map[string]string{"Retry-After-Ms": "NaN", "Retry-After": "2"}, Wait{RetryAfter: 2 * time.Second}},
		{"milliseconds negative", map[string]string{"Retry-After-Ms": "-1", "Retry-After": "2"}, Wait{RetryAfter: 2 * time.Second}},
		{"reset infinite", map[string]string{"X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": "Infinity"}, Wait{Remaining0: true}},
		{"reset not a number", map[string]string{"X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": "nan"}, Wait{Remaining0: true}},
		{"reset negative", map[string]string{"X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": "-7"}, Wait{Remaining0: true}},
		{"beyond all bounds", map[string]string{"Retry-After": "1e300"}, Wait{RetryAfter: time.Hour}},
		{"a day", map[string]string{"Retry-After": "86400"}, Wait{RetryAfter: time.Hour}},
		{"date in years", map[string]string{"Retry-After": "Thu, 01 Mar 2035 12:00:00 GMT"}, Wait{RetryAfter: time.Hour}},
		{"date in unix seconds", map[string]string{"Retry-After": "1772366430"}, Wait{RetryAfter: 30 * time.Second}},
		{"reset in a day", map[string]string{"X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": "2026-03-02T12:00:00Z"}, Wait{Remaining0: true, Reset: time.Hour}},
		{"words", map[string]string{"Retry-After": "later"}, Wait{}},
		{
			"openai",
			map[string]string{"X-Ratelimit-Remaining-Requests": "0", "X-Ratelimit-Reset-Requests": "6m0s", "X-Ratelimit-Remaining-Tokens": "9", "X-Ratelimit-Reset-Tokens": "9h"},
			Wait{Remaining0: true, Reset: 6 * time.Minute},
		},
		{
			"room before the limit is full",
			map[string]string{"Retry-After-Ms": "120", "X-Ratelimit-Remaining-Requests": "0", "X-Ratelimit-Reset-Requests": "6m0s"},
			Wait{RetryAfter: 120 * time.Millisecond, Remaining0: true, Reset: 120 * time.Millisecond},
		},
		{
			"full before the least wait is over",
			map[string]string{"Retry-After": "9", "X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": "4"},
			Wait{RetryAfter: 9 * time.Second, Remaining0: true, Reset: 4 * time.Second},
		},
		{
			"both exhausted: the later reset",
			map[string]string{"X-Ratelimit-Remaining-Requests": "0", "X-Ratelimit-Reset-Requests": "20ms", "X-Ratelimit-Remaining-Tokens": "0", "X-Ratelimit-Reset-Tokens": "7.66s"},
			Wait{Remaining0: true, Reset: 7660 * time.Millisecond},
		},
		{
			"anthropic",
			map[string]string{"Anthropic-Ratelimit-Tokens-Remaining": "0", "Anthropic-Ratelimit-Tokens-Reset": "2026-03-01T12:00:45Z"},
			Wait{Remaining0: true, Reset: 45 * time.Second},
		},
		{"unix seconds", map[string]string{"X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": "1772366430"}, Wait{Remaining0: true, Reset: 30 * time.Second}},
		{"unix milliseconds", map[string]string{"X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": "1772366430500"}, Wait{Remaining0: true, Reset: 30500 * time.Millisecond}},
		{"ietf draft", map[string]string{"Ratelimit-Remaining": "0", "Ratelimit-Reset": "50"}, Wait{Remaining0: true, Reset: 50 * time.Second}},
		// draft-ietf-httpapi-ratelimit-headers-07 and -10 (their examples, with nothing left).
		{"ietf draft 7", map[string]string{"Ratelimit": "limit=100, remaining=0, reset=30"}, Wait{Remaining0: true, Reset: 30 * time.Second}},
		{"ietf draft 7, room left", map[string]string{"Ratelimit": "limit=100, remaining=50, reset=30"}, Wait{}},
		{"ietf draft 7, reset untold", map[string]string{"Ratelimit": "limit=100,remaining=0"}, Wait{Remaining0: true}},
		{"ietf draft 10", map[string]string{"Ratelimit": `"default";r=0;t=30`}, Wait{Remaining0: true, Reset: 30 * time.Second}},
		{"ietf draft 10, room left", map[string]string{"Ratelimit": `"default";r=50;t=30`}, Wait{}},
		{"ietf draft 10, several limits", map[string]string{"Ratelimit": `"minute";r=0;t=30, "hour";r=0;t=40, "day";r=9;t=3500`}, Wait{Remaining0: true, Reset: 40 * time.Second}},
		{"ietf draft 10, partition key", map[string]string{"Ratelimit": `"default";r=0;t=5;pk=:sdfjLJUOUH==:`}, Wait{Remaining0: true, Reset: 5 * time.Second}},
		{"ietf draft 8, name without quotes", map[string]string{"Ratelimit": "default; r=0; t=30"}, Wait{Remaining0: true, Reset: 30 * time.Second}},
		{"ietf draft, reset not a number", map[string]string{"Ratelimit": `"default";r=0;t=Infinity`}, Wait{Remaining0: true}},
		{"ietf draft, Unix time", map[string]string{"Ratelimit": "limit=100, remaining=0, reset=1772366430"}, Wait{Remaining0: true, Reset: 30 * time.Second}},
		{"ietf draft and a wait", map[string]string{"Retry-After": "2", "Ratelimit": `"default";r=0;t=30`}, Wait{RetryAfter: 2 * time.Second, Remaining0: true, Reset: 2 * time.Second}},
		{"a policy alone", map[string]string{"Ratelimit-Policy": `"default";q=0;w=30`}, Wait{}},
		{"reset untold but a wait", map[string]string{"Retry-After": "1", "X-Ratelimit-Remaining": "0"}, Wait{RetryAfter: time.Second, Remaining0: true}},
		{"reset untold", map[string]string{"X-Ratelimit-Remaining": "0"}, Wait{Remaining0: true}},
		{"reset gone by", map[string]string{"X-Ratelimit-Remaining": "0", "X-Ratelimit-Reset": "1672366430"}, Wait{Remaining0: true}},
		{"something remains", map[string]string{"X-Ratelimit-Remaining": "1", "X-Ratelimit-Reset": "50"}, Wait{}},
		{"some other header", map[string]string{"X-Ratelimit-Limit": "0"}, Wait{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := http.Header{}
			for name, value := range tt.h {
				h.Set(name, value)
			}
			if got := ParseWait(h, now); got != tt.want {
				t.Errorf("ParseWait(%v) = %+v, want %+v", h, got, tt.want)
			}
		})
	}
}

// A proxy may pass on its own header with the server's, or join the two (RFC 9110, section 5.3).
func TestOfSeveralWaitsTheLongestCounts(t *testing.T) {
	const date = "Sun, 01 Mar 2026 12:01:30 GMT" // in 90 s
	for _, tt := range []struct {
		values []string
		want   time.Duration
	}{
		{[]string{"120, 120"}, 120 * time.Second},
		{[]string{"5,120"}, 120 * time.Second},
		{[]string{"120, 5, "}, 120 * time.Second},
		{[]string{"soon, 120"}, 120 * time.Second},
		{[]string{"-1, Infinity, 0"}, 0},
		{[]string{"", "120"}, 120 * time.Second},
		{[]string{"5", "120", "7"}, 120 * time.Second},
		{[]string{date}, 90 * time.Second},
		{[]string{"Sunday, 01-Mar-26 12:01:30 GMT"}, 90 * time.Second},
		{[]string{date + ", 20"}, 90 * time.Second},
		{[]string{"20, " + date}, 90 * time.Second},
		{[]string{"120, " + date}, 120 * time.Second},
		{[]string{date + ", " + date}, 90 * time.Second},
		{[]string{"", date}, 90 * time.Second},
		{[]string{strings.Repeat("1,", 10_000) + "9"}, 9 * time.Second},
	} {
		if got := ParseWait(http.Header{"Retry-After": tt.values}, now); got != (Wait{RetryAfter: tt.want}) {
			t.Errorf("Retry-After %.80q: got %v, want %v", tt.values, got, tt.want)
		}
	}
}

func FuzzParseWait(f *testing.F) {
	f.Add("Retry-After", "20", "X-Ratelimit-Remaining", "0", "Sun, 01 Mar 2026 12:00:00 GMT")
	f.Add("Retry-After-Ms", "1.5", "Anthropic-Ratelimit-Requests-Remaining", "0", "")
	f.Add("X-Ratelimit-Reset-Tokens", "6m0s", "X-Ratelimit-Remaining-Tokens", "0", "now")
	f.Add("Ratelimit", "limit=100, remaining=0, reset=30", "Ratelimit", `"a";r=0;t=30, "b";r=1`, "")
	f.Fuzz(func(t *testing.T, name1, value1, name2, value2, date string) {
		h := http.Header{}
		h.Set("Date", date)
		h.Set(name1, value1)
		h.Set(name2, value2)
		w := ParseWait(h, now)
		for _, d := range []time.Duration{w.RetryAfter, w.Reset} {
			if d < 0 || d > maxWait {
				t.Errorf("ParseWait(%v) = %+v: %v is out of bounds", h, w, d)
			}
		}
		if w.Reset != 0 && !w.Remaining0 {
			t.Errorf("ParseWait(%v) = %+v: a reset of nothing", h, w)
		}
	})
}
