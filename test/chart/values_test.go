package chart

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// merged merges values over others, as Helm does with several files.
func merged(base, over map[string]any) map[string]any {
	out := maps.Clone(base)
	for name, value := range over {
		below, wasMap := out[name].(map[string]any)
		if m, ok := value.(map[string]any); ok && wasMap {
			value = merged(below, m)
		}
		out[name] = value
	}
	return out
}

func TestWrongValuesAreRefusedWithAClearMessage(t *testing.T) {
	for _, tt := range []struct {
		name   string
		values string // over those of ci/minimal
		wants  []string
	}{
		{"unknown value of a release", `releases: {demo: {config: {STAGE_POOLSIZE: 3}}}`, []string{`at '/releases/demo/config'`, `'STAGE_POOLSIZE' not allowed`}},
		{"unknown value", `replicas: 2`, []string{`'replicas' not allowed`}},
		{"unknown value inside", `image: {version: v1}`, []string{`at '/image'`, `'version' not allowed`}},
		{"unknown variable", `config: {STAGE_POOLSIZE: 3}`, []string{`at '/config'`, `'STAGE_POOLSIZE' not allowed`}},
		{"variable of another program", `config: {GOMEMLIMIT: 1GiB}`, []string{`at '/config'`, `'GOMEMLIMIT' not allowed`}},
		{"not a number", `config: {STAGE_POOL_SIZE: many}`, []string{`at '/config/STAGE_POOL_SIZE'`, `'many' does not match pattern`}},
		{"out of bounds", `config: {STAGE_POOL_SIZE: 0}`, []string{`at '/config/STAGE_POOL_SIZE'`, `minimum: got 0, want 1`}},
		{"unknown word", `config: {STAGE_LLM_PROVIDER: chatty}`, []string{`at '/config/STAGE_LLM_PROVIDER'`, `'openai', 'openai-responses'`}},
		{"duration without a unit", `config: {STAGE_STOP_TIMEOUT: "150"}`, []string{`at '/config/STAGE_STOP_TIMEOUT'`, `does not match pattern`}},
		{"wrong type", `replicaCount: two`, []string{`at '/replicaCount'`, `got string, want integer`}},
		{"digest cut short", `image: {digest: "sha256:0123"}`, []string{`at '/image/digest'`, `does not match pattern`}},
		{"privileged port", `http: {port: 80}`, []string{`at '/http/port'`, `minimum: got 80, want 1,024`}},
		{"unknown provider of a key", `llm: {providers: {chatty: {existingSecret: x}}}`, []string{`at '/llm/providers'`, `'chatty' not allowed`}},
		{"share above 1", `prometheusRule: {alerts: {errorRate: {threshold: 5}}}`, []string{`at '/prometheusRule/alerts/errorRate/threshold'`, `maximum: got 5, want 1`}},

		{"no server", `nats: {url: ""}`, []string{"nats.url: give the URL"}},
		{"password in the URL", `nats: {url: "nats://a:b@nats:4222"}`, []string{"nats.url: contains a user, password or token"}},
		{"secret without keys", `nats: {existingSecret: x}`, []string{"nats.existingSecret: name the key to use in nats.keys"}},
		{"keys without a secret", `nats: {keys: {creds: a}}`, []string{"nats.keys: name the Secret that contains them"}},
		{"key of the LLM in config", `config: {STAGE_LLM_API_KEY: sk-1}`, []string{"config.STAGE_LLM_API_KEY: a secret does not belong in a ConfigMap: put it into a Secret, and name the Secret in llm.existingSecret"}},
		{"key of a fallback in config", `config: {STAGE_LLM_GEMINI_API_KEY: k}`, []string{"config.STAGE_LLM_GEMINI_API_KEY: a secret does not belong"}},
		{"password in config", `config: {STAGE_NATS_PASSWORD: p}`, []string{"config.STAGE_NATS_PASSWORD: a secret does not belong"}},
		{"token in config", `config: {STAGE_NATS_TOKEN: p}`, []string{"config.STAGE_NATS_TOKEN: a secret does not belong"}},
		{"host with a port", `http: {hosts: ["stage.example.com:9464"]}`, []string{`at '/http/hosts/0'`, `does not match pattern`}},
		{"what the chart sets", `config: {STAGE_NATS_URL: "nats://b", STAGE_HTTP_ADDR: ":80", STAGE_HTTP_HOSTS: a.example}`, []string{
			"config.STAGE_HTTP_ADDR: the chart sets it from http.port", "config.STAGE_HTTP_HOSTS: the chart sets it from http.hosts", "config.STAGE_NATS_URL: the chart sets it from nats.url",
		}},
		{"control set twice", `{control: {enabled: true}, config: {STAGE_CONTROL: false}}`, []string{"config.STAGE_CONTROL: the chart sets it from control.enabled: unset one"}},
		{"control by a word", `control: {enabled: sure}`, []string{`at '/control/enabled'`, `got string, want boolean`}},
		{"file set twice", `{prices: {content: "m: {input: 1}"}, config: {STAGE_PRICES_FILE: /p}}`, []string{"config.STAGE_PRICES_FILE: the chart sets it from prices: unset one"}},
		{"secret file set twice", `{llm: {existingSecret: x}, config: {STAGE_LLM_API_KEY_FILE: /p}}`, []string{"config.STAGE_LLM_API_KEY_FILE: the chart sets it from llm: unset one"}},
		{"two sources", `template: {existingConfigMap: x}`, []string{"template: both content and existingConfigMap are set"}},
		{"no template", `template: {content: ""}`, []string{"template: give the template of the prompt in template.content"}},
		{"two templates", `config: {STAGE_TEMPLATE: x}`, []string{"template: more than one of template, messages, config.STAGE_TEMPLATE"}},
		{"no model and no key", `config: {STAGE_LLM_PROVIDER: anthropic}`, []string{
			"config.STAGE_LLM_MODEL: give the model to call", "llm.existingSecret: name the Secret with the API key of anthropic",
		}},
		{"no key of the default provider", `config: {STAGE_LLM_PROVIDER: openai, STAGE_LLM_MODEL: m}`, []string{"llm.existingSecret: name the Secret with the API key of openai"}},
		{"partitions without a placeholder", `config: {STAGE_PARTITIONS: 4}`, []string{"config.STAGE_INPUT_SUBJECT: has no {partition}: with 4 partitions"}},
		{"name of a budget", `config: {STAGE_BUDGET: My Team}`, []string{`at '/config/STAGE_BUDGET'`, `does not match pattern`}},
		{"weight of a budget", `config: {STAGE_BUDGET_WEIGHT: 0}`, []string{`at '/config/STAGE_BUDGET_WEIGHT'`, `minimum: got 0, want 0.01`}},
		{"budget with another law", `config: {STAGE_BUDGET: team, STAGE_THROTTLE: classic}`, []string{"config.STAGE_BUDGET: the classic throttle cannot be shared"}},
		{"more replicas than can own or stand by", `keda: {enabled: true, maxReplicas: 3, natsMonitoringEndpoint: "nats:8222"}`, []string{
			"keda.maxReplicas: 3 is more than STAGE_PARTITIONS plus a standby, 2",
		}},
		{"minimum above maximum", `keda: {enabled: true, minReplicas: 3, natsMonitoringEndpoint: "nats:8222"}`, []string{"keda.minReplicas: 3 is above keda.maxReplicas"}},
		{"autoscaler without an endpoint", `keda: {enabled: true}`, []string{"keda.natsMonitoringEndpoint: give host:port"}},
		{"a trigger for each of many", `{keda: {enabled: true, natsMonitoringEndpoint: "nats:8222"}, config: {STAGE_PARTITIONS: 100, STAGE_INPUT_SUBJECT: "rows.{partition}"}}`, []string{
			"keda.triggers: with 100 partitions",
		}},

		{"triggers of your own beside Prometheus", `keda: {enabled: true, prometheus: {serverAddress: "http://p:9090"}, triggers: [{type: cron, metadata: {}}]}`, []string{
			"keda.prometheus.serverAddress: keda.triggers replaces the chart's triggers",
		}},
		{"Prometheus without a scheme", `keda: {prometheus: {serverAddress: "prometheus:9090"}}`, []string{`at '/keda/prometheus/serverAddress'`, `does not match pattern`}},
		{"unknown variable of a stage", `stages: {a: {config: {STAGE_POOLSIZE: 3}}}`, []string{`at '/stages/a/config'`, `'STAGE_POOLSIZE' not allowed`}},
		{"unknown value of a stage", `stages: {a: {replicaCount: 3}}`, []string{`at '/stages/a'`, `'replicaCount' not allowed`}},
		{"name of a stage", `stages: {My_Stage: {config: {}}}`, []string{`My_Stage`, `does not match pattern`}},
		{"name of a stage, twice", `{config: {STAGE_NAME: x}, stages: {a: {config: {STAGE_NAME: b}}}}`, []string{
			"config.STAGE_NAME: the stages have the names of their keys in stages: unset it", "stages.a.config.STAGE_NAME: the stage has the name of its key, a: unset it",
		}},
		{"key in a stage", `stages: {a: {config: {STAGE_LLM_API_KEY: sk-1}}}`, []string{"stages.a.config.STAGE_LLM_API_KEY: a secret does not belong in a ConfigMap: put it into a Secret, and name the Secret in stages.a.llm"}},
		{"two sources in a stage", `stages: {a: {template: {content: x, existingConfigMap: z}}}`, []string{"stages.a.template: both content and existingConfigMap are set"}},
		{"file of a stage, twice", `stages: {a: {prices: {content: "m: {input: 1}"}, config: {STAGE_PRICES_FILE: /p}}}`, []string{"stages.a.config.STAGE_PRICES_FILE: the chart sets it from other values of the stage: unset one"}},
		{"no template in one stage", `{template: {content: ""}, stages: {a: {template: {content: x}}, b: {config: {}, llm: {existingSecret: z}}}}`, []string{"\n  - stages.b.template: give the template of the prompt in stages.b.template.content"}},
		{"two templates in a stage", `stages: {a: {template: {content: x}, config: {STAGE_TEMPLATE: z}}}`, []string{"stages.a.template: more than one of template, messages, config.STAGE_TEMPLATE"}},
		{"no model and no key in one stage", `stages: {a: {config: {STAGE_LLM_PROVIDER: anthropic}}, b: {config: {STAGE_POOL_SIZE: 2}}}`, []string{
			"\n  - stages.a.config.STAGE_LLM_MODEL: give the model to call\n  - stages.a.llm.existingSecret: name the Secret with the API key of anthropic\n",
		}},
		{"budget of a stage with another law", `{config: {STAGE_BUDGET: team}, stages: {a: {config: {STAGE_THROTTLE: classic}}}}`, []string{"stages.a.config.STAGE_BUDGET: the classic throttle cannot be shared"}},
		{"partitions of a stage without a placeholder", `stages: {a: {config: {STAGE_PARTITIONS: 4}}}`, []string{"stages.a.config.STAGE_INPUT_SUBJECT: has no {partition}: with 4 partitions"}},
		{"more replicas than all stages have partitions", `{stages: {a: {config: {STAGE_POOL_SIZE: 1}}, b: {config: {STAGE_POOL_SIZE: 1}}}, keda: {enabled: true, maxReplicas: 4, natsMonitoringEndpoint: "nats:8222"}}`, []string{
			"keda.maxReplicas: 4 is more than STAGE_PARTITIONS plus a standby, 3",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			values := merged(ciValues(t, "minimal"), parse(t, tt.values))
			for _, r := range renderers {
				_, err := r.render(values)
				if err == nil {
					t.Errorf("%s renders it", r.name)
					continue
				}
				for _, want := range tt.wants {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%s: %v\nwant %q", r.name, err, want)
					}
				}
			}
		})
	}
}

// TestAReleaseHasItsOwnValuesOverThoseOfAll: the second stage of the chain, in every template.
func TestAReleaseHasItsOwnValuesOverThoseOfAll(t *testing.T) {
	for _, r := range renderers {
		files, err := r.renderAs("reduce", ciValues(t, "chain"))
		if err != nil {
			t.Fatal(err)
		}
		find := func(template string) string {
			for source, text := range files {
				if strings.HasSuffix(source, "/templates/"+template) {
					return text
				}
			}
			t.Fatalf("%s: there is no %s", r.name, template)
			return ""
		}
		for template, wants := range map[string][]string{
			"configmap.yaml":       {`STAGE_NAME: "reduce"`, `STAGE_INPUT_SUBJECT: "results.map.*.rows"`, `STAGE_POOL_SIZE: "8"`, `STAGE_BUDGET: "team"`, `STAGE_LLM_MODEL: "gpt-6-luna"`},
			"configmap-files.yaml": {"Summarize these notes"},
			"deployment.yaml":      {"replicas: 2"},
		} {
			for _, want := range wants {
				if text := find(template); !strings.Contains(text, want) {
					t.Errorf("%s: %s has no %q:\n%s", r.name, template, want, text)
				}
			}
		}
		if text := strings.TrimSpace(find("podmonitor.yaml")); text != "" {
			t.Errorf("%s: the release turned the PodMonitor off, there is\n%s", r.name, text)
		}
		if strings.Contains(find("configmap.yaml"), "FOREACH") {
			t.Errorf("%s: the values of another release are in\n%s", r.name, find("configmap.yaml"))
		}
		if _, err := r.renderAs("other", ciValues(t, "chain")); err == nil || !strings.Contains(err.Error(), "releases: this release is other, none of demo, reduce") {
			t.Errorf("%s: a release of another name: %v", r.name, err)
		}
	}
}

// TestWhatBelongsToTheProcessIsRefusedInAStage: the chart refuses for a stage of several what the program does.
func TestWhatBelongsToTheProcessIsRefusedInAStage(t *testing.T) {
	for name, v := range variables(t) {
		if v.WriteOnly || name == "STAGE_NAME" {
			continue
		}
		file := filepath.Join(t.TempDir(), "stages.yaml")
		setting := strings.ToLower(strings.TrimPrefix(name, "STAGE_"))
		if err := os.WriteFile(file, []byte("- name: a\n  "+setting+": \"\"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, errs, _ := run(t, nil, "config", "--stages", file)
		program := strings.Contains(errs, "it belongs to the process")
		values := merged(ciValues(t, "minimal"), map[string]any{"stages": map[string]any{"a": map[string]any{"config": map[string]any{name: ""}}}})
		_, err := renderHelm3(values)
		chart := err != nil && strings.Contains(err.Error(), "stages.a.config."+name+": it belongs to the process, which all stages share: move it to config")
		if chart != program {
			t.Errorf("%s: refused by the program: %v, by the chart: %v (%v)", name, program, chart, err)
		}
	}
}

// TestAStageOfSeveralIsTakenAwayByNull: a second file of values may do so.
func TestAStageOfSeveralIsTakenAwayByNull(t *testing.T) {
	values := merged(ciValues(t, "minimal"), parse(t, `stages: {a: {config: {STAGE_POOL_SIZE: 2}}, b: null}`))
	for _, r := range renderers {
		files, err := r.render(values)
		if err != nil {
			t.Fatal(err)
		}
		text := files["llm-stage/templates/configmap-files.yaml"]
		if !strings.Contains(text, "    - name: \"a\"\n      pool_size: \"2\"\n") || strings.Count(text, "- name: ") != 1 {
			t.Errorf("%s: %s", r.name, text)
		}
	}
}

// TestNewValuesMayBeMissing: helm upgrade --reuse-values keeps the defaults of the chart before, which did not have them.
func TestNewValuesMayBeMissing(t *testing.T) {
	for _, r := range renderers {
		if _, err := r.render(merged(ciValues(t, "minimal"), parse(t, `{http: {hosts: null}, control: null, keda: {enabled: true, natsMonitoringEndpoint: "nats:8222", prometheus: null}}`))); err != nil {
			t.Errorf("%s: %v", r.name, err)
		}
	}
}

// TestControlIsOffUnlessAskedFor: whoever can publish on its subject stops a stage that obeys.
func TestControlIsOffUnlessAskedFor(t *testing.T) {
	for values, want := range map[string]any{`{}`: nil, `control: {enabled: false}`: nil, `control: {enabled: true}`: "true"} {
		for _, o := range objects(t, merged(ciValues(t, "minimal"), parse(t, values))) {
			if got := o.at("data", "STAGE_CONTROL"); o.kind() == "ConfigMap" && o.name() == "demo-llm-stage" && got != want {
				t.Errorf("%s: STAGE_CONTROL is %v, want %v", values, got, want)
			}
		}
	}
}

// TestEveryVariableIsReachable sets each variable that is no secret by config, and finds it in the environment.
func TestEveryVariableIsReachable(t *testing.T) {
	for name, v := range variables(t) {
		if v.WriteOnly || slices.Contains([]string{"STAGE_NATS_URL", "STAGE_HTTP_ADDR", "STAGE_HTTP_HOSTS"}, name) { // by other values
			continue
		}
		t.Run(name, func(t *testing.T) {
			value := "0"
			switch {
			case v.Default != "":
				value = v.Default
			case len(v.Enum) > 0:
				value = v.Enum[0]
			case strings.Contains(v.Pattern, "https?"):
				value = "http://host/v1"
			case strings.Contains(v.Pattern, "reasoning|"): // a list of parts of a reply
				value = "reasoning,id"
			case strings.Contains(v.Pattern, "="): // a list of limits
				value = "openai=1"
			case strings.Contains(v.Pattern, ":"): // a list of models
				value = "openai:m"
			}
			values := merged(ciValues(t, "minimal"), map[string]any{"config": map[string]any{name: value, "STAGE_LLM_MODEL": "m", "STAGE_INPUT_SUBJECT": "rows.{partition}"}, "llm": map[string]any{"existingSecret": "s"}})
			switch name {
			case "STAGE_TEMPLATE", "STAGE_TEMPLATE_FILE", "STAGE_MESSAGES_FILE", "STAGE_MESSAGES_FIELD", "STAGE_REQUEST_FIELD":
				values["template"] = map[string]any{}
			case "STAGE_LLM_API_KEY_FILE":
				values["llm"] = map[string]any{}
			case "STAGE_INPUT_SUBJECT":
				values["config"].(map[string]any)[name] = value
			}
			want := values["config"].(map[string]any)[name]
			for _, o := range objects(t, values) {
				if o.kind() == "ConfigMap" && o.at("data", name) == want {
					return
				}
			}
			t.Errorf("%s=%s is in no ConfigMap", name, want)
		})
	}
}

// TestNumbersKeepTheirDigits is for YAML's floats.
func TestNumbersKeepTheirDigits(t *testing.T) {
	values := merged(ciValues(t, "minimal"), parse(t, `config: {STAGE_WINDOW_BYTES: 134217728, STAGE_MAX_DISPATCH_DELAY_MS: 1000000, STAGE_BACKOFF_MULTIPLIER: 1.75, STAGE_JOURNAL: false}`))
	for _, o := range objects(t, values) {
		if o.kind() != "ConfigMap" || o.name() != "demo-llm-stage" {
			continue
		}
		for name, want := range map[string]string{
			"STAGE_WINDOW_BYTES": "134217728", "STAGE_MAX_DISPATCH_DELAY_MS": "1000000", "STAGE_BACKOFF_MULTIPLIER": "1.75", "STAGE_JOURNAL": "false",
		} {
			if got := o.at("data", name); got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
	}
}

func TestTheGracePeriodIsLongerThanTheStop(t *testing.T) {
	for _, tt := range []struct {
		call, stop string
		want       float64
	}{
		{"", "", 180},
		{"100s", "", 155},
		{"2m", "", 180},
		{"10s", "", 43},
		{"1h", "", 4530},
		{"", "150s", 180},
		{"1s", "3m", 210},
		{"", "2m30s", 180},
		{"", "1h", 3630},
		{"", "1h2m3s", 3753},
		{"", "90.5s", 121},
		{"", "150500ms", 181},
		{"", "1.5m", 120},
	} {
		config := map[string]any{}
		if tt.call != "" {
			config["STAGE_LLM_TIMEOUT"] = tt.call
		}
		if tt.stop != "" {
			config["STAGE_STOP_TIMEOUT"] = tt.stop
		}
		o, _ := find(t, objects(t, merged(ciValues(t, "minimal"), map[string]any{"config": config})), "Deployment")
		if got := o.at("spec", "template", "spec", "terminationGracePeriodSeconds"); got != tt.want {
			t.Errorf("%s: grace period %v, want %v", config, got, tt.want)
		}
	}
	if v := variables(t)["STAGE_LLM_TIMEOUT"]; v.Default != "120s" {
		t.Errorf("the program's default is %s: change it in the template llm-stage.gracePeriod", v.Default)
	}
}

// TestKindAndBudgetFollowPartitionsAndReplicas is the table of what is rendered.
func TestKindAndBudgetFollowPartitionsAndReplicas(t *testing.T) {
	for _, tt := range []struct {
		values       string
		kind         string
		budget, keda bool
		replicas     any
	}{
		{`{}`, "Deployment", true, false, 2.0},
		{`replicaCount: 1`, "Deployment", false, false, 1.0},
		{`podDisruptionBudget: {enabled: false}`, "Deployment", false, false, 2.0},
		{`config: {STAGE_PARTITIONS: 2, STAGE_INPUT_SUBJECT: "r.{partition}"}`, "StatefulSet", true, false, 2.0},
		{`keda: {enabled: true, natsMonitoringEndpoint: "n:8222"}`, "Deployment", true, true, nil},
		{`{replicaCount: 1, keda: {enabled: true, natsMonitoringEndpoint: "n:8222"}}`, "Deployment", true, true, nil},
		{`stages: {a: {config: {STAGE_POOL_SIZE: 2}}, b: {config: {STAGE_POOL_SIZE: 2}}}`, "Deployment", true, false, 2.0},
		{`stages: {a: {config: {STAGE_PARTITIONS: 3, STAGE_INPUT_SUBJECT: "r.{partition}"}}, b: {config: {STAGE_POOL_SIZE: 2}}}`, "StatefulSet", true, false, 2.0},
		{`keda: {enabled: true, maxReplicas: 1, natsMonitoringEndpoint: "n:8222"}`, "Deployment", false, true, nil},
	} {
		all := objects(t, merged(ciValues(t, "minimal"), parse(t, tt.values)))
		workload, ok := find(t, all, tt.kind)
		if !ok || workload.at("spec", "replicas") != tt.replicas {
			t.Errorf("%s: %s with %v replicas, want %v", tt.values, tt.kind, workload.at("spec", "replicas"), tt.replicas)
		}
		if _, ok := find(t, all, "PodDisruptionBudget"); ok != tt.budget {
			t.Errorf("%s: budget %t, want %t", tt.values, ok, tt.budget)
		}
		if o, ok := find(t, all, "ScaledObject"); ok != tt.keda || ok && o.at("spec", "scaleTargetRef", "kind") != tt.kind {
			t.Errorf("%s: autoscaler %t, want %t, of %s", tt.values, ok, tt.keda, tt.kind)
		}
	}
}
