package cli

import (
	"bytes"
	"log"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stagetest"
)

// TestEveryCommandRefusesBadKeys gives every command that reads keys an invalid one, by
// each way to give one.
func TestEveryCommandRefusesBadKeys(t *testing.T) {
	const hidden = "sk-hidden-0123456789"
	rows := filepath.Join(t.TempDir(), "rows.jsonl")
	stagetest.Must(t, os.WriteFile(rows, []byte("{\"q\":1}\n"), 0o600))
	commands := [][]string{
		{"config", "--check"},
		{"config"},
		{"run"},
		{"process", rows, "-o", rows + ".out"},
		{"process", rows, "-o", rows + ".out", "--dry-run"},
		{"batch", "question"},
		{"setup"},
	}
	for i, tt := range []struct{ key, problem string }{
		{"\uFEFF" + hidden + "\n", "contains a byte order mark (BOM); save it as plain text without one"},
		{hidden + "\n" + hidden, "contains a line break; give the key alone, on one line"},
		{hidden + " ", "contains white space or control characters; remove them"},
		{"Bearer " + hidden, "contains white space or control characters; remove them"},
		{"sk–" + hidden, "contains characters that are not ASCII; copy the key again"},
		{`"` + hidden + "\"\n", "is in quotes; remove them"},
	} {
		key, problem := tt.key, tt.problem
		if i == 1 { // all commands read keys in the same way
			commands = commands[:1]
		}
		file := filepath.Join(t.TempDir(), "key")
		stagetest.Must(t, os.WriteFile(file, []byte(key), 0o600))
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

// TestSecretsAreNotInTheStandardLog logs as net/http (Go 1.26, transport.go,
// readLoopPeekFailLocked) does when a server continues after its reply.
func TestSecretsAreNotInTheStandardLog(t *testing.T) {
	cfg, err := config.Source{Environ: map[string]string{"STAGE_LLM_API_KEY": "sk-not-asked-for"}}.Load(t.Context(), config.NeedNothing)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	undo := redactStandardLog(&out, cfg.Secrets())
	defer undo()
	log.Printf("Unsolicited response received on idle HTTP channel starting with %q", "Bearer sk-not-asked-for")
	if got := out.String(); !strings.Contains(got, `"Bearer [redacted]"`) {
		t.Errorf("got %s", got)
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
		stagetest.Must(t, os.WriteFile(file, []byte(tt.value+"\n"), 0o600))
		for variable, value := range map[string]string{tt.variable: tt.value, tt.variable + "_FILE": file} {
			for _, check := range [][]string{{"config", "--check"}, {"config"}} {
				var out bytes.Buffer
				environ := map[string]string{"STAGE_LLM_API_KEY": "sk-key-0123", "STAGE_LLM_MODEL": "m", "STAGE_TEMPLATE": "x", variable: value}
				code := Main(t.Context(), &Env{Args: check, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &out, Environ: environ})
				text := out.String()
				// --check finds a problem between two variables.
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

func TestKeysAreNotInThePrintedConfiguration(t *testing.T) {
	const first, second = "sk-first-secret-0123456789", "sk-second-secret-0123456789"
	for _, args := range [][]string{{"config"}, {"config", "--markdown"}} {
		var out, errs bytes.Buffer
		env := &Env{Args: args, Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Environ: map[string]string{
			"STAGE_LLM_API_KEY": first, "STAGE_LLM_ANTHROPIC_API_KEY": second, "STAGE_NATS_URL": "nats://user:" + second + "@host",
		}}
		if code := Main(t.Context(), env); code != exitDone {
			t.Fatalf("%v: exit code %d: %s", args, code, errs.String())
		}
		for _, key := range []string{first, second} {
			if text := out.String() + errs.String(); strings.Contains(text, key) {
				t.Errorf("%v holds a key: %s", args, text)
			}
		}
	}
}
