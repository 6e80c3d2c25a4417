package consumer

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
)

// AppendMax is the server's limit on the messages of one [Append].
const AppendMax = groupRowsMax

// ErrRefused is returned by [Append] when the server answered and stored nothing: a condition does not hold, the stream
// is full, or it does not take atomic batches.
var ErrRefused = errors.New("refused by the server")

// Append stores messages in one stream, all or none, one after the other, and returns the stream sequence of the last.
// More than one go as an atomic batch, which the stream must allow. The headers of msgs are changed. After any other error
// than [ErrRefused] the messages may be stored all the same.
func Append(ctx context.Context, nc *nats.Conn, msgs []*nats.Msg) (seq uint64, err error) {
	last := msgs[len(msgs)-1]
	if len(msgs) > 1 {
		id := rand.Text()
		for i, msg := range msgs {
			if msg.Header == nil {
				msg.Header = make(nats.Header, 3)
			}
			msg.Header[headerBatchID] = []string{id}
			msg.Header[headerBatchSeq] = []string{strconv.Itoa(i + 1)}
			if msg == last {
				msg.Header[headerBatchCommit] = []string{"1"}
				break
			}
			if err := nc.PublishMsg(msg); err != nil {
				return 0, fmt.Errorf("append to %s: %w", msg.Subject, err)
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	reply, err := nc.RequestMsgWithContext(ctx, last)
	if err != nil {
		return 0, fmt.Errorf("append to %s: %w", last.Subject, err)
	}
	if why := refusal(reply); why != "" {
		return 0, fmt.Errorf("append to %s: %w: %s", last.Subject, ErrRefused, why)
	}
	var ack struct {
		Seq uint64 `json:"seq"`
	}
	if err := json.Unmarshal(reply.Data, &ack); err != nil || ack.Seq == 0 {
		return 0, fmt.Errorf("append to %s: unexpected answer %q", last.Subject, preview(reply.Data))
	}
	return ack.Seq, nil
}
