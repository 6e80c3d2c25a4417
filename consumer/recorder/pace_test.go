package recorder

import (
	"log/slog"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

func TestMain(m *testing.M) { stagetest.Main(m) }

// The two events of a row are one write and one read; a call whose row is not done yet
// waits for no longer than events gather.
func TestACallsEventGoesWithThatOfItsRow(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) { pairs(t, stagetest.Join(t, stagetest.Core(t))) })
}

func pairs(t *testing.T, nc *nats.Conn) {
	t.Helper()
	r := New(nc, Config{Stream: "AUDIT", Subject: "audit", Name: "stage", Logger: slog.New(slog.DiscardHandler)})
	r.link.listening = true
	defer r.queue.pace.stop()
	check := func(what string, queued, sent int) {
		t.Helper()
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.queue.len() != queued || len(r.inFlight.single) != sent {
			t.Errorf("%s: %d events wait and %d are on their way, want %d and %d", what, r.queue.len(), len(r.inFlight.single), queued, sent)
		}
	}
	flush := func(at time.Time) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.flush(at)
	}
	r.RecordCall(&auditlog.Call{Sequence: 1}, nil)
	flush(time.Now()) // as an answer to an earlier event would
	check("a call", 1, 0)
	r.RecordRow(&auditlog.Row{}, nil)
	check("and its row", 0, 2)
	r.RecordCall(&auditlog.Call{Sequence: 1, CallIndex: 1}, nil)
	flush(time.Now().Add(gatherFor))
	check("a call without", 0, 3)
	for i := range gatherFew {
		r.RecordCall(&auditlog.Call{Sequence: 1, CallIndex: 2 + i}, nil)
	}
	check("many calls", 0, 3+gatherFew)
	time.Sleep(gatherFor)
	r.RecordCall(&auditlog.Call{BatchID: "b"}, nil)
	check("a prompt of a request", 0, 4+gatherFew)
}
