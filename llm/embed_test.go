package llm

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm/redact"
	"pgregory.net/rapid"
)

// wiresOfVectors are the wire formats of embeddings, by name.
var wiresOfVectors = map[string]func(VectorFormat) Wire{
	"openai": func(f VectorFormat) Wire { return Embeddings{VectorFormat: f} },
	"azure":  func(f VectorFormat) Wire { return Embeddings{Azure: true, VectorFormat: f} },
	"azure dated": func(f VectorFormat) Wire {
		return Embeddings{Azure: true, AzureAPIVersion: "2024-10-21", VectorFormat: f}
	},
	"gemini":  func(f VectorFormat) Wire { return BatchEmbedContents{f} },
	"vertex":  func(f VectorFormat) Wire { return Predict{VertexAI{Project: "p", Region: "europe-west4"}, f} },
	"bedrock": func(f VectorFormat) Wire { return InvokeEmbeddings{f} },
}

func TestRequestsForVectors(t *testing.T) {
	two := Request{Model: "m", Inputs: []string{"a \"quoted\" text", "b"}}
	for _, tt := range []struct {
		wire, path, body string
		format           VectorFormat
		request          Request
	}{
		{wire: "openai", request: two, path: "/embeddings", body: `{"model":"m","input":["a \"quoted\" text","b"]}`},
		{wire: "openai", request: Request{Model: "m", Prompt: "alone"}, path: "/embeddings", body: `{"model":"m","input":["alone"]}`},
		{
			wire: "openai", request: two, format: VectorFormat{Dimensions: 256, Base64: true}, path: "/embeddings",
			body: `{"model":"m","input":["a \"quoted\" text","b"],"dimensions":256,"encoding_format":"base64"}`,
		},
		{wire: "azure", request: two, path: "/openai/v1/embeddings", body: `{"model":"m","input":["a \"quoted\" text","b"]}`},
		{wire: "azure dated", request: two, path: "/openai/deployments/m/embeddings?api-version=2024-10-21", body: `{"model":"m","input":["a \"quoted\" text","b"]}`},
		{
			wire: "gemini", request: two, path: "/models/m:batchEmbedContents", body: `{"requests":[{"model":"models/m","content":{"parts":[{"text":"a \"quoted\" text"}]}},` +
				`{"model":"models/m","content":{"parts":[{"text":"b"}]}}]}`,
		},
		{ // the extra body belongs to each text
			wire: "gemini", request: Request{Model: "m", Prompt: "b", ExtraBody: json.RawMessage(`{"taskType":"RETRIEVAL_DOCUMENT"}`)}, format: VectorFormat{Dimensions: 8, Base64: true},
			path: "/models/m:batchEmbedContents", body: `{"requests":[{"model":"models/m","content":{"parts":[{"text":"b"}]},"outputDimensionality":8,"taskType":"RETRIEVAL_DOCUMENT"}]}`,
		},
		{
			wire: "vertex", request: Request{Model: "text-embedding-005", Inputs: []string{"a", "b"}, ExtraBody: json.RawMessage(`{"task_type":"RETRIEVAL_DOCUMENT","parameters":{"autoTruncate":false}}`)},
			format: VectorFormat{Dimensions: 256}, path: "/projects/p/locations/europe-west4/publishers/google/models/text-embedding-005:predict",
			body: `{"instances":[{"content":"a","task_type":"RETRIEVAL_DOCUMENT"},{"content":"b","task_type":"RETRIEVAL_DOCUMENT"}],"parameters":{"outputDimensionality":256,"autoTruncate":false}}`,
		},
		{ // Gemini's later models have embedContent alone
			wire: "vertex", request: Request{Model: "gemini-embedding-2", Prompt: "a", ExtraBody: json.RawMessage(`{"taskType":"CLUSTERING"}`)},
			format: VectorFormat{Dimensions: 256}, path: "/projects/p/locations/europe-west4/publishers/google/models/gemini-embedding-2:embedContent",
			body: `{"content":{"parts":[{"text":"a"}]},"outputDimensionality":256,"taskType":"CLUSTERING"}`,
		},
		{
			wire: "vertex", request: Request{Model: "gemini-embedding-001", Prompt: "a"}, path: "/projects/p/locations/europe-west4/publishers/google/models/gemini-embedding-001:predict",
			body: `{"instances":[{"content":"a"}]}`,
		},
		{
			wire: "bedrock", request: Request{Model: "amazon.titan-embed-text-v2:0", Prompt: "b"}, format: VectorFormat{Dimensions: 256},
			path: "/model/amazon.titan-embed-text-v2%3A0/invoke", body: `{"dimensions":256,"inputText":"b"}`,
		},
		{
			wire: "bedrock", request: Request{Model: "eu.cohere.embed-v4:0", Inputs: []string{"a", "b"}}, format: VectorFormat{Dimensions: 256},
			path: "/model/eu.cohere.embed-v4%3A0/invoke", body: `{"input_type":"search_document","output_dimension":256,"texts":["a","b"]}`,
		},
	} {
		wire := wiresOfVectors[tt.wire](tt.format)
		if got := wire.Path(tt.request.Model); got != tt.path {
			t.Errorf("%s: path %s, want %s", tt.wire, got, tt.path)
		}
		if got := string(wire.AppendRequest(nil, &tt.request)); got != tt.body {
			t.Errorf("%s: body\n%s\nwant\n%s", tt.wire, got, tt.body)
		}
	}
}

func TestRepliesWithVectors(t *testing.T) {
	const (
		usage  = `,"model":"m-1","usage":{"prompt_tokens":7,"total_tokens":7}}`
		one    = `{"object":"embedding","index":0,"embedding":[0.5, -1e-3]}`
		two    = `{"object":"embedding","index":1,"embedding":[1,2]}`
		packed = `{"index":0,"embedding":"AAAAPwAAgL8="}` // .5, -1
	)
	list := func(items ...string) string {
		return `{"object":"list","data":[` + strings.Join(items, ",") + `]` + usage
	}
	for _, tt := range []struct {
		what, wire, body string
		format           VectorFormat
		texts            int
		want             string // the vectors, separated by spaces
		problem          string
	}{
		{what: "in order", wire: "openai", texts: 2, body: list(one, two), want: `[0.5,-1e-3] [1,2]`},
		{what: "by index", wire: "openai", texts: 2, body: list(two, one), want: `[0.5,-1e-3] [1,2]`},
		{what: "without index", wire: "openai", texts: 2, body: list(`{"embedding":[1]}`, `{"embedding":[2]}`), want: `[1] [2]`},
		{what: "to base64", wire: "openai", texts: 1, format: VectorFormat{Base64: true}, body: list(`{"index":0,"embedding":[0.5,-1]}`), want: `"AAAAPwAAgL8="`},
		{what: "in base64", wire: "openai", texts: 1, format: VectorFormat{Base64: true}, body: list(packed), want: `"AAAAPwAAgL8="`},
		{what: "from base64", wire: "openai", texts: 1, body: list(packed), want: `[0.5,-1]`},
		{what: "dimensions", wire: "openai", texts: 2, format: VectorFormat{Dimensions: 2}, body: list(one, two), want: `[0.5,-1e-3] [1,2]`},
		{what: "Gemini", wire: "gemini", texts: 2, body: `{"embeddings":[{"values":[1,
			2]},{"values":[3,4]}],"usageMetadata":{"promptTokenCount":7}}`, want: `[1,2] [3,4]`},
		{what: "a line of Gemini's", wire: "gemini", texts: 0, body: `{"tokenCount":7,"embedding":{"values":[1,2]}}`, want: `[1,2]`},
		{
			what: "Vertex AI", wire: "vertex", texts: 2, body: `{"predictions":[{"embeddings":{"values":[1,2],"statistics":{"truncated":false,"token_count":3}}},` +
				`{"embeddings":{"statistics":{"token_count":4},"values":[3,4]}}],"metadata":{"billableCharacterCount":9}}`, want: `[1,2] [3,4]`,
		},
		{what: "Gemini's later models at Vertex AI", wire: "vertex", texts: 0, body: `{"embedding":{"values":[1,2]},"usageMetadata":{"promptTokenCount":7,"totalTokenCount":7},"truncated":false}`, want: `[1,2]`},
		{what: "Titan", wire: "bedrock", texts: 0, body: `{"embedding":[1,2],"inputTextTokenCount":7}`, want: `[1,2]`},
		{what: "Cohere", wire: "bedrock", texts: 2, body: `{"embeddings":[[1,2],[3,4]],"id":"x","response_type":"embeddings_floats","texts":["a","b"]}`, want: `[1,2] [3,4]`},
		{what: "Cohere, by type", wire: "bedrock", texts: 2, body: `{"embeddings":{"float":[[1,2],[3,4]]},"response_type":"embeddings_by_type"}`, want: `[1,2] [3,4]`},

		{what: "too few", wire: "openai", texts: 2, body: list(one), problem: "the reply has 1 vectors for 2 texts"},
		{what: "too many", wire: "openai", texts: 1, body: list(one, two), problem: "the reply has 2 vectors for 1 texts"},
		{what: "none", wire: "openai", texts: 1, body: list(), problem: "the reply has 0 vectors for 1 texts"},
		{what: "twice", wire: "openai", texts: 2, body: list(one, one), problem: "the reply has two vectors for text 1"},
		{what: "beyond", wire: "openai", texts: 2, body: list(one, `{"index":2,"embedding":[1,2]}`), problem: "the reply has a vector with the index 2, and the call has 2 texts, from 0"},
		{what: "negative", wire: "openai", texts: 2, body: list(one, `{"index":-1,"embedding":[1,2]}`), problem: `the index "-1" of a vector in the reply is not the number of a text, from 0`},
		{what: "a text", wire: "openai", texts: 1, body: list(`{"index":"0","embedding":[1,2]}`), problem: `the index "\"0\"" of a vector in the reply is not the number of a text, from 0`},
		{what: "null", wire: "openai", texts: 2, body: list(`{"index":0,"embedding":null}`, two), problem: "the vector of text 1 is missing"},
		{what: "empty", wire: "openai", texts: 1, body: list(`{"index":0,"embedding":[]}`), problem: "the vector of text 1 is empty"},
		{what: "uneven", wire: "openai", texts: 2, body: list(one, `{"index":1,"embedding":[1]}`), problem: "the vector of text 2 has 1 dimensions in place of 2"},
		{what: "too large", wire: "openai", texts: 1, body: list(`{"index":0,"embedding":[0,1e999]}`), problem: `the vector of text 1 has "1e999" at 1, which is no finite number`},
		{what: "too large for 32 bits", wire: "openai", texts: 1, body: list(`{"index":0,"embedding":[1e39]}`), problem: `the vector of text 1 has "1e39" at 0, which is no finite number`},
		{what: "a null within", wire: "openai", texts: 1, body: list(`{"index":0,"embedding":[1,null]}`), problem: `the vector of text 1 has "null" at 1, which is no finite number`},
		{what: "NaN", wire: "openai", texts: 1, body: list(`{"index":0,"embedding":"AADAfw=="}`), problem: "the vector of text 1 has NaN at 0, which is no finite number"},
		{what: "no base64", wire: "openai", texts: 1, body: list(`{"index":0,"embedding":"AADAf"}`), problem: "the vector of text 1 is a string, but not the base64 of 32-bit floats"},
		{what: "Gemini, too few", wire: "gemini", texts: 2, body: `{"embeddings":[{"values":[1,2]}]}`, problem: "the reply has 1 vectors for 2 texts"},
		{what: "a chat completion", wire: "openai", texts: 1, body: `{"id":"x","choices":[]}`, problem: `reply is not of the provider's format: it has the members ["id" "choices"]; check the provider and the base URL`},
	} {
		t.Run(tt.what, func(t *testing.T) {
			h := http.Header{}
			if strings.HasPrefix(tt.what, "Cohere") {
				h.Set(tokenCountHeader, "7")
			}
			r, err := ParseReply(wiresOfVectors[tt.wire](tt.format), Known{Inputs: tt.texts}, now, http.StatusOK, h, []byte(tt.body))
			if tt.problem != "" {
				e, ok := errors.AsType[*Error](err)
				if !ok || e.Err.Error() != tt.problem || e.Class != Transient || e.Reason != ReasonMalformedResponse || e.Origin != OfRequest {
					t.Errorf("got %v (%+v), want %q", err, e, tt.problem)
				}
				if tt.wire == "openai" && tt.what != "a chat completion" && (r.Usage == nil || r.Usage.TotalTokens != 7) {
					t.Errorf("usage %+v: it is billed all the same", r.Usage)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(r.Vectors, " "); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			if len(r.Vectors) == 1 && r.Text != r.Vectors[0] || r.Usage == nil {
				t.Errorf("text %q, usage %+v", r.Text, r.Usage)
			}
			if u := r.Usage; u != nil && (u.PromptTokens != 7 || u.CompletionTokens != 0 || u.TotalTokens != 7) {
				t.Errorf("usage %+v", u)
			}
		})
	}
}

// A model that ignores the number of dimensions is the settings' failure until a call has
// succeeded: split calls would be paid for again and again.
func TestOtherDimensionsThanWereAskedFor(t *testing.T) {
	body := []byte(`{"data":[{"index":0,"embedding":[1,2]},{"index":1,"embedding":[1,2]}]}`)
	for proven, want := range map[bool]Class{false: Fatal, true: Transient} {
		_, err := ParseReply(Embeddings{VectorFormat: VectorFormat{Dimensions: 3}}, Known{Inputs: 2, Proven: proven}, now, http.StatusOK, http.Header{}, body)
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Class != want || e.Reason != ReasonMalformedResponse || e.Origin != OfRequest {
			t.Errorf("proven %v: got %+v, want %v", proven, err, want)
		}
		if text := "the vector of text 1 has 2 dimensions in place of 3 (the model may have no choice: leave the number of dimensions unset)"; e.Err.Error() != text {
			t.Errorf("got %v, want %s", e.Err, text)
		}
	}
}

// A vector is the same whichever way it takes: as numbers or as base64, and converted from
// one to the other and back.
func TestVectorsSurviveTheirForms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		raw := must.Value(json.Marshal(rapid.SliceOfN(rapid.Float32(), 1, 20).Draw(t, "vector")))(t)
		packed, n, err := VectorFormat{Base64: true}.convert(raw)
		if err != nil {
			t.Fatal(err)
		}
		numbers, m, err := VectorFormat{}.convert([]byte(packed))
		if err != nil || m != n {
			t.Fatal(m, n, err)
		}
		again, _, err := VectorFormat{Base64: true}.convert([]byte(numbers))
		if err != nil || again != packed {
			t.Errorf("%s became %s, then %s, then %s, %v", raw, packed, numbers, again, err)
		}
	})
}

// The audit has the vectors of a call once: in the results. A secret in a vector's place
// is removed all the same.
func TestTheVectorsOfAReplyAreLeftOutOfTheExchange(t *testing.T) {
	client := must.Value(NewProvider(OpenAI, ProviderConfig{APIKey: redact.NewSecret("sk-12345678"), Model: "m", Task: TaskEmbed}))(t)
	p := must.Value(client.Prepare(&Request{Inputs: []string{"a", "b"}}))(t)
	body := `{"data":[{"embedding":[1, 2, 3],"index":0},{"index":1,"embedding":"AAAAPwAAgL8AAAA/"}],"model":"sk-12345678"}`
	x := must.Value(client.ReadReply(p, http.StatusOK, []byte(body)))(t)
	if want := `{"data":[{"embedding":{"dimensions":3},"index":0},{"index":1,"embedding":{"base64_bytes":16}}],"model":"[redacted]"}`; string(x.Response) != want {
		t.Errorf("got  %s\nwant %s", x.Response, want)
	}
	if got := strings.Join(x.Reply.Vectors, " "); got != "[1,2,3] [0.5,-1,0.5]" {
		t.Errorf("vectors %s", got)
	}
}

func TestWhatCanNotBeEmbedded(t *testing.T) {
	client := must.Value(NewProvider(OpenAI, ProviderConfig{APIKey: redact.NewSecret("k"), Model: "m", Task: TaskEmbed}))(t)
	for want, r := range map[string]Request{
		"openai: the text to embed is empty":                                               {Inputs: []string{"a", ""}},
		"openai: a conversation can't be embedded, only a text":                            {Messages: []Message{{Role: RoleUser, Text: "a"}}},
		"openai: a system prompt or a context can't be embedded: make it part of the text": {System: "s", Prompt: "a"},
		"openai: extra body: \"input\" is set by the stage; set Request.Prompt":            {Prompt: "a", ExtraBody: json.RawMessage(`{"input":"b"}`)},
	} {
		if _, err := client.Prepare(&r); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	_, err := NewProvider(Anthropic, ProviderConfig{APIKey: redact.NewSecret("k"), Model: "m", Task: TaskEmbed})
	if err == nil || !strings.Contains(err.Error(), "Task: anthropic has no embeddings; use one of openai, openrouter, azure, gemini") {
		t.Errorf("got %v", err)
	}
}
