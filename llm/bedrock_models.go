package llm

import (
	"strings"

	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm/schema"
)

// bedrockModel is what requests to a model of Bedrock depend on, beyond its name.
type bedrockModel struct {
	// dialect is what the model accepts as the schema of its reply. [schema.PromptOnly]
	// puts the schema into the system prompt.
	dialect schema.Dialect
	// levels are the reasoning efforts that it knows.
	levels []string
	// effort appends the object of additionalModelRequestFields for an effort. It is nil
	// where Converse has a member for it.
	effort func(dst []byte, effort string) []byte
}

// The reasoning efforts of most models, and of OpenAI's.
var (
	converseLevels = []string{"low", "medium", "high", "xhigh", "max"}
	openAILevels   = []string{"none", "minimal", "low", "medium", "high", "xhigh", "max"}
)

// bedrockModels are the models that differ from [bedrockDefault], by a part of the name.
// The first that matches counts. A name may be that of a model, of an inference profile
// (eu.anthropic.…), or an ARN with one of both at its end.
//
// The schemas are those of the user guide's page on structured output: Claude from 4.5 to
// Opus 4.6, and the open-weight models. A model that is not in the list gets its schema in
// the system prompt, since a model without structured output answers a request that asks
// for it with a ValidationException, and each of its rows would fail.
var bedrockModels = [...]struct {
	part string
	bedrockModel
}{
	{"anthropic.claude-sonnet-4-5", bedrockModel{schema.BedrockOutput, converseLevels, nil}},
	{"anthropic.claude-haiku-4-5", bedrockModel{schema.BedrockOutput, converseLevels, nil}},
	{"anthropic.claude-opus-4-5", bedrockModel{schema.BedrockOutput, converseLevels, nil}},
	{"anthropic.claude-opus-4-6", bedrockModel{schema.BedrockOutput, converseLevels, nil}},
	{"amazon.nova-2", bedrockModel{
		schema.PromptOnly,
		[]string{"none", "low", "medium", "high"},
		novaEffort,
	}},
	{"openai.gpt-oss", bedrockModel{
		schema.BedrockOutput,
		[]string{"low", "medium", "high"},
		flatEffort,
	}},
	{"openai.", bedrockModel{schema.BedrockOutput, openAILevels, nestedEffort}},
	{"moonshot", bedrockModel{schema.BedrockOutput, converseLevels, flatEffort}},
	{"qwen.qwen3", bedrockModel{schema.BedrockOutput, converseLevels, nil}},
	{"deepseek.v3", bedrockModel{schema.BedrockOutput, converseLevels, nil}},
	{"google.gemma-3-4b", bedrockDefault},
	{"google.gemma", bedrockModel{schema.BedrockOutput, converseLevels, nil}},
	{"nvidia.nemotron", bedrockModel{schema.BedrockOutput, converseLevels, nil}},
	{"mistral.ministral-3", bedrockModel{schema.BedrockOutput, converseLevels, nil}},
	{"mistral.mistral-large-3", bedrockModel{schema.BedrockOutput, converseLevels, nil}},
	{"mistral.magistral", bedrockModel{schema.BedrockOutput, converseLevels, nil}},
	{"mistral.voxtral", bedrockModel{schema.BedrockOutput, converseLevels, nil}},
	{"mistral.devstral", bedrockModel{schema.BedrockOutput, converseLevels, nil}},
	{"zai.glm", bedrockModel{schema.BedrockOutput, converseLevels, nil}},
}

// bedrockDefault is what is known of any other model.
var bedrockDefault = bedrockModel{schema.PromptOnly, converseLevels, nil}

// bedrockModelOf returns what is known of a model.
func bedrockModelOf(name string) bedrockModel {
	for i := range bedrockModels {
		if strings.Contains(name, bedrockModels[i].part) {
			return bedrockModels[i].bedrockModel
		}
	}
	return bedrockDefault
}

// bedrockDialect returns what a model accepts as a schema.
func bedrockDialect(_, model string) schema.Dialect { return bedrockModelOf(model).dialect }

// flatEffort is for models that have the member of chat completions.
func flatEffort(dst []byte, effort string) []byte {
	return append(jsonbytes.AppendString(append(dst, `{"reasoning_effort":`...), effort), '}')
}

// nestedEffort is for models that have the member of responses.
func nestedEffort(dst []byte, effort string) []byte {
	return append(jsonbytes.AppendString(append(dst, `{"reasoning":{"effort":`...), effort),
		"}}"...)
}

// novaEffort is for the second generation of Amazon Nova, which can do without reasoning.
func novaEffort(dst []byte, effort string) []byte {
	if effort == "none" {
		return append(dst, `{"reasoningConfig":{"type":"disabled"}}`...)
	}
	dst = jsonbytes.AppendString(append(dst, `{"reasoningConfig":{"maxReasoningEffort":`...),
		effort)
	return append(dst, `,"type":"enabled"}}`...)
}
