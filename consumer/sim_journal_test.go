package consumer_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/llm-stage/stage/consumer/objects"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/nats-io/nats.go"
)

// simEntry is an entry of the journal as it reached the server.
type simEntry struct {
	of    simElement
	owner string
	body  string
	at    time.Time
}

// journaled records what is sent to the journal.
func (s *sim) journaled(m *nats.Msg) {
	s.mu.Lock()
	defer s.mu.Unlock()
	owner := m.Header.Get(streams.HeaderOwner)
	seq, err := strconv.ParseUint(m.Header.Get(streams.HeaderSourceSeq), 10, 64)
	item := wholeRow
	if index := m.Header.Get("Stage-Item"); err == nil && index != "" {
		item, err = strconv.Atoi(index)
	}
	if err != nil || (item == wholeRow) == s.fansOut {
		s.t.Errorf("%v: an entry of the journal has the headers %v: %v", s.clock(), m.Header, err)
	}
	_, body, _ := bytes.Cut(m.Data, []byte{'\n'})
	if ref, is := objects.RefOf(m.Header); is {
		body = s.bodyOf(simElement{seq, item}, ref)
	}
	s.entries = append(s.entries, simEntry{simElement{seq, item}, owner, string(body), time.Now()})
}

// checkEntries checks that the call that an entry is the reply to was audited before. calls are those audited, by name.
func (s *sim) checkEntries(calls map[string]time.Time) {
	s.t.Helper()
	for _, e := range s.entries {
		if !s.fansOut {
			return
		}
		if !s.answers(e.of, e.body) {
			s.t.Errorf("row %d: an entry for element %d is %.200q, which is the reply to no call for it", e.of.row, e.of.item, e.body)
		}
		if at, ok := calls[strings.TrimRight(e.body, simPadding)]; !ok || e.at.Sub(at) < 2*leastLatency {
			s.t.Errorf("row %d, element %d: kept at %v, its call was audited at %v; want the event before it", e.of.row, e.of.item, e.at, at)
		}
	}
}

// simQuestion is when a process asked what the journal holds of a partition.
type simQuestion struct {
	by        string
	partition int
	at        time.Time
}

// lookedAt records who asks what the journal holds.
func (s *sim) lookedAt(m *nats.Msg) {
	var asked struct {
		Filter string `json:"subjects_filter"`
	}
	by, _, ours := strings.Cut(strings.TrimPrefix(m.Reply, inboxOf("")), ".")
	if json.Unmarshal(m.Data, &asked) != nil || !ours {
		return
	}
	for p := range s.partitions {
		if asked.Filter == streams.JournalSubjects("stage", p) {
			s.mu.Lock()
			s.looks = append(s.looks, simQuestion{by, p, time.Now()})
			s.mu.Unlock()
		}
	}
}

// inJournal reports whether the owner that made a call should have found the reply to it in the journal: an owner before
// it, which was not fenced, had sent the entry there before it asked what the journal holds. Whoever owned the partition
// between them, and however it ended: nobody removes a reply of a row that has no result.
func (s *sim) inJournal(c *simCall) bool {
	claims := s.claims[c.partition]
	to := slices.IndexFunc(claims, func(claim simClaim) bool { return claim.owner == c.owner })
	if to < 0 || s.unwell(claims[to].by, claims[to].at, claims[to].at.Add(6*time.Second)) {
		return false
	}
	look := slices.IndexFunc(s.looks, func(l simQuestion) bool {
		return l.by == c.by.name && l.partition == c.partition && !l.at.Before(claims[to].at)
	})
	if look < 0 {
		return false
	}
	return slices.ContainsFunc(s.entries, func(e simEntry) bool {
		if e.of != c.of || !e.at.Before(s.looks[look].at.Add(-leastLatency)) || s.unwell(nil, e.at, e.at.Add(leastLatency)) {
			return false
		}
		from := slices.IndexFunc(claims, func(claim simClaim) bool { return claim.owner == e.owner })
		return from >= 0 && from < to && e.at.Before(claims[from+1].at)
	})
}
