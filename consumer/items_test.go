package consumer_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
)

// fanner makes a call for each of so many elements of a row, all at once.
type fanner struct {
	elements int
	latency  func(of simElement) time.Duration
	drain    chan struct{} // closed: elements whose call is in flight are handed back
	body     string        // of each reply; empty: names the element

	over <-chan struct{} // closed with the test

	mu    sync.Mutex
	calls map[simElement]int
	kept  map[simElement]int // answered from the journal
	wg    sync.WaitGroup
}

// slowLast answers the last of so many elements of row 1 after an hour, and all others after a second.
func slowLast(elements int) func(simElement) time.Duration {
	return func(of simElement) time.Duration {
		if of == (simElement{1, elements - 1}) {
			return time.Hour
		}
		return time.Second
	}
}

func newFanner(b *testbed, elements int, latency func(simElement) time.Duration) *fanner {
	return &fanner{
		elements: elements, latency: latency, over: b.t.Context().Done(), drain: make(chan struct{}),
		calls: make(map[simElement]int), kept: make(map[simElement]int),
	}
}

func (f *fanner) Start(row *consumer.Row) {
	_, jobs := openFan(row, f.elements, func(item int, _ *consumer.Kept) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.kept[simElement{row.Seq, item}]++
	})
	for _, j := range jobs {
		f.wg.Go(func() { f.call(j) })
	}
}

func (f *fanner) call(j simJob) {
	if !j.row.Wanted() {
		j.handBack()
		return
	}
	f.mu.Lock()
	f.calls[j.element()]++
	drain := f.drain
	f.mu.Unlock()
	select {
	case <-time.After(f.latency(j.element())):
	case <-drain:
		j.handBack()
		return
	case <-f.over:
		return
	}
	j.row.RecordCall(&auditlog.Call{Header: auditlog.Header{Time: time.Now()}, Item: new(j.item), Status: auditlog.CallSuccess})
	body := f.body
	if body == "" {
		body = replyTo(j.element())
	}
	j.fan.answer(j.item, consumer.Reply{
		Body: []byte(body), RequestHash: j.requestHash(),
		Event: auditlog.Row{FinishedAt: time.Now(), Source: auditlog.SourceCall, Attempts: 1},
	})
}

// await waits until it has made so many calls.
func (f *fanner) await(calls int) {
	for range 10_000 {
		if f.made() >= calls {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func replyTo(of simElement) string { return fmt.Sprintf("reply %d to row %d", of.item, of.row) }

// made is how many calls it has made, and restored how many replies it found in the journal.
func (f *fanner) made() int     { return sum(f, f.calls) }
func (f *fanner) restored() int { return sum(f, f.kept) }

func sum(f *fanner, of map[simElement]int) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for count := range maps.Values(of) {
		n += count
	}
	return n
}

// checkItems checks that each of n rows has one result, made of the replies to its elements, and that its audit is whole.
func (b *testbed) checkItems(n, elements int) {
	b.t.Helper()
	results := b.read("RESULTS", "results.stage.0.rows")
	if len(results) != n {
		b.t.Fatalf("got %d results, want %d", len(results), n)
	}
	for i, m := range results {
		seq := sourceSeq(b, m)
		var want []string
		for item := range elements {
			want = append(want, replyTo(simElement{seq, item}))
		}
		if got := string(m.Data()); got != strings.Join(want, simBetween) || seq != uint64(i+1) { //nolint:gosec // a count
			b.t.Errorf("result %d is of row %d: %s, want %s", i, seq, got, strings.Join(want, simBetween))
		}
	}
	b.checkAudit(results, func(uint64) int { return elements })
}

// answerRestOfElements starts a replica, which answers the remaining rows. It checks how many calls the replica makes, and
// how many replies it finds in the journal.
func (b *testbed) answerRestOfElements(rows, elements, calls, kept int) {
	b.t.Helper()
	exec := newFanner(b, elements, func(simElement) time.Duration { return time.Second })
	b.start("rest", exec).stopAfter(b, rows)
	b.checkItems(rows, elements)
	if exec.made() != calls || exec.restored() != kept {
		b.t.Errorf("%d calls, %d from the journal, want %d and %d", exec.made(), exec.restored(), calls, kept)
	}
}

// entries are those of elements in the journal.
func (b *testbed) entries() (of []simElement) {
	b.t.Helper()
	for _, m := range b.read("JOURNAL", "journal.stage.0.>") {
		if item, err := strconv.Atoi(m.Headers().Get("Stage-Item")); err == nil {
			of = append(of, simElement{sourceSeq(b, m), item})
		}
	}
	return of
}

// Of a row that waits for one of its elements the replies to the others are in the journal, also where the row waits for
// no other one.
func TestAReplyToAnElementIsNotPaidForAgainAfterAKill(t *testing.T) {
	for after, order := range map[time.Duration]streams.Order{
		0: streams.OrderStream, 50 * time.Millisecond: streams.OrderStream, 40 * time.Millisecond: streams.OrderKey, time.Minute: streams.OrderStream,
	} {
		runOnTestbed(t, fmt.Sprint("after=", after), func(t *testing.T, b *testbed) {
			b.load(20)
			start := func(run string, exec *fanner) *replica {
				cfg := b.ordered(order, run, exec)
				cfg.JournalAfter, cfg.WindowRows = after, 48
				return b.startWith(cfg)
			}
			first := newFanner(b, 3, slowLast(3))
			r := start("first", first)
			first.await(60)
			time.Sleep(time.Second + after - 5*time.Millisecond)
			if got := len(b.entries()); got > 0 && after > 0 {
				t.Errorf("%d replies in the journal too early, want none", got)
			}
			time.Sleep(20 * time.Millisecond)
			if got := len(b.entries()); got != 59 {
				t.Errorf("%d replies in the journal, want 59", got)
			}
			r.kill()
			second := newFanner(b, 3, func(simElement) time.Duration { return time.Second })
			r = start("second", second)
			r.stopAfter(b, 20)
			b.checkItems(20, 3)
			if second.restored() != 59 || second.made() != 1 || second.calls[simElement{1, 2}] != 1 {
				t.Errorf("%d replies came from the journal, %d calls were made again, want 59 and 1", second.restored(), second.made())
			}
			first.wg.Wait()
		})
	}
}

func TestAReplyToAnElementIsKeptThroughASecondKill(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(20)
		for _, run := range []string{"first", "second", "third"} {
			exec := newFanner(b, 4, slowLast(4))
			r := b.start(run, exec)
			time.Sleep(10 * time.Second)
			r.kill()
			if want := 1; run != "first" && exec.made() != want {
				t.Errorf("%s: %d calls, want %d", run, exec.made(), want)
			}
		}
		last := newFanner(b, 4, func(simElement) time.Duration { return time.Second })
		r := b.start("last", last)
		b.until(20)
		time.Sleep(3 * time.Second)
		if got := b.stored("JOURNAL", "journal.stage.0.>"); got != 0 {
			t.Errorf("%d messages in the journal at the end, want none", got)
		}
		r.stop(t)
		b.checkItems(20, 4)
		if last.made() != 1 || last.restored() != 79 {
			t.Errorf("%d calls, %d from the journal, want 1 and 79", last.made(), last.restored())
		}
	})
}

// Within the process the replies are in memory, and in the journal once.
func TestANewTermKeepsNoReplyToAnElementTwice(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(20)
		exec := newFanner(b, 3, slowLast(3))
		r := b.start("run", exec)
		time.Sleep(10 * time.Second)
		for range 4 {
			b.stopServer()
			b.startServer()
			time.Sleep(10 * time.Second)
		}
		if got := len(b.entries()); got != 59 {
			t.Errorf("%d replies in the journal after 5 terms, want each of 59 once", got)
		}
		if exec.made() != 60 || exec.restored() != 0 {
			t.Errorf("%d calls, %d replies from the journal; want 60 and none", exec.made(), exec.restored())
		}
		r.kill()
	})
}

// While the server is down some elements are answered and others handed back, since nobody may begin a call then. What was
// answered is neither lost with the row nor with the process.
func TestAReplyToAnElementOutlivesTheTermThatHandsItsRowBack(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(10)
		exec := newFanner(b, 3, func(of simElement) time.Duration { return time.Duration(of.item+1) * time.Second })
		r := b.start("run", exec)
		b.await("calls", func() bool { return exec.made() == 30 })
		b.stopServer()
		time.Sleep(2500 * time.Millisecond)
		exec.mu.Lock()
		close(exec.drain) // the third is handed back, and its row
		exec.drain = make(chan struct{})
		exec.mu.Unlock()
		time.Sleep(time.Second)
		b.startServer()
		r.stopAfter(b, 10)
		b.checkItems(10, 3)
		for of, calls := range exec.calls {
			if want := 1 + of.item/2; calls != want {
				t.Errorf("%d calls for element %d of row %d, want %d", calls, of.item, of.row, want)
			}
		}
	})
}

// A term keeps the replies that came when there was none.
func TestRepliesToElementsThatCameBetweenTermsAreKept(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(10)
		exec := newFanner(b, 3, slowLast(3))
		r := b.start("run", exec)
		exec.await(30)
		b.stopServer()
		time.Sleep(3 * time.Second)
		b.startServer()
		time.Sleep(10 * time.Second)
		if got := len(b.entries()); got != 29 {
			t.Errorf("%d replies are in the journal, want 29", got)
		}
		r.kill()
		b.answerRestOfElements(10, 3, 1, 29)
	})
}

// A stopping process leaves the replies of rows that it hands back in the journal, however young they are.
func TestADrainKeepsTheElementsOfARowHandedBack(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(20)
		exec := newFanner(b, 3, func(of simElement) time.Duration {
			if of.item == int(of.row%3) { //nolint:gosec // a count
				return time.Hour
			}
			return time.Second
		})
		cfg := b.config("first", exec)
		cfg.JournalAfter = time.Hour
		r := b.startWith(cfg)
		time.Sleep(10 * time.Second)
		if got := len(b.entries()); got != 0 {
			t.Errorf("%d replies in the journal too early, want none", got)
		}
		close(exec.drain)
		r.stop(t)
		b.answerRestOfElements(20, 3, 20, 40)
	})
}

// Elements are many times the rows of the window. Each is kept, and once, however many are answered in one moment and
// however long they wait.
func TestManyElementsAreKeptOnce(t *testing.T) {
	const rows, elements = 32, 40
	for _, order := range []streams.Order{streams.OrderStream, streams.OrderKey} {
		runOnTestbed(t, fmt.Sprint("order=", order), func(t *testing.T, b *testbed) {
			b.load(rows)
			start := func(run string, exec *fanner) *replica {
				cfg := b.ordered(order, run, exec)
				cfg.WindowRows = 2 * rows // by key a part is for other keys
				return b.startWith(cfg)
			}
			exec := newFanner(b, elements, slowLast(elements))
			r := start("first", exec)
			time.Sleep(3 * time.Second)
			if st := r.Status(); st.JournalProblem != "" || st.Problem != "" {
				t.Errorf("journal problem %q, problem %q, want none", st.JournalProblem, st.Problem)
			}
			time.Sleep(time.Minute)
			entries, last := b.entries(), b.lastKept()
			slices.SortFunc(entries, func(a, b simElement) int { return int(a.row*1000) + a.item - int(b.row*1000) - b.item }) //nolint:gosec // counts
			if got, want := len(slices.Compact(entries)), rows*elements-1; got != want {
				t.Errorf("%d replies are in the journal, want %d", got, want)
			}
			if most := uint64(rows*elements + 10); last > most {
				t.Errorf("%d messages were sent to the journal, want at most %d", last, most)
			}
			r.kill()
			second := newFanner(b, elements, func(simElement) time.Duration { return time.Second })
			r = start("second", second)
			r.stopAfter(b, rows)
			if second.made() != 1 {
				t.Errorf("%d calls after the kill, want 1", second.made())
			}
		})
	}
}

// The replies to a row with many elements take many round trips to read. None is given up while they come.
func TestManyElementsAreReadOverASlowLink(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		const elements = 1500
		b.load(1)
		exec := newFanner(b, elements, slowLast(elements))
		cfg := b.config("run", exec)
		cfg.JournalAfter = 0
		r := b.startWith(cfg)
		exec.await(elements)
		time.Sleep(time.Minute)
		if got := len(b.entries()); got != elements-1 {
			t.Fatalf("%d replies are in the journal, want %d", got, elements-1)
		}
		r.kill()
		l := newLink(b.InProcessConn, 200*time.Millisecond)
		nc := b.connectBy(l)
		second := newFanner(b, elements, func(simElement) time.Duration { return time.Second })
		r = b.startOn(nc, b.config("second", second))
		r.stopAfter(b, 1)
		nc.Close()
		if second.made() != 1 || second.restored() != elements-1 {
			t.Errorf("%d elements called, %d from the journal, want 1 and %d", second.made(), second.restored(), elements-1)
		}
	})
}

// Entries that get lost are sent again, also where there are more of them than may be on their way.
func TestElementsThatTheJournalDidNotGetAreSentAgain(t *testing.T) {
	virtual(t, func(t *testing.T) {
		const rows, elements = 40, 10
		b := newTestbed(t)
		b.load(rows)
		l := newLink(b.InProcessConn, time.Millisecond)
		nc := b.connectBy(l)
		exec := newFanner(b, elements, slowLast(elements))
		r := b.startOn(nc, b.config("run", exec))
		exec.await(rows * elements)
		l.set(func() { l.loses = entries })
		time.Sleep(3 * time.Second)
		if got := len(b.entries()); got > rows { // where a write ends in one
			t.Fatalf("%d replies are in the journal, want most of them to be lost", got)
		}
		l.set(func() { l.loses = nil })
		time.Sleep(time.Minute)
		if got := len(b.entries()); got != rows*elements-1 {
			t.Errorf("%d replies are in the journal a minute later, want %d", got, rows*elements-1)
		}
		if st := r.Status(); st.JournalProblem != "" {
			t.Errorf("journal problem %q", st.JournalProblem)
		}
		r.kill()
	})
}

// A reply that must be kept at once holds a call's slot until it is.
func TestAReplyToAnElementCountsUntilItIsKept(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(1)
		l := newLink(b.InProcessConn, 200*time.Millisecond)
		nc := b.connectBy(l)
		exec := newFanner(b, 3, slowLast(3))
		cfg := b.config("run", exec)
		cfg.JournalAfter = 0
		r := b.startOn(nc, cfg)
		exec.await(3)
		time.Sleep(time.Second + 600*time.Millisecond) // event, answer, entry
		if got := r.Unkept(); got != 2 {
			t.Errorf("%d replies count while the journal has not answered, want 2", got)
		}
		time.Sleep(800 * time.Millisecond)
		if got := r.Unkept(); got != 0 {
			t.Errorf("%d replies count once they are kept, want none", got)
		}
		r.kill()
	})
}
