package consumer_test

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go/jetstream"
)

// checkSeqs reads the results: exactly the rows with these sequences, in order.
func (b *testbed) checkSeqs(want []uint64) {
	b.t.Helper()
	results := b.read("RESULTS", "results.stage.0.rows")
	for i, m := range results {
		seq := stagetest.Value(strconv.ParseUint(m.Headers().Get(streams.HeaderSourceSeq), 10, 64))(b.t)
		if i >= len(want) || seq != want[i] {
			b.t.Fatalf("result %d of %d is of row %d; want %v", i, len(results), seq, want)
		}
	}
	if len(results) != len(want) {
		b.t.Fatalf("%d results, want %d", len(results), len(want))
	}
	b.checkAudit(results, nil)
}

func seqs(from, to uint64, keep func(uint64) bool) (list []uint64) {
	for s := from; s <= to; s++ {
		if keep == nil || keep(s) {
			list = append(list, s)
		}
	}
	return list
}

func (b *testbed) stream(name string) jetstream.Stream {
	b.t.Helper()
	return stagetest.Value(b.js.Stream(b.t.Context(), name))(b.t)
}

// alter changes the configuration of a stream.
func (b *testbed) alter(name string, change func(*jetstream.StreamConfig)) {
	b.t.Helper()
	cfg := b.stream(name).CachedInfo().Config
	change(&cfg)
	stagetest.Value(b.js.UpdateStream(b.t.Context(), cfg))(b.t)
}

// largestResult sets how large a result may be.
func (b *testbed) largestResult(bytes int32) {
	b.t.Helper()
	b.alter("RESULTS", func(c *jetstream.StreamConfig) { c.MaxMsgSize = bytes })
}

func (b *testbed) deleteRows(seqs ...uint64) {
	b.t.Helper()
	for _, s := range seqs {
		stagetest.Must(b.t, b.stream("ROWS").DeleteMsg(b.t.Context(), s))
	}
}

func quick() *sleeper { return &sleeper{low: 50 * time.Millisecond, high: 500 * time.Millisecond} }

func TestOnlyTheFilteredSubjectsAreRows(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		for i := range 300 {
			stagetest.Value(b.js.Publish(t.Context(), "rows."+strconv.Itoa(i%3), []byte("{}")))(t)
		}
		cfg := b.config("run", quick())
		cfg.InputSubject = "rows.1"
		r := b.startWith(cfg)
		b.until(50)
		r.kill()
		cfg = b.config("again", quick())
		cfg.InputSubject = "rows.1"
		r = b.startWith(cfg)
		r.stopAfter(b, 100)
		b.checkSeqs(seqs(1, 300, func(s uint64) bool { return s%3 == 2 }))
	})
}

func TestRowsDeletedBeforeTheyAreTakenAreNoGap(t *testing.T) {
	onTestbed(t, func(_ *testing.T, b *testbed) {
		b.load(200)
		b.deleteRows(1, 2, 50, 51, 52, 120)
		r := b.start("run", quick())
		b.until(40) // the window reaches to about 100
		b.deleteRows(190, 191, 200)
		r.stopAfter(b, 191)
		gone := map[uint64]bool{1: true, 2: true, 50: true, 51: true, 52: true, 120: true, 190: true, 191: true, 200: true}
		b.checkSeqs(seqs(1, 200, func(s uint64) bool { return !gone[s] }))
	})
}

// A row that is deleted while the stage holds it still gets its result. After a purge of the input the rows that are held
// get theirs, and the next results are those of rows that are published later.
func TestARowDeletedWhileItIsHeldKeepsItsResult(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(300)
		r := b.start("run", &sleeper{low: 5 * time.Second, high: 10 * time.Second})
		time.Sleep(time.Second) // 64 rows are held
		b.deleteRows(1, 30, 64)
		stagetest.Must(t, b.stream("ROWS").Purge(t.Context()))
		b.until(64)
		b.loadFrom(300, 50)
		r.stopAfter(b, 114)
		b.checkSeqs(append(seqs(1, 64, nil), seqs(301, 350, nil)...))
	})
}

// A crash loses the held results of rows that are deleted by then; later rows are processed as usual.
func TestAPurgeAndAKill(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(300)
		r := b.start("run", quick())
		b.until(100)
		r.kill()
		done := b.results()
		stagetest.Must(t, b.stream("ROWS").Purge(t.Context()))
		b.loadFrom(300, 50)
		r = b.start("again", quick())
		r.stopAfter(b, done+50)
		b.checkSeqs(append(seqs(1, uint64(done), nil), seqs(301, 350, nil)...))
	})
}

func TestRowsExpire(t *testing.T) {
	virtual(t, func(t *testing.T) {
		b := bare(t)
		s := stageStreams()
		stagetest.Value(b.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ROWS", Subjects: []string{"rows.>"}, MaxAge: time.Minute}))(t)
		stagetest.Must(t, streams.Ensure(t.Context(), b.nc, s))
		b.load(100)
		time.Sleep(2 * time.Minute) // before anybody took them
		b.loadFrom(100, 100)
		r := b.start("run", &sleeper{low: 4 * time.Minute, high: 5 * time.Minute}) // 64 of them expire while held, the rest waiting
		time.Sleep(2 * time.Minute)
		b.loadFrom(200, 10)
		b.until(64)
		b.loadFrom(210, 10)
		time.Sleep(6 * time.Minute)
		r.stop(t)
		// Rows 201-210 had expired by the time that there was room for them.
		b.checkSeqs(append(seqs(101, 164, nil), seqs(211, 220, nil)...))
	})
}

func TestWorkQueueAndInterestInput(t *testing.T) {
	for _, retention := range []jetstream.RetentionPolicy{jetstream.WorkQueuePolicy, jetstream.InterestPolicy} {
		runVirtual(t, retention.String(), func(t *testing.T) {
			b := bare(t)
			stagetest.Value(b.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ROWS", Subjects: []string{"rows.>"}, Retention: retention}))(t)
			stagetest.Must(t, streams.Ensure(t.Context(), b.nc, stageStreams()))
			r := b.start("first", quick())
			b.await("durable", func() bool {
				_, err := b.js.Consumer(t.Context(), "ROWS", "stage-0")
				return err == nil
			})
			b.load(400)
			b.until(100)
			r.kill()
			r = b.start("second", quick())
			b.until(200)
			b.resetDurable(0)
			r.stopAfter(b, 300)
			r = b.start("third", quick())
			b.until(400)
			time.Sleep(time.Second)
			if got := b.stored("ROWS", "rows.a"); got != 0 {
				t.Errorf("%d rows left in the input after their results, want 0", got)
			}
			r.stop(t)
			b.check(400)
		})
	}
}

func (b *testbed) resetDurable(seq uint64) {
	b.t.Helper()
	stagetest.Value(b.js.ResetConsumerToSequence(b.t.Context(), "ROWS", "stage-0", seq))(b.t)
}

func TestResetsBySomebodyElseChangeNothing(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(600)
		exec := quick()
		r := b.start("run", exec)
		for i := range 10 {
			b.until(50 * (i + 1))
			b.resetDurable([]uint64{1, 600, 300, 0, 20}[i%5])
		}
		b.until(600)
		time.Sleep(5 * time.Second)
		if got := b.durable(); got.NumAckPending != 0 || got.AckFloor.Stream != 600 {
			t.Errorf("ack pending %d, floor %d, want 0 and 600", got.NumAckPending, got.AckFloor.Stream)
		}
		r.stop(t)
		b.check(600)
		exec.checkOnce(t)
	})
}

// A rival that is pinned by force takes rows and acks them, as a person with the command line would.
func TestRowsTakenAndAckedBySomebodyElse(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(300)
		r := b.start("run", quick())
		for i := range 4 {
			b.until(50 * (i + 1))
			if err := b.stream("ROWS").UnpinConsumer(t.Context(), "stage-0", "stage"); err != nil {
				t.Logf("unpin: %v", err)
			}
			c := stagetest.Value(b.js.Consumer(t.Context(), "ROWS", "stage-0"))(t)
			batch := stagetest.Value(c.Fetch(10, jetstream.FetchPriorityGroup("stage"), jetstream.FetchMaxWait(time.Second)))(t)
			n := 0
			for m := range batch.Messages() {
				_ = m.Ack()
				n++
			}
			if err := batch.Error(); err != nil && !errors.Is(err, jetstream.ErrPinIDMismatch) {
				t.Logf("rival fetch: %v", err)
			}
			t.Logf("rival took %d rows", n)
		}
		b.finish(r, 300)
	})
}

// A shortened ack wait has the server deliver what is held again and again.
func TestRedeliveriesChangeNothing(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(100)
		exec := &sleeper{low: 50 * time.Second, high: 60 * time.Second}
		r := b.start("run", exec)
		time.Sleep(time.Second)
		cfg := b.durable().Config
		cfg.AckWait = 2 * time.Second
		stagetest.Value(b.js.UpdateConsumer(t.Context(), "ROWS", cfg))(t)
		b.finish(r, 100)
		exec.checkOnce(t)
	})
}

func TestARecreatedStreamIsNotTakenForTheOldOne(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(100)
		r := b.start("run", quick())
		b.until(100)
		stagetest.Must(t, b.js.DeleteStream(t.Context(), "ROWS"))
		time.Sleep(5 * time.Second)
		stagetest.Must(t, streams.Ensure(t.Context(), b.nc, stageStreams()))
		b.load(100)
		if err := <-r.done; !errors.Is(err, consumer.ErrInputRecreated) {
			t.Errorf("run ended with %v, want %v", err, consumer.ErrInputRecreated)
		}
		r.kill()
		cfg := b.config("again", quick())
		cfg.NewInput = true
		r = b.startWith(cfg)
		b.until(200)
		// And once more while it runs, with rows of the old stream in flight: their answers must not be taken for those
		// of new rows.
		b.loadFrom(100, 50)
		time.Sleep(20 * time.Millisecond)
		stagetest.Must(t, b.js.DeleteStream(t.Context(), "ROWS"))
		stagetest.Must(t, streams.Ensure(t.Context(), b.nc, stageStreams()))
		for i := range 150 {
			stagetest.Value(b.js.Publish(t.Context(), "rows.a", []byte(fmt.Sprintf(`{"new":%d}`, i))))(t)
		}
		done := b.results()
		r.stopAfter(b, done+150)
		results := b.read("RESULTS", "results.stage.0.rows")
		for i, m := range results[len(results)-150:] {
			if got, want := string(m.Data()), fmt.Sprintf(`done {"new":%d}`, i); got != want {
				t.Fatalf("result %d of the new stream: %s, want %s", i, got, want)
			}
		}
	})
}

// The server ends a request whose rows have all come with a status message where the request had room for more bytes.
// That is not a refusal, so no wait follows. Nor is there one where the consumer allows no request of the whole window: a
// refused request would be followed by one for a single row.
func TestTheNextRowsAreRequestedAtOnce(t *testing.T) {
	for most, limit := range map[int]time.Duration{0: 100 * time.Millisecond, 300: time.Second} {
		runOnTestbed(t, fmt.Sprint("at most ", most), func(t *testing.T, b *testbed) {
			b.load(1500)
			cfg := b.config("run", &sleeper{})
			cfg.WindowRows = 1024
			stagetest.Value(b.js.CreateConsumer(t.Context(), "ROWS", jetstream.ConsumerConfig{
				Durable: "stage-0", FilterSubject: "rows.>", AckPolicy: jetstream.AckAllPolicy, MaxAckPending: 1024, MaxDeliver: -1, AckWait: 24 * time.Hour,
				PriorityPolicy: jetstream.PriorityPolicyPinned, PriorityGroups: []string{"stage"}, PinnedTTL: time.Second, MaxRequestBatch: most,
			}))(t)
			b.finish(b.startWith(cfg), 1500)
			results := b.read("RESULTS", resultRows)
			if took := storedAt(b, results[1499]).Timestamp.Sub(storedAt(b, results[0]).Timestamp); took > limit {
				t.Errorf("1500 rows that are answered at once took %v, want hardly any time", took)
			}
		})
	}
}
