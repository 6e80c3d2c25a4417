package llm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// login is a key together with the headers that carry it.
type login struct {
	key    []byte
	header http.Header // shared by all requests, never written
}

// minSecretBytes is the length from which a key is a secret. Servers that need
// none are given words like "none" or "ollama", which may stand in any text.
const minSecretBytes = 8

var redacted = []byte("[redacted]")

// SetAPIKey replaces the credential for calls that start from now on. It
// returns a [*SettingError], and keeps the old one, if no header can carry key.
func (c *Client) SetAPIKey(key string) error {
	if err := checkKey(key); err != nil {
		return &SettingError{Setting: "APIKey", Err: err}
	}
	h := http.Header{
		"Content-Type": {"application/json"},
		"Accept":       {"application/json"},
		"User-Agent":   {"llm-stage"},
	}
	c.cfg.Wire.SetHeader(h, key)
	c.login.Store(&login{key: []byte(key), header: h})
	return nil
}

// redact returns b without the key. It copies b only if the key is in it.
func (l *login) redact(b []byte) []byte {
	if len(l.key) < minSecretBytes || !bytes.Contains(b, l.key) {
		return b
	}
	return bytes.ReplaceAll(b, l.key, redacted)
}

// redactError removes the key from an error: servers, and proxies between, like
// to repeat it.
func (l *login) redactError(e *Error) {
	if text := e.Err.Error(); l.holds(text) {
		e.Err = errors.New(l.redactString(text))
	}
	e.Code, e.Type, e.Alike = l.redactString(e.Code), l.redactString(e.Type), l.redactString(e.Alike)
	for name, fact := range e.Facts {
		switch v := fact.(type) {
		case string:
			e.Facts[name] = l.redactString(v)
		case []string:
			for i := range v {
				v[i] = l.redactString(v[i])
			}
		case json.RawMessage:
			e.Facts[name] = json.RawMessage(l.redact(v))
		}
	}
}

func (l *login) redactString(s string) string {
	if !l.holds(s) {
		return s
	}
	return string(l.redact([]byte(s)))
}

func (l *login) holds(text string) bool {
	return len(l.key) >= minSecretBytes && strings.Contains(text, string(l.key))
}

// checkKey says why a header cannot carry key, without repeating it.
func checkKey(key string) error {
	for _, c := range []byte(key) {
		if c <= ' ' || c == 0x7f {
			return errors.New("holds white space or control characters; remove them")
		}
	}
	return nil
}

// Format implements [fmt.Formatter]: whatever the verb, no key is printed.
func (c *Client) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprintf(f, "llm.Client{%s %s %s}", c.cfg.Provider, c.base, c.cfg.Model) // f keeps the error
}

// Format implements [fmt.Formatter]: whatever the verb, no key is printed.
func (c ClientConfig) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprintf(f, "llm.ClientConfig{%s %q}", c.Provider, c.Model) // f keeps the error
}

// Format implements [fmt.Formatter]: whatever the verb, no key is printed.
func (c ProviderConfig) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprintf(f, "llm.ProviderConfig{%q}", c.Model) // f keeps the error
}
