package redact

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"unicode"

	"github.com/llm-stage/stage/internal/jsonbytes"
)

// AddValue adds the possible secrets in the value of a header or member: the whole, each
// of its words (as in "Bearer KEY"), and the user and password of basic authentication.
// Parts of less than 8 bytes are left out: such short words may be in any answer.
func (r *Redactor) AddValue(value string) {
	parts := append(strings.Fields(value), value)
	for _, word := range parts {
		plain, err := base64.StdEncoding.DecodeString(word)
		if _, password, found := strings.Cut(string(plain), ":"); err == nil && found &&
			isPrintable(string(plain)) {
			parts = append(parts, string(plain), password)
		}
	}
	r.Add(slices.DeleteFunc(parts, func(part string) bool { return len(part) < anywhereBytes })...)
}

// AddExtraBody adds the values of those members of an extra body whose names mark them as
// secret, if they have 8 bytes or more: strings in members such as "api_key", "authToken"
// and "password", at any depth. Of members whose names merely end in key or token, such
// as "sort_key", a word is secret if it looks like a credential: 16 bytes or more with a
// letter and a digit.
func (r *Redactor) AddExtraBody(raw json.RawMessage) {
	if jsonbytes.Valid(raw) {
		r.addMembers(raw, notSecret)
	}
}

func (r *Redactor) addMembers(raw []byte, s secrecy) {
	if raw[0] == '"' {
		r.addMember(jsonbytes.Text(raw), s)
	}
	for name, value := range jsonbytes.Members(raw) {
		r.addMembers(value[jsonbytes.SkipSpace(value, 0):], max(s, secrecyOf(string(name))))
	}
	for value := range jsonbytes.Elements(raw) {
		r.addMembers(value, s)
	}
}

func (r *Redactor) addMember(value string, s secrecy) {
	switch s {
	case notSecret:
	case isSecret:
		r.AddValue(value)
	case maybeSecret:
		for word := range strings.FieldsSeq(value) {
			if len(word) >= credentialBytes && strings.ContainsAny(word, "0123456789") &&
				strings.ContainsFunc(word, unicode.IsLetter) {
				r.AddValue(word)
			}
		}
	}
}

// credentialBytes is the least length of a credential whose member's name leaves open
// whether it is one.
const credentialBytes = 16

// secrecy is what the name of a member implies about its value.
type secrecy int

const (
	notSecret secrecy = iota
	maybeSecret
	isSecret
)

// openMembers are named like secrets, without the separators, but hold words of the
// user's own and of the model: OpenAI's cache key, and the tokens that begin, end and
// fill a text.
var openMembers = []string{
	"promptcachekey", "stoptoken", "stoptokens", "bostoken", "eostoken",
	"padtoken", "unktoken",
}

// secretWords are in the names of secrets, without the separators. A name that only ends
// in one of openEnds may name a map, a cache or a token of a text.
var (
	secretWords = []string{
		"secret", "password", "passwd", "passphrase", "authorization", "credential", "bearer",
		"apikey", "accesskey", "authkey", "privatekey",
		"accesstoken", "authtoken",
	}
	openEnds = []string{"key", "keys", "token", "tokens"}
)

// secrecyOf returns what a member of this name holds.
func secrecyOf(name string) secrecy {
	plain := strings.ToLower(strings.NewReplacer("_", "", "-", "", " ", "", ".", "").Replace(name))
	switch {
	case slices.Contains(openMembers, plain):
		return notSecret
	case strings.HasSuffix(plain, "auth"), slices.ContainsFunc(secretWords,
		func(word string) bool { return strings.Contains(plain, word) }):
		return isSecret
	case slices.ContainsFunc(openEnds,
		func(end string) bool { return strings.HasSuffix(plain, end) }):
		return maybeSecret
	}
	return notSecret
}

func isPrintable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
}
