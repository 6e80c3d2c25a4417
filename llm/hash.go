package llm

import (
	"crypto/sha256"
	"encoding/hex"
	"sync"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

// Hash returns the SHA-256 of b in lower-case hexadecimal.
func Hash(b []byte) string {
	sum := sha256.Sum256(b)
	var text [2 * sha256.Size]byte
	hex.Encode(text[:], sum[:])
	return string(text[:])
}

// VariablesHash returns the [Hash] of the row in canonical form, which is the same for every spelling of the same object
// and on every machine: see [jsonbytes.Canonicalizer].
func (r *Row) VariablesHash() string {
	c, _ := canonicalizers.Get().(*jsonbytes.Canonicalizer)
	canonical := c.Canonical(r.body)
	hash := Hash(canonical)
	if cap(canonical) <= maxPooledBytes {
		canonicalizers.Put(c)
	}
	return hash
}

// maxPooledBytes keeps the scratch space of one huge row from being held for ever.
const maxPooledBytes = 1 << 20

var canonicalizers = sync.Pool{New: func() any { return new(jsonbytes.Canonicalizer) }}
