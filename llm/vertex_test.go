package llm

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm/redact"
)

// The forms of a model's name are those of Google's and Anthropic's clients: genai 1.77.0, transformer.go,
// and anthropic-sdk-go 1.84.0, vertex.go. The hosts are those of Google's page on locations.
func TestModelsAtVertex(t *testing.T) {
	const (
		global   = "https://aiplatform.googleapis.com/v1"
		mine     = global + "/projects/p/locations/global"
		europe   = "https://europe-west4-aiplatform.googleapis.com/v1/projects/p/locations/europe-west4"
		gemini   = "/publishers/google/models/gemini-2.5-flash:generateContent"
		claude   = "/publishers/anthropic/models/claude-sonnet-4-5@20250929:rawPredict"
		endpoint = "/endpoints/123:generateContent"
	)
	for _, tt := range []struct{ region, project, base, model, want string }{
		{"", "p", "", "gemini-2.5-flash", mine + gemini},
		{"global", "p", "", "google/gemini-2.5-flash", mine + gemini},
		{"us", "p", "", "models/gemini-2.5-flash", "https://aiplatform.us.rep.googleapis.com/v1/projects/p/locations/us" + gemini},
		{"eu", "p", "", "anthropic/claude-sonnet-4-5@20250929", "https://aiplatform.eu.rep.googleapis.com/v1/projects/p/locations/eu" + claude},
		{"europe-west4", "p", "", "publishers/google/models/gemini-2.5-flash", europe + gemini},
		{"europe-west4", "p", "", "publishers/anthropic/models/claude-sonnet-4-5@20250929", europe + claude},
		{"europe-west4", "p", "", "endpoints/123", europe + endpoint},
		{"europe-west4", "other", "", "projects/p/locations/europe-west4/endpoints/123", europe + endpoint},
		{"europe-west4", "other", "", "projects/p/locations/europe-west4/publishers/anthropic/models/claude-sonnet-4-5@20250929", europe + claude},
		{"", "", "", "gemini-2.5-flash", global + gemini}, // express mode
		{"", "p", "http://localhost:9000", "gemini-2.5-flash", "http://localhost:9000/v1/projects/p/locations/global" + gemini},
		{"", "", "http://localhost:9000/v1beta1/", "projects/p/locations/x/endpoints/123", "http://localhost:9000/v1beta1/projects/p/locations/x" + endpoint},

		{"", "p", "", "meta/llama-4", "base URL then ends in /endpoints/openapi"},
		{"", "p", "", "a/b/c", "write it as gemini-…, anthropic/claude-…"},
		{"", "p", "", "projects/p/models/m", "write it as gemini-…"},
		{"", "p", "", "projects/p/locations/global/models/m", "write it as gemini-…"},
		{"", "p", "", "google//gemini", "a part of its name is empty"},
		{"", "p", "", "projects/p/locations/europe-west4/endpoints/123", "it is in the region europe-west4, and calls go to global"},
		{"", "", "", "anthropic/claude", "models of Anthropic need a project"},
		{"", "", "", "endpoints/1", "an endpoint needs a project"},
	} {
		c, err := NewProvider(Vertex, ProviderConfig{BaseURL: tt.base, Region: tt.region, Project: tt.project, APIKey: redact.NewSecret("k"), Model: tt.model})
		var got string
		if err == nil {
			got = c.own.url.String()
		} else {
			got = err.Error()
		}
		if strings.HasPrefix(tt.want, "http") && got != tt.want || !strings.Contains(got, tt.want) {
			t.Errorf("%q in %q of %q asks %s, want %s", tt.model, tt.region, tt.project, got, tt.want)
		}
	}
}

// The model decides what is sent and how the reply is read, be it the client's own or a row's.
func TestOneClientSpeaksBothFormatsOfVertex(t *testing.T) {
	server := must.Value(llmtest.New(llmtest.Config{}))(t)
	pipe, stop := server.Pipe()
	defer stop()
	models := map[string]string{
		"gemini-2.5-flash":                     `{"contents":[{"role":"user","parts":[{"text":"hi"}]}]}`,
		"anthropic/claude-sonnet-4-5@20250929": `{"anthropic_version":"vertex-2023-10-16","max_tokens":4096,"messages":[{"role":"user","content":"hi"}]}`,
	}
	for own := range models {
		c := newClient(t, Vertex, ProviderConfig{
			BaseURL: pipe.URL(), DialContext: pipe.DialContext, Project: "p", Model: own, Auth: llmtest.Bearer("token"),
		})
		for model, want := range models {
			p := must.Value(c.Prepare(&Request{Model: model, Prompt: "hi"}))(t)
			x, err := c.Do(t.Context(), p)
			if err != nil {
				t.Fatalf("%s of a client of %s: %v", model, own, err)
			}
			if _, id, _ := strings.Cut(model, "/"); string(x.Request) != want || x.Reply.Usage == nil || id != "" && x.Reply.Model != id {
				t.Errorf("%s of a client of %s: sent %s, got %+v", model, own, x.Request, x.Reply)
			}
			// A reply that came by another way is read in the same format.
			if again, err := c.ReadReply(p, http.StatusOK, x.Response); err != nil || again.Reply.Text != x.Reply.Text {
				t.Errorf("%s of a client of %s: read again as %+v, %v", model, own, again.Reply, err)
			}
		}
		_, err := c.Prepare(&Request{Model: "meta/llama", Prompt: "hi"})
		if e, ok := errors.AsType[*Error](err); !ok || e.Class != Permanent || !strings.Contains(e.Error(), `model "meta/llama": models of the publisher "meta"`) {
			t.Errorf("a model of another publisher: %v", err)
		}
	}
}

// What a format has no place for depends on the model, before there is a client, too.
func TestChecksAtVertexFollowTheModel(t *testing.T) {
	p, _ := LookupProvider(Vertex)
	seed := &Options{Seed: new(int64)}
	if err := p.Check(&Request{Model: "gemini-2.5-flash", Options: seed}); err != nil {
		t.Error(err)
	}
	err := p.Check(&Request{Model: "anthropic/claude", Options: seed})
	if e, ok := errors.AsType[*Error](err); !ok || e.Reason != ReasonInvalidRow || !strings.Contains(e.Error(), `vertex: the request's member "seed" has no place`) {
		t.Error(err)
	}
	c := newClient(t, Vertex, ProviderConfig{Project: "p", Model: "gemini-2.5-flash", APIKey: redact.NewSecret("k")})
	tools := &Request{Prompt: "p", Model: "anthropic/claude", Keep: KeepToolCalls, Tools: []Tool{{Name: "f"}}, ExtraBody: json.RawMessage(`{"thinking":{"type":"adaptive"}}`)}
	prepared, err := c.Prepare(tools)
	if err != nil || !strings.Contains(string(prepared.Body), `"tools":[{"name":"f","input_schema":`) {
		t.Errorf("%s, %v", prepared.Body, err)
	}
}
