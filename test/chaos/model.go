package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/lab/llmtest/batches"
	"github.com/llm-stage/stage/test/chain"
	"github.com/llm-stage/stage/test/gateway"
)

// What row n is, is written into its number.
const (
	refusedEvery = 199 // the LLM refuses it for good: an error result
	invalidEvery = 503 // no JSON object: an error result, and no call
	failingEvery = 47  // its first call fails with 500
	limitedEvery = 211 // its first call meets a 429
	slowEvery    = 397 // its calls take long, and all later rows wait behind it
	slowCall     = 2 * time.Second
)

type rowKind int

const (
	ordinary rowKind = iota
	refused
	invalid
)

func kindOf(n int) rowKind {
	switch {
	case n%invalidEvery == 7:
		return invalid
	case n%refusedEvery == 3:
		return refused
	default:
		return ordinary
	}
}

// Where calls are shared, every equalEvery-th row asks what the row equalBefore earlier
// asks, mostly in another partition.
const (
	equalEvery  = 5
	equalBefore = 7
)

// question is the row whose prompt row n has: its own number, or that of an earlier row
// that has its own. Rows that fail for good share none: only answers are kept.
func (p *plan) question(n int) int {
	if q := n - equalBefore; p.dedupe != "off" && n%equalEvery == 2 && q > 0 && kindOf(n) == ordinary && kindOf(q) == ordinary {
		return q
	}
	return n
}

// questions is how many prompts the first rows have.
func (p *plan) questions(rows int) (sum int) {
	for n := 1; n <= rows; n++ {
		sum += p.prompts(n)
	}
	return sum
}

// rowBody is the body of row n. Its bytes must come back as they are: spaces, order of
// keys, digits.
func (p *plan) rowBody(n int) []byte {
	if kindOf(n) == invalid {
		return fmt.Appendf(nil, "row %d is no object", n)
	}
	random := rand.New(rand.NewPCG(p.seed, uint64(n)))
	text, _ := json.Marshal(strings.Repeat("übel ", 1+random.IntN(60))) // a string can always be encoded
	return fmt.Appendf(nil, `{"n": %d,"q":%d,"text":%s, "a":%d.50}`, n, p.question(n), text, random.Uint64())
}

// prompt is what template makes of a row with that question.
func prompt(question int) string { return "Row " + strconv.Itoa(question) }

const template = "Row {{ row.q }}"

// model is the LLM: it counts the calls for each row.
type model struct {
	server  *llmtest.Server
	batches *batches.Server // nil without the lane
	chain   *chain.Counter  // nil: a single stage
	gate    *gateway.Gateway

	mu     sync.Mutex
	calls  map[int]int      // by question
	seen   map[int]struct{} // questions that were called, or uploaded in a batch
	faulty map[int]struct{} // texts whose first call has failed, with -embed
	failed int              // calls that failed as they should, so that the row is asked again
	moved  chan struct{}
}

func startModel(p *plan) (*model, error) {
	m := &model{calls: make(map[int]int), seen: make(map[int]struct{}), faulty: make(map[int]struct{}), moved: make(chan struct{})}
	script := m.script
	if p.embed {
		script = m.embedScript
	}
	if p.chain {
		m.chain = chain.NewCounter(p.pipeline(), slowCall)
		script = m.chain.Script
	}
	var err error
	m.server, err = llmtest.New(llmtest.Config{Latency: p.latency, LatencySigma: .6, Seed: p.seed, Script: script})
	if err != nil {
		return nil, err
	}
	if p.lane {
		if m.batches, err = newBatches(p, m); err != nil {
			return nil, err
		}
	}
	if m.gate, err = gateway.New(m); err != nil {
		return nil, err
	}
	return m, nil
}

// ServeHTTP implements [http.Handler].
func (m *model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if m.batches != nil && batches.Handles(r) {
		m.batches.ServeHTTP(w, r)
		return
	}
	m.server.ServeHTTP(w, r)
}

func (m *model) close() { m.gate.Close() }

// script fails some calls in a way that depends on the row alone, so that the calls a run
// should take are known.
func (m *model) script(c llmtest.Call) *llmtest.Step {
	n, err := strconv.Atoi(strings.TrimPrefix(c.Prompt, "Row "))
	if err != nil {
		return &llmtest.Step{Status: http.StatusBadRequest}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls[n]++
	first := m.calls[n] == 1
	m.see(n)
	switch {
	case kindOf(n) == refused:
		return &llmtest.Step{Status: http.StatusBadRequest}
	case first && fails(n) != 0:
		m.failed++
		return &llmtest.Step{Status: fails(n)}
	case n%slowEvery == 11:
		return &llmtest.Step{Delay: slowCall}
	}
	return nil
}

// fails is the status of the first call for a row; 0 means that it does not fail.
func fails(n int) int {
	switch {
	case n%failingEvery == 5:
		return http.StatusInternalServerError
	case n%limitedEvery == 9:
		return http.StatusTooManyRequests
	}
	return 0
}

// see notes that a row was asked. The lock is held.
func (m *model) see(n int) {
	if _, known := m.seen[n]; known {
		return
	}
	m.seen[n] = struct{}{}
	close(m.moved)
	m.moved = make(chan struct{})
}

// answered reports whether a call for the row was answered, or is yet to be.
func (m *model) answered(n int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls[n] > 1 || m.calls[n] == 1 && fails(n) == 0
}

// rows is how many questions were asked at least once, and a channel that is closed when
// there are more.
func (m *model) rows() (n int, more <-chan struct{}) {
	if m.chain != nil {
		return m.chain.Asked()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.seen), m.moved
}

// paid is how many calls were made, and how many of them beyond what the rows take: one
// each, shared or not, and one more for each call that failed. equal is how many rows
// have the question of another one.
func (m *model) paid(equal int) (calls, again int) {
	if m.chain != nil {
		calls, again, _ = m.chain.Paid()
		return calls, max(0, again)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range m.calls {
		calls += n
	}
	return calls, max(0, calls-len(m.calls)-equal-m.failed)
}
