package llmtest

import (
	"encoding/json"
	"fmt"
)

// predict is Vertex AI's predict, for models that make vectors. The model is in the path.
type predict struct{ gemini }

func (predict) read(c *call) error {
	var v struct {
		Instances []struct {
			Content string `json:"content"`
		} `json:"instances"`
		Parameters struct {
			Dimensions int `json:"outputDimensionality"`
		} `json:"parameters"`
	}
	if err := json.Unmarshal(c.Body, &v); err != nil {
		return fmt.Errorf("body: %w", err)
	}
	c.Model = vertexID(c.path)
	texts := make([]string, len(v.Instances))
	for i, one := range v.Instances {
		texts[i] = one.Content
	}
	return c.embed(texts, v.Parameters.Dimensions)
}

func (predict) answer(c *call, _ string) []byte {
	dst := []byte(`{"predictions":[`)
	for i, vector := range c.vectorsOf().all {
		if i > 0 {
			dst = append(dst, ',')
		}
		tokens := textTokens(c.Inputs[min(i, len(c.Inputs)-1)])
		dst = fmt.Appendf(dst, `{"embeddings":{"statistics":{"token_count":%d,"truncated":false},"values":%s}}`, tokens, vector)
	}
	return append(dst, "]}"...)
}
