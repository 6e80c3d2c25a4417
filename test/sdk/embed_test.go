package sdk

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/bedrockruntime"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/redact"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/azure"
	openaioption "github.com/openai/openai-go/v3/option"
	"google.golang.org/genai"
)

var embedded = []string{"The tide comes in twice a day.", "Silence is \"the absence\" of sound."}

// embed has the stage's client embed the texts, and returns the request and the vectors.
func (w *wiretap) embed(t *testing.T, provider string, cfg llm.ProviderConfig) (ours wired, vectors [][]float32) {
	t.Helper()
	cfg.Task, cfg.Vectors.Dimensions = llm.TaskEmbed, 8
	cfg.APIKey = redact.NewSecret("sk-0123456789abcdef")
	client := must.Value(llm.NewProvider(provider, cfg))(t)
	defer client.Close()
	p := must.Value(client.Prepare(&llm.Request{Inputs: embedded}))(t)
	x := must.Value(client.Do(t.Context(), p))(t)
	for _, text := range x.Reply.Vectors {
		var vector []float32
		must.Do(t, json.Unmarshal([]byte(text), &vector))
		vectors = append(vectors, vector)
	}
	return w.sent[len(w.sent)-1], vectors
}

// agree checks that a provider's own client has sent the same as the stage, and read the same vectors.
func (w *wiretap) agree(t *testing.T, ours wired, vectors, theirs [][]float32) {
	t.Helper()
	sent := w.sent[len(w.sent)-1]
	if sent.path != ours.path {
		t.Errorf("their path is %s, ours %s", sent.path, ours.path)
	}
	same(t, ours.body, json.RawMessage(sent.body))
	for i, text := range embedded {
		if want := llmtest.Vector(text, 8); !slices.Equal(vectors[i], want) || !slices.Equal(theirs[i], want) {
			t.Errorf("text %d: we read %v, they %v, want %v", i, vectors[i], theirs[i], want)
		}
	}
}

func TestRequestsForVectorsAreTheProvidersOwn(t *testing.T) {
	ask := openai.EmbeddingNewParams{
		Model: "text-embedding-3-small", Dimensions: openai.Int(8), Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: embedded},
	}
	read := func(t *testing.T, reply *openai.CreateEmbeddingResponse, err error) (vectors [][]float32) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if reply.Usage.PromptTokens == 0 || reply.Usage.TotalTokens != reply.Usage.PromptTokens {
			t.Errorf("usage %+v", reply.Usage)
		}
		for _, data := range reply.Data {
			vectors = append(vectors, narrow(data.Embedding))
		}
		return vectors
	}
	t.Run("OpenAI", func(t *testing.T) {
		w := newWiretap(t)
		ours, vectors := w.embed(t, llm.OpenAI, llm.ProviderConfig{BaseURL: w.URL + "/v1", Model: ask.Model})
		client := openAI(w.URL)
		reply, err := client.Embeddings.New(t.Context(), ask)
		w.agree(t, ours, vectors, read(t, reply, err))
	})
	t.Run("Azure", func(t *testing.T) {
		w := newWiretap(t)
		ours, vectors := w.embed(t, llm.Azure, llm.ProviderConfig{BaseURL: w.URL, Model: ask.Model, AzureAPIVersion: "2024-10-21"})
		client := openai.NewClient(azure.WithUnsafeAllowHTTP(), azure.WithEndpoint(w.URL, "2024-10-21"), azure.WithAPIKey("sk-0123456789abcdef"), openaioption.WithMaxRetries(0))
		reply, err := client.Embeddings.New(t.Context(), ask)
		w.agree(t, ours, vectors, read(t, reply, err))
	})
	t.Run("Gemini", func(t *testing.T) {
		w := newWiretap(t)
		ours, vectors := w.embed(t, llm.Gemini, llm.ProviderConfig{BaseURL: w.URL + "/v1beta", Model: "gemini-embedding-001"})
		var contents []*genai.Content
		for _, text := range embedded {
			contents = append(contents, &genai.Content{Parts: []*genai.Part{{Text: text}}})
		}
		reply := must.Value(gemini(t, w.URL).Models.EmbedContent(t.Context(), "gemini-embedding-001", contents, &genai.EmbedContentConfig{OutputDimensionality: genai.Ptr[int32](8)}))(t)
		var theirs [][]float32
		for _, e := range reply.Embeddings {
			theirs = append(theirs, e.Values)
		}
		w.agree(t, ours, vectors, theirs)
	})
	// AWS's client takes the body as it is: it checks address and headers.
	t.Run("Bedrock", func(t *testing.T) {
		const model = "cohere.embed-v4:0"
		w := newWiretap(t)
		ours, vectors := w.embed(t, llm.Bedrock, llm.ProviderConfig{BaseURL: w.URL, Model: model})
		reply := must.Value(w.theirs().InvokeModel(t.Context(), &bedrockruntime.InvokeModelInput{ModelId: aws.String(model), Body: ours.body, ContentType: aws.String("application/json")}))(t)
		var body struct {
			Embeddings [][]float32 `json:"embeddings"`
		}
		must.Do(t, json.Unmarshal(reply.Body, &body))
		w.agree(t, ours, vectors, body.Embeddings)
	})
}

// narrow returns numbers as they were before they were widened.
func narrow(wide []float64) []float32 {
	vector := make([]float32, len(wide))
	for i, n := range wide {
		vector[i] = float32(n)
	}
	return vector
}
