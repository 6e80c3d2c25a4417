package llm_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/redact"
	"pgregory.net/rapid"
)

// Whatever a conversation is, it is refused before it is sent, or the stand-in takes it, which is as strict as Bedrock
// about roles, texts and names.
func TestEveryConversationThatIsSentToBedrockHasItsForm(t *testing.T) {
	client := newClient(t, llm.Bedrock, llm.ProviderConfig{Model: "m", Region: "eu-central-1", APIKey: redact.NewSecret("k")})
	server := must.Value(llmtest.New(llmtest.Config{}))(t)
	pdf := mediaOf(t, llm.KindFile, llm.TypePDF)
	sent := 0
	rapid.Check(t, func(t *rapid.T) {
		r := &llm.Request{System: rapid.SampledFrom([]string{"", "brief"}).Draw(t, "system"), Context: rapid.SampledFrom([]string{"", "before"}).Draw(t, "context"), Prompt: "p"}
		if rapid.Bool().Draw(t, "tools") {
			r.Tools = []llm.Tool{{Name: "f"}}
			r.ToolChoice.Mode = rapid.SampledFrom([]llm.ToolMode{"", llm.ToolsAuto, llm.ToolsNone, llm.ToolsRequired}).Draw(t, "choice")
		}
		if rapid.Bool().Draw(t, "rejected") {
			r.Rejected, r.Complaint = "no", "again"
		}
		for range rapid.IntRange(0, 5).Draw(t, "messages") {
			m := llm.Message{Role: rapid.SampledFrom([]llm.Role{llm.RoleUser, llm.RoleUser, llm.RoleAssistant, llm.RoleTool, llm.RoleSystem}).Draw(t, "role"), Text: "text"}
			switch {
			case m.Role == llm.RoleTool:
				m.CallID = "c"
			case m.Role == llm.RoleAssistant && rapid.Bool().Draw(t, "calls"):
				m.Text, m.Calls = rapid.SampledFrom([]string{"", "text"}).Draw(t, "beside"), []llm.ToolCall{{ID: "c", Name: "f", Arguments: json.RawMessage(`{}`)}}
			case m.Role == llm.RoleUser && rapid.Bool().Draw(t, "parts"):
				m.Text, m.Parts = "", []llm.Part{{Text: "part"}}
				for range rapid.IntRange(0, 2).Draw(t, "documents") {
					document := *pdf
					document.Name = rapid.SampledFrom([]string{"", "a.pdf", "A", "a (2)", "ü_ü"}).Draw(t, "name")
					m.Parts = append(m.Parts, llm.Part{Media: &document})
				}
			}
			r.Messages = append(r.Messages, m)
		}
		p, err := client.Prepare(r)
		if err != nil {
			if e, ok := errors.AsType[*llm.Error](err); !ok || e.Reason != llm.ReasonInvalidRow {
				t.Fatalf("%v is no invalid row", err)
			}
			return
		}
		if p, err = p.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		server.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/model/m/converse", strings.NewReader(string(p.Sent()))))
		if sent++; w.Code != http.StatusOK {
			t.Fatalf("%s\nis answered %d %s", p.Sent(), w.Code, w.Body)
		}
	})
	if sent == 0 {
		t.Error("nothing was sent")
	}
}
