package llmtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// invoke is Bedrock's InvokeModel, for models that make vectors: Cohere's, and Titan.
type invoke struct{ converse }

func (invoke) read(c *call) error {
	var v struct {
		Text       *string  `json:"inputText"`
		Dimensions int      `json:"dimensions"`
		Texts      []string `json:"texts"`
		Type       string   `json:"input_type"`
		Output     int      `json:"output_dimension"`
	}
	if err := json.Unmarshal(c.Body, &v); err != nil {
		return fmt.Errorf("body: %w", err)
	}
	_, model, _ := strings.Cut(c.path, "/model/")
	c.Model, _ = url.PathUnescape(strings.TrimSuffix(model, "/invoke"))
	switch {
	case v.Text != nil:
		return c.embed([]string{*v.Text}, v.Dimensions)
	case v.Type == "":
		return errors.New("input_type: required")
	}
	return c.embed(v.Texts, v.Output)
}

func (invoke) answer(c *call, _ string) []byte {
	all := c.vectorsOf().all
	if strings.Contains(c.Model, "titan") {
		dst := append([]byte(`{"embedding":`), all[0]...)
		return fmt.Appendf(dst, `,"inputTextTokenCount":%d}`, c.inputTokens())
	}
	dst := []byte(`{"id":"embed","response_type":"embeddings_floats","embeddings":[`)
	for i, vector := range all {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, vector...)
	}
	return append(dst, "]}"...)
}

// writeHeader adds the tokens, which Cohere's replies lack.
func (d invoke) writeHeader(h http.Header, c *call, f failure) {
	d.converse.writeHeader(h, c, f)
	if f.status == http.StatusOK {
		h.Set("X-Amzn-Bedrock-Input-Token-Count", strconv.Itoa(c.inputTokens()))
	}
}
