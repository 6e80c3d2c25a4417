package llm

import (
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
)

// decode unmarshals what it can of raw into v and reports whether raw is JSON
// at all. A member of a wrong type is left zero: servers differ in what they
// put where, and one odd member must not cost a paid reply.
func decode(raw []byte, v any) bool {
	err := json.Unmarshal(raw, v)
	if err == nil {
		return true
	}
	_, wrongType := errors.AsType[*json.UnmarshalTypeError](err)
	return wrongType
}

// looseText reads a string, or a number or boolean by its digits: providers
// spell codes both ways. Anything else, and false, is empty.
type looseText string

// UnmarshalJSON implements [json.Unmarshaler].
func (t *looseText) UnmarshalJSON(raw []byte) error {
	switch raw[0] {
	case '"':
		*t = looseText(stringOf(raw))
	case '{', '[', 'n', 'f':
		*t = ""
	default:
		*t = looseText(raw)
	}
	return nil
}

// rawText reads the text of a string, and of anything else its JSON.
type rawText string

// UnmarshalJSON implements [json.Unmarshaler].
func (t *rawText) UnmarshalJSON(raw []byte) error {
	if raw[0] == '"' {
		*t = rawText(stringOf(raw))
	} else {
		*t = rawText(raw)
	}
	return nil
}

// textParts reads the text of a message: a string, or a list of parts whose
// text is joined. Parts of other kinds (thinking, images) are skipped.
type textParts string

// UnmarshalJSON implements [json.Unmarshaler].
func (t *textParts) UnmarshalJSON(raw []byte) error {
	switch raw[0] {
	case '"':
		*t = textParts(stringOf(raw))
	case '[':
		var parts []struct {
			Type string    `json:"type"`
			Text looseText `json:"text"`
		}
		decode(raw, &parts)
		var b strings.Builder
		for _, p := range parts {
			if p.Type == "text" || p.Type == "output_text" {
				b.WriteString(string(p.Text))
			}
		}
		*t = textParts(b.String())
	}
	return nil
}

// count is a number of tokens: told when it is a whole number from 0 up.
type count struct {
	n    int64
	told bool
}

// UnmarshalJSON implements [json.Unmarshaler].
func (c *count) UnmarshalJSON(raw []byte) error {
	*c = count{}
	if n, ok := digits(raw); ok { // as nearly all are
		*c = count{n: n, told: true}
		return nil
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if err == nil && f >= 0 && f <= 1<<53 && f == math.Trunc(f) {
		*c = count{n: int64(f), told: true}
	}
	return nil
}

// digits reads a number of at most 15 digits, and nothing else.
func digits(raw []byte) (n int64, ok bool) {
	if len(raw) == 0 || len(raw) > 15 {
		return 0, false
	}
	for _, c := range raw {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

// pointer returns nil where nothing was told.
func (c count) pointer() *int64 {
	if !c.told {
		return nil
	}
	return new(c.n)
}

// usageOf builds a Usage, or nil if neither part was told.
func usageOf(prompt, completion, total count) *Usage {
	if !prompt.told && !completion.told {
		return nil
	}
	u := &Usage{PromptTokens: prompt.n, CompletionTokens: completion.n, TotalTokens: total.n}
	if !total.told {
		u.TotalTokens = prompt.n + completion.n
	}
	return u
}

// blank says whether a reply holds nothing but white space.
func blank(s string) bool { return strings.TrimSpace(s) == "" }

// isObject says whether a member was told and is an object.
func isObject(raw json.RawMessage) bool { return len(raw) > 0 && raw[0] == '{' }
