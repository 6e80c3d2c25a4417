package sdk

import (
	"encoding/base64"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/redact"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
	"google.golang.org/genai"
)

// Beginnings of files are enough: nothing here looks further.
var (
	png = []byte("\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00")
	pdf = []byte("%PDF-1.4\n")
	wav = []byte("RIFF\x26\x00\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x40\x1f\x00\x00\x40\x1f\x00\x00\x01\x00\x08\x00data\x02\x00\x00\x00\x80\x80")
)

const (
	pngURL = "https://host.test/a.png"
	pdfURL = "https://host.test/a.pdf"
)

func base(content []byte) string { return base64.StdEncoding.EncodeToString(content) }

func dataURL(kind string, content []byte) string { return "data:" + kind + ";base64," + base(content) }

// medium is a part with content.
func medium(t *testing.T, m llm.Media, kind string, content []byte) llm.Part {
	t.Helper()
	m.Source = dataURL(kind, content)
	m.Content = must.Value(llm.DataURL(m.Source, 1<<20))(t)
	return llm.Part{Media: &m}
}

// converse returns what the stage sends for a conversation of four turns, whose last one has these parts after its text.
func converse(t *testing.T, provider string, parts ...llm.Part) []byte {
	t.Helper()
	client := must.Value(llm.NewProvider(provider, llm.ProviderConfig{BaseURL: "http://llm.test/v1", APIKey: redact.NewSecret("sk-0123456789abcdef"), Model: "m"}))(t)
	p := must.Value(client.Prepare(&llm.Request{
		System: "be brief",
		Messages: []llm.Message{
			{Role: llm.RoleUser, Text: "one"},
			{Role: llm.RoleAssistant, Text: "two"},
			{Role: llm.RoleUser, Parts: append([]llm.Part{{Text: "three"}}, parts...)},
		},
		Tools: []llm.Tool{{Name: "note", Description: "Take a note.", Parameters: json.RawMessage(`{"type":"object","properties":{"text":{"type":"string"}}}`)}},
	}))(t)
	p = must.Value(p.Load(t.Context()))(t)
	return p.Sent()
}

// same compares what the stage sends with what a client of the provider's would.
func same(t *testing.T, ours []byte, theirs any) {
	t.Helper()
	raw := must.Value(json.Marshal(theirs))(t)
	if !reflect.DeepEqual(parts(value(t, ours)), parts(value(t, raw))) {
		t.Errorf("the stage sends\n%s\nthe client\n%s", ours, raw)
	}
}

// A conversation with pictures, documents, sounds and a tool is sent as the provider's own client sends it, member by
// member, and the client's types describe all of it.
func TestConversationsAreTheProvidersOwn(t *testing.T) {
	image := medium(t, llm.Media{Kind: llm.KindImage}, "image/png", png)
	closer := medium(t, llm.Media{Kind: llm.KindImage, Detail: "low"}, "image/png", png)
	linked := llm.Part{Media: &llm.Media{Kind: llm.KindImage, Source: pngURL}}
	file := medium(t, llm.Media{Kind: llm.KindFile, Name: "a.pdf"}, "application/pdf", pdf)
	linkedFile := llm.Part{Media: &llm.Media{Kind: llm.KindFile, Source: pdfURL}}
	sound := medium(t, llm.Media{Kind: llm.KindAudio}, "audio/wav", wav)
	schema := map[string]any{"type": "object", "properties": map[string]any{"text": map[string]any{"type": "string"}}}

	t.Run("chat", func(t *testing.T) {
		ours := converse(t, llm.OpenAI, image, closer, linked, file, sound)
		fits[openai.ChatCompletionNewParams](t, ours)
		same(t, ours, openai.ChatCompletionNewParams{
			Model: "m",
			Messages: []openai.ChatCompletionMessageParamUnion{
				openai.SystemMessage("be brief"), openai.UserMessage("one"), openai.AssistantMessage("two"),
				openai.UserMessage([]openai.ChatCompletionContentPartUnionParam{
					openai.TextContentPart("three"),
					openai.ImageContentPart(openai.ChatCompletionContentPartImageImageURLParam{URL: dataURL("image/png", png)}),
					openai.ImageContentPart(openai.ChatCompletionContentPartImageImageURLParam{URL: dataURL("image/png", png), Detail: "low"}),
					openai.ImageContentPart(openai.ChatCompletionContentPartImageImageURLParam{URL: pngURL}),
					openai.FileContentPart(openai.ChatCompletionContentPartFileFileParam{
						FileData: openai.String(dataURL("application/pdf", pdf)), Filename: openai.String("a.pdf"),
					}),
					openai.InputAudioContentPart(openai.ChatCompletionContentPartInputAudioInputAudioParam{Data: base(wav), Format: "wav"}),
				}),
			},
			Tools: []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{
				Name: "note", Description: openai.String("Take a note."), Parameters: schema,
			})},
		})
	})
	t.Run("responses", func(t *testing.T) {
		ours := converse(t, llm.OpenAIResponses, image, closer, linked, file, linkedFile)
		response(t, ours)
		picture := func(detail, url string) responses.ResponseInputContentUnionParam {
			return responses.ResponseInputContentUnionParam{OfInputImage: &responses.ResponseInputImageParam{
				Detail: responses.ResponseInputImageDetail(detail), ImageURL: openai.String(url),
			}}
		}
		same(t, ours, responses.ResponseNewParams{
			Model: "m", Instructions: openai.String("be brief"), Store: openai.Bool(false),
			Input: responses.ResponseNewParamsInputUnion{OfInputItemList: responses.ResponseInputParam{
				responses.ResponseInputItemParamOfMessage("one", "user"), responses.ResponseInputItemParamOfMessage("two", "assistant"),
				responses.ResponseInputItemParamOfMessage(responses.ResponseInputMessageContentListParam{
					responses.ResponseInputContentParamOfInputText("three"),
					picture("auto", dataURL("image/png", png)), picture("low", dataURL("image/png", png)), picture("auto", pngURL),
					{OfInputFile: &responses.ResponseInputFileParam{Filename: openai.String("a.pdf"), FileData: openai.String(dataURL("application/pdf", pdf))}},
					{OfInputFile: &responses.ResponseInputFileParam{FileURL: openai.String(pdfURL)}},
				}, "user"),
			}},
			Tools: []responses.ToolUnionParam{{OfFunction: &responses.FunctionToolParam{
				Name: "note", Description: openai.String("Take a note."), Parameters: schema, Strict: openai.Bool(false),
			}}},
		})
	})
	t.Run("messages", func(t *testing.T) {
		ours := converse(t, llm.Anthropic, image, linked, file, linkedFile)
		fits[anthropic.MessageNewParams](t, ours)
		document := anthropic.NewDocumentBlock(anthropic.Base64PDFSourceParam{Data: base(pdf)})
		document.OfDocument.Title = anthropic.String("a.pdf")
		same(t, ours, anthropic.MessageNewParams{
			Model: "m", MaxTokens: 4096, System: []anthropic.TextBlockParam{{Text: "be brief"}},
			Messages: []anthropic.MessageParam{
				anthropic.NewUserMessage(anthropic.NewTextBlock("one")), anthropic.NewAssistantMessage(anthropic.NewTextBlock("two")),
				anthropic.NewUserMessage(
					anthropic.NewTextBlock("three"), anthropic.NewImageBlockBase64("image/png", base(png)),
					anthropic.NewImageBlock(anthropic.URLImageSourceParam{URL: pngURL}),
					document, anthropic.NewDocumentBlock(anthropic.URLPDFSourceParam{URL: pdfURL}),
				),
			},
			Tools: []anthropic.ToolUnionParam{{OfTool: &anthropic.ToolParam{
				Name: "note", Description: anthropic.String("Take a note."), InputSchema: anthropic.ToolInputSchemaParam{Properties: schema["properties"]},
			}}},
		})
	})
	t.Run("gemini", func(t *testing.T) {
		ours := converse(t, llm.Gemini, image, linked, file, linkedFile, sound)
		uri := func(uri, kind string) *genai.Part {
			return &genai.Part{FileData: &genai.FileData{FileURI: uri, MIMEType: kind}}
		}
		same(t, ours, struct {
			generate
			Tools []*genai.Tool `json:"tools"`
		}{
			generate{
				SystemInstruction: &genai.Content{Parts: []*genai.Part{{Text: "be brief"}}},
				Contents: []*genai.Content{
					genai.NewContentFromText("one", genai.RoleUser), genai.NewContentFromText("two", genai.RoleModel),
					genai.NewContentFromParts([]*genai.Part{
						{Text: "three"},
						genai.NewPartFromBytes(png, "image/png"), uri(pngURL, ""),
						genai.NewPartFromBytes(pdf, "application/pdf"), uri(pdfURL, "application/pdf"), genai.NewPartFromBytes(wav, "audio/wav"),
					}, genai.RoleUser),
				},
			},
			[]*genai.Tool{{FunctionDeclarations: []*genai.FunctionDeclaration{{Name: "note", Description: "Take a note.", ParametersJsonSchema: schema}}}},
		})
	})
}
