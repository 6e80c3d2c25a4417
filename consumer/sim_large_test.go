package consumer_test

import (
	"errors"
	"slices"
	"strings"

	"github.com/llm-stage/stage/consumer/objects"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// simPayload is the largest message of the simulated server, and simLarge the size of a reply that is larger.
	simPayload = 32 << 10
	simLarge   = 40 << 10
	simBucket  = "LARGE"
	simPadding = "~"
)

// enlarge makes the reply to one row in six, or to one element in twelve, larger than a message.
func enlarge(of simElement, reply []byte) []byte {
	if of.item == wholeRow && of.row%6 != 4 || of.item != wholeRow && (of.row+7*uint64(of.item))%12 != 4 {
		return reply
	}
	return append(reply, strings.Repeat(simPadding, simLarge-len(reply))...)
}

// bodyOf returns the reply that an object which an entry of the journal names holds, by its digest. sim.mu is held.
func (s *sim) bodyOf(of simElement, ref objects.Ref) []byte {
	for _, c := range s.callsFor[of] {
		if body := enlarge(of, []byte(c.id())); objects.NewRef("", "", body).Digest == ref.Digest {
			return body
		}
	}
	if !s.fansOut {
		return []byte("of a whole row, and not looked at")
	}
	return []byte("the reply to no call")
}

// bodyOfResult returns the body of a result, which may be an object.
func (s *sim) bodyOfResult(seq uint64, m jetstream.Msg) []byte {
	s.t.Helper()
	ref, is := objects.RefOf(m.Headers())
	if !is {
		return m.Data()
	}
	s.note("large result")
	body, err := ref.Get(s.t.Context(), s.nc, simPayload*simElementsMost*2)
	if err != nil || len(m.Data()) > 0 {
		s.t.Errorf("row %d: its result has %d bytes and names an object: %v", seq, len(m.Data()), err)
	}
	if name := objects.Name("stage", s.partitionOf(seq), seq, body); ref.Name != name {
		s.t.Errorf("row %d: its result names %s, want %s", seq, ref.Name, name)
	}
	return body
}

func (s *sim) partitionOf(seq uint64) int {
	for p, rows := range s.rows {
		if slices.Contains(rows, seq) {
			return p
		}
	}
	return -1
}

// checkObjects checks that few objects are left that no result names: at most as many as a process had in hand each time
// that it was killed, cut off or suspended.
func (s *sim) checkObjects(results []jetstream.Msg) {
	s.t.Helper()
	named := make(map[string]bool)
	for _, m := range results {
		if ref, is := objects.RefOf(m.Headers()); is {
			named[ref.Name] = true
		}
	}
	store := stagetest.Value(s.js.ObjectStore(s.t.Context(), simBucket))(s.t)
	all, err := store.List(s.t.Context())
	if err != nil && !errors.Is(err, jetstream.ErrNoObjectsFound) {
		s.t.Fatal(err)
	}
	left := 0
	for _, o := range all {
		if !named[o.Name] {
			left++
		}
	}
	claims := 0
	for _, c := range s.claims {
		claims += len(c)
	}
	for range left {
		s.note("object left")
	}
	if most := claims * simPool; left > most {
		s.t.Errorf("%d objects are left that no result names, want at most %d after %d claims", left, most, claims)
	}
}
