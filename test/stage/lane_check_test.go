package stage_test

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/ops/usage"
	"github.com/llm-stage/stage/internal/ops/verify"
	"github.com/llm-stage/stage/internal/stagetest"
)

const (
	// priceIn and priceOut are those of a live call, in USD per million tokens; by batch it is half.
	priceIn, priceOut = 2, 8
	// deadlineSlack is how much later than its deadline a row may go live: rows that are recalled wait for the window.
	deadlineSlack = 2 * time.Minute
	// costMost is what the rows of the lane may cost, of live calls, with deadlines on some of them, and halfCost without.
	costMost, halfCost = .65, .52
)

// check checks everything, after the end.
func (s *laneSim) check() {
	s.t.Helper()
	stored := s.checkResults()
	report := s.checkAudit()
	s.checkDeadlines(stored)
	s.checkBilling(report)
	s.checkCalls(report)
	var live, chosen float64 // of all rows, and of those that are to be called live
	for _, r := range s.rows {
		if live += stored[r.n].live; r.lane == "live" {
			chosen += stored[r.n].live
		}
	}
	if b := report.Batches; b != nil && report.Audit.CostUSD != nil && live > chosen {
		cost := (*report.Audit.CostUSD - chosen) / (live - chosen)
		s.t.Logf("the rows of the lane cost %.3f of what live calls would have: %.6f of %.6f USD", cost, *report.Audit.CostUSD-chosen, live-chosen)
		most := costMost
		if !*simDue {
			most = halfCost
		}
		if cost > most && !s.crowded() {
			s.t.Errorf("they cost %.3f of live calls, want %.2f at most", cost, most)
		}
	}
}

// crowded reports whether there were so many kills and so few rows that their price says nothing.
func (s *laneSim) crowded() bool { return len(s.rows) < 20*s.done["kills"] || s.done["lane off"] > 0 }

// checkCalls checks that each line that was billed has its call event, but for those that are missing in the results, and
// that no row but one with a deadline was called live and answered by a batch.
func (s *laneSim) checkCalls(report *verify.Report) {
	s.t.Helper()
	called, unused, wrong := make(map[string]bool), 0, 0
	for _, m := range stagetest.Read(s.t, s.js, "AUDIT", "audit.stage.*.call") {
		e, err := auditlog.Decode(m.Body)
		if err != nil || e.Call.Lane == "" {
			continue
		}
		called[e.Call.CallID] = true
		if !e.Call.Unused {
			continue
		}
		unused++
		if r := s.rows[e.Call.Sequence-1]; r.deadline == 0 {
			if wrong++; wrong <= 5 {
				s.t.Errorf("row %d has no deadline, and its answer from batch %s was not used", r.n, e.Call.BatchID)
			}
		}
	}
	missing := 0
	for id := range s.llm.Batches().Billed(nil) {
		if !called[id] {
			missing++
		}
	}
	if b := report.Batches; missing > b.Missing && b.Doubled == 0 {
		s.t.Errorf("%d lines were billed, and have no call event; %d were missing", missing, b.Missing)
	}
	s.t.Logf("answers of batches: %d with a call event, %d of them not used, %d without", len(called), unused, missing)
}

// laneResult is what the simulator keeps of a result.
type laneResult struct {
	at   time.Time
	live float64 // what the row would have cost by live calls, USD
}

// checkResults checks that each row has one result, with its answer, in the order of the stage.
func (s *laneSim) checkResults() map[int]laneResult {
	s.t.Helper()
	found, failed, last := make(map[int]laneResult), make(map[int]bool), make(map[string]uint64)
	wrong := 0
	for _, m := range stagetest.Read(s.t, s.js, "RESULTS", "results.stage.*.rows") {
		seq, err := strconv.ParseUint(m.Header.Get(streams.HeaderSourceSeq), 10, 64)
		if err != nil {
			s.t.Fatalf("result %d: %v", m.Seq, err)
		}
		var body struct {
			N     int             `json:"n"`
			Text  string          `json:"llm_response"`
			Fault json.RawMessage `json:"llm_response_error"`
			Usage struct {
				In  float64 `json:"prompt_tokens"`
				Out float64 `json:"completion_tokens"`
			} `json:"llm_response_usage"`
		}
		if err := json.Unmarshal(m.Body, &body); err != nil {
			s.t.Fatalf("result %d: %v in %s", m.Seq, err, m.Body)
		}
		if _, twice := found[body.N]; twice {
			s.t.Errorf("row %d has two results", body.N)
		}
		found[body.N] = laneResult{m.Time, (body.Usage.In*priceIn + body.Usage.Out*priceOut) / 1e6}
		place := map[string]string{"stream": m.Subject, "key": m.Header.Get(streams.HeaderSourceSubject)}[s.order]
		if s.order != "none" && seq <= last[place] {
			s.t.Errorf("the result of row %d comes after that of row %d of %s", seq, last[place], place)
		}
		last[place] = seq
		ok := body.Fault == nil && body.Text == llmtest.Answer(fmt.Sprintf("Row %d", body.N))
		if strings.Contains(string(body.Fault), `"reason":"api_call_failed"`) { // by a line with 400
			ok = true
			failed[body.N] = true
		}
		if wrong++; ok {
			wrong--
		} else if wrong <= 5 {
			s.t.Errorf("row %d has the wrong result: %s", body.N, m.Body)
		}
	}
	for _, r := range s.rows {
		if _, ok := found[r.n]; !ok {
			s.t.Errorf("row %d has no result", r.n)
		}
	}
	if len(found) > len(s.rows) {
		s.t.Errorf("%d rows have results, want %d", len(found), len(s.rows))
	}
	if most := len(s.rows) / 20; len(failed) > most {
		s.t.Errorf("%d rows failed, want %d at most", len(failed), most)
	}
	return found
}

// checkAudit has verify prove the same from the streams alone.
func (s *laneSim) checkAudit() *verify.Report {
	s.t.Helper()
	report := stagetest.Value(verify.Run(s.t.Context(), s.js, s.config(), io.Discard))(s.t)
	var text strings.Builder
	report.WriteText(&text)
	if err := report.Err(); err != nil {
		s.t.Errorf("%v\n%s", err, text.String())
	} else {
		s.t.Log(text.String())
	}
	book := usage.NewBook(nil)
	if err := usage.NewReader(s.config(), book, usage.Options{Stages: []string{"stage"}}).Read(s.t.Context(), s.js); err != nil {
		s.t.Fatal(err)
	}
	u := book.Report(time.Now().Add(time.Hour))
	if got := *u.Total.TotalTokens + u.Unused.TotalTokens; u.Total.Calls != report.Audit.Calls || report.Audit.Tokens == nil || got != *report.Audit.Tokens {
		s.t.Errorf("stage usage has %d calls and %d tokens, %d of them of no call; verify %+v", u.Total.Calls, got, u.Unused.TotalTokens, report.Audit)
	}
	if b := report.Batches; b != nil && b.Open+b.Undecided > 0 {
		s.t.Errorf("%d batches are open in the end, %d undecided", b.Open, b.Undecided)
	}
	return report
}

// checkDeadlines checks that a row that had no answer by its deadline was called live then.
func (s *laneSim) checkDeadlines(stored map[int]laneResult) {
	s.t.Helper()
	answered := make(map[uint64]time.Time) // by sequence: the first success
	for _, m := range stagetest.Read(s.t, s.js, "AUDIT", "audit.stage.*.call") {
		e, err := auditlog.Decode(m.Body)
		if err != nil || e.Call.Status != auditlog.CallSuccess {
			continue
		}
		if at, ok := answered[e.Call.Sequence]; !ok || e.Time.Before(at) {
			answered[e.Call.Sequence] = e.Time
		}
	}
	met, late, excused := 0, 0, 0
	for i, r := range s.rows {
		due := r.arrived.Add(r.deadline)
		if stored[r.n].live == 0 || r.deadline == 0 {
			continue
		}
		went := answered[uint64(i+1)] //nolint:gosec // rows are published one by one
		for _, at := range s.live[r.n] {
			if at.Before(went) {
				went = at
			}
		}
		switch over := went.Sub(due); {
		case over <= deadlineSlack:
			met++
		case !went.After(s.allowed(due.Add(deadlineSlack))):
			excused++
		default:
			if late++; late <= 5 {
				s.t.Errorf("row %d was due at %v, and called or answered %v later; its result was stored at %v", r.n, due.Sub(s.began), over, stored[r.n].at.Sub(s.began))
			}
		}
	}
	s.t.Logf("deadlines: %d met, %d late while something was wrong, %d late", met, excused, late)
}

// allowed extends an instant by the times when something was wrong.
func (s *laneSim) allowed(until time.Time) time.Time {
	for _, e := range s.excused {
		if !until.Before(e.from) && until.Before(e.to) {
			until = e.to.Add(deadlineSlack)
		}
	}
	return until
}
