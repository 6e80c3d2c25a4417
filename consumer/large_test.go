package consumer_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/consumer/objects"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// bucketOf makes the bucket of large results, and has results of more than 4 KiB be large.
func bucketOf(b *testbed) {
	b.t.Helper()
	cfg := stageStreams()
	cfg.ResultBucket = simBucket
	stagetest.Must(b.t, streams.Ensure(b.t.Context(), b.nc, cfg))
	b.alter("RESULTS", func(c *jetstream.StreamConfig) { c.MaxMsgSize = 4 << 10 })
}

// startLarge starts a replica that has the bucket.
func (b *testbed) startLarge(run string, exec consumer.Executor) *replica {
	b.t.Helper()
	cfg := b.config(run, exec)
	cfg.ResultBucket = simBucket
	return b.startWith(cfg)
}

// checkLarge checks that each of n rows has the body as its result, in the bucket, and that the bucket has nothing else.
func (b *testbed) checkLarge(n int, body []byte) {
	b.t.Helper()
	named := make(map[string]bool)
	for _, m := range b.read("RESULTS", "results.stage.0.rows") {
		ref, is := objects.RefOf(m.Headers())
		got, err := ref.Get(b.t.Context(), b.nc, 8<<20)
		if !is || err != nil || !bytes.Equal(got, body) || len(m.Data()) > 0 {
			b.t.Errorf("a result with the headers %v has %d bytes, in the bucket %d: %v", m.Headers(), len(m.Data()), len(got), err)
		}
		named[ref.Name] = true
	}
	store := stagetest.Value(b.js.ObjectStore(b.t.Context(), simBucket))(b.t)
	if all := stagetest.Value(store.List(b.t.Context()))(b.t); len(named) != n || len(all) != n {
		b.t.Errorf("%d results name %d objects of %d in the bucket", n, len(named), len(all))
	}
}

// While a body can't be put into the bucket, its row waits, no call begins, and the reason is in the list.
// Then each row is called once.
func TestAResultWaitsForItsBucket(t *testing.T) {
	for _, f := range []struct {
		name         string
		breakIt, fix func(b *testbed)
		why          string
	}{
		{"full", func(b *testbed) { b.limit("OBJ_LARGE", 100) }, unlimited("OBJ_LARGE"), "maximum bytes exceeded"},
		{"no answer", deny("$O.LARGE.>"), deny(), "$O.LARGE.C."},
		{"deleted", drop("OBJ_LARGE"), bucketOf, "not found"},
	} {
		runVirtual(t, f.name, func(t *testing.T) {
			b := asUser(t)
			bucketOf(b)
			f.breakIt(b)
			body := bytes.Repeat([]byte("x"), 8<<10)
			exec := &sleeper{low: time.Second, high: time.Second, body: body}
			b.load(5)
			r := b.startLarge("first", exec)
			time.Sleep(20 * time.Second)
			b.loadFrom(5, 10)
			time.Sleep(20 * time.Second)
			made := len(exec.calls)
			h := r.RowHold(t.Context(), 1)
			if got := b.results(); got != 0 || made != 5 {
				t.Errorf("%d results and %d calls, want none and 5", got, made)
			}
			if h == nil || h.Kind != hold.ObjectStore || !strings.Contains(h.Why, f.why) {
				t.Errorf("row 1 waits for %+v, want one with %q", h, f.why)
			}
			if h := r.RowHold(t.Context(), 7); h == nil || h.Kind != hold.ObjectStore {
				t.Errorf("row 7, which is not called, waits for %+v", h)
			}
			if list := hold.List(r.Status().Holds); list.First(func(h *hold.Hold) bool { return h.Kind == hold.ObjectStore }) == nil {
				t.Errorf("the list has %+v", list)
			}
			f.fix(b)
			b.until(15)
			exec.checkOnce(t)
			r.stop(t)
			if problem := r.Status().Problem; problem != "" {
				t.Errorf("the problem %q is left", problem)
			}
			b.checkLarge(15, body)
		})
	}
}

// A reply that fits into a result, but not into an entry of the journal, is kept all the same, and nothing of it is left
// once its row is emitted.
func TestAReplyThatNoEntryHoldsIsKept(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		cfg := stageStreams()
		cfg.ResultBucket = simBucket
		stagetest.Must(t, streams.Ensure(t.Context(), b.nc, cfg))
		body := bytes.Repeat([]byte("x"), int(b.nc.MaxPayload())-950)
		b.load(5)
		first := &sleeper{latency: slowHead, drain: make(chan struct{}), body: body}
		r := b.startLarge("first", first)
		time.Sleep(10 * time.Second)
		if got := b.stored("JOURNAL", "journal.stage.0.>"); got != 4 {
			t.Errorf("%d messages in the journal, want the 4 rows that wait", got)
		}
		r.kill()
		close(first.drain)
		second := &sleeper{low: time.Second, high: time.Second, body: body}
		r = b.startLarge("second", second)
		r.stopAfter(b, 5)
		if second.kept != 4 || len(second.calls) != 1 {
			t.Errorf("%d rows answered from the journal and %d calls, want 4 and 1", second.kept, len(second.calls))
		}
		for _, m := range b.read("RESULTS", "results.stage.0.rows") {
			if !bytes.Equal(m.Data(), body) {
				t.Errorf("a result has %d bytes, want %d", len(m.Data()), len(body))
			}
		}
		if left := b.stream("OBJ_LARGE").CachedInfo().State.Msgs; left != 0 {
			t.Errorf("%d messages are left in the bucket", left)
		}
		first.wg.Wait()
	})
}

// seer fails each row at once, and notes its body and why it has none.
type seer struct {
	mu   sync.Mutex
	seen map[uint64]string
}

func (s *seer) Start(row *consumer.Row) {
	s.mu.Lock()
	s.seen[row.Seq] = string(row.Body) + row.Unreadable
	s.mu.Unlock()
	row.Reply(consumer.Reply{Body: []byte("done"), Failed: true, Event: auditlog.Row{FinishedAt: time.Now(), Reason: "refused"}})
}

func (s *seer) of(seq uint64) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[seq]
}

// The body of a row that is an object is read before the row starts, and its dead letter names the object. A row
// whose object is gone or damaged starts without a body. One that can't be read for now waits, and other rows go on
// where the order lets them.
func TestARowsBodyIsReadFromItsObject(t *testing.T) {
	for _, order := range []streams.Order{streams.OrderStream, streams.OrderNone, streams.OrderKey} {
		runVirtual(t, string(order), func(t *testing.T) {
			b := asUser(t)
			bucketOf(b)
			seq := uint64(0)
			publish := func(bucket, text string, change func(*objects.Ref)) {
				seq++
				ref := stagetest.Value(objects.Put(t.Context(), b.nc, bucket, fmt.Sprintf("map/0/%d/x", seq), []byte(text)))(t)
				change(&ref)
				m := &nats.Msg{Subject: "rows.a", Header: nats.Header{
					streams.HeaderStateID: {fmt.Sprintf("map/IN/0/%d", seq)}, streams.HeaderSourceStream: {"IN"}, streams.HeaderSourceSeq: {fmt.Sprint(seq)},
					streams.HeaderSourceSubject: {"in.a"}, streams.HeaderStatus: {auditlog.RowSuccess},
				}}
				ref.Set(m.Header)
				stagetest.Value(b.js.PublishMsg(t.Context(), m))(t)
			}
			asItIs := func(*objects.Ref) {}
			stagetest.Value(b.js.CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: "AWAY"}))(t)
			publish(simBucket, strings.Repeat("one", 1<<20), asItIs)
			publish(simBucket, "two", func(r *objects.Ref) { r.Name = "nowhere" })
			publish(simBucket, "three", func(r *objects.Ref) { r.Digest = objects.NewRef("", "", []byte("3")).Digest })
			publish("AWAY", "four", asItIs)
			publish(simBucket, "five", asItIs)
			deny("$JS.API.STREAM.MSG.GET.OBJ_AWAY")(b)
			stagetest.Value(b.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "DEAD", Subjects: []string{"dead"}}))(t)
			exec := &seer{seen: make(map[uint64]string)}
			cfg := b.config("first", exec)
			cfg.DeadLetterSubject = "dead"
			cfg.Order, cfg.OrderSpan = order, 1000
			var keyed []string
			cfg.Key = func(row *consumer.Row) string {
				keyed = append(keyed, string(row.Body[:min(len(row.Body), 3)]))
				return fmt.Sprint(len(row.Body))
			}
			r := b.startWith(cfg)
			time.Sleep(30 * time.Second)
			if got := exec.of(1); got != strings.Repeat("one", 1<<20) {
				t.Errorf("row 1 has %d bytes", len(got))
			}
			for row, why := range map[uint64]string{2: objects.ErrMissing.Error(), 3: objects.ErrDamaged.Error()} {
				if got := exec.of(row); !strings.Contains(got, why) {
					t.Errorf("row %d: %q, want %q", row, got, why)
				}
			}
			if got := exec.of(4); got != "" {
				t.Errorf("row 4 has started with %q", got)
			}
			if h := r.RowHold(t.Context(), 4); order != streams.OrderKey && (h == nil || h.Kind != hold.ObjectStore) {
				t.Errorf("row 4 waits for %+v", h)
			}
			list := hold.List(r.Status().Holds)
			if h := list.First(func(h *hold.Hold) bool { return h.Kind == hold.ObjectStore }); h == nil || !strings.Contains(h.Why, "OBJ_AWAY") || r.Status().Role != consumer.Owner {
				t.Errorf("as %s, the list has %+v", r.Status().Role, list)
			}
			if five := exec.of(5); five != "five" && order != streams.OrderKey { // its key is read once that of row 4 is
				t.Errorf("row 5 has %q", five)
			}
			deny()(b)
			b.until(5)
			if exec.of(4) != "four" || exec.of(5) != "five" {
				t.Errorf("rows 4 and 5 have %q and %q", exec.of(4), exec.of(5))
			}
			letters := b.read("DEAD", "dead")
			for _, m := range letters {
				if _, is := objects.RefOf(m.Headers()); !is || len(m.Data()) > 0 {
					t.Errorf("a dead letter of %d bytes has the headers %v", len(m.Data()), m.Headers())
				}
			}
			if len(letters) != 5 {
				t.Errorf("%d dead letters", len(letters))
			}
			if want := []string{"one", "", "", "fou", "fiv"}; order == streams.OrderKey && !slices.Equal(keyed, want) {
				t.Errorf("keys were made of %q, want %q", keyed, want)
			}
			r.stop(t)
		})
	}
}
