package schema

import (
	"encoding/json"
	"regexp"
	"strings"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

const (
	fence = "```"
	// endTokenBytes is more than any end token has.
	endTokenBytes = 160
	// layersMax bounds how many layers are taken off the end of a reply. A real one has
	// two or three, such as "\n```\n<|im_end|>".
	layersMax = 16
)

// endToken is a special token that a server has left at the end of a reply: <|im_end|>,
// <|eot_id|>, </s>, <eos>, <end_of_turn>, DeepSeek's <｜end▁of▁sentence｜>.
var endToken = regexp.MustCompile(`<(?:\|[A-Za-z0-9_]{1,40}\||｜[A-Za-z0-9_▁]{1,40}｜|/s|eos|end_of_turn)>$`)

// language is the name of a language behind the opening of a code fence.
var language = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_+.-]*`)

// bare returns the one JSON value in a reply, without the things that models and servers
// put around it: white space, a byte order mark, a Markdown fence that may lack one of
// its ends, the word json before the value, and end tokens behind it. Other text stays,
// so a reply with prose around its value satisfies no schema.
//
// No JSON value ends with a backtick or with ">", nor begins with a backtick or "json",
// so nothing of the value is ever cut.
func bare(text string) string {
	text = withoutEnd(text)
	if inner, fenced := strings.CutPrefix(text, fence); fenced {
		return withoutLanguage(inner)
	}
	if len(text) > len("json") && strings.EqualFold(text[:len("json")], "json") {
		text = text[len("json"):]
	}
	return strings.TrimFunc(text, jsonbytes.IsInvisible)
}

// withoutEnd removes white space on both sides, and the end of a fence and end tokens.
func withoutEnd(text string) string {
	text = strings.TrimFunc(text, jsonbytes.IsInvisible)
	for range layersMax {
		before := len(text)
		text = strings.TrimSuffix(text, fence)
		tail := max(0, len(text)-endTokenBytes)
		if at := endToken.FindStringIndex(text[tail:]); at != nil {
			text = text[:tail+at[0]]
		}
		if text = strings.TrimRightFunc(text, jsonbytes.IsInvisible); len(text) == before {
			break
		}
	}
	return text
}

// withoutLanguage returns the content of a fence, without the name of its language: a
// word, or the first line. In "```true" the word is the value.
func withoutLanguage(inner string) string {
	word := inner[len(language.FindString(inner)):]
	for _, text := range [...]string{inner, word} {
		if text = strings.TrimFunc(text, jsonbytes.IsInvisible); json.Valid([]byte(text)) {
			return text
		}
	}
	if _, rest, ok := strings.Cut(inner, "\n"); ok {
		return strings.TrimFunc(rest, jsonbytes.IsInvisible)
	}
	return strings.TrimFunc(word, jsonbytes.IsInvisible)
}
