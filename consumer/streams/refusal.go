package streams

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
)

// refusedError is a server's answer to a message that it did not store.
type refusedError struct {
	code int // of JetStream; 0 if there was no stream to store it
	why  string
}

func (e *refusedError) Error() string {
	if e.code == 0 {
		return ErrRefused.Error() + ": " + e.why
	}
	return fmt.Sprintf("%s: %s (%d)", ErrRefused, e.why, e.code)
}

func (e *refusedError) Unwrap() error { return ErrRefused }

const whyNobody = "no stream captures the subject, or it has no leader at the moment"

// Codes of refusals, see the server's errors.json.
const (
	codeTooLarge      = 10054 // above the stream's max message size
	codeHeadersLarge  = 10097 // more than HeaderBytesMax
	codeStoreFailed   = 10077 // the stream is full, or its store has failed
	codeConflict      = 10071 // the condition does not hold
	codeConflictOnWay = 10164 // another append on the same condition is under way
	codeNotYetChecked = 10163 // the condition can't be checked at the moment
	codeCopyOnWay     = 10158 // a message with the same id is under way
	codeTooMany       = 10167 // too many messages wait for the stream
)

// Refusal is why the server did not store a message, by its answer; nil when it did. A
// stored message is the rule, so the answer is decoded only when it mentions an error.
func Refusal(m *nats.Msg) error {
	if len(m.Data) == 0 {
		if m.Header.Get("Status") == "503" {
			return &refusedError{why: whyNobody}
		}
		return &refusedError{why: "empty answer"}
	}
	if !bytes.Contains(m.Data, []byte(`"error"`)) {
		return nil
	}
	var ack struct {
		Error *struct {
			Code        int    `json:"err_code"`
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &ack); err != nil || ack.Error == nil {
		return nil //nolint:nilerr // the text is not the error field
	}
	return &refusedError{code: ack.Error.Code, why: ack.Error.Description}
}

// TooLarge reports whether a message was larger than the server or the stream takes.
func TooLarge(err error) bool {
	refused, ok := errors.AsType[*refusedError](err)
	return errors.Is(err, nats.ErrMaxPayload) ||
		ok && (refused.code == codeTooLarge || refused.code == codeHeadersLarge)
}

// Full reports whether the server has refused a message because the stream has reached one
// of its limits. A store that can't write has the same code, and another text.
func Full(err error) bool {
	refused, ok := errors.AsType[*refusedError](err)
	return ok && refused.code == codeStoreFailed && strings.HasPrefix(refused.why, "maximum")
}

// Conflict reports whether the server has refused a message because its condition does not
// hold. Another append on the same condition may also have been under way.
func Conflict(err error) bool {
	refused, ok := errors.AsType[*refusedError](err)
	return ok && (refused.code == codeConflict || refused.code == codeConflictOnWay)
}

// Temporary reports whether the server has refused a message for a reason that may be gone
// soon: nobody stores what is sent to its subject, the cluster has no leader, too many
// messages wait for the stream, an equal message is under way, or the message's condition
// does not hold or can't be checked.
//
// What concerns groups alone is not temporary, even if it passes. For example, a new leader
// has only the second half of a group (10176). Its messages can go one by one at once.
func Temporary(err error) bool {
	refused, ok := errors.AsType[*refusedError](err)
	if !ok {
		return false
	}
	switch refused.code {
	case 0:
		return refused.why == whyNobody // no stream gives an empty answer, so it may stay
	case codeConflict, codeConflictOnWay, codeNotYetChecked, codeCopyOnWay, codeTooMany, codeNoQuorum:
		return true
	}
	return false
}

// RefusedForGood reports whether the server has refused a message for a reason that is not
// [Temporary], so that sending the same again would not help.
func RefusedForGood(err error) bool { return errors.Is(err, ErrRefused) && !Temporary(err) }
