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
)

// way is how events go to the server.
type way uint8

const (
	// oneByOne gives each event its own answer. It is for few events, and for those that
	// were refused or got no answer in another way.
	oneByOne way = iota
	// fastGroup is a fast-ingest batch, if the stream allows it, see [streams.FastCost]. It
	// costs client and server half of what the messages and their answers would.
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
	single, atomic streams.Cost
	fast           streams.FastCost
	lastAck        time.Time // when the server began with the next single event
}

func newWays() ways {
	return ways{
		single: streams.Cost(streams.SingleCostGuess),
		fast:   streams.NewFastCost(),
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
		if w.takes.Atomic && w.fast.Dearer(n, w.atomic) {
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
	if way == fastGroup {
		return w.fast.Most()
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

// groupStored measures a group.
func (w *ways) groupStored(g *group, now time.Time) {
	took := now.Sub(g.sent)
	if g.atomic {
		w.atomic.Add(took)
		w.fast.Fade()
		return
	}
	w.fast.Add(took, len(g.records))
}

// groupNotStored makes events go one by one for a while.
func (w *ways) groupNotStored(now time.Time) { w.noGroupsUntil = now.Add(streams.GroupRefusedFor) }
