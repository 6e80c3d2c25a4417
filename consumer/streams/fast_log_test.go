package streams_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/test/cluster"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The interleavings of [Appender.AppendFast]: whatever comes between its messages, and
// whichever copy of them comes first, the log has the first part of the group, in order and
// once, and nothing of it behind a rival's claim.
func TestAFastGroupStoresItsFirstPartInOrder(t *testing.T) {
	group := func(nc *nats.Conn, name string, first uint64) []*nats.Msg {
		msgs := make([]*nats.Msg, 4)
		for i := range msgs {
			msgs[i] = &nats.Msg{Subject: "log.rows", Data: strconv.AppendInt(nil, int64(i), 10), Header: nats.Header{}}
		}
		msgs[0].Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(first-1, 10))
		msgs[0].Header.Set(jetstream.ExpectedLastSubjSeqSubjHeader, "log.>")
		streams.Number(msgs, nc.NewInbox()+"."+name, first)
		return msgs
	}
	claim := func(after uint64) *nats.Msg {
		return &nats.Msg{Subject: "log.claim", Data: []byte("claim"), Header: nats.Header{
			jetstream.ExpectedLastSubjSeqHeader:     {strconv.FormatUint(after, 10)},
			jetstream.ExpectedLastSubjSeqSubjHeader: {"log.>"},
		}}
	}
	other := &nats.Msg{Subject: "others", Data: []byte("other")}
	for _, c := range []struct {
		name string
		sent func(a, b []*nats.Msg) []*nats.Msg
		want string
	}{
		{"alone", func(a, _ []*nats.Msg) []*nats.Msg { return a }, "0 1 2 3"},
		{"a rival's claim in the middle", func(a, _ []*nats.Msg) []*nats.Msg {
			return []*nats.Msg{a[0], a[1], claim(2), a[2], a[3]}
		}, "0 1 claim"},
		{"a message of others in the middle", func(a, _ []*nats.Msg) []*nats.Msg {
			return []*nats.Msg{a[0], a[1], other, a[2], a[3]}
		}, "0 1 other"},
		{"one that is lost", func(a, _ []*nats.Msg) []*nats.Msg { return []*nats.Msg{a[0], a[1], a[3]} }, "0 1"},
		{"a second copy behind it", func(a, b []*nats.Msg) []*nats.Msg { return append(a, b...) }, "0 1 2 3"},
		{"a second copy of the rest between them", func(a, _ []*nats.Msg) []*nats.Msg {
			rest := restOf(a[2:], 3)
			return []*nats.Msg{a[0], a[1], rest[0], a[2], rest[1], a[3]}
		}, "0 1 2 3"},
		{"copies that alternate", func(a, b []*nats.Msg) []*nats.Msg {
			return []*nats.Msg{a[0], b[0], b[1], a[1], b[2], a[2], b[3], a[3]}
		}, "0 1 2 3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			nc := stagetest.Value(nats.Connect(cluster.Start(t, 1)[0].ClientURL()))(t)
			defer nc.Close()
			js := stagetest.Value(jetstream.New(nc))(t)
			stream := stagetest.Value(js.CreateStream(t.Context(), jetstream.StreamConfig{
				Name: "S", Subjects: []string{"log.>", "others"}, AllowBatchPublish: true,
			}))(t)
			for _, msg := range c.sent(group(nc, "a", 1), group(nc, "b", 1)) {
				stagetest.Must(t, nc.PublishMsg(msg))
			}
			stagetest.Must(t, nc.Flush())
			// The stream takes what it is sent in order, so this comes behind all of it.
			end := stagetest.Value(js.Publish(t.Context(), "others", []byte("end")))(t)
			var got []string
			for seq := uint64(1); seq < end.Sequence; seq++ {
				got = append(got, string(stagetest.Value(stream.GetMsg(t.Context(), seq))(t).Data))
			}
			if got := strings.Join(got, " "); got != c.want {
				t.Errorf("the stream has %q, want %q", got, c.want)
			}
		})
	}
}

// restOf is the rest of a group, sent again in a group of its own.
func restOf(rest []*nats.Msg, first uint64) []*nats.Msg {
	msgs := make([]*nats.Msg, len(rest))
	for i, msg := range rest {
		msgs[i] = &nats.Msg{Subject: msg.Subject, Data: msg.Data, Header: nats.Header{}}
	}
	msgs[0].Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(first-1, 10))
	msgs[0].Header.Set(jetstream.ExpectedLastSubjSeqSubjHeader, "log.>")
	streams.Number(msgs, nats.NewInbox()+".c", first)
	return msgs
}
