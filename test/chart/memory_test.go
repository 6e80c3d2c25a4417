package chart

import (
	"strings"
	"testing"
)

// TestAPodThatServesAllPartitionsFitsIntoItsMemory is for the default of the program, 256 MiB for each partition.
func TestAPodThatServesAllPartitionsFitsIntoItsMemory(t *testing.T) {
	if v := variables(t)["STAGE_WINDOW_BYTES"]; v.Default != "256MiB" {
		t.Errorf("the program's default is %s: change it in the template llm-stage.windowBytes", v.Default)
	}
	for _, tt := range []struct {
		name   string
		values string // over those of ci/minimal
		want   any    // STAGE_WINDOW_BYTES; nil: the program's default
	}{
		{"one partition", `{}`, nil},
		{"as many as the limit has room for", `config: {STAGE_PARTITIONS: 3}`, nil},
		{"one more", `config: {STAGE_PARTITIONS: 4}`, "211MiB"},
		{"eight", `config: {STAGE_PARTITIONS: "8"}`, "105MiB"},
		{"eight and their calls", `config: {STAGE_PARTITIONS: 8, STAGE_POOL_SIZE: 512}`, "98MiB"},
		{"eight and room for them", `{config: {STAGE_PARTITIONS: 8}, resources: {limits: {memory: 2.5Gi}}}`, nil},
		{"a small pod", `resources: {limits: {memory: 256Mi}}`, "196MiB"},
		{"decimal units", `resources: {limits: {memory: 256M}}`, "186MiB"},
		{"bytes", `resources: {limits: {memory: 268435456}}`, "196MiB"},
		{"a batch lane", `config: {STAGE_PARTITIONS: 3, STAGE_LANE: batch}`, "76MiB"},
		{"a batch lane of its own size", `config: {STAGE_PARTITIONS: 3, STAGE_LANE_BYTES: 16MiB, STAGE_LANE_ROWS: 1000, STAGE_LANE_OPEN: "4"}`, "251MiB"},
		{"a batch lane, unset", `config: {STAGE_PARTITIONS: 3, STAGE_LANE: ""}`, nil},
		{"two stages", `stages: {a: {config: {STAGE_POOL_SIZE: 2}}, b: {config: {STAGE_POOL_SIZE: 2}}}`, nil},
		{"two stages, four partitions", `stages: {a: {config: {STAGE_PARTITIONS: 3}}, b: {config: {STAGE_POOL_SIZE: 2}}}`, "210MiB"},
		{"a stage with a window of its own", `stages: {a: {config: {STAGE_PARTITIONS: 3}}, b: {config: {STAGE_WINDOW_BYTES: 512MiB}}}`, "109MiB"},
		{"stages with windows of their own", `stages: {a: {config: {STAGE_WINDOW_BYTES: 300MiB}}, b: {config: {STAGE_WINDOW_BYTES: 500MiB}}}`, nil},
		{"no limit", `{config: {STAGE_PARTITIONS: 1024}, resources: {limits: null}}`, nil},
		{"a limit that is not understood", `{config: {STAGE_PARTITIONS: 1024}, resources: {limits: {memory: "1e9"}}}`, nil},
		{"what config says", `config: {STAGE_PARTITIONS: 8, STAGE_WINDOW_BYTES: 64 MiB}`, "64 MiB"},
		{"config, in bytes", `config: {STAGE_PARTITIONS: 8, STAGE_WINDOW_BYTES: 67108864}`, "67108864"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			values := merged(ciValues(t, "minimal"), parse(t, `config: {STAGE_INPUT_SUBJECT: "rows.{partition}.>"}`))
			for _, o := range objects(t, merged(values, parse(t, tt.values))) {
				if o.kind() != "ConfigMap" || o.name() != "demo-llm-stage" {
					continue
				}
				if got := o.at("data", "STAGE_WINDOW_BYTES"); got != tt.want {
					t.Errorf("STAGE_WINDOW_BYTES is %v, want %v", got, tt.want)
				}
			}
		})
	}
}

func TestWindowsThatDoNotFitAreRefusedWithWhatDoes(t *testing.T) {
	for _, tt := range []struct {
		values string // over those of ci/minimal
		want   string
	}{
		{
			`config: {STAGE_PARTITIONS: 8, STAGE_WINDOW_BYTES: 256MiB}`,
			"resources.limits.memory: 1Gi has no room for the windows of a pod that serves all partitions, 8 of 256MiB each: raise it to 2443Mi, or lower config.STAGE_WINDOW_BYTES to 105MiB",
		},
		{
			`{config: {STAGE_WINDOW_BYTES: 268435456}, resources: {limits: {memory: 256Mi}}}`,
			"256Mi has no room for the windows of a pod that serves all partitions, 1 of 268435456 each: raise it to 327Mi, or lower config.STAGE_WINDOW_BYTES to 196MiB",
		},
		{`config: {STAGE_PARTITIONS: 1024}`, "1Gi has no room for the windows of a pod that serves all partitions, 1024 of 1MiB each: raise it to 1234Mi"},
		{
			`stages: {a: {config: {STAGE_WINDOW_BYTES: 600MiB}}, b: {config: {STAGE_WINDOW_BYTES: 500MiB}}}`,
			"1Gi has no room for the windows of a pod that serves all partitions, 0 of 1MiB each and those that stages have of their own: raise it to 1330Mi\n",
		},
		{
			`{config: {STAGE_WINDOW_BYTES: 600MiB}, stages: {a: {config: {STAGE_POOL_SIZE: 2}}, b: {config: {STAGE_POOL_SIZE: 2}}}}`,
			"2 of 600MiB each and those that stages have of their own: raise it to 1444Mi, or lower config.STAGE_WINDOW_BYTES to 422MiB",
		},
	} {
		values := merged(ciValues(t, "minimal"), parse(t, `config: {STAGE_INPUT_SUBJECT: "rows.{partition}.>"}`))
		values = merged(values, parse(t, tt.values))
		for _, r := range renderers {
			if _, err := r.render(values); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: %v\nwant %s", r.name, err, tt.want)
			}
		}
	}
}
