package app

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var update = flag.Bool("update", false, "write the golden files anew")

// load reads a configuration from pairs of variable and text.
func load(t *testing.T, need Need, pairs ...string) (*Config, error) {
	t.Helper()
	return ConfigSource{Environ: environ(t, pairs...)}.Load(t.Context(), need)
}

func environ(t *testing.T, pairs ...string) map[string]string {
	t.Helper()
	vars := make(map[string]string)
	for i := 0; i < len(pairs); i += 2 {
		vars[pairs[i]] = pairs[i+1]
	}
	return vars
}

// golden compares got with the file, or writes it with -update.
func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is out of date: run go test with -update and read the diff\ngot:\n%s", path, got)
	}
}

// contractVariables are the names and defaults that users rely on: each change here belongs in the CHANGELOG.
var contractVariables = map[string]string{
	"STAGE_NAME": "stage", "STAGE_NATS_URL": "", "STAGE_NATS_CREDS": "", "STAGE_NATS_NKEY": "", "STAGE_NATS_TOKEN": "",
	"STAGE_NATS_USER": "", "STAGE_NATS_PASSWORD": "", "STAGE_NATS_TLS_CA": "", "STAGE_NATS_TLS_CERT": "",
	"STAGE_NATS_TLS_KEY": "", "STAGE_NATS_TLS_FIRST": "false", "STAGE_NATS_INBOX_PREFIX": "",
	"STAGE_DATA_DIR": "stage-data", "STAGE_DATA_SYNC": "always", "STAGE_INPUT_STREAM": "ROWS", "STAGE_INPUT_SUBJECT": "rows.>",
	"STAGE_RESULT_STREAM": "RESULTS", "STAGE_RESULT_SUBJECT": "results", "STAGE_AUDIT_STREAM": "AUDIT",
	"STAGE_AUDIT_SUBJECT": "audit", "STAGE_JOURNAL": "true", "STAGE_JOURNAL_AFTER": "50ms", "STAGE_JOURNAL_STREAM": "JOURNAL",
	"STAGE_DEAD_LETTER_SUBJECT": "", "STAGE_PARTITIONS": "1", "STAGE_CREATE_STREAMS": "true", "STAGE_STREAM_REPLICAS": "1",
	"STAGE_STREAM_STORAGE": "file", "STAGE_AUDIT_MAX_AGE": "720h", "STAGE_AUDIT_MAX_BYTES": "0", "STAGE_RESULT_MAX_BYTES": "0",
	"STAGE_JOURNAL_MAX_BYTES": "1GiB", "STAGE_WINDOW": "1024", "STAGE_WINDOW_BYTES": "256MiB", "STAGE_POOL_SIZE": "1",
	"STAGE_THROTTLE": "adaptive", "STAGE_MIN_DISPATCH_DELAY_MS": "0", "STAGE_MAX_DISPATCH_DELAY_MS": "5000",
	"STAGE_BACKOFF_MULTIPLIER": "2.0", "STAGE_RECOVERY_STEP_MS": "50", "STAGE_ROW_TIMEOUT": "0", "STAGE_RETRY_MAX_ATTEMPTS": "3",
	"STAGE_RETRY_BASE_DELAY": "2s", "STAGE_RETRY_BACKOFF_FACTOR": "2.0", "STAGE_RETRY_MAX_DELAY": "60s",
	"STAGE_LLM_PROVIDER": "openai", "STAGE_LLM_BASE_URL": "", "STAGE_LLM_API_KEY": "", "STAGE_LLM_MODEL": "",
	"STAGE_LLM_AZURE_API_VERSION": "", "STAGE_LLM_TIMEOUT": "120s", "STAGE_LLM_MAX_REPLY_BYTES": "8MiB", "STAGE_LLM_CA_FILE": "",
	"STAGE_LLM_TEMPERATURE": "", "STAGE_LLM_MAX_TOKENS": "", "STAGE_LLM_EXTRA_BODY": "", "STAGE_LLM_ACCEPT_TRUNCATED": "false",
	"STAGE_LLM_RPM": "0", "STAGE_LLM_TPM": "0", "STAGE_LLM_MAX_CONCURRENCY": "", "STAGE_FALLBACKS": "", "STAGE_FALLBACK_AFTER": "0",
	"STAGE_TEMPLATE": "", "STAGE_TEMPLATE_FILE": "", "STAGE_SYSTEM_PROMPT": "", "STAGE_LOOKUP_FILE": "",
	"STAGE_RESPONSE_FIELD": "llm_response", "STAGE_RESPONSE_SCHEMA_FILE": "", "STAGE_DEDUPE": "off", "STAGE_DEDUPE_TTL": "24h",
	"STAGE_ON_UPSTREAM_ERROR": "pass", "STAGE_AUDIT_PAYLOADS": "full", "STAGE_ON_FATAL": "pause",
	"STAGE_FATAL_PROBE_INTERVAL": "60s", "STAGE_MAX_COST_USD": "0", "STAGE_PRICES_FILE": "", "STAGE_BATCH_MAX_PARALLEL": "5",
	"STAGE_BATCH_PARALLEL_LIMIT": "20", "STAGE_BATCH_MAX_PROMPTS": "1000",
	"STAGE_BATCH_RPM": "anthropic=60,openai=60,openrouter=100", "STAGE_HTTP_ADDR": "127.0.0.1:9464",
	"STAGE_DASHBOARD_PAYLOADS": "false", "STAGE_STOP_TIMEOUT": "150s", "STAGE_LOG_LEVEL": "info", "STAGE_LOG_FORMAT": "",
	"STAGE_LLM_<PROVIDER>_BASE_URL": "", "STAGE_LLM_<PROVIDER>_API_KEY": "",
}

func TestVariablesAndDefaultsAreThoseUsersRelyOn(t *testing.T) {
	got := make(map[string]string)
	for _, f := range configFields() {
		got[documentedName(&f)] = f.fallback
	}
	if !maps.Equal(got, contractVariables) {
		for _, name := range slices.Sorted(maps.Keys(contractVariables)) {
			if text, ok := got[name]; !ok || text != contractVariables[name] {
				t.Errorf("%s: got default %q (present: %t), want %q", name, text, ok, contractVariables[name])
			}
			delete(got, name)
		}
		for name := range got {
			t.Errorf("%s: not one of the documented variables", name)
		}
	}
}

func TestEveryFieldIsDocumented(t *testing.T) {
	flags := make(map[string]bool)
	for _, f := range configFields() {
		if f.help == "" || f.group == "" {
			t.Errorf("%s: help %q, group %q: both must be there", f.variable, f.help, f.group)
		}
		if flags[f.flag()] {
			t.Errorf("--%s: flag of two fields", f.flag())
		}
		flags[f.flag()] = true
		if !regexp.MustCompile(`^STAGE_[A-Z0-9_]+$`).MatchString(f.variable) {
			t.Errorf("%s: not a name of a variable", f.variable)
		}
	}
}

func TestDefaultsAreFilledIn(t *testing.T) {
	c, err := load(t, NeedNothing)
	if err != nil {
		t.Fatal(err)
	}
	type set struct{ got, want any }
	for name, v := range map[string]set{
		"name":     {c.Name, "stage"},
		"window":   {c.Window.Bytes, Size(256 << 20)},
		"delay":    {c.Pool.MaxDispatchDelay, Milliseconds(5 * time.Second)},
		"timeout":  {c.LLM.Timeout, 2 * time.Minute},
		"sync":     {c.Data.Sync, SyncInterval(0)},
		"base url": {c.LLM.BaseURL, "https://api.openai.com/v1"},
		"tokens":   {c.LLM.MaxTokens == nil, true},
		"heat":     {c.LLM.Temperature == nil, true},
		"extra":    {c.LLM.ExtraBody == nil, true},
		"limits":   {c.LLM.MaxConcurrency == nil, true},
		"rpm":      {c.Batch.RPM["openrouter"], 100},
		"key":      {c.LLM.APIKey.IsSet(), false},
	} {
		if v.got != v.want {
			t.Errorf("%s: got %v, want %v", name, v.got, v.want)
		}
	}
}

func TestValuesAreReadFromTheirVariables(t *testing.T) {
	c, err := load(t, NeedNothing,
		"STAGE_NATS_URL", "nats://a:4222, b:4222", "STAGE_LLM_TEMPERATURE", "0", "STAGE_LLM_MAX_TOKENS", "100",
		"STAGE_LLM_EXTRA_BODY", `{ "top_p": 0.90, "n": 12345678901234567890 }`, "STAGE_LLM_MAX_CONCURRENCY", "openai=8, anthropic=4",
		"STAGE_FALLBACKS", "openrouter:meta/llama:free,mock:m", "STAGE_DATA_SYNC", "2s", "STAGE_JOURNAL", "false",
		"STAGE_RECOVERY_STEP_MS", "0.5", "STAGE_POOL_SIZE", "", "STAGE_WINDOW", "2000", "UNRELATED", "x")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.NATS.URL.Joined(), "nats://a:4222,nats://b:4222"; got != want {
		t.Errorf("URL: got %q, want %q", got, want)
	}
	if c.LLM.Temperature == nil || *c.LLM.Temperature != 0 {
		t.Errorf("temperature: got %v, want 0, which is not unset", c.LLM.Temperature)
	}
	if c.LLM.MaxTokens == nil || *c.LLM.MaxTokens != 100 {
		t.Errorf("max tokens: got %v, want 100", c.LLM.MaxTokens)
	}
	if got, want := c.LLM.ExtraBody.String(), `{"top_p":0.90,"n":12345678901234567890}`; got != want {
		t.Errorf("extra body: got %s, want %s", got, want)
	}
	if want := (ProviderLimits{"openai": 8, "anthropic": 4}); !maps.Equal(c.LLM.MaxConcurrency, want) {
		t.Errorf("concurrency: got %v, want %v", c.LLM.MaxConcurrency, want)
	}
	if want := (Fallbacks{{"openrouter", "meta/llama:free"}, {"mock", "m"}}); !slices.Equal(c.Fallback.Models, want) {
		t.Errorf("fallbacks: got %v, want %v", c.Fallback.Models, want)
	}
	if c.Data.Sync != SyncInterval(2*time.Second) || c.Journal.Enabled || c.Pool.RecoveryStep != Milliseconds(500*time.Microsecond) {
		t.Errorf("got %v %v %v", c.Data.Sync, c.Journal.Enabled, c.Pool.RecoveryStep)
	}
	if c.Pool.Size != 1 {
		t.Errorf("pool size: got %d, want the default for an empty variable", c.Pool.Size)
	}
}

// faultLines are the faults of err, one a line.
func faultLines(err error) []string {
	if err == nil {
		return nil
	}
	return strings.Split(err.Error(), "\n")
}

func TestEachFaultNamesItsVariable(t *testing.T) {
	dir := t.TempDir()
	for _, tt := range []struct {
		name  string
		need  Need
		env   []string
		wants []string // one for each fault, in order
	}{
		{"good", NeedNothing, nil, nil},
		{"good for calls", NeedCalls, []string{"STAGE_LLM_PROVIDER", "mock", "STAGE_TEMPLATE", "x"}, nil},
		{"own server without a key", NeedCalls, []string{"STAGE_LLM_BASE_URL", "http://localhost:11434/v1", "STAGE_LLM_MODEL", "m", "STAGE_TEMPLATE", "x"}, nil},
		{"nothing given for calls", NeedCalls, nil, []string{
			"STAGE_LLM_API_KEY: give the key of openai",
			"STAGE_LLM_MODEL: give the model",
			"STAGE_TEMPLATE: give the template",
		}},
		{"key of the provider itself", NeedCalls, []string{"STAGE_LLM_OPENAI_API_KEY", "k", "STAGE_LLM_MODEL", "m", "STAGE_TEMPLATE", "x"}, nil},
		{"azure", NeedCalls, []string{"STAGE_LLM_PROVIDER", "azure", "STAGE_LLM_API_KEY", "k", "STAGE_LLM_MODEL", "m", "STAGE_TEMPLATE", "x"}, []string{
			"STAGE_LLM_BASE_URL: azure has no base URL",
		}},
		{"fallbacks", NeedCalls, []string{
			"STAGE_LLM_PROVIDER", "mock", "STAGE_TEMPLATE", "x",
			"STAGE_FALLBACKS", "mock:mock,azure:a,anthropic:b",
		}, []string{
			"STAGE_LLM_AZURE_BASE_URL: a fallback uses azure",
			"STAGE_LLM_AZURE_API_KEY: a fallback uses azure",
			"STAGE_LLM_ANTHROPIC_API_KEY: a fallback uses anthropic",
			"STAGE_FALLBACKS: mock:mock is the first model already",
		}},
		{"both templates", NeedNothing, []string{"STAGE_TEMPLATE", "x", "STAGE_TEMPLATE_FILE", "config_test.go"}, []string{
			"STAGE_TEMPLATE: both it and STAGE_TEMPLATE_FILE are set",
		}},
		{"kinds", NeedNothing, []string{
			"STAGE_POOL_SIZE", "many", "STAGE_JOURNAL", "maybe", "STAGE_BACKOFF_MULTIPLIER", "x2", "STAGE_ROW_TIMEOUT", "60",
			"STAGE_WINDOW_BYTES", "64MB", "STAGE_MIN_DISPATCH_DELAY_MS", "5ms", "STAGE_LLM_EXTRA_BODY", "[1]", "STAGE_DATA_SYNC", "never",
			"STAGE_LLM_MAX_CONCURRENCY", "openai", "STAGE_FALLBACKS", "gpt-4o", "STAGE_NATS_URL", "http://x", "STAGE_LLM_BASE_URL", "api.example.com",
			"STAGE_BATCH_RPM", "openai=1,openai=2", "STAGE_LLM_MAX_TOKENS", "1.5", "STAGE_LLM_TEMPERATURE", "hot", "STAGE_HTTP_ADDR", "9464",
			"STAGE_AUDIT_MAX_BYTES", "9999999999GiB",
		}, []string{
			`STAGE_NATS_URL: scheme "http" is not one of`,
			`STAGE_DATA_SYNC: "never" is neither`,
			`STAGE_AUDIT_MAX_BYTES: "9999999999GiB" is too large`,
			`STAGE_JOURNAL: "maybe" is not true or false`,
			`STAGE_WINDOW_BYTES: "64MB" is not a size`,
			`STAGE_POOL_SIZE: "many" is not a whole number`,
			`STAGE_MIN_DISPATCH_DELAY_MS: "5ms" is not a number of milliseconds`,
			`STAGE_BACKOFF_MULTIPLIER: "x2" is not a number`,
			`STAGE_ROW_TIMEOUT: "60" is not a duration`,
			`STAGE_LLM_BASE_URL: not an address`,
			`STAGE_LLM_TEMPERATURE: "hot" is not a number`,
			`STAGE_LLM_MAX_TOKENS: "1.5" is not a whole number`,
			`STAGE_LLM_EXTRA_BODY: not a JSON object`,
			`STAGE_LLM_MAX_CONCURRENCY: "openai" is not provider=number`,
			`STAGE_FALLBACKS: "gpt-4o" is not provider:model`,
			`STAGE_BATCH_RPM: provider "openai" is named twice`,
			`STAGE_HTTP_ADDR: "9464" is not host:port`,
		}},
		{"ranges", NeedNothing, []string{
			"STAGE_POOL_SIZE", "0", "STAGE_PARTITIONS", "-1", "STAGE_BACKOFF_MULTIPLIER", "1", "STAGE_RETRY_BACKOFF_FACTOR", "0.5",
			"STAGE_ROW_TIMEOUT", "-1s", "STAGE_MAX_DISPATCH_DELAY_MS", "0", "STAGE_LLM_TEMPERATURE", "3", "STAGE_MAX_COST_USD", "NaN",
			"STAGE_WINDOW", "1000000", "STAGE_NAME", "Über", "STAGE_STREAM_REPLICAS", "2", "STAGE_THROTTLE", "fast",
			"STAGE_LLM_PROVIDER", "clippy", "STAGE_LOG_FORMAT", "xml",
		}, []string{
			`STAGE_NAME: "Über" is not a name here`,
			`STAGE_PARTITIONS: -1 is too small: give 1 or more`,
			`STAGE_STREAM_REPLICAS: 2: an even number`,
			`STAGE_WINDOW: 1000000 is too large: give 50000 or less`,
			`STAGE_POOL_SIZE: 0 is too small: give 1 or more`,
			`STAGE_THROTTLE: "fast" is unknown: choose adaptive or classic`,
			`STAGE_MAX_DISPATCH_DELAY_MS: 0 is too small: give more than 0`,
			`STAGE_BACKOFF_MULTIPLIER: 1 is too small: give more than 1`,
			`STAGE_ROW_TIMEOUT: -1s is too small: give 0 or more`,
			`STAGE_RETRY_BACKOFF_FACTOR: 0.5 is too small: give 1 or more`,
			`STAGE_LLM_PROVIDER: "clippy" is unknown: choose openai, `,
			`STAGE_LLM_TEMPERATURE: 3 is too large: give 2 or less`,
			`STAGE_MAX_COST_USD: NaN is not a number to work with`,
			`STAGE_LOG_FORMAT: "xml" is unknown: choose text or json`,
		}},
		{"values that do not fit together", NeedNothing, []string{
			"STAGE_MIN_DISPATCH_DELAY_MS", "6000", "STAGE_RETRY_BASE_DELAY", "2m", "STAGE_STOP_TIMEOUT", "120s", "STAGE_MAX_COST_USD", "5",
			"STAGE_BATCH_MAX_PARALLEL", "50", "STAGE_FALLBACK_AFTER", "5s", "STAGE_PARTITIONS", "2", "STAGE_RESULT_STREAM", "ROWS",
		}, []string{
			"STAGE_INPUT_SUBJECT: \"rows.>\" has no place for the partition: with 2 partitions",
			"STAGE_RESULT_STREAM: ROWS is STAGE_INPUT_STREAM already",
			"STAGE_MAX_DISPATCH_DELAY_MS: 5000 is below STAGE_MIN_DISPATCH_DELAY_MS, 6000",
			"STAGE_RETRY_MAX_DELAY: 1m is below STAGE_RETRY_BASE_DELAY, 2m",
			"STAGE_FALLBACK_AFTER: there is no fallback",
			"STAGE_MAX_COST_USD: a ceiling needs prices: set STAGE_PRICES_FILE",
			"STAGE_BATCH_MAX_PARALLEL: 50 is above STAGE_BATCH_PARALLEL_LIMIT, 20",
			"STAGE_STOP_TIMEOUT: 2m is not longer than one attempt",
		}},
		{"a step of 0 at a floor of 0", NeedNothing, []string{"STAGE_RECOVERY_STEP_MS", "0"}, []string{"STAGE_RECOVERY_STEP_MS: 0 with a floor of 0"}},
		{"a step of 0 above a floor", NeedNothing, []string{"STAGE_RECOVERY_STEP_MS", "0", "STAGE_MIN_DISPATCH_DELAY_MS", "1"}, nil},
		{"partitions", NeedNothing, []string{"STAGE_PARTITIONS", "8", "STAGE_INPUT_SUBJECT", "rows.{partition}.>"}, nil},
		{"subjects", NeedNothing, []string{
			"STAGE_INPUT_SUBJECT", "rows..x", "STAGE_RESULT_SUBJECT", "results.>", "STAGE_AUDIT_SUBJECT", "a b",
			"STAGE_DEAD_LETTER_SUBJECT", "dead.*", "STAGE_JOURNAL_STREAM", "JOUR.NAL",
		}, []string{
			"STAGE_INPUT_SUBJECT: \"rows..x\" is not a subject",
			"STAGE_RESULT_SUBJECT: \"results.>\" is not a subject without wildcards",
			"STAGE_AUDIT_SUBJECT: \"a b\" is not a subject without wildcards",
			"STAGE_JOURNAL_STREAM: \"JOUR.NAL\" is not a stream's name",
			"STAGE_DEAD_LETTER_SUBJECT: \"dead.*\" is not a subject without wildcards",
		}},
		{"output that would be input", NeedNothing, []string{"STAGE_INPUT_SUBJECT", "results.>", "STAGE_DEAD_LETTER_SUBJECT", "results.dead"}, []string{
			"STAGE_RESULT_SUBJECT: what it publishes on results.stage.*.* is input again",
			"STAGE_DEAD_LETTER_SUBJECT: what it publishes on results.dead is input again",
		}},
		{"input from another stage's results", NeedNothing, []string{"STAGE_INPUT_SUBJECT", "results.first.*.rows", "STAGE_NAME", "second"}, nil},
		{"files", NeedNothing, []string{"STAGE_LOOKUP_FILE", "/nowhere/x", "STAGE_TEMPLATE_FILE", dir}, []string{
			"STAGE_TEMPLATE_FILE: " + dir + ": is a directory",
			"STAGE_LOOKUP_FILE: /nowhere/x: no such file or directory",
		}},
		{"embedded server with a login", NeedNothing, []string{"STAGE_NATS_TOKEN", "t", "STAGE_NATS_USER", "u"}, []string{
			"STAGE_NATS_TOKEN: the embedded server does not use it",
			"STAGE_NATS_USER: the embedded server does not use it",
		}},
		{"logins", NeedNothing, []string{"STAGE_NATS_URL", "x", "STAGE_NATS_TOKEN", "t", "STAGE_NATS_USER", "u", "STAGE_NATS_TLS_CERT", "config_test.go"}, []string{
			"STAGE_NATS_USER: set together with STAGE_NATS_TOKEN",
			"STAGE_NATS_USER: a user without a password",
			"STAGE_NATS_TLS_CERT: certificate and key go together",
		}},
		{"a password alone", NeedNothing, []string{"STAGE_NATS_URL", "x", "STAGE_NATS_PASSWORD", "p"}, []string{"STAGE_NATS_PASSWORD: a password without a user"}},
		{"credentials in the base URL", NeedNothing, []string{"STAGE_LLM_BASE_URL", "https://u:p@host/v1"}, []string{"STAGE_LLM_BASE_URL: holds a user or password"}},
		{"unknown variables", NeedNothing, []string{
			"STAGE_POOL_SIZ", "3", "STAGE_LLM_APIKEY", "k", "STAGE_ZZZZZZZZZZZZZZZZ", "", "STAGE_POOL_SIZE_FILE", "f", "STAGE_LLM_MODELL", "m",
		}, []string{
			"STAGE_LLM_APIKEY: unknown variable, did you mean STAGE_LLM_API_KEY?",
			"STAGE_LLM_MODELL: unknown variable, did you mean STAGE_LLM_MODEL?",
			"STAGE_POOL_SIZ: unknown variable, did you mean STAGE_POOL_SIZE?",
			"STAGE_POOL_SIZE_FILE: only secrets may be given by file: set STAGE_POOL_SIZE",
			"STAGE_ZZZZZZZZZZZZZZZZ: unknown variable: unset it",
		}},
		{"service links", NeedNothing, []string{
			"STAGE_SERVICE_HOST", "x", "STAGE_SERVICE_PORT", "1", "STAGE_PORT", "tcp://", "STAGE_PORT_9464_TCP_ADDR", "x",
			"STAGE_WEST_SERVICE_HOST", "x", "STAGE_WEST_SERVICE_PORT_METRICS", "1", "STAGE_WEST_PORT", "tcp://", "STAGE_WEST_PORT_80_TCP", "x",
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := load(t, tt.need, tt.env...)
			got := faultLines(err)
			if len(got) != len(tt.wants) {
				t.Fatalf("got %d faults, want %d:\n%s", len(got), len(tt.wants), strings.Join(got, "\n"))
			}
			for i, want := range tt.wants {
				if !strings.HasPrefix(got[i], want) {
					t.Errorf("fault %d: got %q, want %q…", i, got[i], want)
				}
			}
			if err == nil {
				if err := c.Validate(tt.need); err != nil {
					t.Errorf("Validate: got %v for what Load took", err)
				}
				return
			}
			if _, ok := errors.AsType[*Fault](err); !ok {
				t.Errorf("got %T, want *Fault within", err)
			}
		})
	}
}

func TestFlagsWinOverTheEnvironment(t *testing.T) {
	keyFile := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(keyFile, []byte("from file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	source := ConfigSource{
		Environ: environ(t, "STAGE_POOL_SIZE", "2", "STAGE_WINDOW", "3", "STAGE_TEMPLATE_FILE", "nowhere", "STAGE_LLM_API_KEY", "from environment"),
		Flags: environ(t, "STAGE_POOL_SIZE", "4", "STAGE_WINDOW", "", "STAGE_TEMPLATE", "x", "STAGE_LLM_API_KEY_FILE", keyFile,
			"STAGE_LLM_MODEL", "m"),
		Defaults: environ(t, "STAGE_POOL_SIZE", "5", "STAGE_PARTITIONS", "1", "STAGE_NAME", "own"),
	}
	c, err := source.Load(t.Context(), NeedCalls)
	if err != nil {
		t.Fatal(err)
	}
	if c.Pool.Size != 4 || c.Window.Rows != 1024 || c.Name != "own" {
		t.Errorf("got pool %d, window %d, name %q; want 4 by flag, 1024 by the empty flag, own by the command", c.Pool.Size, c.Window.Rows, c.Name)
	}
	if c.Prompt.TemplateFile != "" || c.Prompt.Template != "x" {
		t.Errorf("got template %q, file %q; want the flag alone", c.Prompt.Template, c.Prompt.TemplateFile)
	}
	if key, err := c.LLM.APIKey.Value(); key != "from file" || err != nil {
		t.Errorf("got key %q, %v; want the file that the flag names", key, err)
	}
	want := map[string]origin{"STAGE_POOL_SIZE": fromFlag, "STAGE_WINDOW": fromFlag, "STAGE_NAME": fromDefault, "STAGE_TEMPLATE_FILE": fromDefault, "STAGE_LLM_API_KEY": fromFlag}
	for variable, origin := range want {
		if got := c.origins[variable]; got != origin {
			t.Errorf("%s: got origin %s, want %s", variable, got, origin)
		}
	}
	source.Flags["STAGE_POOL_SIZE"] = "x"
	_, err = source.Load(t.Context(), NeedCalls)
	if got, want := fmt.Sprint(err), `STAGE_POOL_SIZE (--pool-size): "x" is not a whole number`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestEffectiveConfigurationReadsBackAsItself(t *testing.T) {
	c, err := load(t, NeedNothing, "STAGE_BATCH_RPM", "mock=3", "STAGE_LLM_TEMPERATURE", "0.25", "STAGE_DATA_SYNC", "90s",
		"STAGE_LLM_EXTRA_BODY", `{"a":1}`, "STAGE_FALLBACKS", "mock:a:b", "STAGE_WINDOW_BYTES", "1048577", "STAGE_RECOVERY_STEP_MS", "1.5")
	if err != nil {
		t.Fatal(err)
	}
	settings := c.Settings()
	for _, f := range configFields() {
		if f.secret {
			delete(settings, f.variable)
		}
	}
	again, err := ConfigSource{Environ: settings}.Load(t.Context(), NeedNothing)
	if err != nil {
		t.Fatal(err)
	}
	c.origins, again.origins = nil, nil
	if !reflect.DeepEqual(c, again) {
		t.Errorf("got %+v\nwant %+v", again, c)
	}
}

func TestSizePrintsWhatItReads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := Size(rapid.Int64Range(0, 1<<62).Draw(t, "size"))
		if shift := rapid.IntRange(0, 3).Draw(t, "unit") * 10; want>>shift > 0 {
			want = want >> shift << shift
		}
		var got Size
		if err := got.EnvDecode(want.String()); err != nil || got != want {
			t.Fatalf("%d prints as %q, which reads as %d, %v", want, want, got, err)
		}
	})
}

func TestSubjectsOverlapWhenOneSubjectMatchesBoth(t *testing.T) {
	token := rapid.SampledFrom([]string{"a", "b", "*"})
	matches := func(filter, subject []string) bool {
		for i, f := range filter {
			if f == ">" {
				return i < len(subject)
			}
			if i == len(subject) || f != "*" && f != subject[i] {
				return false
			}
		}
		return len(filter) == len(subject)
	}
	var subjects [][]string // every subject of up to four tokens over a, b and one that no filter names
	var grow func(prefix []string)
	grow = func(prefix []string) {
		if len(prefix) > 0 {
			subjects = append(subjects, slices.Clone(prefix))
		}
		if len(prefix) < 4 {
			for _, next := range []string{"a", "b", "c"} {
				grow(append(prefix, next))
			}
		}
	}
	grow(nil)
	rapid.Check(t, func(t *rapid.T) {
		draw := func(label string) []string {
			filter := rapid.SliceOfN(token, 1, 3).Draw(t, label)
			if rapid.Bool().Draw(t, label+" open") {
				filter = append(filter, ">")
			}
			return filter
		}
		a, b := draw("a"), draw("b")
		want := slices.ContainsFunc(subjects, func(s []string) bool { return matches(a, s) && matches(b, s) })
		if got := subjectsOverlap(strings.Join(a, "."), strings.Join(b, ".")); got != want {
			t.Fatalf("subjectsOverlap(%v, %v): got %t, want %t", a, b, got, want)
		}
	})
}

func TestEndpointOfAFallbackHasItsOwnSettings(t *testing.T) {
	c, err := load(t, NeedNothing, "STAGE_LLM_API_KEY", "first", "STAGE_LLM_BASE_URL", "https://first/v1/",
		"STAGE_LLM_OPENAI_BASE_URL", "https://own/v1", "STAGE_LLM_ANTHROPIC_API_KEY", "second")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ provider, url, key string }{
		{"openai", "https://first/v1", "first"},
		{"anthropic", "https://api.anthropic.com/v1", "second"},
		{"gemini", "https://generativelanguage.googleapis.com/v1beta", ""},
		{"mock", "", ""},
		{"clippy", "", ""},
	} {
		e := c.LLM.Endpoint(tt.provider)
		if key, err := e.APIKey.Value(); e.BaseURL != tt.url || key != tt.key || err != nil {
			t.Errorf("%s: got %q, key %q, %v; want %q, key %q", tt.provider, e.BaseURL, key, err, tt.url, tt.key)
		}
	}
}

func TestSecretsAreReadAgainFromTheirFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("one\r\n")
	c, err := load(t, NeedNothing, "STAGE_LLM_API_KEY_FILE", path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"one", "two"} {
		if got, err := c.LLM.APIKey.Value(); got != want || err != nil {
			t.Errorf("got %q, %v; want %q", got, err, want)
		}
		write("two\n")
	}
	write("\n")
	if _, err := c.LLM.APIKey.Value(); err == nil || !strings.Contains(err.Error(), path+": the file is empty") {
		t.Errorf("got %v, want that the file is empty", err)
	}
	write(strings.Repeat("x", secretBytesMax+1))
	if _, err := c.LLM.APIKey.Value(); err == nil || !strings.Contains(err.Error(), "larger than 64KiB") {
		t.Errorf("got %v, want that the file is too large", err)
	}
	_, err = load(t, NeedNothing, "STAGE_LLM_API_KEY_FILE", path+"x", "STAGE_NATS_TOKEN_FILE", path, "STAGE_NATS_TOKEN", "t", "STAGE_NATS_URL", "x")
	for i, want := range []string{"STAGE_NATS_TOKEN: both it and STAGE_NATS_TOKEN_FILE", "STAGE_LLM_API_KEY_FILE: " + path + "x: no such file"} {
		if got := faultLines(err)[i]; !strings.HasPrefix(got, want) {
			t.Errorf("got %q, want %q…", got, want)
		}
	}
}

func TestSecretsAreNeverPrinted(t *testing.T) {
	c, err := load(t, NeedNothing, "STAGE_LLM_API_KEY", "hunter2", "STAGE_NATS_URL", "nats://hunter2@host,nats://u:hunter2@host", "STAGE_NATS_PASSWORD", "hunter2", "STAGE_NATS_USER", "u")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := writeConfig(&b, c); err != nil {
		t.Fatal(err)
	}
	asJSON, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	b.Write(asJSON)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		fmt.Fprintf(&b, verb+" "+verb+" "+verb+"\n", c.LLM.APIKey, c.NATS.URL, *c)
	}
	slog.New(slog.NewJSONHandler(&b, nil)).Info("x", slog.Any("key", c.LLM.APIKey), slog.Any("url", c.NATS.URL), slog.Any("nats", c.NATS))
	fmt.Fprint(&b, c.Settings())
	if strings.Contains(b.String(), "hunter2") {
		t.Errorf("a secret was printed:\n%s", b.String())
	}
	for _, text := range []string{"nats://a:hunter2@", "http://hunter2@host"} {
		if _, err := load(t, NeedNothing, "STAGE_NATS_URL", text); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v, want a fault without the secret", text, err)
		}
	}
}

func TestEnvExampleHoldsEveryVariable(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Every variable of stage with its default. Copy this file to .env and take away the # in front of what you change.\n" +
		"# A secret may be given as the path of a file, by a variable whose name ends in _FILE.\n")
	group := ""
	written := make(map[string]bool)
	for _, f := range configFields() {
		if f.group != group {
			group = f.group
			fmt.Fprintf(&b, "\n# --- %s ---\n", group)
		}
		if f.group == groupProviders && written[f.help] {
			fmt.Fprintf(&b, "# %s=\n", f.variable)
			continue
		}
		written[f.help] = true
		fmt.Fprintf(&b, "# %s\n# %s=%s\n", f.help, f.variable, f.fallback)
	}
	golden(t, filepath.Join("..", "..", "..", ".env.example"), b.String())
}

// Every name that a cross check mentions must be that of a field: a fault of another would lose its place.
func TestChecksNameVariablesThatExist(t *testing.T) {
	source, err := filepath.Glob("config_*.go")
	if err != nil {
		t.Fatal(err)
	}
	known := fieldsByVariable()
	for _, path := range source {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if path == "config_test.go" {
			continue
		}
		for _, name := range regexp.MustCompile(`"STAGE_[A-Z_]+"`).FindAllString(string(text), -1) {
			if variable := strings.Trim(name, `"`); variable != variablePrefix && known[variable] == nil {
				t.Errorf("%s: %s is not a variable", path, variable)
			}
		}
	}
}

func BenchmarkLoad(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := (ConfigSource{}).Load(context.Background(), NeedNothing); err != nil {
			b.Fatal(err)
		}
	}
}
