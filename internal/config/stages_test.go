package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// writeStages writes a list of stages and returns its path.
func writeStages(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "stages.yaml")
	must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestAListOfStagesKeepsValuesAsWritten(t *testing.T) {
	path := writeStages(t, `# two stages
- name: map
  pool_size: 0032   # read as the environment would be
  journal: false
  retry_base_delay: 10s
  llm_api_key: "1234"
  llm_extra_body: '{"seed": 7}'
  template: |
    {{ item.text }}
    Answer briefly.
  system_prompt: >-
    a
    b
  llm_base_url:
- {name: reduce, llm_rpm: 60.5}
`)
	stages, err := ReadStages(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(stages) != 2 || stages[1].Values["STAGE_NAME"] != "reduce" || stages[1].Values["STAGE_LLM_RPM"] != "60.5" {
		t.Fatalf("got %+v", stages)
	}
	for variable, want := range map[string]string{
		"STAGE_NAME": "map", "STAGE_POOL_SIZE": "0032", "STAGE_JOURNAL": "false", "STAGE_RETRY_BASE_DELAY": "10s", "STAGE_LLM_API_KEY": "1234",
		"STAGE_LLM_EXTRA_BODY": `{"seed": 7}`, "STAGE_TEMPLATE": "{{ item.text }}\nAnswer briefly.\n", "STAGE_SYSTEM_PROMPT": "a b", "STAGE_LLM_BASE_URL": "",
	} {
		if got, given := stages[0].Values[variable]; got != want || !given {
			t.Errorf("%s: got %q, want %q", variable, got, want)
		}
	}
	if got, want := stages[0].where("STAGE_POOL_SIZE"), path+" line 3"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestProblemsOfAListOfStagesNameLineAndEntry(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"", "no stage: write a list"},
		{"[]", "no stage: write a list"},
		{"name: a\n", " line 1: name: not a list of stages: begin each with a dash"},
		{"- name: a\n---\n- name: b\n", " line 3, column 1: a second document"},
		{"- name: a\n- b\n", " line 2: entry 2: not a map of settings"},
		{"- name: a\n  pool_sise: 3\n", " line 2: entry 1: pool_sise: unknown setting, did you mean pool_size?"},
		{"- name: a\n  STAGE_POOL_SIZE: 3\n", " line 2: entry 1: STAGE_POOL_SIZE: unknown setting"},
		{"- name: a\n  Pool_Size: 3\n", " line 2: entry 1: Pool_Size: write it in lower case: pool_size"},
		{"- name: a\n- name: b\n  pool_size_file: x\n", " line 3: entry 2: pool_size_file: unknown setting"},
		{"- name: a\n  llm_extra_body: {seed: 7}\n", " line 2: entry 1: llm_extra_body: its value is nested: write it as one text"},
		{"- name: a\n  fallbacks: [x, y]\n", " line 2: entry 1: fallbacks: its value is nested"},
		{"- name: &a a\n", " line 1: entry 1: name: anchors, aliases and tags are not supported"},
		{"- name: a\n  <<: *a\n", " line 2, column 7: unknown anchor 'a' referenced"},
		{"- name: a\n  <<: {}\n", " line 2: entry 1: <<: unknown setting"},
		{"- name: a\n  nats_url: nats://b\n", " line 2: entry 1: nats_url: it belongs to the process, which all stages share: set STAGE_NATS_URL in the environment, or give --nats-url"},
		{"- name: a\n  http_addr: b\n", "entry 1: http_addr: it belongs to the process"},
		{"- name: a\n  data_dir: b\n", "entry 1: data_dir: it belongs to the process"},
		{"- name: a\n  nats_token_file: b\n", "give --nats-token-file"},
		{"- name: a\n  stop_timeout: 1s\n", "entry 1: stop_timeout: it belongs to the process"},
		{"- name: a\n- pool_size: 2\n", " line 2: entry 2: it has no name: give each stage one of its own"},
		{"- name: a\n- name: b\n- pool_size: 2\n  name: a\n", " line 4: the name a is that of another stage, "},
		{"- name: a\n  template: Question: {{ row.x }}\n", " line 2, column 21: mapping values are not allowed in this context: put a template or JSON into quotes"},
		{"- name: a\n  name: b\n", " line 2, column 3: mapping key \"name\" already defined at line 1, column 3"},
		{"- llm_api_key: sk-secret-key\n  template: {{ row.x }}\n", " line 2, column 14: found an invalid key: only texts, numbers, booleans and null can be keys: put a template or JSON into quotes, or into a block (|)"},
		{"- {llm_api_key:sk-secret-key}\n", " line 1, column 4: a key without a value: put a template or JSON into quotes"},
		{"- name: a\n  llm_api_key: !!int sk-secret-key\n", " line 2: entry 1: llm_api_key: anchors, aliases and tags are not supported"},
		{"- name: a\n\ttemplate: x\n", " line 2, column 1: found a tab character"},
		{"- name: \"a\x00\"\n", " line 1, column 11: control characters are not allowed"},
		{strings.Repeat("[", 100_000), " line 1, column 1001: exceeded max depth of 1000"},
		{strings.Repeat("- name: a\n", 33), ": 33 stages, at most 32"},
	} {
		path := writeStages(t, tt.text)
		_, err := ReadStages(path)
		if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "sk-secret-key") {
			t.Errorf("%q: got %v, want %s", tt.text, err, tt.want)
		}
	}
}

func TestADirectoryHasAFileForEachStage(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"2-reduce.env": "STAGE_NAME=reduce\n", "1-map.env": "export STAGE_NAME=map\nSTAGE_LLM_API_KEY_FILE=key\n", "readme.txt": "no stage",
	} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	stages, err := ReadStages(dir)
	if err != nil || len(stages) != 2 || stages[0].Values["STAGE_NAME"] != "map" || stages[1].Values["STAGE_NAME"] != "reduce" {
		t.Fatalf("got %+v, %v", stages, err)
	}
	bad := filepath.Join(dir, "3.env")
	must(t, os.WriteFile(bad, []byte("STAGE_NAME=map\nOTEL_TRACES_EXPORTER=otlp\nSTAGE_LOG_LEVEL=debug\nSTAGE_POOL_SIZ=1\n"), 0o600))
	_, err = ReadStages(dir)
	for _, want := range []string{
		bad + " line 2: OTEL_TRACES_EXPORTER: it belongs to the process", bad + " line 3: STAGE_LOG_LEVEL: it belongs to the process",
		bad + " line 4: STAGE_POOL_SIZ: unknown setting, did you mean STAGE_POOL_SIZE?",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestAStageOfSeveralIsAboveTheEnvironmentAndBelowFlags(t *testing.T) {
	path := writeStages(t, "- name: a\n  pool_size: 4\n  window: 9\n  template: own\n- name: b\n  pool_size: none\n  llm_api_key: sk-of-the-second\n")
	stages, err := ReadStages(path)
	if err != nil {
		t.Fatal(err)
	}
	secrets := new(Secrets)
	source := Source{
		Flags:   map[string]string{"STAGE_WINDOW": "5"},
		Environ: map[string]string{"STAGE_POOL_SIZE": "2", "STAGE_TEMPLATE_FILE": "missing", "STAGE_PARTITIONS": "1", "STAGE_LLM_API_KEY": "sk-of-the-process"},
		Secrets: secrets, Stage: &stages[0],
	}
	cfg, err := source.Load(t.Context(), NeedNothing)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Name != "a" || cfg.Pool.Size != 4 || cfg.Window.Rows != 5 || cfg.Prompt.Template != "own" || cfg.Prompt.TemplateFile != "" {
		t.Errorf("got %+v", cfg)
	}
	if got := cfg.from.origins["STAGE_POOL_SIZE"]; got != origin(path) {
		t.Errorf("origin %s", got)
	}
	source.Stage = &stages[1]
	source.Environ["STAGE_TEMPLATE_FILE"] = ""
	if _, err = source.Load(t.Context(), NeedNothing); err == nil || !strings.Contains(err.Error(), "STAGE_POOL_SIZE ("+path+" line 6): ") {
		t.Errorf("got %v", err)
	}
	secrets.Renew()
	if got := string(secrets.Redact([]byte("sk-of-the-process sk-of-the-second"))); strings.Contains(got, "sk-") {
		t.Errorf("not removed: %s", got)
	}
}

// As many keys as are remembered, and more, come and go at one stage while another has the same key throughout.
func TestTheSecretsOfAStageOutliveTheRotationOfAnothers(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	must(t, os.WriteFile(key, []byte("sk-rotated-first"), 0o600))
	stages, err := ReadStages(writeStages(t, "- name: a\n  llm_api_key: sk-of-the-first\n- name: b\n  llm_api_key_file: "+key+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	secrets := new(Secrets)
	for i := range stages {
		if _, err := (Source{Secrets: secrets, Stage: &stages[i]}).Load(t.Context(), NeedNothing); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 { // far more secrets than are kept
		rotated := make([]string, 100)
		for n := range rotated {
			rotated[n] = fmt.Sprintf("sk-rotated-%d-%d", i, n)
		}
		secrets.llm.Add(rotated...)
		must(t, os.WriteFile(key, fmt.Appendf(nil, "sk-rotated-%d", i), 0o600))
		secrets.Renew()
	}
	if got := string(secrets.Redact([]byte("sk-of-the-first sk-rotated-2"))); strings.Contains(got, "sk-") {
		t.Errorf("not removed: %s", got)
	}
}

func TestStagesDoNotReadEachOthersResultsInACircle(t *testing.T) {
	t.Parallel()
	stage := func(name, input string) *Config {
		return &Config{Name: name, Input: InputConfig{Stream: "RESULTS", Subject: input}, Result: ResultConfig{Stream: "RESULTS", Subject: "results"}}
	}
	elsewhere := stage("a", "results.b.*.rows")
	elsewhere.Input.Stream = "ARCHIVE"
	for _, c := range []struct {
		name   string
		stages []*Config
		want   string // part of the error
	}{
		{"a chain", []*Config{stage("b", "results.a.*.rows"), stage("a", "rows.>"), stage("c", "results.b.{partition}.rows")}, ""},
		{"two", []*Config{stage("a", "results.b.*.rows"), stage("b", "results.a.0.rows")}, "the stages a -> b -> a read"},
		{"three, and one behind them", []*Config{stage("d", "results.c.*.rows"), stage("a", "results.c.{partition}.rows"), stage("b", "results.a.*.rows"), stage("c", "results.b.*.rows")}, "a -> b -> c -> a"},
		{"two others", []*Config{stage("a", "rows.>"), stage("x", "results.y.*.rows"), stage("y", "results.x.*.rows")}, "x -> y -> x"},
		{"results of earlier", []*Config{elsewhere, stage("b", "results.a.*.rows")}, ""},
	} {
		err := CheckCycle(c.stages)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}
