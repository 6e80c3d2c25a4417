package llm

import (
	"net/http"
	"strconv"

	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/internal/jsonbytes"
)

const (
	shapeBytes = 500 // bounds Prepared.Shape
	urlBytes   = 300 // bounds the address in it
	wordBytes  = 80  // bounds each name and value
)

// Shape returns the request without its contents, for people who look for a wrong setting: method, address, and the
// members of the body in order, such as
//
//	POST http://host/v1/chat/completions {model: "m", messages: [2], temperature: 0.7, user: "…" (12 bytes), text: {…}}
//
// Of the strings only the model is shown; an array is shown as the number of its elements. It holds no credential, and
// at most 500 bytes.
func (p *Prepared) Shape() string {
	const end = ", …}"
	dst := append([]byte(http.MethodPost+" "), excerpt.Clip(p.url.Redacted(), urlBytes)...)
	dst = append(dst, " {"...)
	some := false
	for key, value := range jsonbytes.Members(p.Body) {
		before := len(dst)
		if some {
			dst = append(dst, ", "...)
		}
		dst = appendShape(append(append(dst, excerpt.Clip(string(key), wordBytes)...), ": "...), string(key), value)
		if len(dst) > shapeBytes-len(end) {
			return string(append(dst[:before], end...))
		}
		some = true
	}
	return string(append(dst, '}'))
}

// appendShape appends what a member's value is.
func appendShape(dst []byte, key string, value []byte) []byte {
	switch value[0] {
	case '"':
		text := jsonbytes.Text(value)
		if key == "model" {
			return strconv.AppendQuote(dst, excerpt.Clip(text, wordBytes))
		}
		return append(strconv.AppendInt(append(dst, `"…" (`...), int64(len(text)), 10), " bytes)"...)
	case '{':
		return append(dst, "{…}"...)
	case '[':
		n := 0
		for range jsonbytes.Elements(value) {
			n++
		}
		return append(strconv.AppendInt(append(dst, '['), int64(n), 10), ']')
	}
	return append(dst, excerpt.Clip(string(value), wordBytes)...)
}
