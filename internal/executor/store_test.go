package executor

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestForeignMessagesInTheStoreAreNoReplies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := stagetest.NewBench(t, nil)
		s := stagetest.Value(openReplyStore(t.Context(), b.NC, stagetest.Config(t, "STAGE_DEDUPE", "stored"), slog.New(slog.DiscardHandler)))(t)
		for key, body := range map[string]string{"a": "no JSON", "b": "{}", "c": `{"text":"fine","model":"m"}`} {
			stagetest.Value(b.JS.PublishMsg(t.Context(), &nats.Msg{Subject: config.DedupePrefix + key, Data: []byte(body)}))(t)
			if got := s.get(t.Context(), key); (got != nil) != (key == "c") {
				t.Errorf("%s: got %+v", body, got)
			}
		}
	})
}

func TestTheStoreMustTakeReplies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := stagetest.NewBench(t, nil)
		cfg := stagetest.Config(t, "STAGE_DEDUPE", "stored", "STAGE_CREATE_STREAMS", "false")
		_, err := openReplyStore(t.Context(), b.NC, cfg, nil)
		if err == nil || !strings.HasPrefix(err.Error(), "STAGE_DEDUPE: stream DEDUPE does not exist: create it on subjects dedupe.>") {
			t.Errorf("without the stream: %v", err)
		}
		stagetest.Value(b.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: "DEDUPE", Subjects: []string{"other"}}))(t)
		if _, err = openReplyStore(t.Context(), b.NC, cfg, nil); err == nil || !strings.Contains(err.Error(), "does not acknowledge messages on dedupe.>") {
			t.Errorf("with a wrong stream: %v", err)
		}
	})
}
