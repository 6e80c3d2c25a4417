package streams

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// FastCost is a moving average of the time that the server takes for a message of a fast
// group: a fast-ingest batch of nats-server 2.14, whose messages are numbered by their
// reply subjects and share one answer. The server stores them as they come, and ends the
// group at the first one that is missing or refused, so what is stored is always the
// first part of it.
//
// It is cheaper than an atomic group, which is staged and synced before it is stored,
// unless the server takes long for each message: since it syncs every one to the disk, or
// asks replicas.
//
// For example: a server that takes 20 µs a message stores 900 in 18 ms. If it takes 1 ms,
// 900 would last 0.9 s, and an atomic group of them 25 ms.
type FastCost struct{ cost Cost }

const (
	// fastCostGuess is the time of a message of a fast group until it has been measured.
	fastCostGuess = Cost(20 * time.Microsecond)
	// fastSlow is longer than any server takes for a message of a fast group, however busy
	// it is, unless it syncs each message to the disk.
	fastSlow = Cost(500 * time.Microsecond)
	// fastMeasureMin is the least number of messages of a fast group whose time is mostly
	// spent on them rather than on the way. A group that may take long has no more.
	fastMeasureMin = 64
	// fastForget is the fraction by which each atomic group lets the measure fade, because
	// a disk may have been slow for a moment only.
	fastForget = 64
)

// NewFastCost returns the measure of a stream to which nothing was sent yet.
func NewFastCost() FastCost { return FastCost{cost: fastCostGuess} }

// Add measures a fast group of n messages. One of fewer than fastMeasureMin may show that
// messages have become cheap, but not that they have become dear.
func (c *FastCost) Add(took time.Duration, n int) {
	if each := took / time.Duration(n); n >= fastMeasureMin || Cost(each) < c.cost {
		c.cost.Add(each)
	}
}

// Fade notes that an atomic group went in the place of a fast one.
func (c *FastCost) Fade() { c.cost -= c.cost / fastForget }

// Dearer reports whether n messages cost more in a fast group than in an atomic one.
func (c *FastCost) Dearer(n int, atomic Cost) bool {
	return c.cost > fastSlow && c.cost*Cost(n) > atomic
}

// Most is how many messages a fast group may have.
func (c *FastCost) Most() int {
	if c.cost > fastSlow/2 {
		return fastMeasureMin
	}
	return AppendMax
}

// FastReply appends the reply subject of the nth of all messages of a fast group to dst,
// from 1 on. The group is known to the server by the subject that the reply subjects begin
// with. They go on with
//
//	.<flow>.<what to do if a message is missing>.<number>.<operation>.$FI
//
// The flow is how many messages may share an answer.
func FastReply(dst []byte, group string, n, all int) []byte {
	operation := ".1.$FI"
	switch n {
	case 1:
		operation = ".0.$FI"
	case all:
		operation = ".2.$FI"
	}
	dst = append(append(dst, group...), ".1000.fail."...)
	return append(strconv.AppendInt(dst, int64(n), 10), operation...)
}

// FastProgress reports whether an answer only says how far a fast group has come.
func FastProgress(answer []byte) bool { return bytes.HasPrefix(answer, []byte(`{"type":"ack"`)) }

// fastStored returns how many messages of a fast group are stored, by the last answer to
// it, and the stream sequence of the last of them.
func fastStored(answer []byte) (n int, seq uint64) {
	var ack struct {
		Seq   uint64 `json:"seq"`
		Count int    `json:"count"`
	}
	_ = json.Unmarshal(answer, &ack) // any other answer says that none are stored
	return ack.Count, ack.Seq
}

// AppendFast stores two or more messages in one stream, one after the other, as a fast
// group, which the stream must allow. It returns the stream sequence of the last. The
// condition of the first message is the caller's. Each other one is stored only directly
// behind the one before it, if the first is stored at sequence first. The headers of msgs
// are changed. After an error the first of them may be stored, up to any one, or may still
// become so.
//
// The condition on each message, and that the server ends the group at the first one that
// it refuses, rule these interleavings out:
//
//  1. The owner of a log is suspended after the first half of a group, a rival appends its
//     claim, and the owner goes on. Its next message is refused, as the claim has the
//     number before it. So are all others, since the group has ended. By the number alone
//     the one after the claim might fit.
//  2. An answer is lost, and the messages are sent again in another group. Whichever copy
//     comes first is stored. The other one is refused, and its group ends.
//  3. The server fails to store one message in the middle. The next one is refused.
//
// A message of anybody else that comes in between has the same effect, so a stream that
// others write to is better served by [Appender.Append].
func (a *Appender) AppendFast(ctx context.Context, msgs []*nats.Msg, first uint64) (seq uint64, err error) {
	a.sent++
	group := a.prefix + strconv.FormatUint(a.sent, 36)
	number(msgs, group, first)
	for _, msg := range msgs {
		if err := a.nc.PublishMsg(msg); err != nil {
			return 0, fmt.Errorf("append to %s: %w", msg.Subject, err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	for {
		answer, err := a.answer(ctx, group+".")
		if err == nil {
			err = Refusal(answer)
		}
		if err != nil {
			return 0, fmt.Errorf("append to %s: %w", msgs[0].Subject, err)
		}
		if FastProgress(answer.Data) {
			continue
		}
		n, seq := fastStored(answer.Data)
		if n != len(msgs) {
			return 0, fmt.Errorf("append to %s: %d of %d messages are stored", msgs[0].Subject, n, len(msgs))
		}
		return seq, nil
	}
}

// number gives messages the reply subjects and conditions of a fast group. All reply subjects are parts of one string,
// and all conditions of another, since one of each for every message would be four
// allocations more.
func number(msgs []*nats.Msg, group string, first uint64) {
	var replies, conditions []byte
	ends := make([][2]int, len(msgs))
	for i := range msgs {
		replies = FastReply(replies, group, i+1, len(msgs))
		conditions = strconv.AppendUint(conditions, first+uint64(i)-1, 10)
		ends[i] = [2]int{len(replies), len(conditions)}
	}
	reply, condition, values := string(replies), string(conditions), make([]string, len(msgs))
	var from [2]int
	for i, msg := range msgs {
		msg.Reply = reply[from[0]:ends[i][0]]
		if i > 0 {
			values[i] = condition[from[1]:ends[i][1]]
			msg.Header[jetstream.ExpectedLastSeqHeader] = values[i : i+1 : i+1]
		}
		from = ends[i]
	}
}
