package fleet

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// A plan tells when so many turns have come due, and how many have by then: each is the inverse of the other.
func TestReachIsTheInverseOfAt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := plan{Turns: rapid.Float64Range(0, 1e6).Draw(t, "turns"), Then: rapid.Float64Range(0, 100).Draw(t, "then")}
		due := 0.0
		for range curveSteps {
			due += rapid.Float64Range(0, 100).Draw(t, "due")
			p.Curve = append(p.Curve, due)
		}
		turns := p.Turns + rapid.Float64Range(0, 1500).Draw(t, "ahead")
		age := p.reach(turns)
		if math.IsInf(age, 1) {
			if p.at(silentSec) >= turns+1e-6 {
				t.Fatalf("%v turns are never reached, though %v are after %v s", turns, p.at(silentSec), silentSec)
			}
			return
		}
		if got := p.at(age); math.Abs(got-turns) > 1e-6*max(1, turns) {
			t.Fatalf("after %v s %v turns, want %v", age, got, turns)
		}
	})
}

func TestAPlanEnds(t *testing.T) {
	p := plan{Turns: 5, Curve: []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, Then: 10}
	if at := p.at(1.5); at != 20 {
		t.Errorf("after 1.5 s %v turns, want 20", at)
	}
	if at := p.at(3600); at != 25 {
		t.Errorf("after an hour %v turns, want the 25 of the first two seconds", at)
	}
	if age := p.reach(26); !math.IsInf(age, 1) {
		t.Errorf("26 turns are reached after %v s, want never", age)
	}
}

func TestDecodeRefusesLies(t *testing.T) {
	curve := `"curve":[0,0,0,0,0,0,0,0,0,0]`
	for _, body := range []string{
		``, `null`, `[]`, `{}`, `{"plan":2}`, `{"plan":1}`, `{"plan":1,"leader":"a","curve":[1]}`,
		`{"plan":1,"leader":"a","curve":[1,0,0,0,0,0,0,0,0,0]}`,
		`{"plan":1,"leader":"a","curve":[1e9,1e9,1e9,1e9,1e9,1e9,1e9,1e9,1e9,1e9]}`,
		`{"plan":1,"leader":"a","rate":-1,` + curve + `}`,
		`{"plan":1,"leader":"a","rate":1e300,` + curve + `}`,
		`{"plan":1,"leader":"a","members":-1,` + curve + `}`,
		`{"plan":1,"leader":"a","members":100001,` + curve + `}`,
		`{"plan":1,"leader":"a","places":[` + strings.Repeat(`{},`, membersMax) + `{}],` + curve + `}`,
		`{"plan":1,"leader":"a","places":[{"id":"b","s":2}],` + curve + `}`,
		`{"plan":1,"leader":"a","places":[{"id":"b","s":1,"n":-1}],` + curve + `}`,
		`{"report":1}`, `{"report":1,"id":"a"}`, `{"report":1,"id":"a","weight":1e9}`, `{"report":1,"id":"a","weight":1,"want":-1}`,
		`{"report":1,"id":"a","weight":1,"in_flight":-1}`, `{"report":1,"id":"a","weight":1,"in_flight":100001}`, `{"report":1,"id":"a","weight":1,"pool":100001}`,
		`{"report":1,"id":"a","weight":1,"refusals":[{"turn":-1}]}`,
		`{"report":1,"id":"a","weight":1,"refusals":[` + strings.Repeat(`{},`, reportMost) + `{}]}`,
		`{"hello":1}`, `{"hello":2,"id":"a"}`,
	} {
		if m, err := decode([]byte(body)); err == nil {
			t.Errorf("%.60s is taken for a %T", body, m)
		}
	}
}
