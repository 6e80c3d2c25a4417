package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/lab/llmtest/batches"
	"github.com/llm-stage/stage/internal/lane"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The batch lane: most rows go in batches of the LLM's Batch API, which is outside of all
// processes that are killed.
const (
	laneStream   = "LANE"
	laneRows     = 50
	laneOpen     = 4
	lanePoll     = 200 * time.Millisecond
	laneDelay    = 3 * time.Second
	lanePatience = 30 * time.Second // until the records of all batches say that they are done
	liveEvery    = 5                // these rows choose the live lane
	lateEvery    = 10               // these have a deadline of 2 to 8 s, and may be paid for in both lanes
	opMost       = 200 * time.Millisecond
)

// apis are the Batch APIs with the paths of their base URLs.
var apis = []struct{ name, path string }{{"openai", "/v1"}, {"azure", "/"}, {"anthropic", "/v1"}, {"gemini", "/v1beta"}}

// pathOf is the path of an API's base URL; empty means that there is no such API.
func pathOf(name string) string {
	for _, api := range apis {
		if api.name == name {
			return api.path
		}
	}
	return ""
}

// stand is how long a partition may go without a result while rows wait. Where they are
// in batches, that is a batch and two others after it, or two and a call. A stage asks
// Azure once a minute.
func (p *plan) stand() time.Duration {
	switch {
	case !p.lane:
		return standstillAfter
	case p.api == "azure":
		return 20*time.Second + 3*66*time.Second
	}
	return 20 * time.Second
}

// laneEnviron is the lane's settings, or nil.
func (p *plan) laneEnviron() []string {
	if !p.lane {
		return nil
	}
	return []string{
		"STAGE_LANE=batch", "STAGE_LANE_WAIT=200ms", "STAGE_LANE_ADOPT_WAIT=2s", "STAGE_LANE_POLL=" + lanePoll.String(),
		"STAGE_LANE_ROWS=" + strconv.Itoa(laneRows), "STAGE_LANE_OPEN=" + strconv.Itoa(laneOpen),
	}
}

// llmEnviron is how a replica reaches the LLM.
func (s *site) llmEnviron() []string {
	base := s.model.gate.URL()
	if !s.plan.lane {
		return []string{"STAGE_LLM_BASE_URL=" + base}
	}
	base = strings.TrimSuffix(base, "/v1") + pathOf(s.plan.api)
	return []string{"STAGE_LLM_BASE_URL=" + base, "STAGE_LLM_PROVIDER=" + s.plan.api, "STAGE_LLM_API_KEY=chaos"}
}

// headers of row n. A plan without the lane has none.
func (p *plan) headers(n int) nats.Header {
	h := nats.Header{}
	if p.lane && n%liveEvery == 1 {
		h.Set("Stage-Lane", "live")
	}
	if p.late(n) {
		h.Set("Stage-Deadline", fmt.Sprintf("%ds", 2+n/lateEvery%7))
	}
	return h
}

func (p *plan) late(n int) bool { return p.lane && n%lateEvery == 4 }

// streams are those that the stage writes.
func (p *plan) streams() []string {
	all := []string{resultStream, auditStream, journalStream}
	if p.lane {
		all = append(all, laneStream)
	}
	return all
}

// asked finds the rows in requests of any API.
var asked = regexp.MustCompile(`"Row (\d+)"`)

// newBatches is the Batch APIs: slow, and with what can go wrong but lines that are
// billed and not there.
func newBatches(p *plan, m *model) (*batches.Server, error) {
	plain, err := llmtest.New(llmtest.Config{})
	if err != nil {
		return nil, err
	}
	cfg := batches.Config{
		Delay: laneDelay, Expire: .2, Fail: map[int]float64{429: .02, 500: .02, 503: .01}, Doubled: .02, Foreign: .02,
		LoseCreate: .05, ListLag: 300 * time.Millisecond, Hidden: 200 * time.Millisecond, BadGateway: .05, CutContent: .05,
		CancelDelay: time.Second, Script: m.batchStep,
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return batches.New(cfg, p.seed, lines{plain}), nil
}

// batchStep makes each request take some time, so that kills meet it, and notes the rows
// that are in it.
func (m *model) batchStep(r batches.Request) *batches.Step {
	if r.Op == batches.Upload || r.Op == batches.Create {
		for _, found := range asked.FindAllSubmatch(r.Body, -1) {
			n, _ := strconv.Atoi(string(found[1])) // digits
			m.mu.Lock()
			m.see(n)
			m.mu.Unlock()
		}
	}
	return &batches.Step{Delay: time.Duration(r.N*7919%1000) * opMost / 1000}
}

// lines answers the lines of batches: as the rows' own calls are answered, but for what
// fails at times.
type lines struct{ plain *llmtest.Server }

// Answer implements [batches.Live].
func (l lines) Answer(path string, body []byte) batches.Reply {
	if found := asked.FindSubmatch(body); found != nil {
		if n, _ := strconv.Atoi(string(found[1])); kindOf(n) == refused {
			return batches.Reply{Status: http.StatusBadRequest, Body: l.Fault(path, http.StatusBadRequest, "refused")}
		}
	}
	w := httptest.NewRecorder()
	l.plain.ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), http.MethodPost, path, bytes.NewReader(body)))
	return batches.Reply{Status: w.Code, Body: w.Body.Bytes()}
}

// Fault implements [batches.Live].
func (l lines) Fault(_ string, status int, message string) []byte {
	return fmt.Appendf(nil, `{"type":"error","error":{"type":"api_error","code":%d,"message":%q}}`, status, message)
}

// answers reports whether a handler answers a request. Faults of the LLM end some by
// [http.ErrAbortHandler], which a server turns into a broken connection; nothing else
// catches that panic here.
func answers(h http.Handler, w http.ResponseWriter, r *http.Request) (ok bool) {
	defer func() {
		switch err := recover(); err {
		case nil, http.ErrAbortHandler:
		default:
			panic(err)
		}
	}()
	h.ServeHTTP(w, r)
	return true
}

// files counts uploaded files that are not deleted: those of one page.
func (m *model) files(ctx context.Context, api string) int {
	path := map[string]string{"openai": "/v1/files", "azure": "/openai/v1/files", "gemini": "/v1beta/files"}[api]
	if path == "" {
		return 0
	}
	w := httptest.NewRecorder()
	if !answers(m.batches, w, httptest.NewRequestWithContext(ctx, http.MethodGet, path, http.NoBody)) {
		return -1
	}
	var list struct {
		Data, Files []struct{}
	}
	if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || w.Code != http.StatusOK {
		return -1
	}
	return len(list.Data) + len(list.Files)
}

// awaitLane waits until no batch is open: all have been collected, their records say so,
// and their files are deleted.
func (s *site) awaitLane(ctx context.Context) {
	if !s.plan.lane {
		return
	}
	why := ""
	if !waitFor(ctx, lanePatience+s.plan.stand(), look, func() bool {
		within, cancel := context.WithTimeout(ctx, apiTimeout)
		defer cancel()
		all, err := lane.Batches(within, s.js, laneStream, stageName, s.plan.partitions, time.Now())
		if why = ""; err != nil {
			why = err.Error()
		}
		for _, b := range all {
			if b.State != lane.StateDone && b.State != lane.StateAbandoned {
				why += fmt.Sprintf(" %s (%s) is %s;", b.Token, b.BatchID, b.State)
			}
		}
		if n := s.model.files(within, s.plan.api); why == "" && n != 0 {
			why = fmt.Sprintf(" %d files are left at the LLM", n)
		}
		return why == ""
	}) {
		s.notes.violate("lane", "batches are open %v after the last result:%s", lanePatience+s.plan.stand(), why)
	}
}

// laneCount is what a run's batches did.
type laneCount struct {
	phases            map[auditlog.BatchPhase]int
	recorded, known   map[string]struct{} // tokens with an intent; with an id of the provider
	uncertain         map[string]struct{} // tokens given up though they might exist
	billed, undecided int                 // lines; of them those of rows that were billed before, where nobody could know
	late              int                 // rows with a deadline that were paid for in both lanes
}

// checkLane compares what the LLM has billed in batches with what it may have.
func (s *site) checkLane(ctx context.Context, all []row) error {
	if !s.plan.lane {
		return nil
	}
	s.lanes = newLaneCount()
	if err := s.readBatches(ctx, s.lanes); err != nil {
		return err
	}
	s.checkBatches(s.lanes, s.model.batches.Batches())
	s.checkBilled(s.lanes, s.model.batches.Billed(nil), all)
	return nil
}

func newLaneCount() *laneCount {
	return &laneCount{phases: map[auditlog.BatchPhase]int{}, recorded: map[string]struct{}{}, known: map[string]struct{}{}, uncertain: map[string]struct{}{}}
}

// checkBilled finds rows that were paid for twice. billed has the lines by their ids.
func (s *site) checkBilled(c *laneCount, billed map[string]int, all []row) {
	rows := map[uint64][]string{} // tokens of the batches that it was billed in
	for id, n := range billed {
		token, seq := splitID(id)
		if c.billed += n; n > 1 {
			s.notes.violate("billed", "line %s was billed %d times", id, n)
		}
		rows[seq] = append(rows[seq], token)
	}
	for seq, tokens := range rows {
		sure := slices.DeleteFunc(slices.Clone(tokens), func(t string) bool { _, doubt := c.uncertain[t]; return doubt })
		if len(sure) > 1 {
			s.notes.violate("billed", "row %d was billed in the batches %v", seq, tokens)
		} else if len(tokens) > 1 {
			c.undecided += len(tokens) - 1
		}
	}
	for _, r := range all {
		switch twice := len(rows[r.seq]) > 0 && s.model.answered(r.n); {
		case twice && s.plan.late(r.n):
			c.late++
		case twice:
			s.notes.violate("billed", "row %d (number %d) was billed in %v and was called live, too, without a deadline", r.seq, r.n, rows[r.seq])
		}
	}
}

// splitID splits the id of a line into the token of its batch and the row's sequence.
func splitID(id string) (token string, seq uint64) {
	i := strings.LastIndexByte(id, '-')
	seq, _ = strconv.ParseUint(id[i+1:], 10, 64) // 0 is no row
	return id[:max(i, 0)], seq
}

// checkBatches finds batches that were submitted twice, still run, or are unknown to the
// stage.
func (s *site) checkBatches(c *laneCount, found []batches.Info) {
	tokens := map[string]string{}
	for _, b := range found {
		token, _ := splitID(b.First)
		if other := tokens[token]; other != "" {
			s.notes.violate("twice", "batch %s was submitted as %s and as %s", token, other, b.ID)
		}
		tokens[token] = b.ID
		_, recorded := c.recorded[token]
		_, known := c.known[b.ID]
		_, doubt := c.uncertain[token]
		switch over := slices.Contains([]string{"completed", "failed", "expired", "cancelled"}, b.State); {
		case !recorded:
			s.notes.violate("orphan", "batch %s (%s) of %d lines has no intent", b.ID, token, b.Lines)
		case !known && !doubt:
			s.notes.violate("orphan", "batch %s (%s) of %d lines is at the LLM, and no record names it", b.ID, token, b.Lines)
		case !over && !doubt:
			s.notes.violate("orphan", "batch %s (%s) is %s when all is over", b.ID, token, b.State)
		}
	}
}

// readBatches counts the events of batches.
func (s *site) readBatches(ctx context.Context, c *laneCount) error {
	return s.read(ctx, auditStream, "audit."+stageName+".*.batch", func(m jetstream.Msg, _ uint64) {
		e, err := auditlog.Decode(m.Data())
		if err != nil || e.Batch == nil {
			s.notes.violate("audit", "not an event of a batch: %.200s", m.Data())
			return
		}
		b := e.Batch
		c.phases[b.Phase]++
		switch b.Phase { //nolint:exhaustive // the others come after these
		case auditlog.BatchIntent:
			c.recorded[b.Token] = struct{}{}
		case auditlog.BatchAbandoned:
			if s.plan.api == "anthropic" && strings.Contains(b.Reason, "nothing can prevent") {
				c.uncertain[b.Token] = struct{}{}
			}
		}
		if b.BatchID != "" {
			c.known[b.BatchID] = struct{}{}
		}
	})
}

// String describes the lane for the report.
func (c *laneCount) String() string {
	var b strings.Builder
	for _, p := range []auditlog.BatchPhase{
		auditlog.BatchIntent, auditlog.BatchSubmitted, auditlog.BatchAdopted, auditlog.BatchEnded, auditlog.BatchExpired,
		auditlog.BatchCancelled, auditlog.BatchAbandoned,
	} {
		fmt.Fprintf(&b, " %s %d", p, c.phases[p])
	}
	fmt.Fprintf(&b, " (not certain %d); lines billed %d, again where nobody could know %d, for rows that went live by their deadline %d",
		len(c.uncertain), c.billed, c.undecided, c.late)
	return b.String()
}
