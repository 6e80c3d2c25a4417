package usage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// store stores a call as its stage would.
func store(b *stagetest.Bench, e *auditlog.Event) uint64 {
	b.T.Helper()
	subject := fmt.Sprintf("audit.%s.%s.call", e.Stage, e.Partition)
	return b.Publish(&nats.Msg{Subject: subject, Data: e.Call.AppendJSON(nil, auditlog.PayloadsFull, 0)})
}

// readAll returns the sums of stages.
func readAll(b *stagetest.Bench, o Options, by ...Dimension) *Report {
	b.T.Helper()
	r := NewReader(b.Cfg, NewBook(by), o)
	stagetest.Must(b.T, r.Read(b.T.Context(), b.JS))
	return r.Report()
}

// The sums are those of the summaries that runs leave, events that are stored once more
// and owners that were killed included.
func TestSumsAreThoseOfTheRuns(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	b.Rows(30, "rows.a")
	j := b.Job()
	j.Now = j.Now.Add(-time.Hour)
	for i, owner := range []string{"run1.a", "run2.a"} {
		first := uint64(1 + 10*i) //nolint:gosec // small
		j.Start(stagetest.RunOf(owner))
		j.Claim(owner, first-1)
		for seq := first; seq < first+10; seq++ {
			j.Answer(owner, seq)
		}
		j.Call(owner, first+10, 0, auditlog.CallUnknown) // cut off, and another owner begins with the row again
		j.Call(owner, first+10, 1, auditlog.CallFailure)
		j.End(stagetest.RunOf(owner))
	}
	whole := len(j.Steps)
	j.Start("run3") // is killed, and has no summary
	j.Call("run3.a", 30, 0, auditlog.CallSuccess)
	killed := j.Steps[len(j.Steps)-1].Call
	for i := 0; i < whole; i += 3 {
		if j.Steps[i].Call != nil {
			j.Steps = append(j.Steps, j.Steps[i])
		}
	}
	b.Store(j)

	var calls uint64
	sum := new(auditlog.Usage)
	for _, s := range j.Steps[:whole] {
		if s.Run != nil && s.Run.Summary != nil {
			calls += s.Run.Summary.Total.Calls
			sum.Add(s.Run.Summary.Total.Usage)
		}
	}
	sum.Add(killed.Usage)
	r := readAll(b, Options{Stages: []string{"stage"}}, ByStage, ByModel)
	n := r.Total
	if n.Calls != calls+1 || *n.PromptTokens != sum.PromptTokens || *n.CompletionTokens != sum.CompletionTokens || *n.TotalTokens != sum.TotalTokens {
		t.Errorf("%d calls with %d+%d of %d tokens, want %d, %+v", n.Calls, *n.PromptTokens, *n.CompletionTokens, *n.TotalTokens, calls+1, sum)
	}
	if r.Doubled == 0 || n.UnpricedCalls != 2 || len(r.Groups) != 1 || r.Groups[0].Calls != n.Calls {
		t.Errorf("%d doubled events, %d calls without a price, groups %+v", r.Doubled, n.UnpricedCalls, r.Groups)
	}
}

func TestStagesOfAChainAreReadFromOneStream(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	for i, name := range []string{"c", "a", "b", "c"} {
		stage := calls{stage: name, at: time.Unix(int64(i), 0)}
		store(b, stage.of("run.a", uint64(i+1), 0, auditlog.CallSuccess)) //nolint:gosec // small
	}
	request := calls{stage: "a", at: time.Unix(9, 0)}
	store(b, request.of("run", 0, 0, auditlog.CallSuccess, batched))

	r := readAll(b, Options{Stages: []string{"c", "a"}}, ByStage)
	if len(r.Groups) != 2 || *r.Groups[0].Stage != "c" || *r.Groups[1].Stage != "a" || r.Total.Calls != 4 || r.Groups[1].Calls != 2 {
		t.Errorf("groups %+v, want c before a, with 2 calls each, as they are named", r.Groups)
	}
	if !slices.Equal(r.Stages, []string{"c", "a"}) || !r.Until.Equal(request.at) {
		t.Errorf("stages %v until %v", r.Stages, r.Until)
	}

	unknown, known, err := Unknown(t.Context(), b.JS, b.Cfg, []string{"c", "d", "e"})
	if err != nil {
		t.Fatal(err)
	}
	want := "stream AUDIT has no audit event of stage d, e: it holds events of a, b, c"
	if got := UnknownError("AUDIT", unknown, known).Error(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestWhatIsLeftOutIsNamed(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	c := calls{stage: "stage", at: time.Now()}
	gone := store(b, c.of("run.a", 1, 0, auditlog.CallSuccess))
	store(b, c.of("run.a", 2, 0, auditlog.CallSuccess))
	b.Publish(&nats.Msg{Subject: "audit.stage.0.call", Data: []byte(`{"schema_version":99,"event":"call"}`)})

	if r := readAll(b, Options{Stages: []string{"stage"}}); r.AuditBegins != nil || r.Unreadable != 1 || r.Total.Calls != 2 {
		t.Errorf("got %+v, want a whole audit of 2 calls and a message that can't be read", r)
	}
	b.Purge("AUDIT", gone+1)
	if r := readAll(b, Options{Stages: []string{"stage"}}); r.AuditBegins == nil || r.Total.Calls != 1 {
		t.Errorf("got %+v, want an audit that begins late", r)
	}
	since := time.Now().Add(time.Hour)
	if r := readAll(b, Options{Stages: []string{"stage"}, Since: since}); r.AuditBegins != nil || r.Total.Calls != 0 || !r.Since.Equal(since) {
		t.Errorf("got %+v, want nothing, of which nothing is gone", r)
	}
}

// follower follows in the background of a bubble.
type follower struct {
	mu      sync.Mutex
	reports []*Report
	waits   atomic.Int32
	cancel  context.CancelFunc
	ended   chan error
}

func followAll(b *stagetest.Bench) *follower {
	ctx, cancel := context.WithCancel(b.T.Context())
	f := &follower{ended: make(chan error, 1), cancel: cancel}
	r := NewReader(b.Cfg, NewBook(nil), Options{Stages: []string{"stage"}})
	show := func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.reports = append(f.reports, r.Report())
		return nil
	}
	go func() { f.ended <- r.Follow(ctx, b.JS, func() { f.waits.Add(1) }, show) }()
	synctest.Wait()
	return f
}

// calls returns the calls of each report so far.
func (f *follower) calls() (counts []uint64) {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.reports {
		counts = append(counts, r.Total.Calls)
	}
	return counts
}

func TestFollowShowsWhatIsThereAndThenWhatComes(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		b := stagetest.NewBench(t, nil)
		c := calls{stage: "stage", at: time.Now()}
		for seq := range uint64(2000) { // more than one request
			store(b, c.of("run.a", seq+1, 0, auditlog.CallSuccess))
		}
		f := followAll(b)
		want := func(counts ...uint64) {
			t.Helper()
			if got := f.calls(); !slices.Equal(got, counts) {
				t.Fatalf("reports of %v calls, want %v", got, counts)
			}
		}
		want(2000)
		store(b, c.of("run.a", 2001, 0, auditlog.CallSuccess))
		store(b, c.of("run.a", 2002, 0, auditlog.CallSuccess))
		want(2000)
		time.Sleep(2 * showEvery)
		want(2000, 2002)
		time.Sleep(time.Minute) // nothing changes
		want(2000, 2002)

		// Another stream in its place adds to the sums.
		b.Drop("AUDIT")
		time.Sleep(time.Minute)
		audit := jetstream.StreamConfig{Name: "AUDIT", Subjects: []string{"audit.>"}, Storage: jetstream.MemoryStorage}
		stagetest.Value(b.JS.CreateStream(t.Context(), audit))(t)
		store(b, c.of("run2.a", 1, 0, auditlog.CallSuccess))
		time.Sleep(time.Minute)
		want(2000, 2002, 2003)
		if n := f.waits.Load(); n != 1 {
			t.Errorf("%d times reported that the stream is missing, want once", n)
		}

		// What has changed since the last report is shown at the end.
		store(b, c.of("run2.a", 2, 0, auditlog.CallSuccess))
		want(2000, 2002, 2003, 2004)
		store(b, c.of("run2.a", 3, 0, auditlog.CallSuccess))
		want(2000, 2002, 2003, 2004)
		f.cancel()
		if err := <-f.ended; !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
		want(2000, 2002, 2003, 2004, 2005)
	})
}
