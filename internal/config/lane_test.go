package config

import (
	"strings"
	"testing"
)

func TestTheLaneExistsWhereASettingIsGiven(t *testing.T) {
	for _, tt := range []struct {
		name   string
		source Source
		on     bool
		rows   int
	}{
		{"nothing given", Source{}, false, 0},
		{"another setting", Source{Environ: map[string]string{"STAGE_WINDOW": "64"}}, false, 0},
		{"empty is unset", Source{Environ: map[string]string{"STAGE_LANE": "", "STAGE_LANE_ROWS": ""}}, false, 0},
		{"batch", Source{Environ: map[string]string{"STAGE_LANE": "batch"}}, true, 100_000},
		{"live, as the default is", Source{Environ: map[string]string{"STAGE_LANE": "live"}}, true, 100_000},
		{"a limit", Source{Environ: map[string]string{"STAGE_LANE_ROWS": "100"}}, true, 1000},
		{"a flag", Source{Flags: map[string]string{"STAGE_LANE_OPEN": "2"}}, true, 20_000},
		{"an empty flag hides the environment", Source{Flags: map[string]string{"STAGE_LANE": ""}, Environ: map[string]string{"STAGE_LANE": "batch"}}, false, 0},
		{"a file", Source{EnvFiles: []EnvFile{{Path: ".env", Values: map[string]string{"STAGE_LANE_STREAM": "B"}}}}, true, 100_000},
		{"a default of the command", Source{Defaults: map[string]string{"STAGE_LANE_WAIT": "1s"}}, false, 0},
	} {
		c, err := tt.source.Load(t.Context(), NeedNothing)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if c.LaneOn() != tt.on || c.LaneRows() != tt.rows {
			t.Errorf("%s: got %v and %d rows, want %v and %d", tt.name, c.LaneOn(), c.LaneRows(), tt.on, tt.rows)
		}
	}
}

func TestTheLaneNeedsBatchesAndAJournal(t *testing.T) {
	for _, tt := range []struct {
		name  string
		env   []string
		wants []string
	}{
		{"no lane", []string{"STAGE_LLM_PROVIDER", "openrouter", "STAGE_JOURNAL", "false"}, nil},
		{"good", []string{"STAGE_LLM_PROVIDER", "anthropic", "STAGE_LANE", "batch"}, nil},
		{"no Batch API", []string{"STAGE_LLM_PROVIDER", "openrouter", "STAGE_LANE_WAIT", "5m"}, []string{
			"STAGE_LANE: openrouter has no Batch API: choose openai, openai-responses, azure, anthropic, gemini or mock as STAGE_LLM_PROVIDER",
		}},
		{"no journal", []string{"STAGE_LANE", "batch", "STAGE_JOURNAL", "false"}, []string{
			"STAGE_JOURNAL: the batch lane keeps answers there until their turn: set it to true",
		}},
		{"too many rows", []string{"STAGE_LANE_ROWS", "50000", "STAGE_LANE_OPEN", "21"}, []string{
			"STAGE_LANE_OPEN: 21 batches of 50000 rows (STAGE_LANE_ROWS) are 1050000 rows",
		}},
		{"a stream twice", []string{"STAGE_LANE_STREAM", "JOURNAL"}, []string{
			"STAGE_LANE_STREAM: JOURNAL is STAGE_JOURNAL_STREAM already",
		}},
		{"no stream's name", []string{"STAGE_LANE_STREAM", "LANE.A"}, []string{
			`STAGE_LANE_STREAM: "LANE.A" is not a stream's name`,
		}},
		{"records are input", []string{"STAGE_LANE", "batch", "STAGE_INPUT_SUBJECT", "lane.>"}, []string{
			"STAGE_LANE_STREAM: messages on lane.stage.> would be input again",
		}},
		{"batched requests are captured", []string{"STAGE_LANE", "batch", "STAGE_NAME", "lane"}, []string{
			"STAGE_NAME: batched requests arrive on lane.llm_batch, which matches lane.> (STAGE_LANE_STREAM)",
		}},
	} {
		_, err := load(t, NeedNothing, tt.env...)
		got := problemLines(err)
		if len(got) != len(tt.wants) {
			t.Errorf("%s: got %q, want %d problems", tt.name, got, len(tt.wants))
			continue
		}
		for i, want := range tt.wants {
			if !strings.HasPrefix(got[i], want) {
				t.Errorf("%s: got %q, want %q", tt.name, got[i], want)
			}
		}
	}
}
