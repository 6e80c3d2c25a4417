package llm

import "math"

// The tokens of media, by the rule that each provider has published. They are estimates
// for limits of tokens a minute, made before the call; the usage of the reply corrects
// them. Where something is not known, such as the size of a picture behind a URL, the
// estimate is that of a picture of usual size.

// usualPixels is the side of a picture whose size is not known.
const usualPixels = 1024

// sides returns the size of a picture in pixels.
func (m *Media) sides() (w, h float64) {
	if m.Content == nil || m.Width <= 0 || m.Height <= 0 {
		return usualPixels, usualPixels
	}
	return float64(m.Width), float64(m.Height)
}

// pages returns the pages of a document, at least one.
func (m *Media) pages() int64 {
	if m.Content == nil {
		return 1
	}
	return int64(max(1, m.Pages))
}

// seconds returns the length of a sound. That of one behind a URL is not known.
func (m *Media) seconds() float64 {
	if m.Content == nil {
		return 60
	}
	return m.Seconds
}

// openAITokens is the rule of GPT-4o and its successors: 85 tokens, and, unless the detail
// is low, 170 for each square of 512 pixels of the picture, once it fits into 2048 × 2048
// pixels and its shorter side has at most 768. For example, 1024 × 1024 pixels become
// 768 × 768, four squares, so 765 tokens. A page of a document is a picture and its text;
// a second of sound has ten tokens.
func openAITokens(m *Media) int64 {
	const base, square, pageText = 85, 170, 500
	switch m.Kind {
	case KindFile:
		return m.pages() * (base + 4*square + pageText)
	case KindAudio:
		return int64(math.Ceil(10 * m.seconds()))
	case KindImage:
	}
	if m.Detail == "low" {
		return base
	}
	w, h := m.sides()
	scale := min(1, 2048/max(w, h))
	scale = min(scale, 768/min(w, h))
	return base + square*int64(math.Ceil(w*scale/512)*math.Ceil(h*scale/512))
}

// anthropicTokens is Anthropic's rule: width × height / 750, and about 1,600 for a picture
// that is scaled down. A page of a document has 1,500 to 3,000 tokens.
func anthropicTokens(m *Media) int64 {
	if m.Kind == KindFile {
		return m.pages() * 2250
	}
	w, h := m.sides()
	return int64(min(math.Ceil(w*h/750), 1600))
}

// geminiTokens is Gemini's rule: 258 for a picture with at most 384 pixels a side, and for
// each square of 768 pixels of a larger one. A page of a document has 258 tokens, and a
// second of sound 32.
func geminiTokens(m *Media) int64 {
	const square = 258
	switch m.Kind {
	case KindFile:
		return m.pages() * square
	case KindAudio:
		return int64(math.Ceil(32 * m.seconds()))
	case KindImage:
	}
	w, h := m.sides()
	if w <= 384 && h <= 384 {
		return square
	}
	return square * int64(math.Ceil(w/768)*math.Ceil(h/768))
}

// bedrockTokens is Anthropic's rule, as Bedrock has published none of its own, and most of
// its models that see are Anthropic's. A second of sound counts as at Gemini.
func bedrockTokens(m *Media) int64 {
	if m.Kind == KindAudio {
		return geminiTokens(m)
	}
	return anthropicTokens(m)
}
