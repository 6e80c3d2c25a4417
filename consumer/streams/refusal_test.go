package streams

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
)

// A refusal that passes by itself is known by its code, whatever subjects and texts say.
func TestRefusalsThatPass(t *testing.T) {
	answer := func(code int, why string) *nats.Msg {
		return &nats.Msg{Data: fmt.Appendf(nil, `{"error":{"code":400,"err_code":%d,"description":%q},"seq":0}`, code, why)}
	}
	for _, tt := range []struct {
		answer              *nats.Msg
		temporary, conflict bool
	}{
		{answer: &nats.Msg{Header: nats.Header{"Status": {"503"}}}, temporary: true},
		{answer: &nats.Msg{}},
		{answer: answer(10008, "JetStream system temporarily unavailable"), temporary: true},
		{answer: answer(10071, "wrong last sequence: 7"), temporary: true, conflict: true},
		{answer: answer(10164, "wrong last sequence"), temporary: true, conflict: true},
		{answer: answer(10163, "expected last sequence per subject temporarily unavailable"), temporary: true},
		{answer: answer(10158, "duplicate message id is in process"), temporary: true},
		{answer: answer(10167, "too many requests"), temporary: true},
		{answer: answer(10176, "atomic publish batch is incomplete")},
		{answer: answer(10023, "insufficient resources")},
		{answer: answer(10077, "maximum messages exceeded")},
		{answer: answer(10054, "message size exceeds maximum allowed")},
		{answer: answer(10199, "unavailable: wrong last word")},
	} {
		err := fmt.Errorf("append to rows.unavailable: %w", Refusal(tt.answer))
		if got := Temporary(err); got != tt.temporary {
			t.Errorf("%v: temporary %v", err, got)
		}
		if got := RefusedForGood(err); got == tt.temporary {
			t.Errorf("%v: for good %v", err, got)
		}
		if got := Conflict(err); got != tt.conflict {
			t.Errorf("%v: conflict %v", err, got)
		}
	}
	if Temporary(nats.ErrConnectionClosed) || RefusedForGood(nats.ErrConnectionClosed) {
		t.Error("an error without an answer is no refusal")
	}
}
