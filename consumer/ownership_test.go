package consumer_test

import (
	"errors"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// A drain may take minutes. A draining owner still owns the partition: a standby that took over would pay for its calls
// again.
func TestADrainKeepsThePin(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(100)
		exec := &sleeper{low: 100 * time.Second, high: 120 * time.Second}
		first := b.start("first", exec)
		time.Sleep(time.Second)
		second := b.start("second", exec)
		time.Sleep(time.Second)
		first.stop(t)
		if got := first.Status().Emitted; got != 64 {
			t.Errorf("%d rows emitted by the end of the drain, want the window of 64", got)
		}
		time.Sleep(100 * time.Millisecond)
		if got := second.Status().Role; got != consumer.Owner {
			t.Errorf("after the drain the standby is %s, want %s", got, consumer.Owner)
		}
		b.finish(second, 100)
		exec.checkOnce(t)
	})
}

// A client that subscribes to everything keeps the server from dropping requests without a listener.
func TestAListenerToEverythingDoesNotKeepRowsFromTheOwner(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		stagetest.Value(b.nc.Subscribe(">", func(*nats.Msg) {}))(t)
		b.load(300)
		for range 3 {
			first := b.start("first", &sleeper{low: time.Second, high: time.Second, latency: func(uint64) time.Duration { return time.Hour }})
			time.Sleep(time.Second)
			second := b.start("second", &sleeper{low: time.Hour, high: time.Hour})
			time.Sleep(time.Second)
			first.kill()
			time.Sleep(6 * time.Second) // two pins, and two silences
			if s := second.Status(); s.Role != consumer.Owner || s.Window != 64 {
				t.Errorf("six seconds after the owner was killed the standby is %s with %d rows, want a window of 64", s.Role, s.Window)
			}
			second.kill()
		}
		last := b.start("last", quick())
		b.finish(last, 300)
	})
}

// A reset that waits for the end of the last request keeps no answer from being emitted meanwhile.
func TestAResetThatWaitsDelaysNoAnswer(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(200)
		exec := &sleeper{latency: func(seq uint64) time.Duration { return time.Second + time.Duration(seq%64)*50*time.Millisecond }}
		cfg := b.config("run", exec)
		cfg.PinnedTTL = 30 * time.Second // a request lasts for 12
		r := b.startWith(cfg)
		time.Sleep(500 * time.Millisecond)
		stagetest.Value(b.js.ResetConsumerToSequence(t.Context(), "ROWS", streams.DurableName("stage", 0), 100))(t) // rows 65 to 99 will be missing
		time.Sleep(4 * time.Second)
		if got := r.Status().Emitted; got != 64 {
			t.Errorf("%d of 64 rows emitted when all have been answered", got)
		}
		b.finish(r, 200)
		exec.checkOnce(t)
	})
}

func TestAStandbyTakesOverWithinTwoPins(t *testing.T) {
	for name, window := range map[string]int{"rows wait in the stream": 64, "every row is taken": 300} {
		runOnTestbed(t, name, func(t *testing.T, b *testbed) {
			b.load(200)
			var most time.Duration
			for i := range 6 {
				start := func(run string) *replica {
					cfg := b.config(run, &sleeper{low: time.Hour, high: time.Hour})
					cfg.WindowRows = window
					return b.startWith(cfg)
				}
				owner := start("owner")
				time.Sleep(time.Second + time.Duration(i)*170*time.Millisecond)
				standby := start("standby")
				time.Sleep(time.Second)
				if owner.Status().Role != consumer.Owner || standby.Status().Role != consumer.Standby {
					t.Fatalf("owner %s, standby %s", owner.Status().Role, standby.Status().Role)
				}
				owner.kill()
				killed := time.Now()
				b.awaitSoon("take-over", func() bool { return standby.Status().Role == consumer.Owner })
				most = max(most, time.Since(killed))
				standby.kill()
				time.Sleep(3 * time.Second)
			}
			t.Logf("longest of 6 take-overs: %v", most.Round(time.Millisecond))
			if most > 2*time.Second {
				t.Errorf("a take-over took %v, want at most 2 s, two pins", most)
			}
		})
	}
}

// awaitSoon is await with a fine step.
func (b *testbed) awaitSoon(what string, ok func() bool) {
	b.t.Helper()
	for range 10_000 {
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	b.t.Fatalf("waited in vain for %s", what)
}

// An owner with nothing to append learns that it was fenced, too: otherwise it would keep making calls.
func TestAnOwnerThatWaitsForCallsNoticesThatItIsFenced(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(64) // the whole window: no row is left to bring anybody the pin
		first := b.start("first", &sleeper{low: time.Hour, high: time.Hour})
		time.Sleep(time.Second)
		stagetest.Must(t, b.stream("ROWS").UnpinConsumer(t.Context(), "stage-0", "stage"))
		time.Sleep(10 * time.Second)
		if got := first.Status().Role; got != consumer.Owner {
			t.Errorf("unpinned and alone: %s, want %s", got, consumer.Owner)
		}
		second := b.start("second", quick())
		b.until(64)
		if got := first.Status().Role; got != consumer.Standby {
			t.Errorf("after a rival has claimed: %s, want %s", got, consumer.Standby)
		}
		first.kill()
		second.stop(t)
		b.check(64)
	})
}

// The pin proves nothing: a rival that saw nobody pinned a moment before may claim without it.
func TestAnOwnerThatHoldsThePinNoticesThatItIsFenced(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(10)
		r := b.start("run", &sleeper{low: time.Hour, high: time.Hour})
		time.Sleep(time.Minute)
		owner := r.Status().Owner
		b.claimAsRival()
		time.Sleep(3 * time.Second)
		if got := r.Status().Owner; got == owner {
			t.Errorf("3 s after a rival's claim the term of %s is not over", owner)
		}
		r.kill()
	})
}

// claimAsRival claims the partition before any row is emitted.
func (b *testbed) claimAsRival() {
	b.t.Helper()
	claim := nats.NewMsg("results.stage.0.claim")
	claim.Header.Set(streams.HeaderOwner, "rival.1")
	claim.Header.Set(streams.HeaderSourceSeq, "0")
	claim.Data = b.read("RESULTS", "results.stage.0.claim")[0].Data()
	stagetest.Value(b.js.PublishMsg(b.t.Context(), claim))(b.t)
}

// A rival that sees nobody pinned claims and resets the consumer, and the request of the owner it has fenced is the one
// that waits. If that owner did not claim again, the pin would keep all rows from everybody until it expires, when the
// next rival sees nobody pinned.
func TestWhoGetsThePinWithTheRivalsResetClaimsAgain(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(10)
		exec := &sleeper{low: time.Minute, high: 2 * time.Minute}
		r := b.start("run", exec)
		time.Sleep(2500 * time.Millisecond)
		owner := r.Status().Owner
		// Somebody else gets the pin with a row, and is gone: the owner's next request has no pin.
		b.unpin()
		other := stagetest.Value(b.nc.SubscribeSync(b.nc.NewInbox()))(t)
		stagetest.Must(t, b.nc.PublishRequest("$JS.API.CONSUMER.MSG.NEXT.ROWS.stage-0", other.Subject, []byte(`{"batch":1,"group":"stage","expires":1000000000}`)))
		b.loadFrom(10, 1)
		time.Sleep(1500 * time.Millisecond)
		if got := r.Status().Owner; got != owner || owner == "" {
			t.Fatalf("when the pin has expired the owner is %q, want %q as before", got, owner)
		}
		b.claimAsRival()
		b.resetDurable(1)
		time.Sleep(500 * time.Millisecond) // half a pin
		if s := r.Status(); s.Role != consumer.Owner || s.Owner == owner || s.Window != 11 {
			t.Errorf("half a second after the rival's reset: %s of term %q with %d rows; want an owner, of another term than %q, with 11", s.Role, s.Owner, s.Window, owner)
		}
		r.stopAfter(b, 11)
		exec.checkOnce(t)
	})
}

func TestAConnectionClosedForGoodEndsRun(t *testing.T) {
	for name, step := range map[string]string{"during a take-over": "claimed", "idle": "never"} {
		runOnTestbed(t, name, func(t *testing.T, b *testbed) {
			b.load(10)
			nc := b.connect()
			r := b.startOn(nc, consumer.WithHook(b.config("run", quick()), func(at string) {
				if at == step {
					nc.Close()
				}
			}))
			if step == "never" {
				b.until(10)
				nc.Close()
			}
			if err := <-r.done; !errors.Is(err, nats.ErrConnectionClosed) {
				t.Errorf("run ended with %v, want %v", err, nats.ErrConnectionClosed)
			}
			r.hard()
		})
	}
}

// Two stages on the same streams never touch each other.
func TestStagesWithDifferentNamesShareStreams(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(200)
		exec := quick()
		first := b.start("first", exec)
		cfg := b.config("other", &sleeper{low: 50 * time.Millisecond, high: 500 * time.Millisecond})
		cfg.Name = "other"
		other := b.startWith(cfg)
		b.until(200)
		b.await("200 results of the other", func() bool { return b.stored("RESULTS", "results.other.0.rows") == 200 })
		first.stop(t)
		other.stop(t)
		b.check(200)
		for _, r := range []*replica{first, other} {
			if s := r.Status(); s.Emitted != 200 || s.Skipped != 0 {
				t.Errorf("emitted %d, skipped %d; want 200 and 0", s.Emitted, s.Skipped)
			}
		}
	})
}

// The head of the line waits for a long time behind an outage: no redelivery, the pin is kept, and the window bounds
// what is held.
func TestALongTimeBehindAnOutage(t *testing.T) {
	for name, c := range map[string]struct {
		windowBytes int64
		outage      time.Duration
	}{
		"window full of rows":  {0, scaled().aLongTime},
		"window full of bytes": {1000, 5 * time.Minute},
	} {
		runOnTestbed(t, name, func(t *testing.T, b *testbed) {
			b.load(200)
			exec := slowRow(1, c.outage, time.Second)
			cfg := b.config("run", exec)
			cfg.WindowBytes = c.windowBytes
			r := b.startWith(cfg)
			time.Sleep(time.Second)
			standby := b.start("standby", quick())
			time.Sleep(time.Minute)
			before, owner := b.durable(), r.Status().Owner
			time.Sleep(c.outage - 2*time.Minute)
			after, s := b.durable(), r.Status()
			if s.Owner != owner || owner == "" || standby.Status().Role != consumer.Standby {
				t.Errorf("owner %q, was %q; standby is %s", s.Owner, owner, standby.Status().Role)
			}
			if after.NumRedelivered != 0 || after.Delivered.Consumer != before.Delivered.Consumer {
				t.Errorf("delivered %d, was %d, redelivered %d; want no delivery meanwhile", after.Delivered.Consumer, before.Delivered.Consumer, after.NumRedelivered)
			}
			if s.Window > 64 || s.BufferedBytes > 64*64 || s.Window != s.Buffered+1 {
				t.Errorf("window %d, buffered %d, %d bytes", s.Window, s.Buffered, s.BufferedBytes)
			}
			if !s.HeadSince.Before(time.Now().Add(time.Minute-c.outage)) || s.Head != 1 || s.Problem != "" {
				t.Errorf("head %d since %v, problem %q", s.Head, s.HeadSince, s.Problem)
			}
			standby.stopAfter(b, 200)
			r.stop(t)
			b.check(200)
			exec.checkOnce(t)
		})
	}
}

// The next row is larger than the room that is left; that is not taken for a problem of the consumer.
func TestALargeRowWaitsForRoom(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(20)
		stagetest.Value(b.js.Publish(t.Context(), "rows.a", make([]byte, 2000)))(t)
		exec := &sleeper{latency: slowHead}
		cfg := b.config("run", exec)
		cfg.WindowBytes = 1500
		r := b.startWith(cfg)
		time.Sleep(time.Minute)
		before := b.durable()
		time.Sleep(5 * time.Minute)
		if after := b.durable(); after.Delivered.Consumer != before.Delivered.Consumer || before.Delivered.Consumer != 20 {
			t.Errorf("delivered %d, was %d; want 20 rows, and nothing after", after.Delivered.Consumer, before.Delivered.Consumer)
		}
		r.stopAfter(b, 21)
	})
}

// A row larger than the window's bytes is let in alone.
func TestARowLargerThanTheWindowPasses(t *testing.T) {
	onTestbed(t, func(_ *testing.T, b *testbed) {
		b.load(50)
		cfg := b.config("run", quick())
		cfg.WindowBytes = 5
		r := b.startWith(cfg)
		b.finish(r, 50)
	})
}

// A reset in the middle of a term leaves the consumer behind the rows that are held: none of them waits or is unacked
// for the server. The replica that takes over after a kill must not wait for a new row, nor refuse to begin before the
// consumer does: servers before 2.14 can't set it back, so it is re-created there, and begins where it was set to.
func TestATakeOverAfterAResetWithoutANewRow(t *testing.T) {
	for name, c := range map[string]struct {
		version string // of the server, if it is not the true one
		waits   bool   // a standby is there from the beginning
	}{
		"a standby": {waits: true}, "the next start": {}, "the next start, old server": {version: "2.12.9"},
	} {
		runOnTestbed(t, name, func(t *testing.T, b *testbed) {
			start := func(run string) *replica {
				l := newLink(b.InProcessConn, leastLatency)
				l.version = c.version
				nc := b.connectBy(l)
				return b.startOn(nc, b.config(run, &sleeper{latency: slowHead, over: t.Context().Done()}))
			}
			owner := start("first")
			var next *replica
			if c.waits {
				next = start("second")
			}
			time.Sleep(5 * time.Second)
			b.load(40)
			time.Sleep(5 * time.Second)
			if c.waits && next.Status().Role == consumer.Owner {
				owner, next = next, owner
			}
			b.resetDurable(1) // the owner sets it back to where it was
			time.Sleep(5 * time.Second)
			if got := b.durable(); got.NumAckPending+int(got.NumPending) != 0 {
				t.Fatalf("%d rows unacked, %d pending; want all behind the consumer", got.NumAckPending, got.NumPending)
			}
			owner.kill()
			if !c.waits {
				next = start("second")
			}
			b.finish(next, 40)
		})
	}
}
