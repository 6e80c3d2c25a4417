package security_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// payloadMax is the server's limit on a message, headers included. It is small so that a message at the limit is cheap.
const payloadMax = 128 << 10

// message is one publication as it goes over the wire.
type message struct {
	kind    string
	subject string
	header  string // the whole block with its status line; empty: the message has none
	body    string
}

// String has all that is needed to send the message again; the middle of what is long is left out.
func (m *message) String() string {
	return fmt.Sprintf("%s: subject %s header %s body %s", m.kind, quote(m.subject), quote(m.header), quote(m.body))
}

func quote(s string) string {
	const most = 120
	if len(s) <= 2*most {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprintf("%q…(%d bytes)…%q", s[:most], len(s)-2*most, s[len(s)-most:])
}

// block is a well-formed header block of these lines.
func block(lines ...string) string {
	return "NATS/1.0\r\n" + strings.Join(lines, "\r\n") + "\r\n\r\n"
}

// oddText is what nobody expects in a value.
var oddText = []string{
	"", " ", "x", "0", "1", "-1", "+5", "007", "1e9", "18446744073709551615", "99999999999999999999", "null", "true", "NaN", "\x00", "\x01\x02", "\x1b[31m", "\x7f", "\t", " spaces ",
	"a\rb", "a\nb", "é", "日本語", "\xff", "\xff\xfe\xc3\x28", "\xe2\x80\xae", "\u2028", "<script>", `"`, `\`, "%0a", "a,b", "a: b", "{{ row.n }}", "../../etc/passwd", "$JS.API.>", ">", "*",
	strings.Repeat("v", 300), strings.Repeat("w", 5000), strings.Repeat("\xc3", 257), "error", "success", "2026-11-26T00:00:00Z", "0001-01-01T00:00:00Z", "1ns", "-1h", "1000000h", "live", "batch",
}

// oddNames are names of headers that the client library refuses, or that mean something to somebody.
var oddNames = []string{
	"user@tenant", "a/b", "a b", " lead", "trail ", "é", "\xff", "\x00", "\x01", "\x7f", "(c)", "a,b", "[x]", "{x}", `"q"`, "a;b", "a=b", "a?b", "<a>", `a\b`, "a\tb", "", "X-Id", "x-id", "日本",
	strings.Repeat("N", 300), strings.Repeat("n", 5000), "Status", "status", "Description", "Content-Length", "traceparent", "tracestate", "Traceparent", "Reply", "KV-Operation",
}

// serverNames are headers that speak to the server, or that it writes itself.
var serverNames = []string{
	"Nats-Msg-Id", "Nats-Expected-Stream", "Nats-Expected-Last-Sequence", "Nats-Expected-Last-Subject-Sequence", "Nats-Expected-Last-Subject-Sequence-Subject", "Nats-Expected-Last-Msg-Id",
	"Nats-Rollup", "Nats-TTL", "Nats-Sequence", "Nats-Stream", "Nats-Subject", "Nats-Time-Stamp", "Nats-Last-Sequence", "Nats-Num-Pending", "Nats-UpTo-Sequence", "Nats-Pending-Messages",
	"Nats-Pending-Bytes", "Nats-Pin-Id", "Nats-Batch-Id", "Nats-Batch-Sequence", "Nats-Batch-Commit", "Nats-Msg-Size", "Nats-Last-Consumer", "Nats-Last-Stream", "Nats-Consumer-Stalled",
	"Nats-Response-Type", "Nats-Marker-Reason", "Nats-Applied-Limit", "Nats-Incr", "Nats-Counter-Sources", "Nats-Stream-Source", "Nats-Schedule", "Nats-Schedule-Target", "Nats-Scheduler",
	"Nats-Schedule-Next", "Nats-Required-Api-Level", "Nats-Service-Error", "Nats-Service-Error-Code", "Nats-Trace-Dest", "Nats-Trace-Only", "Nats-", "nats-msg-id", "NATS-MSG-ID",
}

// stageNames are headers of the stage's own.
var stageNames = []string{
	"Stage-Source-Stream", "Stage-Source-Seq", "Stage-Source-Subject", "Stage-Status", "Stage-State-Id", "Stage-Owner", "Stage-Origin-Stream", "Stage-Origin-Seq", "Stage-Low", "Stage-Ahead",
	"Stage-Ahead-From", "Stage-Key", "Stage-Model", "Stage-Lane", "Stage-Deadline", "Stage-Reason", "Stage-Load-Id", "Stage-Load-Row", "Stage-Row-Error", "Stage-Row-Size", "Stage-Row-Limit",
	"Stage-Row-Problem", "Stage-Replaces", "Stage-Redrive-Of", "Stage-Truncated", "Stage-Chain", "Stage-Erased", "Stage-Error", "Stage-", "stage-status", "STAGE-KEY",
}

// brokenBlocks are header blocks that the server stores and the client library can't read, or reads as a status.
var brokenBlocks = []string{
	"NATS/1.0 404 x\r\n\r\n", "NATS/1.0 503\r\n\r\n", "NATS/1.0 100 Idle Heartbeat\r\n\r\n", "NATS/1.0 408 Request Timeout\r\n\r\n", "NATS/1.0 409 Consumer Deleted\r\n\r\n",
	"NATS/1.0 409 Exceeded MaxBytes\r\n\r\n", "NATS/1.0 409 Batch Completed\r\n\r\n", "NATS/1.0 423 Nats-Pin-Id mismatch\r\n\r\n", "NATS/1.0 204 EOB\r\n\r\n", "NATS/1.0 400 Bad Request\r\n\r\n",
	"NATS/1.0 7\r\n\r\n", "NATS/1.0 \r\n\r\n", "NATS/1.0 404 x\r\nStatus: 503\r\nNats-Pin-Id: y\r\n\r\n", "NATS/1.0 200 ok\r\nX-Id: 1\r\n\r\n",
	"NATS/1.0", "NATS/1.0\r\n", "NATS/1.0\r\nno colon\r\n\r\n", "NATS/1.0\r\nA: 1", "NATS/1.0\r\nA: 1\r\n", "NATS/2.0\r\nA: 1\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n", "\r\n\r\n", "x", "\x00\x00\r\n\r\n",
	"NATS/1.0\nA: 1\n\n", "NATS/1.0\r\n: 1\r\n\r\n", "NATS/1.0\r\nA\r\n\r\n", "NATS/1.0\r\n folded\r\n\r\n", "NATS/1.0\r\nA: 1\r\n  more\r\n\r\n", "NATS/1.0\r\n\r\nA: 1\r\n\r\n",
}

// oddSubjects are matched by rows.>; a server that is not pedantic stores them.
var oddSubjects = []string{
	"rows.\xff", "rows.\xfe", "rows.\xff.\xfe", "rows.a\xc3", "rows.\x01", "rows.\x1b[31m", "rows.\x00", "rows.é", "rows.日本", "rows.\u202e", "rows.\ufffd", "rows.*", "rows.>", "rows.a.*",
	"rows.a.>", "rows.$JS.API", "rows.a/b", `rows."`, "rows.<b>", "rows.{partition}", "rows.%s", "rows." + strings.Repeat("t", 300), "rows." + strings.Repeat("s", 2000), "rows" + strings.Repeat(".x", 200),
	"rows.-", "rows.a,b", "rows.claim", "rows.rows",
}

// oddBodies are no rows, or hardly.
var oddBodies = []string{
	"", " ", "\x00", "null", "[]", "{", "{}", `{"n":1}x`, "\xef\xbb\xbf{\"n\":1}", "\xff", "{\"n\":\"\xff\"}", `{"n":"\ud800"}`, `{"n":"\u0000"}`, `{"n":"\u202e"}`, `{"n":1,"n":2}`, `{"":1,"n":2}`,
	`{"llm_response":1,"n":2}`, `{"llm_response_error":{"reason":"refused"},"n":3}`, `{"n":` + strings.Repeat("[", 10_001) + `}`, "+ACK", "-NAK", "PING\r\n", "\r\n", "MSG a 1 1\r\nx\r\n",
}

func pick[T any](rng *rand.Rand, list []T) T { return list[rng.IntN(len(list))] }

// kinds make a nasty message of each kind.
var kinds = []struct {
	name string
	make func(rng *rand.Rand, m *message)
}{
	{"header name", func(rng *rand.Rand, m *message) { m.header = block(pick(rng, oddNames) + ": " + pick(rng, oddText)) }},
	{"header of the server", func(rng *rand.Rand, m *message) { m.header = block(pick(rng, serverNames) + ": " + pick(rng, oddText)) }},
	{"header of the stage", func(rng *rand.Rand, m *message) { m.header = block(pick(rng, stageNames) + ": " + pick(rng, oddText)) }},
	{"header value", func(rng *rand.Rand, m *message) { m.header = block("X-Id:" + pick(rng, oddText) + pick(rng, oddText)) }},
	{"headers", func(rng *rand.Rand, m *message) {
		var lines []string
		for range 2 + rng.IntN(12) {
			name := pick(rng, slices.Concat(oddNames, serverNames, stageNames))
			for range 1 + rng.IntN(2) {
				lines = append(lines, name+": "+pick(rng, oddText))
			}
		}
		m.header = block(lines...)
	}},
	{"very many headers", func(rng *rand.Rand, m *message) {
		var lines []string
		for i := range 1000 + rng.IntN(2000) {
			lines = append(lines, fmt.Sprintf("H%d: %d", i%(1+rng.IntN(2000)), i))
		}
		m.header = block(lines...)
	}},
	{"broken block", func(rng *rand.Rand, m *message) { m.header = pick(rng, brokenBlocks) }},
	{"forged result", func(rng *rand.Rand, m *message) {
		seq := pick(rng, []string{"1", "2", "3", "40", "0", "18446744073709551615"})
		m.header = block("Stage-Source-Stream: "+pick(rng, []string{"ROWS", "OTHER", "", "\xff"}), "Stage-Source-Seq: "+seq, "Stage-Source-Subject: rows.x", "Stage-State-Id: stage/ROWS/0/"+seq,
			"Stage-Owner: "+pick(rng, oddText), "Stage-Status: "+pick(rng, []string{"success", "error", "odd", ""}), "Stage-Origin-Stream: "+pick(rng, oddText), "Stage-Origin-Seq: "+pick(rng, oddText),
			"Stage-Low: "+pick(rng, oddText), "Stage-Ahead: "+pick(rng, oddText), "Stage-Key: "+pick(rng, oddText), "Stage-Replaces: "+pick(rng, oddText))
	}},
	{"subject", func(rng *rand.Rand, m *message) { m.subject = pick(rng, oddSubjects) }},
	{"body", func(rng *rand.Rand, m *message) { m.body = pick(rng, oddBodies) }},
	{"size", func(rng *rand.Rand, m *message) {
		m.header = pick(rng, []string{"", block("X-Id: " + strings.Repeat("h", rng.IntN(payloadMax-200))), block("user@tenant: " + strings.Repeat("h", payloadMax/2))})
		left := payloadMax - len(m.header) - pick(rng, []int{0, 0, 1, 100, 300, 500, 700, 900, 1100, 2000, 5000})
		if fill := left - len(`{"n":1,"p":""}`); fill > 0 {
			m.body = `{"n":1,"p":"` + strings.Repeat(pick(rng, []string{"p", "\x01", "<"}), fill) + `"}`
		}
	}},
	{"everything", func(rng *rand.Rand, m *message) {
		m.subject, m.body = pick(rng, oddSubjects), pick(rng, oddBodies)
		m.header = block(pick(rng, oddNames)+": "+pick(rng, oddText), pick(rng, stageNames)+": "+pick(rng, oddText), pick(rng, serverNames)+": "+pick(rng, oddText))
		if rng.IntN(2) == 0 {
			m.header = pick(rng, brokenBlocks)
		}
	}},
}

// nasty draws a message. Most bodies are rows, so that the row is called, or fails where n is missing.
func nasty(rng *rand.Rand, n int) *message {
	k := kinds[n%len(kinds)]
	m := &message{kind: k.name, subject: fmt.Sprintf("rows.k%d", rng.IntN(4)), body: pick(rng, []string{fmt.Sprintf(`{"n":%d}`, n), fmt.Sprintf(`{"n":%d}`, n), `{"m":1}`, ""})}
	k.make(rng, m)
	return m
}

const ordinaryKind = "ordinary"

// ordinary is a row among the others.
func ordinary(rng *rand.Rand, n int) *message {
	return &message{kind: ordinaryKind, subject: fmt.Sprintf("rows.k%d", rng.IntN(4)), header: block("X-Id: 7"), body: fmt.Sprintf(`{"n":%d}`, n)}
}
