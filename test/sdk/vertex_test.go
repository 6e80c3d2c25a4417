package sdk

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/anthropics/anthropic-sdk-go/v2/option"
	"github.com/anthropics/anthropic-sdk-go/v2/vertex"
	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/azure"
	openaioption "github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
	"google.golang.org/genai"
)

// cloudToken is a cloud's identity whose token is known: ours and, for Azure's client, theirs.
type cloudToken string

func (i cloudToken) Authorize(_ context.Context, r *http.Request, _ []byte) (int, error) {
	r.Header.Set("Authorization", "Bearer "+string(i))
	return 1, nil
}

func (cloudToken) Outdated(int) bool { return false }

func (cloudToken) Account() string { return "a" }

func (i cloudToken) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{Token: string(i), ExpiresOn: time.Now().Add(time.Hour)}, nil
}

const somebody = cloudToken("ya29.token")

// talk has the stage's client send a conversation, authorised by an identity, and returns what went over the wire.
func (w *wiretap) talk(t *testing.T, provider string, cfg llm.ProviderConfig, parts ...llm.Part) wired {
	t.Helper()
	cfg.Auth = somebody
	client := must.Value(llm.NewProvider(provider, cfg))(t)
	defer client.Close()
	cold, most := .5, 100
	p := must.Value(client.Prepare(&llm.Request{
		System: "be brief", Temperature: &cold, MaxTokens: &most,
		Messages: []llm.Message{
			{Role: llm.RoleUser, Text: "one"},
			{Role: llm.RoleAssistant, Text: "two"},
			{Role: llm.RoleUser, Parts: append([]llm.Part{{Text: "three"}}, parts...)},
		},
		Tools:      []llm.Tool{{Name: "note", Description: "Take a note.", Parameters: json.RawMessage(`{"type":"object","properties":{"text":{"type":"string"}}}`)}},
		ToolChoice: llm.ToolChoice{Mode: llm.ToolsRequired},
	}))(t)
	x, err := client.Do(t.Context(), p)
	if err != nil || x.Reply.Kept == nil || len(x.Reply.Kept.ToolCalls) != 1 {
		t.Fatalf("%+v, %v", x.Reply, err)
	}
	return w.sent[len(w.sent)-1]
}

// sameWire checks that a provider's own client has sent the same as the stage, to the same path with the same token.
func (w *wiretap) sameWire(t *testing.T, ours wired, err error) {
	t.Helper()
	must.Do(t, err)
	sent := w.sent[len(w.sent)-1]
	if sent.path != ours.path || sent.token != ours.token || ours.token != "Bearer "+string(somebody) {
		t.Errorf("they ask %s with %s, we %s with %s", sent.path, sent.token, ours.path, ours.token)
	}
	same(t, ours.body, json.RawMessage(sent.body))
}

var noteSchema = map[string]any{"type": "object", "properties": map[string]any{"text": map[string]any{"type": "string"}}}

// What the stage sends to Vertex AI is what Google's client sends for a model of Google, and Anthropic's for one of
// its own. Both understand the answers of the stand-in.
func TestRequestsToVertexAreTheProvidersOwn(t *testing.T) {
	image := medium(t, llm.Media{Kind: llm.KindImage}, "image/png", png)
	file := medium(t, llm.Media{Kind: llm.KindFile, Name: "a.pdf"}, "application/pdf", pdf)
	linked := llm.Part{Media: &llm.Media{Kind: llm.KindImage, Source: pngURL}}
	stored := llm.Part{Media: &llm.Media{Kind: llm.KindAudio, Source: "gs://bucket/a.mp3"}}
	cold := float32(.5)
	config := &genai.GenerateContentConfig{
		SystemInstruction: &genai.Content{Parts: []*genai.Part{{Text: "be brief"}}},
		Temperature:       &cold, MaxOutputTokens: 100,
		Tools:      []*genai.Tool{{FunctionDeclarations: []*genai.FunctionDeclaration{{Name: "note", Description: "Take a note.", ParametersJsonSchema: noteSchema}}}},
		ToolConfig: &genai.ToolConfig{FunctionCallingConfig: &genai.FunctionCallingConfig{Mode: genai.FunctionCallingConfigModeAny}},
	}
	contents := []*genai.Content{
		genai.NewContentFromText("one", genai.RoleUser), genai.NewContentFromText("two", genai.RoleModel),
		genai.NewContentFromParts([]*genai.Part{
			{Text: "three"},
			genai.NewPartFromBytes(png, "image/png"), genai.NewPartFromURI(pngURL, "image/png"), genai.NewPartFromURI("gs://bucket/a.mp3", "audio/mp3"),
			genai.NewPartFromBytes(pdf, "application/pdf"),
		}, genai.RoleUser),
	}
	for _, model := range []string{"gemini-2.5-flash", "publishers/google/models/gemini-2.5-flash", "google/gemini-2.5-flash", "projects/q/locations/europe-west4/endpoints/123"} {
		t.Run(model, func(t *testing.T) {
			w := newWiretap(t)
			ours := w.talk(t, llm.Vertex, llm.ProviderConfig{BaseURL: w.URL + "/v1", Region: "europe-west4", Project: "p", Model: model}, image, linked, stored, file)
			client := must.Value(genai.NewClient(t.Context(), &genai.ClientConfig{
				Backend: genai.BackendVertexAI, Project: "p", Location: "europe-west4",
				HTTPClient:  &http.Client{Transport: &oauth2.Transport{Source: oauth2.StaticTokenSource(&oauth2.Token{AccessToken: string(somebody)})}},
				HTTPOptions: genai.HTTPOptions{BaseURL: w.URL, APIVersion: "v1"},
			}))(t)
			reply, err := client.Models.GenerateContent(t.Context(), model, contents, config)
			w.sameWire(t, ours, err)
			if calls := reply.FunctionCalls(); len(calls) != 1 || calls[0].Name != "note" || reply.UsageMetadata.TotalTokenCount == 0 {
				t.Errorf("they read %+v", reply)
			}
		})
	}
	t.Run("anthropic", func(t *testing.T) {
		w := newWiretap(t)
		const model = "claude-sonnet-4-5@20250929"
		ours := w.talk(t, llm.Vertex, llm.ProviderConfig{BaseURL: w.URL + "/v1", Region: "eu", Project: "p", Model: "anthropic/" + model}, image, file)
		credentials := &google.Credentials{TokenSource: oauth2.StaticTokenSource(&oauth2.Token{AccessToken: string(somebody)})}
		client := anthropic.NewClient(option.WithHTTPClient(&http.Client{Transport: w}), option.WithMaxRetries(0), option.WithJSONSet("temperature", .5), option.WithHeader("Anthropic-Version", "vertex-2023-10-16"), vertex.WithCredentials(t.Context(), "eu", "p", credentials))
		document := anthropic.NewDocumentBlock(anthropic.Base64PDFSourceParam{Data: base(pdf)})
		document.OfDocument.Title = anthropic.String("a.pdf")
		reply, err := client.Messages.New(t.Context(), anthropic.MessageNewParams{
			Model: model, MaxTokens: 100, System: []anthropic.TextBlockParam{{Text: "be brief"}},
			Messages: []anthropic.MessageParam{
				anthropic.NewUserMessage(anthropic.NewTextBlock("one")), anthropic.NewAssistantMessage(anthropic.NewTextBlock("two")),
				anthropic.NewUserMessage(anthropic.NewTextBlock("three"), anthropic.NewImageBlockBase64("image/png", base(png)), document),
			},
			Tools: []anthropic.ToolUnionParam{{OfTool: &anthropic.ToolParam{
				Name: "note", Description: anthropic.String("Take a note."), InputSchema: anthropic.ToolInputSchemaParam{Properties: noteSchema["properties"]},
			}}},
			ToolChoice: anthropic.ToolChoiceUnionParam{OfAny: &anthropic.ToolChoiceAnyParam{}},
		})
		w.sameWire(t, ours, err)
		if string(reply.Model) != model || reply.Usage.InputTokens == 0 {
			t.Errorf("they read %+v", reply)
		}
	})
}

// What the stage sends to Azure with a token of Entra ID is what OpenAI's client sends: to the path of a deployment,
// to the v1 path, and for responses.
func TestRequestsToAzureAreOpenAIsOwn(t *testing.T) {
	image := medium(t, llm.Media{Kind: llm.KindImage}, "image/png", png)
	tools := []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{
		Name: "note", Description: openai.String("Take a note."), Parameters: noteSchema,
	})}
	params := openai.ChatCompletionNewParams{
		Model: "my-deployment", Temperature: openai.Float(.5), MaxCompletionTokens: openai.Int(100),
		Messages: []openai.ChatCompletionMessageParamUnion{
			openai.SystemMessage("be brief"), openai.UserMessage("one"), openai.AssistantMessage("two"),
			openai.UserMessage([]openai.ChatCompletionContentPartUnionParam{
				openai.TextContentPart("three"),
				openai.ImageContentPart(openai.ChatCompletionContentPartImageImageURLParam{URL: dataURL("image/png", png)}),
			}),
		},
		Tools:      tools,
		ToolChoice: openai.ChatCompletionToolChoiceOptionUnionParam{OfAuto: openai.String("required")},
	}
	t.Run("dated", func(t *testing.T) {
		w := newWiretap(t)
		ours := w.talk(t, llm.Azure, llm.ProviderConfig{BaseURL: w.URL, Model: "my-deployment", AzureAPIVersion: "2024-10-21"}, image)
		client := openai.NewClient(azure.WithUnsafeAllowHTTP(), azure.WithEndpoint(w.URL, "2024-10-21"), azure.WithTokenCredential(somebody), openaioption.WithMaxRetries(0))
		_, err := client.Chat.Completions.New(t.Context(), params)
		w.sameWire(t, ours, err)
	})
	t.Run("v1", func(t *testing.T) {
		w := newWiretap(t)
		ours := w.talk(t, llm.Azure, llm.ProviderConfig{BaseURL: w.URL, Model: "my-deployment"}, image)
		client := openai.NewClient(openaioption.WithBaseURL(w.URL+"/openai/v1/"), openaioption.WithAPIKey(string(somebody)), openaioption.WithMaxRetries(0))
		_, err := client.Chat.Completions.New(t.Context(), params)
		w.sameWire(t, ours, err)
	})
	t.Run("responses", func(t *testing.T) {
		w := newWiretap(t)
		ours := w.talk(t, llm.OpenAIResponses, llm.ProviderConfig{BaseURL: w.URL + "/openai/v1", Model: "my-deployment"})
		client := openai.NewClient(openaioption.WithBaseURL(w.URL+"/openai/v1/"), openaioption.WithAPIKey(string(somebody)), openaioption.WithMaxRetries(0))
		_, err := client.Responses.New(t.Context(), responses.ResponseNewParams{
			Model: "my-deployment", Instructions: openai.String("be brief"), Store: openai.Bool(false), Temperature: openai.Float(.5), MaxOutputTokens: openai.Int(100),
			Input: responses.ResponseNewParamsInputUnion{OfInputItemList: responses.ResponseInputParam{
				responses.ResponseInputItemParamOfMessage("one", "user"), responses.ResponseInputItemParamOfMessage("two", "assistant"),
				responses.ResponseInputItemParamOfMessage(responses.ResponseInputMessageContentListParam{responses.ResponseInputContentParamOfInputText("three")}, "user"),
			}},
			Tools: []responses.ToolUnionParam{{OfFunction: &responses.FunctionToolParam{
				Name: "note", Description: openai.String("Take a note."), Parameters: noteSchema, Strict: openai.Bool(false),
			}}},
			ToolChoice: responses.ResponseNewParamsToolChoiceUnion{OfToolChoiceMode: openai.Opt(responses.ToolChoiceOptionsRequired)},
		})
		w.sameWire(t, ours, err)
	})
}
