package app

import (
	"bytes"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/nats-io/nats.go"

	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/llmtest"
)

// TestBadKeysAreRefusedByEveryCommandAlike gives every command that reads keys one with a fault, by each way to give one.
func TestBadKeysAreRefusedByEveryCommandAlike(t *testing.T) {
	const hidden = "sk-hidden-0123456789"
	rows := filepath.Join(t.TempDir(), "rows.jsonl")
	if err := os.WriteFile(rows, []byte("{\"q\":1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	commands := [][]string{
		{"config"},
		{"config", "--check"},
		{"run"},
		{"process", rows, "-o", rows + ".out"},
		{"process", rows, "-o", rows + ".out", "--dry-run"},
		{"batch", "question"},
		{"setup"},
	}
	for _, tt := range []struct{ key, problem string }{
		{"\uFEFF" + hidden + "\n", "holds a byte order mark (BOM); save it as plain text without one"},
		{hidden + "\n" + hidden, "holds a line break; give the key alone, on one line"},
		{hidden + " ", "holds white space or control characters; remove them"},
		{"Bearer " + hidden, "holds white space or control characters; remove them"},
		{"sk–" + hidden, "holds characters that are not ASCII; copy the key again"},
		{`"` + hidden + "\"\n", "is in quotes; remove them"},
	} {
		key, problem := tt.key, tt.problem
		file := filepath.Join(t.TempDir(), "key")
		if err := os.WriteFile(file, []byte(key), 0o600); err != nil {
			t.Fatal(err)
		}
		for variable, value := range map[string]string{
			"STAGE_LLM_API_KEY": key, "STAGE_LLM_API_KEY_FILE": file, "STAGE_LLM_OPENAI_API_KEY_FILE": file,
			"STAGE_LLM_ANTHROPIC_API_KEY": key, "STAGE_LLM_ANTHROPIC_API_KEY_FILE": file,
		} {
			environ := map[string]string{
				"STAGE_LLM_BASE_URL": "http://127.0.0.1:1/v1", "STAGE_LLM_MODEL": "m", "STAGE_TEMPLATE": "x", "STAGE_FALLBACKS": "anthropic:m",
				"STAGE_LLM_ANTHROPIC_API_KEY": "sk-good", "STAGE_DATA_DIR": filepath.Join(t.TempDir(), "data"), "STAGE_NATS_URL": "nats://127.0.0.1:1",
			}
			if strings.HasPrefix(variable, "STAGE_LLM_ANTHROPIC") {
				delete(environ, "STAGE_LLM_ANTHROPIC_API_KEY")
			}
			environ[variable] = value
			for _, args := range commands {
				var out bytes.Buffer
				env := &Env{Args: args, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &out, Environ: maps.Clone(environ)}
				code := Main(t.Context(), env)
				if code != exitUsage || !strings.Contains(out.String(), variable+": "+problem+"\n") || strings.Contains(out.String(), hidden) {
					t.Errorf("%v with %s=%q: exit code %d, want %d and %q:\n%s", args, variable, value, code, exitUsage, problem, &out)
				}
			}
		}
	}
}

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

// TestHeadersAndKeysAreReadAgain rotates both, then leaves a key with a fault in the file: the old one stays in use.
func TestHeadersAndKeysAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	key, headers := filepath.Join(dir, "key"), filepath.Join(dir, "headers")
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		write(key, "sk-rotated-1\n")
		write(headers, `{"x-gateway":"gateway-token-1"}`)
		var seen []string
		l := newLab(t, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
			seen = append(seen, strings.TrimPrefix(c.Header.Get("Authorization"), "Bearer ")+" "+c.Header.Get("X-Gateway"))
			return &llmtest.Step{Body: fmt.Sprintf(`{"choices":[{"message":{"content":"now %s, before sk-rotated-1 gateway-token-1"}}]}`, seen[len(seen)-1])}
		}}, nil)
		cfg := l.config(map[string]string{"STAGE_LLM_API_KEY": "", "STAGE_LLM_API_KEY_FILE": key, "STAGE_LLM_EXTRA_HEADERS_FILE": headers})
		servers, err := openTargets(cfg, l.dial, llmtest.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer servers.close()
		prompt, err := loadPrompt(cfg)
		if err != nil {
			t.Fatal(err)
		}
		call := func() {
			t.Helper()
			prepared, err := servers.At(0).Prepare(&prompt.base)
			if err != nil {
				t.Fatal(err)
			}
			x, err := servers.At(0).Do(t.Context(), prepared)
			if err != nil || strings.Contains(x.Reply.Text, "sk-") || strings.Contains(x.Reply.Text, "token") {
				t.Errorf("got %v %v", x.Reply, err)
			}
		}
		call()
		write(key, "sk-rotated-2\n")
		write(headers, `{"x-gateway":"gateway-token-2"}`)
		if err := servers.reloadKey(); err != nil {
			t.Fatal(err)
		}
		call()
		write(key, "sk-rotated-3\nsk-rotated-4")
		write(headers, `{"x-gateway":3}`)
		err = servers.reloadKey()
		if want := "STAGE_LLM_API_KEY_FILE: holds a line break; give the key alone, on one line\nSTAGE_LLM_EXTRA_HEADERS_FILE: X-Gateway: the value is not a string"; fmt.Sprint(err) != want {
			t.Errorf("got %v, want %s", err, want)
		}
		call()
		if want := []string{"sk-rotated-1 gateway-token-1", "sk-rotated-2 gateway-token-2", "sk-rotated-2 gateway-token-2"}; !slices.Equal(seen, want) {
			t.Errorf("sent %q, want %q", seen, want)
		}
	})
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
	servers, err := openTargets(cfg, nil, llmtest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer servers.close()
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
	if err := servers.reloadKey(); err != nil {
		t.Fatal(err)
	}
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

// TestSecretsOfTheProcessAreInNoLogLine logs what libraries might put into their errors.
func TestSecretsOfTheProcessAreInNoLogLine(t *testing.T) {
	const seed = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
	creds := filepath.Join(t.TempDir(), "creds")
	if err := os.WriteFile(creds, []byte("-----BEGIN USER NKEY SEED-----\n"+seed+"\n------END USER NKEY SEED------\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	environ := map[string]string{
		"STAGE_LLM_API_KEY": "sk-in-no-log", "STAGE_LLM_EXTRA_HEADERS": `{"x-gateway":"Bearer gateway-token"}`, "STAGE_LLM_EXTRA_BODY": `{"api_key":"body-secret"}`,
		"STAGE_NATS_URL": "nats://user:url-password@host", "STAGE_NATS_CREDS": creds, "HTTPS_PROXY": "http://user:proxy-password@host",
		"OTEL_EXPORTER_OTLP_HEADERS": "Authorization: Bearer otel-token-1,x-key=otel%2Dtoken-2", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://u:otel-password@host",
	}
	cfg, err := ConfigSource{Environ: environ}.Load(t.Context(), NeedNothing)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	log := newConfiguredLogger(cfg, &out)
	words := "sk-in-no-log gateway-token body-secret url-password proxy-password otel-token-1 otel-token-2 otel-password " + seed
	for word := range strings.FieldsSeq(words) {
		log.Warn("failed", slog.Any("error", fmt.Errorf("401 %s: %q", word, `\"`+word)))
		if err := cfg.secrets.redactError(fmt.Errorf("parse %s: no", word)); err.Error() != "parse [redacted]: no" {
			t.Errorf("the error is %v", err)
		}
		if strings.Contains(out.String(), word) {
			t.Errorf("%s is in the log: %s", word, &out)
		}
		out.Reset()
	}
	// Words of the log's own stay.
	if log.Info("started", slog.String("provider", "openai")); !strings.Contains(out.String(), `"msg":"started","provider":"openai"`) {
		t.Errorf("got %s", &out)
	}
}

// TestSecretsAreNotInTheStandardLog logs as net/http (Go 1.26, transport.go, readLoopPeekFailLocked) does when a server
// goes on after its reply.
func TestSecretsAreNotInTheStandardLog(t *testing.T) {
	cfg, err := ConfigSource{Environ: map[string]string{"STAGE_LLM_API_KEY": "sk-not-asked-for"}}.Load(t.Context(), NeedNothing)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	undo := redactStandardLog(&out, cfg.secrets)
	defer undo()
	log.Printf("Unsolicited response received on idle HTTP channel starting with %q", "Bearer sk-not-asked-for")
	if got := out.String(); !strings.Contains(got, `"Bearer [redacted]"`) {
		t.Errorf("got %s", got)
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
