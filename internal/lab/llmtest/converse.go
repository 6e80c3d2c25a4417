package llmtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
)

// converse is the Converse API of Amazon Bedrock. The model is in the path. As Bedrock it
// refuses roles that do not alternate, a document without a text or with the name of
// another, and calls of tools without the tools. A guardrail stops every prompt that
// contains its identifier.
type converse struct{}

// block is a part of a message of Converse.
type block struct {
	Text     *string `json:"text"`
	Image    *medium `json:"image"`
	Document *medium `json:"document"`
	Audio    *medium `json:"audio"`
	Call     *struct {
		ID string `json:"toolUseId"`
	} `json:"toolUse"`
	Result *struct {
		ID      string  `json:"toolUseId"`
		Content []block `json:"content"`
	} `json:"toolResult"`
	CachePoint *struct{} `json:"cachePoint"`
}

// medium is a picture, a document or a sound.
type medium struct {
	Format string `json:"format"`
	Name   string `json:"name"`
	Source struct {
		Bytes string `json:"bytes"`
	} `json:"source"`
}

// documentName is what Bedrock takes as the name of a document.
var documentName = regexp.MustCompile(`^[A-Za-z0-9()\[\]-]+( [A-Za-z0-9()\[\]-]+)*$`)

func (converse) read(c *call) error {
	var v struct {
		System    []block `json:"system"`
		Guardrail *struct {
			ID string `json:"guardrailIdentifier"`
		} `json:"guardrailConfig"`
		Messages []struct {
			Role    string  `json:"role"`
			Content []block `json:"content"`
		} `json:"messages"`
		Tools *struct{} `json:"toolConfig"`
		Out   struct {
			Text struct {
				Structure struct {
					Schema struct {
						Text string `json:"schema"`
					} `json:"jsonSchema"`
				} `json:"structure"`
			} `json:"textFormat"`
		} `json:"outputConfig"`
	}
	if err := json.Unmarshal(c.Body, &v); err != nil {
		return fmt.Errorf("body: %w", err)
	}
	_, model, _ := strings.Cut(c.path, "/model/")
	if c.Model = strings.TrimSuffix(model, "/converse"); c.Model == "" {
		return errors.New("The provided model identifier is invalid.") //nolint:revive,staticcheck // Bedrock's words
	}
	if text := v.Out.Text.Structure.Schema.Text; text != "" {
		if err := json.Unmarshal([]byte(text), &c.schema); err != nil {
			return fmt.Errorf("outputConfig: schema: %w", err)
		}
	}
	for _, b := range v.System {
		if b.Text != nil {
			c.System += *b.Text
		}
	}
	if len(v.Messages) == 0 {
		return errNoMessages
	}
	names := make(map[string]bool)
	turns := make([]turn, len(v.Messages))
	for i, m := range v.Messages {
		if want := [...]string{"user", "assistant"}[i%2]; m.Role != want {
			return fmt.Errorf("messages: roles must alternate between user and assistant: message %d is of %q", i+1, m.Role)
		}
		var err error
		if turns[i], err = readBlocks(m.Role, m.Content, names, v.Tools != nil); err != nil {
			return fmt.Errorf("messages: message %d: %w", i+1, err)
		}
	}
	c.see(turns)
	c.stopped = v.Guardrail != nil && strings.Contains(c.Prompt, v.Guardrail.ID)
	return nil
}

// readBlocks reads the content of a message. names are those of the documents before it.
func readBlocks(role string, blocks []block, names map[string]bool, tools bool) (turn, error) {
	t := turn{role: role}
	text, document := false, false
	for _, b := range blocks {
		switch {
		case b.Text != nil:
			if strings.TrimSpace(*b.Text) == "" {
				return t, errors.New("the text field in the ContentBlock object is blank")
			}
			t.text += *b.Text
			text = true
			continue
		case b.Call != nil, b.Result != nil:
			if !tools {
				return t, errors.New("the toolConfig field must be defined when using toolUse and toolResult content blocks")
			}
			continue
		case b.CachePoint != nil:
			continue
		}
		kind, m := "image/", b.Image
		switch {
		case b.Document != nil:
			kind, m, document = "application/", b.Document, true
			if !documentName.MatchString(m.Name) {
				return t, fmt.Errorf("the document has the name %q", m.Name)
			}
			name := strings.ToLower(m.Name)
			if names[name] {
				return t, errors.New("Messages can't contain duplicate document names.") //nolint:revive,staticcheck // Bedrock's words
			}
			names[name] = true
		case b.Audio != nil:
			kind, m = "audio/", b.Audio
		}
		if m == nil {
			return t, errors.New("a content block is of an unknown kind")
		}
		seen, err := encoded(kind+m.Format, m.Source.Bytes)
		if err != nil {
			return t, err
		}
		t.media = append(t.media, seen)
	}
	switch {
	case len(blocks) == 0:
		return t, errors.New("the content field is empty")
	case document && !text:
		return t, errors.New("the text field is required when using documents")
	}
	return t, nil
}

func (converse) answer(c *call, text string) []byte {
	end := "end_turn"
	if c.stopped {
		end, text = "guardrail_intervened", "The guardrail has stopped this."
	}
	prompt, completion := tokens(c, text)
	return fmt.Appendf(nil, `{"metrics":{"latencyMs":1},"output":{"message":{"content":[{"text":%s}],"role":"assistant"}},"stopReason":%q,`+
		`"usage":{"inputTokens":%d,"outputTokens":%d,"totalTokens":%d}}`, encode(text), end, prompt, completion, prompt+completion)
}

// converseFaults are the exceptions of the statuses that have their own.
var converseFaults = map[int]string{
	http.StatusTooManyRequests:    "ThrottlingException",
	http.StatusUnauthorized:       "UnrecognizedClientException",
	http.StatusForbidden:          "AccessDeniedException",
	http.StatusNotFound:           "ResourceNotFoundException",
	http.StatusRequestTimeout:     "ModelTimeoutException",
	http.StatusFailedDependency:   "ModelErrorException",
	http.StatusServiceUnavailable: "ServiceUnavailableException",
}

// exception is the name of a failure, which is in a header.
func (converse) exception(f failure) string {
	switch kind := converseFaults[f.status]; {
	case kind != "":
		return kind
	case f.status < 500:
		return "ValidationException"
	}
	return "InternalServerException"
}

func (converse) fault(f failure) []byte {
	return fmt.Appendf(nil, `{"message":%s}`, encode(f.message))
}

// writeHeader adds what AWS has in the headers of a reply: the id of the request, and the
// name of a failure.
func (d converse) writeHeader(h http.Header, c *call, f failure) {
	h.Set("X-Amzn-Requestid", c.id("bedrock"))
	if f.status >= 400 {
		h.Set("X-Amzn-Errortype", d.exception(f)+":http://internal.amazon.com/coral/com.amazon.bedrock/")
	}
}

// readConverse reads what a request asks for beside the answer.
func (p *parts) readConverse(request object) {
	calling, _ := request["toolConfig"].(object)
	list, _ := calling["tools"].([]any)
	var tools []any
	for _, one := range list {
		tools = append(tools, object{"name": at(one, "toolSpec", "name"), "schema": at(one, "toolSpec", "inputSchema", "json")})
	}
	p.readTools(tools, "schema", at(calling, "toolChoice", "any") != nil, at(calling, "toolChoice", "tool", "name"))
	fields := request["additionalModelRequestFields"]
	thinking := at(fields, "thinking", "type")
	p.reasoning = thinking == "enabled" || thinking == "adaptive" || at(request, "outputConfig", "effort") != nil ||
		at(fields, "reasoning_effort") != nil || at(fields, "reasoning") != nil || at(fields, "reasoningConfig", "type") == "enabled"
}

func writeConverse(p *parts, c *call, _ string, into object) {
	message, _ := at(into, "output", "message").(object)
	content, _ := message["content"].([]any)
	if p.tool != "" {
		into["stopReason"] = "tool_use"
		content = []any{object{"toolUse": object{"toolUseId": c.id("tooluse"), "name": p.tool, "input": p.arguments(c)}}}
	}
	if p.reasoning {
		content = append([]any{object{"reasoningContent": object{"reasoningText": object{"text": thoughts(c), "signature": "c2lnbmF0dXJl"}}}}, content...)
	}
	message["content"] = content
}
