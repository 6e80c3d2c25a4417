package stage

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/ops/status"
	"github.com/llm-stage/stage/internal/stagetest"
)

// sharedBudget is a budget in a mode, for the provider openai unless said.
func sharedBudget(mode status.BudgetMode) status.Budget {
	b := status.Budget{Name: "team", Provider: "openai", Mode: mode, Members: 4, Share: .25, Rate: 19.46, Leader: "run7"}
	if mode == status.BudgetAlone {
		b.Members, b.Leader = 1, ""
	}
	return b
}

func TestEachModeOfABudgetThatStaysIsOneEvent(t *testing.T) {
	const alone, member, leader = status.BudgetAlone, status.BudgetMember, status.BudgetLeader
	const itself = "member, led by itself"
	for _, tt := range []struct {
		name  string
		modes []status.BudgetMode // second by second; the last one stays
		want  []string            // seconds and phases
	}{
		{"it joins within a second", []status.BudgetMode{alone, member}, []string{"1 joined"}},
		{"it is the first", []status.BudgetMode{alone, alone, leader}, []string{"2 leads"}},
		{"it hears nobody", []status.BudgetMode{alone}, []string{"5 alone"}},
		{"it is cut off after a while", append(slices.Repeat([]status.BudgetMode{member}, 20), alone), []string{"0 joined", "20 alone"}},
		{"it leads when the leader dies", append(slices.Repeat([]status.BudgetMode{member}, 20), leader), []string{"0 joined", "20 leads"}},
		{"it leads, and is cut off", append(slices.Repeat([]status.BudgetMode{leader}, 10), itself, itself, alone), []string{"0 leads", "12 alone"}},
		{"a moment alone is no event", append(slices.Repeat([]status.BudgetMode{member}, 3), alone, member), []string{"0 joined"}},
		{"at most one in five seconds", append(slices.Repeat([]status.BudgetMode{member, leader, alone}, 20), member), []string{"0 joined", "5 alone", "10 leads", "15 joined"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				known := func() []status.Budget {
					second := min(int(time.Since(began).Seconds()), len(tt.modes)-1)
					other := sharedBudget(member)
					other.Provider = "anthropic"
					b := sharedBudget(tt.modes[second])
					if b.Mode == itself {
						b.Mode, b.Leader = member, "run1"
					}
					return []status.Budget{b, other}
				}
				got := map[string][]string{} // by provider
				s := &sharing{
					view:  &view{Cfg: stagetest.Config(t, "STAGE_BUDGET", "team"), Log: slog.New(slog.DiscardHandler), runID: "run1"},
					known: known, notes: map[string]budgetNote{},
				}
				s.record = func(e auditlog.Run) {
					got[e.Budget.Provider] = append(got[e.Budget.Provider], fmt.Sprintf("%.0f %s", time.Since(began).Seconds(), e.Phase))
				}
				stop := s.reportChanges(t.Context())
				time.Sleep(20*time.Second + 500*time.Millisecond)
				if len(tt.modes) < 21 {
					time.Sleep(time.Minute)
				}
				stop()
				own := got["openai"]
				if len(tt.modes) > 21 { // only the first seconds are compared
					own = own[:min(len(own), len(tt.want))]
				}
				if !slices.Equal(own, tt.want) {
					t.Errorf("got events %q, want %q", own, tt.want)
				}
				if other := got["anthropic"]; !slices.Equal(other, []string{"0 joined"}) {
					t.Errorf("the other provider has the events %q", other)
				}
			})
		})
	}
}

func TestABudgetIsShownEverywhere(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, llmtest.Config{}, map[string]string{"STAGE_BUDGET": "team"})
		var now atomic.Pointer[status.Budget]
		set := func(b status.Budget) { now.Store(&b) }
		set(sharedBudget(status.BudgetMember))
		l.prepare = func(s *Stage) { s.sharing.known = func() []status.Budget { return []status.Budget{*now.Load()} } }
		r := l.start(nil, Options{})
		time.Sleep(10 * time.Second)
		page := r.page()
		for _, want := range []string{
			"\nllm_stage_budget_members 4\n", "\nllm_stage_budget_share 0.25\n", "\nllm_stage_budget_rate 19.46\n",
			"\n" + `llm_stage_budget_mode{mode="member"} 1` + "\n", "\n" + `llm_stage_budget_mode{mode="leader"} 0` + "\n",
		} {
			if !strings.Contains(page, want) {
				t.Errorf("no %q in the metrics", want)
			}
		}
		shown := func() string {
			text := stagetest.Value(json.Marshal(r.Status()))(t)
			_, after, _ := strings.Cut(string(text), `"budget":`)
			before, _, _ := strings.Cut(after, `,"lane"`)
			return before
		}
		if got, want := shown(), `[{"name":"team","provider":"openai","mode":"member","members":4,"share":0.25,"rate_per_second":19.46,"leader":"run7"}]`; got != want {
			t.Errorf("status: got %s\nwant %s", got, want)
		}
		alone := sharedBudget(status.BudgetAlone)
		alone.Rate = math.Inf(1)
		set(alone)
		time.Sleep(10 * time.Second)
		if got, want := shown(), `[{"name":"team","provider":"openai","mode":"alone","members":1,"share":0.25,"rate_per_second":null,"leader":""}]`; got != want {
			t.Errorf("status: got %s\nwant %s", got, want)
		}
		set(sharedBudget(status.BudgetLeader))
		time.Sleep(10 * time.Second)
		notices := r.Status().Events
		r.stop()

		joined := "budget team for openai: 4 processes, 19.5 calls/s in all, share 25%, led by run7"
		lost := "budget team for openai: no other process is heard, so this one goes by its own throttle: no limit is known yet"
		leads := "budget team for openai: 4 processes, 19.5 calls/s in all, share 25%"
		matches(t, "joined", l.runEvents(auditlog.PhaseJoined), joined)
		matches(t, "alone", l.runEvents(auditlog.PhaseAlone), lost)
		matches(t, "leads", l.runEvents(auditlog.PhaseLeads), leads)
		for text, level := range map[string]string{"joined: " + joined: "info", "alone: " + lost: "warn", "leads: " + leads: "info"} {
			if !slices.ContainsFunc(notices, func(n status.Notice) bool { return n.Text == text && n.Level == level }) {
				t.Errorf("the dashboard does not show %s: %+v", text, notices)
			}
		}
		for _, line := range []string{
			`level=INFO msg="joined the shared budget" .*budget=team provider=openai members=4 share=0.25 rate_per_second=19.5 leader=run7`,
			`level=WARN msg="alone in the shared budget: no other process is heard, calls go at the rate of the own throttle" .*members=1 share=0.25`,
			`level=INFO msg="leading the shared budget" .*members=4`,
		} {
			start, rest, _ := strings.Cut(line, " .*")
			found := stagetest.Lines(l.logs.String(), start)
			if len(found) != 1 || !strings.Contains(found[0], rest) {
				t.Errorf("log: got %q, want one line with %s and %s", found, start, rest)
			}
		}
	})
}

func TestWithoutABudgetNothingOfItIsShown(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, llmtest.Config{}, map[string]string{"STAGE_BUDGET_WEIGHT": "3"})
		r := l.start(nil, Options{})
		time.Sleep(10 * time.Second)
		page := r.page()
		if text := page; strings.Contains(text, "llm_stage_budget") {
			t.Errorf("metrics: %s", stagetest.Lines(text, "llm_stage_budget"))
		}
		if s := r.Status(); s.Budget != nil {
			t.Errorf("status: %+v", s.Budget)
		}
		r.stop()
		if text := l.logs.String(); strings.Contains(text, "budget") {
			t.Errorf("log: %s", stagetest.Lines(text, "budget"))
		}
	})
}

// Two replicas share a budget over a NATS server, until the first one stops.
func TestReplicasRecordTheirPartsInABudget(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newLab(t, llmtest.Config{}, map[string]string{"STAGE_BUDGET": "team"})
		first := l.start(nil, Options{})
		time.Sleep(5 * time.Second)
		second := l.start(nil, Options{})
		time.Sleep(15 * time.Second)
		if b := first.Status().Budget; len(b) != 1 || b[0].Mode != status.BudgetLeader || b[0].Members != 2 || b[0].Leader != first.runID || b[0].Provider != "openai-first_test" {
			t.Errorf("the first: %+v", b)
		}
		if b := second.Status().Budget; len(b) != 1 || b[0].Mode != status.BudgetMember || b[0].Members != 2 || b[0].Leader != first.runID {
			t.Errorf("the second: %+v", b)
		}
		first.stop()
		time.Sleep(10 * time.Second)
		second.stop()
		got := map[string][]string{}
		for _, e := range l.events(auditlog.KindRun) {
			if b := e.Run.Budget; b != nil {
				got[e.RunID] = append(got[e.RunID], string(e.Run.Phase))
			}
		}
		for run, want := range map[string][]string{first.runID: {"leads"}, second.runID: {"joined", "leads"}} {
			if !slices.Equal(got[run], want) {
				t.Errorf("run %s has the events %q, want %q", run, got[run], want)
			}
		}
	})
}
