package cost

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/yamldoc"
)

// pricesBytesMax bounds the file of prices. LiteLLM's list takes a fifth of it.
const pricesBytesMax = 8 << 20

// priceMax bounds a price, in USD per million tokens, so that no sum of costs becomes
// infinite.
const priceMax = 1e9

// Prices are the prices of STAGE_PRICES_FILE, by "provider/model" or "model". The file is
// YAML or JSON:
//
//	gpt-4.1-mini: {input: 0.40, cached: 0.10, output: 1.60}
//	anthropic/claude-sonnet-4-5: {input: 3, cached: 0.30, cache_write: 3.75, cache_write_1h: 6, output: 15, batch_input: 1.50, batch_output: 7.50}
//
// LiteLLM's list of prices will do, too.
type Prices map[string]Price

// Price is the price of one model, in USD per million tokens.
type Price struct {
	Input        *float64 // prompt tokens; required
	Cached       *float64 // those read from a cache; nil means as Input
	CacheWrite   *float64 // those written to a cache; nil means 1.25 times Input
	CacheWrite1h *float64 // those written for an hour; nil means twice Input
	Output       *float64 // completion tokens; required
	Reasoning    *float64 // price of hidden reasoning; nil means as Output

	// Of the providers' Batch APIs. Writes to a cache cost the factors below times
	// BatchInput, reasoning as BatchOutput.
	BatchInput  *float64
	BatchOutput *float64
	BatchCached *float64
}

// Factors on the input price where the price of writes to a cache is missing. Anthropic
// charges these for both lifetimes, OpenAI for the first. Too high a price is safer than
// one too low: ceilings rely on it.
const (
	cacheWriteFactor   = 1.25
	cacheWrite1hFactor = 2
)

// valueOr returns what v points to; other if it is nil.
func valueOr[T any](v *T, other T) T {
	if v == nil {
		return other
	}
	return *v
}

// part returns where the price of this name goes, or nil.
func (v *Price) part(name string) **float64 {
	return map[string]**float64{
		"input": &v.Input, "cached": &v.Cached, "cache_write": &v.CacheWrite, "cache_write_1h": &v.CacheWrite1h, "output": &v.Output,
		"reasoning": &v.Reasoning, "batch_input": &v.BatchInput, "batch_output": &v.BatchOutput, "batch_cached": &v.BatchCached,
	}[name]
}

// parts returns the prices of v by name, in the order of the documentation.
func (v *Price) parts() []pricePart {
	batch := v.BatchInput != nil || v.BatchOutput != nil || v.BatchCached != nil
	return []pricePart{
		{"input", v.Input, true},
		{"cached", v.Cached, false},
		{"cache_write", v.CacheWrite, false},
		{"cache_write_1h", v.CacheWrite1h, false},
		{"output", v.Output, true},
		{"reasoning", v.Reasoning, false},
		{"batch_input", v.BatchInput, batch},
		{"batch_cached", v.BatchCached, false},
		{"batch_output", v.BatchOutput, batch},
	}
}

// pricePart is one of the prices of a model.
type pricePart struct {
	name     string
	value    *float64
	required bool
}

// LoadPrices reads the file, which may have 8 MiB. The error lists everything that is
// wrong with it. With inputAlone the models write nothing, as those of embeddings: then
// a price of what is written may be missing.
func LoadPrices(path string, inputAlone bool) (Prices, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // read only
	text, err := io.ReadAll(io.LimitReader(file, pricesBytesMax+1))
	if err != nil {
		return nil, err
	}
	if len(text) > pricesBytesMax {
		return nil, fmt.Errorf("%s: more than %d bytes: remove the models that are not used", path, pricesBytesMax)
	}
	p, err := parsePrices(text, inputAlone)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

// parsePrices reads YAML or JSON, and checks that all prices are there and within bounds.
func parsePrices(text []byte, inputAlone bool) (Prices, error) {
	p, err := readPrices(text, inputAlone)
	if err != nil {
		return nil, fmt.Errorf("%w: write it as gpt-4.1-mini: {input: 0.40, cached: 0.10, output: 1.60}, in USD per million tokens", err)
	}
	if len(p) == 0 {
		return nil, errors.New("holds no prices")
	}
	var problems []error
	for _, model := range slices.Sorted(maps.Keys(p)) {
		v := p[model]
		for _, part := range v.parts() {
			switch {
			case part.value == nil && part.required:
				problems = append(problems, fmt.Errorf("%s: %s is missing", model, part.name))
			case part.value != nil && !(*part.value >= 0 && *part.value <= priceMax): // written so that NaN is refused too
				problems = append(problems, fmt.Errorf("%s: %s is %v: give USD per million tokens, from 0 to 1e9", model, part.name, *part.value))
			}
		}
	}
	return p, errors.Join(problems...)
}

// readPrices reads YAML or JSON; nil means that there is nothing in it.
func readPrices(text []byte, inputAlone bool) (Prices, error) {
	root, err := yamldoc.Parse(text)
	if err != nil || root == nil {
		return nil, err
	}
	value, err := yamldoc.Value(root)
	if err != nil {
		return nil, err
	}
	models, ok := value.(map[string]any)
	if !ok {
		return nil, yamldoc.ErrorAt(root, nil, "not a mapping of models")
	}
	if isLiteLLM(models) {
		return readLiteLLM(models, inputAlone), nil
	}
	p := make(Prices, len(models))
	for _, model := range slices.Sorted(maps.Keys(models)) {
		parts, ok := models[model].(map[string]any)
		if !ok && models[model] != nil {
			return nil, yamldoc.ErrorAt(root, []string{model}, "the price of %s is not a mapping", model)
		}
		var price Price
		for _, name := range slices.Sorted(maps.Keys(parts)) {
			into := price.part(name)
			if into == nil {
				return nil, yamldoc.ErrorAt(root, []string{model, name}, "unknown field %q of %s", name, model)
			}
			usd, ok := usdOf(parts[name])
			if !ok {
				return nil, yamldoc.ErrorAt(root, []string{model, name}, "%s of %s is not a number", name, model)
			}
			*into = usd
		}
		if inputAlone {
			price.writeNothing()
		}
		p[model] = price
	}
	return p, nil
}

// writeNothing sets the prices of what is written, which a model does not do, to 0 where
// they are missing.
func (v *Price) writeNothing() {
	if v.Input != nil {
		v.Output = new(valueOr(v.Output, 0))
	}
	if v.BatchInput != nil {
		v.BatchOutput = new(valueOr(v.BatchOutput, 0))
	}
}

// usdOf returns a price; nil where it is null. A text may be a number, too: "0.40", and
// 1e-3, which YAML takes for one.
func usdOf(value any) (usd *float64, ok bool) {
	switch v := value.(type) {
	case nil:
		return nil, true
	case int64:
		return new(float64(v)), true
	case float64:
		return &v, true
	case json.Number:
		return usdOf(string(v))
	case string:
		f, err := strconv.ParseFloat(v, 64)
		return &f, err == nil
	}
	return nil, false
}

// Lookup returns the price of the first of these models that has one. The ARN of a model or
// of an inference profile of AWS has the price of the id that it ends in, and so has the
// name of a model at Vertex AI: publishers/google/models/gemini-2.5-flash. LiteLLM's name for
// that provider will do, too.
func (p Prices) Lookup(provider string, models ...string) (Price, bool) {
	for _, model := range models {
		if v, ok := p.named(provider, model); ok {
			return v, true
		}
		id := model[strings.LastIndexByte(model, '/')+1:]
		if id != model && (provider == vertexProvider || strings.HasPrefix(model, "arn:")) {
			if v, ok := p.named(provider, id); ok {
				return v, true
			}
		}
	}
	return Price{}, false
}

// vertexProvider has models whose names are paths, and LiteLLM calls it litellmVertex.
const (
	vertexProvider = "vertex"
	litellmVertex  = "vertex_ai"
)

// named returns the price of a model under one of the names that a provider's model may have.
func (p Prices) named(provider, model string) (Price, bool) {
	if v, ok := p[provider+"/"+model]; ok {
		return v, true
	}
	if provider == vertexProvider {
		if v, ok := p[litellmVertex+"/"+model]; ok {
			return v, true
		}
	}
	v, ok := p[model]
	return v, ok
}

// Cost returns the cost of the tokens in USD. Each token has one price: where the
// reported parts exceed the whole, which no server should report, the more expensive ones
// count first. Input and Output must be set.
func (v *Price) Cost(u *auditlog.Usage) float64 {
	prompt, completion := max(0, u.PromptTokens), max(0, u.CompletionTokens)
	take := func(rest *int64, part int64) float64 {
		part = min(max(0, part), *rest)
		*rest -= part
		return float64(part)
	}
	hour := take(&prompt, valueOr(u.CacheWrite1hTokens, 0))
	short := take(&prompt, valueOr(u.CacheWriteTokens, 0)-int64(hour))
	cached := take(&prompt, valueOr(u.CachedTokens, 0))
	reasoning := take(&completion, valueOr(u.ReasoningTokens, 0))
	input, output := *v.Input, *v.Output
	const million = 1e6
	return (float64(prompt)*input + cached*valueOr(v.Cached, input) +
		short*valueOr(v.CacheWrite, input*cacheWriteFactor) + hour*valueOr(v.CacheWrite1h, input*cacheWrite1hFactor) +
		float64(completion)*output + reasoning*valueOr(v.Reasoning, output)) / million
}
