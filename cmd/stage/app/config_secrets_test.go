package app

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/llm-stage/stage/llm"
)

func TestExtraHeadersAndBodyAreChecked(t *testing.T) {
	for _, tt := range []struct{ variable, value, want string }{
		{"STAGE_LLM_EXTRA_HEADERS", `{"x-one":"hidden-value"}`, ""},
		{"STAGE_LLM_EXTRA_HEADERS", `x-one: hidden-value`, "STAGE_LLM_EXTRA_HEADERS: not a JSON object of strings"},
		{"STAGE_LLM_EXTRA_HEADERS", `{"Host":"hidden-value"}`, "STAGE_LLM_EXTRA_HEADERS: Host is set by the client itself"},
		{"STAGE_LLM_EXTRA_HEADERS", `{"Authorization":"hidden-value"}`, "STAGE_LLM_EXTRA_HEADERS: Authorization carries the API key already"},
		{"STAGE_LLM_EXTRA_BODY", `{"api_key":"hidden-value"}`, ""},
		{"STAGE_LLM_EXTRA_BODY", `{"api_key":"hidden-value"`, "STAGE_LLM_EXTRA_BODY: not a JSON object"},
	} {
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, []byte(tt.value+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		for variable, value := range map[string]string{tt.variable: tt.value, tt.variable + "_FILE": file} {
			for _, check := range [][]string{{"config", "--check"}, {"config"}} {
				var out bytes.Buffer
				environ := map[string]string{"STAGE_LLM_API_KEY": "sk-key-0123", "STAGE_LLM_MODEL": "m", "STAGE_TEMPLATE": "x", variable: value}
				code := Main(t.Context(), &Env{Args: check, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &out, Environ: environ})
				text := out.String()
				// A fault between two variables is found by --check.
				if fails := tt.want != "" && (len(check) == 2 || !strings.Contains(tt.want, "carries")); fails != (code == exitUsage) {
					t.Errorf("%v of %s=%s: exit code %d: %s", check, variable, value, code, text)
				} else if fails && !strings.Contains(strings.Replace(text, "_FILE", "", 1), tt.want) {
					t.Errorf("%s=%s: got %s, want %q", variable, value, text, tt.want)
				} else if !fails && len(check) == 1 && !strings.Contains(text, "(set)") {
					t.Errorf("%s=%s: got %s, want that it is set", variable, value, text)
				}
				if strings.Contains(text, "hidden-value") {
					t.Errorf("%s=%s: it is printed: %s", variable, value, text)
				}
			}
		}
	}
}

func TestAKeyInThePlaceOfItsPathIsNotPrinted(t *testing.T) {
	for value, want := range map[string]string{
		"sk-in-place-of-a-path":                              "STAGE_LLM_API_KEY_FILE: no such file or directory: give the path",
		strings.Repeat("sk-longer-than-a-name-", 20):         "STAGE_LLM_API_KEY_FILE: file name too long: give the path",
		filepath.Join(t.TempDir(), "run", "secrets", "none"): "none: no such file or directory: give the path",
	} {
		var out bytes.Buffer
		environ := map[string]string{"STAGE_LLM_MODEL": "m", "STAGE_TEMPLATE": "x", "STAGE_LLM_API_KEY_FILE": value}
		code := Main(t.Context(), &Env{Args: []string{"config", "--check"}, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &out, Environ: environ})
		if code != exitUsage || !strings.Contains(out.String(), want) || strings.Contains(out.String(), "sk-") {
			t.Errorf("%s: exit code %d, want %d and %q:\n%s", value, code, exitUsage, want, &out)
		}
	}
}

// TestSecretsInUseOutliveRotatedOnes rotates so often before and after a reload that only what it added again is known.
func TestSecretsInUseOutliveRotatedOnes(t *testing.T) {
	body := filepath.Join(t.TempDir(), "body")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(body, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"api_key":"body-secret"}`)
	cfg, err := ConfigSource{Environ: map[string]string{
		"STAGE_LLM_API_KEY": "sk-in-use", "STAGE_LLM_EXTRA_HEADERS": `{"x-gateway":"Bearer gateway-token"}`, "STAGE_LLM_EXTRA_BODY_FILE": body,
		"STAGE_LLM_MODEL": "m", "STAGE_TEMPLATE": "x", "HTTPS_PROXY": "http://user:proxy-password@host",
		"STAGE_NATS_URL": "nats://host", "STAGE_NATS_TOKEN": "nats-token", "OTEL_EXPORTER_OTLP_HEADERS": "x-key=otel-token",
	}}.Load(t.Context(), NeedCalls)
	if err != nil {
		t.Fatal(err)
	}
	rotate := func(name string) {
		for _, r := range []*llm.Redactor{&cfg.secrets.llm, &cfg.secrets.other} {
			var rotated []string
			for i := range 200 {
				rotated = append(rotated, fmt.Sprintf("%s-%03d", name, i))
			}
			r.Add(rotated...)
		}
	}
	rotate("before")
	write(`{"api_key":"never-sent"}`)
	cfg.secrets.renew()
	rotate("after")
	for _, secret := range []string{"sk-in-use", "gateway-token", "body-secret", "user:proxy-password", "nats-token", "otel-token", "after-000"} {
		if got := string(cfg.secrets.redact([]byte(secret))); got != "[redacted]" {
			t.Errorf("%s becomes %q", secret, got)
		}
	}
	if got := string(cfg.secrets.redact([]byte("before-000 never-sent"))); got != "before-000 never-sent" {
		t.Errorf("what is not in use any more becomes %q", got)
	}
}

// TestRotatedCredentialsOfNATSAreKnown rotates each file, and reads it as a reconnect does.
func TestRotatedCredentialsOfNATSAreKnown(t *testing.T) {
	seeds := [2]string{"SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY", "SUAIBDPBAUTWCWBKIO6XHQNINK5FWJW4OHLXC3HQ2KFE4PEJUA44CNHTC4"}
	jwts := [2]string{"eyJ0eXAiOiJKV1QiLCJhbGciOiJlZDI1NTE5In0.first", "eyJ0eXAiOiJKV1QiLCJhbGciOiJlZDI1NTE5In0.second"}
	creds := func(i int) string {
		return "-----BEGIN NATS USER JWT-----\n" + jwts[i] + "\n------END NATS USER JWT------\n" +
			"-----BEGIN USER NKEY SEED-----\n" + seeds[i] + "\n------END USER NKEY SEED------\n"
	}
	sign := func(o *nats.Options) error { _, err := o.SignatureCB([]byte("nonce")); return err }
	for _, tt := range []struct {
		variable string
		texts    [2]string
		secrets  [2]string
		read     func(o *nats.Options) error
	}{
		{"STAGE_NATS_TOKEN_FILE", [2]string{"nats-token-1", "nats-token-2"}, [2]string{"nats-token-1", "nats-token-2"}, func(o *nats.Options) error { o.TokenHandler(); return nil }},
		{"STAGE_NATS_PASSWORD_FILE", [2]string{"password-1", "password-2"}, [2]string{"password-1", "password-2"}, func(o *nats.Options) error { o.UserInfo(); return nil }},
		{"STAGE_NATS_CREDS", [2]string{creds(0), creds(1)}, jwts, func(o *nats.Options) error { _, err := o.UserJWT(); return err }},
		{"STAGE_NATS_CREDS", [2]string{creds(0), creds(1)}, seeds, sign},
		{"STAGE_NATS_NKEY", seeds, seeds, sign},
	} {
		file := filepath.Join(t.TempDir(), "file")
		environ := map[string]string{"STAGE_NATS_URL": "nats://host", tt.variable: file}
		if tt.variable == "STAGE_NATS_PASSWORD_FILE" {
			environ["STAGE_NATS_USER"] = "user"
		}
		var cfg *Config
		var o nats.Options
		for i, text := range tt.texts {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				var err error
				if cfg, err = (ConfigSource{Environ: environ}).Load(t.Context(), NeedNothing); err != nil {
					t.Fatal(err)
				}
				opts, err := natsOptions(cfg, slog.New(slog.DiscardHandler))
				for _, opt := range opts {
					err = errors.Join(err, opt(&o))
				}
				if err != nil {
					t.Fatalf("%s: %v", tt.variable, err)
				}
			}
			if err := tt.read(&o); err != nil {
				t.Errorf("%s: %v", tt.variable, err)
			}
			if got := string(cfg.secrets.redact([]byte(tt.secrets[i]))); got != "[redacted]" {
				t.Errorf("%s: number %d of its secrets becomes %q", tt.variable, i+1, got)
			}
		}
	}
}

// TestShortPasswordsOfNATSAreInNoLogLine lets a server repeat passwords that are no longer than many words.
func TestShortPasswordsOfNATSAreInNoLogLine(t *testing.T) {
	for _, environ := range []map[string]string{
		{"STAGE_NATS_URL": "nats://user:hunter2@host"},
		{"STAGE_NATS_URL": "nats://hunter2@host"},
		{"STAGE_NATS_URL": "nats://host", "STAGE_NATS_USER": "user", "STAGE_NATS_PASSWORD": "hunter2"},
		{"STAGE_NATS_URL": "nats://host", "STAGE_NATS_TOKEN": "hunter2"},
	} {
		cfg, err := ConfigSource{Environ: environ}.Load(t.Context(), NeedNothing)
		if err != nil {
			t.Fatal(err)
		}
		if got := cfg.secrets.redactError(errors.New("bad login hunter2")).Error(); got != "bad login [redacted]" {
			t.Errorf("%v: got %q", environ, got)
		}
	}
}
