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

// loaded is [load] of valid settings, for what needs nothing.
func loaded(t *testing.T, pairs ...string) *Config {
	t.Helper()
	c, err := load(t, NeedNothing, pairs...)
	must(t, err)
	return c
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func environ(t *testing.T, pairs ...string) map[string]string {
	t.Helper()
	vars := make(map[string]string)
	for i := 0; i < len(pairs); i += 2 {
		vars[pairs[i]] = pairs[i+1]
	}
	return vars
}

// TestVariablesAndDefaultsAreThoseUsersRelyOn reads what was released from .env.example, even while that file is being
// rewritten: a variable that is removed, renamed or has another default belongs in the CHANGELOG. New ones do not matter.
func TestVariablesAndDefaultsAreThoseUsersRelyOn(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", ".env.example"))
	if err != nil {
		t.Fatal(err)
	}
	released := regexp.MustCompile(`(?m)^# (STAGE_[A-Z0-9_]+)=(.*)$`).FindAllStringSubmatch(string(text), -1)
	if len(released) < 80 {
		t.Fatalf("got %d variables, there are more", len(released))
	}
	for _, v := range released {
		if f := fieldsByVariable()[v[1]]; f == nil {
			t.Errorf("%s: users rely on this variable, and it is gone", v[1])
		} else if f.Fallback != v[2] {
			t.Errorf("%s: got default %q, users rely on %q", v[1], f.Fallback, v[2])
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
	c := loaded(t)
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
	c := loaded(t,
		"STAGE_NATS_URL", "nats://a:4222, b:4222", "STAGE_LLM_TEMPERATURE", "0", "STAGE_LLM_MAX_TOKENS", "100",
		"STAGE_LLM_EXTRA_BODY", `{ "top_p": 0.90, "seed": 12345678901234567890 }`, "STAGE_LLM_MAX_CONCURRENCY", "openai=8, anthropic=4",
		"STAGE_FALLBACKS", "openrouter:meta/llama:free,mock:m", "STAGE_DATA_SYNC", "2s", "STAGE_JOURNAL", "false",
		"STAGE_RECOVERY_STEP_MS", "0.5", "STAGE_POOL_SIZE", "", "STAGE_WINDOW", "2000", "UNRELATED", "x")
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
	if c.Pool.Size != 16 {
		t.Errorf("pool size: got %d, want the default for an empty variable", c.Pool.Size)
	}
}

func TestFlagsWinOverTheEnvironment(t *testing.T) {
	keyFile := filepath.Join(t.TempDir(), "key")
	must(t, os.WriteFile(keyFile, []byte("from-file\n"), 0o600))
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
		if got := c.from.origins[variable]; got != origin {
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
	c := loaded(t, "STAGE_BATCH_RPM", "mock=3", "STAGE_LLM_TEMPERATURE", "0.25", "STAGE_DATA_SYNC", "90s",
		"STAGE_FALLBACKS", "mock:a:b", "STAGE_WINDOW_BYTES", "1048577", "STAGE_RECOVERY_STEP_MS", "1.5")
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
	c.from.origins, again.from.origins, c.secrets, again.secrets = nil, nil, nil, nil
	if c.LaneOn() || !again.LaneOn() {
		t.Errorf("batch lane: %v and %v", c.LaneOn(), again.LaneOn())
	}
	again.from.laneSet = false // it is there where one of its settings was given, whatever the value
	if !reflect.DeepEqual(c, again) {
		t.Errorf("got %+v\nwant %+v", again, c)
	}
}

func TestEndpointOfAFallbackHasItsOwnSettings(t *testing.T) {
	c := loaded(t, "STAGE_LLM_API_KEY", "first", "STAGE_LLM_BASE_URL", "https://first/v1/",
		"STAGE_LLM_OPENAI_BASE_URL", "https://own/v1", "STAGE_LLM_ANTHROPIC_API_KEY", "second")
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
	b.WriteString("# The variables of stage with their defaults. Copy this file to .env, take away the # in front of what you change, and name\n" +
		"# it: stage run --env-file .env. No command reads it unasked, and the environment and flags take precedence over it. Lines\n" +
		"# are NAME=VALUE; quotes, comments and export are as in a shell, but nothing is expanded: a $ stays as it is.\n" +
		"# A secret may be given as the path of a file, by a variable whose name ends in _FILE.\n")
	group := ""
	written := make(map[string]bool)
	for _, f := range Fields() {
		if f.Deprecated != "" || written[f.generic] {
			continue
		}
		if f.Group != group {
			group = f.Group
			fmt.Fprintf(&b, "\n# --- %s ---\n", group)
		}
		help := f.Help
		if f.generic != "" {
			help += "; likewise " + f.generic + " of each other"
		}
		written[f.generic] = f.generic != ""
		fmt.Fprintf(&b, "# %s\n# %s=%s\n", help, f.Variable, f.Fallback)
	}
	golden.Check(t, filepath.Join("..", "..", ".env.example"), b.String())
}

func TestADeprecatedSettingHasItsEffectAndSaysWhatToDoInstead(t *testing.T) {
	c, err := Source{
		Environ:  environ(t, "STAGE_STOP_TIMEOUT", "4m", "STAGE_RETRY_MAX_DELAY", "60s", "STAGE_POOL_SIZE", "8"),
		Flags:    environ(t, "STAGE_ORDER_SPAN", "2048"),
		Defaults: environ(t, "STAGE_LANE_OPEN", "3"), // of a command: the user has not set it
	}.Load(t.Context(), NeedNothing)
	if err != nil {
		t.Fatal(err)
	}
	if c.Process.StopTimeout != 4*time.Minute || c.Order.Span != 2048 || c.Lane.Open != 3 {
		t.Errorf("got %v, %d, %d", c.Process.StopTimeout, c.Order.Span, c.Lane.Open)
	}
	var got []string
	for _, f := range c.Deprecated() {
		got = append(got, f.Variable)
		if !strings.Contains(f.Deprecated, "remove it") {
			t.Errorf("%s: %s", f.Variable, f.Deprecated)
		}
	}
	if want := []string{"STAGE_ORDER_SPAN", "STAGE_RETRY_MAX_DELAY", "STAGE_STOP_TIMEOUT"}; !slices.Equal(got, want) {
		t.Errorf("got %s, want %s", got, want)
	}
	_, err = load(t, NeedNothing, "STAGE_ORDER_SPANS", "1", "STAGE_ORDER_KEYS", "2")
	if err == nil || strings.Contains(err.Error(), "STAGE_ORDER_SPAN?") || !strings.Contains(err.Error(), "STAGE_ORDER_KEY?") {
		t.Errorf("suggestions: %v", err)
	}
}

func TestWhatFollowsFromOtherSettings(t *testing.T) {
	tests := []struct {
		set  []string
		stop time.Duration
		span int
		poll time.Duration
	}{
		{nil, 150 * time.Second, 65_536, 30 * time.Second},
		{[]string{"STAGE_LLM_TIMEOUT", "10m", "STAGE_WINDOW", "4096"}, 750 * time.Second, 262_144, 30 * time.Second},
		{[]string{"STAGE_WINDOW", "50000", "STAGE_LLM_PROVIDER", "mock"}, 150 * time.Second, 1_000_000, time.Second},
		{[]string{"STAGE_WINDOW", "64"}, 150 * time.Second, 65_536, 30 * time.Second},
	}
	for _, tt := range tests {
		c := loaded(t, tt.set...)
		if c.Process.StopTimeout != tt.stop || c.Order.Span != tt.span || c.Lane.Poll != tt.poll {
			t.Errorf("%s: stop %v, span %d, poll %v", tt.set, c.Process.StopTimeout, c.Order.Span, c.Lane.Poll)
		}
	}
}

// Every name that a cross check mentions must be that of a field: a problem of another would lose its place.
func TestChecksNameVariablesThatExist(t *testing.T) {
	source, err := filepath.Glob("*.go")
	if err != nil || len(source) < 10 {
		t.Fatalf("got %d files, %v", len(source), err)
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

// The window of a stage whose rows share calls has room for the rows of all its calls, unless it is set.
func TestTheWindowHasRoomForTheRowsOfAllCalls(t *testing.T) {
	for _, tt := range []struct {
		pairs []string
		want  int
	}{
		{[]string{"STAGE_POOL_SIZE", "64"}, 1024},
		{[]string{"STAGE_POOL_SIZE", "8", "STAGE_TASK", "embed"}, 2048},
		{[]string{"STAGE_POOL_SIZE", "1", "STAGE_TASK", "embed"}, 1024},
		{[]string{"STAGE_POOL_SIZE", "1000", "STAGE_TASK", "embed"}, 50_000},
		{[]string{"STAGE_POOL_SIZE", "64", "STAGE_TASK", "embed", "STAGE_WINDOW", "512"}, 512},
	} {
		c, err := load(t, NeedNothing, tt.pairs...)
		if err != nil || c.Window.Rows != tt.want {
			t.Errorf("%v: %d, %v, want %d", tt.pairs, c.Window.Rows, err, tt.want)
		}
	}
}
