package verify

import (
	"slices"
	"testing"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/stagetest"
	"pgregory.net/rapid"
)

// drawnLog is a log in another order than the stream's, over an input with gaps.
type drawnLog struct {
	order streams.Order
	input []uint64
	keys  map[uint64]string
	log   []*stored.ResultRow
}

func drawLog(t *rapid.T) *drawnLog {
	l := &drawnLog{order: rapid.SampledFrom([]streams.Order{streams.OrderKey, streams.OrderNone}).Draw(t, "order"), keys: make(map[uint64]string)}
	seq := uint64(0)
	for range rapid.IntRange(1, 12).Draw(t, "rows") {
		seq += rapid.Uint64Range(1, 3).Draw(t, "gap")
		l.input = append(l.input, seq)
		l.keys[seq] = rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "key")
	}
	left := slices.Clone(l.input)
	for range rapid.IntRange(0, len(left)).Draw(t, "results") {
		i := rapid.IntRange(0, len(left)-1).Draw(t, "next")
		if l.order == streams.OrderKey {
			i = slices.IndexFunc(left, func(seq uint64) bool { return l.keys[seq] == l.keys[left[i]] })
		}
		key := l.keys[left[i]]
		r := &stored.ResultRow{
			Seq: left[i], Status: auditlog.RowSuccess, Source: "ROWS", StateID: auditlog.StateID("stage", "ROWS", 0, left[i]), Owner: "run1.a",
			Subject: "rows." + key,
		}
		if l.order == streams.OrderKey {
			r.Key = &key
		}
		l.log = append(l.log, r)
		left = slices.Delete(left, i, i+1)
	}
	l.number(t)
	return l
}

// number gives the results their places and a true progress; now and then the mark lags, as it may.
func (l *drawnLog) number(t *rapid.T) {
	low := uint64(0)
	for i, r := range l.log {
		r.At = uint64(i + 2) //nolint:gosec // small
		for _, seq := range l.input {
			if seq > low && !slices.ContainsFunc(l.log[:i+1], func(r *stored.ResultRow) bool { return r.Seq == seq }) {
				break
			}
			if seq > low && rapid.IntRange(0, 9).Draw(t, "lags") == 0 {
				break
			}
			low = max(low, seq)
		}
		r.Progress = l.progress(i, low)
	}
}

// progress is the truth with a result stored, above a mark.
func (l *drawnLog) progress(i int, low uint64) stored.Progress {
	p := stored.Progress{Named: true, Low: low}
	for _, r := range l.log[:i+1] {
		if r.Seq > low {
			if p.Ahead++; p.From == 0 {
				p.From = r.At
			}
		}
	}
	return p
}

// damage changes something, which may be nothing in the end.
func (l *drawnLog) damage(t *rapid.T) {
	if len(l.log) == 0 {
		return
	}
	at := rapid.IntRange(0, len(l.log)-1)
	i, j := at.Draw(t, "result"), at.Draw(t, "other")
	p := &l.log[i].Progress
	switch rapid.IntRange(0, 6).Draw(t, "damage") {
	case 0:
		p.Low = rapid.Uint64Range(0, 40).Draw(t, "low")
	case 1:
		*p = l.progress(i, rapid.Uint64Range(0, 40).Draw(t, "low"))
	case 2:
		p.Ahead = rapid.Uint64Range(0, 12).Draw(t, "ahead")
	case 3:
		p.From = rapid.Uint64Range(0, 14).Draw(t, "from")
	case 4: // lost
		l.log = slices.Delete(l.log, i, i+1)
	case 5: // swapped, with a true progress
		l.log[i], l.log[j] = l.log[j], l.log[i]
		l.number(t)
	case 6:
		key := rapid.SampledFrom([]string{"a", "b", ""}).Draw(t, "wrong key")
		if l.order == streams.OrderKey {
			l.log[i].Key = &key
		}
	}
}

// isTrue looks at each message and all before it.
func (l *drawnLog) isTrue() bool {
	last := uint64(0)
	for i, r := range l.log {
		has := func(seq uint64) bool {
			return slices.ContainsFunc(l.log[:i+1], func(r *stored.ResultRow) bool { return r.Seq == seq })
		}
		p, want, highest := r.Progress, l.progress(i, r.Progress.Low), uint64(0)
		for _, before := range l.log[:i+1] {
			highest = max(highest, before.Seq)
		}
		for _, seq := range l.input {
			if seq <= p.Low && !has(seq) || l.order == streams.OrderKey && seq < r.Seq && l.keys[seq] == l.keys[r.Seq] && !has(seq) {
				return false
			}
		}
		if p.Low < last || p.Low > highest || p.Ahead != want.Ahead || p.Ahead > 0 && (p.From == 0 || p.From > want.From) ||
			l.order == streams.OrderKey && *r.Key != l.keys[r.Seq] {
			return false
		}
		last = p.Low
	}
	return true
}

// verify checks the log of a stage whose audit has expired.
func (l *drawnLog) verify(t *rapid.T) *partitionVerifier {
	log, input := l.log, l.input
	v := newPartitionVerifier(newReport("stage"), newRunVerifier(), 0, 64)
	v.audit.gap = auditGap{until: forever, expired: forever}
	v.log.logFacts = logFacts{name: "stage", stream: "ROWS"}
	v.log.results = func() (*stored.ResultRow, error) {
		if len(log) == 0 {
			return nil, nil
		}
		r := log[0]
		log = log[1:]
		return r, nil
	}
	v.log.input = inputRows{last: 99, read: func() (stored.InputRow, error) {
		if len(input) == 0 {
			return stored.InputRow{}, nil
		}
		seq := input[0]
		input = input[1:]
		return stored.InputRow{Seq: seq, Subject: "rows." + l.keys[seq]}, nil
	}}
	v.log.claims = []stored.Claim{{At: 1, Owner: "run1.a", Version: 2, Input: "ROWS", Order: l.order, Key: "subject.2", Progress: stored.Progress{Named: true}}}
	stagetest.Must(t, v.start())
	stagetest.Must(t, v.finish())
	return v
}

// Verify finds a violation if and only if a message says something that is not true, or
// is in the wrong place.
func TestVerifyTakesNoMarkOnTrust(t *testing.T) {
	damaged := 0
	rapid.Check(t, func(t *rapid.T) {
		l := drawLog(t)
		for range rapid.IntRange(0, 2).Draw(t, "damages") {
			l.damage(t)
		}
		v, want := l.verify(t), l.isTrue()
		if !want {
			damaged++
		}
		if got := v.report.Violations.Count == 0; got != want {
			for _, r := range l.log {
				t.Logf("%d: row %d, key %q, %+v", r.At, r.Seq, l.keys[r.Seq], r.Progress)
			}
			t.Fatalf("got %t, want %t: %+v; input %v", got, want, v.report.Violations.First, l.input)
		}
		if pending := uint64(len(l.input) - len(l.log)); want && v.log.pendingAhead > pending {
			t.Fatalf("got %d rows pending up to row %d, want %d of all at most", v.log.pendingAhead, v.log.last, pending)
		}
	})
	t.Logf("%d logs were damaged", damaged)
}
