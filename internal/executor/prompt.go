package executor

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/row"
	"github.com/llm-stage/stage/llm/schema"
	"github.com/llm-stage/stage/llm/template"
)

// Prompt knows how a row becomes a request and a reply a result. Safe for concurrent use.
type Prompt struct {
	template *template.Template
	schema   *schema.Schema // nil: any text
	format   *row.Format
	Base     llm.Request // what all requests have in common
}

// LoadPrompt reads and compiles what the configuration names. The error lists every fault.
func LoadPrompt(cfg *config.Config) (*Prompt, error) {
	p := &Prompt{Base: llm.Request{System: cfg.Prompt.SystemPrompt, Temperature: cfg.LLM.Temperature, MaxTokens: cfg.LLM.MaxTokens}}
	var faults []error
	fault := func(variable string, err error) {
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", variable, err))
		}
	}
	var lookup *template.Lookup
	var err error
	p.Base.ExtraBody, err = cfg.LLM.ReadExtraBody()
	fault("STAGE_LLM_EXTRA_BODY", err)
	if path := cfg.Prompt.LookupFile; path != "" {
		lookup, err = template.LoadLookup(path)
		fault("STAGE_LOOKUP_FILE", err)
	}
	variable, source := "STAGE_TEMPLATE", []byte(cfg.Prompt.Template)
	if path := cfg.Prompt.TemplateFile; path != "" {
		variable = "STAGE_TEMPLATE_FILE"
		if source, err = os.ReadFile(path); err != nil {
			fault(variable, err)
		}
	}
	if len(faults) == 0 {
		p.template, err = template.Parse(source, template.Options{Source: cfg.Prompt.TemplateFile, Lookup: lookup})
		fault(variable, err)
	}
	if path := cfg.Prompt.ResponseSchema; path != "" {
		text, err := os.ReadFile(path)
		if err == nil {
			p.schema, err = schema.Parse(text, path)
		}
		fault("STAGE_RESPONSE_SCHEMA_FILE", err)
		p.Base.Schema = p.schema
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	p.format, err = row.NewFormat(cfg.Prompt.ResponseField, p.template.Provenance())
	fault("STAGE_RESPONSE_FIELD", err)
	return p, errors.Join(faults...)
}

// schemaNote is what one provider may not enforce of the response schema.
type schemaNote struct{ Provider, Text string }

// SchemaNotes returns those of the first provider and the fallbacks, each provider once. Where the extra body takes the
// schema out of the request there is none.
func (p *Prompt) SchemaNotes(cfg *config.Config) []schemaNote {
	if p.schema == nil {
		return nil
	}
	names := []string{cfg.LLM.Provider}
	for _, m := range cfg.Fallback.Models {
		names = append(names, m.Provider)
	}
	var notes []schemaNote
	for i, name := range names {
		provider, _ := llm.LookupProvider(name) // whatever is configured is known
		text := provider.SchemaNote(p.schema)
		out := setsNull(p.Base.ExtraBody, provider.SchemaMember) && !strings.HasPrefix(text, "sent in the system prompt")
		if text != "" && !out && !slices.Contains(names[:i], name) {
			notes = append(notes, schemaNote{name, text})
		}
	}
	return notes
}

// setsNull reports whether an object sets a member, or one of the objects around it, to null.
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

// Request renders the prompt of a row. vars is the hash of what the template saw.
func (p *Prompt) Request(row *row.Row) (r llm.Request, vars string, err error) {
	r, vars = p.Base, row.VariablesHash()
	r.Prompt, err = p.template.Render(row)
	return r, vars, err
}

// result makes the result of a reply, new or kept. tooLarge is the error in its place where it does not fit; err says that
// the reply does not satisfy the schema.
func (p *Prompt) result(j *job, a *answer) (body []byte, tooLarge *llm.Error, err error) {
	var value json.RawMessage
	if p.schema != nil {
		if value, err = llm.ValidateReply(p.schema, a.Text); err != nil {
			return nil, nil, err
		}
	}
	body = p.format.AppendSuccess(nil, j.parsed, &row.Answer{
		Text: a.Text, Value: value, Usage: a.Usage, VariablesHash: j.vars, Model: a.Model,
	})
	if limit := j.row.MaxBodyBytes; len(body) > limit {
		return nil, row.ResultTooLarge(len(body), limit), nil
	}
	return body, nil, nil
}

// errorBody is the result of a row that failed. row is nil where the body is no row.
func (p *Prompt) errorBody(row *row.Row, of *consumer.Row, fault *llm.Error, attempts []auditlog.AttemptError) []byte {
	if fault.Reason == llm.ReasonTemplateRenderingFailed {
		fault = p.withTemplate(fault)
	}
	return p.format.AppendError(nil, row, fault, attempts, of.MaxBodyBytes)
}

// withTemplate adds which template it was that could not be rendered.
func (p *Prompt) withTemplate(fault *llm.Error) *llm.Error {
	named := *fault
	var source any
	if s := p.template.Source(); s != "" {
		source = s
	}
	named.Facts = map[string]any{"template_hash": p.template.Hash(), "template_source": source}
	return &named
}

func (p *Prompt) templateHash() string { return p.template.Hash() }
