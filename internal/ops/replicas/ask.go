package replicas

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/nats-io/nats.go"
)

// Gathered is what the replicas of a stage have answered.
type Gathered struct {
	Stage string
	// Own is the summary of the replica that asks. It is nil if another program asks.
	Own     *Summary
	answers [][]byte
	// Problem is why others could not be asked, so that they are unknown rather than
	// missing. It is empty if they were asked.
	Problem string
}

// Ask asks all replicas of a stage, and waits for their answers for [GatherFor]. own is the
// summary of the replica that asks. Another program gives nil, and then Ask waits until
// [FirstWithin] for a first answer before it waits for the others. It sends one message, and
// ends early with ctx.
func Ask(ctx context.Context, nc *nats.Conn, stage string, own *Summary) Gathered {
	return ask(ctx, nc, stage, own, nil)
}

// question is what replicas are asked. An empty message asks for the summary.
type question struct {
	// Row asks for the calls in flight of this row of the input stream, and for what it
	// waits for.
	Row uint64 `json:"row"`
}

// RowCall is a call in flight, and the replica that makes it.
type RowCall struct {
	Replica, Host string
	Call
}

// AskRow asks all replicas which calls of a row are in flight, and what the row waits for.
// The audit has only calls that have ended. The calls come with the oldest first. It takes
// as long as [Ask] does for a program that is no replica. It returns nothing if nobody can
// be asked, and replicas of an earlier version do not answer.
func AskRow(ctx context.Context, nc *nats.Conn, stage string, row uint64) (calls []RowCall, wait *hold.Hold) {
	body, err := json.Marshal(question{Row: row})
	if err != nil {
		return nil, nil
	}
	g := ask(ctx, nc, stage, nil, body)
	for _, answer := range g.answers {
		s, note := decode(stage, answer)
		if note != "" {
			continue
		}
		for _, c := range s.Calls {
			calls = append(calls, RowCall{s.Replica, s.Host, c})
		}
		if wait == nil { // one replica serves the partition
			wait = s.Hold
		}
	}
	slices.SortStableFunc(calls, func(a, b RowCall) int { return a.Since.Compare(b.Since) })
	return calls, wait
}

func ask(ctx context.Context, nc *nats.Conn, stage string, own *Summary, question []byte) Gathered {
	g := Gathered{Stage: stage, Own: own}
	if !nc.IsConnected() { // the client would keep the message until it is connected
		g.Problem = "not connected to NATS"
		return g
	}
	answers := make(chan *nats.Msg, Most+1)
	inbox := nc.NewInbox()
	sub, err := nc.ChanSubscribe(inbox, answers)
	if err != nil {
		g.Problem = err.Error()
		return g
	}
	defer sub.Unsubscribe() //nolint:errcheck // no listener remains either way
	if err := nc.PublishRequest(Subject(stage), inbox, question); err != nil {
		g.Problem = err.Error()
		return g
	}
	over := time.NewTimer(GatherFor)
	defer over.Stop()
	for late := false; len(g.answers) < Most; {
		select {
		case m := <-answers:
			if noResponders(m) {
				return g
			}
			if g.answers = append(g.answers, m.Data); late {
				late = false
				over.Reset(GatherFor)
			}
			continue
		case <-over.C:
			if len(g.answers) == 0 && !late && own == nil && whyDenied(nc, Subject(stage), inbox) == "" {
				late = true
				over.Reset(FirstWithin - GatherFor)
				continue
			}
		case <-ctx.Done():
		}
		break
	}
	if len(g.answers) == 0 {
		g.Problem = whyDenied(nc, Subject(stage), inbox)
	}
	return g
}

// noResponders reports whether the server says that nobody listens.
func noResponders(m *nats.Msg) bool { return len(m.Data) == 0 && m.Header.Get("Status") == "503" }

// whyDenied returns why there was no answer, if the server has denied a message on one of
// these subjects. Otherwise it returns "".
func whyDenied(nc *nats.Conn, subjects ...string) string {
	if err := streams.Violation(nc, subjects...); err != nil {
		return err.Error()
	}
	return ""
}

// errNobody says that no replica has answered.
var errNobody = errors.New("no replica answers")

// Nobody returns an error that says what to check if no replica answers, and otherwise nil.
func (w *Whole) Nobody(subject string) error {
	if slices.ContainsFunc(w.Replicas, func(r Replica) bool { return r.Status == Answers }) {
		return nil
	}
	if w.Problem != "" {
		return fmt.Errorf("%w of stage %q: %s", errNobody, w.Stage, w.Problem)
	}
	return fmt.Errorf("%w of stage %q on %s: is one running, with this STAGE_NAME, on this server and account, of a version that "+
		"answers; and may its NATS user, and this one, use the subject", errNobody, w.Stage, subject)
}
