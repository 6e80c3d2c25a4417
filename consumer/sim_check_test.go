package consumer_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// simClaim is a claim as it lies in the log.
type simClaim struct {
	owner string
	by    *life
	at    time.Time
}

// simAck is an ack that reached the server.
type simAck struct {
	row uint64
	at  time.Time
}

// acked notes an ack: $JS.ACK.<stream>.<consumer>.<deliveries>.<stream sequence>.<consumer sequence>.<time>.<pending>.
func (s *sim) acked(m *nats.Msg) {
	tokens := strings.Split(m.Subject, ".")
	row, err := strconv.ParseUint(tokens[len(tokens)-4], 10, 64)
	if err != nil {
		s.t.Errorf("ack on %s: %v", m.Subject, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acks = append(s.acks, simAck{row, time.Now()})
}

// simJournalMost bounds the entries of the journal. The oldest that is needed is of a row of the window; after it
// come, for each owner since, at most the rest of its window, what was emitted meanwhile, and what a second brings
// between two purges.
const simJournalMost = 4 * simWindow

// checkBounds looks at what must not grow.
func (s *sim) checkBounds() {
	s.t.Helper()
	for _, r := range s.replicas {
		if st := r.Status(); st.Window > simWindow || st.Buffered > st.Window {
			s.t.Errorf("%s holds %d rows, %d of them answered, in a window of %d", r.name, st.Window, st.Buffered, simWindow)
		}
	}
	if n := s.stream("JOURNAL").CachedInfo().State.Msgs; n > simJournalMost {
		s.t.Errorf("%d entries in the journal, want at most %d", n, simJournalMost)
	}
}

// check reads the streams.
func (s *sim) check() {
	s.t.Helper()
	results := s.checkLog()
	s.checkAudit(results)
	s.checkOrderOfEvents(results)
	s.checkMoney()
	if got := s.durable(); got.NumAckPending != 0 || got.NumPending != 0 {
		s.t.Errorf("at the end: ack pending %d, pending %d, want 0 and 0", got.NumAckPending, got.NumPending)
	}
}

// checkLog holds that each row has one result, in order, stored by the owner of its term, and each claim names the row
// before it. It returns the results.
func (s *sim) checkLog() []jetstream.Msg {
	s.t.Helper()
	log := s.read("RESULTS", "results.stage.0.>")
	var last uint64
	owner := ""
	owners := make(map[string]bool)
	var results []jetstream.Msg
	for _, m := range log {
		seq, by := sourceSeq(s.bench, m), m.Headers().Get(consumer.HeaderOwner)
		if strings.HasSuffix(m.Subject(), ".claim") {
			if owners[by] || seq != last {
				s.t.Errorf("claim of %s after row %d says %d", by, last, seq)
			}
			owner, owners[by] = by, true
			name, _, _ := strings.Cut(by, ".")
			s.claims = append(s.claims, simClaim{by, s.lives[name], storedTime(s.bench, m)})
			continue
		}
		if seq != last+1 {
			s.t.Errorf("row %d follows row %d", seq, last)
		}
		if by != owner {
			s.t.Errorf("row %d was appended by %s in the term of %s", seq, by, owner)
		}
		failed := s.outcome(seq).failed
		want := fmt.Sprintf(`done {"n":%d}`, seq-1)
		if string(m.Data()) != want || (m.Headers().Get(consumer.HeaderStatus) == "error") != failed {
			s.t.Errorf("row %d: %s %s, want %s, failed %v", seq, m.Headers().Get(consumer.HeaderStatus), m.Data(), want, failed)
		}
		last = seq
		results = append(results, m)
	}
	if int(last) != s.loaded {
		s.t.Errorf("%d rows have a result, want %d", last, s.loaded)
	}
	return results
}

func sourceSeq(b *bench, m jetstream.Msg) uint64 {
	b.t.Helper()
	seq, err := strconv.ParseUint(m.Headers().Get(consumer.HeaderSourceSeq), 10, 64)
	if err != nil {
		b.t.Fatal(err)
	}
	return seq
}

func storedTime(b *bench, m jetstream.Msg) time.Time {
	b.t.Helper()
	md, err := m.Metadata()
	if err != nil {
		b.t.Fatal(err)
	}
	return md.Timestamp
}

// checkOrderOfEvents holds that a row's call and row event were stored before its result, and it was acked after. What
// is done because the server has answered reaches it at least two ways of the link after what it answered.
func (s *sim) checkOrderOfEvents(results []jetstream.Msg) {
	s.t.Helper()
	const cause = 2 * leastLatency
	called, rows := make(map[uint64]time.Time), make(map[string]time.Time)
	for _, m := range s.read("AUDIT", "audit.stage.0.*") {
		at := storedTime(s.bench, m)
		switch e, err := auditlog.Decode(m.Data()); {
		case err != nil:
			s.t.Fatal(err)
		case e.Row != nil:
			rows[e.Row.StateID+"|"+e.Row.Owner] = at
		case e.Call != nil:
			if _, known := called[e.Call.Sequence]; !known {
				called[e.Call.Sequence] = at
			}
		}
	}
	stored := make(map[uint64]time.Time)
	for _, m := range results {
		seq, at := sourceSeq(s.bench, m), storedTime(s.bench, m)
		stored[seq] = at
		row := rows[m.Headers().Get(consumer.HeaderStateID)+"|"+m.Headers().Get(consumer.HeaderOwner)]
		if at.Sub(row) < cause || at.Sub(called[seq]) < cause {
			s.t.Errorf("row %d: call event at %v, row event at %v, result at %v; want the events before it", seq, called[seq], row, at)
		}
	}
	for _, a := range s.acks {
		if at, ok := stored[a.row]; !ok || a.at.Sub(at) < cause {
			s.t.Errorf("row %d: acked at %v, its result was stored at %v; want the ack after it", a.row, a.at, at)
		}
	}
}

// repaid is the number of calls that were made again.
func (s *sim) repaid() int {
	rows := make(map[uint64]bool)
	for _, c := range s.calls {
		rows[c.row] = true
	}
	return len(s.calls) - len(rows)
}

// journalSlack is how long a reply takes into the journal at most once it has waited long enough, while all is well.
const journalSlack = 250 * time.Millisecond

// unsafe counts the calls of a process that are lost if it dies now: those in the air, and those whose reply came just
// now.
func (s *sim) unsafe(l *life, now time.Time) (inAir, recent int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		switch {
		case c.by != l:
		case c.answered.IsZero():
			inAir++
		case !now.After(s.safeAt(c)):
			recent++
		}
	}
	return inAir, recent
}

// safeAt is when the reply to a call is in the journal, or emitted, while all is well.
func (s *sim) safeAt(c *simCall) time.Time {
	safe := c.answered.Add(c.by.journalAfter + journalSlack)
	blocked := slices.ContainsFunc(s.calls, func(earlier *simCall) bool {
		return earlier.by == c.by && earlier.row < c.row && (earlier.answered.IsZero() || earlier.answered.After(safe))
	})
	if stuck := c.answered.Add(consumer.JournalStuck + journalSlack); !blocked && c.by.journalAfter > 0 && stuck.After(safe) {
		return stuck // its turn has come
	}
	return safe
}

// checkMoney holds that a call is made again only where its reply was in the air, or had just come, when the process
// died, fell asleep, lost the server or lost the partition. So a crash costs as many calls as the pool is large, and
// what came in the last moment.
func (s *sim) checkMoney() {
	s.t.Helper()
	if !s.thrifty() {
		return
	}
	calls := make(map[uint64][]*simCall)
	for _, c := range s.calls {
		if earlier := calls[c.row]; len(earlier) > 0 {
			if why := s.needless(earlier[len(earlier)-1], c); why != "" {
				first := earlier[len(earlier)-1]
				s.t.Errorf("row %d was called by %s (answered at %v) and again by %s at %v: %s", c.row, first.owner, first.answered, c.owner, c.begun, why)
			}
		}
		calls[c.row] = append(calls[c.row], c)
	}
}

// needless says why there was no need for the second call; empty: there was.
func (s *sim) needless(first, again *simCall) string {
	if first.by == again.by {
		return "the reply was in its memory"
	}
	if first.answered.IsZero() {
		return ""
	}
	// Between the term of the first call and that of the second there may be others, by owners that died young.
	from := slices.IndexFunc(s.claims, func(c simClaim) bool { return c.owner == first.owner })
	to := slices.IndexFunc(s.claims, func(c simClaim) bool { return c.owner == again.owner })
	if from < 0 || to < from {
		return "" // called in a term that was over
	}
	lost := to
	for i := to; i > from; i-- {
		if s.claims[i].by == first.by {
			continue
		}
		lost = i
		// An owner that could not read the journal goes on without, and purges what it does not know.
		if c := s.claims[i]; s.unwell(c.by, c.at, c.at.Add(6*time.Second)) && i != to || i == to && s.unwell(c.by, c.at, again.begun) {
			return ""
		}
	}
	safe := s.safeAt(first)
	over := s.claims[lost].at
	switch ended := first.by.handedOver; {
	case !ended.IsZero() && !first.answered.After(ended) && !ended.After(over) && !s.unwell(first.by, first.answered, ended):
		return "its process has handed over since"
	case safe.Before(over) && !s.unwell(first.by, first.answered, safe):
		return "the reply had the time to be kept"
	}
	return ""
}

// unwell tells whether a process had trouble in a time.
func (s *sim) unwell(l *life, from, to time.Time) bool {
	meets := func(t span) bool { return !t.from.After(to) && !t.to.Before(from) }
	return slices.ContainsFunc(l.troubled, meets) || slices.ContainsFunc(s.troubled, meets)
}
