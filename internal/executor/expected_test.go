package executor

import "testing"

// The pool takes a job that fails for a sign of an outage where no other job is left that could show the opposite. One
// that waited for an equal request is left: Run submits it next.
func TestAJobThatIsToBeSubmittedAgainIsExpected(t *testing.T) {
	e := newRowWay(t).executor
	e.Sharing.flights = newFlights(0)
	if e.expected() {
		t.Error("without any job one is expected")
	}
	e.Sharing.requeue(&job{row: newRowWay(t).row})
	if !e.expected() {
		t.Error("the job is not expected")
	}
}

// A job whose media could not be read for its call has left the pool, and comes back once they are looked up again.
// Its call may be the next that succeeds.
func TestAJobWhoseMediaAreLookedUpAgainIsExpected(t *testing.T) {
	e := newRowWay(t).executor
	e.media.lookAgain(&job{row: newRowWay(t).row})
	if !e.expected() {
		t.Error("the job is not expected")
	}
}

// While a look-up ends its job moves from one list to another. Whoever looks meanwhile must find it.
func TestAJobIsExpectedWhileItsLookUpEnds(t *testing.T) {
	e := newRowWay(t).executor
	for range 2000 {
		at := &lookUp{job: &job{}, to: e.backlog}
		e.media.jobs[at.job], e.media.line = at, append(e.media.line, at)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			e.media.leave(at, true)
		}()
		for looking := true; looking; {
			select {
			case <-ended:
				looking = false
			default:
			}
			if !e.expected() {
				t.Fatal("the job is not expected")
			}
		}
		e.backlog.takeDescribed()
	}
}

// Run takes jobs out of where they wait before it adds them to the pool.
func TestAJobIsExpectedWhileRunWorks(t *testing.T) {
	e := newRowWay(t).executor
	e.work.Add(1)
	if !e.expected() {
		t.Error("while Run works no job is expected")
	}
	e.work.Add(1)
	if e.expected() {
		t.Error("while Run sleeps a job is expected")
	}
}
