package llm

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
)

// login is what calls send to be let in. Never changed.
type login struct {
	key    string
	extra  []header    // of [ClientConfig.ExtraHeaders]
	header http.Header // all of it, shared by all requests
}

// SetAPIKey replaces the credential for calls that start from now on. It
// returns a [*SettingError], and keeps the old one, if no header can carry key.
// A reply may still repeat the old one: both are kept out of what calls return.
func (c *Client) SetAPIKey(key string) error {
	if err := ValidateAPIKey(key); err != nil {
		return &SettingError{Setting: "APIKey", Err: err}
	}
	c.loginMu.Lock()
	defer c.loginMu.Unlock()
	return c.setLogin(key, c.login.Load().extra)
}

// SetExtraHeaders replaces the headers of [ClientConfig.ExtraHeaders] for calls
// that start from now on. It returns a [*SettingError], and keeps the old ones,
// if they cannot be sent.
func (c *Client) SetExtraHeaders(text string) error {
	extra, err := readHeaders(text)
	if err != nil {
		return &SettingError{Setting: "ExtraHeaders", Err: err}
	}
	c.cfg.Redactor.AddExtraHeaders(text)
	c.loginMu.Lock()
	defer c.loginMu.Unlock()
	return c.setLogin(c.login.Load().key, extra)
}

// setLogin makes the headers of further calls. The lock is held.
func (c *Client) setLogin(key string, extra []header) error {
	h := http.Header{
		"Content-Type": {"application/json"},
		"Accept":       {"application/json"},
		"User-Agent":   {"llm-stage"},
	}
	c.cfg.Wire.SetHeader(h, "")
	keyless := h.Clone()
	c.cfg.Wire.SetHeader(h, key)
	for _, e := range extra {
		if own := h.Get(e.name); own != keyless.Get(e.name) && key != "" {
			err := fmt.Errorf("%s carries the API key already; remove it, or set no API key", e.name)
			return &SettingError{Setting: "ExtraHeaders", Err: err}
		}
	}
	for _, e := range extra {
		h.Set(e.name, e.value)
	}
	c.cfg.Redactor.Add(key)
	c.login.Store(&login{key: key, extra: extra, header: h})
	return nil
}

// ValidateAPIKey says why a key cannot be sent as it is, mostly since something
// of the file or variable that it is kept in was taken for a part of it. The
// error does not repeat it. An empty key is fine.
func ValidateAPIKey(key string) error {
	switch {
	case strings.ContainsRune(key, '\uFEFF'), strings.HasPrefix(key, "\xFF\xFE"), strings.HasPrefix(key, "\xFE\xFF"):
		return errors.New("holds a byte order mark (BOM); save it as plain text without one")
	case strings.ContainsAny(key, "\r\n"):
		return errors.New("holds a line break; give the key alone, on one line")
	}
	for _, c := range []byte(key) {
		switch {
		case c <= ' ' || c == 0x7f:
			return errors.New("holds white space or control characters; remove them")
		case c > 0x7f:
			return errors.New("holds characters that are not ASCII; copy the key again")
		}
	}
	if n := len(key); n > 1 && key[0] == key[n-1] && strings.ContainsRune("\"'`", rune(key[0])) {
		return errors.New("is in quotes; remove them")
	}
	return nil
}

// addProxies adds the credentials in the variables that net/http reads. Short
// ones are words of answers too: a password "pass" must not change a verdict.
func (r *Redactor) addProxies() {
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"} {
		for _, secret := range URLSecrets(os.Getenv(name)) {
			r.AddValue(secret)
		}
	}
}

// URLSecrets returns the credentials in an address, for [Redactor.AddValue]:
// the password, or the user where there is none, as written and unescaped, and
// the user together with the password. Of a text that is no valid address it is
// what stands before the @.
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
	if !found {
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

// redactReply removes secrets from what the model answered. cut: its text ends before its end.
func (c *Client) redactReply(r *Reply, cut bool) {
	if r == nil {
		return
	}
	secrets := c.cfg.Redactor
	r.Text = secrets.RedactString(r.Text)
	if cut {
		r.Text = string(secrets.RedactCut([]byte(r.Text)))
	}
	r.Model, r.ID, r.FinishReason = secrets.RedactString(r.Model), secrets.RedactString(r.ID), secrets.RedactString(r.FinishReason)
}

// redactError removes secrets from an error.
func (c *Client) redactError(e *Error) {
	secrets := c.cfg.Redactor
	text := e.Err.Error()
	if clean := secrets.RedactString(text); clean != text {
		e.Err = errors.New(clean)
	}
	e.Code, e.Type, e.Alike = secrets.RedactString(e.Code), secrets.RedactString(e.Type), secrets.RedactString(e.Alike)
	for name, fact := range e.Facts {
		switch v := fact.(type) {
		case string:
			e.Facts[name] = secrets.RedactString(v)
		case []string:
			for i := range v {
				v[i] = secrets.RedactString(v[i])
			}
		case json.RawMessage:
			e.Facts[name] = json.RawMessage(secrets.Redact(v))
		}
	}
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
