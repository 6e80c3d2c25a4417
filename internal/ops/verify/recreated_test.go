package verify

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
)

// recreate deletes the stream with its first n messages, and creates it again a moment
// before the next.
func (s *pureStream[T]) recreate(n int) {
	s.created = s.msgs[n-1].stored.Add(time.Microsecond)
	s.msgs = s.msgs[n:]
	for i := range s.msgs {
		s.msgs[i].seq -= uint64(n) //nolint:gosec // few
	}
	s.last -= uint64(n) //nolint:gosec // few
}

// An operator deletes the audit stream while the stage runs, and creates it again: at no
// moment of a job does that become a violation, and once a call or row event is gone
// nothing is proven.
func TestVerifyAccusesNobodyAfterTheAuditWasCreatedAgain(t *testing.T) {
	rows := []uint64{1, 4, 2, 3, 6, 5, 8, 7}
	for name, job := range map[string]func() *pureJob{
		"in stream order": func() *pureJob { return newPureJob(8, time.Hour, time.Second) },
		"slowly":          func() *pureJob { return newPureJob(8, day, time.Hour) },
		"in no order": func() *pureJob {
			return newPureJobOf(stagetest.Order{Order: streams.OrderNone}, rows, time.Hour, time.Second)
		},
		"with results that were purged": func() *pureJob {
			j := newPureJob(8, time.Hour, time.Second)
			j.results.purge(3)
			return j
		},
	} {
		t.Run(name, func(t *testing.T) {
			for n := 1; n <= len(job().audit.msgs); n++ {
				j := job()
				events := 0
				for _, m := range j.audit.msgs[:n] {
					if m.is.Run == nil {
						events++
					}
				}
				j.audit.recreate(n)
				report := j.verify()
				text := stagetest.Value(json.Marshal(report))(t)
				if report.Verdict == VerdictViolated || events > 0 && report.Verdict != VerdictCannotTell {
					t.Errorf("without the first %d events, %d of them about rows: %s: %s", n, events, report.Verdict, text)
				}
				if want := "stream AUDIT was created at "; name != "with results that were purged" && events > 0 && !strings.Contains(string(text), want) {
					t.Errorf("without the first %d events: want %q in %s", n, want, text)
				}
			}
		})
	}
}

// What was damaged after the stream was created again stays a violation.
func TestVerifyFindsWhatIsWrongInAnAuditThatWasCreatedAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		damage func(j *pureJob)
		want   violationKind
	}{
		"row event never written":  {func(j *pureJob) { unwritten(&j.audit, isRow(8)) }, violationNoRowEvent},
		"call event never written": {func(j *pureJob) { unwritten(&j.audit, isCall(8)) }, violationNoCallEvent},
		"result never written":     {func(j *pureJob) { unwritten(&j.results, isResult(7)) }, violationLost},
		"summary of the last process": {func(j *pureJob) {
			for _, m := range j.audit.msgs {
				if r := m.is.Run; r != nil && r.RunID == "run2" && r.Phase == auditlog.PhaseEnd {
					r.Summary.Total.Calls++
				}
			}
		}, violationRun},
	} {
		t.Run(name, func(t *testing.T) {
			j := newPureJob(8, day, time.Hour)
			j.audit.recreate(4)
			tt.damage(j)
			report := j.verify()
			if report.Verdict != VerdictViolated || report.Violations.ByKind[tt.want] == 0 {
				t.Errorf("%s: %v, want %s", report.Verdict, fmt.Sprint(report.Violations.First), tt.want)
			}
		})
	}
}

// The same on a server, with batches: the intent, the submission, calls, or the end of a
// batch may be in the stream that is gone.
func TestVerifyAccusesNoBatchAfterTheAuditWasCreatedAgain(t *testing.T) {
	bench := stagetest.NewBench(t, nil)
	for _, share := range []float64{.05, .3, .5, .7, .95} {
		b := bench.Renew(t)
		j := laneJob(b)
		whole := j.Steps
		n := int(share * float64(len(whole)))
		j.Steps = whole[:n]
		b.Store(j)
		config := b.Stream("AUDIT").CachedInfo().Config
		b.Drop("AUDIT")
		stagetest.Value(b.JS.CreateStream(t.Context(), config))(t)
		j.Steps = whole[n:]
		b.Store(j)
		if _, text, code := verifyAll(b); code != codeUnproven || !strings.Contains(text, "stream AUDIT was created at ") {
			t.Errorf("after %d of %d steps: exit code %d, want %d:\n%s", n, len(whole), code, codeUnproven, text)
		}
	}
}

// A process that runs while the results stream is created again answers all rows once
// more: its summary counts the results of both streams.
func TestVerifyAccusesNobodyAfterTheResultsWereCreatedAgain(t *testing.T) {
	j := newPureJob(8, time.Hour, time.Second)
	j.results.msgs, j.results.last, j.audit.msgs, j.audit.last = nil, 0, nil, 0
	job := &stagetest.Job{Created: j.input.created, Now: j.now.Add(-time.Minute)}
	job.Start("run1")
	job.Claim("run1.a", 0)
	for seq := range uint64(5) {
		job.Answer("run1.a", seq+1)
	}
	again := len(job.Steps)
	job.Claim("run1.b", 0)
	for seq := range uint64(8) {
		job.Answer("run1.b", seq+1)
	}
	job.End("run1")
	for i, s := range job.Steps {
		if i == again {
			j.results.msgs, j.results.last, j.results.created = nil, 0, job.Now.Add(-30*time.Second)
		}
		j.store(job.Now, s)
	}
	report := j.verify()
	want := "run run1: 8 results are left, its summary says 13, some of which were in an earlier stream"
	if report.Verdict != VerdictCannotTell || !strings.Contains(strings.Join(report.CannotTell, "\n"), want) {
		t.Errorf("%s, %v, cannot tell %q, want %q", report.Verdict, report.Violations.First, report.CannotTell, want)
	}
	j.results.remove(isResult(3)) // what is wrong in the new stream is still found
	if report := j.verify(); report.Verdict != VerdictViolated || report.Violations.ByKind[violationLost] != 1 {
		t.Errorf("%s without the result of a row: %v", report.Verdict, report.Violations.First)
	}
}

// A row at the head may wait while the whole window behind it is answered. How large that
// was is in the start of the process: where that is gone, the setting of the reader says
// nothing about it.
func TestVerifyWaitsForTheLargestWindowWhereTheStartIsGone(t *testing.T) {
	for name, remove := range map[string]func(j *pureJob){
		"purged":        func(j *pureJob) { j.audit.purge(1) },
		"created again": func(j *pureJob) { j.audit.recreate(1) },
	} {
		j := newPureJob(60, time.Hour, time.Second)
		j.results.msgs, j.results.last, j.audit.msgs, j.audit.last = nil, 0, nil, 0
		job := &stagetest.Job{Created: j.input.created, Now: j.now.Add(-30 * time.Minute)}
		job.Start("run1")
		job.Claim("run1.a", 0)
		for seq := uint64(60); seq > 0; seq-- { // the answers come in the opposite order
			job.Now = job.Now.Add(time.Second)
			job.Call("run1.a", seq, 0, auditlog.CallSuccess)
			job.Row("run1.a", seq, 0, auditlog.SourceCall)
		}
		for seq := range uint64(60) {
			job.Result("run1.a", seq+1)
		}
		for _, s := range job.Steps {
			j.store(job.Now, s)
		}
		j.window = 8 // of whoever verifies
		remove(j)
		if report := j.verify(); report.Verdict == VerdictViolated {
			t.Errorf("%s: %v", name, report.Violations.First[0])
		}
	}
}
