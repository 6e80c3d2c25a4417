package consumer_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer"
)

// TestNoCallBeginsWhileNothingCanBeStored breaks what calls lead to while two calls at a time go on, with a window of 64
// rows. Those in flight end, and those that ended before the refusal was there; no other begins until it is put right.
// Then each row is called once.
func TestNoCallBeginsWhileNothingCanBeStored(t *testing.T) {
	for _, f := range []struct {
		name         string
		breakIt, fix func(b *testbed, r *replica)
		most         int // calls that may still begin: before the server has said anything
		why          string
	}{
		{"results full", on(full("RESULTS")), on(unlimited("RESULTS")), 4, "maximum bytes exceeded"},
		{"audit full", on(full("AUDIT")), on(unlimited("AUDIT")), 4, "maximum bytes exceeded"},
		// Without an answer an append waits for five seconds, in which two calls a second begin.
		{"results get no answer", on(deny("results.>")), on(deny()), 14, "results"},
		{"audit gets no answer", on(deny("audit.>")), on(deny()), 14, "audit"},
		{
			"the disk is full",
			func(_ *testbed, r *replica) { r.SetFull(errors.New("the disk is full: 0 B free at /d")) },
			func(_ *testbed, r *replica) { r.SetFull(nil) },
			0, "store: the disk is full: 0 B free at /d",
		},
	} {
		runVirtual(t, f.name, func(t *testing.T) {
			b := asUser(t)
			exec := newQueuer(t, 2, func() time.Duration { return time.Second })
			r := b.start("full", exec)
			b.load(50)
			time.Sleep(5500 * time.Millisecond)
			before := exec.made()
			f.breakIt(b, r)
			time.Sleep(15 * time.Second)
			made := exec.made()
			if made > before+f.most {
				t.Errorf("%d calls have begun since, want at most %d", made-before, f.most)
			}
			if why := r.Status().Problem; !strings.Contains(why, f.why) {
				t.Errorf("the problem is %q, want one with %q", why, f.why)
			}
			time.Sleep(time.Minute)
			if now := exec.made(); now != made || r.Status().Role != consumer.Owner {
				t.Errorf("a minute later there were %d calls more, as %s", now-made, r.Status().Role)
			}
			f.fix(b, r)
			b.until(50)
			if got := exec.made(); got != 50 {
				t.Errorf("%d calls for 50 rows", got)
			}
			b.check(50)
		})
	}
}

func on(f func(*testbed)) func(*testbed, *replica) { return func(b *testbed, _ *replica) { f(b) } }

// TestAStopWhileTheDiskIsFullLeavesTheRows stops a replica whose disk is full: it doesn't begin the rows
// that wait, and the next replica serves them.
func TestAStopWhileTheDiskIsFullLeavesTheRows(t *testing.T) {
	onTestbed(t, func(t *testing.T, b *testbed) {
		exec := newQueuer(t, 2, func() time.Duration { return time.Second })
		r := b.start("full", exec)
		b.load(20)
		time.Sleep(2500 * time.Millisecond)
		r.SetFull(errors.New("the disk is full"))
		time.Sleep(time.Minute)
		made := exec.made()
		r.stop(t)
		if now := exec.made(); now != made {
			t.Errorf("%d calls began at the stop", now-made)
		}
		next := newQueuer(t, 2, func() time.Duration { return time.Second })
		b.start("next", next)
		b.until(20)
		if got := made + next.made(); got != 20 {
			t.Errorf("%d calls for 20 rows", got)
		}
		b.check(20)
	})
}
