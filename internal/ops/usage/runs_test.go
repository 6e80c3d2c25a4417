package usage

import (
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
)

// Two replicas that work side by side for half an hour, one of which is killed, and a run
// whose first event has expired.
func TestPaceOfSeveralRuns(t *testing.T) {
	start := time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)
	head := func(run string, minute int) auditlog.Header {
		return auditlog.Header{RunID: run, Time: start.Add(time.Duration(minute) * time.Minute)}
	}
	begin := func(run string, minute int, slots string) *auditlog.Event {
		return &auditlog.Event{Run: &auditlog.Run{Header: head(run, minute), Phase: auditlog.PhaseStart, Settings: map[string]string{"STAGE_POOL_SIZE": slots}}}
	}
	end := func(run string, minute int) *auditlog.Event {
		return &auditlog.Event{Run: &auditlog.Run{Header: head(run, minute), Phase: auditlog.PhaseEnd, Summary: &auditlog.Summary{Throttled: time.Minute}}}
	}
	call := func(run string, minute int, took time.Duration) *auditlog.Event {
		return &auditlog.Event{Call: &auditlog.Call{Header: head(run, minute), Latency: took, Owner: run, Sequence: uint64(minute)}} //nolint:gosec // small
	}
	lane := call("a", 20, time.Hour)
	lane.Call.Lane = auditlog.LaneBatch
	refused := call("b", 80, time.Minute)
	refused.Call.Status, refused.Call.Throttled = auditlog.CallCapacityRetry, 2*time.Minute
	b := NewBook(nil)
	for _, e := range []*auditlog.Event{
		begin("a", 0, "2"), call("a", 30, 30*time.Minute), lane, end("a", 60),
		begin("b", 30, "4"), refused, call("b", 90, 59*time.Minute), // killed
		call("c", 180, 30*time.Minute),
	} {
		b.Add(e)
	}
	// a: 10:00 to 11:00, b: 10:30 to 11:30, c: 12:30 to 13:00. The slots of c are not known.
	want := auditlog.Pace{CallsS: 7200, ElapsedS: 7200, Speedup: 1, Utilisation: 5400. / (2*3600 + 4*3600), ThrottledS: 60 + 120}
	if got := b.Report(start).Pace; got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
