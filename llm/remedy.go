package llm

import (
	"cmp"
	"net/http"
	"strings"
)

// remedies say what to set in place of a member of the request that is not supported. There is no list of models
// instead: it would be wrong with every release.
var remedies = map[string]string{
	"temperature":           "leave the temperature unset: the model takes none with these settings",
	"max_tokens":            `leave the token limit unset and put it into the extra body: {"max_completion_tokens": …}`,
	"max_completion_tokens": `leave the token limit unset and put it into the extra body: {"max_tokens": …}`,
}

// remedyOf returns what to change about the settings, or "".
func remedyOf(f *Fault) string {
	if f == nil {
		return ""
	}
	return remedies[f.Unsupported]
}

// unsupported returns [Fault.Unsupported] of an error object. A value out of range, which OpenAI and Together name by
// the same param, is not meant.
func (b *faultBody) unsupported() string {
	switch {
	case b.Code == "unsupported_parameter", b.Code == "unsupported_value",
		strings.HasPrefix(string(b.Message), "Unsupported parameter: "): // OpenAI leaves the code out at times
		return string(b.Param)
	}
	return cmp.Or(forbidden(string(b.Message)), deprecated(string(b.Message)))
}

// addUpstream adds to the message what the provider behind OpenRouter said, whose own words are "Provider returned
// error". Classes are decided without it. What is nested deeper is not read: a reply must not cost more than its length.
func (b *faultBody) addUpstream(f *Fault) {
	words := string(b.Metadata.Raw)
	var top struct {
		Error faultBody `json:"error"`
		faultBody
	}
	decode([]byte(words), &top)
	for _, inner := range [...]*faultBody{&top.faultBody, &top.Error} {
		if inner.Message != "" {
			words = string(inner.Message)
			f.Unsupported = inner.unsupported()
		}
	}
	if b.Metadata.Provider != "" {
		words = string(b.Metadata.Provider) + ": " + words
	}
	f.Message = strings.TrimPrefix(f.Message+": "+words, ": ")
}

// forbidden returns the member that FastAPI does not know:
// [{"type": "extra_forbidden", "loc": ["body", "max_completion_tokens"]}].
func forbidden(detail string) string {
	var list []struct {
		Type string      `json:"type"`
		Loc  []looseText `json:"loc"`
	}
	if !strings.HasPrefix(detail, "[") || !decode([]byte(detail), &list) || len(list) == 0 {
		return ""
	}
	if first := list[0]; first.Type == "extra_forbidden" && len(first.Loc) > 0 {
		return string(first.Loc[len(first.Loc)-1])
	}
	return ""
}

// deprecated returns the member that Anthropic's "`temperature` is deprecated for this model." names, which has no field
// for it.
func deprecated(message string) string {
	rest, ok := strings.CutPrefix(message, "`")
	name, end, closed := strings.Cut(rest, "`")
	if !ok || !closed || !strings.HasPrefix(end, " is deprecated") {
		return ""
	}
	return name
}

// requestID returns the id by which the provider's support finds a request: x-request-id (OpenAI, Azure, Groq, xAI),
// request-id (Anthropic), apim-request-id (Azure). Empty: the reply has none.
func requestID(h http.Header) string {
	for _, name := range [...]string{"X-Request-Id", "Request-Id", "Apim-Request-Id"} {
		if id := h.Get(name); isWord(id) {
			return id
		}
	}
	return ""
}
