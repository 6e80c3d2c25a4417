// Package chain is three stages in a row whose results can be computed: a drafts each
// row, b makes one call for each element of an array of the row (STAGE_FOREACH), c sums
// up what b has. The mock LLM answers each prompt with a hash of it, and each prompt has
// the answers before it, so the last result shows which replies it was made from. The
// tests run such chains in virtual time; test/chaos runs them in real processes.
package chain

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/lab/llmtest"
)

// The stages, in order of flow.
const (
	A = iota
	B
	C
	Stages // how many
)

// names of the stages, and the fields that their replies go into.
var (
	names  = [Stages]string{"a", "b", "c"}
	fields = [Stages]string{"draft", "parts", "sum"}
)

// Name is STAGE_NAME of a stage.
func Name(stage int) string { return names[stage] }

// Names are those of all stages in order of flow, as --chain takes them.
func Names() string { return strings.Join(names[:], ",") }

// Pipeline is what a chain does. The zero value is one without rows of a random length,
// whose failed elements fail their row.
type Pipeline struct {
	Seed       uint64
	Partitions int  // of each stage; 0 means 1
	Keep       bool // STAGE_FOREACH_ERRORS=keep: failed elements are kept in their place
	Flat       bool // b makes one call a row
	ByKey      bool // STAGE_ORDER=key, by the subject of the first row
}

// Input is the stream and the subject that a stage takes its rows from, where the first
// takes those of stream ROWS.
func (p Pipeline) Input(stage int) (stream, subject string) {
	if stage == A {
		if p.Partitions > 1 {
			return "ROWS", "rows.{partition}.>"
		}
		return "ROWS", "rows.>"
	}
	if p.Partitions > 1 {
		return "RESULTS", "results." + names[stage-1] + ".{partition}.rows"
	}
	return "RESULTS", "results." + names[stage-1] + ".0.rows"
}

// Environ is the settings of a stage that make it part of the chain.
func (p Pipeline) Environ(stage int) map[string]string {
	stream, subject := p.Input(stage)
	e := map[string]string{
		"STAGE_NAME": names[stage], "STAGE_INPUT_STREAM": stream, "STAGE_INPUT_SUBJECT": subject, "STAGE_PARTITIONS": strconv.Itoa(max(1, p.Partitions)),
		"STAGE_TEMPLATE": p.template(stage), "STAGE_RESPONSE_FIELD": fields[stage],
	}
	if p.ByKey {
		e["STAGE_ORDER"], e["STAGE_ORDER_KEY"] = "key", "subject"
		if stage > A {
			e["STAGE_ORDER_KEY"] = "header." + streams.HeaderKey
		}
	}
	if stage == B && !p.Flat {
		e["STAGE_FOREACH"], e["STAGE_FOREACH_ERRORS"] = "items", "row"
		if p.Keep {
			e["STAGE_FOREACH_ERRORS"] = "keep"
		}
	}
	return e
}

func (p Pipeline) template(stage int) string {
	switch {
	case stage == A:
		return "Draft {{ row.n }}"
	case stage == B && p.Flat:
		return "Part {{ row.n }}.0 of 1: x of {{ row.draft }}"
	case stage == B:
		return "Part {{ row.n }}.{{ loop.index0 }} of {{ loop.length }}: {{ item }} of {{ row.draft }}"
	case p.Flat:
		return "Sum {{ row.n }}: [{{ row.parts }}]"
	default:
		return "Sum {{ row.n }}:{% for p in row.parts %} [{% if p is mapping %}{{ p.error.reason }}{% else %}{{ p }}{% endif %}]{% endfor %}"
	}
}

// What row n is, is written into its number.
const (
	invalidEvery = 503 // no JSON object: an error result of a, and no call
	missingEvery = 307 // without an array: an error result of b
	refusedEvery = 199 // the LLM refuses its draft for good, its sum sooner
)

// MostElements is how many elements a row has at most.
const MostElements = 8

// elements is how many elements row n has; -1: it has no array. A row in nine has an
// empty one.
func (p Pipeline) elements(n int) int {
	switch {
	case p.Flat:
		return 1
	case n%missingEvery == 11:
		return -1
	}
	return int(p.draw(n, "elements") % (MostElements + 1))
}

// draw is a number that depends on the seed, the row and what it is for.
func (p Pipeline) draw(n int, what string) uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%d %d %s", p.Seed, n, what) // never fails
	return rand.New(rand.NewPCG(h.Sum64(), 1)).Uint64()
}

// Body is the body of row n. Its bytes must come back as they are: spaces, order of
// members, digits.
func (p Pipeline) Body(n int) []byte {
	if n%invalidEvery == 7 {
		return fmt.Appendf(nil, "row %d is no object", n)
	}
	items := ""
	if count := p.elements(n); count >= 0 {
		texts := make([]string, count)
		for i := range texts {
			texts[i] = strconv.Quote(item(n, i))
		}
		items = `"items": [` + strings.Join(texts, ", ") + `],`
	}
	text, _ := json.Marshal(strings.Repeat("übel ", 1+int(p.draw(n, "text")%20))) // a string can always be encoded
	return fmt.Appendf(nil, `{"n": %d,%s"text":%s, "a":%d.50}`, n, items, text, p.draw(n, "a"))
}

func item(n, i int) string { return fmt.Sprintf("item %d-%d", n, i) }

// Ask is one call of a stage that a chain makes for a row. It compares.
type Ask struct{ N, Stage, Item int }

// Parse reads whose call a prompt is.
func Parse(prompt string) (Ask, error) {
	head, _, _ := strings.Cut(prompt, ":")
	word, rest, _ := strings.Cut(head, " ")
	number, part, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(number)
	ask := Ask{N: n}
	switch {
	case word == "Draft" && err == nil:
		return ask, nil
	case word == "Part" && err == nil:
		ask.Stage = B
		part, _, _ = strings.Cut(part, " ")
		ask.Item, err = strconv.Atoi(part)
	case word == "Sum" && err == nil:
		ask.Stage = C
	default:
		return Ask{}, fmt.Errorf("a prompt of no stage: %.200s", prompt)
	}
	return ask, err
}

// refused reports whether the LLM refuses a call for good.
func (p Pipeline) refused(a Ask) bool {
	switch a.Stage {
	case A:
		return a.N%refusedEvery == 3
	case B:
		return (a.N*(MostElements+1)+a.Item)%61 == 5
	default:
		return a.N%149 == 8
	}
}

// Fails is the status that the first attempt of a call meets; 0 means that it does not
// fail.
func (p Pipeline) Fails(a Ask) int {
	switch r := p.draw(a.N, fmt.Sprintf("fails %d %d", a.Stage, a.Item)) % 200; {
	case p.refused(a):
		return 0
	case r < 4:
		return http.StatusInternalServerError
	case r == 4:
		return http.StatusTooManyRequests
	}
	return 0
}

// Slow reports whether a call takes long.
func (p Pipeline) Slow(a Ask) bool {
	return p.draw(a.N, fmt.Sprintf("slow %d %d", a.Stage, a.Item))%397 == 11
}

// Spread is how long a call takes, in medians of all: log-normal with a sigma of 0.5, 4
// at most.
func (p Pipeline) Spread(a Ask) float64 {
	normal := rand.New(rand.NewPCG(p.draw(a.N, fmt.Sprintf("spread %d %d", a.Stage, a.Item)), 2)).NormFloat64()
	return min(4, math.Exp(normal/2))
}

// Step is how the LLM answers an attempt; nil means as it does ordinarily. slow is how
// long a slow call takes.
func (p Pipeline) Step(a Ask, first bool, slow time.Duration) *llmtest.Step {
	switch {
	case p.refused(a):
		return &llmtest.Step{Status: http.StatusBadRequest}
	case first && p.Fails(a) != 0:
		return &llmtest.Step{Status: p.Fails(a)}
	case p.Slow(a):
		return &llmtest.Step{Delay: slow}
	}
	return nil
}

// Outcome is what the result of a stage must be.
type Outcome struct {
	Reason string // of a row that failed; empty means that it succeeded
	Passed bool   // it failed in a stage before: the row is passed on as it is
	Text   string // the reply
	Parts  []Part // the replies of elements
	Total  int    // of elements, where Reason is foreach_failed
}

// Part is the reply to one element.
type Part struct{ Text, Reason string }

// Failed counts the elements that failed.
func (o Outcome) Failed() (sum int) {
	for _, p := range o.Parts {
		if p.Reason != "" {
			sum++
		}
	}
	return sum
}

const refusal = "api_call_failed"

// Row is what becomes of a row: the result of each stage, and the prompts of all calls.
type Row struct {
	Outcomes [Stages]Outcome
	Prompts  map[Ask]string
}

// Row computes what becomes of row n.
func (p Pipeline) Row(n int) Row {
	r := Row{Prompts: make(map[Ask]string)}
	call := func(a Ask, prompt string) (text, reason string) {
		r.Prompts[a] = prompt
		if p.refused(a) {
			return "", refusal
		}
		return llmtest.Answer(prompt), ""
	}
	fail := func(stage int, o Outcome) Row {
		r.Outcomes[stage] = o
		for next := stage + 1; next < Stages; next++ {
			r.Outcomes[next] = Outcome{Reason: o.Reason, Passed: true}
		}
		return r
	}
	if n%invalidEvery == 7 {
		return fail(A, Outcome{Reason: "invalid_row"})
	}
	draft, reason := call(Ask{N: n}, fmt.Sprintf("Draft %d", n))
	if reason != "" {
		return fail(A, Outcome{Reason: reason})
	}
	r.Outcomes[A] = Outcome{Text: draft}
	count := p.elements(n)
	if count < 0 {
		return fail(B, Outcome{Reason: "invalid_row"})
	}
	parts, sum := make([]Part, count), fmt.Sprintf("Sum %d:", n)
	for i := range parts {
		it := item(n, i)
		if p.Flat {
			it = "x"
		}
		text, reason := call(Ask{n, B, i}, fmt.Sprintf("Part %d.%d of %d: %s of %s", n, i, count, it, draft))
		parts[i] = Part{text, reason}
		sum += " [" + text + reason + "]"
	}
	o := Outcome{Parts: parts}
	switch {
	case p.Flat && o.Failed() > 0:
		return fail(B, Outcome{Reason: refusal})
	case p.Flat:
		o = Outcome{Text: parts[0].Text}
	case !p.Keep && o.Failed() > 0:
		return fail(B, Outcome{Reason: "foreach_failed", Parts: parts, Total: count})
	}
	r.Outcomes[B] = o
	text, reason := call(Ask{N: n, Stage: C}, sum)
	r.Outcomes[C] = Outcome{Text: text, Reason: reason}
	return r
}
