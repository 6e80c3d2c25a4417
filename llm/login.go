package llm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"os"
	"slices"
	"strings"

	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/llm/redact"
)

// The ways of authorising calls, as STAGE_LLM_AUTH spells them.
const (
	AuthKey    = "key"    // an API key
	AuthAWS    = "aws"    // an identity of AWS, which signs each request (SigV4)
	AuthGoogle = "google" // an access token of Google's application default credentials
	AuthEntra  = "entra"  // an access token of Microsoft Entra ID
)

// Authorizer authorises calls where no API key does: by the identity that a cloud gives
// the process. Package llm/identity has one for each cloud. It is safe for concurrent use,
// and one serves all calls.
type Authorizer interface {
	// Authorize adds a token, or a signature of the request, to the headers of a request
	// that is about to be sent, and returns the number of the credential that it used. It
	// waits for a new credential if it has none that is valid, until the context ends. Its
	// error says why there is none, and how to get one.
	Authorize(ctx context.Context, r *http.Request, body []byte) (credential int, err error)
	// Outdated reports whether the next request would use another credential than the one
	// of this number. It is called when a provider has refused that one, so it tries to get
	// a new one first. It is false for 0, which stands for no call.
	Outdated(credential int) bool
	// Account names whose data a provider shows to this identity, without a secret.
	Account() string
}

// login is what calls send to authenticate. It is never changed, only replaced by another.
type login struct {
	key    string
	extra  []header    // of [ProviderConfig.ExtraHeaders]
	header http.Header // all of it, shared by all requests
	number int         // counts the logins of a client from 1
}

// SetLogin replaces the credential and the headers of
// [ProviderConfig.ExtraHeaders] for calls that start from now on, both at once,
// and reads the files that hold them. It reports whether either has changed. Its error is
// a [*SettingError], or several joined; both old ones then stay. A reply may still repeat
// the old ones: they are kept out of what calls return, too.
func (c *Client) SetLogin(apiKey, extraHeaders redact.Secret) (changed bool, err error) {
	// The lock is held while the files are read, too: a value that was read first must not
	// be stored last.
	c.loginMu.Lock()
	defer c.loginMu.Unlock()
	old := c.login.Load()
	l, problems := readLogin(apiKey, extraHeaders)
	if err = errors.Join(problems...); err == nil && !l.equal(old) {
		if err = c.use(l); err == nil {
			return true, nil
		}
	}
	c.remember(old)
	return false, err
}

// Outdated reports whether the credential or the headers that a call was made with have been
// replaced since. A refusal of such a call says nothing of the present ones.
func (c *Client) Outdated(x *Exchange) bool {
	return x.login != c.login.Load().number || c.cfg.Auth != nil &&
		c.cfg.Auth.Outdated(x.credential)
}

// authorize completes the headers of a request, which are then its own.
func (c *Client) authorize(r *http.Request, body []byte) (credential int, err error) {
	if c.cfg.Auth == nil {
		return 0, nil
	}
	r.Header = r.Header.Clone()
	if credential, err = c.cfg.Auth.Authorize(r.Context(), r, body); err != nil {
		err = &unauthorizedError{err}
	}
	return credential, err
}

// ErrNoCredential is wrapped by the error of a call that was not made, because its
// [Authorizer] had no credential.
var ErrNoCredential = errors.New("no credential")

// unauthorizedError is why a request got no credential, and was not sent.
type unauthorizedError struct{ error }

// Unwrap returns the cause, whose text says that there is no credential.
func (e *unauthorizedError) Unwrap() []error { return []error{e.error, ErrNoCredential} }

// equal reports whether both are the same secrets.
func (l *login) equal(m *login) bool { return l.key == m.key && slices.Equal(l.extra, m.extra) }

// readLogin reads and checks both secrets. Each error is a [*SettingError].
func readLogin(apiKey, extraHeaders redact.Secret) (l *login, problems []error) {
	l = new(login)
	var err error
	if l.key, err = apiKey.Value(); err == nil {
		err = ValidateAPIKey(l.key)
	}
	if err != nil {
		problems = append(problems, &SettingError{Setting: "APIKey", Err: err})
	}
	text, err := extraHeaders.Value()
	if err == nil {
		l.extra, err = readHeaders(text)
	}
	if err != nil {
		problems = append(problems, &SettingError{Setting: "ExtraHeaders", Err: err})
	}
	return l, problems
}

// use makes the headers of further calls. The caller holds loginMu, unless nobody else has
// the client yet.
func (c *Client) use(l *login) error {
	h := http.Header{
		"Content-Type": {"application/json"},
		"Accept":       {"application/json"},
		"User-Agent":   {"llm-stage"},
	}
	c.wire.SetHeader(h, "")
	keyless := h.Clone()
	c.wire.SetHeader(h, l.key)
	for _, e := range l.extra {
		var err error
		switch own := h.Get(e.name); {
		case own != keyless.Get(e.name) && l.key != "":
			err = fmt.Errorf("%s carries the API key already; remove it, or set no API key", e.name)
		case c.cfg.Auth != nil && e.name == "Authorization":
			err = errors.New("the header Authorization carries the cloud's credential already; " +
				"remove it, or let a key authorise the calls")
		}
		if err != nil {
			return &SettingError{Setting: "ExtraHeaders", Err: err}
		}
	}
	for _, e := range l.extra {
		h.Set(e.name, e.value)
	}
	l.header = h
	if l.number = 1; c.login.Load() != nil {
		l.number += c.login.Load().number
	}
	c.remember(l) // before any call can send them
	c.login.Store(l)
	return nil
}

// remember adds the secrets in use to the Redactor, which forgets those first that were
// added least recently.
func (c *Client) remember(l *login) {
	secrets := c.cfg.Redactor
	addProxies(secrets)
	addHeaders(secrets, l.extra)
	secrets.Add(l.key)
}

// ValidateAPIKey returns why a key cannot be sent as it is, mostly because something of
// its file or variable was taken as part of it. The error does not repeat it. An empty
// key is fine.
func ValidateAPIKey(key string) error {
	switch {
	case strings.ContainsRune(key, '\uFEFF'), strings.HasPrefix(key, "\xFF\xFE"),
		strings.HasPrefix(key, "\xFE\xFF"):
		return errors.New("contains a byte order mark (BOM); save it as plain text without one")
	case strings.ContainsAny(key, "\r\n"):
		return errors.New("contains a line break; give the key alone, on one line")
	}
	for _, c := range []byte(key) {
		switch {
		case c <= ' ' || c == 0x7f:
			return errors.New("contains white space or control characters; remove them")
		case c > 0x7f:
			return errors.New("contains characters that are not ASCII; copy the key again")
		}
	}
	if n := len(key); n > 1 && key[0] == key[n-1] && strings.ContainsRune("\"'`", rune(key[0])) {
		return errors.New("is in quotes; remove them")
	}
	return nil
}

// addProxies adds the credentials in the variables that net/http reads. Short
// ones are words of answers too: a password "pass" must not change a verdict.
func addProxies(r *redact.Redactor) {
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"} {
		for _, secret := range redact.URLSecrets(os.Getenv(name)) {
			r.AddValue(secret)
		}
	}
}

// Format implements [fmt.Formatter]: no verb prints a key.
func (c *Client) Format(f fmt.State, _ rune) {
	// f keeps the error.
	_, _ = fmt.Fprintf(f, "llm.Client{%s %s %s}", c.provider, c.base, c.cfg.Model)
}

// Format implements [fmt.Formatter]: no verb prints a key.
func (c ProviderConfig) Format(f fmt.State, _ rune) {
	_, _ = fmt.Fprintf(f, "llm.ProviderConfig{%q}", c.Model) // f keeps the error
}

// header is one header of a request.
type header struct{ name, value string }

// refusedHeaders belong to the connection or to the body as it is written.
var refusedHeaders = []string{
	"Accept", "Accept-Encoding", "Connection", "Content-Encoding", "Content-Length", "Content-Type",
	"Expect", "Host", "Keep-Alive",
	"Proxy-Authorization", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// openHeaders contain no secret, but words that any answer may contain: versions, names
// and addresses.
var openHeaders = []string{
	"Anthropic-Beta", "Anthropic-Version", "Http-Referer", "Openai-Beta", "Openai-Organization",
	"Openai-Project", "Referer",
	"User-Agent", "X-Goog-Api-Client", "X-Goog-User-Project", "X-Openrouter-Categories",
	"X-Openrouter-Title", "X-Title",
	"X-Vertex-Ai-Llm-Request-Type", "X-Vertex-Ai-Llm-Shared-Request-Type",
}

// ValidateExtraHeaders reports why text is not a valid
// [ProviderConfig.ExtraHeaders]. The error does not repeat any value. Empty is fine.
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
	var problems []error
	for key, value := range jsonbytes.Members(raw) {
		h := header{name: textproto.CanonicalMIMEHeaderKey(string(key))}
		if value[0] == '"' {
			h.value = jsonbytes.Text(value)
		}
		switch {
		case !isToken(h.name):
			err = fmt.Errorf("%.40q is not a valid header name", key)
		case slices.Contains(refusedHeaders, h.name):
			err = fmt.Errorf("%s is set by the client itself; remove it", h.name)
		case value[0] != '"':
			err = fmt.Errorf("%s: the value is not a string", h.name)
		case h.value == "" || h.value != strings.TrimSpace(h.value) ||
			strings.ContainsFunc(h.value, func(r rune) bool { return r < ' ' || r > '~' }):
			err = fmt.Errorf("%s: the value is empty, begins or ends with a space, or is not "+
				"printable ASCII", h.name)
		case slices.ContainsFunc(headers, func(o header) bool { return o.name == h.name }):
			err = fmt.Errorf("%s is given twice", h.name)
		default:
			headers = append(headers, h)
			continue
		}
		problems = append(problems, err)
	}
	return headers, errors.Join(problems...)
}

// headerNameBytes are the bytes allowed in a header name.
const headerNameBytes = "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

func isToken(name string) bool { return name != "" && strings.Trim(name, headerNameBytes) == "" }

// AddHeaderSecrets adds to r the values in the text of [ProviderConfig.ExtraHeaders] that
// have 8 bytes or more, except the values of well-known headers without secrets. If text
// is not such an object, each word counts as a value.
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
