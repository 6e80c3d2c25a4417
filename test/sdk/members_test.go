package sdk

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/redact"
	"github.com/llm-stage/stage/llm/row"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
	"google.golang.org/genai"
)

// TestEveryMemberOfOpenAIsRequestIsDocumented finds members that OpenAI has added since the
// table of docs/requests.md was written, which a test of llm/row checks cell by cell.
func TestEveryMemberOfOpenAIsRequestIsDocumented(t *testing.T) {
	text := must.Value(os.ReadFile("../../docs/requests.md"))(t)
	_, table, _ := strings.Cut(string(text), "<!-- members of a request, written by a test -->")
	table, _, _ = strings.Cut(table, "<!-- end of the members -->")
	params := reflect.TypeFor[openai.ChatCompletionNewParams]()
	members := 0
	for field := range params.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		members++
		if !strings.Contains(table, "`"+name+"`") {
			t.Errorf("docs/requests.md does not have the member %s: add it to the table of llm/row/request_test.go", name)
		}
	}
	if members < 30 {
		t.Errorf("the request has %d members: is the type another one now?", members)
	}
}

// wholeRequest is a row's own request with all that more than one provider takes.
const wholeRequest = `{"body":{"model":"gemini-3-pro","messages":[
	{"role":"system","content":"be brief"},
	{"role":"user","content":"one"},
	{"role":"assistant","content":"well","tool_calls":[{"id":"c1","type":"function","function":{"name":"note","arguments":"{\"text\":\"a\"}"}}]},
	{"role":"tool","tool_call_id":"c1","content":"noted"},
	{"role":"user","content":"two"}],
	"temperature":0.5,"top_p":0.9,"max_completion_tokens":50,"reasoning_effort":"low","tool_choice":"required",
	"tools":[{"type":"function","function":{"name":"note","description":"Take a note.","parameters":{"type":"object","properties":{"text":{"type":"string"}}}}}]`

// preparedRow returns what the stage sends for a row's request with further members.
func preparedRow(t *testing.T, provider, more string) []byte {
	t.Helper()
	client := must.Value(llm.NewProvider(provider, llm.ProviderConfig{APIKey: redact.NewSecret("sk-0123456789abcdef"), Model: "m"}))(t)
	parsed := must.Value(row.Parse([]byte(wholeRequest + more + "}}")))(t)
	var r llm.Request
	must.Do(t, new(row.Requests).Read(parsed, "body", &r))
	return must.Value(client.Prepare(&r))(t).Body
}

// A row's own request is sent as the provider's own client sends the same, member by member.
func TestRequestsOfRowsAreTheProvidersOwn(t *testing.T) {
	schema := map[string]any{"type": "object", "properties": map[string]any{"text": map[string]any{"type": "string"}}}
	const arguments = `{"text":"a"}`

	t.Run("chat", func(t *testing.T) {
		ours := preparedRow(t, llm.OpenAI, `,"stop":["x","y"],"seed":7,"logprobs":true,"top_logprobs":2,"user":"u","response_format":{"type":"json_object"}`)
		fits[openai.ChatCompletionNewParams](t, ours)
		well := openai.AssistantMessage("well")
		well.OfAssistant.ToolCalls = []openai.ChatCompletionMessageToolCallUnionParam{{OfFunction: &openai.ChatCompletionMessageFunctionToolCallParam{
			ID: "c1", Function: openai.ChatCompletionMessageFunctionToolCallFunctionParam{Name: "note", Arguments: arguments},
		}}}
		same(t, ours, openai.ChatCompletionNewParams{
			Model: "gemini-3-pro",
			Messages: []openai.ChatCompletionMessageParamUnion{
				openai.SystemMessage("be brief"), openai.UserMessage("one"), well, openai.ToolMessage("noted", "c1"), openai.UserMessage("two"),
			},
			Temperature: openai.Float(0.5), TopP: openai.Float(0.9), MaxCompletionTokens: openai.Int(50), ReasoningEffort: "low",
			Stop: openai.ChatCompletionNewParamsStopUnion{OfStringArray: []string{"x", "y"}}, Seed: openai.Int(7),
			Logprobs: openai.Bool(true), TopLogprobs: openai.Int(2), User: openai.String("u"),
			ResponseFormat: openai.ChatCompletionNewParamsResponseFormatUnion{OfJSONObject: &shared.ResponseFormatJSONObjectParam{}},
			Tools: []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{
				Name: "note", Description: openai.String("Take a note."), Parameters: schema,
			})},
			ToolChoice: openai.ChatCompletionToolChoiceOptionUnionParam{OfAuto: openai.String("required")},
		})
	})
	t.Run("responses", func(t *testing.T) {
		ours := preparedRow(t, llm.OpenAIResponses, `,"logprobs":true,"top_logprobs":2,"response_format":{"type":"json_object"}`)
		output := responses.ResponseInputItemParamOfFunctionCallOutput("noted")
		output.OfFunctionCallOutput.CallID = openai.String("c1")
		same(t, ours, responses.ResponseNewParams{
			Model: "gemini-3-pro", Store: openai.Bool(false),
			Input: responses.ResponseNewParamsInputUnion{OfInputItemList: responses.ResponseInputParam{
				responses.ResponseInputItemParamOfMessage("be brief", "system"),
				responses.ResponseInputItemParamOfMessage("one", "user"), responses.ResponseInputItemParamOfMessage("well", "assistant"),
				responses.ResponseInputItemParamOfFunctionCall(arguments, "c1", "note"), output,
				responses.ResponseInputItemParamOfMessage("two", "user"),
			}},
			Temperature: openai.Float(0.5), TopP: openai.Float(0.9), MaxOutputTokens: openai.Int(50),
			Reasoning: shared.ReasoningParam{Effort: "low"}, TopLogprobs: openai.Int(2), Include: []responses.ResponseIncludable{"message.output_text.logprobs"},
			Text: responses.ResponseTextConfigParam{Format: responses.ResponseFormatTextConfigUnionParam{OfJSONObject: &shared.ResponseFormatJSONObjectParam{}}},
			Tools: []responses.ToolUnionParam{{OfFunction: &responses.FunctionToolParam{
				Name: "note", Description: openai.String("Take a note."), Parameters: schema, Strict: openai.Bool(false),
			}}},
			ToolChoice: responses.ResponseNewParamsToolChoiceUnion{OfToolChoiceMode: openai.Opt(responses.ToolChoiceOptionsRequired)},
		})
	})
	t.Run("messages", func(t *testing.T) {
		ours := preparedRow(t, llm.Anthropic, `,"stop":["x","y"]`)
		fits[anthropic.MessageNewParams](t, ours, sampling...)
		theirs := anthropic.MessageNewParams{
			Model: "gemini-3-pro", MaxTokens: 50, System: []anthropic.TextBlockParam{{Text: "be brief"}},
			Messages: []anthropic.MessageParam{
				anthropic.NewUserMessage(anthropic.NewTextBlock("one")),
				anthropic.NewAssistantMessage(anthropic.NewTextBlock("well"), anthropic.NewToolUseBlock("c1", json.RawMessage(arguments), "note")),
				anthropic.NewUserMessage(anthropic.ContentBlockParamUnion{OfToolResult: &anthropic.ToolResultBlockParam{
					ToolUseID: "c1", Content: []anthropic.ToolResultBlockParamContentUnion{{OfText: &anthropic.TextBlockParam{Text: "noted"}}},
				}}),
				anthropic.NewUserMessage(anthropic.NewTextBlock("two")),
			},
			StopSequences: []string{"x", "y"},
			OutputConfig:  anthropic.OutputConfigParam{Effort: "low"},
			Tools: []anthropic.ToolUnionParam{{OfTool: &anthropic.ToolParam{
				Name: "note", Description: anthropic.String("Take a note."), InputSchema: anthropic.ToolInputSchemaParam{Properties: schema["properties"]},
			}}},
			ToolChoice: anthropic.ToolChoiceUnionParam{OfAny: &anthropic.ToolChoiceAnyParam{}},
		}
		theirs.SetExtraFields(map[string]any{"temperature": 0.5, "top_p": 0.9})
		same(t, ours, theirs)
	})
	t.Run("gemini", func(t *testing.T) {
		ours := preparedRow(t, llm.Gemini, `,"stop":["x","y"],"seed":7,"logprobs":true,"top_logprobs":2,"response_format":{"type":"json_object"}`)
		same(t, ours, struct {
			SystemInstruction *genai.Content          `json:"systemInstruction"`
			Contents          []*genai.Content        `json:"contents"`
			GenerationConfig  *genai.GenerationConfig `json:"generationConfig"`
			Tools             []*genai.Tool           `json:"tools"`
			ToolConfig        *genai.ToolConfig       `json:"toolConfig"`
		}{
			&genai.Content{Parts: []*genai.Part{{Text: "be brief"}}},
			[]*genai.Content{
				genai.NewContentFromText("one", genai.RoleUser),
				genai.NewContentFromParts([]*genai.Part{{Text: "well"}, genai.NewPartFromFunctionCall("note", map[string]any{"text": "a"})}, genai.RoleModel),
				genai.NewContentFromParts([]*genai.Part{genai.NewPartFromFunctionResponse("note", map[string]any{"output": "noted"})}, genai.RoleUser),
				genai.NewContentFromText("two", genai.RoleUser),
			},
			&genai.GenerationConfig{
				Temperature: genai.Ptr[float32](0.5), TopP: genai.Ptr[float32](0.9), MaxOutputTokens: 50, StopSequences: []string{"x", "y"},
				Seed: genai.Ptr[int32](7), ResponseLogprobs: true, Logprobs: genai.Ptr[int32](2), ResponseMIMEType: "application/json",
				ThinkingConfig: &genai.ThinkingConfig{ThinkingLevel: genai.ThinkingLevelLow},
			},
			[]*genai.Tool{{FunctionDeclarations: []*genai.FunctionDeclaration{{Name: "note", Description: "Take a note.", ParametersJsonSchema: schema}}}},
			&genai.ToolConfig{FunctionCallingConfig: &genai.FunctionCallingConfig{Mode: genai.FunctionCallingConfigModeAny}},
		})
	})
}
