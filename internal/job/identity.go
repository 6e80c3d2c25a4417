package job

import (
	"os"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/llm"
)

// identity is what the results of a job depend on. A job is resumed only with the identity that it was started with.
type identity struct {
	Input    string `json:"input"`
	Content  string `json:"content_sha256"` // empty for standard input
	Template string `json:"template_sha256"`
	System   string `json:"system_prompt_sha256"`
	Lookup   string `json:"lookup_sha256"`
	Schema   string `json:"schema_sha256"`
	Field    string `json:"response_field"`
	Provider string `json:"provider"`
	Model    string `json:"model"`
}

// differences names what has changed, in the user's words.
func (id identity) differences(now identity) []string {
	var changed []string
	note := func(what, then, now string) {
		if then != now {
			changed = append(changed, what)
		}
	}
	note("the input's name", id.Input, now.Input)
	note("the input's content", id.Content, now.Content)
	note("the template", id.Template, now.Template)
	note("the system prompt", id.System, now.System)
	note("the lookup", id.Lookup, now.Lookup)
	note("the response schema", id.Schema, now.Schema)
	note("the response field", id.Field, now.Field)
	note("the provider", id.Provider, now.Provider)
	note("the model", id.Model, now.Model)
	return changed
}

// newIdentity returns the identity of a job; it hashes the files that the configuration names. content is the input's
// hash.
func newIdentity(cfg *config.Config, input, content string) (identity, error) {
	id := identity{
		Input: input, Content: content, Field: cfg.Prompt.ResponseField,
		System: llm.Hash([]byte(cfg.Prompt.SystemPrompt)), Provider: cfg.LLM.Provider, Model: cfg.LLM.Model,
		Template: llm.Hash([]byte(cfg.Prompt.Template)),
	}
	for _, f := range []struct {
		path string
		hash *string
	}{
		{cfg.Prompt.TemplateFile, &id.Template}, {cfg.Prompt.LookupFile, &id.Lookup}, {cfg.Prompt.ResponseSchema, &id.Schema},
	} {
		if f.path == "" {
			continue
		}
		text, err := os.ReadFile(f.path)
		if err != nil {
			return id, err
		}
		*f.hash = llm.Hash(text)
	}
	return id, nil
}
