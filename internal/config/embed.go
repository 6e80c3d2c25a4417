package config

import (
	"strings"
	"time"

	"github.com/llm-stage/stage/llm"
)

// EmbedConfig is how a stage makes vectors of texts (STAGE_TASK=embed): how many rows
// share a call, how long a call waits for them, and the form of the vectors.
type EmbedConfig struct {
	Rows       int           `env:"ROWS, default=64" min:"1" max:"2048" help:"most rows whose texts go in one call; the provider's own limits hold as well"`
	Wait       time.Duration `env:"WAIT, default=10ms" min:"0" max:"1m" help:"how long the first row of a call waits for others while calls are in flight; on an idle stage it goes at once"`
	Dimensions *int          `env:"DIMENSIONS, noinit" min:"1" max:"65536" help:"how many numbers a vector has: sent to the model, and checked; unset: as many as the model has"`
	Encoding   string        `env:"ENCODING, default=float" oneof:"float base64" help:"how the result holds a vector: float (an array of numbers) or base64 (of little-endian 32-bit floats)"`
}

// embedPrefix starts the variables of EmbedConfig.
const embedPrefix = VariablePrefix + "EMBED_"

// Embeds reports whether the stage makes vectors of texts, in place of answers.
func (c *Config) Embeds() bool { return c.Task == llm.TaskEmbed }

// Vectors returns the form of the vectors, as requests and results need it.
func (c *EmbedConfig) Vectors() llm.VectorFormat {
	v := llm.VectorFormat{Base64: c.Encoding == llm.EncodingBase64}
	if c.Dimensions != nil {
		v.Dimensions = *c.Dimensions
	}
	return v
}

// chatOnly are the variables that mean nothing to embeddings, each with the reason.
// Without the check they would be ignored, and the user would wait for an effect.
var chatOnly = []struct{ variable, why string }{
	{"STAGE_MESSAGES_FILE", "only a text can be embedded: give it by STAGE_TEMPLATE"},
	{"STAGE_MESSAGES_FIELD", "only a text can be embedded: give it by STAGE_TEMPLATE"},
	{"STAGE_REQUEST_FIELD", "only a text can be embedded: give it by STAGE_TEMPLATE"},
	{"STAGE_SYSTEM_PROMPT", "there is no system prompt beside a text to embed: " +
		"remove it, or make it part of the template"},
	{"STAGE_SYSTEM_PROMPT_FILE", "there is no system prompt beside a text to embed: " +
		"remove it, or make it part of the template"},
	{"STAGE_TOOLS_FILE", "embeddings call no tools: remove it"},
	{"STAGE_TOOL_CHOICE", "embeddings call no tools: remove it"},
	{"STAGE_RESPONSE_KEEP", "the reply has nothing but vectors: remove it"},
	{"STAGE_RESPONSE_SCHEMA_FILE", "the reply is a vector: remove it, " +
		"and set STAGE_EMBED_DIMENSIONS to have its length checked"},
	{"STAGE_LLM_TEMPERATURE", "it means nothing to embeddings: remove it"},
	{"STAGE_LLM_MAX_TOKENS", "it means nothing to embeddings: remove it"},
}

// checkTask reports settings of the other task: a chat stage has no use for
// STAGE_EMBED_*, and a stage of embeddings has none for chatOnly. A value that equals the
// default has no effect, so it is not reported.
func (c *checker) checkTask() {
	if !c.none("STAGE_TASK") {
		return
	}
	if !c.Embeds() {
		for _, f := range Fields() {
			if strings.HasPrefix(f.Variable, embedPrefix) && f.text(c.Config) != f.Fallback &&
				c.none(f.Variable) {
				c.add(f.Variable, "it is for embeddings: set STAGE_TASK=embed, or remove it")
			}
		}
		return
	}
	for _, only := range chatOnly {
		if !fieldsByVariable()[only.variable].value(c.Config).IsZero() && c.none(only.variable) {
			c.add(only.variable, "%s", only.why)
		}
	}
}
