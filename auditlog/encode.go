package auditlog

import (
	"math"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

// appendHead opens the object and writes what all kinds begin with.
func (h *Header) appendHead(dst []byte, kind Kind) []byte {
	dst = append(dst, `{"schema_version":`...)
	dst = strconv.AppendInt(dst, SchemaVersion, 10)
	dst = append(append(dst, `,"event":"`...), kind...)
	dst = instant(append(dst, `","time":`...), h.Time)
	dst = jsonbytes.AppendEscaped(append(dst, `,"run_id":`...), h.RunID)
	dst = jsonbytes.AppendEscaped(append(dst, `,"stage":`...), h.Stage)
	return h.Partition.appendJSON(append(dst, `,"partition":`...))
}

func stringOrNull(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, "null"...)
	}
	return jsonbytes.AppendEscaped(dst, s)
}

func numberOrNull[N int | uint64](dst []byte, n N) []byte {
	switch {
	case n == 0:
		return append(dst, "null"...)
	case n < 0:
		return strconv.AppendInt(dst, int64(n), 10)
	}
	return strconv.AppendUint(dst, uint64(n), 10)
}

func int64OrNull(dst []byte, n *int64) []byte {
	if n == nil {
		return append(dst, "null"...)
	}
	return strconv.AppendInt(dst, *n, 10)
}

// floatOrNull writes f in the fewest digits that give f again, with an exponent where encoding/json writes one. What
// JSON has no number for is null.
func floatOrNull(dst []byte, f *float64) []byte {
	if f == nil || math.IsNaN(*f) || math.IsInf(*f, 0) {
		return append(dst, "null"...)
	}
	abs := math.Abs(*f)
	if abs == 0 || 1e-6 <= abs && abs < 1e21 {
		return strconv.AppendFloat(dst, *f, 'f', -1, 64)
	}
	dst = strconv.AppendFloat(dst, *f, 'e', -1, 64)
	if n := len(dst); dst[n-4] == 'e' && dst[n-2] == '0' { // e-09 is e-9
		dst[n-2] = dst[n-1]
		dst = dst[:n-1]
	}
	return dst
}

// millis writes d in milliseconds, rounded to microseconds, without a fraction where there is none.
func millis(dst []byte, d time.Duration) []byte {
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

func millisOrNull(dst []byte, d time.Duration) []byte {
	if d == 0 {
		return append(dst, "null"...)
	}
	return millis(dst, d)
}

// instant writes t in UTC by RFC 3339, always with nine decimals: such times sort as text. The layout with decimals is
// the slow path of package time, so they are written here.
func instant(dst []byte, t time.Time) []byte {
	dst = append(dst, '"')
	dst = t.UTC().AppendFormat(dst, time.RFC3339)
	dst[len(dst)-1] = '.' // was Z
	ns := t.Nanosecond()
	for unit := 100_000_000; unit > 0; unit /= 10 {
		dst = append(dst, byte('0'+ns/unit%10))
	}
	return append(dst, `Z"`...)
}

func timeOrNull(dst []byte, t time.Time) []byte {
	if t.IsZero() {
		return append(dst, "null"...)
	}
	return instant(dst, t)
}

func usage(dst []byte, u *Usage) []byte {
	if u == nil {
		return append(dst, "null"...)
	}
	return append(tokens(append(dst, '{'), u), '}')
}

// tokens writes the members of a usage object without its braces: each null when u is nil.
func tokens(dst []byte, u *Usage) []byte {
	if u == nil {
		return append(dst, `"prompt_tokens":null,"completion_tokens":null,"total_tokens":null,`+
			`"cached_tokens":null,"reasoning_tokens":null,"cost_usd":null`...)
	}
	dst = strconv.AppendInt(append(dst, `"prompt_tokens":`...), u.PromptTokens, 10)
	dst = strconv.AppendInt(append(dst, `,"completion_tokens":`...), u.CompletionTokens, 10)
	dst = strconv.AppendInt(append(dst, `,"total_tokens":`...), u.TotalTokens, 10)
	dst = int64OrNull(append(dst, `,"cached_tokens":`...), u.CachedTokens)
	if u.CacheWriteTokens != nil {
		dst = strconv.AppendInt(append(dst, `,"cache_write_tokens":`...), *u.CacheWriteTokens, 10)
	}
	if u.CacheWrite1hTokens != nil {
		dst = strconv.AppendInt(append(dst, `,"cache_write_1h_tokens":`...), *u.CacheWrite1hTokens, 10)
	}
	dst = int64OrNull(append(dst, `,"reasoning_tokens":`...), u.ReasoningTokens)
	return floatOrNull(append(dst, `,"cost_usd":`...), u.CostUSD)
}

// cut shortens s to at most n bytes, whole characters and a mark that something is missing.
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
