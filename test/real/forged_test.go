//go:build real

package real

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// TestForgedMessagesOfABudgetCostNoRow publishes on the subjects of a budget what anybody might who is allowed to.
func TestForgedMessagesOfABudgetCostNoRow(t *testing.T) {
	t.Parallel()
	const (
		n, rate, rows  = 3, 30, 200
		forgeAt, quiet = 4.0, 12.0 // seconds after the start
	)
	limit := []phase{{rate, 3600}}
	nginx := nginxPath(t)
	addr, log := startNginx(t, nginx, mock(t, "--latency", "200ms"), "limit_req zone=calls burst=5 nodelay; limit_req_status 429;", rate)
	f := newFleet(t, n, rows)
	heard := make(map[string]*nats.Msg) // the last one of each kind
	messages := stagetest.Value(f.nc.SubscribeSync("llm-stage.budget.account.>"))(t)
	f.run(map[string]string{"STAGE_BUDGET": "account", "STAGE_LLM_BASE_URL": "http://" + addr + "/v1"})
	began := time.Now()
	for time.Since(began) < seconds(forgeAt) {
		if m, err := messages.NextMsg(100 * time.Millisecond); err == nil {
			heard[kindOf(m)] = m
		}
	}
	stagetest.Must(t, messages.Unsubscribe())
	f.settled("before anything is forged")
	if heard["plan"] == nil || heard["report"] == nil {
		t.Fatalf("heard no plan or no report: %v", heard)
	}
	lies := append(garbage(), forgeries(t, heard["plan"], heard["report"])...)
	for i := 0; time.Since(began) < seconds(quiet); i++ {
		stagetest.Must(t, f.nc.PublishMsg(lies[i%len(lies)]))
		time.Sleep(20 * time.Millisecond)
	}
	forged := f.modes()
	f.settled("after the last forgery")
	f.done(fleetTimeout)
	o := measure(f, readLog(t, log), limit, began, began)
	t.Logf("%d kinds of forgeries, %v at their end: %s", len(lies), forged, o)
	if o.above > 2 {
		t.Errorf("more than twice the limit was sent for %.1f s", o.above)
	}
}

// kindOf is the first field of a message, which names it: plan, report or hello.
func kindOf(m *nats.Msg) string {
	kind, _, _ := strings.Cut(strings.TrimPrefix(string(m.Data), `{"`), `"`)
	return kind
}

// garbage is no message at all. It is sent on every subject of the budget.
func garbage() (all []*nats.Msg) {
	for _, subject := range []string{"x", "x.plan", "x.report"} {
		for _, body := range []string{"", "{", "null", "[]", "0", `{"plan":1}`, `{"report":1}`, `{"plan":"x"}`, "\x00\xff\xfe", strings.Repeat("x", 1<<19), strings.Repeat("[", 1<<18)} {
			all = append(all, &nats.Msg{Subject: "llm-stage.budget.account." + subject, Data: []byte(body)})
		}
	}
	return all
}

// forgeries are what was heard, with other values, on the subject that it was heard on.
func forgeries(t *testing.T, plan, report *nats.Msg) (all []*nats.Msg) {
	t.Helper()
	for _, body := range garbage() {
		for _, m := range []*nats.Msg{plan, report} {
			all = append(all, &nats.Msg{Subject: m.Subject, Data: body.Data})
		}
	}
	forge := func(m *nats.Msg, values map[string]any) {
		var fields map[string]any
		stagetest.Must(t, json.Unmarshal(m.Data, &fields))
		maps.Copy(fields, values)
		body := stagetest.Value(json.Marshal(fields))(t)
		// The kind comes first in a message.
		kind := fmt.Sprintf(`{%q:1,`, kindOf(m))
		all = append(all, &nats.Msg{Subject: m.Subject, Data: append([]byte(kind), body[1:]...)})
	}
	steep := make([]float64, 10)
	for i := range steep {
		steep[i] = 1e4 * float64(i+1)
	}
	flat := make([]float64, 10)
	for _, values := range []map[string]any{
		{},
		{"term": uint64(math.MaxUint64), "leader": "0"},
		{"term": 1000, "leader": "0", "then": 1e5, "curve": steep, "rate": 1e5, "estimate": 1e5},
		{"term": 2000, "leader": "0", "then": 0, "curve": flat, "rate": 0, "estimate": 0},
		{"term": 3000, "leader": "0", "pause": 3600},
		{"term": 4000, "leader": "0", "turns": 1e15},
		{"term": 5000, "leader": "0", "turns": 1e300, "sent": -1e300, "then": -1},
		{"term": 6000, "leader": "0", "places": []any{}, "ring": 1 << 60},
		{"term": 7000, "leader": "0", "members": -1, "epoch": -1, "seq": uint64(math.MaxUint64)},
		{"bye": true},
		{"leader": "", "term": 8000},
	} {
		forge(plan, values)
	}
	for _, values := range []map[string]any{
		{},
		{"bye": true},
		{"restart": true},
		{"want": 1e6, "weight": 100, "id": "greedy", "hungry": true},
		{"want": -1, "weight": 0},
		{"sent": uint64(math.MaxUint64), "accepted": 0, "refused": uint64(math.MaxUint64), "seq": uint64(math.MaxUint64)},
		{"in_flight": -1, "pool": 1 << 40},
		{"rpm": 1, "tpm": 1, "concurrency": 1},
		{"refusals": []any{map[string]any{"turn": 1e15, "epoch": 1 << 40, "term": 1, "retry_after": 1e9}}},
	} {
		forge(report, values)
	}
	for i := range 50 {
		forge(report, map[string]any{"id": fmt.Sprintf("nobody-%d", i), "want": 1000})
	}
	return all
}

// TestABudgetThatIsDeniedIsAlone gives some stages users that may not publish or hear the messages of the budget.
func TestABudgetThatIsDeniedIsAlone(t *testing.T) {
	t.Parallel()
	const rate, rows = 20, 60
	config := filepath.Join(t.TempDir(), "nats.conf")
	if err := os.WriteFile(config, []byte(`authorization { users: [
		{user: test, password: test}
		{user: mute, password: mute, permissions: {publish: {deny: "llm-stage.budget.>"}}}
		{user: deaf, password: deaf, permissions: {subscribe: {deny: "llm-stage.budget.>"}}}
		{user: both, password: both, permissions: {publish: {deny: "llm-stage.budget.>"}, subscribe: {deny: "llm-stage.budget.>"}}}
	] }`), 0o600); err != nil {
		t.Fatal(err)
	}
	f := newFleet(t, 5, rows, "-c", config)
	for i, user := range []string{"test", "test", "mute", "deaf", "both"} {
		f.members[i].user = user
	}
	addr := mock(t, "--rate", fmt.Sprint(rate), "--latency", "200ms")
	f.run(map[string]string{"STAGE_BUDGET": "account", "STAGE_LLM_BASE_URL": "http://" + addr + "/v1"})
	time.Sleep(6 * time.Second)
	f.running()
	f.become("three are denied", map[string]int{"leader": 1, "member": 1, "alone": 3})
	for _, m := range f.members[2:] {
		if mode := m.mode(t.Context()); mode != "alone" {
			t.Errorf("the stage of user %s is %q, want alone", m.user, mode)
		}
	}
	f.done(fleetTimeout)
	for _, m := range f.members {
		got, want := m.warnings("the shared budget is denied"), 1
		if m.user == "test" {
			want = 0
		}
		if all := m.warnings("llm-stage.budget"); len(all) != want || len(got) != want {
			t.Errorf("the stage of user %s warned %d times of it, want %d:\n%s", m.user, len(got), want, strings.Join(got, ""))
		}
		t.Logf("user %s: %s", m.user, strings.Join(got, ""))
	}
}
