package streams_test

import (
	"errors"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestTheAPIOfAConnectionIsWhereItsPrefixSays(t *testing.T) {
	n := stagetest.StartNATS(t)
	for _, tt := range []struct{ set, want string }{
		{"", jetstream.DefaultAPIPrefix},
		{"$JS.API", "$JS.API."},
		{"JS.hub.API", "JS.hub.API."},
		{"JS.hub.API.", "JS.hub.API."},
		{streams.DomainPrefix("hub"), "$JS.hub.API."},
		{"", jetstream.DefaultAPIPrefix},
	} {
		streams.SetAPIPrefix(n.NC, tt.set)
		if got := streams.APIPrefix(n.NC); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.set, got, tt.want)
		}
	}
	if got := streams.APIPrefix(n.Connect()); got != jetstream.DefaultAPIPrefix {
		t.Errorf("another connection: got %q", got)
	}
}

// Nobody answers on the prefix, so a request that goes elsewhere succeeds.
func TestEveryRequestGoesToTheAPIOfItsConnection(t *testing.T) {
	n := stagetest.StartNATS(t)
	if _, err := n.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}, AllowDirect: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.JS.Publish(t.Context(), "s", nil); err != nil {
		t.Fatal(err)
	}
	asks := map[string]func(nc *nats.Conn) error{
		"a stream": func(nc *nats.Conn) error {
			js, err := streams.JetStream(nc)
			if err != nil {
				return err
			}
			_, err = js.Stream(t.Context(), "S")
			return err
		},
		"the streams of a stage": func(nc *nats.Conn) error {
			return streams.Ensure(t.Context(), nc, streams.Config{
				Name: "stage", InputStream: "ROWS", InputSubject: "rows.>", ResultStream: "RESULTS", ResultSubject: "results",
				AuditStream: "AUDIT", AuditSubject: "audit", Partitions: 1, Create: true,
			})
		},
		"the consumer of a stage": func(nc *nats.Conn) error {
			_, err := streams.OpenDurable(t.Context(), nc, streams.DurableConfig{Name: "stage", InputStream: "S", InputSubject: "s", ResultStream: "S", Create: true})
			return err
		},
		"a message": func(nc *nats.Conn) error {
			_, err := streams.MessageAt(t.Context(), nc, "S", 1)
			return err
		},
		"the last message, of any replica": func(nc *nats.Conn) error {
			_, err := streams.DirectLast(t.Context(), nc, "S", "s")
			return err
		},
		"a message without waiting": func(nc *nats.Conn) error {
			reply := nc.NewInbox()
			answers, err := nc.SubscribeSync(reply)
			if err == nil {
				err = streams.AskForMessage(nc, "S", 1, reply)
			}
			if err != nil {
				return err
			}
			m, err := answers.NextMsg(time.Minute)
			if err == nil {
				_, err = streams.ReadMessage(m)
			}
			return err
		},
		"a reading": func(nc *nats.Conn) error {
			js, err := jetstream.New(nc) // it makes the consumer, so that the test tries the request for messages alone
			if err != nil {
				return err
			}
			r, err := streams.Read(t.Context(), js, "S", jetstream.ConsumerConfig{})
			if err != nil {
				return err
			}
			defer r.Close()
			_, err = r.Next(t.Context(), nil)
			return err
		},
	}
	for name, ask := range asks {
		nc := n.Connect()
		if err := ask(nc); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		streams.SetAPIPrefix(nc, "nobody")
		if err := ask(nc); !errors.Is(err, nats.ErrNoResponders) && !errors.Is(err, jetstream.ErrNoStreamResponse) {
			t.Errorf("%s: got %v, want no responders on the prefix", name, err)
		}
	}
}
