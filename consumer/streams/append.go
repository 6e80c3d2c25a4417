package streams

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// AppendMax is the server's limit on the messages of one [Append].
	AppendMax = 1000
	// AppendBytesMax bounds the bytes of one append; the server holds a group in memory
	// until it commits.
	AppendBytesMax = 16 << 20
	// SingleCostGuess is the first guess of what an append of one message costs, until it
	// has been measured: a round trip.
	SingleCostGuess = 150 * time.Microsecond
	// GroupCostGuess is the first guess of what a group costs that is stored as a whole (the
	// server's atomic batch): its flat price on one replica.
	GroupCostGuess = 25 * time.Millisecond
	// GroupRefusedFor is how long no group is tried after one was refused.
	GroupRefusedFor = 10 * time.Second
)

// ErrRefused is returned by [Append] when the server answered and stored nothing: a
// condition does not hold, the stream is full, or it does not take groups.
var ErrRefused = errors.New("refused by the server")

// Append stores messages in one stream, all or none, one after the other, and returns the
// stream sequence of the last. More than one go as an atomic batch of the server, which the
// stream must allow. The headers of msgs are changed. After any other error than
// [ErrRefused] the messages may still be stored.
func Append(ctx context.Context, nc *nats.Conn, msgs []*nats.Msg) (seq uint64, err error) {
	return appendBy(ctx, nc, msgs, nc.RequestMsgWithContext)
}

// appendBy sends all messages but the last, and the last one by request.
func appendBy(
	ctx context.Context, nc *nats.Conn, msgs []*nats.Msg,
	request func(context.Context, *nats.Msg) (*nats.Msg, error),
) (seq uint64, err error) {
	last := msgs[len(msgs)-1]
	for _, msg := range msgs { // headers that an earlier attempt in another group has left
		delete(msg.Header, HeaderBatchID)
		delete(msg.Header, HeaderBatchSeq)
		delete(msg.Header, HeaderBatchCommit)
	}
	if len(msgs) > 1 {
		id := []string{rand.Text()}
		numbers := make([]string, len(msgs))
		for i, msg := range msgs {
			if msg.Header == nil {
				msg.Header = make(nats.Header, 3)
			}
			numbers[i] = strconv.Itoa(i + 1)
			msg.Header[HeaderBatchID] = id
			msg.Header[HeaderBatchSeq] = numbers[i : i+1 : i+1]
			if msg == last {
				msg.Header[HeaderBatchCommit] = []string{"1"}
				break
			}
			if err := nc.PublishMsg(msg); err != nil {
				return 0, fmt.Errorf("append to %s: %w", msg.Subject, err)
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	reply, err := request(ctx, last)
	if errors.Is(err, nats.ErrNoResponders) {
		err = &refusedError{why: whyNobody}
	}
	if err != nil {
		return 0, fmt.Errorf("append to %s: %w", last.Subject, err)
	}
	if seq, err = StoredAt(reply); err != nil {
		return 0, fmt.Errorf("append to %s: %w", last.Subject, err)
	}
	return seq, nil
}

// Appender is [Append] for many appends, one at a time. It listens to the answers itself,
// which saves a wake-up of each, and most allocations: a request of nats.Conn passes its
// answer through a goroutine of its own.
type Appender struct {
	nc      *nats.Conn
	prefix  string // of the reply subjects, with the dot
	sub     *nats.Subscription
	answers chan *nats.Msg
	sent    uint64 // number of the last request, with which its reply subject ends
}

// answersMax bounds the answers that wait to be read: the server refuses each message of a
// fast group that has ended by itself.
const answersMax = AppendMax + 64

// NewAppender returns an Appender. It must be closed.
func NewAppender(nc *nats.Conn) (a *Appender, err error) {
	a = &Appender{nc: nc, prefix: nc.NewInbox() + ".", answers: make(chan *nats.Msg, answersMax)}
	if a.sub, err = nc.ChanSubscribe(a.prefix+">", a.answers); err != nil {
		return nil, fmt.Errorf("subscribe to acknowledgements: %w", err)
	}
	return a, nil
}

// Close ends the listening.
func (a *Appender) Close() { _ = a.sub.Unsubscribe() }

// Append is [Append].
func (a *Appender) Append(ctx context.Context, msgs []*nats.Msg) (seq uint64, err error) {
	return appendBy(ctx, a.nc, msgs, a.request)
}

func (a *Appender) request(ctx context.Context, msg *nats.Msg) (*nats.Msg, error) {
	a.sent++
	msg.Reply = a.prefix + strconv.FormatUint(a.sent, 36)
	if err := a.nc.PublishMsg(msg); err != nil {
		return nil, err
	}
	return a.answer(ctx, msg.Reply)
}

// answer returns the next answer on a subject that begins with prefix. Any other answers a
// request that was given up.
func (a *Appender) answer(ctx context.Context, prefix string) (*nats.Msg, error) {
	for {
		select {
		case answer := <-a.answers:
			if strings.HasPrefix(answer.Subject, prefix) {
				return answer, nil
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// StoredAt returns the stream sequence of a stored message by the server's answer to it,
// which may be a [Refusal].
func StoredAt(m *nats.Msg) (seq uint64, err error) {
	if err := Refusal(m); err != nil {
		return 0, err
	}
	var ack struct {
		Seq uint64 `json:"seq"`
	}
	if err := json.Unmarshal(m.Data, &ack); err != nil || ack.Seq == 0 {
		return 0, fmt.Errorf("unexpected answer %q", Preview(m.Data))
	}
	return ack.Seq, nil
}
