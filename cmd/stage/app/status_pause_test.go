package app

import (
	"testing"
	"time"
)

func TestTheNextProbeIsNamedInAFigureThatCanBeRead(t *testing.T) {
	for in, want := range map[time.Duration]string{
		-time.Second: "next probe is due", 0: "next probe is due", 250 * time.Millisecond: "next probe in 250 ms",
		3600 * time.Millisecond: "next probe in 4 s", 5 * time.Minute: "next probe in 5m0s",
	} {
		if got := nextProbe(epoch.Add(in), epoch); got != want {
			t.Errorf("in %v: got %q, want %q", in, got, want)
		}
	}
}
