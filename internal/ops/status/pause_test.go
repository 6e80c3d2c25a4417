package status

import (
	"errors"
	"fmt"
	"testing"
	"time"

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
		want PauseReason
	}{
		{&llm.Error{Status: 401, Err: errors.New("bad key")}, PauseCredentials},
		{fmt.Errorf("row 3: %w", &llm.Error{Status: 403, Err: errors.New("no")}), PauseCredentials},
		{&llm.Error{Status: 402, Err: errors.New("pay")}, PauseBilling},
		{&llm.Error{Status: 429, Code: "insufficient_quota", Err: errors.New("pay")}, PauseBilling},
		{&llm.Error{Status: 404, Err: errors.New("model")}, PauseModel},
		{&llm.Error{Err: errors.New("no such host")}, PauseNetwork},
		{&llm.Error{Status: 307, Err: errors.New("redirect")}, PauseNetwork},
		{&llm.Error{Status: 418, Err: errors.New("teapot")}, PauseOther},
		{errors.New("?"), PauseOther},
	} {
		if got := ReasonOf(pool.Pause{Kind: pool.FatalError, Err: tt.err}); got != tt.want {
			t.Errorf("%v: got %s, want %s", tt.err, got, tt.want)
		}
	}
}

func TestPauseReasonOfAnOutage(t *testing.T) {
	refused := &llm.Error{Err: errors.New("nothing listens"), Absent: true}
	for _, tt := range []struct {
		pause pool.Pause
		want  PauseReason
	}{
		{pool.Pause{}, ""},
		{pool.Pause{Kind: pool.Outage, Err: refused}, PauseOutage},
		{pool.Pause{Kind: pool.Outage, Err: refused, Absent: epoch}, PauseNetwork},
		{pool.Pause{Kind: pool.Shortage, Err: refused}, PauseOutage},
		{pool.Pause{Kind: pool.WrongSettings, Err: refused}, PauseSettings},
	} {
		if got := ReasonOf(tt.pause); got != tt.want {
			t.Errorf("%+v: got %s, want %s", tt.pause, got, tt.want)
		}
	}
}
