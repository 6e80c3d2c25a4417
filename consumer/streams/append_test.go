package streams_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

func TestMain(m *testing.M) { stagetest.Main(m) }

// The answer to an append that was given up comes while the next one waits for its own.
func TestAnAppenderTakesNoAnswerForThatOfAnother(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		srv := stagetest.Core(t)
		nc, server := stagetest.Join(t, srv), stagetest.Join(t, srv)
		n := 0
		_, err := server.Subscribe("results", func(m *nats.Msg) {
			n++
			answer := fmt.Appendf(nil, `{"stream":"RESULTS","seq":%d}`, n)
			time.AfterFunc(2*time.Second, func() { _ = m.Respond(answer) })
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := server.Flush(); err != nil {
			t.Fatal(err)
		}
		a, err := streams.NewAppender(nc)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		send := func(subject string, patience time.Duration) (uint64, error) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			return a.Append(ctx, []*nats.Msg{{Subject: subject, Header: nats.Header{}}})
		}
		if _, err := send("results", time.Second); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, streams.ErrRefused) {
			t.Errorf("got %v, want the end of patience: it may be stored", err)
		}
		if seq, err := send("results", 4*time.Second); seq != 2 || err != nil {
			t.Errorf("got %d, %v, want 2, its own answer", seq, err)
		}
		if _, err := send("nobody", time.Second); !errors.Is(err, streams.ErrRefused) {
			t.Errorf("got %v, want a refusal", err)
		}
	})
}
