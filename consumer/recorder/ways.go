package recorder

import (
	"context"
	"encoding/json"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
)

const (
	// groupMin is the least number of events that go together. A group of fewer, such as
	// the two of a row, would save nothing, and make those that come next wait for its
	// answer.
	groupMin = 5
	// inFlightMin is how many events may be in flight one by one, however slow the server
	// is.
	inFlightMin = 8
	// fastCostGuess is the time of an event in a fast group, until it has been measured.
	fastCostGuess = 20 * time.Microsecond
	// slowEvent is longer than any server takes for an event in a fast group, however
	// busy it is, unless it syncs each message to the disk.
	slowEvent = streams.Cost(500 * time.Microsecond)
	// measureMin is the least number of events of a fast group whose time is mostly spent
	// on them rather than on the way. A group that may take long has no more.
	measureMin = 64
	// forgetFraction is the fraction by which each atomic group lets the measure of fast
	// ones fade, because a disk may have been slow for a moment only.
	forgetFraction = 64
)

// way is how events go to the server.
type way uint8

const (
	// oneByOne gives each event its own answer. It is for few events, and for those that
	// were refused or got no answer in another way.
	oneByOne way = iota
	// fastGroup is a fast-ingest batch (nats-server 2.14), if the stream allows it:
	// messages as before, whose reply subjects number them, and one answer to the last
	// that says how many are stored. It costs client and server half of what the messages
	// and their answers would. It is no unit: the server stores its messages as they come
	// and ends it at the first one that is missing or refused.
	fastGroup
	// atomicGroup is an atomic batch (nats-server 2.12): it is staged and stored as one,
	// which costs a flat 20 to 30 ms and twice the CPU of its messages. It pays where the
	// server takes long for each message, since it syncs every one to the disk or asks
	// replicas, and where the stream takes no fast groups.
	atomicGroup
)

// ways chooses how events go, by what the stream takes and by what each way has cost so
// far.
//
// For example: a server that takes 20 µs for each event of a fast group stores 900 in 18
// ms, and gets fast groups. If it takes 1 ms for each, 900 would last 0.9 s, and an
// atomic group of them 25 ms; 10 events last 10 ms, and go as a fast group still.
//
// An event never goes in a group for the second time, because of this interleaving:
//
//  1. The server takes in a message of a fast group, and has not stored it yet.
//  2. A second copy arrives in another group. The server answers as it does for a
//     duplicate of a stored message.
//  3. The server loses its leadership, and with it the first copy. The event is lost.
type ways struct {
	takes groups // what the stream takes
	// noGroupsUntil is when groups are tried again after one was not stored.
	noGroupsUntil time.Time
	// single is the server's time for an event that goes by itself while others wait,
	// fast for an event of a fast group, and atomic for a whole atomic group.
	single, fast, atomic streams.Cost
	lastAck              time.Time // when the server began with the next single event
}

func newWays() ways {
	return ways{
		single: streams.Cost(streams.SingleCostGuess),
		fast:   streams.Cost(fastCostGuess),
		atomic: streams.Cost(streams.GroupCostGuess),
	}
}

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
	m, err := nc.RequestWithContext(ctx, streams.APIPrefix(nc)+"STREAM.INFO."+stream, nil)
	if err == nil {
		_ = json.Unmarshal(m.Data, &info)
	}
	return info.Config
}

// choose returns how n events go.
func (w *ways) choose(n int, now time.Time) way {
	switch {
	case n < groupMin || now.Before(w.noGroupsUntil):
		return oneByOne
	case w.takes.Fast:
		if w.takes.Atomic && w.fast > slowEvent && w.fast*streams.Cost(n) > w.atomic {
			return atomicGroup
		}
		return fastGroup
	case w.takes.Atomic && w.single*streams.Cost(n) > w.atomic:
		return atomicGroup
	default:
		return oneByOne
	}
}

// singleMax is how many events may be in flight one by one: as many as the server stores
// in the time of an atomic group, such as 25 at 1 ms each. More would only make the next
// group wait.
func (w *ways) singleMax() int { return max(inFlightMin, int(w.atomic/max(1, w.single))) }

// groupMax is how many events a group may have.
func (w *ways) groupMax(way way) int {
	if way == fastGroup && w.fast > slowEvent/2 {
		return measureMin
	}
	return streams.AppendMax
}

// begin notes that an event goes by itself to a server that is idle: its time counts from
// now.
func (w *ways) begin(now time.Time) { w.lastAck = now }

// singleStored measures an event that went by itself.
func (w *ways) singleStored(now time.Time) {
	w.single += (streams.Cost(now.Sub(w.lastAck)) - w.single) / 16
	w.lastAck = now
}

// groupStored measures a group. A fast one of fewer than measureMin events may show that
// events have become cheap, but not that they have become dear.
func (w *ways) groupStored(g *group, now time.Time) {
	took := now.Sub(g.sent)
	if g.atomic {
		w.atomic.Add(took)
		w.fast -= w.fast / forgetFraction
		return
	}
	each := took / time.Duration(len(g.records))
	if len(g.records) >= measureMin || streams.Cost(each) < w.fast {
		w.fast.Add(each)
	}
}

// groupNotStored makes events go one by one for a while.
func (w *ways) groupNotStored(now time.Time) { w.noGroupsUntil = now.Add(streams.GroupRefusedFor) }
