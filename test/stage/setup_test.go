package stage_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go/jetstream"
)

func TestAStageThatCannotStartReportsWhatToFix(t *testing.T) {
	tests := []struct {
		name    string
		prepare func(s *site)
		vars    vars
		want    []string // of the error that it ends with
	}{
		{"template", nil, vars{"STAGE_TEMPLATE": "Row\n{{ row.n"}, []string{"STAGE_TEMPLATE", "line 2"}},
		{"template that reads files", nil, vars{"STAGE_TEMPLATE": "{% include 'key.pem' %}"}, []string{"STAGE_TEMPLATE", "include"}},
		{"lookup", nil, vars{"STAGE_LOOKUP_FILE": stagetest.File(t, "lookup.yaml", "a: [1")}, []string{"STAGE_LOOKUP_FILE"}},
		{"schema", nil, vars{"STAGE_RESPONSE_SCHEMA_FILE": stagetest.File(t, "schema.json", `{"type": 5}`)}, []string{"STAGE_RESPONSE_SCHEMA_FILE"}},
		{"missing streams", nil, vars{"STAGE_CREATE_STREAMS": "false"}, []string{
			"STAGE_INPUT_STREAM: stream ROWS does not exist", "STAGE_RESULT_STREAM: stream RESULTS does not exist",
			"STAGE_AUDIT_STREAM: stream AUDIT does not exist", "STAGE_CREATE_STREAMS=true",
		}},
		{"results that expire", func(s *site) {
			s.configured(jetstream.StreamConfig{Name: "RESULTS", Subjects: []string{"results.>"}, MaxAge: time.Hour})
		}, nil, []string{"STAGE_RESULT_STREAM", "max age", "set it to 0"}},
		{"results on a work queue", func(s *site) {
			s.configured(jetstream.StreamConfig{Name: "RESULTS", Subjects: []string{"results.>"}, Retention: jetstream.WorkQueuePolicy})
		}, nil, []string{"STAGE_RESULT_STREAM", "retention", "limits"}},
		{"a subject of another stream", func(s *site) { s.newStream("OTHER", "results.>") }, nil, []string{"STAGE_RESULT_STREAM", "results.>", "overlap"}},
		{"dead letters that no stream captures", nil, vars{"STAGE_DEAD_LETTER_SUBJECT": "dead.rows"}, []string{"STAGE_DEAD_LETTER_SUBJECT", "dead.rows"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSite(t, llmtest.Config{})
				if tt.prepare != nil {
					tt.prepare(s)
				}
				err := s.start(tt.vars).wait()
				if err == nil {
					t.Fatal("it ended without an error")
				}
				for _, want := range tt.want {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%q does not say %q", err, want)
					}
				}
				t.Log(err)
			})
		})
	}
}

func TestARecreatedInputStopsTheStage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := loaded(t, 3, llmtest.Config{})
		r := s.start(nil)
		s.await(3)
		r.stop()
		stagetest.Must(t, s.js.DeleteStream(t.Context(), "ROWS"))
		time.Sleep(time.Minute)
		s.newInput()
		s.load(2)
		err := s.start(nil).wait()
		if err == nil || !strings.Contains(err.Error(), "--new-input") || !strings.Contains(err.Error(), "another name") {
			t.Errorf("it ended with: %v", err)
		}
		again := s.startWith(nil, func(d *deps) { d.NewInput = true })
		s.await(5)
		again.stop()
		var rows []uint64
		for _, res := range s.results(0) {
			rows = append(rows, res.Row)
		}
		if len(rows) != 5 || rows[3] != 1 || rows[4] != 2 {
			t.Errorf("results of rows %v, want 1 2 3 and then 1 2 of the new stream", rows)
		}
	})
}
