package consumer

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// The subjects of an earlier term's replies come in several answers. If some are removed between two of them, those
// behind move up, and the next answer begins behind some that were never read. So all are read again.
func TestSubjectsThatMoveUpBetweenTwoAnswersAreReadAgain(t *testing.T) {
	const inAnAnswer = 3
	now := time.Unix(0, 0)
	e := earlierTerms{link: quietLink(unanswering(t))}
	var subjects []string
	for row := uint64(1); row <= 5; row++ {
		subjects = append(subjects, e.link.subject(keptRef{row, wholeRow}))
	}
	e.open(now)
	for answers := 1; !e.received(subjectsFrom(t, subjects, e.read, inAnAnswer), now); answers++ {
		if answers == 1 {
			subjects = subjects[2:] // an old purge
		}
		if answers == 10 {
			t.Fatalf("%d of %d subjects are read after %d answers", e.read, len(subjects), answers)
		}
	}
	for row := uint64(3); row <= 5; row++ {
		if !e.has(&Row{Seq: row}) {
			t.Errorf("the reply to row %d is not known", row)
		}
	}
	if len(e.refs) != 3 {
		t.Errorf("%d replies are known, want 3", len(e.refs))
	}
}

// subjectsFrom is the server's answer that has the subjects from an offset on.
func subjectsFrom(t *testing.T, subjects []string, offset, most int) *nats.Msg {
	t.Helper()
	page := make(map[string]uint64)
	for _, subject := range subjects[min(offset, len(subjects)):min(offset+most, len(subjects))] {
		page[subject] = 1
	}
	body := stagetest.Value(json.Marshal(map[string]any{
		"total": len(subjects), "offset": offset, "state": map[string]any{"last_seq": 9, "subjects": page},
	}))(t)
	return &nats.Msg{Data: body}
}

// unanswering returns a connection to a server that answers no request of the JetStream API.
func unanswering(t *testing.T) *nats.Conn {
	t.Helper()
	srv := stagetest.Value(server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true}))(t)
	srv.Start()
	t.Cleanup(srv.Shutdown)
	nc := stagetest.Value(nats.Connect("", nats.InProcessServer(srv)))(t)
	t.Cleanup(nc.Close)
	return nc
}
