package sdk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/anthropics/anthropic-sdk-go/v2"
	anthropicbedrock "github.com/anthropics/anthropic-sdk-go/v2/bedrock"
	"github.com/anthropics/anthropic-sdk-go/v2/option"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/bedrockruntime"
	"github.com/aws/aws-sdk-go-v2/service/bedrockruntime/document"
	"github.com/aws/aws-sdk-go-v2/service/bedrockruntime/types"
	"github.com/aws/smithy-go/auth/bearer"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/lab/llmtest/batches"
	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/redact"
	"github.com/llm-stage/stage/llm/row"
	"github.com/openai/openai-go/v3"
	openaioption "github.com/openai/openai-go/v3/option"
)

const claudeARN = "arn:aws:bedrock:eu-central-1:123456789012:inference-profile/eu.anthropic.claude-sonnet-4-5-20250929-v1:0"

// wired is a request as it went over the wire.
type wired struct {
	path, token, key string // key is in Anthropic's own header
	body             []byte
}

// wiretap is the stand-in behind a server that notes all requests. AWS's client sends an API
// key over TLS alone, so that its requests to the real address are led there.
type wiretap struct {
	*httptest.Server
	sent []wired
}

func newWiretap(t *testing.T) *wiretap {
	t.Helper()
	w, stub := new(wiretap), served(t, batches.Config{})
	w.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.sent = append(w.sent, wired{r.URL.EscapedPath(), r.Header.Get("Authorization"), r.Header.Get("X-Api-Key"), body})
		r.Body = io.NopCloser(bytes.NewReader(body))
		stub.Config.Handler.ServeHTTP(rw, r)
	}))
	t.Cleanup(w.Close)
	return w
}

// RoundTrip implements [http.RoundTripper].
func (w *wiretap) RoundTrip(r *http.Request) (*http.Response, error) {
	r.URL.Scheme, r.URL.Host = "http", w.Listener.Addr().String()
	return http.DefaultTransport.RoundTrip(r)
}

// theirs is AWS's client, with an API key.
func (w *wiretap) theirs() *bedrockruntime.Client {
	return bedrockruntime.New(bedrockruntime.Options{
		Region: "eu-central-1", HTTPClient: &http.Client{Transport: w}, Retryer: aws.NopRetryer{},
		BearerAuthTokenProvider: bearer.StaticTokenProvider{Token: bearer.Token{Value: "sk-0123456789abcdef"}},
		AuthSchemePreference:    []string{"httpBearerAuth"},
	})
}

func text(s string) types.ContentBlock { return &types.ContentBlockMemberText{Value: s} }

// rowRequest reads a row with a request of its own.
func rowRequest(t *testing.T, more string) *llm.Request {
	t.Helper()
	parsed := must.Value(row.Parse([]byte(strings.Replace(wholeRequest, "gemini-3-pro", claudeARN, 1) + more + "}}")))(t)
	r := new(llm.Request)
	must.Do(t, new(row.Requests).Read(parsed, "body", r))
	return r
}

// What the stage sends to Bedrock is what AWS's own client sends, byte for byte, to the same path; and that client
// understands the answer of the stand-in.
func TestConverseIsAWSsOwn(t *testing.T) {
	image := medium(t, llm.Media{Kind: llm.KindImage}, "image/png", png)
	file := medium(t, llm.Media{Kind: llm.KindFile, Name: "a_1.pdf"}, "application/pdf", pdf)
	again := medium(t, llm.Media{Kind: llm.KindFile, Name: "a-1"}, "application/pdf", pdf)
	sound := medium(t, llm.Media{Kind: llm.KindAudio}, "audio/wav", wav)
	schema := document.NewLazyDocument(struct { // in the order in which the stage was given it
		Type       string         `document:"type"`
		Properties map[string]any `document:"properties"`
	}{"object", map[string]any{"text": map[string]any{"type": "string"}}})
	tools := []types.Tool{&types.ToolMemberToolSpec{Value: types.ToolSpecification{
		Name: aws.String("note"), Description: aws.String("Take a note."), InputSchema: &types.ToolInputSchemaMemberJson{Value: schema},
	}}}
	call := document.NewLazyDocument(map[string]any{"text": "a"})
	named := func(format types.DocumentFormat, name string) types.ContentBlock {
		return &types.ContentBlockMemberDocument{Value: types.DocumentBlock{
			Format: format, Name: aws.String(name), Source: &types.DocumentSourceMemberBytes{Value: pdf},
		}}
	}
	for name, tt := range map[string]struct {
		ours   *llm.Request
		theirs bedrockruntime.ConverseInput
	}{
		"prompt": {
			&llm.Request{Prompt: "Say \"hi\" to <Zoë> & \\ \n\t"},
			bedrockruntime.ConverseInput{Messages: []types.Message{{Role: "user", Content: []types.ContentBlock{text("Say \"hi\" to <Zoë> & \\ \n\t")}}}},
		},
		"media": {
			&llm.Request{
				System: "be brief", Messages: []llm.Message{
					{Role: llm.RoleUser, Text: "one"},
					{Role: llm.RoleAssistant, Text: "two"},
					{Role: llm.RoleUser, Parts: []llm.Part{{Text: "three"}, image, file, again, sound}},
				},
				Tools: rowRequest(t, "").Tools,
			},
			bedrockruntime.ConverseInput{
				System: []types.SystemContentBlock{&types.SystemContentBlockMemberText{Value: "be brief"}},
				Messages: []types.Message{
					{Role: "user", Content: []types.ContentBlock{text("one")}},
					{Role: "assistant", Content: []types.ContentBlock{text("two")}},
					{Role: "user", Content: []types.ContentBlock{
						text("three"),
						&types.ContentBlockMemberImage{Value: types.ImageBlock{Format: "png", Source: &types.ImageSourceMemberBytes{Value: png}}},
						named("pdf", "a-1"), named("pdf", "a-1 (2)"),
						&types.ContentBlockMemberAudio{Value: types.AudioBlock{Format: "wav", Source: &types.AudioSourceMemberBytes{Value: wav}}},
					}},
				},
				ToolConfig: &types.ToolConfiguration{Tools: tools},
			},
		},
		"a row's own": {
			rowRequest(t, `,"stop":["x","y"],"response_format":{"type":"json_schema","json_schema":{"name":"n","description":"d","schema":{"type":"object","properties":{},"additionalProperties":false}}}`),
			bedrockruntime.ConverseInput{
				System: []types.SystemContentBlock{&types.SystemContentBlockMemberText{Value: "be brief"}},
				InferenceConfig: &types.InferenceConfiguration{
					Temperature: aws.Float32(0.5), TopP: aws.Float32(0.9), MaxTokens: aws.Int32(50), StopSequences: []string{"x", "y"},
				},
				Messages: []types.Message{
					{Role: "user", Content: []types.ContentBlock{text("one")}},
					{Role: "assistant", Content: []types.ContentBlock{text("well"), &types.ContentBlockMemberToolUse{Value: types.ToolUseBlock{
						ToolUseId: aws.String("c1"), Name: aws.String("note"), Input: call,
					}}}},
					{Role: "user", Content: []types.ContentBlock{&types.ContentBlockMemberToolResult{Value: types.ToolResultBlock{
						ToolUseId: aws.String("c1"), Content: []types.ToolResultContentBlock{&types.ToolResultContentBlockMemberText{Value: "noted"}},
					}}, text("two")}},
				},
				OutputConfig: &types.OutputConfig{Effort: aws.String("low"), TextFormat: &types.OutputFormat{
					Type: types.OutputFormatTypeJsonSchema, Structure: &types.OutputFormatStructureMemberJsonSchema{Value: types.JsonSchemaDefinition{
						Name: aws.String("n"), Description: aws.String("d"), Schema: aws.String(`{"type":"object","properties":{},"additionalProperties":false}`),
					}},
				}},
				ToolConfig: &types.ToolConfiguration{Tools: tools, ToolChoice: &types.ToolChoiceMemberAny{}},
			},
		},
		"gpt-oss": {
			&llm.Request{Model: "openai.gpt-oss-120b-1:0", Prompt: "hi", Options: &llm.Options{Effort: "low"}},
			bedrockruntime.ConverseInput{
				ModelId: aws.String("openai.gpt-oss-120b-1:0"), AdditionalModelRequestFields: document.NewLazyDocument(map[string]any{"reasoning_effort": "low"}),
				Messages: []types.Message{{Role: "user", Content: []types.ContentBlock{text("hi")}}},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWiretap(t)
			if tt.theirs.ModelId == nil {
				tt.theirs.ModelId = aws.String(claudeARN)
			}
			answer := must.Value(w.theirs().Converse(t.Context(), &tt.theirs))(t)
			client := must.Value(llm.NewProvider(llm.Bedrock, llm.ProviderConfig{BaseURL: w.URL, Model: claudeARN, APIKey: redact.NewSecret("sk-0123456789abcdef")}))(t)
			p := must.Value(client.Prepare(tt.ours))(t)
			p = must.Value(p.Load(t.Context()))(t)
			x := must.Value(client.Do(t.Context(), p))(t)
			if ours, theirs := w.sent[1], w.sent[0]; ours.path != theirs.path || ours.token != theirs.token || !bytes.Equal(ours.body, theirs.body) {
				t.Errorf("the stage sends\n%s\n%s\n%s\nthe client\n%s\n%s\n%s", ours.path, ours.token, ours.body, theirs.path, theirs.token, theirs.body)
			}
			message := answer.Output.(*types.ConverseOutputMemberMessage).Value
			if first, ok := message.Content[len(message.Content)-1].(*types.ContentBlockMemberText); ok && first.Value != x.Reply.Text || string(answer.StopReason) != x.Reply.FinishReason {
				t.Errorf("the stage reads %q, %s, the client %+v, %s", x.Reply.Text, x.Reply.FinishReason, message.Content, answer.StopReason)
			}
			if u := answer.Usage; int64(*u.InputTokens) != x.Reply.Usage.PromptTokens || int64(*u.OutputTokens) != x.Reply.Usage.CompletionTokens {
				t.Errorf("the stage reads %+v, the client %+v", x.Reply.Usage, u)
			}
		})
	}
}

// At Bedrock's addresses for the formats of OpenAI and Anthropic the stage calls what their own clients for Bedrock call,
// with the key in the same header.
func TestOtherFormatsOfBedrockAreTheProvidersOwn(t *testing.T) {
	const region, key = "eu-central-1", "sk-0123456789abcdef"
	for name, tt := range map[string]struct {
		provider, base string
		theirs         func(t *testing.T, w *wiretap) error
	}{
		"messages at Mantle": {
			llm.Anthropic, "http://bedrock-mantle.eu-central-1.api.aws/anthropic/v1",
			func(t *testing.T, w *wiretap) error {
				client, err := anthropicbedrock.NewMantleClient(t.Context(), anthropicbedrock.MantleClientConfig{APIKey: key, AWSRegion: region},
					option.WithHTTPClient(&http.Client{Transport: w}))
				if err != nil {
					return err
				}
				_, err = client.Messages.New(t.Context(), anthropic.MessageNewParams{
					Model: "m", MaxTokens: 4096, Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("hi"))},
				})
				return err
			},
		},
		"chat": {
			llm.OpenAI, "http://bedrock-runtime.eu-central-1.amazonaws.com/openai/v1",
			func(t *testing.T, w *wiretap) error {
				client := openai.NewClient(openaioption.WithBaseURL("https://bedrock-runtime.eu-central-1.amazonaws.com/openai/v1"),
					openaioption.WithAPIKey(key), openaioption.WithHTTPClient(&http.Client{Transport: w}))
				_, err := client.Chat.Completions.New(t.Context(), openai.ChatCompletionNewParams{
					Model: "m", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hi")},
				})
				return err
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWiretap(t)
			must.Do(t, tt.theirs(t, w))
			var dialer net.Dialer
			client := must.Value(llm.NewProvider(tt.provider, llm.ProviderConfig{
				BaseURL: tt.base, Model: "m", APIKey: redact.NewSecret(key),
				DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
					return dialer.DialContext(ctx, network, w.Listener.Addr().String())
				},
			}))(t)
			p := must.Value(client.Prepare(&llm.Request{Prompt: "hi"}))(t)
			must.Value(client.Do(t.Context(), p))(t)
			ours, theirs := w.sent[1], w.sent[0]
			if ours.path != theirs.path || ours.token != theirs.token || ours.token != "Bearer "+key || ours.key != theirs.key {
				t.Errorf("the stage calls %s with %q, %q, the client %s with %q, %q", ours.path, ours.token, ours.key, theirs.path, theirs.token, theirs.key)
			}
			same(t, ours.body, json.RawMessage(theirs.body))
		})
	}
}

// AWS's client knows each error of the stand-in by its own type.
func TestAWSsClientKnowsTheStandInsErrors(t *testing.T) {
	for status, is := range map[int]func(error) bool{
		400: wraps[*types.ValidationException], 403: wraps[*types.AccessDeniedException], 404: wraps[*types.ResourceNotFoundException],
		408: wraps[*types.ModelTimeoutException], 424: wraps[*types.ModelErrorException], 429: wraps[*types.ThrottlingException],
		500: wraps[*types.InternalServerException], 503: wraps[*types.ServiceUnavailableException],
	} {
		w := newWiretap(t)
		w.Config.Handler = stub(t, status)
		_, err := w.theirs().Converse(t.Context(), &bedrockruntime.ConverseInput{
			ModelId: aws.String("m"), Messages: []types.Message{{Role: "user", Content: []types.ContentBlock{text("hi")}}},
		})
		if !is(err) {
			t.Errorf("%d: the client reads %v", status, err)
		}
	}
}

// stub is a stand-in whose calls all fail with a status.
func stub(t *testing.T, status int) http.Handler {
	t.Helper()
	return must.Value(llmtest.New(llmtest.Config{Errors: map[int]float64{status: 1}}))(t)
}

func wraps[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}
