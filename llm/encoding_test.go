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

func TestReplyThatIsNotUTF8IsMalformed(t *testing.T) {
	for _, row := range []struct{ name, body, contentType, message string }{
		{"in ISO 8859-1", latin1, "application/json", "byte 0xe9 at 38; a proxy"},
		{"with its charset", latin1, "application/json; charset=iso-8859-1", `at 38, its Content-Type says "iso-8859-1"; a proxy`},
		{"cut in a character", strings.ReplaceAll(coffee, "é", "\xe2\x82"), "", "byte 0xe2 at 38"},
		{"a surrogate in UTF-8", strings.ReplaceAll(coffee, "é", "\xed\xa0\x80"), "", "byte 0xed at 38"},
		{"in UTF-16", "\xff\xfe{\x00}\x00", "application/json", "byte 0xff at 0"},
		{"behind a mark", bom + latin1, "", "byte 0xe9 at 41"},
	} {
		h := http.Header{"Content-Type": {row.contentType}}
		r, err := ParseReply(ChatCompletions{}, Known{}, now, 200, h, []byte(row.body))
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Class != Transient || e.Reason != ReasonMalformedResponse || e.Origin != OfServer || e.Alike == "" ||
			!strings.Contains(err.Error(), row.message) {
			t.Errorf("%s: %v, want a malformed reply of the server, and %q", row.name, err, row.message)
			continue
		}
		if keys, ok := e.Facts["response_keys"]; !ok || strings.Contains(row.body, "usage") && len(keys.([]string)) != 2 {
			t.Errorf("%s: response_keys %v", row.name, keys)
		}
		if billed := strings.Contains(row.body, "usage"); r.Text != "" || billed != (r.Usage != nil) {
			t.Errorf("%s: reply %+v, want its usage alone", row.name, r)
		}
	}
}

func TestOtherVerdictsOnRepliesThatAreNotUTF8(t *testing.T) {
	for _, row := range []struct {
		name   string
		status int
		body   string
		reason Reason
		class  Class
	}{
		{"a page", 200, "<html><title>D\xe9sol\xe9</title></html>", ReasonInvalidJSONResponse, Transient},
		{"an error in a success", 200, "{\"error\":{\"message\":\"d\xe9sol\xe9\",\"code\":\"rate_limit_exceeded\"}}", ReasonAPICallFailed, Capacity},
		{"a refusal", 400, "{\"error\":{\"message\":\"d\xe9sol\xe9\"}}", ReasonAPICallFailed, Permanent},
	} {
		_, err := ParseReply(ChatCompletions{}, Known{}, now, row.status, nil, []byte(row.body))
		if e, ok := errors.AsType[*Error](err); !ok || e.Reason != row.reason || e.Class != row.class {
			t.Errorf("%s: %v, want %s of the class %v", row.name, err, row.reason, row.class)
		}
	}
}

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
		client := must.Value(NewProvider(OpenAI, ProviderConfig{BaseURL: server.URL, Model: "m"}))(t)
		p := must.Value(client.Prepare(&Request{Prompt: "p"}))(t)
		x, err := client.Do(t.Context(), p)
		if string(x.Response) != body || err == nil && x.Reply.Text != "café" {
			t.Errorf("sent %q, kept %q: %+v, %v", body, x.Response, x.Reply, err)
		}
		client.Close()
		server.Close()
	}
}
