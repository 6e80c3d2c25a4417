package config

import (
	"errors"
	"io"
	"net/url"
	"strings"

	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/redact"
)

// Secrets are all that must not be printed. Those of NATS and of tracing are apart, as they are never sent to a provider,
// and their words may be words of answers: they are removed from log lines and errors alone. Nil knows none. Safe for
// concurrent use.
type Secrets struct {
	llm   redact.Redactor // keys, extra headers, members of the extra body, passwords of proxies
	other redact.Redactor
	again func() // gathers them again; nil: nothing was gathered
}

// Renew adds all that is in use again, with what files hold by now: so only what was rotated away is ever forgotten.
func (s *Secrets) Renew() {
	if s != nil && s.again != nil {
		s.again()
	}
}

// Secrets returns all that must not be printed; nil: there is nothing. They are read again by renew.
func (c *Config) Secrets() *Secrets { return c.secrets }

// Redact returns b without secrets.
func (s *Secrets) Redact(b []byte) []byte {
	if s == nil {
		return b
	}
	return s.other.Redact(s.llm.Redact(b))
}

// Redactor removes from replies what was sent to a provider.
func (c *Config) Redactor() *redact.Redactor {
	if c.secrets == nil {
		return nil
	}
	return &c.secrets.llm
}

// RedactError returns err, or one without its secrets that has the same text otherwise.
func (s *Secrets) RedactError(err error) error {
	text := err.Error()
	if clean := string(s.Redact([]byte(text))); clean != text {
		return errors.New(clean)
	}
	return err
}

// gather adds the secrets of the configuration and of the environment. loadField reports files it cannot read.
func (s *Secrets) gather(c *Config, environ map[string]string) {
	for i := range Fields() {
		f := &Fields()[i]
		if !f.Secret {
			continue
		}
		text, _ := f.value(c).Interface().(Secret).Value()
		switch {
		case f.Variable == "STAGE_LLM_EXTRA_BODY":
			s.llm.AddExtraBody([]byte(text))
		case f.Variable == "STAGE_LLM_EXTRA_HEADERS":
			llm.AddHeaderSecrets(&s.llm, text)
		case strings.HasPrefix(f.Variable, VariablePrefix+"LLM_"):
			s.llm.Add(text)
		default:
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
	for _, name := range []string{"", "TRACES_"} {
		s.addList(environ["OTEL_EXPORTER_OTLP_"+name+"HEADERS"])
		s.other.AddValue(strings.Join(redact.URLSecrets(environ["OTEL_EXPORTER_OTLP_"+name+"ENDPOINT"]), " "))
	}
}

// addSeeds adds the lines of a file of credentials or of an NKey seed.
func (s *Secrets) addSeeds(path string) {
	if path == "" {
		return
	}
	text, _ := redact.SecretFile(path).Value()
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); len(line) > 40 && !strings.HasPrefix(line, "-") && !strings.Contains(line, " ") {
			s.other.Add(line)
		}
	}
}

// addList adds the values of headers as OpenTelemetry writes them, name=value separated by commas. One that is not
// written so is secret as a whole: a value may be in the place of a name.
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

// RedactingWriter removes secrets from what is written in whole lines, as a log is.
type RedactingWriter struct {
	To      io.Writer
	Secrets *Secrets
}

// Write implements [io.Writer].
func (w RedactingWriter) Write(b []byte) (int, error) {
	if _, err := w.To.Write(w.Secrets.Redact(b)); err != nil {
		return 0, err
	}
	return len(b), nil
}
