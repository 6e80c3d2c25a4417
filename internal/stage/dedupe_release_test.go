package stage

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// releaseLab is a lab of two partitions. Each has a row with the same question, so that one row waits for the call of
// the other, while the LLM rejects every call or takes a minute for it.
type releaseLab struct {
	*lab
	answers atomic.Bool // from now on it answers
}

func newReleaseLab(t *testing.T, dedupe string, slow bool) *releaseLab {
	t.Helper()
	l := &releaseLab{}
	l.lab = newLab(t, llmtest.Config{Script: func(llmtest.Call) *llmtest.Step {
		switch {
		case l.answers.Load():
			return nil
		case slow:
			return &llmtest.Step{Delay: time.Minute}
		default:
			return &llmtest.Step{Status: 429}
		}
	}}, map[string]string{
		"STAGE_DEDUPE": dedupe, "STAGE_PARTITIONS": "2", "STAGE_INPUT_SUBJECT": "rows.{partition}.>", "STAGE_LLM_TIMEOUT": "2m",
	})
	return l
}

func (l *releaseLab) ask(partition int) {
	l.t.Helper()
	m := &nats.Msg{Subject: fmt.Sprintf("rows.%d.a", partition), Data: []byte(`{"q":"same"}`)}
	stagetest.Value(l.js.PublishMsg(l.t.Context(), m))(l.t)
	time.Sleep(3 * time.Second) // it is sent, or it waits for the one that was
}

// within fails the test unless ok becomes true in that time.
func (l *releaseLab) within(d time.Duration, what string, ok func() bool) {
	l.t.Helper()
	for deadline := time.Now().Add(d); !ok(); time.Sleep(d / 100) {
		if time.Now().After(deadline) {
			l.t.Fatalf("not after %v: %s", d, what)
		}
	}
}

func (r *running) roleOf1() consumer.Role { return r.consumers[1].Status().Role }

// answered waits for one result in each partition.
func (l *releaseLab) answered() {
	l.t.Helper()
	l.within(5*time.Minute, "a result in each partition", func() bool {
		return len(l.stored("RESULTS", "results.stage.*.rows", 2)) == 2
	})
}

// TestAHandOverDoesNotWaitForAnotherPartitionsCall: whichever of the two rows makes the call, and whether it waits for
// capacity or is in flight, partition 1 goes to the replica that joins, and the row of partition 0 stays where it is.
func TestAHandOverDoesNotWaitForAnotherPartitionsCall(t *testing.T) {
	for _, test := range []struct {
		dedupe, name string
		first        int // the partition whose row makes the call
		slow         bool
	}{
		{"inflight", "waits for capacity", 0, false},
		{"inflight", "is itself released", 1, false},
		{"inflight", "is in flight", 0, true},
		{"stored", "waits for capacity", 0, false},
	} {
		t.Run(test.dedupe+"/the one that calls "+test.name, func(t *testing.T) {
			stagetest.Virtual(t, func(t *testing.T) {
				l := newReleaseLab(t, test.dedupe, test.slow)
				one := l.start(nil, Options{})
				time.Sleep(3 * time.Second)
				l.ask(test.first)
				l.ask(1 - test.first)

				two := l.start(nil, Options{})
				l.within(time.Second, "partition 1 is released", func() bool { return one.roleOf1() == consumer.Standby })
				l.within(time.Second, "partition 1 has another owner", func() bool { return two.roleOf1() == consumer.Owner })
				l.within(time.Second, "its row is there", func() bool { return two.consumers[1].Status().Window == 1 })
				if s := one.consumers[0].Status(); s.Role != consumer.Owner || s.Window != 1 {
					t.Errorf("partition 0: %v with %d rows, want the owner and its row", s.Role, s.Window)
				}
				l.answers.Store(true)
				l.answered()
				one.stop()
				two.stop()
			})
		})
	}
}

// TestARowThatWentAndCameBackSharesACallAgain: the replica that joined leaves again, so the row of partition 1 comes
// back to where the row of partition 0 still waits for capacity.
func TestARowThatWentAndCameBackSharesACallAgain(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newReleaseLab(t, "inflight", false)
		one := l.start(nil, Options{})
		time.Sleep(3 * time.Second)
		l.ask(0)
		l.ask(1)
		two := l.start(nil, Options{})
		l.within(3*time.Second, "partition 1 has another owner", func() bool { return two.roleOf1() == consumer.Owner })
		two.stop()
		l.within(5*time.Second, "the row of partition 1 is back", func() bool {
			s := one.consumers[1].Status()
			return s.Role == consumer.Owner && s.Window == 1
		})
		l.answers.Store(true)
		l.answered()
		if got := l.sources(); got["call"] != 1 || got["dedupe"] != 1 {
			t.Errorf("sources %v, want one call for both rows", got)
		}
		one.stop()
	})
}

// TestAHandOverTakesElementsThatWaitToBegin: rows of the released partition have elements in the pool's line, and others
// for which that has no room.
func TestAHandOverTakesElementsThatWaitToBegin(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		const rows, elements = 10, 20
		l := newReleaseLab(t, "off", false)
		fan := map[string]string{"STAGE_FOREACH": "q", "STAGE_FOREACH_MAX": "20", "STAGE_TEMPLATE": "{{ item }}", "STAGE_POOL_SIZE": "1"}
		one := l.start(fan, Options{})
		time.Sleep(3 * time.Second)
		for range rows {
			for p := range 2 {
				m := &nats.Msg{Subject: fmt.Sprintf("rows.%d.a", p), Data: []byte(`{"q":[0` + strings.Repeat(",1", elements-1) + `]}`)}
				stagetest.Value(l.js.PublishMsg(t.Context(), m))(t)
			}
		}
		time.Sleep(3 * time.Second)
		two := l.start(fan, Options{})
		l.within(time.Second, "partition 1 is released", func() bool { return one.roleOf1() == consumer.Standby })
		l.within(3*time.Second, "partition 1 has another owner", func() bool { return two.roleOf1() == consumer.Owner })
		l.answers.Store(true)
		l.within(10*time.Minute, "the results", func() bool { return len(l.stored("RESULTS", "results.stage.*.rows", 2*rows)) == 2*rows })
		one.stop()
		two.stop()
	})
}
