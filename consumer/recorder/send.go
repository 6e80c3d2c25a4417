package recorder

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Events go to the server in three ways.
//
// One by one: each has its own answer. This is for few events, and for those that were refused or got no answer in
// another way.
//
// As a fast batch (fast ingest, nats-server 2.14), where the stream allows it: messages as before, whose reply
// subjects number them, and one answer to the last that says how many are stored. It costs client and server half of
// what the messages and their answers would. The batch is no unit: the server stores its messages as they come and
// ends it at the first one that is missing or refused.
//
// As an atomic batch (2.12), where the server takes long for each message (it syncs every one to the disk, or asks
// replicas) or there are no fast batches: it is staged and stored as one, which costs a flat 20-30 ms and twice the CPU
// of its messages.
//
// Any answer to a group but that all of it is stored sends its events again one by one: their message ids keep those
// that are stored from being stored twice. An event is never sent in a group for the second time. Of a message in a
// fast batch whose id it has just taken in, but not stored yet, the server says the same as of a stored one; if it
// then loses its leadership, the message is lost.

const (
	// groupMin is the least number of events that go together: of fewer, as the two of a row, a batch would save nothing, and
	// keep those that come next waiting for its answer.
	groupMin = 5
	// fastCostGuess is the time of an event in a fast batch, until it has been measured.
	fastCostGuess = 20 * time.Microsecond
	// slowEvent is what no server takes for an event in a fast batch, however busy, that does not sync each to the disk.
	slowEvent = streams.Cost(500 * time.Microsecond)
	// measureMin is the least number of events of a fast batch whose time is mostly theirs and not the way's. A batch
	// that may take long has no more.
	measureMin = 64
	// forgetFraction is the fraction by which each atomic batch lets the measure of fast ones fade: a disk may have been
	// slow for a moment only.
	forgetFraction = 64
)

// group is a group of events on its way together.
type group struct {
	id      string
	records []*record
	sent    time.Time
	atomic  bool
}

func (g *group) size() int {
	if g == nil {
		return 0
	}
	return len(g.records)
}

// Parts of the reply subject of a message in a fast batch: <id>.<flow>.<what if one is missing>.<number>.<op>.$FI.
// The flow is how many messages may share an answer.
const (
	fastFlow  = ".1000.fail."
	fastStart = ".0.$FI"
	fastNext  = ".1.$FI"
	fastLast  = ".2.$FI"
	// flowAck begins an answer that says how far a fast batch has come. Only its end is waited for.
	flowAck = `{"type":"ack"`
)

// groups says which groups a stream takes.
type groups struct {
	Atomic bool `json:"allow_atomic"`
	Fast   bool `json:"allow_batched"`
}

// groupsOf asks the server about a stream. Features that it does not report are not used.
func groupsOf(ctx context.Context, nc *nats.Conn, stream string) groups {
	var info struct {
		Config groups `json:"config"`
	}
	if stream == "" {
		return info.Config
	}
	ctx, cancel := context.WithTimeout(ctx, streams.RequestTimeout)
	defer cancel()
	if m, err := nc.RequestWithContext(ctx, streams.APIPrefix(nc)+"STREAM.INFO."+stream, nil); err == nil {
		_ = json.Unmarshal(m.Data, &info)
	}
	return info.Config
}

// flush sends what may go now. The lock is held.
func (r *Recorder) flush(now time.Time) {
	switch {
	case len(r.queue) == 0 || !r.listening || r.group != nil:
	case len(r.queue) < gatherFew && now.Before(r.callsUntil):
		r.pace.wait(r.callsUntil.Sub(now), r.gathered)
	case !r.nc.IsConnected(): // what the client buffers meanwhile would come on top of what is sent again
	case r.pace.mayGo(now, len(r.queue), r.gathered):
		r.sendSome(now)
	}
}

// gathered sends the events that have gathered for long enough.
func (r *Recorder) gathered() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pace.armed = false
	r.flush(time.Now())
}

// sendSome sends the events that wait: all together if that is cheaper, or one by one as many as the server works off
// in the time of an atomic batch. More on their way would only keep the next batch waiting. The lock is held.
func (r *Recorder) sendSome(now time.Time) {
	n := len(r.queue)
	together := n >= groupMin && r.troubled == 0 && !now.Before(r.oneByOne)
	switch {
	case together && r.takes.Fast:
		r.sendGroup(now, r.takes.Atomic && r.each > slowEvent && r.each*streams.Cost(n) > r.batch)
	case together && r.takes.Atomic && r.single*streams.Cost(n) > r.batch:
		r.sendGroup(now, true)
	default:
		onWay := max(inFlightMin, int(r.batch/max(1, r.single)))
		n = max(0, min(n, onWay-len(r.sent)))
		for _, rec := range r.queue[:n] {
			r.send(rec, now)
		}
		r.queue = slices.Delete(r.queue, 0, n)
	}
}

// send sends one event. The lock is held, as in what follows.
func (r *Recorder) send(rec *record, now time.Time) {
	if len(r.sent) == 0 {
		r.lastAck = now // the server was idle: the cost counts from here
	}
	rec.due, rec.refused = now.Add(ackTimeout), false
	r.sent[rec.number] = rec
	r.fit(rec)
	if err := r.post(rec, r.prefix+strconv.FormatUint(rec.number, 36)); err != nil {
		rec.due, rec.refused = now.Add(refusedBackoff), true
		r.complain(rec, err.Error())
	}
}

// post hands one event to the connection, which copies it.
func (r *Recorder) post(rec *record, reply string) error {
	r.outID[0] = rec.id
	r.out.Subject, r.out.Reply, r.out.Data = rec.subject, reply, rec.data
	return r.nc.PublishMsg(&r.out)
}

func (r *Recorder) sendGroup(now time.Time, atomic bool) {
	bytes, n, most := 0, 0, streams.AppendMax
	if !atomic && r.each > slowEvent/2 {
		most = measureMin // it may take long
	}
	for n < min(len(r.queue), most) && (n < 2 || bytes < streams.AppendBytesMax) {
		r.fit(r.queue[n])
		bytes += len(r.queue[n].data)
		n++
	}
	r.group = &group{
		id: r.id + strconv.FormatUint(r.queue[0].number, 36), records: slices.Clone(r.queue[:n]), sent: now, atomic: atomic,
	}
	r.queue = slices.Delete(r.queue, 0, n)
	post := r.postFast
	if atomic {
		post = r.postAtomic
	}
	for i, rec := range r.group.records {
		if err := post(r.group, rec, i+1); err != nil {
			r.complain(rec, err.Error())
			r.split(now)
			return
		}
	}
}

func (r *Recorder) postFast(g *group, rec *record, n int) error {
	op := fastNext
	switch n {
	case 1:
		op = fastStart
	case len(g.records):
		op = fastLast
	}
	var buf [128]byte
	reply := append(append(append(buf[:0], r.prefix...), g.id...), fastFlow...)
	return r.post(rec, string(append(strconv.AppendInt(reply, int64(n), 10), op...)))
}

func (r *Recorder) postAtomic(g *group, rec *record, n int) error {
	msg := &nats.Msg{Subject: rec.subject, Data: rec.data, Header: nats.Header{
		jetstream.MsgIDHeader: {rec.id}, streams.HeaderBatchID: {g.id}, streams.HeaderBatchSeq: {strconv.Itoa(n)},
	}}
	if n == len(g.records) {
		msg.Header[streams.HeaderBatchCommit] = []string{"1"}
		msg.Reply = r.prefix + g.id
	}
	return r.nc.PublishMsg(msg)
}

// groupAnswered handles the answer to the group that is in flight.
func (r *Recorder) groupAnswered(m *nats.Msg, refused error, now time.Time) {
	g := r.group
	var ack struct {
		Batch string `json:"batch"`
		Count int    `json:"count"`
	}
	if refused != nil || json.Unmarshal(m.Data, &ack) != nil || ack.Batch != g.id || ack.Count != len(g.records) {
		r.cfg.Logger.Debug("resending a group of audit events one by one", slog.Bool("atomic", g.atomic), slog.String("answer", streams.Preview(m.Data)))
		r.split(now)
		return
	}
	r.group = nil
	r.stored = append(r.stored, g.records...)
	switch took := now.Sub(g.sent); {
	case g.atomic:
		r.batch.Add(took)
		r.each -= r.each / forgetFraction
	default:
		if each := took / time.Duration(len(g.records)); len(g.records) >= measureMin || streams.Cost(each) < r.each {
			r.each.Add(each)
		}
	}
}

// split sends the events of a group one by one: not all of it was stored, or that is unknown.
func (r *Recorder) split(now time.Time) {
	g := r.group
	r.group = nil
	r.oneByOne = now.Add(streams.BatchRefusedFor)
	for _, rec := range g.records {
		r.send(rec, now)
	}
}
