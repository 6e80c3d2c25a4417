package consumer_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
)

// strangeRows are rows that look like the server's own messages, or whose headers are none, in all ways in which a client
// can publish them.
var strangeRows = []struct{ name, header, body string }{
	{"a status and no body", "NATS/1.0\r\nStatus: new\r\n\r\n", ""},
	{"the end of a request", "NATS/1.0\r\nStatus: 404\r\nDescription: No Messages\r\n\r\n", ""},
	{"a deleted consumer", "NATS/1.0\r\nStatus: 409\r\nDescription: Consumer Deleted\r\n\r\n", ""},
	{"a heartbeat", "NATS/1.0\r\nStatus: 100\r\nDescription: Idle Heartbeat\r\n\r\n", ""},
	{"no responders, inline", "NATS/1.0 503\r\nA: b\r\n\r\n", ""},
	{"a status and a body", "NATS/1.0\r\nStatus: 423\r\n\r\n", `{"n":1}`},
	{"another pin", "NATS/1.0\r\nNats-Pin-Id: forged\r\nNats-Msg-Size: 7\r\n\r\n", `{"n":1}`},
	{"no header line", "hello\r\n\r\n", `{"n":1}`},
	{"a line without a colon", "NATS/1.0\r\nhello\r\n\r\n", ""},
	{"no end", "NATS/1.0\r\nA: bc", `{"n":1}`},
	{"something behind the end", "NATS/1.0\r\nA: b\r\n\r\nC: d\r\n\r\n", `{"n":1}`},
	{"another pin before the end", "NATS/1.0\r\nNats-Pin-Id: forged\r\n\r\nC: d\r\n\r\n", `{"n":1}`},
}

// No row stops a partition, whatever its headers look like: neither as the first row, nor behind others, nor for whoever
// takes over while its result is above the low-water mark.
func TestRowsLikeTheServersOwnMessagesStopNothing(t *testing.T) {
	for _, order := range []streams.Order{streams.OrderStream, streams.OrderKey, streams.OrderNone} {
		t.Run(string(order), func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				b := newBench(t)
				slow := uint64(len(strangeRows) + 1)
				for i, row := range strangeRows {
					stagetest.PublishRaw(t, b, fmt.Sprintf("rows.first%d", i), row.header, row.body)
				}
				b.loadFrom(0, 1) // it waits
				for i, row := range strangeRows {
					stagetest.PublishRaw(t, b, fmt.Sprintf("rows.second%d", i), row.header, row.body)
				}
				total := 2*len(strangeRows) + 1
				exec := func() *sleeper {
					return &sleeper{latency: func(seq uint64) time.Duration {
						if seq == slow {
							return time.Minute
						}
						return 100 * time.Millisecond
					}}
				}
				began := time.Now()
				first := b.startWith(b.ordered(order, "first", exec()))
				ahead := total - 1
				if order == streams.OrderStream {
					ahead = len(strangeRows)
				}
				b.until(ahead)
				if took := time.Since(began); took > 45*time.Second {
					t.Errorf("the rows before the slow one took %s", took)
				}
				first.kill()
				began = time.Now()
				second := b.startWith(b.ordered(order, "second", exec()))
				b.until(total)
				if took := time.Since(began); took > 2*time.Minute {
					t.Errorf("the rows after the take-over took %s", took)
				}
				second.stop(t)
				if order != streams.OrderStream {
					b.checkOrder(uint64(total))
				} else {
					for i, l := range b.readLog() {
						if l.claim == nil && l.row == 0 {
							t.Errorf("message %d of the log is neither claim nor result", i)
						}
					}
				}
				if got := b.stored("RESULTS", "results.stage.0.rows"); got != uint64(total) {
					t.Errorf("got %d results, want %d", got, total)
				}
			})
		})
	}
}

// The pin is the server's word alone: rows whose headers hide it, or name another one, are taken without a wait for the
// pin to run out.
func TestNoRowHidesThePin(t *testing.T) {
	for name, header := range map[string]string{"hidden": "hello\r\n\r\n", "forged": "NATS/1.0\r\nNats-Pin-Id: forged\r\n\r\n"} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				const rows = 200 // more than a window
				b := newBench(t)
				for range rows {
					stagetest.PublishRaw(t, b, "rows.a", header, "{}")
				}
				began := time.Now()
				r := b.start("run", &sleeper{low: time.Millisecond, high: time.Millisecond})
				b.until(rows)
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("%d rows took %s", rows, took)
				}
				r.stop(t)
			})
		})
	}
}
