package stagetest

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// NATS is a server inside the process, which listens on no socket, and a client of it.
type NATS struct {
	T      *testing.T
	Server *natsd.Server
	Dir    string // of its store
	NC     *nats.Conn
	JS     jetstream.JetStream
}

// StartNATS starts a server that ends with the test, on an empty store, which may be in
// memory ([Dir]).
func StartNATS(t *testing.T) *NATS {
	t.Helper()
	return OpenNATS(t, Dir(t))
}

// OpenNATS is [StartNATS] on an existing store.
func OpenNATS(t *testing.T, dir string) *NATS {
	t.Helper()
	n := &NATS{T: t, Dir: dir}
	n.Server = Value(natsd.Start(natsd.Config{Dir: n.Dir, NoListen: true}))(t)
	t.Cleanup(n.Server.Stop)
	n.NC = n.Connect()
	n.JS = Value(jetstream.New(n.NC))(t)
	// A new server leaves one of two first requests that come at the same time without an
	// answer, once in a hundred times.
	Value(n.JS.AccountInfo(t.Context()))(t)
	return n
}

// Connect returns another connection, which ends with the test.
func (n *NATS) Connect() *nats.Conn {
	n.T.Helper()
	nc := Value(n.Server.Connect())(n.T)
	n.T.Cleanup(nc.Close)
	return nc
}

// Message is one stored message.
type Message struct {
	Stream  string
	Subject string
	Seq     uint64
	Time    time.Time
	Header  nats.Header
	Body    []byte
}

// Read returns the messages of a stream that match a filter, in their order.
func Read(tb testing.TB, js jetstream.JetStream, stream, filter string) []Message {
	tb.Helper()
	c := Value(js.OrderedConsumer(tb.Context(), stream, jetstream.OrderedConsumerConfig{FilterSubjects: []string{filter}}))(tb)
	var all []Message
	for {
		batch := Value(c.FetchNoWait(1000))(tb)
		n := 0
		for m := range batch.Messages() {
			md := Value(m.Metadata())(tb)
			all = append(all, Message{stream, m.Subject(), md.Sequence.Stream, md.Timestamp, m.Headers(), m.Data()})
			n++
		}
		if n == 0 {
			return all
		}
	}
}

// Stored is how many messages of a stream match a filter; 0 while there is no such stream.
func Stored(tb testing.TB, js jetstream.JetStream, stream, filter string) (sum int) {
	tb.Helper()
	for _, n := range Value(Subjects(tb.Context(), js, stream, filter))(tb) {
		sum += n
	}
	return sum
}

// Subjects returns how many messages of a stream each subject that matches a filter has;
// none while there is no such stream. Tests ask for it again and again, so it is one
// request, and only this part of the answer is decoded.
func Subjects(ctx context.Context, js jetstream.JetStream, stream, filter string) (map[string]int, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	m, err := js.Conn().RequestWithContext(ctx, "$JS.API.STREAM.INFO."+stream, fmt.Appendf(nil, `{"subjects_filter":%q}`, filter))
	if err != nil {
		return nil, err
	}
	var info struct {
		Error *jetstream.APIError `json:"error"`
		State struct {
			Subjects map[string]int `json:"subjects"`
		} `json:"state"`
	}
	if err := json.Unmarshal(m.Data, &info); err != nil {
		return nil, err
	}
	if e := info.Error; e != nil && e.ErrorCode != jetstream.JSErrCodeStreamNotFound {
		return nil, e
	}
	return info.State.Subjects, nil
}

// Fill makes a stream refuse messages once it has twenty more than now, or accept them
// again.
func Fill(tb testing.TB, js jetstream.JetStream, stream string, on bool) {
	tb.Helper()
	s := Value(js.Stream(tb.Context(), stream))(tb)
	cfg := s.CachedInfo().Config
	cfg.MaxMsgs = -1
	if on {
		cfg.MaxMsgs, cfg.Discard = int64(s.CachedInfo().State.Msgs)+20, jetstream.DiscardNew //nolint:gosec // few
	}
	Value(js.UpdateStream(tb.Context(), cfg))(tb)
}

// AwaitConsumer waits until a durable consumer is there, the last thing that a stage
// creates; at most a minute, by real time.
func AwaitConsumer(tb testing.TB, js jetstream.JetStream, stream, durable string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := js.Consumer(ctx, stream, durable); err == nil {
			return
		}
		select {
		case <-ctx.Done():
			tb.Fatalf("no consumer %s within a minute", durable)
		case <-tick.C:
		}
	}
}
