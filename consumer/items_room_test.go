package consumer_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Replies to elements wait in memory as those of rows do. While they use up the bytes of the window no row begins but the
// one that all wait for, all of whose elements may.
func TestRepliesToElementsFillTheWindow(t *testing.T) {
	virtual(t, func(t *testing.T) {
		const rows, elements = 15, 10
		b := newTestbed(t)
		b.load(rows)
		exec := &gatedFanner{slots: make(chan struct{}, 4), fanner: newFanner(b, elements, func(of simElement) time.Duration {
			if of.row == 1 {
				return 10 * time.Second
			}
			return time.Second
		})}
		exec.body = strings.Repeat("x", 1000)
		cfg := b.config("run", exec)
		cfg.WindowBytes = 60_000
		r := b.startWith(cfg)
		time.Sleep(35 * time.Second) // row 1 makes one call after the other
		if got := len(b.entries()); got < 50 || got > 75 {
			t.Errorf("%d replies of 1000 bytes while row 1 waits, want about 60", got)
		}
		if got := exec.of(1); got < 3 || got > 4 {
			t.Errorf("%d calls for row 1 in 35 s, want 3 or 4", got)
		}
		r.stopAfter(b, rows)
		if exec.made() != rows*elements {
			t.Errorf("%d calls, want %d", exec.made(), rows*elements)
		}
	})
}

// gatedFanner makes the calls of a row one by one, and goes by [consumer.Row.MayBegin].
type gatedFanner struct {
	*fanner
	slots chan struct{}
}

func (g *gatedFanner) Start(row *consumer.Row) {
	_, jobs := openFan(row, g.elements, func(int, *consumer.Kept) {})
	g.wg.Go(func() {
		for _, j := range jobs {
			for {
				select {
				case g.slots <- struct{}{}:
				case <-g.over:
					return
				}
				if j.row.MayBegin() {
					break
				}
				<-g.slots
				time.Sleep(50 * time.Millisecond)
			}
			g.call(j)
			<-g.slots
		}
	})
}

// of is how many calls were made for a row.
func (f *fanner) of(seq uint64) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for of, calls := range f.calls {
		if of.row == seq {
			n += calls
		}
	}
	return n
}

// A next owner pays for nothing that is kept, also where that is more than its window may hold: it reads what is kept of a
// row when the row may begin.
func TestATakeOverPaysForNothingThatIsKeptHoweverMuchItIs(t *testing.T) {
	virtual(t, func(t *testing.T) {
		const rows, elements = 20, 5
		b := newTestbed(t)
		b.load(rows)
		first := newFanner(b, elements, slowLast(elements))
		r := b.start("first", first)
		time.Sleep(10 * time.Second)
		r.kill()
		second := newFanner(b, elements, func(simElement) time.Duration { return time.Minute })
		cfg := b.config("second", second)
		cfg.WindowBytes = 800
		r = b.startWith(cfg)
		time.Sleep(30 * time.Second) // while row 1 waits for its call
		if got := second.restored(); got > rows*elements/2 {
			t.Errorf("%d replies are in memory while row 1 waits, want what %d bytes have room for", got, cfg.WindowBytes)
		}
		r.stopAfter(b, rows)
		b.checkItems(rows, elements)
		if got := second.restored(); got != rows*elements-1 || second.made() != 1 {
			t.Errorf("%d replies came from the journal, %d calls were made, want %d and 1", got, second.made(), rows*elements-1)
		}
	})
}

// STAGE_FOREACH was set, or removed, while rows had replies in the journal: those are to other requests.
func TestAStageDoesNotUseEntriesOfTheOtherKind(t *testing.T) {
	for _, fansOut := range []bool{true, false} {
		runVirtual(t, fmt.Sprint("fans out=", fansOut), func(t *testing.T) {
			const rows = 20
			b := newTestbed(t)
			b.load(rows)
			fan, whole := newFanner(b, 2, slowLast(2)), &sleeper{latency: slowHead}
			if fansOut {
				r := b.start("whole rows", whole)
				time.Sleep(10 * time.Second)
				r.kill()
				fan.latency = func(simElement) time.Duration { return time.Second }
				r = b.start("elements", fan)
				r.stopAfter(b, rows)
				b.checkItems(rows, 2)
			} else {
				r := b.start("elements", fan)
				time.Sleep(10 * time.Second)
				r.kill()
				whole.latency = func(uint64) time.Duration { return time.Second }
				r = b.start("whole rows", whole)
				b.finish(r, rows)
			}
			if whole.kept > 0 || fan.restored() > 0 {
				t.Errorf("%d rows and %d elements were answered from the journal, want none", whole.kept, fan.restored())
			}
			if got := b.stored("JOURNAL", "journal.stage.0.>"); got > rows {
				t.Errorf("%d messages are left in the journal", got)
			}
		})
	}
}

// Whatever index an entry has: it is of no element, or of none that the row has.
func TestAnEntryOfNoElementIsOfNoUse(t *testing.T) {
	virtual(t, func(t *testing.T) {
		const rows = 10
		b := newTestbed(t)
		b.load(rows)
		r := b.start("first", newFanner(b, 2, slowLast(2)))
		time.Sleep(10 * time.Second)
		r.kill()
		kept := b.read("JOURNAL", "journal.stage.0.>")
		purged := b.stream("JOURNAL")
		stagetest.Must(t, purged.Purge(t.Context()))
		for i, m := range kept {
			header := m.Headers()
			delete(header, jetstream.ExpectedLastSeqHeader)
			header.Set("Stage-Item", []string{"-1", "x", "", "99999999999999999999", "2", "1000000", "0x1", "1 0"}[i%8])
			stagetest.Value(b.js.PublishMsg(t.Context(), &nats.Msg{Subject: m.Subject(), Header: header, Data: m.Data()}))(t)
		}
		second := newFanner(b, 2, func(simElement) time.Duration { return time.Second })
		r = b.start("second", second)
		b.until(rows)
		time.Sleep(3 * time.Second)
		r.stop(t)
		b.checkItems(rows, 2)
		if second.restored() != 0 || second.made() != 2*rows {
			t.Errorf("%d replies came from the journal, %d calls; want none and %d", second.restored(), second.made(), 2*rows)
		}
		if got := b.stored("JOURNAL", "journal.stage.0.>"); got != 0 {
			t.Errorf("%d messages are left in the journal", got)
		}
	})
}
