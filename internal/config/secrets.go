package config

import (
	"errors"
	"io"
	"net/url"
	"strings"

	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/redact"
)

// Secret is a password, a key, or an address that may hold one.
type Secret = redact.Secret

// Secrets holds everything that must not be printed. A nil Secrets is empty. Safe for
// concurrent use.
type Secrets struct {
	llm redact.Redactor // keys, extra headers, members of the extra body, passwords of proxies
	// other holds the secrets of NATS and of tracing. They are never sent to a provider
	// and may be ordinary words of a reply, so they are removed from log lines and errors
	// alone.
	other redact.Redactor
	// again gathers the secrets of all stages that use this collection. Each
	// [Source.Load] wraps the function of the one before. It is nil before the first.
	again func()
}

// Renew adds all secrets again, as their files hold them now. The collection is bounded,
// and drops those that were added longest ago: after a Renew these are secrets that were
// rotated.
func (s *Secrets) Renew() {
	if s != nil && s.again != nil {
		s.again()
	}
}

// Secrets returns everything that must not be printed. It is nil where there is nothing.
// [Secrets.Renew] reads the files again.
func (c *Config) Secrets() *Secrets { return c.secrets }

// Redact returns b without secrets.
func (s *Secrets) Redact(b []byte) []byte {
	if s == nil {
		return b
	}
	return s.other.Redact(s.llm.Redact(b))
}

// Redactor returns the redactor that removes the secrets sent to a provider from its
// replies. It is nil where there are none.
func (c *Config) Redactor() *redact.Redactor {
	if c.secrets == nil {
		return nil
	}
	return &c.secrets.llm
}

// RedactError returns err, unless its text holds secrets. Then it returns an error with
// the rest of the text, which wraps nothing: the wrapped error would still have the
// secret.
func (s *Secrets) RedactError(err error) error {
	text := err.Error()
	if clean := string(s.Redact([]byte(text))); clean != text {
		return errors.New(clean)
	}
	return err
}

// gather adds the secrets of the configuration and of the environment. Those that are
// sent to a provider go to llm, all others to other, see [Secrets]. It skips files that
// cannot be read: loadField has reported them.
func (s *Secrets) gather(c *Config, environ map[string]string) {
	for _, f := range Fields() {
		if !f.Secret {
			continue
		}
		text, _ := f.value(c).Interface().(Secret).Value()
		if gather := f.secretKind().gather; gather != nil {
			gather(&s.llm, text)
		} else {
			s.other.Add(text)
		}
	}
	for _, address := range c.NATS.URL.addresses() {
		s.other.Add(redact.URLSecrets(address)...)
	}
	for _, path := range []string{c.NATS.Creds, c.NATS.NKey} {
		s.addSeeds(path)
	}
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"} {
		s.llm.AddValue(strings.Join(redact.URLSecrets(environ[name]), " "))
	}
	for _, name := range []string{"", "TRACES_", "METRICS_"} {
		s.addList(environ["OTEL_EXPORTER_OTLP_"+name+"HEADERS"])
		s.other.AddValue(
			strings.Join(redact.URLSecrets(environ["OTEL_EXPORTER_OTLP_"+name+"ENDPOINT"]), " "))
	}
}

// secretKind is what is particular about secrets of a kind.
type secretKind struct {
	// check returns the problem of a text, without repeating it. It may be nil.
	check func(text string) error
	// gather adds the secrets in a text to those that are sent to a provider. It is nil
	// for a secret that is not.
	gather func(sent *redact.Redactor, text string)
	// readOnce reads a file at the start and never again, so that the secrets that are
	// found in it are those that are sent.
	readOnce bool
}

// secretKinds has the kinds by the tag holds.
var secretKinds = map[string]secretKind{
	"key": {
		check:  llm.ValidateAPIKey,
		gather: func(sent *redact.Redactor, text string) { sent.Add(text) },
	},
	"headers": {check: llm.ValidateExtraHeaders, gather: llm.AddHeaderSecrets},
	"body": {
		check: func(text string) error {
			if _, err := readExtraBody(text); err != nil {
				return errors.New(extraBodyProblem(err))
			}
			return nil
		},
		gather:   func(sent *redact.Redactor, text string) { sent.AddExtraBody([]byte(text)) },
		readOnce: true,
	},
}

// secretKind returns the kind of a secret. One that no provider gets has the zero value.
func (f *Field) secretKind() secretKind { return secretKinds[f.leaf.Tag.Get("holds")] }

// addSeeds adds the tokens and seeds in a credentials file or an NKey seed file: lines of
// more than 40 characters that are neither a rule of dashes nor a sentence.
func (s *Secrets) addSeeds(path string) {
	if path == "" {
		return
	}
	text, _ := redact.SecretFile(path).Value()
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); len(line) > 40 && !strings.HasPrefix(line, "-") &&
			!strings.Contains(line, " ") {
			s.other.Add(line)
		}
	}
}

// addList adds the values of headers in OpenTelemetry's form, name=value separated by
// commas. An entry in another form is secret as a whole: a value may have been set in
// place of a name.
func (s *Secrets) addList(list string) {
	for pair := range strings.SplitSeq(list, ",") {
		name, value, found := strings.Cut(pair, "=")
		if !found || strings.ContainsAny(strings.TrimSpace(name), ": ") {
			s.other.AddValue(name)
		}
		s.other.AddValue(value)
		if plain, err := url.PathUnescape(value); err == nil {
			s.other.AddValue(plain)
		}
	}
}

// RedactingWriter removes secrets from the text written to it. Each Write must be whole
// lines, as a log writes them: a secret that is split over two is not found.
type RedactingWriter struct {
	To      io.Writer
	Secrets *Secrets // with nil nothing is removed
}

// Write implements [io.Writer].
func (w RedactingWriter) Write(b []byte) (int, error) {
	if _, err := w.To.Write(w.Secrets.Redact(b)); err != nil {
		return 0, err
	}
	return len(b), nil
}
