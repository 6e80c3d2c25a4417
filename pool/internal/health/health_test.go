package health_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/llm-stage/stage/pool/internal/health"
)

const ms = time.Millisecond

var (
	success = health.Verdict{Sign: health.Success}
	sick    = health.Verdict{Sign: health.Sick, Err: errors.New("502")}
	absent  = health.Verdict{Sign: health.Unreached, Absent: true, Unsent: true, Err: errors.New("refused")}
	answer  = health.Verdict{Sign: health.Answered, Final: true, Err: errors.New("400")}
)

// ward is a monitor of one server, in a time that passes by the steps of a test.
type ward struct {
	*health.Server
	m    *health.Monitor
	now  time.Time
	left int // jobs that have not ended
}

func newWard(jobs int) *ward {
	m := health.New(health.Config{Servers: 1, Attempts: 3})
	return &ward{Server: m.Server(0), m: m, now: time.Now(), left: jobs}
}

// sends sends a call for each of the jobs, a millisecond apart.
func (w *ward) sends(jobs ...*health.Job) {
	for _, j := range jobs {
		w.now = w.now.Add(ms)
		w.Sent(w.now, j, w.Out())
	}
}

// ends ends the call for a job a second later.
func (w *ward) ends(j *health.Job, v health.Verdict) health.Report {
	w.now = w.now.Add(time.Second)
	return w.Ended(w.now, j, v, time.Second)
}

// fails ends the call for a job and returns what becomes of it.
func (w *ward) fails(j *health.Job, v health.Verdict) health.Decision {
	w.ends(j, v)
	return w.Failed(w.now, j, w.left-1)
}

// failsOften makes three of four calls fail, so that five failures in a row are no outage.
func (w *ward) failsOften() {
	for range 60 {
		var ok health.Job
		bad := make([]health.Job, 3)
		for i := range bad {
			w.sends(&bad[i])
			w.fails(&bad[i], sick)
		}
		w.sends(&ok)
		w.ends(&ok, success)
		for i := range bad {
			w.m.Forget(&bad[i])
		}
	}
	w.m.Settled()
}

func TestOnlyASuccessOfALaterCallSettlesTheDoubt(t *testing.T) {
	w := newWard(3)
	var early, failing, later health.Job
	w.sends(&early, &failing, &later)
	if d := w.fails(&failing, sick); d != health.Hold || failing.UsedUp() {
		t.Fatalf("a failure is in doubt, the decision is %v", d)
	}
	if w.ends(&early, success); failing.Failures() != 0 {
		t.Error("a call that went earlier settled the doubt")
	}
	if w.ends(&later, success); failing.Failures() != 1 {
		t.Errorf("%d failures count after the success of a later call", failing.Failures())
	}
}

func TestFiveJobsInARowAreAnOutageUntilAProbeIsAnswered(t *testing.T) {
	w := newWard(20)
	jobs := make([]health.Job, 6)
	for i := range 5 {
		w.sends(&jobs[i])
		want := health.Hold
		if i == 4 {
			want = health.Outage
		}
		if d := w.fails(&jobs[i], sick); d != want {
			t.Fatalf("failure %d in a row: decision %v, want %v", i+1, d, want)
		}
	}
	if n := len(w.m.Settled()); n != 5 {
		t.Errorf("%d jobs need not wait any longer, want 5", n)
	}
	w.now = w.Outage.Due()
	w.Outage.ProbeSent(w.now, &jobs[5], time.Minute)
	w.sends(&jobs[5])
	if r := w.ends(&jobs[5], success); !r.Over || !r.Restart || w.Out() {
		t.Errorf("after the success of a probe: %+v, out %v", r, w.Out())
	}
	for i := range jobs {
		if jobs[i].Failures() > 0 {
			t.Errorf("the outage counts against job %d", i)
		}
	}
}

func TestOneRefusedConnectionBeforeTheFirstSuccessIsAnOutage(t *testing.T) {
	w := newWard(20)
	var j health.Job
	w.sends(&j)
	if d := w.fails(&j, absent); d != health.Outage {
		t.Errorf("decision %v", d)
	}
}

func TestAnAnswerAboutTheJobCountsAtOnce(t *testing.T) {
	w := newWard(20)
	var j health.Job
	w.sends(&j)
	if d := w.fails(&j, answer); d != health.Count || !j.UsedUp() {
		t.Errorf("decision %v, used up %v", d, j.UsedUp())
	}
}

func TestAJobThatAwaitsTheAnswerIsLostByTheNextSuccess(t *testing.T) {
	w := newWard(20)
	var poison, other health.Job
	for range 3 { // other jobs succeed between its failures, in calls that went before them
		w.sends(&other, &poison)
		w.fails(&poison, sick)
		w.ends(&other, success)
	}
	if !poison.UsedUp() {
		t.Fatal("three failures leave a further attempt")
	}
	w.m.Await(&poison)
	w.sends(&other)
	w.ends(&other, success)
	if settled := w.m.Settled(); !slices.Contains(settled, &poison) || !poison.UsedUp() || w.m.Awaiting() != 0 {
		t.Errorf("settled %v, used up %v, %d await", settled, poison.UsedUp(), w.m.Awaiting())
	}
}

// A reply that was on its way when the outage began shows nothing about it.
func TestASlowSuccessFromBeforeAnOutageFailsNoOtherJob(t *testing.T) {
	w := newWard(7)
	w.failsOften()
	var slow health.Job
	jobs := make([]health.Job, 6)
	w.sends(&slow)
	for try := range 30 {
		for i := range jobs {
			w.sends(&jobs[i])
			switch d := w.fails(&jobs[i], sick); d {
			case health.Outage:
				return
			case health.Void, health.Count:
				t.Fatalf("job %d has failed %d times, and none has succeeded since: decision %v", i, try+1, d)
			case health.Hold:
			}
			if jobs[i].UsedUp() {
				w.m.Await(&jobs[i])
			}
		}
		if try == 0 {
			w.ends(&slow, success)
			w.left--
		}
	}
	for i := range jobs {
		if d := w.Settle(w.now, &jobs[i], w.left-1); jobs[i].UsedUp() && d != health.Outage {
			t.Errorf("job %d has used up its attempts, and none has succeeded since: decision %v", i, d)
		}
	}
}
