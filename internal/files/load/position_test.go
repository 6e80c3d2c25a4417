package load

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// loadBench has an input that drops rows in one way or another, and what takes them in place of a
// stage.
type loadBench struct {
	*stagetest.Bench
	rows       int64
	partitions int
	taker      jetstream.Consumer
	taken      map[string]int // how often each row was taken, by its number in the source
}

// inputKinds are the ways in which an input forgets rows that a stage has answered.
var inputKinds = []struct {
	name   string
	config jetstream.StreamConfig
	forget func(b *loadBench) // after all rows are answered
}{
	{name: "limits"},
	{name: "work queue", config: jetstream.StreamConfig{Retention: jetstream.WorkQueuePolicy}},
	{name: "interest", config: jetstream.StreamConfig{Retention: jetstream.InterestPolicy}},
	{"max age", jetstream.StreamConfig{MaxAge: time.Minute}, func(*loadBench) { time.Sleep(2 * time.Minute) }},
	{"purged", jetstream.StreamConfig{}, func(b *loadBench) {
		stagetest.Must(b.T, b.Stream("ROWS").Purge(b.T.Context()))
	}},
}

func newLoadBench(t *testing.T, cfg jetstream.StreamConfig, partitions int) *loadBench {
	t.Helper()
	b := &loadBench{Bench: stagetest.NewBench(t, nil), rows: 7, partitions: partitions, taken: make(map[string]int)}
	b.Drop("ROWS")
	cfg.Name, cfg.Subjects, cfg.Storage, cfg.AllowDirect = "ROWS", []string{"rows.>"}, jetstream.MemoryStorage, true
	var err error
	if _, err = b.JS.CreateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if b.taker, err = b.JS.CreateConsumer(t.Context(), "ROWS", jetstream.ConsumerConfig{Durable: "stage-0", AckPolicy: jetstream.AckExplicitPolicy}); err != nil {
		t.Fatal(err)
	}
	b.Cfg = stagetest.Config(t, "STAGE_PARTITIONS", strconv.Itoa(partitions), "STAGE_INPUT_SUBJECT", "rows.{partition}.>")
	return b
}

// loader returns a loader that publishes three rows at once.
func (b *loadBench) loader() (*Loader, int64) {
	b.T.Helper()
	l, loaded, err := New(b.T.Context(), b.NC, b.Cfg, "file", "")
	if err != nil {
		b.T.Fatal(err)
	}
	l.group = 3
	return l, loaded
}

func (b *loadBench) source(loaded int64) func() (*nats.Msg, error) {
	return customers(int(b.rows), int(loaded), 0)
}

// drive takes single steps of a load, as run would: a record, or an append. It returns how far
// the load came, and how many of the steps were left when it had ended.
func (b *loadBench) drive(l *Loader, loaded int64, steps int) (int64, int) {
	b.T.Helper()
	next := b.source(loaded)
	for eof := false; !eof; {
		var group []*nats.Msg
		var err error
		if group, eof, err = l.gather(loaded, next); err != nil {
			b.T.Fatal(err)
		}
		if len(group) == 0 {
			break
		}
		if !l.position.admits(loaded + int64(len(group))) {
			if steps--; steps < 0 {
				return loaded, steps
			}
			stagetest.Must(b.T, l.record(b.T.Context(), loaded, loaded+int64(l.group)))
		}
		if steps--; steps < 0 {
			return loaded, steps
		}
		stagetest.Must(b.T, l.publish(b.T.Context(), group, loaded))
		loaded += int64(len(group))
	}
	if steps--; steps >= 0 {
		stagetest.Must(b.T, l.record(b.T.Context(), loaded, loaded))
	}
	return loaded, steps
}

// finish loads to the end, and returns how many rows were there before.
func (b *loadBench) finish() int64 {
	b.T.Helper()
	l, loaded := b.loader()
	stagetest.Must(b.T, l.Run(b.T.Context(), loaded, b.source(loaded), func(int64) {}))
	return loaded
}

// answer stores the result of each row that is there, and acks it: the last row first, as a stage
// may that is not in stream order.
func (b *loadBench) answer() {
	b.T.Helper()
	var rows []jetstream.Msg
	for {
		info := stagetest.Value(b.taker.Info(b.T.Context()))(b.T)
		// The consumer learns of new rows a moment after the publisher.
		if next, err := streams.NextSequence(b.T.Context(), b.NC, "ROWS", ">", info.Delivered.Stream+1); err != nil || next == 0 {
			break
		}
		m := stagetest.Value(b.taker.Next())(b.T)
		rows = append(rows, m)
	}
	for _, m := range slices.Backward(rows) {
		md := stagetest.Value(m.Metadata())(b.T)
		b.Publish(&nats.Msg{Subject: streams.ResultSubject("results", "other-name", 0), Header: nats.Header{
			streams.HeaderSourceStream: {"ROWS"}, streams.HeaderSourceSubject: {m.Subject()}, streams.HeaderStatus: {auditlog.RowSuccess},
			streams.HeaderSourceSeq: {strconv.FormatUint(md.Sequence.Stream, 10)},
		}})
		stagetest.Must(b.T, m.DoubleAck(b.T.Context()))
		if n := m.Headers().Get(streams.HeaderLoadRow); n != "" {
			b.taken[n]++
		}
	}
}

// busy publishes a row that is not of the load, as others do.
func (b *loadBench) busy() { b.Publish(&nats.Msg{Subject: "rows.0.other", Data: []byte(`{}`)}) }

// check checks that each row was taken once.
func (b *loadBench) check() {
	b.T.Helper()
	b.answer()
	for n := range b.rows {
		if got := b.taken[strconv.FormatInt(n+1, 10)]; got != 1 {
			b.T.Errorf("row %d was answered %d times", n+1, got)
		}
	}
}

// eachCut runs a test for each kind of input and each step after which a load may end. A short
// run takes each fourth step, and one number of partitions for each kind of input with batches,
// the other one without.
func eachCut(t *testing.T, test func(b *loadBench, l *Loader, loaded int64, forget func())) {
	t.Helper()
	for i, kind := range inputKinds {
		for _, batches := range []bool{true, false} {
			for _, partitions := range []int{1, 3} {
				if testing.Short() && batches == (partitions == 1+i%2*2) {
					continue
				}
				t.Run(fmt.Sprintf("%s/batches=%v/partitions=%d", kind.name, batches, partitions), func(t *testing.T) {
					for steps, left := 0, -1; left < 0; steps += stagetest.Stride(4) {
						stagetest.Virtual(t, func(t *testing.T) {
							config := kind.config
							config.AllowAtomicPublish = batches
							b := newLoadBench(t, config, partitions)
							b.busy()
							l, loaded := b.loader()
							loaded, left = b.drive(l, loaded, steps)
							test(b, l, loaded, func() {
								b.busy()
								b.answer()
								if kind.forget != nil {
									kind.forget(b)
								}
							})
							if b.check(); t.Failed() {
								t.Fatalf("after step %d", steps)
							}
						})
						if t.Failed() {
							return
						}
					}
				})
			}
		}
	}
}

// A load may be killed after any step, and rows may be gone from the input before the next load
// begins: none is lost, none is loaded twice.
func TestAKilledLoadContinuesWhateverTheInputHasDropped(t *testing.T) {
	eachCut(t, func(b *loadBench, _ *Loader, _ int64, forget func()) {
		forget()
		b.finish()
		forget()
		if before := b.finish(); before != b.rows {
			b.T.Errorf("loading again found %d rows loaded, want %d", before, b.rows)
		}
	})
}

// A load may sleep after any step while another loads the source to its end and the input forgets
// all of it.
func TestALoadThatSleepsIsFencedByAnother(t *testing.T) {
	eachCut(t, func(b *loadBench, l *Loader, loaded int64, forget func()) {
		forget()
		before := b.finish()
		forget()
		time.Sleep(3 * time.Minute) // longer than the window in which the server knows message ids
		err := l.Run(b.T.Context(), loaded, b.source(loaded), func(int64) {})
		if before < b.rows && !errors.Is(err, errRivalLoad) {
			b.T.Errorf("the first load went on: %v", err)
		}
	})
}

func TestADeletedLastRowIsNotLoadedAgain(t *testing.T) {
	b := newLoadBench(t, jetstream.StreamConfig{}, 1)
	b.finish()
	stagetest.Must(t, b.Stream("ROWS").DeleteMsg(t.Context(), 7))
	if before := b.finish(); before != b.rows {
		t.Errorf("loading again found %d rows loaded, want %d", before, b.rows)
	}
}

// What another source, or the same file with other content, has loaded does not count for this one.
func TestPositionsBelongToOneSourceOfOneInput(t *testing.T) {
	b := newLoadBench(t, jetstream.StreamConfig{Retention: jetstream.WorkQueuePolicy}, 1)
	b.finish()
	b.answer()
	for _, id := range []string{"file2", "fil"} {
		if _, loaded, err := New(t.Context(), b.NC, b.Cfg, id, ""); err != nil || loaded != 0 {
			t.Errorf("source %s: %d rows loaded, error %v; want 0", id, loaded, err)
		}
	}
	b.rows = 20 // a named source that has grown
	if before := b.finish(); before != 7 {
		t.Errorf("a source that has grown: %d rows were there before, want 7", before)
	}
	b.check()
	b.Drop("ROWS")
	if _, err := b.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ROWS", Subjects: []string{"rows.>"}, Storage: jetstream.MemoryStorage}); err != nil {
		t.Fatal(err)
	}
	if before := b.finish(); before != 0 {
		t.Errorf("an input created again: %d rows were there before, want 0", before)
	}
}

// A power cut may take the end of the input, and leave the records in the results.
func TestRowsThatAPowerCutTookAreLoadedAgain(t *testing.T) {
	for _, refilled := range []bool{false, true} {
		b := newLoadBench(t, jetstream.StreamConfig{}, 1)
		b.finish()
		// The input as it was before the last three rows, and then with those of somebody else.
		l, loaded := b.loader()
		stagetest.Must(t, l.record(t.Context(), loaded, loaded))
		for seq := uint64(5); seq <= 7; seq++ {
			stagetest.Must(t, b.Stream("ROWS").DeleteMsg(t.Context(), seq))
		}
		record := l.position.record
		record.Last, record.End = 100, 100
		if refilled {
			b.busy()
			record.Last, record.End = 8, 8
		}
		stagetest.Must(t, l.position.write(t.Context(), record))
		m := stagetest.Value(l.position.newest(t.Context()))(t)
		s := b.Stream("ROWS").CachedInfo()
		got, err := l.position.valid(t.Context(), m, s, l.isRow)
		if err != nil || got.End == record.End {
			t.Errorf("refilled %v: record %+v counts, error %v", refilled, got, err)
		}
	}
}

// A user's own results stream that does not capture positions is refused before a row is published.
func TestLoadNeedsAPlaceForItsPosition(t *testing.T) {
	b := newLoadBench(t, jetstream.StreamConfig{}, 1)
	if _, err := b.JS.UpdateStream(t.Context(), jetstream.StreamConfig{Name: "RESULTS", Subjects: []string{"results.*.*.rows"}, Storage: jetstream.MemoryStorage}); err != nil {
		t.Fatal(err)
	}
	_, _, err := New(t.Context(), b.NC, b.Cfg, "file", "")
	if !config.IsInvalid(err) || !strings.Contains(err.Error(), "does not capture results.stage.load.ROWS.rows.0.file") {
		t.Errorf("got %v", err)
	}
}
