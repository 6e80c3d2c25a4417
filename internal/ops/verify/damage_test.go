package verify

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/stagetest"
	"pgregory.net/rapid"
)

// damage is done to a pureJob, and what of it was never written rather than removed.
type damage struct {
	*pureJob
	log      []stagetest.Step // as they were
	events   []*auditlog.Event
	unstored map[any]bool // results, claims and events
	rows     map[uint64]bool
}

func logOf(s stagetest.Step) any {
	if s.Claim != nil {
		return s.Claim
	}
	return s.Result
}

// drop removes a message from a stream, or pretends that it was never written.
func drop[T any](t *rapid.T, d *damage, s *pureStream[T], key func(T) any) {
	if len(s.msgs) == 0 {
		return
	}
	at := rapid.IntRange(0, len(s.msgs)-1).Draw(t, "message")
	seq, is := s.msgs[at].seq, s.msgs[at].is
	if key != nil && rapid.Bool().Draw(t, "never written") && !slices.ContainsFunc(s.msgs[:at], func(m pureMessage[T]) bool { return key(m.is) == key(is) }) {
		d.unstored[key(is)] = true
		unwritten(s, func(m pureMessage[T]) bool { return key(m.is) == key(is) })
		return
	}
	s.remove(func(m pureMessage[T]) bool { return m.seq == seq })
}

func purge[T any](t *rapid.T, s *pureStream[T]) {
	s.purge(rapid.IntRange(0, len(s.msgs)).Draw(t, "so many"))
}

// double stores a message a second time, somewhere behind.
func double[T any](t *rapid.T, s *pureStream[T], may func(T) bool) {
	if len(s.msgs) == 0 {
		return
	}
	m := s.msgs[rapid.IntRange(0, len(s.msgs)-1).Draw(t, "message")]
	if may(m.is) {
		s.add(s.msgs[len(s.msgs)-1].stored, m.is)
	}
}

func swap[T any](t *rapid.T, s *pureStream[T], may func(T) bool) {
	if len(s.msgs) == 0 {
		return
	}
	draw := rapid.IntRange(0, len(s.msgs)-1)
	a, b := &s.msgs[draw.Draw(t, "one")], &s.msgs[draw.Draw(t, "other")]
	if may(a.is) && may(b.is) {
		a.is, b.is = b.is, a.is
	}
}

// expected is the verdict that a brute-force look at the damage allows.
type expected int

const (
	mustProve expected = iota
	mayProve
	mustNotProve
)

// expect compares the streams with what they were.
func (d *damage) expect() expected {
	log := make([]stagetest.Step, len(d.results.msgs))
	for i, m := range d.results.msgs {
		log[i] = m.is
	}
	e := d.expectAudit(len(log))
	was := slices.DeleteFunc(slices.Clone(d.log), func(s stagetest.Step) bool { return s.Result != nil && d.unknowable(s.Result, log) })
	if len(was) < len(d.log) || d.audit.info(d.now).State.NumDeleted+d.results.info(d.now).State.NumDeleted > 0 {
		e = max(e, mayProve)
	}
	return max(e, d.expectLog(log, was))
}

// unknowable reports whether a result was never written and nothing that is left names
// its row: the guarantee is about rows that the input still holds.
func (d *damage) unknowable(r *stored.ResultRow, log []stagetest.Step) bool {
	last := uint64(0)
	for _, s := range log {
		if s.Result != nil {
			last = max(last, s.Result.Seq)
		}
	}
	return d.unstored[r] && r.Seq < last && !d.rows[r.Seq] && !d.has(func(e *auditlog.Event) bool {
		return e.Row != nil && e.Row.Sequence == r.Seq || e.Call != nil && e.Call.Sequence == r.Seq
	})
}

func (d *damage) expectLog(log, was []stagetest.Step) expected {
	if len(log) > len(was) || !slices.EqualFunc(log, was[:len(log)], func(a, b stagetest.Step) bool { return logOf(a) == logOf(b) }) {
		return mustNotProve
	}
	for _, s := range was[len(log):] {
		if !d.unstored[logOf(s)] || s.Result != nil && d.summary(stagetest.RunOf(s.Result.Owner)) {
			return mustNotProve
		}
	}
	if len(log) == len(was) {
		return mustProve
	}
	return mayProve
}

// summary reports whether the audit still has the summary of a run, and its start,
// without which it is not compared.
func (d *damage) summary(run string) bool {
	phase := func(p auditlog.Phase) bool {
		return d.has(func(e *auditlog.Event) bool { return e.Run != nil && e.RunID == run && e.Run.Phase == p })
	}
	return phase(auditlog.PhaseStart) && phase(auditlog.PhaseEnd)
}

func (d *damage) has(match func(*auditlog.Event) bool) bool {
	return slices.ContainsFunc(d.audit.msgs, func(m pureMessage[*auditlog.Event]) bool { return match(m.is) })
}

// expectAudit looks for the events that the results left in the log need.
func (d *damage) expectAudit(left int) expected {
	e := mustProve
	horizon := d.now.Add(-pureMaxAge)
	resulted := make(map[uint64]bool)
	for _, s := range d.log[:min(left, len(d.log))] {
		if s.Result != nil {
			resulted[s.Result.Seq] = true
		}
	}
	if len(d.audit.msgs) > len(d.events) {
		e = mayProve // doubled events
	}
	for i, ev := range d.events {
		if i < len(d.audit.msgs) && d.audit.msgs[i].is != ev {
			e = max(e, mayProve) // removed or out of order
		}
		if d.has(func(other *auditlog.Event) bool { return other == ev }) {
			continue
		}
		expired := ev.Time.Before(horizon)
		seq := uint64(0)
		switch {
		case ev.Row != nil:
			seq = ev.Row.Sequence
		case ev.Call != nil:
			seq = ev.Call.Sequence
		}
		switch {
		case seq == 0 && (d.unstored[ev] || d.audit.created.Before(horizon)):
			e = max(e, mayProve) // one that can have expired, of a process that can have been killed
		case seq > 0 && !resulted[seq], expired && !d.rows[seq]:
			e = max(e, mayProve)
		case !expired:
			return mustNotProve
		}
	}
	return e
}

// drawOrder draws the order of n results, and their rows in that order.
func drawOrder(t *rapid.T, n int) (o stagetest.Order, rows []uint64) {
	o.Order = rapid.SampledFrom([]streams.Order{streams.OrderStream, streams.OrderKey, streams.OrderNone}).Draw(t, "order")
	o.Place = "subject.2"
	for seq := range n {
		rows = append(rows, uint64(seq)+1) //nolint:gosec // small
		o.Keys = append(o.Keys, rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "key"))
	}
	if o.Order == streams.OrderStream {
		return o, rows
	}
	rows = rapid.Permutation(rows).Draw(t, "results")
	if o.Order == streams.OrderKey { // those of each key in the places that they have
		places := make(map[string][]uint64)
		for _, seq := range rows {
			key := o.Keys[seq-1]
			places[key] = append(places[key], seq)
		}
		for _, of := range places {
			slices.Sort(of)
		}
		for i, seq := range rows {
			key := o.Keys[seq-1]
			rows[i], places[key] = places[key][0], places[key][1:]
		}
	}
	return o, rows
}

// Whatever is dropped, doubled, swapped or purged at random: a job that has lost evidence
// is never proven, an intact one always is.
func TestVerifyProvesNothingThatIsDamaged(t *testing.T) {
	counts := make(map[expected]int)
	rapid.Check(t, func(t *rapid.T) {
		ago := rapid.SampledFrom([]time.Duration{time.Hour, 40 * day, 400 * day}).Draw(t, "ago")
		each := 10 * time.Second
		n := rapid.IntRange(2, 12).Draw(t, "rows")
		if ago == 40*day {
			each = (ago - time.Hour) / time.Duration(n)
		}
		order, rows := drawOrder(t, n)
		d := &damage{pureJob: newPureJobOf(order, rows, ago, each), unstored: make(map[any]bool), rows: make(map[uint64]bool)}
		d.window = 16
		for _, m := range d.results.msgs {
			d.log = append(d.log, m.is)
		}
		for _, m := range d.audit.msgs {
			d.events = append(d.events, m.is)
		}
		if rapid.Bool().Draw(t, "age") {
			d.age()
		}
		// A claim that is forged, by a copy or in another place, can fit a hole next to it.
		isAResult := func(s stagetest.Step) bool { return s.Result != nil }
		event := func(e *auditlog.Event) any { return e }
		kinds := []func(){
			func() { drop(t, d, &d.input, nil) }, func() { drop(t, d, &d.results, logOf) }, func() { drop(t, d, &d.audit, event) },
			func() { purge(t, &d.input) }, func() { purge(t, &d.results) }, func() { purge(t, &d.audit) },
			func() { double(t, &d.results, isAResult) },
			func() { double(t, &d.audit, func(*auditlog.Event) bool { return true }) },
			func() { swap(t, &d.results, isAResult) },
			func() { swap(t, &d.audit, func(e *auditlog.Event) bool { return e.Run == nil }) }, // a process stores its start first
		}
		for range rapid.IntRange(0, 4).Draw(t, "damages") {
			kinds[rapid.IntRange(0, len(kinds)-1).Draw(t, "kind")]()
		}
		for _, m := range d.input.msgs {
			d.rows[m.seq] = true
		}
		want, report := d.expect(), d.verify()
		counts[want]++
		if proven := report.Verdict == VerdictProven; proven && want == mustNotProve || !proven && want == mustProve {
			text, _ := json.MarshalIndent(report, "", " ")
			t.Fatalf("got %s, expected %d:\n%s", report.Verdict, want, text)
		}
	})
	t.Logf("%d jobs had to be proven, %d could be, %d could not", counts[mustProve], counts[mayProve], counts[mustNotProve])
}
