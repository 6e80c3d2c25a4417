package llm

import (
	"fmt"
	"slices"
	"strings"
)

// mediaRules are what a wire format carries beside text, and the limits that the provider's
// reference states. docs/templates.md has them as a table.
type mediaRules struct {
	name  string      // of the wire format, in errors
	types []string    // whose content it takes
	urls  []MediaKind // whose https: URLs it takes
	// buckets are the kinds whose gs: URLs it takes, of objects in Google's Cloud Storage.
	buckets []MediaKind
	// located reports, beyond these rules, why it can't carry what is behind a URL.
	located func(*Media) error
	// These are limits, and 0 where none is stated: the most images and documents of a
	// request, the bytes of all of them in base64, the bytes of one of each kind in base64,
	// and the pixels of an image's side.
	count, bytes int64
	files        int64 // most documents of a request
	image, file  int64
	pixels       int

	tokens func(*Media) int64 // estimates those of one part
}

var (
	chatMedia = mediaRules{
		name:   "chat completions",
		types:  []string{TypePNG, TypeJPEG, TypeGIF, TypeWebP, TypePDF, TypeWAV, TypeMP3},
		urls:   []MediaKind{KindImage},
		tokens: openAITokens,
	}
	// OpenRouter passes on the address of a document, in the same member as its content.
	openRouterMedia = mediaRules{
		name:   "OpenRouter's chat completions",
		types:  chatMedia.types,
		urls:   []MediaKind{KindImage, KindFile},
		tokens: openAITokens,
	}
	// The sizes are those of OpenAI's published description of the API.
	responsesMedia = mediaRules{
		name:  "responses",
		types: []string{TypePNG, TypeJPEG, TypeGIF, TypeWebP, TypePDF},
		urls:  []MediaKind{KindImage, KindFile},
		image: 20 << 20, file: 70 << 20,
		tokens: openAITokens,
	}
	anthropicMedia = mediaRules{
		name:  "Anthropic's messages",
		types: []string{TypePNG, TypeJPEG, TypeGIF, TypeWebP, TypePDF},
		urls:  []MediaKind{KindImage, KindFile},
		count: 600, bytes: 32 << 20, image: 10 << 20, pixels: 8000,
		tokens: anthropicTokens,
	}
	geminiMedia = mediaRules{
		name: "Gemini's generateContent",
		types: []string{
			TypePNG, TypeJPEG, TypeWebP, TypePDF, TypeWAV, TypeMP3, TypeOgg, TypeFLAC,
			TypeM4A,
		},
		urls:  []MediaKind{KindImage, KindFile, KindAudio},
		count: 3600, bytes: 100 << 20, file: 50 << 20 * 4 / 3,
		tokens: geminiTokens,
	}
	// The limits are those that all present models of Gemini have there.
	vertexMedia = mediaRules{
		name:    "Vertex AI's generateContent",
		types:   geminiMedia.types,
		urls:    geminiMedia.urls,
		buckets: geminiMedia.urls,
		located: checkVertexURL,
		count:   3000, file: 50 << 20 * 4 / 3,
		tokens: geminiTokens,
	}
	// Google's platform passes on no addresses, and takes less than Anthropic.
	vertexAnthropicMedia = mediaRules{
		name:  "Anthropic's messages at Vertex AI",
		types: anthropicMedia.types,
		count: 600, bytes: 30 << 20, image: 5 << 20, pixels: 8000,
		tokens: anthropicTokens,
	}
	// Bedrock itself bounds no more than the documents. Each maker's models have limits of
	// their own.
	bedrockMedia = mediaRules{
		name: "Bedrock's Converse",
		types: []string{
			TypePNG, TypeJPEG, TypeGIF, TypeWebP, TypePDF, TypeWAV, TypeMP3, TypeOgg,
			TypeFLAC, TypeM4A,
		},
		files:  5,
		tokens: bedrockTokens,
	}
)

// check reports why the format can't carry the media of a conversation.
func (w *mediaRules) check(messages []Message) error {
	var count, size int64
	for i := range messages {
		for j := range messages[i].Parts {
			m := messages[i].Parts[j].Media
			if m == nil {
				continue
			}
			if err := w.checkOne(m, messages[i].Role); err != nil {
				return fmt.Errorf("message %d, part %d: %w", i+1, j+1, err)
			}
			if m.Kind != KindAudio {
				count++
			}
			if m.Content != nil {
				size += (&placement{content: m.Content}).wireBytes()
			}
		}
	}
	switch documents := countDocuments(messages); {
	case w.files > 0 && documents > w.files:
		return fmt.Errorf("%d documents, and %s takes at most %d in a request", documents, w.name,
			w.files)
	case w.count > 0 && count > w.count:
		return fmt.Errorf("%d images and documents, and %s takes at most %d in a request", count,
			w.name, w.count)
	case w.bytes > 0 && size > w.bytes:
		return fmt.Errorf("the media take %d bytes in base64, and %s takes at most %d in a request",
			size, w.name, w.bytes)
	}
	return nil
}

// estimate estimates the tokens of all media of a conversation.
func (w *mediaRules) estimate(messages []Message) (n int64) {
	for m := range MediaOf(messages) {
		n += w.tokens(m)
	}
	return n
}

func (w *mediaRules) checkOne(m *Media, role Role) error {
	if role != RoleUser {
		return fmt.Errorf("media of role %s: only a message of the user can have any", role)
	}
	if m.Content == nil {
		switch {
		case m.URL() == "":
			return fmt.Errorf("the %s is not described: its source is %.80q", m.Kind, m.Source)
		case m.inBucket() && !slices.Contains(w.buckets, m.Kind):
			return fmt.Errorf("%s takes no gs: URL of a part of type %s: give its content, for "+
				"example as a data: URL", w.name, m.Kind)
		case m.inBucket():
		case !slices.Contains(w.urls, m.Kind):
			return fmt.Errorf("%s takes no https: URL of a part of type %s: give its content, "+
				"for example as a data: URL", w.name, m.Kind)
		}
		if w.located != nil {
			return w.located(m)
		}
		return nil
	}
	switch {
	case m.Content.Kind() != m.Kind:
		return fmt.Errorf("the content is %s, which is no part of type %s but of type %s", m.Type,
			m.Kind, m.Content.Kind())
	case !slices.Contains(w.types, m.Type):
		return fmt.Errorf("%s takes no %s: it takes %s", w.name, m.Type,
			strings.Join(w.types, ", "))
	case w.pixels > 0 && (m.Width > w.pixels || m.Height > w.pixels):
		return fmt.Errorf("the image has %d × %d pixels, and %s takes at most %d a side", m.Width,
			m.Height, w.name, w.pixels)
	}
	limit := w.image
	if m.Kind == KindFile {
		limit = w.file
	}
	if size := (&placement{content: m.Content}).wireBytes(); limit > 0 && m.Kind != KindAudio &&
		size > limit {
		return fmt.Errorf("the %s takes %d bytes in base64, and %s takes at most %d", m.Kind, size,
			w.name, limit)
	}
	return nil
}

// countDocuments returns how many documents messages have.
func countDocuments(messages []Message) (n int64) {
	for m := range MediaOf(messages) {
		if m.Kind == KindFile {
			n++
		}
	}
	return n
}
