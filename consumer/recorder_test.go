package consumer_test

import (
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
)

func TestRecorderTellsOfEachEventAsItComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		var seen []auditlog.Event
		rec := consumer.NewRecorder(b.connect(), consumer.RecorderConfig{
			Stream: "AUDIT", Subject: "audit", Name: "stage", Logger: slog.New(slog.DiscardHandler),
			Recorded: func(e auditlog.Event) { seen = append(seen, e) },
		})
		run := &auditlog.Run{Header: auditlog.Header{RunID: "r1"}, Phase: auditlog.PhaseStart}
		call := &auditlog.Call{Header: auditlog.Header{RunID: "r1"}, CallID: "c1"}
		rec.RecordRun(run)
		rec.RecordCall(call, nil) // and nothing runs that could store them
		if len(seen) != 2 || seen[0].Run != run || seen[0].Kind != auditlog.KindRun || seen[1].Call != call || seen[1].RunID != "r1" {
			t.Errorf("told of %+v", seen)
		}
	})
}
