package llm

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm/redact"
)

var benchPrompt = strings.Repeat("Is this review good or bad? \"It broke after a day.\"\n", 20)

func BenchmarkAppendRequest(b *testing.B) {
	r := Request{Model: "gpt-4.1-mini", System: "Answer with one word.", Prompt: benchPrompt, Temperature: new(0.0), MaxTokens: new(16)}
	for name, w := range map[string]Wire{
		"chat": ChatCompletions{}, "responses": Responses{}, "messages": Messages{}, "gemini": GenerateContent{}, "converse": Converse{},
	} {
		b.Run("wire="+name, func(b *testing.B) {
			var dst []byte
			b.ReportAllocs()
			for b.Loop() {
				dst = w.AppendRequest(dst[:0], &r)
			}
			b.SetBytes(int64(len(dst)))
		})
	}
}

func BenchmarkPrepare(b *testing.B) {
	c := newClient(b, OpenAI, ProviderConfig{APIKey: redact.NewSecret("key"), Model: "m"})
	r := Request{System: "Answer with one word.", Prompt: benchPrompt}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Prepare(&r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParseReply(b *testing.B) {
	body := []byte(`{"id":"chatcmpl-B9MBs8","object":"chat.completion","created":1741569952,"model":"gpt-4.1","choices":[{"index":0,"message":{"role":"assistant","content":"` +
		strings.Repeat("Good. ", 60) + `","refusal":null,"annotations":[]},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29,"prompt_tokens_details":{"cached_tokens":0,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":0,"audio_tokens":0}},"service_tier":"default"}`)
	h := http.Header{"Content-Type": {"application/json"}}
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseReply(ChatCompletions{}, Known{}, now, 200, h, body); err != nil {
			b.Fatal(err)
		}
	}
}

// The numbers are those of what is returned: the reply and its four texts, the usage and two counts that may be unknown,
// and the outcome.
func TestAReplyIsReadWithFewAllocations(t *testing.T) {
	body := []byte(`{"id":"1","model":"m","choices":[{"message":{"content":"Bad."},"finish_reason":"stop"}],"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29,"prompt_tokens_details":{"cached_tokens":0},"completion_tokens_details":{"reasoning_tokens":0}}}`)
	const most = 9
	if n := testing.AllocsPerRun(100, func() {
		if _, err := ParseReply(ChatCompletions{}, Known{}, now, 200, nil, body); err != nil {
			t.Fatal(err)
		}
	}); n > most {
		t.Errorf("%v allocations, want at most %d", n, most)
	}
}

// BenchmarkDo is one call over loopback to a server that does next to nothing,
// so that time and allocations are the client's.
func BenchmarkDo(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // immediate
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go serveCanned(conn)
		}
	}()
	c := newClient(b, OpenAI, ProviderConfig{BaseURL: "http://" + l.Addr().String() + "/v1", Model: "m"})
	p := must.Value(c.Prepare(&Request{Prompt: benchPrompt}))(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Do(b.Context(), p); err != nil {
			b.Fatal(err)
		}
	}
}

// serveCanned answers every request on a connection alike, without allocating.
func serveCanned(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	const body = `{"id":"1","model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"Bad."},"finish_reason":"stop"}],"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29}}`
	reply := fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	r := bufio.NewReader(conn)
	length := 0
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return
		}
		if value, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			length, _ = strconv.Atoi(string(bytes.TrimSpace(value)))
		}
		if len(line) > len("\r\n") {
			continue
		}
		if _, err := io.CopyN(io.Discard, r, int64(length)); err != nil {
			return
		}
		if _, err := conn.Write(reply); err != nil {
			return
		}
	}
}
