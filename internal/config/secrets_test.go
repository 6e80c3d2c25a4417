package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/llm-stage/stage/llm/redact"
)

// TestSecretsInUseOutliveRotatedOnes rotates so often before and after a reload that only what it added again is known.
func TestSecretsInUseOutliveRotatedOnes(t *testing.T) {
	body := filepath.Join(t.TempDir(), "body")
	write := func(text string) {
		t.Helper()
		must(t, os.WriteFile(body, []byte(text), 0o600))
	}
	write(`{"api_key":"body-secret"}`)
	cfg, err := Source{Environ: map[string]string{
		"STAGE_LLM_API_KEY": "sk-in-use", "STAGE_LLM_EXTRA_HEADERS": `{"x-gateway":"Bearer gateway-token"}`, "STAGE_LLM_EXTRA_BODY_FILE": body,
		"STAGE_LLM_MODEL": "m", "STAGE_TEMPLATE": "x", "HTTPS_PROXY": "http://user:proxy-password@host",
		"STAGE_NATS_URL": "nats://host", "STAGE_NATS_TOKEN": "nats-token", "OTEL_EXPORTER_OTLP_HEADERS": "x-key=otel-token",
	}}.Load(t.Context(), NeedCalls)
	if err != nil {
		t.Fatal(err)
	}
	rotate := func(name string) {
		for _, r := range []*redact.Redactor{&cfg.secrets.llm, &cfg.secrets.other} {
			var rotated []string
			for i := range 200 {
				rotated = append(rotated, fmt.Sprintf("%s-%03d", name, i))
			}
			r.Add(rotated...)
		}
	}
	rotate("before")
	write(`{"api_key":"never-sent"}`)
	cfg.secrets.Renew()
	rotate("after")
	for _, secret := range []string{"sk-in-use", "gateway-token", "body-secret", "user:proxy-password", "nats-token", "otel-token", "after-000"} {
		if got := string(cfg.secrets.Redact([]byte(secret))); got != "[redacted]" {
			t.Errorf("%s becomes %q", secret, got)
		}
	}
	if got := string(cfg.secrets.Redact([]byte("before-000 never-sent"))); got != "before-000 never-sent" {
		t.Errorf("what is not in use any more becomes %q", got)
	}
}

// TestShortPasswordsOfNATSAreInNoLogLine has a server repeat passwords as short as ordinary words.
func TestShortPasswordsOfNATSAreInNoLogLine(t *testing.T) {
	for _, environ := range []map[string]string{
		{"STAGE_NATS_URL": "nats://user:hunter2@host"},
		{"STAGE_NATS_URL": "nats://hunter2@host"},
		{"STAGE_NATS_URL": "nats://host", "STAGE_NATS_USER": "user", "STAGE_NATS_PASSWORD": "hunter2"},
		{"STAGE_NATS_URL": "nats://host", "STAGE_NATS_TOKEN": "hunter2"},
	} {
		cfg, err := Source{Environ: environ}.Load(t.Context(), NeedNothing)
		if err != nil {
			t.Fatal(err)
		}
		if got := cfg.secrets.RedactError(errors.New("bad login hunter2")).Error(); got != "bad login [redacted]" {
			t.Errorf("%v: got %q", environ, got)
		}
	}
}
