package llmtest

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Limits of embeddings, as providers have them.
const (
	textsMax      = 2048 // in one call
	textTokensMax = 8192 // in one text
)

// dimensionsDefault is how many numbers a vector has where nobody says.
const dimensionsDefault = 256

// VectorFault is what can be wrong with a reply of embeddings whose status is 200.
type VectorFault string

// The faults of [Config.VectorFaults].
const (
	FewerVectors    VectorFault = "fewer"    // the last text has no vector
	MoreVectors     VectorFault = "more"     // one vector too many
	ShuffledVectors VectorFault = "shuffled" // the last comes first; where there is an index it is right
	TwiceVectors    VectorFault = "twice"    // the index of the first stands at the second, too
	NullVector      VectorFault = "null"     // in the place of the first
	HugeVector      VectorFault = "huge"     // its first number is 1e999
	ShortVector     VectorFault = "short"    // the last has a number less
)

var vectorFaults = []VectorFault{FewerVectors, MoreVectors, ShuffledVectors, TwiceVectors, NullVector, HugeVector, ShortVector}

// ParseVectorFaults reads shares of vector faults: "fewer=.01,null=.02".
func ParseVectorFaults(s string) (map[VectorFault]float64, error) {
	shares := make(map[VectorFault]float64)
	err := parseList(s, "=", func(part, name, share string) error {
		n, err := strconv.ParseFloat(share, 64)
		if err != nil || !slices.Contains(vectorFaults, VectorFault(name)) {
			return fmt.Errorf("%q: want a fault and its share, such as fewer=.1; faults are %v", part, vectorFaults)
		}
		shares[VectorFault(name)] = n
		return nil
	})
	if len(shares) == 0 {
		shares = nil
	}
	return shares, err
}

// drawFault draws what is wrong with the reply to a call, or "".
func (c *Config) drawFault(luck float64) VectorFault {
	for _, fault := range slices.Sorted(maps.Keys(c.VectorFaults)) {
		if luck -= c.VectorFaults[fault]; luck < 0 {
			return fault
		}
	}
	return ""
}

// Vector is the vector of a text, of unit length: the same at all times, and another one
// for another text.
func Vector(text string, dimensions int) []float32 {
	state := hash(text)
	vector := make([]float32, dimensions)
	length := 0.0
	for i := range vector {
		state = state*6364136223846793005 + 1442695040888963407
		n := float64(int32(state>>32)) / (1 << 31)
		vector[i] = float32(n)
		length += n * n
	}
	for i := range vector {
		vector[i] = float32(float64(vector[i]) / math.Sqrt(length))
	}
	return vector
}

// vectors are those of a call's texts, as a reply has them.
type vectors struct {
	index []int
	all   []json.RawMessage
}

// vectorsOf makes the vectors of a call, and its fault.
func (c *call) vectorsOf() vectors {
	var v vectors
	add := func(index int, text string, dimensions int) {
		v.index = append(v.index, index)
		v.all = append(v.all, appendVector(nil, Vector(text, dimensions), c.base64))
	}
	for i, text := range c.Inputs {
		add(i, text, c.dimensions)
	}
	last := len(v.all) - 1
	switch c.fault {
	case FewerVectors:
		v.index, v.all = v.index[:last], v.all[:last]
	case MoreVectors:
		add(last+1, "one too many", c.dimensions)
	case ShuffledVectors:
		v.index = append([]int{last}, v.index[:last]...)
		v.all = append([]json.RawMessage{v.all[last]}, v.all[:last]...)
	case TwiceVectors:
		if last > 0 {
			v.index[1] = v.index[0]
		}
	case NullVector:
		v.all[0] = json.RawMessage("null")
	case HugeVector:
		if !c.base64 {
			_, rest, _ := strings.Cut(string(v.all[0]), ",")
			v.all[0] = json.RawMessage("[1e999," + rest)
		} else {
			v.all[0] = appendVector(nil, []float32{float32(math.Inf(1))}, true)
		}
	case ShortVector:
		v.all[last] = appendVector(nil, Vector(c.Inputs[last], max(2, c.dimensions)-1), c.base64)
	}
	return v
}

func appendVector(dst []byte, vector []float32, inBase64 bool) []byte {
	if inBase64 {
		var bits []byte
		for _, n := range vector {
			bits = binary.LittleEndian.AppendUint32(bits, math.Float32bits(n))
		}
		return append(append(append(dst, '"'), base64.StdEncoding.EncodeToString(bits)...), '"')
	}
	dst = append(dst, '[')
	for i, n := range vector {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendFloat(dst, float64(n), 'g', -1, 32)
	}
	return append(dst, ']')
}

// embed checks the texts of a call.
func (c *call) embed(texts []string, dimensions int) error {
	c.Inputs, c.dimensions = texts, dimensions
	switch {
	case c.Model == "":
		return errNoModel
	case len(texts) == 0:
		return errors.New("input: at least one text is required")
	case len(texts) > textsMax:
		return fmt.Errorf("input: %d texts: at most %d are allowed", len(texts), textsMax)
	case dimensions < 0:
		return errors.New("dimensions: want a number from 1")
	}
	for _, text := range texts {
		switch tokens := textTokens(text); {
		case text == "":
			return errors.New("input: a text cannot be an empty string")
		case tokens > textTokensMax:
			return fmt.Errorf("this model's maximum input is %d tokens, and a text has %d", textTokensMax, tokens)
		}
		c.Prompt += text
	}
	return nil
}

func textTokens(text string) int { return len(text)/4 + 1 }

// inputTokens are the tokens of all texts.
func (c *call) inputTokens() (n int) {
	for _, text := range c.Inputs {
		n += textTokens(text)
	}
	return n
}

// embeddings is OpenAI's format of embeddings.
type embeddings struct{}

func (embeddings) read(c *call) error {
	var v struct {
		Model      string          `json:"model"`
		Input      json.RawMessage `json:"input"`
		Dimensions int             `json:"dimensions"`
		Encoding   string          `json:"encoding_format"`
	}
	if err := json.Unmarshal(c.Body, &v); err != nil {
		return fmt.Errorf("body: %w", err)
	}
	var texts []string
	var one string
	if json.Unmarshal(v.Input, &one) == nil {
		texts = []string{one}
	} else if err := json.Unmarshal(v.Input, &texts); err != nil {
		return errors.New("input: want a text or a list of texts")
	}
	c.Model, c.base64 = v.Model, v.Encoding == "base64"
	return c.embed(texts, v.Dimensions)
}

func (embeddings) answer(c *call, _ string) []byte {
	dst := []byte(`{"object":"list","data":[`)
	v := c.vectorsOf()
	for i, vector := range v.all {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = fmt.Appendf(dst, `{"object":"embedding","index":%d,"embedding":`, v.index[i])
		dst = append(append(dst, vector...), '}')
	}
	n := c.inputTokens()
	return fmt.Appendf(dst, `],"model":%s,"usage":{"prompt_tokens":%d,"total_tokens":%d}}`, encode(c.Model), n, n)
}

func (embeddings) fault(f failure) []byte { return openAI{}.fault(f) }

// geminiEmbeddings is Gemini's batchEmbedContents. The model is in the path.
type geminiEmbeddings struct{}

func (geminiEmbeddings) read(c *call) error {
	var v struct {
		Requests []struct {
			Model      string  `json:"model"`
			Content    content `json:"content"`
			Dimensions int     `json:"outputDimensionality"`
		} `json:"requests"`
	}
	if err := json.Unmarshal(c.Body, &v); err != nil {
		return fmt.Errorf("body: %w", err)
	}
	_, model, _ := strings.Cut(c.path, "/models/")
	c.Model = strings.TrimSuffix(model, ":batchEmbedContents")
	texts, dimensions := make([]string, len(v.Requests)), 0
	for i, one := range v.Requests {
		if one.Model != "models/"+c.Model {
			return fmt.Errorf("requests[%d]: model %q is not that of the path", i, one.Model)
		}
		turn, err := one.Content.turn()
		if err != nil {
			return err
		}
		texts[i], dimensions = turn.text, one.Dimensions
	}
	return c.embed(texts, dimensions)
}

func (geminiEmbeddings) answer(c *call, _ string) []byte {
	dst := []byte(`{"embeddings":[`)
	for i, vector := range c.vectorsOf().all {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(append(append(dst, `{"values":`...), vector...), '}')
	}
	return fmt.Appendf(dst, `],"usageMetadata":{"promptTokenCount":%d}}`, c.inputTokens())
}

// geminiEmbedding is Gemini's embedContent, for one text.
type geminiEmbedding struct{ geminiEmbeddings }

func (geminiEmbedding) read(c *call) error {
	var v struct {
		Content    content `json:"content"`
		Dimensions int     `json:"outputDimensionality"`
	}
	if err := json.Unmarshal(c.Body, &v); err != nil {
		return fmt.Errorf("body: %w", err)
	}
	_, model, _ := strings.Cut(c.path, "/models/")
	c.Model = strings.TrimSuffix(model, ":embedContent")
	turn, err := v.Content.turn()
	if err != nil {
		return err
	}
	return c.embed([]string{turn.text}, v.Dimensions)
}

func (geminiEmbedding) answer(c *call, _ string) []byte {
	dst := append([]byte(`{"embedding":{"values":`), c.vectorsOf().all[0]...)
	return fmt.Appendf(dst, `},"usageMetadata":{"promptTokenCount":%d}}`, c.inputTokens())
}

func (geminiEmbeddings) fault(f failure) []byte { return gemini{}.fault(f) }
