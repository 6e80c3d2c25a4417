package llm

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/textproto"
	"slices"
	"strings"
	"unicode"
)

// header is one header of a request.
type header struct{ name, value string }

// refusedHeaders belong to the connection or to the body as it is written.
var refusedHeaders = []string{
	"Accept", "Accept-Encoding", "Connection", "Content-Encoding", "Content-Length", "Content-Type", "Expect", "Host", "Keep-Alive",
	"Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// openHeaders hold no secret, and words that may stand in any answer: versions, names and addresses.
var openHeaders = []string{
	"Anthropic-Beta", "Anthropic-Version", "Http-Referer", "Openai-Beta", "Openai-Organization", "Openai-Project", "Referer",
	"User-Agent", "X-Goog-Api-Client", "X-Goog-User-Project", "X-Openrouter-Categories", "X-Openrouter-Title", "X-Title",
}

// ValidateExtraHeaders reports why text is no value of
// [ClientConfig.ExtraHeaders]. The error does not repeat any value. Empty is fine.
func ValidateExtraHeaders(text string) error {
	_, err := readHeaders(text)
	return err
}

// readHeaders reads a JSON object of strings, in its order.
func readHeaders(text string) (headers []header, err error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	raw := []byte(text)
	if !json.Valid(raw) || raw[skipSpace(raw, 0)] != '{' {
		return nil, errors.New(`not a JSON object of strings: write it as {"Name": "value"}`)
	}
	var faults []error
	for key, value := range members(raw) {
		h := header{name: textproto.CanonicalMIMEHeaderKey(string(key))}
		if value[0] == '"' {
			h.value = stringOf(value)
		}
		switch {
		case !isToken(h.name):
			err = fmt.Errorf("%.40q is not a name of a header", key)
		case slices.Contains(refusedHeaders, h.name):
			err = fmt.Errorf("%s is set by the client itself; remove it", h.name)
		case value[0] != '"':
			err = fmt.Errorf("%s: the value is not a string", h.name)
		case h.value == "" || h.value != strings.TrimSpace(h.value) || !isPrintable(h.value):
			err = fmt.Errorf("%s: the value is empty, begins or ends with a space, or is not printable ASCII", h.name)
		case slices.ContainsFunc(headers, func(o header) bool { return o.name == h.name }):
			err = fmt.Errorf("%s stands there twice", h.name)
		default:
			headers = append(headers, h)
			continue
		}
		faults = append(faults, err)
	}
	return headers, errors.Join(faults...)
}

func isToken(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return r > unicode.MaxASCII || !alphanumeric(byte(r)) && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
}

func isPrintable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
}

// AddExtraHeaders adds the values in the text of [ClientConfig.ExtraHeaders], but for those of well-known headers without
// secrets, as far as they have 8 bytes or more. Of a text that is no such object each word counts as one.
func (r *Redactor) AddExtraHeaders(text string) {
	headers, err := readHeaders(text)
	if err != nil {
		r.AddValue(text)
	}
	r.addHeaders(headers)
}

func (r *Redactor) addHeaders(headers []header) {
	for _, h := range headers {
		if !slices.Contains(openHeaders, h.name) {
			r.AddValue(h.value)
		}
	}
}

// AddValue adds what may be secret in the value of a header or member: the whole, each of its words (Bearer KEY), and the
// user and password of basic authentication. Of these only what has 8 bytes or more: shorter words may be in any answer.
func (r *Redactor) AddValue(value string) {
	parts := append(strings.Fields(value), value)
	for _, word := range parts {
		plain, err := base64.StdEncoding.DecodeString(word)
		if _, password, found := strings.Cut(string(plain), ":"); err == nil && found && isPrintable(string(plain)) {
			parts = append(parts, string(plain), password)
		}
	}
	r.Add(slices.DeleteFunc(parts, func(part string) bool { return len(part) < anywhereBytes })...)
}

// AddExtraBody adds the values of those members of [Request.ExtraBody] whose names say that they are secret, as far as
// they have 8 bytes or more: strings in members such as "api_key", "authToken" and "password", at any depth.
func (r *Redactor) AddExtraBody(raw json.RawMessage) {
	if validJSON(raw) {
		r.addMembers(raw, false)
	}
}

func (r *Redactor) addMembers(raw []byte, secret bool) {
	if secret && raw[0] == '"' {
		r.AddValue(stringOf(raw))
	}
	for name, value := range members(raw) {
		r.addMembers(value[skipSpace(value, 0):], secret || isSecretName(string(name)))
	}
	for value := range elements(raw) {
		r.addMembers(value, secret)
	}
}

// openMembers are named like secrets, without the separators, but hold words of the user's own and of the model: OpenAI's
// cache key, and the tokens that begin, end and fill a text.
var openMembers = []string{"promptcachekey", "stoptoken", "stoptokens", "bostoken", "eostoken", "padtoken", "unktoken"}

// isSecretName says whether a member of this name holds a secret.
func isSecretName(name string) bool {
	plain := strings.ToLower(strings.NewReplacer("_", "", "-", "", " ", "", ".", "").Replace(name))
	if slices.Contains(openMembers, plain) {
		return false
	}
	if plain == "auth" || strings.Contains(plain, "authorization") || strings.Contains(plain, "credential") {
		return true
	}
	return slices.ContainsFunc([]string{"key", "token", "secret", "password", "passwd", "passphrase", "keys", "tokens", "secrets", "passwords", "auth"},
		func(word string) bool { return strings.HasSuffix(plain, word) }) || strings.Contains(plain, "secret") || strings.Contains(plain, "apikey")
}
