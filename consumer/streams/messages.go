package streams

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// RequestTimeout bounds one request to the server. A leader election takes about four
// seconds.
const RequestTimeout = 5 * time.Second

// Denied puts the likely reason in the place of the error of a request without an answer,
// which it wraps: the server reports a missing permission only in a separate message.
// Other errors are returned unchanged, and so are its own. It does not block. Subjects
// are all that the request may have gone to, see [Violation]. Without any they are the
// subjects of the JetStream API.
func Denied(nc *nats.Conn, err error, subjects ...string) error {
	if _, has := errors.AsType[*deniedError](err); has || !Unanswered(err) {
		return err
	}
	if len(subjects) == 0 {
		subjects = []string{APISubjects}
	}
	if denied := Violation(nc, subjects...); denied != nil {
		return &deniedError{why: denied, err: err}
	}
	return &deniedError{why: errors.New(whyUnanswered), err: err}
}

const whyUnanswered = "no answer: does the stream or consumer have a leader at the moment " +
	"and do its nodes run (nats server report jetstream), " +
	"does the NATS user have the permission, is JetStream enabled for its account"

// deniedError is why a request had no answer, as far as [Denied] knows.
type deniedError struct{ why, err error }

// Error has the reason where the text of the error says no more than that time is up.
func (e *deniedError) Error() string {
	why, text := e.why.Error(), e.err.Error()
	for _, late := range []error{context.DeadlineExceeded, nats.ErrTimeout} {
		if before, after, found := strings.Cut(text, late.Error()); found {
			return before + why + after
		}
	}
	return text + ": " + why
}

func (e *deniedError) Unwrap() []error { return []error{e.why, e.err} }

// Unanswered reports whether the server gave no answer in time.
func Unanswered(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout)
}

// NextMessage returns the first message of a stream at or after seq that matches filter,
// or nil if there is none.
func NextMessage(
	ctx context.Context, nc *nats.Conn, stream, filter string, seq uint64,
) (*jetstream.RawStreamMsg, error) {
	return getMessage(ctx, nc, stream, messageQuery{Seq: seq, NextFor: filter})
}

// NextSequence returns the sequence of the first message at or after seq that matches
// filter, or 0 if there is none.
func NextSequence(
	ctx context.Context, nc *nats.Conn, stream, filter string, seq uint64,
) (uint64, error) {
	m, err := NextMessage(ctx, nc, stream, filter, seq)
	if err != nil || m == nil {
		return 0, err
	}
	return m.Sequence, nil
}

// LastMessage returns the last message of a stream that matches filter, or nil if there
// is none.
func LastMessage(
	ctx context.Context, nc *nats.Conn, stream, filter string,
) (*jetstream.RawStreamMsg, error) {
	return getMessage(ctx, nc, stream, messageQuery{LastFor: filter})
}

// MessageAt returns the message of a stream at seq, or nil if there is none.
func MessageAt(
	ctx context.Context, nc *nats.Conn, stream string, seq uint64,
) (*jetstream.RawStreamMsg, error) {
	return getMessage(ctx, nc, stream, messageQuery{Seq: seq})
}

// messageQuery names one message of a stream: the one at Seq, the first at or after it on
// NextFor, or the last on LastFor.
type messageQuery struct {
	Seq     uint64 `json:"seq,omitempty"`
	LastFor string `json:"last_by_subj,omitempty"`
	NextFor string `json:"next_by_subj,omitempty"`
}

// getMessage asks the stream's leader for one message, and returns nil if it does not
// exist. It never uses a direct get, which the library prefers where the stream allows
// it: any replica answers that, and it may lag behind a rival's append.
func getMessage(
	ctx context.Context, nc *nats.Conn, stream string, query messageQuery,
) (*jetstream.RawStreamMsg, error) {
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	body, err := json.Marshal(query)
	if err != nil {
		return nil, err
	}
	reply, err := nc.RequestWithContext(ctx, APIPrefix(nc)+messageGet+stream, body)
	if err != nil {
		return nil, fmt.Errorf("get a message of stream %s: %w", stream, Denied(nc, err))
	}
	m, err := ReadMessage(reply)
	if err != nil {
		return nil, fmt.Errorf("get a message of stream %s: %w", stream, err)
	}
	return m, nil
}

const messageGet = "STREAM.MSG.GET." // below the prefix of the API

// StoredHeader returns the headers of a message as it is stored. They are nil if it has
// none, or was removed. It is for messages that arrive without a header that the server
// adds. Their own can't be read then, or may have become one with the server's: a block
// "NATS/1.0\r\nA: b" without its end arrives with a header A of the value "Nats-Msg-Size:
// 5".
func StoredHeader(
	ctx context.Context, nc *nats.Conn, stream string, seq uint64,
) (nats.Header, error) {
	m, err := MessageAt(ctx, nc, stream, seq)
	if err != nil || m == nil {
		return nil, err
	}
	return m.Header, nil
}

// AskForMessage asks for the message of a stream at seq without waiting: [ReadMessage]
// reads the answer, which goes to the reply subject.
func AskForMessage(nc *nats.Conn, stream string, seq uint64, reply string) error {
	body, err := json.Marshal(messageQuery{Seq: seq})
	if err == nil {
		err = nc.PublishRequest(APIPrefix(nc)+messageGet+stream, reply, body)
	}
	if err != nil {
		return fmt.Errorf("get message %d of stream %s: %w", seq, stream, err)
	}
	return nil
}

// DirectLast returns the last message of a stream on a subject, from whichever replica
// answers. It is nil if there is none, or if its headers can't be read. The stream must
// allow direct gets. [jetstream.Stream] takes a message without a body and with a header
// "Status" for the answer that there is none.
func DirectLast(
	ctx context.Context, nc *nats.Conn, stream, subject string,
) (*jetstream.RawStreamMsg, error) {
	m, err := nc.RequestWithContext(ctx, APIPrefix(nc)+"DIRECT.GET."+stream+"."+subject, nil)
	if err != nil {
		return nil, err
	}
	if Added(m.Header, jetstream.StreamHeader) == stream {
		seq, numberErr := strconv.ParseUint(Added(m.Header, jetstream.SequenceHeader), 10, 64)
		at, timeErr := time.Parse(time.RFC3339Nano, Added(m.Header, jetstream.TimeStampHeaer))
		return &jetstream.RawStreamMsg{
			Subject: subject, Sequence: seq, Header: m.Header, Data: m.Data, Time: at,
		}, errors.Join(numberErr, timeErr)
	}
	code, why := StatusOf(m)
	if code == "404" || code == "" {
		return nil, nil //nolint:nilnil // no message is an answer
	}
	return nil, fmt.Errorf("get the last message on %s: unexpected answer: %s", subject,
		strings.TrimSpace(code+" "+why))
}

// ReadMessage reads the answer to a request for a message. It returns nil if the message
// does not exist.
func ReadMessage(reply *nats.Msg) (*jetstream.RawStreamMsg, error) {
	if reply.Header.Get("Status") == "503" {
		return nil, nats.ErrNoResponders
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
		return nil, err
	}
	if resp.Error != nil {
		if resp.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound {
			return nil, nil //nolint:nilnil // no message is an answer
		}
		return nil, resp.Error
	}
	if resp.Message == nil {
		return nil, fmt.Errorf("unexpected answer %q", Preview(reply.Data))
	}
	m := &jetstream.RawStreamMsg{
		Subject: resp.Message.Subject, Sequence: resp.Message.Seq,
		Data: resp.Message.Data, Time: resp.Message.Time,
	}
	if len(resp.Message.Header) > 0 {
		// A server stores any bytes as headers. A message whose bytes are no headers is
		// read as one without headers, so it can't stop a reader. The client library does
		// the same with what a consumer delivers.
		m.Header, _ = nats.DecodeHeadersMsg(resp.Message.Header)
	}
	return m, nil
}

// Preview cuts foreign bytes for an error text.
func Preview(b []byte) string {
	const most = 200
	if len(b) > most {
		return string(b[:most]) + "…"
	}
	return string(b)
}

// Purge removes all messages of a stream that match filter, and waits for that.
func Purge(ctx context.Context, nc *nats.Conn, stream, filter string) error {
	return PurgeBelow(ctx, nc, stream, filter, 0)
}

// PurgeBelow is [Purge] of the messages below a sequence; 0 means all.
func PurgeBelow(
	ctx context.Context, nc *nats.Conn, stream, filter string, below uint64,
) error {
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	request, err := PurgeRequest(nc, stream, filter, below)
	if err != nil {
		return err
	}
	answer, err := nc.RequestMsgWithContext(ctx, request)
	if err == nil {
		err = Refusal(answer)
	}
	if err != nil {
		return fmt.Errorf("purge stream %s: %w", stream, Denied(nc, err))
	}
	return nil
}

// AskForPurge is [Purge] without waiting: nobody learns whether it was done.
func AskForPurge(nc *nats.Conn, stream, filter string) error {
	request, err := PurgeRequest(nc, stream, filter, 0)
	if err != nil {
		return err
	}
	return nc.PublishMsg(request)
}

// PurgeRequest returns the request to remove the messages of a stream that match filter and
// are below a sequence; 0 means all. [Refusal] reads the answer.
func PurgeRequest(nc *nats.Conn, stream, filter string, below uint64) (*nats.Msg, error) {
	body, err := json.Marshal(struct {
		Filter string `json:"filter"`
		Below  uint64 `json:"seq,omitempty"`
	}{filter, below})
	return &nats.Msg{Subject: APIPrefix(nc) + "STREAM.PURGE." + stream, Data: body}, err
}

// MayErase returns why the user may not erase messages of a stream, or nil.
func MayErase(ctx context.Context, nc *nats.Conn, stream string) error {
	asking, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	const none = `{"seq":9223372036854775807}` // the server refuses it, and so has answered
	if _, err := nc.RequestWithContext(asking, APIPrefix(nc)+messageDelete+stream, []byte(none)); err != nil {
		return fmt.Errorf("erase messages of stream %s: %w", stream, Denied(nc, err))
	}
	return nil
}

const messageDelete = "STREAM.MSG.DELETE." // below the prefix of the API

// Erase removes a message of a stream for good, and has the server overwrite its bytes on
// disk as far as it can. removed is false where the message was gone already.
func Erase(ctx context.Context, nc *nats.Conn, stream string, seq uint64) (removed bool, err error) {
	asking, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	body, err := json.Marshal(struct {
		Seq uint64 `json:"seq"`
	}{seq})
	if err != nil {
		return false, err
	}
	answer, err := nc.RequestWithContext(asking, APIPrefix(nc)+messageDelete+stream, body)
	if err == nil {
		if err = Refusal(answer); err == nil {
			return true, nil
		}
	}
	// The answers to a message that is gone differ between servers, and an answer may get
	// lost: what the stream holds decides.
	left, getErr := MessageAt(ctx, nc, stream, seq)
	if getErr == nil && left == nil {
		return false, nil
	}
	return false, fmt.Errorf("erase message %d of stream %s: %w", seq, stream, Denied(nc, err))
}
