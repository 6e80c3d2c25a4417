package llm

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest/must"
)

const (
	bom = "\ufeff"
	// coffee is a whole reply whose answer has a character beyond ASCII.
	coffee = `{"choices":[{"message":{"content":"café"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":2}}`
)

// latin1 is coffee as a gateway sends it that encodes again.
var latin1 = strings.ReplaceAll(coffee, "é", "\xe9")

// A lone surrogate in an escape has no character. The reply is whole, so the answer stands with U+FFFD in its place.
func TestLoneSurrogateIsReplaced(t *testing.T) {
	body := strings.ReplaceAll(coffee, "é", `\ud83d`)
	if r, err := ParseReply(ChatCompletions{}, Known{}, now, 200, nil, []byte(body)); err != nil || r.Text != "caf\ufffd" {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestByteOrderMarkBeforeAReplyIsIgnored(t *testing.T) {
	for w, body := range answersOf(t, "café", true) {
		if r, err := ParseReply(w, Known{}, now, 200, nil, append([]byte(bom), body...)); err != nil || r.Text != "café" {
			t.Errorf("%T: %+v, %v", w, r, err)
		}
	}
	_, err := ParseReply(ChatCompletions{}, Known{}, now, 400, nil, []byte(bom+`{"error":{"message":"too long","code":"context_length_exceeded"}}`))
	if e, ok := errors.AsType[*Error](err); !ok || e.Code != "context_length_exceeded" {
		t.Errorf("an error behind a mark: %v", err)
	}
	_, err = ParseReply(ChatCompletions{}, Known{}, now, 200, nil, []byte(bom+bom+coffee)) // one mark
	if e, ok := errors.AsType[*Error](err); !ok || e.Reason != ReasonInvalidJSONResponse {
		t.Errorf("two marks: %v", err)
	}
}

// The audit gets the bytes that the provider sent.
func TestExchangeHasTheBytesOfTheProvider(t *testing.T) {
	for _, body := range []string{bom + coffee, latin1, strings.ReplaceAll(coffee, "café", "<think>x</think>café")} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(body)) }))
		client := newClient(t, OpenAI, ProviderConfig{BaseURL: server.URL, Model: "m"})
		p := must.Value(client.Prepare(&Request{Prompt: "p"}))(t)
		x, err := client.Do(t.Context(), p)
		if string(x.Response) != body || err == nil && x.Reply.Text != "café" {
			t.Errorf("sent %q, kept %q: %+v, %v", body, x.Response, x.Reply, err)
		}
		server.Close()
	}
}
