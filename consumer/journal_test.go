package consumer_test

import (
	"encoding/json"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// slowHead answers row 1 after a quarter of an hour and every other after a second.
func slowHead(seq uint64) time.Duration {
	if seq == 1 {
		return 15 * time.Minute
	}
	return time.Second
}

// answerRest starts a replica, which answers those of n rows that have no result yet. It checks how many calls the replica
// makes, and how many replies it finds in the journal.
func (b *testbed) answerRest(n, calls, kept int) {
	b.t.Helper()
	exec := &sleeper{low: time.Second, high: time.Second}
	b.finish(b.start("rest", exec), n)
	if len(exec.calls) != calls || exec.kept != kept {
		b.t.Errorf("%d rows called, %d from the journal, want %d and %d", len(exec.calls), exec.kept, calls, kept)
	}
}

// Replies whose turn has come are about to be stored; in the journal as well they would cost twice. They go there only
// if that takes long.
func TestAReplyWhoseTurnHasComeIsKeptOnlyWhereTheResultsAreStuck(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(1)
		first := &sleeper{low: 10 * time.Millisecond, high: 10 * time.Millisecond}
		r := b.start("first", first)
		b.until(1)
		b.limit("RESULTS", 1)
		b.loadFrom(1, 64)
		time.Sleep(10*time.Millisecond + 70*time.Millisecond) // later than JournalAfter
		if got := b.stored("JOURNAL", "journal.stage.0.>"); got > 1 {
			t.Errorf("%d messages in the journal after 70 ms, want none but the marker", got)
		}
		time.Sleep(30 * time.Millisecond)
		if got := b.stored("JOURNAL", "journal.stage.0.>"); got < 64 {
			t.Errorf("%d messages in the journal after a tenth of a second, want all 64 rows", got)
		}
		r.kill()
		b.limit("RESULTS", -1)
		b.answerRest(65, 0, 64)
	})
}

// Results come faster than they could go one by one, and each group takes 60 ms: a reply waits for the group before its
// own, and for its own, up to 120 ms. Nothing is stuck, and no reply goes to the journal.
func TestRepliesThatAreStoredInSlowGroupsAreNotKept(t *testing.T) {
	virtual(t, func(t *testing.T) {
		b := newTestbed(t)
		exec := &sleeper{low: time.Millisecond, high: time.Millisecond}
		var begun atomic.Bool // the group in flight
		r := b.startWith(consumer.WithHook(b.config("run", exec), func(step string) {
			switch {
			case step == "acked":
				begun.Store(false)
			case step == "appending" && !begun.Swap(true):
				time.Sleep(60 * time.Millisecond)
			}
		}))
		feed := func(first, n int) {
			for i := range n {
				b.loadFrom(first+i, 1)
				time.Sleep(5 * time.Millisecond)
			}
		}
		feed(0, 200) // until the time of a group is known
		b.until(200)
		before := b.lastKept()
		feed(200, 400)
		b.until(600)
		if got := b.lastKept() - before; got > 0 {
			t.Errorf("%d of 400 replies went to the journal, want none", got)
		}
		r.stop(t)
		b.check(600)
	})
}

// The replies to rows that wait for an earlier one outlive each kill, and nothing is paid for twice.
func TestAReplyThatWaitsForAnEarlierRowIsNotPaidForAgainAfterAKill(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(200)
		var execs []*sleeper
		for _, run := range []string{"first", "second", "third"} {
			exec := &sleeper{latency: slowHead, drain: make(chan struct{})}
			r := b.start(run, exec)
			time.Sleep(10 * time.Second)
			if got := b.stored("JOURNAL", "journal.stage.0.>"); got != 63 {
				t.Errorf("%s: %d messages in the journal, want the 63 rows that wait", run, got)
			}
			r.kill()
			close(exec.drain)
			exec.wg.Wait()
			execs = append(execs, exec)
		}
		last := &sleeper{low: time.Second, high: time.Second}
		b.finish(b.start("last", last), 200)
		for i, calls := range []int{64, 1, 1, 200 - 63} {
			exec := append(execs, last)[i]
			if len(exec.calls) != calls || exec.kept != min(i, 1)*63 {
				t.Errorf("run %d: %d rows called, %d from the journal, want %d and 63 but in the first", i, len(exec.calls), exec.kept, calls)
			}
		}
	})
}

// A process that begins a new term still has its replies in memory; they are in the journal by then.
func TestANewTermKeepsNoReplyTwice(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(64)
		r := b.start("run", &sleeper{latency: slowHead})
		time.Sleep(10 * time.Second)
		for range 5 {
			b.stopServer()
			b.startServer()
			time.Sleep(10 * time.Second)
		}
		if got, most := b.stored("JOURNAL", "journal.stage.0.>"), 63+6; got > most {
			t.Errorf("%d messages in the journal after 6 terms, want at most %d: each waiting reply, and each term's marker", got, most)
		}
		r.kill()
	})
}

func TestADrainKeepsWhatIsStuckBehindARowHandedBack(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(64)
		first := &sleeper{latency: slowHead, drain: make(chan struct{})}
		cfg := b.config("first", first)
		cfg.JournalAfter = time.Hour
		r := b.startWith(cfg)
		time.Sleep(10 * time.Second)
		if got := b.stored("JOURNAL", "journal.stage.0.>"); got != 0 {
			t.Errorf("%d messages in the journal too early, want none", got)
		}
		close(first.drain) // row 1 has no call in flight: it is handed back
		r.stop(t)
		b.answerRest(64, 1, 63)
	})
}

// The journal is purged as the head moves. Nobody may come after a stage that is stopped, and replies are not to lie about
// for as long as the stream keeps them. Those of another stage stay.
func TestTheJournalIsPurgedAsTheHeadMoves(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		stagetest.Value(b.js.Publish(t.Context(), "journal.other.0.5.row", []byte("mine")))(t)
		b.load(1000)
		exec := &sleeper{low: 50 * time.Millisecond, high: 2 * time.Second}
		r := b.start("run", exec)
		b.until(500)
		// Entries of the window, and those of rows emitted in the last second.
		if got := b.stored("JOURNAL", "journal.stage.0.>"); got > 300 {
			t.Errorf("%d messages in the journal half way, want no more than a few windows of 64", got)
		}
		b.until(1000)
		time.Sleep(3 * time.Second)
		if got := b.stored("JOURNAL", "journal.stage.0.>"); got != 0 {
			t.Errorf("%d messages in the journal at the end, want none", got)
		}
		b.loadFrom(1000, 100)
		b.finish(r, 1100)
		if got, others := b.stored("JOURNAL", "journal.stage.0.>"), b.stored("JOURNAL", "journal.other.0.>"); got != 0 || others != 1 {
			t.Errorf("%d messages in the journal and %d of another stage, want none and 1", got, others)
		}
	})
}

func TestTheStageWorksWhileTheJournalIsGoneOrFull(t *testing.T) {
	for name, c := range map[string]struct {
		breakIt, fix func(t *testing.T, b *testbed)
		why          string
	}{
		"gone": {
			breakIt: func(t *testing.T, b *testbed) {
				t.Helper()
				stagetest.Must(t, b.js.DeleteStream(t.Context(), "JOURNAL"))
			},
			fix: func(t *testing.T, b *testbed) {
				t.Helper()
				stagetest.Must(t, streams.Ensure(t.Context(), b.nc, stageStreams()))
			},
			why: "no stream captures",
		},
		"full": {
			breakIt: func(t *testing.T, b *testbed) { t.Helper(); b.limit("JOURNAL", 1) },
			fix:     func(t *testing.T, b *testbed) { t.Helper(); b.limit("JOURNAL", -1) },
			why:     "maximum bytes exceeded",
		},
	} {
		runOnTestbed(t, name, func(t *testing.T, b *testbed) {
			b.load(400)
			exec := &sleeper{low: 50 * time.Millisecond, high: 2 * time.Second}
			r := b.start("run", exec)
			b.until(50)
			c.breakIt(t, b)
			b.until(200)
			s := r.Status()
			if !strings.Contains(s.JournalProblem, c.why) || s.Problem != "" {
				t.Errorf("journal problem %q, problem %q; want %q, and nothing blocked", s.JournalProblem, s.Problem, c.why)
			}
			c.fix(t, b)
			b.until(390)
			if s := r.Status(); s.JournalProblem != "" {
				t.Errorf("journal problem %q after it was fixed", s.JournalProblem)
			}
			b.finish(r, 400)
			// And from the start, with a kill in between.
			c.breakIt(t, b)
			b.loadFrom(400, 100)
			r = b.start("again", exec)
			b.until(450)
			r.kill()
			r = b.start("last", exec)
			b.finish(r, 500)
		})
	}
}

// A stage without a journal sends it nothing, waits for nothing of it, and hands over and continues after a kill.
func TestWithoutAJournalNothingIsSentToOne(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(300)
		var asked []*nats.Subscription
		for _, subject := range []string{"journal.>", "$JS.API.STREAM.PURGE.JOURNAL", "$JS.API.DIRECT.GET.JOURNAL"} {
			sub := stagetest.Value(b.nc.SubscribeSync(subject))(t)
			asked = append(asked, sub)
		}
		for _, run := range []string{"stopped", "killed", "last"} {
			exec := &sleeper{latency: slowHead, drain: make(chan struct{})}
			if run == "last" {
				exec.latency, exec.high = nil, time.Second
			}
			cfg := b.config(run, exec)
			cfg.Journal = false
			r := b.startWith(cfg)
			time.Sleep(10 * time.Second)
			if s := r.Status(); s.Problem != "" || s.JournalProblem != "" {
				t.Errorf("%s: problem %q, journal problem %q", run, s.Problem, s.JournalProblem)
			}
			if run == "last" {
				b.until(300)
			}
			close(exec.drain)
			if run == "killed" {
				r.kill()
			} else {
				r.stop(t)
			}
			exec.wg.Wait()
		}
		b.check(300)
		for _, sub := range asked {
			if n, _, err := sub.Pending(); err != nil || n > 0 {
				t.Errorf("%d messages on %s, error %v; want none", n, sub.Subject, err)
			}
		}
	})
}

// A journal that does not answer delays rows for a moment; they survive if the term ends meanwhile.
func TestRowsThatWaitForTheJournalAreNotForgotten(t *testing.T) {
	virtual(t, func(t *testing.T) {
		b := asUser(t, "$JS.API.STREAM.INFO.JOURNAL", "journal.>")
		b.load(100)
		exec := quick()
		r := b.start("run", exec)
		time.Sleep(7 * time.Second) // for what an older version may have kept, and for what earlier terms have
		if s := r.Status(); s.Window != 64 || len(exec.calls) != 0 {
			t.Fatalf("%d rows taken, %d started; want 64 that wait", s.Window, len(exec.calls))
		}
		b.stopServer()
		b.startServer()
		b.until(100)
		if s := r.Status(); s.Problem != "" || s.JournalProblem == "" {
			t.Errorf("problem %q, journal problem %q; want the second alone", s.Problem, s.JournalProblem)
		}
		r.stop(t)
		b.check(100)
	})
}

// A journal that stores fewer entries than rows are emitted, here none, gets no more than a bounded number of them ahead.
// Rows are emitted all the same.
func TestASlowJournalIsNotSentMoreThanItTakes(t *testing.T) {
	virtual(t, func(t *testing.T) {
		b := asUser(t, "journal.>")
		b.load(1000)
		cfg := b.config("run", quick())
		cfg.JournalAfter = 0
		var kept atomic.Int64
		r := b.startWith(consumer.WithHook(cfg, func(step string) {
			if step == "kept" {
				kept.Add(1)
			}
		}))
		b.until(1000)
		if got, most := kept.Load(), int64(256+64+10); got > most {
			t.Errorf("%d entries were sent of 1000 rows, want at most %d without an answer", got, most)
		}
		r.stop(t)
		b.check(1000)
	})
}

// One that is slow and answers again is used again.
func TestAJournalThatAnswersAgainIsUsedAgain(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		b.load(1000)
		b.limit("JOURNAL", 1)
		cfg := b.config("run", quick())
		cfg.JournalAfter = 0
		r := b.startWith(cfg)
		b.until(500)
		b.limit("JOURNAL", -1)
		b.until(1000)
		b.loadFrom(1000, 500)
		before := b.lastKept()
		b.until(1500)
		if got := b.lastKept() - before; got < 250 {
			t.Errorf("%d entries of 500 rows stored after the journal has room again", got)
		}
		r.stop(t)
		b.check(1500)
	})
}

// lastKept is the sequence of the last message that the journal has stored.
func (b *testbed) lastKept() uint64 {
	b.t.Helper()
	return b.stream("JOURNAL").CachedInfo().State.LastSeq
}

// limit sets the most bytes that a stream takes, and lets it refuse more.
func (b *testbed) limit(stream string, bytes int64) {
	b.t.Helper()
	b.alter(stream, func(c *jetstream.StreamConfig) { c.MaxBytes, c.Discard = bytes, jetstream.DiscardNew })
}

// A replica of the journal lags: it does not have replies yet that its leader has. Here the test answers in the place of
// one, and an owner that asks for a reply is told five times that there is none.
func TestAReplicaThatLagsIsAskedAgain(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		first := b.killedWith63Kept()
		b.alter("JOURNAL", func(c *jetstream.StreamConfig) { c.AllowDirect = false })
		asked := make(map[string]int)
		stagetest.Value(b.nc.Subscribe("$JS.API.DIRECT.GET.JOURNAL", func(m *nats.Msg) {
			var request struct {
				Subject string `json:"last_by_subj"`
			}
			stagetest.Must(t, json.Unmarshal(m.Data, &request))
			if asked[request.Subject]++; asked[request.Subject] <= 5 {
				stagetest.Must(t, m.RespondMsg(&nats.Msg{Header: nats.Header{"Status": {"404"}, "Description": {"Message Not Found"}}}))
				return
			}
			raw := stagetest.Value(b.stream("JOURNAL").GetLastMsgForSubject(t.Context(), request.Subject))(t)
			raw.Header.Set(jetstream.SequenceHeader, strconv.FormatUint(raw.Sequence, 10))
			stagetest.Must(t, m.RespondMsg(&nats.Msg{Header: raw.Header, Data: raw.Data}))
		}))(t)
		b.answerRest(64, 1, 63)
		first.wg.Wait()
	})
}

// killedWith63Kept has an owner answer 63 rows behind a slow one, and kills it once the journal has their replies.
func (b *testbed) killedWith63Kept() *sleeper {
	b.load(64)
	first := &sleeper{latency: slowHead, drain: make(chan struct{})}
	r := b.start("first", first)
	time.Sleep(10 * time.Second)
	r.kill()
	close(first.drain)
	return first
}

// Where nobody answers what is asked of the journal, the rows wait for that once, and not one lot after the other.
func TestRowsWaitOnceForAJournalThatIsSilent(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		first := b.killedWith63Kept()
		b.alter("JOURNAL", func(c *jetstream.StreamConfig) { c.AllowDirect = false })
		stagetest.Value(b.nc.Subscribe("$JS.API.DIRECT.GET.JOURNAL", func(*nats.Msg) {}))(t)
		began := time.Now()
		r := b.start("second", &sleeper{low: time.Second, high: time.Second})
		b.finish(r, 64)
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("64 rows took %v", took)
		}
		first.wg.Wait()
	})
}

// A row that may not start does not keep the term busy once the time for its replies is over.
func TestAPausedRowWhoseReplyIsMissingCostsNoTurns(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		first := b.killedWith63Kept()
		b.alter("JOURNAL", func(c *jetstream.StreamConfig) { c.AllowDirect = false })
		stagetest.Value(b.nc.Subscribe("$JS.API.DIRECT.GET.JOURNAL", func(*nats.Msg) {}))(t)
		var passes atomic.Int64
		cfg := b.config("second", &sleeper{low: time.Second, high: time.Second})
		r := b.startWith(consumer.WithHook(cfg, func(step string) {
			if step == "pass" && passes.Add(1) > 10_000 {
				panic("the term turns without rest") // virtual time stands still
			}
		}))
		b.awaitSoon("the first replies to be asked for", func() bool { return r.Status().Window == 64 })
		time.Sleep(time.Second)
		r.Pause(true)
		time.Sleep(time.Minute)
		r.Pause(false)
		b.finish(r, 64)
		first.wg.Wait()
	})
}

// What an older version has kept is on one subject for all rows of a partition. A stream that has no room for it twice
// has room for it all the same.
func TestWhatAnOlderVersionHasKeptIsNotPaidForAgain(t *testing.T) {
	for _, tt := range []struct {
		name string
		room func(used uint64) int64 // of the stream
	}{
		{"room", func(uint64) int64 { return -1 }},
		{"half", func(used uint64) int64 { return int64(used + used/2) }},
		{"little", func(used uint64) int64 { return int64(used + used/16) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			onTestbed(t, func(t *testing.T, b *testbed) {
				first := b.killedWith63Kept()
				kept := b.read("JOURNAL", "journal.stage.0.>")
				journal := b.stream("JOURNAL")
				stagetest.Must(t, journal.Purge(t.Context()))
				stagetest.Value(b.js.PublishMsg(t.Context(), &nats.Msg{Subject: "journal.stage.0", Header: nats.Header{"Stage-Marker": {"1"}}}))(t)
				for _, m := range kept {
					stagetest.Value(b.js.PublishMsg(t.Context(), &nats.Msg{Subject: "journal.stage.0", Header: m.Headers(), Data: m.Data()}))(t)
				}
				cfg := stagetest.Value(journal.Info(t.Context()))(t)
				cfg.Config.MaxBytes = tt.room(cfg.State.Bytes)
				stagetest.Value(b.js.UpdateStream(t.Context(), cfg.Config))(t)
				b.answerRest(64, 1, 63)
				if got := b.stored("JOURNAL", "journal.>"); got != 0 {
					t.Errorf("%d messages are left in the journal", got)
				}
				first.wg.Wait()
			})
		})
	}
}

// Until somebody allows the new subjects, the partition waits rather than pay again for what an older version has kept.
func TestAnUpgradeWaitsForThePermissionToKeepReplies(t *testing.T) {
	virtual(t, func(t *testing.T) {
		b := asUser(t)
		first := b.killedWith63Kept()
		kept := b.read("JOURNAL", "journal.stage.0.>")
		stagetest.Must(t, b.stream("JOURNAL").Purge(t.Context()))
		for _, m := range kept {
			stagetest.Value(b.js.PublishMsg(t.Context(), &nats.Msg{Subject: "journal.stage.0", Header: m.Headers(), Data: m.Data()}))(t)
		}
		deny("journal.stage.0.>")(b)
		second := &sleeper{low: time.Second, high: time.Second}
		r := b.start("second", second)
		claims := b.stored("RESULTS", "results.stage.0.claim")
		time.Sleep(30 * time.Second)
		if s := r.Status(); len(second.calls) > 0 || b.stored("RESULTS", "results.stage.0.claim") != claims || !strings.Contains(s.Problem, "63 replies") || !strings.Contains(s.Problem, "publish on journal.stage.0.>") {
			t.Errorf("%d rows called, problem %q; want none, no claim, and the permission that is missing", len(second.calls), s.Problem)
		}
		deny()(b)
		b.finish(r, 64)
		if len(second.calls) != 1 || second.kept != 63 {
			t.Errorf("%d rows called, %d from the journal, want 1 and 63", len(second.calls), second.kept)
		}
		first.wg.Wait()
	})
}

// Replies to rows of an input stream that was created again are of no use to the new one's rows, which have their numbers.
func TestRepliesToRowsOfAnotherInputAreRemoved(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		first := b.killedWith63Kept()
		stagetest.Must(t, b.js.DeleteStream(t.Context(), "ROWS"))
		stagetest.Must(t, streams.Ensure(t.Context(), b.nc, stageStreams()))
		b.load(64)
		cfg := b.config("second", &sleeper{low: time.Hour, high: time.Hour})
		cfg.NewInput = true
		r := b.startWith(cfg)
		time.Sleep(5 * time.Second)
		if got := b.stored("JOURNAL", "journal.>"); got != 0 || r.Status().Window != 64 {
			t.Errorf("%d replies to rows of the old stream are left, %d new rows taken; want none and 64", got, r.Status().Window)
		}
		r.kill()
		first.wg.Wait()
	})
}
