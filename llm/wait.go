package llm

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxWait bounds every wait that a server asks for. Longer ones are mistakes of
// the server or of its clock.
const maxWait = 24 * time.Hour

// Wait is what a server told about when to come back. Every duration counts
// from the moment the reply came, lies in (0, 24h], and is 0 when not told.
type Wait struct {
	// RetryAfter is the least wait before any further attempt.
	RetryAfter time.Duration
	// Remaining0 says that a limit is exhausted, Reset when all exhausted
	// limits are filled again (0: not told).
	Remaining0 bool
	Reset      time.Duration
}

// ParseWait reads the wait from the headers of a reply that came at now:
// retry-after-ms, else retry-after in seconds or as a date, and the reset
// headers of every limit of which nothing remains. Values that are malformed,
// zero or negative are ignored. It is pure.
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
		w.RetryAfter = parseRetryAfter(h.Get("Retry-After"), clock)
	}
	for name := range h {
		remaining, reset := limitHeaders(name)
		if remaining == "" || strings.TrimSpace(h.Get(remaining)) != "0" {
			continue
		}
		w.Remaining0 = true
		w.Reset = max(w.Reset, parseReset(h.Get(reset), clock))
	}
	return w
}

// limitHeaders returns the pair of headers that tell of one limit, if name is
// the one that tells how much remains of it:
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

// parseRetryAfter reads seconds, a date, or (some gateways) a Go duration.
func parseRetryAfter(s string, clock time.Time) time.Duration {
	s = strings.TrimSpace(s)
	if s == "" {
		return 0
	}
	if seconds, err := strconv.ParseFloat(s, 64); err == nil {
		return bounded(seconds)
	}
	if date, err := http.ParseTime(s); err == nil {
		return bounded(date.Sub(clock).Seconds())
	}
	if d, err := time.ParseDuration(s); err == nil {
		return bounded(d.Seconds())
	}
	return 0
}

// parseReset reads a Go duration (6m0s), seconds, an instant in seconds or
// milliseconds of Unix time, or one in RFC 3339.
func parseReset(s string, clock time.Time) time.Duration {
	s = strings.TrimSpace(s)
	if n, err := strconv.ParseFloat(s, 64); err == nil {
		unix := float64(clock.UnixMilli()) / 1000
		switch {
		case n >= 1e11:
			return bounded(n/1000 - unix)
		case n >= 1e9:
			return bounded(n - unix)
		}
		return bounded(n)
	}
	if t, err := time.Parse(time.RFC3339, s); err == nil {
		return bounded(t.Sub(clock).Seconds())
	}
	return parseRetryAfter(s, clock)
}

// bounded turns seconds into a duration in (0, maxWait], or 0.
func bounded(seconds float64) time.Duration {
	if math.IsNaN(seconds) || seconds <= 0 {
		return 0
	}
	if seconds >= maxWait.Seconds() {
		return maxWait
	}
	return time.Duration(seconds * float64(time.Second))
}
