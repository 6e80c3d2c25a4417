package status

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/pool"
)

func TestTheNextProbeIsNamedInAFigureThatCanBeRead(t *testing.T) {
	for in, want := range map[time.Duration]string{-time.Second: "next probe is due", 0: "next probe is due", 250 * time.Millisecond: "next probe in 250 ms", 3600 * time.Millisecond: "next probe in 4 s", 5 * time.Minute: "next probe in 5m0s"} {
		if got := NextProbe(epoch.Add(in), epoch); got != want {
			t.Errorf("in %v: got %q, want %q", in, got, want)
		}
	}
}

func TestPauseReasonComesFromTheStatus(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want hold.Kind
	}{
		{&llm.Error{Status: 401, Err: errors.New("bad key")}, hold.Credentials},
		{fmt.Errorf("row 3: %w", &llm.Error{Status: 403, Err: errors.New("no")}), hold.Credentials},
		{&llm.Error{Status: 402, Err: errors.New("pay")}, hold.Billing},
		{&llm.Error{Status: 429, Code: "insufficient_quota", Err: errors.New("pay")}, hold.Billing},
		{&llm.Error{Status: 404, Err: errors.New("model")}, hold.Model},
		{&llm.Error{Err: errors.New("no such host")}, hold.Network},
		{&llm.Error{Err: fmt.Errorf("%w of AWS", llm.ErrNoCredential)}, hold.Credentials},
		{&llm.Error{Status: 307, Err: errors.New("redirect")}, hold.Network},
		{&llm.Error{Status: 418, Err: errors.New("teapot")}, hold.Other},
		{errors.New("?"), hold.Other},
	} {
		if got, _ := OfPause(pool.Pause{Kind: pool.FatalError, Err: tt.err}); got.Kind != tt.want {
			t.Errorf("%v: got %s, want %s", tt.err, got.Kind, tt.want)
		}
	}
}

func TestPauseReasonOfAnOutage(t *testing.T) {
	refused := &llm.Error{Err: errors.New("nothing listens"), Absent: true}
	for _, tt := range []struct {
		pause pool.Pause
		want  hold.Kind
	}{
		{pool.Pause{}, ""},
		{pool.Pause{Kind: pool.Outage, Err: refused}, hold.Outage},
		{pool.Pause{Kind: pool.Outage, Err: refused, Absent: epoch}, hold.Network},
		{pool.Pause{Kind: pool.Shortage, Err: refused}, hold.Outage},
		{pool.Pause{Kind: pool.WrongSettings, Err: refused}, hold.Settings},
	} {
		if got, _ := OfPause(tt.pause); got.Kind != tt.want {
			t.Errorf("%+v: got %s, want %s", tt.pause, got.Kind, tt.want)
		}
	}
}
