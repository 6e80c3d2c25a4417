package llm

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/textproto"
	"slices"
	"strings"

	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm/redact"
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
	if !json.Valid(raw) || raw[jsonbytes.SkipSpace(raw, 0)] != '{' {
		return nil, errors.New(`not a JSON object of strings: write it as {"Name": "value"}`)
	}
	var faults []error
	for key, value := range jsonbytes.Members(raw) {
		h := header{name: textproto.CanonicalMIMEHeaderKey(string(key))}
		if value[0] == '"' {
			h.value = jsonbytes.Text(value)
		}
		switch {
		case !isToken(h.name):
			err = fmt.Errorf("%.40q is not a name of a header", key)
		case slices.Contains(refusedHeaders, h.name):
			err = fmt.Errorf("%s is set by the client itself; remove it", h.name)
		case value[0] != '"':
			err = fmt.Errorf("%s: the value is not a string", h.name)
		case h.value == "" || h.value != strings.TrimSpace(h.value) || strings.ContainsFunc(h.value, func(r rune) bool { return r < ' ' || r > '~' }):
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

// headerNameBytes are those that the name of a header may have.
const headerNameBytes = "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

func isToken(name string) bool { return name != "" && strings.Trim(name, headerNameBytes) == "" }

// AddHeaderSecrets adds to r the values in the text of [ClientConfig.ExtraHeaders], but for those of well-known headers
// without secrets, if they have 8 bytes or more. Of a text that is no such object each word counts as one.
func AddHeaderSecrets(r *redact.Redactor, text string) {
	headers, err := readHeaders(text)
	if err != nil {
		r.AddValue(text)
	}
	addHeaders(r, headers)
}

func addHeaders(r *redact.Redactor, headers []header) {
	for _, h := range headers {
		if !slices.Contains(openHeaders, h.name) {
			r.AddValue(h.value)
		}
	}
}
