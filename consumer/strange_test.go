package consumer_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go/jetstream"
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
	for _, order := range everyOrder {
		runOnTestbed(t, string(order), func(t *testing.T, b *testbed) {
			slow := uint64(len(strangeRows) + 1)
			for i, row := range strangeRows {
				stagetest.PublishRaw(t, b, fmt.Sprintf("rows.first%d", i), row.header, row.body)
			}
			b.loadFrom(0, 1) // it waits
			for i, row := range strangeRows {
				stagetest.PublishRaw(t, b, fmt.Sprintf("rows.second%d", i), row.header, row.body)
			}
			total := 2*len(strangeRows) + 1
			exec := func() *sleeper { return slowRow(slow, time.Minute, 100*time.Millisecond) }
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
			if got := b.results(); got != total {
				t.Errorf("got %d results, want %d", got, total)
			}
		})
	}
}

// The pin is the server's word alone: rows whose headers hide it, or name another one, are taken without a wait for the
// pin to run out.
func TestNoRowHidesThePin(t *testing.T) {
	for name, header := range map[string]string{"hidden": "hello\r\n\r\n", "forged": "NATS/1.0\r\nNats-Pin-Id: forged\r\n\r\n"} {
		runVirtual(t, name, func(t *testing.T) {
			const rows = 200 // more than a window
			b := newTestbed(t)
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
	}
}

// Whatever the names, values and sizes of a row's headers, its result is stored, and so is its dead letter. A name that
// can't be sent is written in another way. Headers that leave no room for a result stay behind, and the row's event says
// so.
func TestHeadersThatCantBeSentStopNothing(t *testing.T) {
	long := func(name string, n int) string {
		return "NATS/1.0\r\n" + name + ": " + strings.Repeat("x", n-len("NATS/1.0\r\n"+name+": \r\n\r\n")) + "\r\n\r\n"
	}
	rows := []struct {
		name, header, carried string
		left                  bool
	}{
		{"an address", "NATS/1.0\r\nuser@tenant: v\r\n\r\n", "user%40tenant", false},
		{"not ASCII", "NATS/1.0\r\nGröße: v\r\n\r\n", "Gr%C3%B6%C3%9Fe", false},
		{"a line break in a value", "NATS/1.0\r\nA: b\rc\r\n\r\n", "A", false},
		{"control headers", "NATS/1.0\r\nNats-Expected-Stream: ROWS\r\nNats-Required-Api-Level: 0\r\nNats-Trace-Only: no\r\nB: c\r\n\r\n", "B", false},
		{"as many bytes as a server takes", long("C", streams.HeaderBytesMax), "C", true},
		{"a few less", long("C", streams.HeaderBytesMax-300), "C", true},
		{"names that grow", "NATS/1.0\r\n" + strings.Repeat("ö", 12_000) + ": v\r\n\r\n", "", true},
		{"a long origin", "NATS/1.0\r\nStage-State-Id: a/" + strings.Repeat("S", 31_000) + "/0/1\r\nStage-Source-Stream: " + strings.Repeat("S", 31_000) + "\r\nStage-Source-Seq: 1\r\n\r\n", "", false},
	}
	for _, order := range []streams.Order{streams.OrderStream, streams.OrderNone} {
		runOnTestbed(t, string(order), func(t *testing.T, b *testbed) {
			stagetest.Value(b.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "DEAD", Subjects: []string{"dead"}}))(t)
			for _, row := range rows {
				stagetest.PublishRaw(t, b, "rows.a", row.header, "{}")
			}
			n := b.stored("ROWS", "rows.a")
			if n != len(rows) {
				t.Fatalf("%d of %d rows are stored", n, len(rows))
			}
			cfg := b.ordered(order, "run", failing{})
			cfg.DeadLetterSubject = "dead"
			r := b.startWith(cfg)
			r.stopAfter(b, n)
			left := make(map[uint64]bool)
			for _, m := range b.read("AUDIT", "audit.stage.0.row") {
				e := stagetest.Value(auditlog.Decode(m.Data()))(t)
				left[e.Row.Sequence] = e.Row.HeadersLeftOut
			}
			for _, m := range b.read("RESULTS", "results.stage.0.rows") {
				seq := sourceSeq(b, m)
				row := rows[seq-1]
				if has := m.Headers()[row.carried] != nil; has == row.left && row.carried != "" || left[seq] != row.left {
					t.Errorf("%s: the result has its header %v, the event says that they are left out %v, want that %v", row.name, has, left[seq], row.left)
				}
				for name := range m.Headers() {
					if name == jetstream.ExpectedStreamHeader || strings.HasPrefix(name, "Nats-R") || strings.HasPrefix(name, "Nats-T") {
						t.Errorf("%s: the result has the header %s", row.name, name)
					}
				}
			}
			if got := b.stored("DEAD", "dead"); got != n {
				t.Errorf("%d dead letters, want %d", got, n)
			}
		})
	}
}

// failing answers each row by an error.
type failing struct{}

func (failing) Start(row *consumer.Row) {
	row.Reply(consumer.Reply{Body: []byte(`{"error":{}}`), Failed: true, Event: auditlog.Row{FinishedAt: time.Now(), Reason: "invalid_row"}})
}

// A consumer that is set to deliver headers alone delivers rows that look empty. They are not answered as such, not even
// before the settings are looked at again, and an empty row with the size of a body is one.
func TestRowsWithoutTheirBodiesAreNotAnswered(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(2)
		p := b.startWith(b.ordered(streams.OrderStream, "only", &sleeper{low: time.Millisecond, high: 2 * time.Millisecond}))
		b.until(2)
		b.setHeadersOnly(true)
		stagetest.PublishRaw(t, b, "rows.headers", "NATS/1.0\r\nA: b\r\n\r\n", `{"n":1}`)
		stagetest.PublishRaw(t, b, "rows.broken", "hello\r\n\r\n", `{"n":1}`)
		b.loadFrom(0, 1)
		time.Sleep(10 * time.Second)
		if got := b.results(); got != 2 {
			t.Errorf("got %d results of rows without bodies", got-2)
		}
		if why := p.Status().Problem; !strings.Contains(why, "delivers headers only") {
			t.Errorf("problem: %q", why)
		}
		b.setHeadersOnly(false)
		stagetest.PublishRaw(t, b, "rows.empty", "NATS/1.0\r\nNats-Msg-Size: 7\r\n\r\n", "")
		p.stopAfter(b, 6)
	})
}

// setHeadersOnly edits the durable consumer.
func (b *testbed) setHeadersOnly(on bool) {
	b.t.Helper()
	durable := stagetest.Value(b.js.Consumer(b.t.Context(), "ROWS", streams.DurableName("stage", 0)))(b.t)
	cfg := durable.CachedInfo().Config
	cfg.HeadersOnly = on
	stagetest.Value(b.js.UpdateConsumer(b.t.Context(), "ROWS", cfg))(b.t)
}
