package budget

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/aimd/fleet"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// violation is the error of the client where the server denies a message or a subscription.
func violation(what, subject string) error {
	return fmt.Errorf("%w: Permissions Violation for %s to %q", nats.ErrPermissionViolation, what, subject)
}

func TestAProcessThatIsDeniedIsAloneForAMinute(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		p := &provider{rate: 50, burst: 5}
		_, processes := p.team(t, fleet.Limits{})
		one := processes[3]
		var log bytes.Buffer
		one.cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		for i, subject := range []string{"llm-stage.budget.team.mock.plan", "llm-stage.budget.team.mock.report"} {
			handler := one.nc.Load().ErrorHandler()
			handler(one.nc.Load(), nil, violation([]string{"Publish", "Subscription"}[i], subject))
		}
		time.Sleep(4 * time.Second)
		if mode := one.account.State().Mode; mode != fleet.Alone {
			t.Errorf("4 s after it was denied it is %s, want alone", mode)
		}
		p.count(processes)
		time.Sleep(10 * time.Second)
		if one.done.Load() < 10 {
			t.Errorf("%d rows in 10 s alone", one.done.Load())
		}
		time.Sleep(50 * time.Second) // the server allows it by now
		if modes := modes(processes); modes[fleet.Lead] != 1 || modes[fleet.Follow] != 7 {
			t.Errorf("a minute after it was denied: %v", modes)
		}
		for _, s := range processes {
			s.stop()
		}
		if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=WARN") || !strings.Contains(got, "subject=llm-stage.budget.team.>") {
			t.Errorf("want one line of what is denied, got:\n%s", got)
		}
	})
}

func TestErrorsOfOthersAreNotTheBudgets(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		p := &provider{rate: 50, burst: 5}
		one := p.start(t, stagetest.StartNATS(t).Connect(), "run", fleet.Limits{})
		one.stop()
		var passed []error
		one.nc.Load().SetErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { passed = append(passed, err) })
		stop := one.watchErrors()
		others := []error{
			violation("Publish", "llm-stage.budget.team2.mock.plan"), violation("Publish", "results.stage.0.rows"), nats.ErrSlowConsumer,
		}
		for _, err := range others {
			one.nc.Load().ErrorHandler()(one.nc.Load(), nil, err)
		}
		stop()
		if fmt.Sprint(passed) != fmt.Sprint(others) {
			t.Errorf("passed on %v, want %v", passed, others)
		}
		if one.denied() {
			t.Error("it takes itself for denied")
		}
	})
}
