//go:build long

package throttle

import (
	"fmt"
	"testing"
)

// The models of servers are right if one who knows them loses nothing but the calls in flight.
func TestOracleKnowsOfOutages(t *testing.T) {
	for _, limited := range []bool{false, true} {
		for _, sc := range Outages(32, limited) {
			if sc.partly() {
				continue // which calls is unknown
			}
			t.Run(fmt.Sprintf("%s, limited %t", sc.Name, limited), func(t *testing.T) {
				f := measureOutage(t, sc, Oracle, 1)
				if f.Failed > 0 || f.Refused > 0 || f.Wasted > float64(sc.Pool) || f.Back > 1.2 || f.Utilisation < 0.75 {
					t.Errorf("the oracle's figures are %+v", f)
				}
			})
		}
	}
}

// Replicas that know each other take no refusals for random ones without several probes that agree: then none takes the
// others' share.
func TestReplicasThatKnowEachOtherAreFair(t *testing.T) {
	sc := scenario("", "", constant(200, 10), clients(64), rows(1900))
	sc.Known = true
	f := measure(t, sc, Adaptive, *seedsFrom)
	if f.Utilisation < 0.97 || f.Waste > 0.17 || f.Jain < 0.95 {
		t.Errorf("64 replicas at 200/s: utilisation %.3f, waste %.1f%%, Jain %.3f; want at least 0.97, at most 17%%, at least 0.95", f.Utilisation, 100*f.Waste, f.Jain)
	}
}

// Equal seeds give equal figures, whatever the scheduler does.
func TestOutagesRepeat(t *testing.T) {
	for _, sc := range Outages(32, false) {
		sc.Rows = min(sc.Rows, 2000)
		for _, m := range []Method{Adaptive, Blind, Backoff} {
			a, b := fmt.Sprintf("%#v", measureOutage(t, sc, m, 7)), fmt.Sprintf("%#v", measureOutage(t, sc, m, 7))
			if a != b {
				t.Errorf("%s, %v: %s, then %s", sc.Name, m, a, b)
			}
		}
	}
}
