// Package redact keeps secrets out of texts: a [Secret] prints nothing of itself, a
// [Redactor] removes secrets from the texts of others.
package redact

import (
	"bytes"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

// Redactor removes secrets from texts: a server, or a proxy before it, may repeat the key
// that it was sent, often in another spelling. A secret is found plainly, with any of its
// characters written as a JSON, percent or HTML escape, also escaped several times over;
// in hexadecimal; and in base64 of either alphabet, alone or within a longer text.
//
// A secret of 8 bytes or more is found anywhere. A shorter one is found as a word only,
// not next to a letter or digit, and encoded only where its encoding has 8 characters or
// more. Words that are given as a key to servers that need none, such as "none" and
// "ollama", are no secrets, as they may occur in any answer.
//
// The zero Redactor, and a nil one, know no secret. It is safe for concurrent use, but
// must not be copied.
type Redactor struct {
	mu sync.Mutex // held while needles are made
	// needles is behind a pointer, as in a [Secret]: package fmt prints the fields of an
	// unexported field, but not what they point at.
	needles atomic.Pointer[needles]
}

const (
	// anywhereBytes is the length from which a secret is found within other words.
	anywhereBytes = 8
	// secretsMax bounds the secrets that are remembered: keys are rotated for as long as
	// a process runs.
	secretsMax = 256
	// passingMax bounds the secrets of [Redactor.AddPassing].
	passingMax = 32
	// cutBytes is the least beginning of a secret that is removed from the end of a text
	// that was cut.
	cutBytes = 4
)

var redacted = []byte("[redacted]")

// Add makes further secrets known. Earlier ones stay known, so that a key is still found
// after it was rotated. If there are more than 256, the secrets that were added least
// recently are forgotten: whenever something is rotated, add every secret again that is
// still in use. Empty texts and placeholders are no secrets.
func (r *Redactor) Add(secrets ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.needles.Load()
	if n == nil {
		n = new(needles)
	}
	all := slices.Clone(n.secrets)
	for _, s := range secrets {
		if s != "" && !isPlaceholder(s) {
			all = append(slices.DeleteFunc(all, func(known string) bool { return known == s }), s)
		}
	}
	switch {
	case len(all) > len(n.secrets):
		r.needles.Store(newNeedles(all[max(0, len(all)-secretsMax):], n.passing))
	case !slices.Equal(all, n.secrets): // only their order is new
		moved := *n
		moved.secrets = all
		r.needles.Store(&moved)
	}
}

// AddPassing makes secrets known that others replace soon, such as access tokens. The last
// 32 of them are remembered, beside those of Add: a token an hour must not push out the
// keys that are added once.
func (r *Redactor) AddPassing(secrets ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.needles.Load()
	if n == nil {
		n = new(needles)
	}
	passing := slices.Clone(n.passing)
	for _, s := range secrets {
		if len(s) >= anywhereBytes && !slices.Contains(passing, s) {
			passing = append(passing, s)
		}
	}
	if len(passing) > len(n.passing) {
		r.needles.Store(newNeedles(n.secrets, passing[max(0, len(passing)-passingMax):]))
	}
}

// Redact returns b with each secret replaced by "[redacted]". Valid JSON stays valid
// where the secret is in a string. b itself is not changed, and returned where it holds
// none.
func (r *Redactor) Redact(b []byte) []byte {
	n := r.known()
	if n == nil || !n.suspects(b) {
		return b
	}
	return n.replace(b)
}

// RedactString is [Redactor.Redact] for a string.
func (r *Redactor) RedactString(s string) string {
	n := r.known()
	if n == nil || !n.suspects([]byte(s)) { // a conversion that is read only makes no copy
		return s
	}
	return string(n.replace([]byte(s)))
}

// RedactJSON is [Redactor.Redact] for JSON. A key of digits alone may be a number of it,
// such as a count of tokens: null takes the place of the number, so that b stays JSON,
// with a byte order mark before it or without.
func (r *Redactor) RedactJSON(b []byte) []byte {
	clean := r.Redact(b)
	text := jsonbytes.TrimBOM(b)
	if bytes.Equal(clean, b) || jsonbytes.Valid(jsonbytes.TrimBOM(clean)) ||
		!jsonbytes.Valid(text) {
		return clean
	}
	mark := len(b) - len(text)
	out := append(make([]byte, 0, len(b)), b[:mark]...)
	for i := mark; i < len(b); {
		switch c := b[i]; {
		case c == '"':
			end := jsonbytes.SkipString(b, i)
			out = append(append(append(out, '"'), r.Redact(b[i+1:end-1])...), '"')
			i = end
		case c == '-' || alphanumeric(c):
			end := jsonbytes.SkipScalar(b, i)
			if scalar := b[i:end]; bytes.Equal(r.Redact(scalar), scalar) {
				out = append(out, scalar...)
			} else {
				out = append(out, "null"...)
			}
			i = end
		default:
			out = append(out, c)
			i++
		}
	}
	return r.Redact(out) // a secret with quotes may go beyond a string
}

// RedactCut is [Redactor.Redact] for a text whose end was cut off: a beginning of a
// secret at its end, of at least 4 bytes, is replaced as well.
func (r *Redactor) RedactCut(b []byte) []byte {
	n := r.known()
	if n == nil {
		return b
	}
	b = r.Redact(b)
	if at := n.beginning(b); at < len(b) {
		return append(bytes.Clone(b[:at]), redacted...)
	}
	return b
}

func (r *Redactor) known() *needles {
	if r == nil {
		return nil
	}
	return r.needles.Load()
}

// Format implements [fmt.Formatter]: no verb prints a secret.
func (r *Redactor) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, "redact.Redactor") // f keeps the error
}

// placeholders are what people give as a key where none is needed, in lower case: the
// words of vLLM's (EMPTY), LM Studio's (lm-studio), llama.cpp's (sk-no-key-required,
// no-key), Ollama's (ollama) and LiteLLM's (sk-1234, anything) own examples, and those
// that are placeholders elsewhere.
var placeholders = strings.Fields(`
	123 1234 12345 123456 12345678 abc anon anonymous any anything anthropic api-key api_key apikey azure bearer default
	demo dummy dummy-key empty example fake fake-key false foo gemini key koboldcpp litellm llama llama-cpp llama.cpp
	llamacpp llm lm-studio lmstudio local localai localhost mock n/a na nil no no-key no-key-needed no-key-required no_key nokey
	none not-needed not-required not-set not_needed notneeded null nothing ollama openai openrouter placeholder secret sglang sk
	sk-1234 sk-dummy sk-no-key-required sk-none sk-test sk-xxx sk-xxxx something test test-key testing token true undefined
	unset unused vllm whatever xx xxx xxxx xxxxx xxxxxx xxxxxxxx your-api-key`)

// isPlaceholder reports whether a key protects nothing: a single character neither does.
func isPlaceholder(secret string) bool {
	return len(secret) == 1 || slices.Contains(placeholders, strings.ToLower(secret))
}

// needles are the spellings of all secrets, prepared for searching. They are never changed.
type needles struct {
	secrets []string // the most recently added last
	passing []string // of AddPassing, likewise
	all     []needle
	longest int            // of their texts
	begin   [256][]*needle // those that begin with the character, or with the escape of one
	letters [256]bool      // characters that some needle holds

	// grams has a bit for each hash of three bytes within the first stride+2 of a needle.
	// An occurrence without escapes has one of these grams at every stride-th place, so a
	// text is searched in steps of stride. A stride of 0 means that all of it is
	// searched.
	grams  [1 << 16 / 64]uint64
	stride int
}

func newNeedles(secrets, passing []string) *needles {
	n := &needles{secrets: secrets, passing: passing}
	shortest := anywhereBytes
	for _, s := range slices.Concat(secrets, passing) {
		n.all = append(n.all, spellings(s)...)
	}
	for i := range n.all {
		s := &n.all[i]
		n.longest = max(n.longest, len(s.text))
		shortest = min(shortest, len(s.text), len(s.plain))
		for c := range 256 {
			same := s.same(byte(c))
			if bytes.IndexByte(s.text, same) >= 0 {
				n.letters[c] = true
			}
			if same == s.text[0] || same == s.plain[0] {
				n.begin[c] = append(n.begin[c], s)
			}
		}
	}
	if shortest < 4 {
		return n
	}
	n.stride = shortest - 2
	for i := range n.all {
		n.addGrams(&n.all[i])
	}
	return n
}

func gram(a, b, c byte) uint16 { return uint16(a)<<9 ^ uint16(b)<<4 ^ uint16(c) }

func (n *needles) addGrams(s *needle) {
	for i := range n.stride {
		for _, a := range s.variants(s.plain[i]) {
			for _, b := range s.variants(s.plain[i+1]) {
				for _, c := range s.variants(s.plain[i+2]) {
					g := gram(a, b, c)
					n.grams[g/64] |= 1 << (g % 64)
				}
			}
		}
	}
}

// suspects reports whether b may hold a secret. It is quick, as nearly every text holds
// none.
func (n *needles) suspects(b []byte) bool {
	if n.stride == 0 {
		return true
	}
	for i := n.stride - 1; i+2 < len(b); i += n.stride {
		if g := gram(b[i], b[i+1], b[i+2]); n.grams[g/64]>>(g%64)&1 != 0 && n.occursNear(b, i) {
			return true
		}
	}
	for _, lead := range [...]byte{'\\', '%', '&'} {
		for i := 0; i < len(b); {
			if b[i] != lead {
				next := bytes.IndexByte(b[i:], lead)
				if next < 0 {
					break
				}
				i += next
			}
			if beyondASCII(b[i:]) { // a text in another script is all escapes
				i += len(`\u0000`)
				continue
			}
			c, size := char(b, i, escapesDeep)
			if size > 1 && n.letters[c] {
				return true
			}
			i += size
		}
	}
	return false
}

// occursNear reports whether a needle occurs in b unescaped, its first grams at i.
func (n *needles) occursNear(b []byte, i int) bool {
	for at := max(0, i-n.stride+1); at <= i; at++ {
		for _, s := range n.begin[b[at]] {
			if s.isPrefixOf(b[at:]) {
				return true
			}
		}
	}
	return false
}

// replace returns b without the secrets.
func (n *needles) replace(b []byte) []byte {
	var out []byte
	done := 0
	for i := 0; i < len(b); {
		from, to := n.find(b, i)
		if from < 0 {
			break
		}
		out = append(append(out, b[done:max(done, from)]...), redacted...)
		done, i = to, to
	}
	if done == 0 {
		return b
	}
	return append(out, b[done:]...)
}

// find returns where the next secret from i on begins and ends. If several begin at one
// place, it takes the longest. from is below 0 if there is none.
func (n *needles) find(b []byte, i int) (from, to int) {
	for best := -1; i < len(b); i++ {
		try := func(c byte) {
			for _, s := range n.begin[c] {
				if end := s.match(b, i, c); end > best {
					best = end
					from, to = s.whole(b, i, end)
				}
			}
		}
		try(b[i])
		if c := b[i]; isLead(c) && (c != '\\' || i == 0 || b[i-1] != '\\') {
			// The first of a run of backslashes stands for all.
			if c = charAt(b, i); c != b[i] {
				try(c)
			}
		}
		if best >= 0 {
			return from, to
		}
	}
	return -1, -1
}

// beginning returns where the beginning of a secret starts that b ends with, or len(b) if b
// does not end so. b may end with half an escape.
func (n *needles) beginning(b []byte) int {
	const escape = 12 // bytes that the escape of one character may take
	from := max(0, len(b)-n.longest*escape)
	for end := len(b); end >= cutBytes && end > len(b)-escape; end-- {
		if end < len(b) && !isLead(b[end]) {
			continue
		}
		for i := from; i <= end-cutBytes; i++ {
			if i > from && b[i] == '\\' && b[i-1] == '\\' { // as in find
				continue
			}
			begun := func(s *needle) bool { return s.begun(b[:end], i) }
			if slices.ContainsFunc(n.begin[b[i]], begun) || isLead(b[i]) &&
				slices.ContainsFunc(n.begin[charAt(b, i)], begun) {
				return charsBefore(b, i)
			}
		}
	}
	return len(b)
}

// URLSecrets returns the credentials in an address, for [Redactor.AddValue]: the
// password, or the user where there is none, as written and unescaped, and the user
// together with the password. Of a text that is no valid address it is what precedes the
// @.
func URLSecrets(address string) []string {
	_, rest, found := strings.Cut(address, "://")
	if !found {
		rest = address
	}
	host, _, _ := strings.Cut(rest, "/")
	at := strings.LastIndexByte(host, '@')
	if at < 0 {
		if at = strings.LastIndexByte(rest, '@'); at < 0 { // a password may hold a slash
			return nil
		}
		host = rest
	}
	user, secret, found := strings.Cut(host[:at], ":")
	if !found || secret == "" { // some proxies take a key as the user
		secret = user
	}
	secrets := []string{secret}
	if meant, err := url.PathUnescape(secret); err == nil && meant != secret {
		secrets = append(secrets, meant)
	}
	if found {
		secrets = append(secrets, host[:at])
	}
	return secrets
}
