package app

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"

	"github.com/goccy/go-yaml"

	"github.com/llm-stage/stage/auditlog"
)

// pricesBytesMax bounds the file of prices; a thousand models take a tenth of it.
const pricesBytesMax = 1 << 20

// prices are those of STAGE_PRICES_FILE, by "provider/model" or "model". The file is YAML or JSON:
//
//	gpt-4.1-mini: {input: 0.40, cached: 0.10, output: 1.60}
//	anthropic/claude-sonnet-4-5: {input: 3, cached: 0.30, output: 15}
type prices map[string]price

// price is in USD per million tokens.
type price struct {
	Input  *float64 `yaml:"input"`  // tokens read; required
	Cached *float64 `yaml:"cached"` // tokens read from a cache; nil: as Input
	Output *float64 `yaml:"output"` // tokens written, hidden reasoning included; required
}

// loadPrices reads the file. The error lists every fault of it.
func loadPrices(path string) (prices, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, plainPathError(err)
	}
	defer file.Close() //nolint:errcheck // read only
	text, err := io.ReadAll(io.LimitReader(file, pricesBytesMax+1))
	if err != nil {
		return nil, plainPathError(err)
	}
	if len(text) > pricesBytesMax {
		return nil, fmt.Errorf("%s: more than %d bytes: take out the models that are not used", path, pricesBytesMax)
	}
	p, err := parsePrices(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

func parsePrices(text []byte) (prices, error) {
	var p prices
	if err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&p); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: write it as gpt-4.1-mini: {input: 0.40, cached: 0.10, output: 1.60}, in USD per million tokens",
			yaml.FormatError(err, false, false))
	}
	if len(p) == 0 {
		return nil, errors.New("holds no prices")
	}
	var faults []error
	for _, model := range slices.Sorted(maps.Keys(p)) {
		v := p[model]
		for _, part := range []struct {
			name     string
			value    *float64
			required bool
		}{{"input", v.Input, true}, {"cached", v.Cached, false}, {"output", v.Output, true}} {
			switch {
			case part.value == nil && part.required:
				faults = append(faults, fmt.Errorf("%s: %s is missing", model, part.name))
			case part.value != nil && (!(*part.value >= 0) || math.IsInf(*part.value, 0)): // so that NaN is a fault too
				faults = append(faults, fmt.Errorf("%s: %s is %v: give USD per million tokens, 0 or more", model, part.name, *part.value))
			}
		}
	}
	return p, errors.Join(faults...)
}

// of returns the price of the first of these models that has one.
func (p prices) of(provider string, models ...string) (price, bool) {
	for _, model := range models {
		if v, ok := p[provider+"/"+model]; ok {
			return v, true
		}
		if v, ok := p[model]; ok {
			return v, true
		}
	}
	return price{}, false
}

// cost returns what these tokens cost, in USD.
func (v price) cost(u *auditlog.Usage) float64 {
	const million = 1e6
	var cached float64
	if u.CachedTokens != nil {
		cached = float64(max(0, min(*u.CachedTokens, u.PromptTokens)))
	}
	cachedPrice := *v.Input
	if v.Cached != nil {
		cachedPrice = *v.Cached
	}
	return ((float64(u.PromptTokens)-cached)**v.Input + cached*cachedPrice + float64(u.CompletionTokens)**v.Output) / million
}
