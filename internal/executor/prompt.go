package executor

import (
	"cmp"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/internal/media"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/row"
	"github.com/llm-stage/stage/llm/schema"
)

// Prompt makes requests of rows and results of replies, by the template, the response
// schema and the response field of the configuration. It is safe for concurrent use.
type Prompt struct {
	// Base is what all requests have in common: everything but the prompt and the model.
	// It must not be changed.
	Base llm.Request
	// Media finds what the pictures, documents and sounds of a request are. What it can read
	// beside data: URLs is set before it is used.
	Media media.Reader

	question question
	schema   *schema.Schema // or nil if any text is accepted
	embeds   bool           // the reply is a vector
	format   *row.Format
	foreach  config.ForeachConfig
	llm      *config.LLMConfig

	// ownServer says that the server is the user's, who can raise its max_payload. The
	// embedded server has no such setting.
	ownServer bool
	// moreRoom continues an error about a result that is too large, see [row.ResultTooLarge].
	moreRoom string
}

// LoadPrompt reads and compiles the files that the configuration names. The error lists
// every problem with the name of its variable.
func LoadPrompt(cfg *config.Config) (*Prompt, error) {
	p := &Prompt{Media: media.Reader{MaxBytes: int64(cfg.Prompt.MediaMax)}, ownServer: len(cfg.NATS.URL) > 0, moreRoom: moreRoom(cfg), foreach: cfg.Foreach, llm: &cfg.LLM, embeds: cfg.Embeds(), Base: llm.Request{Temperature: cfg.LLM.Temperature, MaxTokens: cfg.LLM.MaxTokens}}
	var err error
	p.Base.ExtraBody, err = cfg.LLM.ReadExtraBody()
	err = errors.Join(named("STAGE_LLM_EXTRA_BODY", err), p.question.load(cfg), p.loadTools(&cfg.Prompt), p.loadSchema(cfg.Prompt.ResponseSchema))
	if err != nil {
		return nil, err
	}
	p.Base.System, p.Base.Keep = p.question.plainSystem, cfg.Prompt.Keep.Keep
	if p.format, err = row.NewFormat(cfg.Prompt.ResponseField, p.question.from); err != nil {
		return nil, named("STAGE_RESPONSE_FIELD", err)
	}
	p.format.Keep = p.Base.Kept()
	return p, nil
}

// moreRoom is the hint for results that are too large, besides the advice to ask for
// shorter replies. The embedded server takes messages as large as a row may be, so there
// is nothing.
func moreRoom(cfg *config.Config) string {
	switch {
	case cfg.Result.Bucket != "":
		return ", or raise STAGE_WINDOW_BYTES, of which a result may have a quarter"
	case len(cfg.NATS.URL) > 0:
		return ", raise the server's max_payload, or set STAGE_RESULT_BUCKET"
	}
	return ""
}

// PromptProblems returns what [LoadPrompt] would report, by variable, of a configuration
// that has problems already; see [config.Source].
func PromptProblems(cfg *config.Config) map[string]error {
	var p Prompt
	_, extra := cfg.LLM.ReadExtraBody()
	found := map[string]error{"STAGE_LLM_EXTRA_BODY": extra}
	for _, err := range []error{p.question.load(cfg), p.loadTools(&cfg.Prompt), p.loadSchema(cfg.Prompt.ResponseSchema)} {
		list := []error{err}
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			list = joined.Unwrap()
		}
		for _, one := range list {
			if problem, ok := errors.AsType[*variableError](one); ok {
				found[problem.variable] = problem.err
			}
		}
	}
	return found
}

// variableError is a problem of a variable.
type variableError struct {
	variable string
	err      error
}

func (e *variableError) Error() string { return e.variable + ": " + e.err.Error() }

func (e *variableError) Unwrap() error { return e.err }

// named adds the variable that an error is about, unless there is none.
func named(variable string, err error) error {
	if err == nil {
		return nil
	}
	return &variableError{variable, err}
}

// loadSchema reads the response schema. Without a path there is none, and it returns nil.
func (p *Prompt) loadSchema(path string) error {
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	if err == nil {
		p.schema, err = schema.Parse(text, path)
	}
	p.Base.Schema = p.schema
	return named("STAGE_RESPONSE_SCHEMA_FILE", err)
}

// SchemaNote is what a provider may not enforce of the response schema.
type SchemaNote struct {
	Provider string
	Text     string // human-readable
}

// SchemaNotes returns the notes of the first provider and the fallbacks, each once. There
// are none where the extra body takes the schema out of the request.
func (p *Prompt) SchemaNotes(cfg *config.Config) []SchemaNote {
	if p.schema == nil {
		return nil
	}
	names, models := []string{cfg.LLM.Provider}, []string{cfg.LLM.Model}
	for _, m := range cfg.Fallback.Models {
		names, models = append(names, m.Provider), append(models, m.Model)
	}
	var notes []SchemaNote
	for i, name := range names {
		provider, _ := llm.LookupProvider(name) // the configuration takes no unknown one
		text := provider.SchemaNote(cfg.LLM.Endpoint(name).BaseURL, models[i], p.schema)
		removed := setsNull(p.Base.ExtraBody, provider.SchemaMember) && !strings.HasPrefix(text, "sent in the system prompt")
		if note := (SchemaNote{name, text}); text != "" && !removed && !slices.Contains(notes, note) {
			notes = append(notes, note)
		}
	}
	return notes
}

// setsNull reports whether an object sets a member, or one of the objects around it, to
// null.
func setsNull(object json.RawMessage, path []string) bool {
	for _, name := range path {
		var members map[string]json.RawMessage
		if json.Unmarshal(object, &members) != nil {
			return false
		}
		if object = members[name]; string(object) == "null" {
			return true
		}
	}
	return false
}

// Request renders the prompt of a row. vars is the hash of the variables that the
// template can read.
func (p *Prompt) Request(row *row.Row) (r llm.Request, vars string, err error) {
	r, vars = p.Base, row.VariablesHash()
	err = p.question.ask(&r, row, nil, 0)
	return r, vars, err
}

// Check reports why a request can't be sent to the first provider, see [llm.Provider.Check].
func (p *Prompt) Check(r *llm.Request) error {
	provider, known := llm.LookupProvider(p.llm.Provider)
	if !known {
		return nil
	}
	if p.embeds {
		return provider.CheckTexts(r)
	}
	asked := *r
	asked.Model = cmp.Or(r.Model, p.llm.Model)
	return provider.Check(&asked)
}

// MediaTokens estimates the tokens of a request's media at the first provider.
func (p *Prompt) MediaTokens(r *llm.Request) int64 {
	provider, known := llm.LookupProvider(p.llm.Provider)
	if !known {
		return 0
	}
	return provider.MediaTokens(cmp.Or(r.Model, p.llm.Model), r.Messages)
}

// Items returns the elements of a row that fans out, or why it can't: an [*llm.Error] of
// an invalid row.
func (p *Prompt) Items(row *row.Row) (*row.Items, error) {
	return row.Items(p.foreach.Field, p.foreach.Max)
}

// ItemProblems returns the elements whose prompt can't be rendered.
func (p *Prompt) ItemProblems(items *row.Items) (failed []row.ItemFailure) {
	for i := range items.Len() {
		r := p.Base
		if err := p.question.ask(&r, items.Row(), items, i); err != nil {
			failure := call.AsError(err)
			failed = append(failed, row.ItemFailure{Index: i, Reason: failure.Reason, Error: excerpt.Of(failure.Error())})
		}
	}
	return failed
}

// ItemRequest is [Prompt.Request] of the element at an index.
func (p *Prompt) ItemRequest(items *row.Items, index int) (r llm.Request, vars string, err error) {
	r, vars = p.Base, items.VariablesHash(index)
	err = p.question.ask(&r, items.Row(), items, index)
	return r, vars, err
}

// findReasoning keeps the reasoning that only the response schema tells from the answer.
func (p *Prompt) findReasoning(a *answer) {
	if p.schema == nil || string(a.Kept["reasoning"]) != "null" {
		return
	}
	if text := llm.ReasoningBefore(p.schema, a.Text); text != "" {
		a.Kept["reasoning"] = jsonbytes.AppendString(nil, text)
	}
}

// result makes the result of a reply, new or kept. tooLarge is the error in place of a
// body that does not fit. err is why the reply does not satisfy the schema.
func (p *Prompt) result(j *job, a *answer) (body []byte, tooLarge *llm.Error, err error) {
	var value json.RawMessage
	switch {
	case p.embeds:
		value = json.RawMessage(a.Text)
	case p.form(a) == formValue:
		if value, err = llm.ValidateReply(p.schema, a.Text); err != nil {
			return nil, nil, err
		}
	}
	body = p.format.AppendSuccess(nil, j.parsed, &row.Answer{
		Text: a.Text, Value: value, Usage: a.Usage, VariablesHash: j.vars, Model: a.Model, Keep: j.request.Kept(), Kept: a.Kept,
	})
	if limit := j.row.MaxBodyBytes; len(body) > limit {
		return nil, row.ResultTooLarge(len(body), limit, p.moreRoom), nil
	}
	return body, nil, nil
}

// errorBody is the result of a row that failed. parsed is nil if the body is no row.
func (p *Prompt) errorBody(parsed *row.Row, of *consumer.Row, failure *llm.Error, attempts []auditlog.AttemptError) []byte {
	if _, named := failure.Facts["template_hash"]; failure.Reason == llm.ReasonTemplateRenderingFailed && !named {
		failure = p.withTemplate(failure)
	}
	return p.format.AppendError(nil, parsed, failure, attempts, of.MaxBodyBytes)
}

// withTemplate adds the hash and the source of the template to a failure that was kept
// without them.
func (p *Prompt) withTemplate(failure *llm.Error) *llm.Error {
	named := *failure
	named.Facts = map[string]any{"template_hash": orNil(p.question.from.TemplateHash), "template_source": orNil(p.question.from.TemplateSource)}
	return &named
}

// orNil returns a text, or nil in place of an empty one.
func orNil(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// templateHash identifies the template in row events. It is empty where the row has its
// own conversation.
func (p *Prompt) templateHash() string { return p.question.from.TemplateHash }
