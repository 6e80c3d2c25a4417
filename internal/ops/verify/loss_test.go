package verify

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go/jetstream"
)

type (
	pureLog   = pureMessage[stagetest.Step]
	pureEvent = pureMessage[*auditlog.Event]
	pureRow   = pureMessage[string]
)

func isResult(seq uint64) func(pureLog) bool {
	return func(m pureLog) bool { return m.is.Result != nil && m.is.Result.Seq == seq }
}

func isClaim(owner string) func(pureLog) bool {
	return func(m pureLog) bool { return m.is.Claim != nil && m.is.Claim.Owner == owner }
}

func isRow(seq uint64) func(pureEvent) bool {
	return func(m pureEvent) bool { return m.is.Row != nil && m.is.Row.Sequence == seq }
}

func isCall(seq uint64) func(pureEvent) bool {
	return func(m pureEvent) bool { return m.is.Call != nil && m.is.Call.Sequence == seq }
}

func isRun(run string, phase auditlog.Phase) func(pureEvent) bool {
	return func(m pureEvent) bool { return m.is.Run != nil && m.is.RunID == run && m.is.Run.Phase == phase }
}

// unwritten removes messages as if they had never been stored: the later ones have the
// sequences of those before.
func unwritten[T any](s *pureStream[T], match func(pureMessage[T]) bool) {
	before := uint64(0)
	for i := range s.msgs {
		if match(s.msgs[i]) {
			before++
		}
		s.msgs[i].seq -= before
	}
	s.last -= before
	s.remove(match)
}

const day = 24 * time.Hour

// What can be missing, from where and why, and what is reported. The results of row 1 to
// 10 are of run1, of 11 to 20 of run2. A young job ran an hour ago, an old one began 40
// days ago with two days for each row, an ancient one 400 days ago.
func TestVerifyKnowsWhatIsMissingAndWhy(t *testing.T) {
	const young, old, ancient = time.Hour, 40 * day, 400 * day
	for _, tt := range []struct {
		stream, where, why string
		ago                time.Duration
		damage             func(j *pureJob)
		verdict            string
		want               string // in the report
	}{
		{"no stream", "nowhere", "nothing is missing", young, func(*pureJob) {}, VerdictProven, ""},

		{"results", "beginning", "never written", young, func(j *pureJob) { unwritten(&j.results, isResult(1)) }, VerdictViolated, "row 1 has no result"},
		{"results", "beginning", "claim never written", young, func(j *pureJob) { unwritten(&j.results, isClaim("run1.a")) }, VerdictViolated, "without a claim before it"},
		{"results", "beginning", "purged by sequence", young, func(j *pureJob) { j.results.purge(5) }, VerdictCannotTell, "begin in the middle, after row 4; earlier ones, of 4 rows"},
		{"results", "beginning", "purged up to a claim", young, func(j *pureJob) { j.results.purge(11) }, VerdictCannotTell, "begin in the middle, after row 10; earlier ones, of 10 rows"},
		{"results", "beginning", "purged behind a claim", young, func(j *pureJob) { j.results.purge(13) }, VerdictCannotTell, "begin in the middle, after row 11; earlier ones, of 11 rows"},
		{"results", "beginning", "only the claim purged", young, func(j *pureJob) { j.results.purge(1) }, VerdictCannotTell, "begin in the middle, after row 0; earlier ones, of 0 rows"},
		{"results", "beginning", "purged, and a hole behind", young, func(j *pureJob) { j.results.purge(5); j.results.remove(isResult(7)) }, VerdictViolated, "row 7 has no result"},
		{"results", "beginning", "purged, and a hole at the claim left", young, func(j *pureJob) { j.results.purge(11); j.results.remove(isResult(11)) }, VerdictViolated, "row 11 has no result"},
		{"results", "beginning", "purged, with the rows", young, func(j *pureJob) { j.results.purge(5); j.input.purge(6) }, VerdictCannotTell, "after row 4; earlier ones, of 4 rows"},
		{"results", "beginning", "a max age that was set later", old, func(j *pureJob) {
			j.results.cfg.MaxAge, j.audit.cfg.MaxAge = pureMaxAge, 0
			j.results.purge(5)
		}, VerdictCannotTell, "gone from stream RESULTS: its max age is 720h0m0s"},
		{"results", "beginning", "full, and drops the oldest", young, func(j *pureJob) {
			j.results.cfg.Discard, j.results.cfg.MaxMsgs = jetstream.DiscardOld, 17
			j.results.purge(5)
		}, VerdictCannotTell, "gone from stream RESULTS: it is full and drops the oldest"},
		{"results", "beginning", "acked away", young, func(j *pureJob) {
			j.results.cfg.Retention = jetstream.WorkQueuePolicy
			j.results.purge(5)
		}, VerdictCannotTell, "its retention, workqueue, deletes what is acked"},
		{"results", "everywhere", "purged", young, func(j *pureJob) { j.results.purge(100) }, VerdictCannotTell, ""},
		{"results", "middle", "never written", young, func(j *pureJob) { unwritten(&j.results, isResult(7)) }, VerdictViolated, "row 7 has no result"},
		{"results", "middle", "deleted by hand", young, func(j *pureJob) { j.results.remove(isResult(7)) }, VerdictViolated, "row 7 has no result"},
		{"results", "middle", "claim deleted by hand", young, func(j *pureJob) { j.results.remove(isClaim("run2.a")) }, VerdictViolated, "after the claim of run1.a"},
		{"results", "middle", "swapped with a claim", young, func(j *pureJob) {
			j.results.msgs[10].is, j.results.msgs[11].is = j.results.msgs[11].is, j.results.msgs[10].is
		}, VerdictViolated, "bad_claim"},
		{"results", "middle", "a limit for each subject", young, func(j *pureJob) {
			j.results.cfg.MaxMsgsPerSubject = 15
			j.results.remove(func(m pureLog) bool { return m.is.Result != nil && m.is.Result.Seq <= 5 })
		}, VerdictViolated, "which may have been results of rows of which nothing else has a record: it keeps only 15 messages a subject"},
		{"results", "end", "never written", young, func(j *pureJob) { unwritten(&j.results, isResult(20)) }, VerdictViolated, "run run2: 9 results are stored, its summary says 10"},
		{"results", "end", "never written by a process that was killed", young, func(j *pureJob) {
			unwritten(&j.results, isResult(20))
			unwritten(&j.audit, isRun("run2", auditlog.PhaseEnd))
		}, VerdictProven, ""},
		{"results", "end", "deleted by hand", young, func(j *pureJob) { j.results.remove(isResult(20)) }, VerdictCannotTell, "may have been results of rows of which nothing else has a record"},
		{"results", "everywhere", "re-created and made again", young, func(j *pureJob) {
			j.results.created, j.window = j.now.Add(-young/2), 32
			j.rerun("run3", 20)
		}, VerdictProven, "run run1: 0 results are left, its summary says 10"},

		{"audit", "beginning", "never written", young, func(j *pureJob) { unwritten(&j.audit, isRow(1)) }, VerdictViolated, "row 1 has no row event of run1.a"},
		{"audit", "beginning", "start never written", young, func(j *pureJob) { unwritten(&j.audit, isRun("run1", auditlog.PhaseStart)) }, VerdictProven, ""},
		{"audit", "beginning", "start purged", young, func(j *pureJob) { j.audit.purge(1) }, VerdictCannotTell, "run run1: its beginning is no longer in the audit and can't have expired"},
		{"audit", "beginning", "purged by sequence", young, func(j *pureJob) { j.audit.purge(9) }, VerdictCannotTell, "the first 9 messages of stream AUDIT are gone: with a max age of 720h0m0s and created 1h0m0s ago none can have expired"},
		{"audit", "beginning", "purged up to the last row", young, func(j *pureJob) { j.audit.purge(50) }, VerdictCannotTell, "of 20 results is gone, and it is too young"},
		{"audit", "beginning", "expired", old, (*pureJob).age, VerdictProven, "the audit of 5 results has expired"},
		{"audit", "beginning", "expired, and more of it purged", old, func(j *pureJob) { j.age(); j.audit.purge(20) }, VerdictCannotTell, "is gone, and it is too young to have expired"},
		{"audit", "beginning", "expired, and one never written", old, func(j *pureJob) { j.age(); unwritten(&j.audit, isRow(15)) }, VerdictViolated, "row 15 has no row event of run2.a"},
		{"audit", "beginning", "full, and drops the oldest", young, func(j *pureJob) {
			j.audit.cfg.MaxMsgs = 30
			j.audit.purge(len(j.audit.msgs) - 30)
		}, VerdictProven, "has expired"},
		{"audit", "beginning", "full by bytes, and drops the oldest", young, func(j *pureJob) {
			j.audit.cfg.MaxBytes = 3050
			j.audit.purge(len(j.audit.msgs) - 30)
		}, VerdictProven, "has expired"},
		{"audit", "beginning", "purged below a limit", young, func(j *pureJob) {
			j.audit.cfg.MaxMsgs, j.audit.cfg.MaxBytes = 1000, 1<<20
			j.audit.purge(20)
		}, VerdictCannotTell, "the first 20 messages of stream AUDIT are gone"},
		{"audit", "beginning", "purged from a full stream that refuses new events", young, func(j *pureJob) {
			j.audit.cfg.Discard, j.audit.cfg.MaxMsgs = jetstream.DiscardNew, 30
			j.audit.purge(len(j.audit.msgs) - 30)
		}, VerdictCannotTell, "messages of stream AUDIT are gone"},
		{"audit", "everywhere", "purged", young, func(j *pureJob) { j.audit.purge(100) }, VerdictCannotTell, "messages of stream AUDIT are gone: with a max age of 720h0m0s and created 1h0m0s ago none"},
		{"audit", "everywhere", "purged, no max age", young, func(j *pureJob) { j.audit.cfg.MaxAge = 0; j.audit.purge(100) }, VerdictCannotTell, "none of its settings removes them"},
		{"audit", "everywhere", "purged, some had expired", old, func(j *pureJob) { j.audit.purge(100) }, VerdictCannotTell, "is gone, and it is too young to have expired"},
		{"audit", "everywhere", "expired", ancient, (*pureJob).age, VerdictProven, "the audit of 20 results has expired"},
		{"audit", "everywhere", "re-created", young, func(j *pureJob) {
			j.audit.created, j.audit.msgs, j.audit.last = j.now, nil, 0
		}, VerdictCannotTell, "after the first results: what an earlier one held is gone"},
		{"audit", "middle", "never written", young, func(j *pureJob) { unwritten(&j.audit, isCall(7)) }, VerdictViolated, "row 7 has 0 call events"},
		{"audit", "middle", "deleted by hand", young, func(j *pureJob) { j.audit.remove(isCall(7)) }, VerdictCannotTell, "stream AUDIT lacks 1 messages after its first one: with a max age of 720h0m0s and created 1h0m0s ago none can have expired, so they were"},
		{"audit", "middle", "a limit for each subject", young, func(j *pureJob) {
			j.audit.cfg.MaxMsgsPerSubject = 19
			j.audit.remove(isRow(1))
		}, VerdictCannotTell, "it keeps only 19 messages a subject"},
		{"audit", "middle", "acked away", young, func(j *pureJob) {
			j.audit.cfg.Retention = jetstream.InterestPolicy
			j.audit.remove(isRow(9))
		}, VerdictCannotTell, "its retention, interest, deletes what is acked"},
		{"audit", "end", "never written", young, func(j *pureJob) { unwritten(&j.audit, isRow(20)) }, VerdictViolated, "row 20 has no row event of run2.a"},
		{"audit", "end", "summary never written", young, func(j *pureJob) { unwritten(&j.audit, isRun("run2", auditlog.PhaseEnd)) }, VerdictProven, ""},
		{"audit", "end", "deleted by hand", young, func(j *pureJob) { j.audit.remove(isRun("run2", auditlog.PhaseEnd)) }, VerdictCannotTell, "stream AUDIT lacks 1 messages"},

		{"input", "beginning", "acked away", young, func(j *pureJob) { j.input.cfg.Retention = jetstream.WorkQueuePolicy; j.input.purge(20) }, VerdictProven, "its retention, workqueue, deletes what is acked"},
		{"input", "beginning", "expired", ancient, func(j *pureJob) { j.input.cfg.MaxAge, j.audit.cfg.MaxAge = pureMaxAge, 0; j.input.purge(20) }, VerdictProven, "its max age is 720h0m0s"},
		{"input", "beginning", "purged", young, func(j *pureJob) { j.input.purge(5) }, VerdictProven, "so they were purged or deleted"},
		{"input", "beginning", "purged, and the result never written", young, func(j *pureJob) { j.input.purge(5); unwritten(&j.results, isResult(3)) }, VerdictViolated, "row 3 has no result; it is in the audit"},
		{"input", "beginning", "expired with the audit", old, func(j *pureJob) { j.age(); j.input.purge(2) }, VerdictCannotTell, "2 results no longer have their row in the input or their events"},
		{"input", "middle", "deleted by hand", young, func(j *pureJob) { j.input.remove(isInput(7)) }, VerdictProven, "the rows of 1 results are no longer in the input"},
		{"input", "middle", "a limit for each subject", young, func(j *pureJob) {
			j.input.cfg.MaxMsgsPerSubject = 1
			j.input.remove(isInput(7))
		}, VerdictProven, "it keeps only 1 messages a subject"},
		{"input", "middle", "deleted by hand, and the result, too; the audit has expired", old, func(j *pureJob) { j.age(); j.input.remove(isInput(2)); j.results.remove(isResult(2)) }, VerdictCannotTell, "may have been results of rows of which nothing else has a record"},
		{"input", "middle", "deleted by hand, and the result never written", young, func(j *pureJob) { j.input.remove(isInput(7)); unwritten(&j.results, isResult(7)) }, VerdictViolated, "row 7 has no result; it is in the audit"},
		{"input", "end", "deleted by hand", young, func(j *pureJob) { j.input.remove(isInput(20)) }, VerdictProven, "the rows of 1 results are no longer in the input"},
	} {
		t.Run(strings.Join([]string{tt.stream, tt.where, tt.why}, ", "), func(t *testing.T) {
			each := 10 * time.Second
			if tt.ago == old {
				each = 2*day - time.Minute
			}
			j := newPureJob(20, tt.ago, each)
			tt.damage(j)
			report := j.verify()
			text := stagetest.Value(json.MarshalIndent(report, "", " "))(t)
			if report.Verdict != tt.verdict || !strings.Contains(string(text), tt.want) {
				t.Errorf("got %s, want %s and %q:\n%s", report.Verdict, tt.verdict, tt.want, text)
			}
		})
	}
}

func isInput(seq uint64) func(pureRow) bool { return func(m pureRow) bool { return m.seq == seq } }

// rerun makes the results again from the beginning, as one process that begins with an empty log.
func (j *pureJob) rerun(run string, n int) {
	j.results.msgs, j.results.last = nil, 0
	job := &stagetest.Job{Created: j.input.created, Now: j.now.Add(-time.Minute)}
	job.Start(run)
	job.Claim(run+".a", 0)
	for seq := range uint64(n) { //nolint:gosec // small
		job.Answer(run+".a", seq+1)
	}
	job.End(run)
	for _, s := range job.Steps {
		j.store(job.Now, s)
	}
}
