package config

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/golden"
	"github.com/llm-stage/stage/llm"
)

// load reads a configuration from pairs of variable and text.
func load(t *testing.T, need Need, pairs ...string) (*Config, error) {
	t.Helper()
	return Source{Environ: environ(t, pairs...)}.Load(t.Context(), need)
}

func environ(t *testing.T, pairs ...string) map[string]string {
	t.Helper()
	vars := make(map[string]string)
	for i := 0; i < len(pairs); i += 2 {
		vars[pairs[i]] = pairs[i+1]
	}
	return vars
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
	"STAGE_LLM_TEMPERATURE": "", "STAGE_LLM_MAX_TOKENS": "", "STAGE_LLM_EXTRA_BODY": "", "STAGE_LLM_EXTRA_HEADERS": "", "STAGE_LLM_ACCEPT_TRUNCATED": "false",
	"STAGE_LLM_RPM": "0", "STAGE_LLM_TPM": "0", "STAGE_LLM_MAX_CONCURRENCY": "", "STAGE_FALLBACKS": "", "STAGE_FALLBACK_AFTER": "0",
	"STAGE_TEMPLATE": "", "STAGE_TEMPLATE_FILE": "", "STAGE_SYSTEM_PROMPT": "", "STAGE_LOOKUP_FILE": "",
	"STAGE_RESPONSE_FIELD": "llm_response", "STAGE_RESPONSE_SCHEMA_FILE": "", "STAGE_DEDUPE": "off", "STAGE_DEDUPE_TTL": "24h",
	"STAGE_ON_UPSTREAM_ERROR": "pass", "STAGE_AUDIT_PAYLOADS": "full", "STAGE_ON_FATAL": "pause",
	"STAGE_FATAL_PROBE_INTERVAL": "60s", "STAGE_OUTAGE_HOLD": "0", "STAGE_MAX_COST_USD": "0", "STAGE_PRICES_FILE": "", "STAGE_BATCH_MAX_PARALLEL": "5",
	"STAGE_BATCH_PARALLEL_LIMIT": "20", "STAGE_BATCH_MAX_PROMPTS": "1000",
	"STAGE_BATCH_RPM": "anthropic=60,openai=60,openrouter=100", "STAGE_HTTP_ADDR": "127.0.0.1:9464", "STAGE_HTTP_HOSTS": "",
	"STAGE_DASHBOARD_PAYLOADS": "false", "STAGE_STOP_TIMEOUT": "150s", "STAGE_LOG_LEVEL": "info", "STAGE_LOG_FORMAT": "",
	"STAGE_LLM_<PROVIDER>_BASE_URL": "", "STAGE_LLM_<PROVIDER>_API_KEY": "",
}

func TestVariablesAndDefaultsAreThoseUsersRelyOn(t *testing.T) {
	got := make(map[string]string)
	for _, f := range Fields() {
		got[documentedName(&f)] = f.Fallback
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
	for _, f := range Fields() {
		if f.Help == "" || f.Group == "" {
			t.Errorf("%s: help %q, group %q: both must be there", f.Variable, f.Help, f.Group)
		}
		for _, variable := range f.FlagVariables() {
			if flags[FlagName(variable)] {
				t.Errorf("--%s: flag of two fields", FlagName(variable))
			}
			flags[FlagName(variable)] = true
		}
		if !regexp.MustCompile(`^STAGE_[A-Z0-9_]+$`).MatchString(f.Variable) {
			t.Errorf("%s: not a name of a variable", f.Variable)
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
		"sync":     {c.Data.Sync, SyncPolicy{Always: true}},
		"base url": {c.LLM.BaseURL, "https://api.openai.com/v1"},
		"tokens":   {c.LLM.MaxTokens == nil, true},
		"heat":     {c.LLM.Temperature == nil, true},
		"extra":    {c.LLM.ExtraBody.IsSet(), false},
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
		"STAGE_LLM_EXTRA_BODY", `{ "top_p": 0.90, "seed": 12345678901234567890 }`, "STAGE_LLM_MAX_CONCURRENCY", "openai=8, anthropic=4",
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
	if got, err := c.LLM.ReadExtraBody(); string(got) != `{"top_p":0.90,"seed":12345678901234567890}` || err != nil {
		t.Errorf("extra body: got %s, %v, want it as written, without its spaces", got, err)
	}
	if want := (ProviderLimits{"openai": 8, "anthropic": 4}); !maps.Equal(c.LLM.MaxConcurrency, want) {
		t.Errorf("concurrency: got %v, want %v", c.LLM.MaxConcurrency, want)
	}
	if want := (Fallbacks{{"openrouter", "meta/llama:free"}, {"mock", "m"}}); !slices.Equal(c.Fallback.Models, want) {
		t.Errorf("fallbacks: got %v, want %v", c.Fallback.Models, want)
	}
	if c.Data.Sync != (SyncPolicy{Interval: 2 * time.Second}) || c.Journal.Enabled || c.Pool.RecoveryStep != Milliseconds(500*time.Microsecond) {
		t.Errorf("got %v %v %v", c.Data.Sync, c.Journal.Enabled, c.Pool.RecoveryStep)
	}
	if c.Pool.Size != 1 {
		t.Errorf("pool size: got %d, want the default for an empty variable", c.Pool.Size)
	}
}

func TestFlagsWinOverTheEnvironment(t *testing.T) {
	keyFile := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(keyFile, []byte("from-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	source := Source{
		Environ: environ(t, "STAGE_POOL_SIZE", "2", "STAGE_WINDOW", "3", "STAGE_TEMPLATE_FILE", "nowhere", "STAGE_LLM_API_KEY", "from-environment"),
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
	if key, err := c.LLM.APIKey.Value(); key != "from-file" || err != nil {
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
		"STAGE_FALLBACKS", "mock:a:b", "STAGE_WINDOW_BYTES", "1048577", "STAGE_RECOVERY_STEP_MS", "1.5")
	if err != nil {
		t.Fatal(err)
	}
	settings := c.Settings()
	for _, f := range Fields() {
		if f.Secret {
			delete(settings, f.Variable)
		}
	}
	again, err := Source{Environ: settings}.Load(t.Context(), NeedNothing)
	if err != nil {
		t.Fatal(err)
	}
	c.origins, again.origins, c.secrets, again.secrets = nil, nil, nil, nil
	if !reflect.DeepEqual(c, again) {
		t.Errorf("got %+v\nwant %+v", again, c)
	}
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

func TestEnvExampleHoldsEveryVariable(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Every variable of stage with its default. Copy this file to .env and take away the # in front of what you change.\n" +
		"# A secret may be given as the path of a file, by a variable whose name ends in _FILE.\n")
	group := ""
	written := make(map[string]bool)
	for _, f := range Fields() {
		if f.Group != group {
			group = f.Group
			fmt.Fprintf(&b, "\n# --- %s ---\n", group)
		}
		if f.Group == groupProviders && written[f.Help] {
			fmt.Fprintf(&b, "# %s=\n", f.Variable)
			continue
		}
		written[f.Help] = true
		fmt.Fprintf(&b, "# %s\n# %s=%s\n", f.Help, f.Variable, f.Fallback)
	}
	golden.Check(t, filepath.Join("..", "..", ".env.example"), b.String())
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
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		for _, name := range regexp.MustCompile(`"STAGE_[A-Z_]+"`).FindAllString(string(text), -1) {
			if variable := strings.Trim(name, `"`); variable != VariablePrefix && known[variable] == nil {
				t.Errorf("%s: %s is not a variable", path, variable)
			}
		}
	}
}

func BenchmarkLoad(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := (Source{}).Load(context.Background(), NeedNothing); err != nil {
			b.Fatal(err)
		}
	}
}

func TestEachProviderHasVariablesOfItsOwn(t *testing.T) {
	for _, name := range llm.Providers() {
		variable := ProviderVariables(name) + "_API_KEY"
		cfg, _ := load(t, NeedNothing, variable, "sk-"+name) // whatever else is missing
		if key, err := cfg.LLM.own(name).APIKey.Value(); err != nil || key != "sk-"+name {
			t.Errorf("%s: key %q, %v", variable, key, err)
		}
	}
}
