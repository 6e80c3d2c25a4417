package config

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// problemLines returns the problems of err, one per line.
func problemLines(err error) []string {
	if err == nil {
		return nil
	}
	return strings.Split(err.Error(), "\n")
}

func TestEachProblemNamesItsVariable(t *testing.T) {
	dir := t.TempDir()
	for _, tt := range []struct {
		name  string
		need  Need
		env   []string
		wants []string // one for each problem, in order
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
			"STAGE_LLM_AZURE_API_KEY: a fallback uses azure: give its key, or STAGE_LLM_AZURE_API_KEY_FILE, or set STAGE_LLM_AZURE_AUTH=entra",
			"STAGE_LLM_ANTHROPIC_API_KEY: a fallback uses anthropic",
			"STAGE_FALLBACKS: mock:mock is the first model already",
		}},
		{"a time-out that others follow from", NeedNothing, []string{"STAGE_LLM_TIMEOUT", "5"}, []string{`STAGE_LLM_TIMEOUT: "5" is not a duration`}},
		{"both templates", NeedNothing, []string{"STAGE_TEMPLATE", "x", "STAGE_TEMPLATE_FILE", "config_test.go"}, []string{
			"STAGE_TEMPLATE: both it and STAGE_TEMPLATE_FILE are set",
		}},
		{"kinds", NeedNothing, []string{
			"STAGE_POOL_SIZE", "many", "STAGE_JOURNAL", "maybe", "STAGE_BACKOFF_MULTIPLIER", "x2", "STAGE_ROW_TIMEOUT", "60",
			"STAGE_WINDOW_BYTES", "64MB", "STAGE_MIN_DISPATCH_DELAY_MS", "5ms", "STAGE_LLM_EXTRA_BODY", "[1]", "STAGE_DATA_SYNC", "never",
			"STAGE_LLM_MAX_CONCURRENCY", "openai", "STAGE_FALLBACKS", "gpt-4o", "STAGE_NATS_URL", "http://x", "STAGE_LLM_BASE_URL", "api.example.com",
			"STAGE_BATCH_RPM", "openai=1,openai=2", "STAGE_LLM_MAX_TOKENS", "1.5", "STAGE_LLM_TEMPERATURE", "hot", "STAGE_HTTP_ADDR", "9464", "STAGE_HTTP_HOSTS", "a.example,b.example:9464",
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
			`STAGE_HTTP_HOSTS: "b.example:9464" is not a host name: write names without scheme and port`,
		}},
		{"ranges", NeedNothing, []string{
			"STAGE_POOL_SIZE", "0", "STAGE_PARTITIONS", "-1", "STAGE_BACKOFF_MULTIPLIER", "1", "STAGE_RETRY_BACKOFF_FACTOR", "0.5",
			"STAGE_ROW_TIMEOUT", "-1s", "STAGE_MAX_DISPATCH_DELAY_MS", "0", "STAGE_LLM_TEMPERATURE", "3", "STAGE_MAX_COST_USD", "NaN",
			"STAGE_WINDOW", "1000000", "STAGE_NAME", "Über", "STAGE_STREAM_REPLICAS", "2", "STAGE_THROTTLE", "fast",
			"STAGE_LLM_PROVIDER", "clippy", "STAGE_LOG_FORMAT", "xml",
		}, []string{
			`STAGE_NAME: "Über" is not a valid name`,
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
			`STAGE_MAX_COST_USD: NaN is not a finite number`,
			`STAGE_LOG_FORMAT: "xml" is unknown: choose text or json`,
		}},
		{"places of a key", NeedNothing, []string{"STAGE_ORDER", "keys", "STAGE_ORDER_KEY", "customer"}, []string{
			`STAGE_ORDER: "keys" is unknown: choose stream, key or none`,
			`STAGE_ORDER_KEY: "customer" is no place of a key: give subject, subject.N (its token N, from 1), header.NAME or field.NAME`,
		}},
		{"a token of the subject that no row has", NeedNothing, []string{"STAGE_ORDER", "key", "STAGE_ORDER_KEY", "subject.4", "STAGE_INPUT_SUBJECT", "rows.{partition}.*"}, []string{
			`STAGE_ORDER_KEY: subject.4: subjects of rows.0.* have 3 tokens, give one of them`,
		}},
		{"a key that is not used", NeedNothing, []string{"STAGE_ORDER", "none", "STAGE_ORDER_KEY", "subject.4", "STAGE_INPUT_SUBJECT", "rows.*"}, nil},
		{"a span below the window", NeedNothing, []string{"STAGE_ORDER", "none", "STAGE_WINDOW", "2000", "STAGE_ORDER_SPAN", "1999"}, []string{
			`STAGE_ORDER_SPAN: 1999 is below STAGE_WINDOW, 2000: raise this or lower that`,
		}},
		{"a span of the window", NeedNothing, []string{"STAGE_ORDER", "key", "STAGE_WINDOW", "2000", "STAGE_ORDER_SPAN", "2000", "STAGE_ORDER_KEY", "header.Customer"}, nil},
		{"a span that is not used", NeedNothing, []string{"STAGE_WINDOW", "2000", "STAGE_ORDER_SPAN", "1"}, nil},
		{"a budget", NeedNothing, []string{"STAGE_BUDGET", "team-7", "STAGE_BUDGET_WEIGHT", "0.01"}, nil},
		{"a weight that is not used", NeedNothing, []string{"STAGE_BUDGET_WEIGHT", "100", "STAGE_THROTTLE", "classic"}, nil},
		{"a budget and another law", NeedNothing, []string{"STAGE_BUDGET", "a", "STAGE_THROTTLE", "classic"}, []string{
			"STAGE_BUDGET: the classic throttle cannot be shared: set STAGE_THROTTLE=adaptive, or unset this",
		}},
		{"names and weights of budgets", NeedNothing, []string{"STAGE_BUDGET", "Team 7", "STAGE_BUDGET_WEIGHT", "0"}, []string{
			`STAGE_BUDGET: "Team 7" is not a valid name: use 1 to 64 characters of a-z, 0-9 and -`,
			"STAGE_BUDGET_WEIGHT: 0 is too small: give 0.01 or more",
		}},
		{"a long name of a budget", NeedNothing, []string{"STAGE_BUDGET", strings.Repeat("a", 65), "STAGE_BUDGET_WEIGHT", "101"}, []string{
			`STAGE_BUDGET: "aaa`, "STAGE_BUDGET_WEIGHT: 101 is too large: give 100 or less",
		}},
		{"messages of a budget that would be input", NeedNothing, []string{"STAGE_BUDGET", "a", "STAGE_INPUT_SUBJECT", "llm-stage.>", "STAGE_NAME", "s"}, []string{
			"STAGE_BUDGET: messages on llm-stage.budget.a.> would be input again",
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
		{"an age of results", NeedNothing, []string{"STAGE_RESULT_MAX_AGE", "1s"}, nil},
		{"an age of results below the least", NeedNothing, []string{"STAGE_RESULT_MAX_AGE", "999ms"}, []string{"STAGE_RESULT_MAX_AGE: 999ms is less than a second: give 1s or more, or 0 to keep all results"}},
		{"a negative age of results", NeedNothing, []string{"STAGE_RESULT_MAX_AGE", "-1h"}, []string{"STAGE_RESULT_MAX_AGE: "}},
		{"an age of results that are objects", NeedNothing, []string{"STAGE_RESULT_MAX_AGE", "1h", "STAGE_RESULT_BUCKET", "LARGE"}, []string{"STAGE_RESULT_MAX_AGE: bodies in a bucket (STAGE_RESULT_BUCKET) would stay"}},
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
			`STAGE_INPUT_SUBJECT: "results.>" also matches the results of this stage, results.stage.*.*, which would be input again and again: name the stage`,
			"STAGE_DEAD_LETTER_SUBJECT: messages on results.dead would be input again",
		}},
		{"input from another stage's results", NeedNothing, []string{"STAGE_INPUT_SUBJECT", "results.first.*.rows", "STAGE_NAME", "second"}, nil},
		{"results of a chain in one stream", NeedNothing, []string{
			"STAGE_INPUT_STREAM", "RESULTS", "STAGE_INPUT_SUBJECT", "results.first.{partition}.rows", "STAGE_PARTITIONS", "3", "STAGE_NAME", "second",
		}, nil},
		{"the results of all stages, or more than results", NeedNothing, []string{"STAGE_INPUT_STREAM", "RESULTS", "STAGE_INPUT_SUBJECT", "results.*.0.rows"}, []string{
			`STAGE_INPUT_SUBJECT: "results.*.0.rows" also matches the results of this stage`,
		}},
		{"claims as rows", NeedNothing, []string{"STAGE_INPUT_STREAM", "RESULTS", "STAGE_INPUT_SUBJECT", "results.first.>"}, []string{
			`STAGE_INPUT_SUBJECT: "results.first.>" matches more than results, such as claims, which are no rows: end it with .rows`,
		}},
		{"an array that the result replaces", NeedNothing, []string{"STAGE_FOREACH", "parts_usage", "STAGE_RESPONSE_FIELD", "parts"}, []string{
			"STAGE_FOREACH: a result has its own field parts_usage, which would replace the array: set STAGE_RESPONSE_FIELD to another name than parts",
		}},
		{"an array that an error replaces", NeedNothing, []string{"STAGE_FOREACH", "llm_response_error"}, []string{"STAGE_FOREACH: a result has its own field llm_response_error"}},
		{"an array beside the result's fields", NeedNothing, []string{"STAGE_FOREACH", "parts_used", "STAGE_RESPONSE_FIELD", "parts"}, nil},
		{"files", NeedNothing, []string{"STAGE_LOOKUP_FILE", "/nowhere/x", "STAGE_TEMPLATE_FILE", dir}, []string{
			"STAGE_TEMPLATE_FILE: " + dir + ": is a directory",
			"STAGE_LOOKUP_FILE: /nowhere/x: no such file or directory",
		}},
		{"embedded server with a login", NeedNothing, []string{"STAGE_NATS_TOKEN", "t", "STAGE_NATS_USER", "u"}, []string{
			"STAGE_NATS_TOKEN: this command runs its own server, which does not use it",
			"STAGE_NATS_USER: this command runs its own server, which does not use it",
		}},
		{"embedded server with a domain", NeedNothing, []string{"STAGE_NATS_JS_DOMAIN", "hub"}, []string{
			"STAGE_NATS_JS_DOMAIN: this command runs its own server, which does not use it: unset this",
		}},
		{"two domains in one", NeedNothing, []string{"STAGE_NATS_URL", "x", "STAGE_NATS_JS_DOMAIN", "a.b"}, []string{`STAGE_NATS_JS_DOMAIN: "a.b" is not the name of a domain`}},
		{"any domain", NeedNothing, []string{"STAGE_NATS_URL", "x", "STAGE_NATS_JS_DOMAIN", "*"}, []string{`STAGE_NATS_JS_DOMAIN: "*" is not the name of a domain`}},
		{"a domain with a space", NeedNothing, []string{"STAGE_NATS_URL", "x", "STAGE_NATS_JS_DOMAIN", "a b"}, []string{`STAGE_NATS_JS_DOMAIN: "a b" is not the name of a domain`}},
		{"any prefix", NeedNothing, []string{"STAGE_NATS_URL", "x", "STAGE_NATS_JS_PREFIX", "JS.*.API"}, []string{`STAGE_NATS_JS_PREFIX: "JS.*.API" is not a subject without wildcards`}},
		{"a prefix of a dot", NeedNothing, []string{"STAGE_NATS_URL", "x", "STAGE_NATS_JS_PREFIX", "."}, []string{`STAGE_NATS_JS_PREFIX: "." is not a subject`}},
		{"a domain and a prefix", NeedNothing, []string{"STAGE_NATS_URL", "x", "STAGE_NATS_JS_DOMAIN", "hub", "STAGE_NATS_JS_PREFIX", "JS.hub.API"}, []string{
			"STAGE_NATS_JS_PREFIX: set together with STAGE_NATS_JS_DOMAIN",
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
			got := problemLines(err)
			if len(got) != len(tt.wants) {
				t.Fatalf("got %d problems, want %d:\n%s", len(got), len(tt.wants), strings.Join(got, "\n"))
			}
			for i, want := range tt.wants {
				if !strings.HasPrefix(got[i], want) {
					t.Errorf("problem %d: got %q, want %q…", i, got[i], want)
				}
			}
			if err == nil {
				if err := c.Validate(tt.need); err != nil {
					t.Errorf("Validate: got %v for what Load took", err)
				}
			}
		})
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

func TestABatchedRequestIsNoInputOfItsOwnStage(t *testing.T) {
	for _, change := range [][]string{
		{"STAGE_NAME", "rows"},
		{"STAGE_NAME", "results"},
		{"STAGE_NAME", "audit"},
		{"STAGE_NAME", "journal"},
		{"STAGE_NAME", "dedupe"},
		{"STAGE_INPUT_SUBJECT", "*.llm_batch"},
	} {
		if _, err := load(t, NeedNothing, change...); err == nil || !strings.Contains(err.Error(), "STAGE_NAME: batched requests arrive on ") {
			t.Errorf("%s: %v", change, err)
		}
	}
}
