package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// requestTimeout bounds one request to the server. A leader election takes about four seconds.
const requestTimeout = 5 * time.Second

// fatalError ends [Consumer.Run]: trying again would not help, a person must decide.
type fatalError struct {
	error
	// mendable says that the fault can be mended from outside, so it is fatal only before the first term.
	mendable bool
}

func (e fatalError) Unwrap() error { return e.error }

func fatal(err error) error { return fatalError{error: err} }

// fatalAtStart is for faults in what a person has set up. They end a start at once, so that they are seen; a stage that
// has served waits until they are mended.
func fatalAtStart(err error) error { return fatalError{error: err, mendable: true} }

func isFatal(err error, hasServed bool) bool {
	f, ok := errors.AsType[fatalError](err)
	return ok && (!f.mendable || !hasServed)
}

// Denied adds to the error of a request that nobody answered the likely reason: the server tells a client that it may not
// ask only by a message on the side. Other errors are returned as they are. It does not block.
func Denied(nc *nats.Conn, err error) error {
	if !unanswered(err) {
		return err
	}
	if last := nc.LastError(); errors.Is(last, nats.ErrPermissionViolation) {
		if strings.Contains(last.Error(), "for Subscription to") {
			// Answers come on subjects of the client's own choice.
			return fmt.Errorf("%w (the server said: %w: set STAGE_NATS_INBOX_PREFIX to a prefix that the user may subscribe to)", err, last)
		}
		return fmt.Errorf("%w (the server said: %w)", err, last)
	}
	return fmt.Errorf("%w (no answer: has what was asked a leader at the moment, does the NATS user have the permission, is JetStream enabled for its account)", err)
}

// unanswered tells whether the server gave no answer in time.
func unanswered(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout)
}

func (c *Consumer) denied(err error) error { return Denied(c.nc, err) }

// msgGetRequest asks a stream's leader for one message.
type msgGetRequest struct {
	Seq     uint64 `json:"seq,omitempty"`
	LastFor string `json:"last_by_subj,omitempty"`
	NextFor string `json:"next_by_subj,omitempty"`
}

// messageGet returns jetstream.ErrMsgNotFound when no message matches. It always asks the leader: a direct get, which
// the library prefers where the stream allows it, is answered by any replica, and that may lag behind a rival's append.
func (c *Consumer) messageGet(ctx context.Context, stream string, req msgGetRequest) (*jetstream.RawStreamMsg, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	body, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	reply, err := c.nc.RequestWithContext(ctx, c.apiPrefix+"STREAM.MSG.GET."+stream, body)
	if err != nil {
		return nil, fmt.Errorf("get a message of stream %s: %w", stream, c.denied(err))
	}
	var resp struct {
		Error   *jetstream.APIError `json:"error"`
		Message *struct {
			Subject string    `json:"subject"`
			Seq     uint64    `json:"seq"`
			Header  []byte    `json:"hdrs"`
			Data    []byte    `json:"data"`
			Time    time.Time `json:"time"`
		} `json:"message"`
	}
	if err := json.Unmarshal(reply.Data, &resp); err != nil {
		return nil, fmt.Errorf("get a message of stream %s: %w", stream, err)
	}
	if resp.Error != nil {
		if resp.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound {
			return nil, jetstream.ErrMsgNotFound
		}
		return nil, fmt.Errorf("get a message of stream %s: %w", stream, resp.Error)
	}
	if resp.Message == nil {
		return nil, fmt.Errorf("get a message of stream %s: unexpected answer %q", stream, preview(reply.Data))
	}
	m := &jetstream.RawStreamMsg{Subject: resp.Message.Subject, Sequence: resp.Message.Seq, Data: resp.Message.Data, Time: resp.Message.Time}
	if len(resp.Message.Header) > 0 {
		if m.Header, err = nats.DecodeHeadersMsg(resp.Message.Header); err != nil {
			return nil, fmt.Errorf("message %d of stream %s: %w", m.Sequence, stream, err)
		}
	}
	return m, nil
}

// nextInput returns the sequence of the first row at or after seq; 0 when there is none.
func (c *Consumer) nextInput(ctx context.Context, seq uint64) (uint64, error) {
	m, err := c.messageGet(ctx, c.cfg.InputStream, msgGetRequest{Seq: seq, NextFor: c.cfg.InputSubject})
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return m.Sequence, nil
}

// preview cuts foreign bytes for an error text.
func preview(b []byte) string {
	const most = 200
	if len(b) > most {
		return string(b[:most]) + "…"
	}
	return string(b)
}
