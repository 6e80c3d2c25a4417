package llmtest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/llm-stage/stage/internal/lab/llmtest/batches"
)

// dialectOf returns the wire format of a path; OpenAI's for one that is no endpoint.
func dialectOf(path string) dialect {
	switch {
	case strings.HasSuffix(path, "/messages"):
		return anthropic{}
	case strings.HasSuffix(path, "/responses"):
		return responses{}
	case strings.HasSuffix(path, "/embeddings"):
		return embeddings{}
	case strings.HasSuffix(path, ":batchEmbedContents"):
		return geminiEmbeddings{}
	case strings.HasSuffix(path, ":embedContent"):
		return geminiEmbedding{}
	case strings.HasSuffix(path, ":predict"):
		return predict{}
	case strings.HasSuffix(path, ":rawPredict"):
		return vertexClaude{}
	case strings.HasSuffix(path, ":generateContent") && isVertex(path):
		return vertexGemini{}
	case strings.HasSuffix(path, ":generateContent"):
		return gemini{}
	case strings.HasSuffix(path, "/invoke"):
		return invoke{}
	case strings.HasSuffix(path, "/converse"):
		return converse{}
	}
	return openAI{}
}

// live answers the lines of batches as the endpoints answer calls.
type live struct{}

var _ batches.Live = live{}

func (live) Answer(path string, body []byte) batches.Reply {
	d := dialectOf(path)
	c := &call{Call: Call{Body: body}, path: path}
	if err := d.read(c); err != nil {
		return batches.Reply{Status: http.StatusBadRequest, Body: d.fault(failure{http.StatusBadRequest, err.Error()})}
	}
	if c.Inputs != nil {
		if c.dimensions == 0 {
			c.dimensions = dimensionsDefault
		}
		return batches.Reply{Status: http.StatusOK, Body: d.answer(c, ""), Prompt: int64(c.inputTokens())}
	}
	text := answer(c)
	prompt, completion := tokens(c, text)
	return batches.Reply{Status: http.StatusOK, Body: reply(d, c), Prompt: int64(prompt), Completion: int64(completion)}
}

func (live) Fault(path string, status int, message string) []byte {
	return dialectOf(path).fault(failure{status, message})
}

// responses is OpenAI's newer format.
type responses struct{}

func (responses) read(c *call) error {
	var v struct {
		Model        string          `json:"model"`
		Instructions string          `json:"instructions"`
		Input        json.RawMessage `json:"input"`
		Stream       bool            `json:"stream"`
		Text         struct {
			Format struct {
				Schema any `json:"schema"`
			} `json:"format"`
		} `json:"text"`
	}
	if err := json.Unmarshal(c.Body, &v); err != nil {
		return fmt.Errorf("body: %w", err)
	}
	c.Model, c.System, c.schema = v.Model, v.Instructions, v.Text.Format.Schema
	var messages []message
	if json.Unmarshal(v.Input, &messages) != nil {
		messages = []message{{Content: v.Input}} // a text
	}
	return c.finish(messages, v.Stream)
}

func (responses) answer(c *call, text string) []byte {
	prompt, completion := tokens(c, text)
	return fmt.Appendf(nil, `{"id":%s,"object":"response","created_at":1700000000,"status":"completed","error":null,`+
		`"incomplete_details":null,"instructions":null,"metadata":{},"parallel_tool_calls":true,"temperature":1,"top_p":1,`+
		`"tool_choice":"auto","tools":[],"access_programs":{"cyber":"standard"},"model":%s,"output":[{"type":"message","id":%s,"status":"completed","role":"assistant",`+
		`"content":[{"type":"output_text","text":%s,"annotations":[]}]}],"usage":{"input_tokens":%d,`+
		`"input_tokens_details":{"cached_tokens":0,"cache_write_tokens":0},"output_tokens":%d,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":%d}}`,
		encode(c.id("resp")), encode(c.Model), encode(c.id("msg")), encode(text), prompt, completion, prompt+completion)
}

func (responses) fault(f failure) []byte { return openAI{}.fault(f) }

// gemini is Gemini's generateContent. The model is in the path.
type gemini struct{}

// content is a turn of a conversation.
type content struct {
	Role  string `json:"role"`
	Parts []part `json:"parts"`
}

func (m content) turn() (turn, error) {
	t := turn{role: m.Role}
	return t, t.add(m.Parts)
}

func (gemini) read(c *call) error {
	var v struct {
		System   content   `json:"systemInstruction"`
		Contents []content `json:"contents"`
		Settings struct {
			Schema any `json:"responseJsonSchema"`
		} `json:"generationConfig"`
	}
	if err := json.Unmarshal(c.Body, &v); err != nil {
		return fmt.Errorf("body: %w", err)
	}
	_, model, _ := strings.Cut(c.path, "/models/")
	system, err := v.System.turn()
	if err != nil {
		return err
	}
	c.Model = cmp.Or(c.Model, strings.TrimSuffix(model, ":generateContent"))
	c.System, c.schema = system.text, v.Settings.Schema
	switch {
	case c.Model == "":
		return errNoModel
	case len(v.Contents) == 0:
		return errors.New("contents: at least one is required")
	}
	turns := make([]turn, len(v.Contents))
	for i, m := range v.Contents {
		if turns[i], err = m.turn(); err != nil {
			return err
		}
	}
	c.see(turns)
	return nil
}

func (gemini) answer(c *call, text string) []byte {
	prompt, completion := tokens(c, text)
	return fmt.Appendf(nil, `{"candidates":[{"content":{"parts":[{"text":%s}],"role":"model"},"finishReason":"STOP","index":0}],`+
		`"usageMetadata":{"promptTokenCount":%d,"candidatesTokenCount":%d,"totalTokenCount":%d},"modelVersion":%s,"responseId":%s}`,
		encode(text), prompt, completion, prompt+completion, encode(c.Model), encode(c.id("gemini")))
}

// geminiStatuses are the words for the statuses that have their own.
var geminiStatuses = map[int]string{
	http.StatusTooManyRequests:    "RESOURCE_EXHAUSTED",
	http.StatusUnauthorized:       "UNAUTHENTICATED",
	http.StatusForbidden:          "PERMISSION_DENIED",
	http.StatusNotFound:           "NOT_FOUND",
	http.StatusServiceUnavailable: "UNAVAILABLE",
	http.StatusGatewayTimeout:     "DEADLINE_EXCEEDED",
}

func (gemini) fault(f failure) []byte {
	kind := geminiStatuses[f.status]
	switch {
	case kind != "":
	case f.status < 500:
		kind = "INVALID_ARGUMENT"
	default:
		kind = "INTERNAL"
	}
	return fmt.Appendf(nil, `{"error":{"code":%d,"message":%s,"status":%q}}`, f.status, encode(f.message), kind)
}
