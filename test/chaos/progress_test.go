package main

import (
	"io"
	"slices"
	"testing"
	"time"
)

func TestAStandstillIsFoundUnlessExcused(t *testing.T) {
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
	for _, c := range []struct {
		name  string
		at    map[int]func(*progress) // what happens at a second
		rows  int
		dead  func(second int) bool
		found bool
	}{
		{name: "rows wait", rows: 9, found: true},
		{name: "no rows wait", rows: 5},
		{name: "a replica was killed in between", rows: 9, at: map[int]func(*progress){4: func(w *progress) { w.excuse(at(4)) }}},
		{name: "a kill explains five seconds and no more", rows: 9, at: map[int]func(*progress){1: func(w *progress) { w.excuse(at(1)) }}, found: true},
		{name: "a server is down", rows: 9, at: map[int]func(*progress){3: (*progress).begin}},
		{name: "a server was down and is healing", rows: 9, at: map[int]func(*progress){0: (*progress).begin, 1: func(w *progress) { w.end(at(1)) }}},
		{name: "no replica lives", rows: 9, dead: func(second int) bool { return second > 3 }},
		{name: "one lives again", rows: 9, dead: func(second int) bool { return second < 1 }, found: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNotes(io.Discard, nil)
			w := newProgress(n, &plan{servers: 1, partitions: 2})
			for second := range 8 {
				if do := c.at[second]; do != nil {
					do(w)
				}
				w.sample(at(second), c.dead == nil || !c.dead(second), []int{9, c.rows}, []int{second, 5}) // only the second one stands
			}
			if found := n.violations["standstill"]; found > 1 || (found == 1) != c.found {
				t.Errorf("%d standstills found, want one: %t", found, c.found)
			}
		})
	}
}

func TestOpenTermsAreThoseWithoutAnEnd(t *testing.T) {
	log := []byte(`{"msg":"claimed the partition","owner":"R.A"}
{"msg":"claimed the partition","owner":"R.B"}
plain text
{"msg":"releasing the partition to another replica","owner":"R.A"}
{"msg":"term ended","owner":"R.A","how":"released"}
{"msg":"releasing the partition to another replica","owner":"R.B"}
`)
	for message, want := range map[string][]string{
		"claimed the partition":                      {"R.B"},
		"releasing the partition to another replica": {"R.B"},
		"no such message":                            nil,
	} {
		if got := openTerms(log, message); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", message, got, want)
		}
	}
}

func TestEqualRowsAskWhatAnEarlierOneDid(t *testing.T) {
	off, on := mustPlan(t, "-rows", "2000"), mustPlan(t, "-rows", "2000", "-dedupe", "inflight")
	shared := 0
	for n := 1; n <= 2000; n++ {
		if q := off.question(n); q != n {
			t.Fatalf("without dedupe row %d asks what row %d does", n, q)
		}
		q := on.question(n)
		if q == n {
			continue
		}
		shared++
		if q <= 0 || q > n || on.question(q) != q || kindOf(q) != ordinary || kindOf(n) != ordinary {
			t.Errorf("row %d asks what row %d does", n, q)
		}
	}
	if shared < 300 || off.asked-on.asked != shared {
		t.Errorf("%d rows share, %d and %d questions", shared, off.asked, on.asked)
	}
}

func TestMovesBelongToAMixOfSeveralPartitions(t *testing.T) {
	if n := mustPlan(t, "-duration", "10s").counts[move]; n != 0 {
		t.Errorf("%d moves of one partition", n)
	}
	if n := mustPlan(t, "-duration", "10s", "-partitions", "8").counts[move]; n < 1 {
		t.Error("no move of eight partitions within 10 s")
	}
}
