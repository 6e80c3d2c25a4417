package consumer_test

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// simClaim is a claim as stored in the log.
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

// simReset is a reset of a durable by a process that hands its partition over, as it reached the server.
type simReset struct {
	by        *life
	partition int
	drained   time.Time
	latency   time.Duration // of its link
}

// reset records that a durable is set back: $JS.API.CONSUMER.RESET.<stream>.<consumer>.
func (s *sim) reset(m *nats.Msg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.partitions {
		if !strings.HasSuffix(m.Subject, "."+streams.DurableName("stage", p)) {
			continue
		}
		for _, l := range s.lives {
			if strings.HasPrefix(m.Reply, inboxOf(l.name)+".") && l.handingOver[p] {
				s.resets = append(s.resets, simReset{l, p, l.drained[p][len(l.drained[p])-1], l.link.latencyNow()})
			}
		}
	}
}

// acked records an ack:
// $JS.ACK.<stream>.<consumer>.<deliveries>.<stream sequence>.<consumer sequence>.<time>.<pending>.
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

// simJournalMost bounds the entries of the journal for each partition. The oldest that is needed is of a row of the
// window; after it come, for each owner since, at most the rest of its window, what was emitted meanwhile, and what a
// second brings between two purges. Where the order is not that of the stream the oldest may be needed for an hour, and
// moves up behind the others when there are so many beside.
const (
	simJournalMost  = 4 // windows
	simJournalKeyed = 256
)

// checkBounds looks at what must not grow.
func (s *sim) checkBounds() {
	s.t.Helper()
	for _, r := range s.replicas {
		if r.life == nil {
			continue
		}
		for _, c := range r.consumers {
			if st := c.Status(); st.Window > s.window || st.Buffered > st.Window {
				s.t.Errorf("%s holds %d rows, %d of them answered, in a window of %d", r.name, st.Window, st.Buffered, s.window)
			}
		}
	}
	most := simJournalMost * s.window
	if s.fansOut {
		most *= simElementsMean
	}
	if s.mixed {
		most += simJournalKeyed
	}
	if n := s.stream("JOURNAL").CachedInfo().State.Msgs; n > uint64(most*s.partitions) {
		s.t.Errorf("%d entries in the journal, want at most %d", n, most*s.partitions)
	}
}

// check reads the streams.
func (s *sim) check() {
	s.t.Helper()
	s.claims = make([][]simClaim, s.partitions)
	var results []jetstream.Msg
	for p := range s.partitions {
		results = append(results, s.checkLog(p)...)
		c := stagetest.Value(s.js.Consumer(s.t.Context(), "ROWS", streams.DurableName("stage", p)))(s.t)
		if policy := c.CachedInfo().Config.AckPolicy; s.keyed() && policy != jetstream.AckExplicitPolicy {
			s.t.Errorf("partition %d: an ack covers rows that wait: the policy is %s in order %s", p, policy, s.order)
		}
		if got := c.CachedInfo(); got.NumAckPending != 0 || got.NumPending != 0 {
			s.t.Errorf("partition %d at the end: ack pending %d, pending %d, want 0 and 0", p, got.NumAckPending, got.NumPending)
		}
	}
	if s.fansOut {
		s.checkAudit(results, s.elements)
	} else {
		s.checkAudit(results, nil)
	}
	s.checkOrderOfEvents(results)
	s.checkMoney()
	s.checkSleepers()
	s.checkResets()
	s.checkObjects(results)
}

// checkLog checks that each row of a partition has one result, in the order of the claim before it, stored by the owner
// of its term, and what each message says of the rows that are done. It returns the results.
func (s *sim) checkLog(p int) []jetstream.Msg {
	s.t.Helper()
	owner := ""
	var chain proof.Hash
	owners := make(map[string]bool)
	var results []jetstream.Msg
	log := logOrder{
		rows: s.rows[p], keys: s.keys, span: s.spanRows(), done: make(map[uint64]uint64),
		fail: func(format string, args ...any) { s.t.Errorf("partition %d: "+format, append([]any{p}, args...)...) },
	}
	for _, m := range s.read("RESULTS", fmt.Sprintf("results.stage.%d.>", p)) {
		at, seq, by := storedAt(s.testbed, m).Sequence.Stream, sourceSeq(s.testbed, m), m.Headers().Get(streams.HeaderOwner)
		chain = s.checkChain(at, m, chain)
		if strings.HasSuffix(m.Subject(), ".claim") {
			name, _, _ := strings.Cut(by, ".")
			if log.claim(at, m.Headers(), m.Data(), s.lives[name].order); by == owner {
				continue // it leaves a mark
			}
			if owners[by] {
				s.t.Errorf("partition %d: claim %d of %s comes after one of %s", p, at, by, owner)
			}
			owner, owners[by] = by, true
			s.claims[p] = append(s.claims[p], simClaim{by, s.lives[name], storedAt(s.testbed, m).Timestamp})
			continue
		}
		log.result(at, seq, m.Headers())
		if by != owner {
			s.t.Errorf("row %d was appended by %s in the term of %s", seq, by, owner)
		}
		if failed := s.fails(seq); (m.Headers().Get(streams.HeaderStatus) == "error") != failed {
			s.t.Errorf("row %d: %s, want failed %v", seq, m.Headers().Get(streams.HeaderStatus), failed)
		}
		s.checkBody(seq, string(s.bodyOfResult(seq, m)))
		results = append(results, m)
	}
	log.end()
	return results
}

// checkChain checks that a message of a log carries the hash of the one before it and of itself, which it returns.
func (s *sim) checkChain(at uint64, m jetstream.Msg, before proof.Hash) proof.Hash {
	s.t.Helper()
	kind := proof.Result
	if strings.HasSuffix(m.Subject(), ".claim") {
		kind = proof.Claim
	}
	chain, ok, err := proof.ChainOf(m.Headers())
	if want := before.Next(proof.RecordOf(kind, m.Headers(), m.Data())); !ok || err != nil || chain != want {
		s.t.Errorf("message %d, a %s, has the chain %s, want %s: %v", at, kind, chain, want, err)
	}
	return chain
}

func sourceSeq(b *testbed, m jetstream.Msg) uint64 {
	b.t.Helper()
	return stagetest.Value(strconv.ParseUint(m.Headers().Get(streams.HeaderSourceSeq), 10, 64))(b.t)
}

func storedAt(b *testbed, m jetstream.Msg) *jetstream.MsgMetadata {
	b.t.Helper()
	return stagetest.Value(m.Metadata())(b.t)
}

// checkOrderOfEvents checks that a row's call and row event were stored before its result, and it was acked after. What
// is done in response to an answer of the server reaches it at least two one-way latencies of the link later.
func (s *sim) checkOrderOfEvents(results []jetstream.Msg) {
	s.t.Helper()
	const cause = 2 * leastLatency
	called, rows, keys := make(map[uint64]time.Time), make(map[string]time.Time), make(map[string]*string)
	calls, named := make(map[string]time.Time), make(map[string]string)
	for _, m := range s.read("AUDIT", "audit.stage.*.*") {
		at := storedAt(s.testbed, m).Timestamp
		switch e, err := auditlog.Decode(m.Data()); {
		case err != nil:
			s.t.Fatal(err)
		case e.Row != nil:
			rows[e.Row.StateID+"|"+e.Row.Owner], keys[e.Row.StateID+"|"+e.Row.Owner] = at, e.Row.Key
			named[e.Row.StateID+"|"+e.Row.Owner] = proof.EventName(proof.HashOf(m.Data()))
			if e.Row.Salt == "" {
				s.t.Errorf("the row event of row %d has no salt", e.Row.Sequence)
			}
		case e.Call != nil:
			if _, known := called[e.Call.Sequence]; !known {
				called[e.Call.Sequence] = at
			}
			calls[e.Call.CallID] = at
		}
	}
	stored := make(map[uint64]time.Time)
	for _, m := range results {
		seq, at := sourceSeq(s.testbed, m), storedAt(s.testbed, m).Timestamp
		stored[seq] = at
		event := m.Headers().Get(streams.HeaderStateID) + "|" + m.Headers().Get(streams.HeaderOwner)
		key, keyed := m.Headers()[streams.HeaderKey]
		if told := keys[event]; keyed != (told != nil) || keyed && key[0] != *told {
			s.t.Errorf("row %d: its result has the key %q, and its row event another one", seq, key)
		}
		if name := m.Headers().Get(proof.HeaderEvent); name != named[event] {
			s.t.Errorf("row %d: its result names the row event %q, and its row event is %q", seq, name, named[event])
		}
		row := rows[event]
		if at.Sub(row) < cause || at.Sub(called[seq]) < cause {
			s.t.Errorf("row %d: call event at %v, row event at %v, result at %v; want the events before it", seq, called[seq], row, at)
		}
	}
	s.checkEntries(calls)
	for _, a := range s.acks {
		if at, ok := stored[a.row]; !ok || a.at.Sub(at) < cause {
			s.t.Errorf("row %d: acked at %v, its result was stored at %v; want the ack after it", a.row, a.at, at)
		}
	}
}

// repaid is the number of calls that were made again.
func (s *sim) repaid() int { return len(s.calls) - len(s.callsFor) }
