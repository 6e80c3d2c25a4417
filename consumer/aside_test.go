package consumer_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
)

// hotExecutor answers the first row of the hot key after a long time.
func hotExecutor(row uint64) *sleeper {
	return slowRow(row, scaled().aLongTime, 50*time.Millisecond)
}

// startHot starts a replica in order by key, whose span is no limit.
func (b *testbed) startHot(run string) *replica {
	b.t.Helper()
	cfg := b.ordered(streams.OrderKey, run, hotExecutor(1))
	cfg.OrderSpan = 4096
	return b.startWith(cfg)
}

// loadHot publishes a burst of rows of one key, many times the window, and a row of a key of its own behind each third.
func (b *testbed) loadHot(hot int) (rows, others int) {
	b.t.Helper()
	for i := range hot {
		b.publish("rows.hot", rows)
		rows++
		if i >= hot/2 && i%3 == 0 {
			b.publish("rows.k"+strconv.Itoa(i), rows)
			rows++
			others++
		}
	}
	return rows, others
}

func (b *testbed) publish(subject string, n int) {
	b.t.Helper()
	stagetest.Value(b.js.Publish(b.t.Context(), subject, fmt.Appendf(nil, `{"n":%d}`, n)))(b.t)
}

// A key has many times more rows than the window, and its first one waits for long: the rows of other keys, which come
// after those, are emitted meanwhile. Then the rows of the key follow, in order, whatever is killed or deleted.
func TestAKeyWithManyRowsThatWaitLeavesRoomForOthers(t *testing.T) {
	for name, disturb := range map[string]func(b *testbed, r *replica) *replica{
		"undisturbed": func(_ *testbed, r *replica) *replica { return r },
		"killed": func(b *testbed, r *replica) *replica {
			r.kill()
			return b.startHot("run2")
		},
		"reset by another": func(b *testbed, r *replica) *replica {
			stagetest.Value(b.js.ResetConsumerToSequence(b.t.Context(), "ROWS", "stage-0", 2))(b.t)
			return r
		},
	} {
		runOnTestbed(t, name, func(t *testing.T, b *testbed) {
			rows, others := b.loadHot(400)
			r := b.startHot("run1")
			b.until(others)
			time.Sleep(3 * time.Minute)
			st := r.Status()
			if got := b.results(); got != others {
				t.Errorf("got %d results while row 1 waits, want %d", got, others)
			}
			if st.Window > 64 || st.Window+st.SetAside != rows-others {
				t.Errorf("%d rows in the window, %d set aside, want %d together", st.Window, st.SetAside, rows-others)
			}
			r = disturb(b, r)
			r.stopAfter(b, rows)
			b.checkOrder(uint64(rows)) //nolint:gosec // a count
		})
	}
}

// A row that is set aside and then deleted holds up nothing.
func TestARowThatIsSetAsideMayBeDeleted(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		rows, others := b.loadHot(300)
		r := b.startHot("run1")
		b.until(others)
		in := b.stream("ROWS")
		for _, seq := range []uint64{200, 201, 202, 250, uint64(rows)} { //nolint:gosec // a count
			stagetest.Must(t, in.DeleteMsg(t.Context(), seq))
		}
		b.until(rows - 5)
		time.Sleep(time.Minute)
		if st := r.Status(); st.HighWaterMark != uint64(rows) || st.Ahead != 0 || st.SetAside != 0 { //nolint:gosec // a count
			t.Errorf("low-water mark %d, %d ahead, %d set aside, want %d, 0, 0", st.HighWaterMark, st.Ahead, st.SetAside, rows)
		}
		r.stop(t)
	})
}

// What keeps a row that is set aside from coming back is named, and when it is fixed the rows come.
func TestARowSetAsideThatMayNotBeReadIsNamed(t *testing.T) {
	virtual(t, func(t *testing.T) {
		b := asUser(t)
		rows, others := b.loadHot(300)
		r := b.startHot("run1")
		b.until(others)
		deny("$JS.API.STREAM.MSG.GET.ROWS")(b)
		time.Sleep(2 * scaled().aLongTime) // row 1 is there after half of it
		const why = `rows set aside: get a row of stream ROWS again: the server denied it: Permissions Violation for Publish to "$JS.API.STREAM.MSG.GET.ROWS"`
		if s := r.Status(); !strings.Contains(s.Problem, why) {
			t.Errorf("problem %q, want %q", s.Problem, why)
		}
		deny()(b)
		b.until(rows)
		time.Sleep(10 * time.Second)
		if s := r.Status(); s.Problem != "" {
			t.Errorf("fixed: problem %q", s.Problem)
		}
		r.stop(t)
		b.checkOrder(uint64(rows)) //nolint:gosec // a count
	})
}
