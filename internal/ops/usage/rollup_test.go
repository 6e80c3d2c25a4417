package usage

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// rolling is a stage whose audit a test rolls up.
type rolling struct {
	*stagetest.Bench
	calls calls
	want  *Book
	seq   uint64
}

func newRolling(t *testing.T) *rolling {
	t.Helper()
	r := &rolling{Bench: stagetest.NewBench(t, nil), want: NewBook(Dimensions)}
	r.calls = calls{stage: "stage", at: time.Date(2026, 11, 24, 20, 0, 0, 0, time.UTC)}
	return r
}

// call stores calls, an hour apart, in the audit, and counts them. A new row makes some of
// them, a retried one others.
func (r *rolling) call(n int) {
	r.T.Helper()
	for range n {
		r.seq++
		r.calls.at = r.calls.at.Add(time.Hour)
		e := r.calls.of("run.a", r.seq, 0, auditlog.CallSuccess, func(c *auditlog.Call) {
			if c.Model = "small"; r.seq%3 == 0 {
				c.Model, c.Usage.CachedTokens = "large", new(int64(7))
			}
			if r.seq%5 == 0 {
				c.Usage = nil
			}
		})
		store(r.Bench, e)
		r.want.Add(e)
	}
}

// roll brings the roll-up up to date.
func (r *rolling) roll(want int) {
	r.T.Helper()
	days, err := RollUp(r.T.Context(), r.JS, NewReader(r.Cfg, NewBook(Dimensions), Options{Stages: []string{"stage"}}), 1)
	if err != nil || days != want {
		r.T.Errorf("%d days stored, error %v, want %d", days, err, want)
	}
}

// agrees checks that a report has each call once.
func (r *rolling) agrees(when string) {
	r.T.Helper()
	got := readAll(r.Bench, Options{Stages: []string{"stage"}}, Dimensions...)
	want := r.want.Report(time.Now())
	for i := range want.Groups { // the sums of dollars are rounded in another order
		round(&want.Groups[i].Numbers)
	}
	for i := range got.Groups {
		round(&got.Groups[i].Numbers)
	}
	is, was := stagetest.Value(json.Marshal(got.Groups))(r.T), stagetest.Value(json.Marshal(want.Groups))(r.T)
	if string(is) != string(was) || got.Total.Calls != want.Total.Calls || *got.Total.TotalTokens != *want.Total.TotalTokens || got.AuditBegins != nil {
		r.T.Errorf("%s: audit begins %v\ngot  %s\nwant %s", when, got.AuditBegins, is, was)
	}
}

func round(n *Numbers) {
	n.KnownCostUSD = float64(int64(n.KnownCostUSD*1e6+.5)) / 1e6
	if n.CostUSD != nil {
		n.CostUSD = new(n.KnownCostUSD)
	}
}

// What was rolled up outlives the audit, and whatever is still there, each call counts once.
func TestARollUpOutlivesTheAuditToTheToken(t *testing.T) {
	r := newRolling(t)
	r.call(30) // of three days
	r.roll(3)
	r.agrees("after the first roll-up")
	r.roll(0)
	r.call(25) // of the last day, and of the next
	r.agrees("with calls that are not rolled up")
	r.Purge(r.Cfg.Audit.Stream, 20) // in the middle of a day
	r.agrees("with a part of the audit gone")
	r.roll(2)
	r.agrees("after the second roll-up")
	r.Purge(r.Cfg.Audit.Stream, 0)
	r.agrees("with all of the audit gone")
	r.call(3)
	r.roll(1)
	r.Drop(r.Cfg.Audit.Stream)
	audit := r.Cfg.Audit
	stagetest.Value(r.JS.CreateStream(t.Context(), streamOf(audit.Stream, audit.Subject+".>")))(t)
	r.call(4) // sequences begin again
	r.agrees("with another audit stream")
	r.roll(1)
	r.agrees("after a roll-up of that")
}

// A roll-up that ends half-way leaves each day old or new.
func TestARollUpThatIsKilledLosesNothing(t *testing.T) {
	r := newRolling(t)
	r.call(10)
	r.roll(2)
	r.call(40)
	before := map[string][]byte{}
	for _, day := range []string{"2026-11-24", "2026-11-25", "2026-11-26", "2026-11-27"} {
		if m, err := r.Stream(RollUpStream).GetLastMsgForSubject(t.Context(), "usage.stage."+day); err == nil {
			before[day] = m.Data
		}
	}
	r.roll(2)
	for _, day := range []string{"2026-11-26", "2026-11-25"} { // as if it had not come so far
		if old := before[day]; old != nil {
			r.Publish(&nats.Msg{Subject: "usage.stage." + day, Data: old})
		} else {
			m := stagetest.Value(r.Stream(RollUpStream).GetLastMsgForSubject(t.Context(), "usage.stage."+day))(t)
			stagetest.Must(t, r.Stream(RollUpStream).DeleteMsg(t.Context(), m.Sequence))
		}
		r.agrees("without the new sums of " + day)
	}
	r.roll(2)
	r.Purge(r.Cfg.Audit.Stream, 0)
	r.agrees("after the next roll-up, without the audit")
}

// The older of two roll-ups at once stores nothing over the newer one.
func TestTwoRollUpsAtOnceCountNothingTwice(t *testing.T) {
	r := newRolling(t)
	r.call(3)
	r.roll(1)
	slow := NewReader(r.Cfg, NewBook(Dimensions), Options{Stages: []string{"stage"}})
	r.call(1)
	stagetest.Must(t, slow.Read(t.Context(), r.JS))
	r.call(1)
	r.roll(1)
	if _, err := RollUp(t.Context(), r.JS, slow, 1); !errors.Is(err, ErrRolledMeanwhile) {
		t.Errorf("the older roll-up: %v", err)
	}
	r.Purge(r.Cfg.Audit.Stream, 0)
	r.agrees("after both")
}

func streamOf(name, subject string) jetstream.StreamConfig {
	return jetstream.StreamConfig{Name: name, Subjects: []string{subject}, AllowDirect: true}
}
