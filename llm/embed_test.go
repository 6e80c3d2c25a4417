package llm

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
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

// TestRepliesWithVectors runs the replies of testdata/vectors, one file a wire format.
func TestRepliesWithVectors(t *testing.T) {
	datadriven.Walk(t, "testdata/vectors", func(t *testing.T, path string) {
		wire := wiresOfVectors[strings.TrimSuffix(filepath.Base(path), ".txt")]
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			format := VectorFormat{Base64: d.HasArg("base64")}
			d.MaybeScanArgs(t, "dimensions", &format.Dimensions)
			return judged(t, wire(format), d)
		})
	})
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
	client := newClient(t, OpenAI, ProviderConfig{APIKey: redact.NewSecret("sk-12345678"), Model: "m", Task: TaskEmbed})
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
	client := newClient(t, OpenAI, ProviderConfig{APIKey: redact.NewSecret("k"), Model: "m", Task: TaskEmbed})
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
