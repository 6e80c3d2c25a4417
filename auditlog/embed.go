package auditlog

import (
	"unicode/utf8"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

// body embeds JSON as it is, so that a reader of the event can hash it again, and quotes anything else.
func body(dst, b []byte) []byte {
	switch {
	case len(b) == 0:
		return append(dst, "null"...)
	case embeddable(b):
		return append(dst, b...)
	}
	return jsonbytes.AppendEscaped(dst, b)
}

// depthMax is how deep a body may be nested to be embedded. Real ones stay below 20; there are readers that stop at a
// thousand levels, of which the event itself is one.
const depthMax = 500

// embeddable reports whether b is one JSON value, in UTF-8, that every reader of the event can parse. encoding/json
// would accept bad UTF-8 and deep nesting.
func embeddable(b []byte) bool { return utf8.Valid(b) && jsonbytes.ValidDepth(b, depthMax) }
