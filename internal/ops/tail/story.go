package tail

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/internal/ops/erased"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/nats-io/nats.go/jetstream"
)

// Story is the history of a row as data, for a page.
type Story struct {
	Row uint64 `json:"row"`
	// Item is the element whose calls are in it. It is absent if all are.
	Item      *int               `json:"item,omitempty"`
	Stream    string             `json:"stream"`
	Partition auditlog.Partition `json:"partition"`
	Key       *string            `json:"key,omitempty"` // in order by key, where it may be shown
	// Status is success or error, or empty if the row is not answered.
	Status string `json:"status"`
	// Reason is why it failed, or empty if it did not.
	Reason  string `json:"reason"`
	Steps   []Step `json:"steps"`
	LeftOut int    `json:"left_out"` // calls beyond the first CallsMax
	// Hold is what a row waits for that is not [Story.Emitted]. The streams don't say
	// that, so the stage that serves the page sets it.
	Hold     any    `json:"hold,omitempty"`
	Payloads bool   `json:"payloads"` // whether contents are shown
	Body     string `json:"body,omitempty"`
	Result   string `json:"result,omitempty"`
}

// Emitted reports whether the row is finished: its result is stored.
func (s *Story) Emitted() bool {
	return slices.ContainsFunc(s.Steps, func(st Step) bool { return st.Kind == StepEmitted })
}

// Step is one thing that happened to a row.
type Step struct {
	Kind    StepKind  `json:"kind"`
	Time    time.Time `json:"time"`
	AfterMS *float64  `json:"after_ms"` // since the row was queued, or null if that is unknown
	Level   string    `json:"level"`    // info, warn or error
	Text    string    `json:"text"`     // as tail prints it
	Row     uint64    `json:"row,omitempty"`
	Call    *Attempt  `json:"call,omitempty"` // of a call
}

// StepKind is what happened to a row.
type StepKind string

// The kinds of steps.
const (
	StepQueued   StepKind = "queued"
	StepCall     StepKind = "call"
	StepFinished StepKind = "finished"
	StepWaited   StepKind = "waited" // Step.Row is the row that it waited for, if any
	StepEmitted  StepKind = "emitted"
	StepOpen     StepKind = "open" // what is still to come
)

// Attempt is one call of a row.
type Attempt struct {
	Number     int    `json:"number"` // from 1
	Item       *int   `json:"item,omitempty"`
	Provider   string `json:"provider"`
	Model      string `json:"model"`
	Outcome    string `json:"outcome"` // as tail prints it: ok 200
	ErrorClass string `json:"error_class"`
	// Error leaves out what it quotes of the row, unless contents are shown.
	Error        string  `json:"error"`
	LatencyMS    float64 `json:"latency_ms"`
	DelayMS      float64 `json:"dispatch_delay_ms"`
	RetryAfterMS float64 `json:"retry_after_ms"`
	// Belief is what the throttle believed when the call met a capacity error.
	Belief           string   `json:"belief,omitempty"`
	Batch            string   `json:"batch,omitempty"` // of the batch lane
	PromptTokens     *int64   `json:"prompt_tokens"`
	CompletionTokens *int64   `json:"completion_tokens"`
	CostUSD          *float64 `json:"cost_usd"`
	Prompt           string   `json:"prompt,omitempty"`
	Reply            string   `json:"reply,omitempty"`
}

// Bounds of a story.
const (
	// CallsMax is how many calls a story has: a row may fan out to thousands.
	CallsMax = 200
	// contentMax bounds a row, result, prompt or reply, and contentsMax all of them
	// together.
	contentMax  = 64 << 10
	contentsMax = 1 << 20
)

// StoryOptions select a story, and how much of it.
type StoryOptions struct {
	Row       uint64
	Item      *int
	Partition *int // or nil for whichever it is in
	Payloads  bool // with what was sent and answered (STAGE_DASHBOARD_PAYLOADS)
}

// Tell returns the history of a row. If there is none the error is one of [IsNoEvent]. It
// reads the part of the audit where the events must be according to the row's result, and
// never what was stored before the row, if that is known.
func Tell(ctx context.Context, js jetstream.JetStream, cfg *config.Config, o StoryOptions) (*Story, error) {
	source, err := streams.MessageAt(ctx, js.Conn(), cfg.Input.Stream, o.Row)
	if err != nil {
		return nil, err
	}
	search := search{js: js, cfg: cfg, row: o.Row, item: o.Item, partition: o.Partition, brief: true}
	t := teller{cfg: cfg, payloads: o.Payloads, left: contentsMax}
	if source != nil {
		search.since, t.body = source.Time.Add(-serverSkew), source.Data
	}
	stone, err := erased.Of(ctx, js, cfg, o.Row)
	if err != nil {
		return nil, err
	}
	if stone != nil {
		search.erased(stone)
		history, result, err := search.history(ctx)
		story := bareStory(cfg, o.Row, stone)
		switch {
		case err == nil:
			history.finishErased(result)
			story = t.story(history, result)
		case !IsNoEvent(err):
			return nil, err
		}
		story.Steps = append(story.Steps, erasedStep(stone))
		return story, nil
	}
	history, result, err := search.narrow(ctx, source)
	if err != nil {
		return nil, err
	}
	story := t.story(history, result)
	if o.Payloads && result != nil {
		m, err := streams.MessageAt(ctx, js.Conn(), cfg.Result.Stream, result.at)
		if err != nil {
			return nil, err
		}
		if m != nil {
			story.Result = t.content(indented(m.Data))
		}
	}
	return story, nil
}

// narrow is history, but it looks first where the events must be according to the row's
// result. It looks everywhere only if there are none: the input may have been created
// again, or the window may have been larger.
func (r *search) narrow(ctx context.Context, source *jetstream.RawStreamMsg) (*history, *emission, error) {
	where, err := r.locate(ctx, source)
	if err != nil {
		return nil, nil, err
	}
	near := *r
	near.until, near.known = where.until, where.result
	if where.since.After(r.since) {
		near.since = where.since
	}
	s, result, err := near.history(ctx)
	if IsNoEvent(err) && !where.sure && (near.since != r.since || near.until != r.until) {
		return r.history(ctx)
	}
	return s, result, err
}

// teller turns a history into a story.
type teller struct {
	cfg      *config.Config
	payloads bool
	body     []byte // of the row; nil means that it is no longer stored
	left     int    // bytes of contents that may still be shown
}

func (t *teller) story(s *history, result *emission) *Story {
	story := &Story{Row: s.seq, Item: s.item, Stream: t.cfg.Input.Stream, Partition: s.events[0].Partition, Payloads: t.payloads, Steps: []Step{}}
	if row := s.emitted(result); row != nil {
		story.Status, story.Reason = row.Status, row.Reason
		if _, member := t.cfg.Order.Key.Field(); t.payloads || t.cfg.Order.Mode == streams.OrderKey && !member {
			story.Key = row.Key
		}
	}
	if t.payloads {
		story.Body = t.content(indented(t.cfg.Secrets().Redact(t.body)))
	}
	for _, e := range s.events {
		t.hide(e)
	}
	queued, calls := s.queued(), 0
	for _, st := range s.steps(t.cfg, result) {
		step := Step{Kind: st.kind, Time: st.at.UTC(), Level: levels[st.tone], Text: terminal.OneLine(st.text), Row: st.row}
		if !queued.IsZero() {
			after := terminal.Milliseconds(max(0, st.at.Sub(queued)))
			step.AfterMS = &after
		}
		if st.kind == StepCall {
			if calls++; calls > CallsMax {
				story.LeftOut++
				continue
			}
			step.Call = t.attempt(st.event.Call)
		}
		story.Steps = append(story.Steps, step)
	}
	return story
}

// levels are the words of the dashboard for tones.
var levels = [...]string{toneQuiet: "info", toneTurn: "info", toneWarn: "warn", toneBad: "error"}

// hide removes from the errors of an event what they quote of the row, unless contents are
// shown. If the row is no longer stored it removes the errors.
func (t *teller) hide(e *auditlog.Event) {
	if t.payloads {
		return
	}
	shown := func(text string) string {
		switch {
		case text == "":
			return ""
		case t.body == nil:
			return hiddenError
		}
		return excerpt.Without(text, t.body)
	}
	if e.Call != nil {
		e.Call.Error = shown(e.Call.Error)
		return
	}
	for i := range e.Row.Errors {
		e.Row.Errors[i].Error = shown(e.Row.Errors[i].Error)
	}
}

// hiddenError stands for an error that may quote the row.
const hiddenError = "(the error may quote the row: shown with STAGE_DASHBOARD_PAYLOADS=true)"

// attempt returns a call as data.
func (t *teller) attempt(c *auditlog.Call) *Attempt {
	a := &Attempt{
		Number: c.CallIndex + 1, Item: c.Item, Provider: c.Provider, Model: c.Model, Outcome: outcomeText(c), ErrorClass: c.ErrorClass, Error: c.Error,
		LatencyMS: terminal.Milliseconds(c.Latency), DelayMS: terminal.Milliseconds(c.DispatchDelay), RetryAfterMS: terminal.Milliseconds(c.RetryAfter),
		Belief: c.Belief,
	}
	if c.Lane != "" {
		a.Batch = c.BatchID
	}
	if u := c.Usage; u != nil {
		a.PromptTokens, a.CompletionTokens, a.CostUSD = &u.PromptTokens, &u.CompletionTokens, u.CostUSD
	}
	if t.payloads {
		a.Prompt, a.Reply = t.content(promptText(c.Request)), t.content(replyText(c.Response))
	}
	return a
}

// content returns a text. It is cut if the text is long, or if all texts of the story are
// too long together.
func (t *teller) content(text string) string {
	most := min(contentMax, t.left)
	t.left -= min(most, len(text))
	return cutText(text, most)
}

// cutText returns at most so many bytes of a text. If that is not all of it they end with
// an ellipsis.
func cutText(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// ParseRow reads the name of a row, which is its sequence in the input stream, or the
// name of one of its elements, such as 4711#3. item is nil for the whole row.
func ParseRow(text string) (seq uint64, item *int, err error) {
	number, index, element := strings.Cut(text, "#")
	if seq, err = strconv.ParseUint(number, 10, 64); err != nil {
		return 0, nil, fmt.Errorf("%q: give the sequence of a row in the input stream, such as 4711, or of an element of it, such as 4711#3", text)
	}
	if seq == 0 {
		return 0, nil, fmt.Errorf("%s: sequences begin with 1", text)
	}
	if !element {
		return seq, nil, nil
	}
	n, err := strconv.ParseUint(index, 10, 31)
	if err != nil {
		return 0, nil, fmt.Errorf("%q: what follows # is the index of an element, counted from 0, such as 4711#3", text)
	}
	return seq, new(int(n)), nil
}
