package recorder

import (
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// link is the connection that events go over, with the subscription to their answers.
//
// Invariant: nothing is sent unless listening is set, because of this race: an event goes
// before its connection's SUB; the stream stores it and acknowledges it (nats-server:
// stream.internalLoop); the server has not read the SUB yet, so nobody is interested in
// the reply subject and client.processInboundClientMsg drops the answer. The first event
// of a run used to race with Run in this way.
type link struct {
	nc     *nats.Conn
	prefix string // of the reply subjects, with the dot; it outlives a connection
	sub    *nats.Subscription

	running   bool // Recorder.Run is
	listening bool // answers on nc are subscribed to

	reconnects uint64    // how many reconnects of nc have been noticed
	lostBy     time.Time // answers to events sent by then may be lost; may be zero

	out   nats.Msg // the message that is being sent, reused
	outID []string // the value of its message id header
}

func newLink(nc *nats.Conn) link {
	id := make([]string, 1)
	return link{
		nc: nc, prefix: nc.NewInbox() + ".",
		out: nats.Msg{Header: nats.Header{jetstream.MsgIDHeader: id}}, outID: id,
	}
}

// listen subscribes to the answers.
func (l *link) listen(answered nats.MsgHandler) (err error) {
	l.running, l.listening = true, false
	if l.sub, err = l.nc.Subscribe(l.prefix+">", answered); err != nil {
		return err
	}
	l.listening = true
	return l.sub.SetPendingLimits(-1, -1) // bounded by the events in flight
}

// deafen ends the subscription to the answers.
func (l *link) deafen() {
	l.running = false
	if l.sub != nil {
		_ = l.sub.Unsubscribe()
	}
}

// use goes over to another connection. Answers that were on their way over the old one
// are lost.
func (l *link) use(nc *nats.Conn, answered nats.MsgHandler, now time.Time) {
	l.nc, l.reconnects, l.lostBy = nc, 0, now
	if l.running {
		_ = l.listen(answered) // it fails only if nc is closed, too, and then another follows
	}
}

// answersLost reports whether a connection has broken and taken answers with it: answers
// to everything that was sent at by or earlier. It says so once for each break,
// hurryAfter later, because answers that are only late have come by then.
func (l *link) answersLost(now time.Time) (by time.Time, lost bool) {
	if n := l.nc.Stats().Reconnects; n != l.reconnects {
		l.reconnects, l.lostBy = n, now
	}
	if l.lostBy.IsZero() || now.Sub(l.lostBy) < hurryAfter || !l.nc.IsConnected() {
		return time.Time{}, false
	}
	by, l.lostBy = l.lostBy, time.Time{}
	return by, true
}

// bytesMax is how large an event may be.
func (l *link) bytesMax() int {
	const headers = 1024 // at most
	return int(l.nc.MaxPayload()) - headers
}

// token returns the first token of a reply subject behind the prefix: the number of an
// event in base 36, or the id of a group.
func (l *link) token(reply string) string {
	token, _, _ := strings.Cut(reply[len(l.prefix):], ".")
	return token
}

// post hands one event to the connection, which copies it.
func (l *link) post(rec *record) error {
	return l.postTo(rec, l.prefix+strconv.FormatUint(rec.number, 36))
}

func (l *link) postTo(rec *record, reply string) error {
	l.outID[0] = rec.id
	l.out.Subject, l.out.Reply, l.out.Data = rec.subject, reply, rec.data
	if rec.rows != "" {
		l.out.Header.Set(streams.HeaderRows, rec.rows)
		defer l.out.Header.Del(streams.HeaderRows)
	}
	if rec.whole != "" {
		l.out.Header.Set(streams.HeaderRecorded, rec.whole)
		defer l.out.Header.Del(streams.HeaderRecorded)
	}
	return l.nc.PublishMsg(&l.out)
}

// postGroup hands the events of a group to the connection. An error is about the event
// that it returns, and the rest of the group was not sent.
func (l *link) postGroup(g *group) (*record, error) {
	post := l.postFast
	if g.atomic {
		post = l.postAtomic
	}
	for i, rec := range g.records {
		if err := post(g, rec, i+1); err != nil {
			return rec, err
		}
	}
	return nil, nil
}

// postFast sends the nth message of a fast group, from 1 on.
func (l *link) postFast(g *group, rec *record, n int) error {
	var buf [128]byte
	return l.postTo(rec, string(streams.FastReply(buf[:0], l.prefix+g.id, n, len(g.records))))
}

// postAtomic sends the nth message of an atomic group, from 1 on.
func (l *link) postAtomic(g *group, rec *record, n int) error {
	msg := &nats.Msg{Subject: rec.subject, Data: rec.data, Header: nats.Header{
		jetstream.MsgIDHeader:  {rec.id},
		streams.HeaderBatchID:  {g.id},
		streams.HeaderBatchSeq: {strconv.Itoa(n)},
	}}
	if rec.rows != "" {
		msg.Header.Set(streams.HeaderRows, rec.rows)
	}
	if rec.whole != "" {
		msg.Header.Set(streams.HeaderRecorded, rec.whole)
	}
	if n == len(g.records) {
		msg.Header[streams.HeaderBatchCommit] = []string{"1"}
		msg.Reply = l.prefix + g.id
	}
	return l.nc.PublishMsg(msg)
}
