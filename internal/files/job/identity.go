package job

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/files/load"
	"github.com/llm-stage/stage/internal/files/rowfile"
	"github.com/llm-stage/stage/llm"
)

// identity has everything that the results of a job depend on. A job is resumed only with
// the identity that it was started with: otherwise one file would mix the answers to two
// prompts. The tag name is how a message to the user names the field. A field that is
// empty in the file counts as the value of an earlier version, which did not have it.
type identity struct {
	Input string `json:"input" name:"the input's name"`
	// Content is the hash of the first Bytes bytes of the input, in hexadecimal. It is
	// empty for an input that can't be read twice, such as standard input. If the file
	// grows, the hash of its first Bytes bytes stays the same.
	Content string `json:"content_sha256" name:"the input's content"`
	// Bytes is 0 for an empty input, one without a hash, and in a file of an earlier version.
	Bytes int64 `json:"content_bytes,omitempty"`
	// Format is empty if neither a flag nor the name says the format of a pipe, and in a
	// file of an earlier version.
	Format string `json:"format" name:"the input's format"`
	Column string `json:"delimiter,omitempty" name:"the delimiter"`           // "" is a comma
	Types  string `json:"csv_types,omitempty" name:"the types of CSV values"` // "" is strings
	// Quotes is text, or "" for a strict reading, which all earlier versions had.
	Quotes string `json:"csv_quotes,omitempty" name:"the reading of quotes within CSV values (--csv-strict)"`

	Template string `json:"template_sha256" name:"the template"`
	System   string `json:"system_prompt_sha256" name:"the system prompt"`
	Lookup   string `json:"lookup_sha256" name:"the lookup"`
	Schema   string `json:"schema_sha256" name:"the response schema"`
	Field    string `json:"response_field" name:"the response field"`
	Messages string `json:"messages_field,omitempty" name:"the member with the conversation (STAGE_MESSAGES_FIELD)"`
	Request  string `json:"request_field,omitempty" name:"the member with the request (STAGE_REQUEST_FIELD)"`
	Params   string `json:"params_field,omitempty" name:"the member with parameters (STAGE_PARAMS_FIELD)"`
	// Foreach is empty if a row is one call.
	Foreach string `json:"foreach,omitempty" name:"the array that fans out (STAGE_FOREACH)"`
	Tools   string `json:"tools_sha256,omitempty" name:"the tools (STAGE_TOOLS_FILE)"`
	Choice  string `json:"tool_choice,omitempty" name:"the choice of a tool (STAGE_TOOL_CHOICE)"`
	Keep    string `json:"response_keep,omitempty" name:"the parts of replies that are kept (STAGE_RESPONSE_KEEP)"`
	// Task is empty for chat.
	Task     string `json:"task,omitempty" name:"the task (STAGE_TASK)"`
	Vectors  string `json:"vectors,omitempty" name:"the form of vectors (STAGE_EMBED_DIMENSIONS, STAGE_EMBED_ENCODING)"`
	Provider string `json:"provider" name:"the provider"`
	Model    string `json:"model" name:"the model"`
}

// differences names the fields that have changed, in the user's words. An earlier version
// kept no format, and read JSON arrays as lines.
func (id identity) differences(now identity) (changed []string) {
	if id.Format == "" && now.Format != string(rowfile.FormatJSON) {
		id.Format = now.Format
	}
	if id.Format != now.Format {
		id.Quotes = now.Quotes // it depends on the format, which is enough to name
	}
	then, present := reflect.ValueOf(id), reflect.ValueOf(now)
	for field, value := range then.Fields() {
		if field.Name != "Bytes" && value.String() != present.FieldByIndex(field.Index).String() {
			changed = append(changed, field.Tag.Get("name"))
		}
	}
	return changed
}

// newIdentity returns the identity of a job by the present settings. It reads the files
// that these name, and hashes them.
func newIdentity(cfg *config.Config, in *load.Source) (identity, error) {
	id := identity{
		Input: filepath.Base(in.Name), Content: in.Sum, Bytes: in.Bytes,
		Field: cfg.Prompt.ResponseField, Foreach: cfg.Foreach.Field,
		Messages: cfg.Prompt.MessagesField, Request: cfg.Prompt.RequestField,
		Params: cfg.Prompt.ParamsField,
		System: llm.Hash([]byte(cfg.Prompt.SystemPrompt)), Provider: cfg.LLM.Provider,
		Model:  cfg.LLM.Model,
		Choice: cfg.Prompt.ToolChoice, Keep: cfg.Prompt.Keep.String(),
		Template: llm.Hash([]byte(cfg.Prompt.Template)), Format: string(in.Layout.Format),
	}

	// Only what differs from the default is set, so that a job of an earlier version,
	// which had no such field, is still the same job.
	layout := in.Layout
	if layout.Format == rowfile.FormatCSV && layout.Delimiter != ',' {
		id.Column = layout.DelimiterName()
	}
	if layout.Typed {
		id.Types = "auto"
	}
	if layout.Format == rowfile.FormatCSV && !layout.Strict {
		id.Quotes = "text"
	}

	if cfg.Embeds() {
		v := cfg.Embed.Vectors()
		id.Task, id.Vectors = cfg.Task, fmt.Sprintf("%d %s", v.Dimensions, cfg.Embed.Encoding)
	}

	// A prompt in a file is known by its content: a change of the path alone changes
	// nothing.
	for _, f := range []struct {
		path string
		hash *string
	}{
		{cfg.Prompt.TemplateFile, &id.Template},
		{cfg.Prompt.MessagesFile, &id.Template},
		{cfg.Prompt.SystemFile, &id.System},
		{cfg.Prompt.LookupFile, &id.Lookup},
		{cfg.Prompt.ResponseSchema, &id.Schema},
		{cfg.Prompt.ToolsFile, &id.Tools},
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
