package follow

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/llm-stage/stage/internal/natsconn"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go/jetstream"
)

// No process serves the store at the first look, and one does when it is to be opened: nothing is read through that one
// as if it could not end.
func TestAServerThatIsFasterIsNotReadAsAStore(t *testing.T) {
	cfg := stagetest.Config(t, "STAGE_DATA_DIR", t.TempDir())
	log := slog.New(slog.DiscardHandler)
	srv := stagetest.Value(natsconn.StartServer(t.Context(), cfg, cfg.Data.Dir, 0, log))(t)
	defer srv.Close()
	js := stagetest.Value(jetstream.New(srv.NC()))(t)
	stagetest.Value(js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}))(t)
	f := &follower{cfg: cfg, log: log, read: func(context.Context, jetstream.JetStream, bool) error {
		t.Error("it was read")
		return nil
	}}
	if err := f.stored(t.Context()); !errors.Is(err, errServed) {
		t.Errorf("got %v, want %v", err, errServed)
	}
}
