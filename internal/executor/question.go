package executor

import (
	"errors"
	"os"
	"strings"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/row"
	"github.com/llm-stage/stage/llm/template"
)

// question is how a row becomes what the model is asked. It is a prompt from a template, a
// conversation from a file of messages, or the conversation or the whole request that the
// row brings along. Besides, there may be a system prompt, which may be a template as well.
// It is not changed once it is loaded.
type question struct {
	// template makes the prompt or, with conversation, the messages. It is nil where
	// messagesField names the member of the row with the conversation, or requestField the
	// member with the request.
	template      *template.Template
	conversation  bool
	messagesField string
	requestField  string
	requests      row.Requests

	// system makes the system prompt of each row where that is a template. Otherwise it is
	// nil, and plainSystem is the system prompt of all rows.
	system      *template.Template
	plainSystem string

	// paramsField is the row's member with parameters of its own. It is empty if rows have
	// none.
	paramsField string

	// from is what results say of the template and the lookup.
	from row.Provenance
}

// load reads the files that the configuration names, and compiles the templates. The error
// lists the problems of all of them.
func (q *question) load(cfg *config.Config) error {
	options := template.Options{Item: cfg.Foreach.Field != "", NoItem: "set STAGE_FOREACH to its name"}
	var err error
	if path := cfg.Prompt.LookupFile; path != "" {
		if options.Lookup, err = template.LoadLookup(path); err == nil {
			q.from.LookupHash, q.from.LookupSource = options.Lookup.Hash(), options.Lookup.Source()
		}
	}
	q.messagesField, q.requestField, q.paramsField = cfg.Prompt.MessagesField, cfg.Prompt.RequestField, cfg.Prompt.ParamsField
	return errors.Join(named("STAGE_LOOKUP_FILE", err), q.loadTemplate(&cfg.Prompt, options), q.loadSystem(&cfg.Prompt, options))
}

// loadTemplate compiles the template of the prompt or of the messages.
func (q *question) loadTemplate(cfg *config.PromptConfig, o template.Options) (err error) {
	if q.ofRow() {
		return nil
	}
	variable, source, parse := "STAGE_TEMPLATE", []byte(cfg.Template), template.Parse
	switch {
	case cfg.MessagesFile != "":
		variable, o.Source, parse, q.conversation = "STAGE_MESSAGES_FILE", cfg.MessagesFile, template.ParseConversation, true
	case cfg.TemplateFile != "":
		variable, o.Source = "STAGE_TEMPLATE_FILE", cfg.TemplateFile
	}
	if o.Source != "" {
		if source, err = os.ReadFile(o.Source); err != nil {
			return named(variable, err)
		}
	}
	if q.template, err = parse(source, o); err != nil {
		return named(variable, err)
	}
	q.from = q.template.Provenance()
	return nil
}

// loadSystem reads the system prompt, and compiles it if it is a template.
func (q *question) loadSystem(cfg *config.PromptConfig, o template.Options) (err error) {
	variable, text := "STAGE_SYSTEM_PROMPT", cfg.SystemPrompt
	if o.Source = cfg.SystemFile; o.Source != "" {
		variable = "STAGE_SYSTEM_PROMPT_FILE"
		content, err := os.ReadFile(o.Source)
		if err != nil {
			return named(variable, err)
		}
		text = strings.TrimSuffix(strings.TrimSuffix(string(content), "\n"), "\r")
	}
	if !template.IsTemplate(text) {
		q.plainSystem = text
		return nil
	}
	o.Name = "the system prompt"
	q.system, err = template.Parse([]byte(text), o)
	return named(variable, err)
}

// ofRow reports whether each row brings its own question, in place of a template's.
func (q *question) ofRow() bool { return q.messagesField != "" || q.requestField != "" }

// ask puts into a request what is asked about a row, or about the element at an index of
// its items unless these are nil.
func (q *question) ask(r *llm.Request, of *row.Row, items *row.Items, index int) (err error) {
	switch {
	case q.requestField != "":
		// The reader keeps the request that it fills. This copy is on the heap, so the one of
		// a row without such a member need not be.
		whole := *r
		err = q.requests.Read(of, q.requestField, &whole)
		*r = whole
	case q.messagesField != "":
		r.Messages, err = of.Messages(q.messagesField)
	case q.conversation:
		r.Messages, err = q.template.Messages(of, items, index)
	default:
		r.Prompt, err = renderText(q.template, of, items, index)
	}
	switch {
	case err != nil:
	case q.ofRow() && llm.HasSystem(r.Messages): // the row has its own instructions
		r.System = ""
	case q.system != nil:
		r.System, err = renderText(q.system, of, items, index)
	}
	if err == nil && q.paramsField != "" {
		r.ExtraBody, err = of.Params(q.paramsField, r.ExtraBody)
	}
	return err
}

func renderText(t *template.Template, of *row.Row, items *row.Items, index int) (string, error) {
	if items == nil {
		return t.Render(of)
	}
	return t.RenderItem(items, index)
}
