package llm

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxWait bounds every wait that a server asks for. A row that waits blocks the results
// after it, and a header may be wrong: a clock that is off, a proxy's fixed day. So the
// server is called again after an hour at the latest. If it really meant a day, as daily
// quotas do, that costs one refused call an hour.
const maxWait = time.Hour

// Wait is what a server reported about when to retry. Every duration counts from the
// arrival of the reply, lies in (0, 1h], and is 0 when not reported: a longer wait counts
// as an hour, after which the server may ask for another.
type Wait struct {
	// RetryAfter is the least wait before any further attempt.
	RetryAfter time.Duration
	// Remaining0 is set when a limit is exhausted.
	Remaining0 bool
	// Reset is when there is room again. Most servers report in their reset headers when
	// all exhausted limits are as full as they can be. If RetryAfter is sooner, Reset is
	// RetryAfter.
	Reset time.Duration
}

// ParseWait reads the wait from the headers of a reply that arrived at now:
// retry-after-ms or, without it, retry-after in seconds, as a date or as Unix time (the
// longest if there are several), and the reset headers of every exhausted limit. Values
// that are malformed, zero, negative or infinite are ignored. It is pure.
func ParseWait(h http.Header, now time.Time) Wait {
	if now.IsZero() || len(h) == 0 {
		return Wait{}
	}
	clock := now
	// A date in a header is by the server's clock, which may differ from ours.
	if date, err := http.ParseTime(h.Get("Date")); err == nil {
		clock = date
	}
	var w Wait
	if ms, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64); err == nil {
		w.RetryAfter = bounded(ms / 1000)
	}
	if w.RetryAfter == 0 {
		for _, value := range h.Values("Retry-After") {
			w.RetryAfter = max(w.RetryAfter, longestDelay(value, clock))
		}
	}
	for name := range h {
		remaining, reset := limitHeaders(name)
		if remaining == "" || strings.TrimSpace(h.Get(remaining)) != "0" {
			continue
		}
		w.Remaining0 = true
		w.Reset = max(w.Reset, parseDelay(h.Get(reset), clock))
	}
	for _, limits := range h.Values("Ratelimit") {
		w.readLimits(limits, clock)
	}
	w.settle()
	return w
}

// readLimits reads the header RateLimit of the IETF drafts, one limit in a
// dictionary (version 7) or a list of limits that have names (from version 8):
//
//	limit=100, remaining=0, reset=30
//	"hour";r=0;t=30, "day";r=900;t=3600
func (w *Wait) readLimits(limits string, clock time.Time) {
	var remaining, reset string
	flush := func() {
		if remaining == "0" {
			w.Remaining0 = true
			w.Reset = max(w.Reset, parseDelay(reset, clock))
		}
		remaining, reset = "", ""
	}
	for member := range strings.SplitSeq(limits, ",") {
		if name, _, _ := strings.Cut(member, ";"); !strings.Contains(name, "=") {
			flush() // a name, of the next limit
		}
		for parameter := range strings.SplitSeq(member, ";") {
			key, value, _ := strings.Cut(strings.TrimSpace(parameter), "=")
			switch key {
			case "r", "remaining":
				remaining = value
			case "t", "reset":
				reset = value
			}
		}
	}
	flush()
}

// settle makes RetryAfter, where reported, the latest end of the exhausted limit.
func (w *Wait) settle() {
	if w.RetryAfter > 0 {
		w.Reset = min(w.Reset, w.RetryAfter)
	}
}

// limitHeaders returns the pair of headers about one limit, if name is the one with how
// much remains of it:
//
//	X-Ratelimit-Remaining, X-Ratelimit-Remaining-Requests   (OpenAI and most others)
//	Anthropic-Ratelimit-Requests-Remaining                   (Anthropic)
//	Ratelimit-Remaining                                      (IETF draft)
func limitHeaders(name string) (remaining, reset string) {
	const kind = "Ratelimit-"
	i := strings.Index(name, kind)
	if i < 0 {
		return "", ""
	}
	rest := name[i+len(kind):]
	if !strings.HasPrefix(rest, "Remaining") && !strings.HasSuffix(rest, "-Remaining") {
		return "", ""
	}
	return name, name[:i+len(kind)] + strings.Replace(rest, "Remaining", "Reset", 1)
}

// longestDelay reads the longest of the waits that a proxy has joined by commas, "120,
// 120". A date has a comma too.
func longestDelay(s string, clock time.Time) (longest time.Duration) {
	before := ""
	for part := range strings.SplitSeq(s, ",") {
		longest = max(longest, parseDelay(part, clock), parseDelay(before+","+part, clock))
		before = part
	}
	return longest
}

// parseDelay reads a wait in any of the spellings that servers have for it: seconds, an
// instant in seconds or milliseconds of Unix time, as an HTTP date or in RFC 3339, a Go
// duration (6m0s).
func parseDelay(s string, clock time.Time) time.Duration {
	s = strings.TrimSpace(s)
	if n, err := strconv.ParseFloat(s, 64); err == nil {
		unix := float64(clock.UnixMilli()) / 1000
		switch {
		case n >= 1e11 && n < 1e14:
			return bounded(n/1000 - unix)
		case n >= 1e9 && n < 1e11:
			return bounded(n - unix)
		}
		return bounded(n)
	}
	if t, err := http.ParseTime(s); err == nil {
		return bounded(t.Sub(clock).Seconds())
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return bounded(t.Sub(clock).Seconds())
	}
	if d, err := time.ParseDuration(s); err == nil {
		return bounded(d.Seconds())
	}
	return 0
}

// bounded turns seconds into a duration in (0, maxWait], or 0. Infinity is no
// wait that a server means: it comes from a division by zero.
func bounded(seconds float64) time.Duration {
	if math.IsNaN(seconds) || math.IsInf(seconds, 0) || seconds <= 0 {
		return 0
	}
	if seconds >= maxWait.Seconds() {
		return maxWait
	}
	return time.Duration(seconds * float64(time.Second))
}
