package prove

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go/jetstream"
)

// lookBack is how long before its result the events of a row are looked for, one after the
// other. Most results are stored at once, but some wait for an earlier row. The last, 0,
// stands for the whole audit.
var lookBack = []time.Duration{10 * time.Minute, 24 * time.Hour, 0}

// clockSkew is how far the clocks of servers may be apart.
const clockSkew = 5 * time.Second

// call is a call event for the row or for an element of it.
type call struct {
	*auditlog.Call

	item  int // the element that it is for, or wholeRow
	event proof.Event
	hash  proof.Hash
}

const wholeRow = -1

// audit adds the row's event and its calls. What is no longer there is left out.
func (p *prover) audit(ctx context.Context) error {
	for _, back := range lookBack {
		row, calls, err := p.events(ctx, back)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if row == nil {
			continue
		}
		if p.file.RowEvent.Recorded != nil || row.CallsHash == "" {
			return nil
		}
		if p.file.Calls = choose(row, calls); p.file.Calls != nil {
			return nil
		}
	}
	return nil
}

// events reads the events that were stored at most back before the result, or all of them
// if back is 0.
func (p *prover) events(ctx context.Context, back time.Duration) (row *auditlog.Row, calls []call, err error) {
	f := p.file
	name := p.message.Header.Get(proof.HeaderEvent)
	partition := auditlog.Partition(f.Partition)
	o := stored.ReadOptions{Stream: p.cfg.Audit.Stream, Filters: []string{
		streams.AuditSubject(p.cfg.Audit.Subject, p.cfg.Name, partition, auditlog.KindCall), streams.AuditSubject(p.cfg.Audit.Subject, p.cfg.Name, partition, auditlog.KindRow),
	}}
	if back > 0 {
		o.Since = p.message.Time.Add(-back)
	}
	id := p.message.Header.Get(streams.HeaderStateID)
	err = p.each(ctx, o, func(m *jetstream.RawStreamMsg) error {
		if m.Time.After(p.message.Time.Add(clockSkew)) && len(m.Header[streams.HeaderErased]) == 0 {
			return errEnough
		}
		e, err := auditlog.Decode(m.Data)
		if err != nil {
			return nil //nolint:nilerr // of another version, or none
		}
		event, hash := proof.Event{Data: m.Data}, proof.HashOf(m.Data)
		if text := m.Header.Get(proof.HeaderRecorded); text != "" {
			if hash, err = proof.ParseHash(text); err != nil {
				return nil //nolint:nilerr // it is no event of the stage
			}
			event = proof.Event{Recorded: &hash}
		}
		switch {
		case e.Row != nil && e.Row.StateID == id && proof.EventName(hash) == name:
			row, f.RowEvent = e.Row, &event
		case e.Call != nil && !e.Call.Unused:
			for c := range e.Call.EachRow() {
				if auditlog.RowStateID(c.StateID) != id {
					continue
				}
				item := wholeRow
				if c.Item != nil {
					item = *c.Item
				}
				calls = append(calls, call{Call: c, item: item, event: event, hash: hash})
			}
		}
		return nil
	})
	return row, calls, err
}

// choose returns the calls that a row event counts: the ones whose hash it has. They are
// consecutive calls of one process, for the row or for each element. It returns nil if some
// are missing.
func choose(row *auditlog.Row, calls []call) []proof.Calls {
	calls = unique(calls)
	if !slices.ContainsFunc(calls, func(c call) bool { return c.item != wholeRow }) {
		for _, of := range byRun(calls) {
			for from := range of {
				if to := from + row.Attempts + row.CapacityRetries; to <= len(of) && hashOf(of[from:to]).String() == row.CallsHash {
					return []proof.Calls{{Events: eventsOf(of[from:to])}}
				}
			}
		}
		return nil
	}
	items := make(map[int][]call)
	for _, c := range calls {
		if c.Owner == row.Owner {
			items[c.item] = append(items[c.item], c)
		}
	}
	for _, t := range row.EarlierCalls {
		for _, of := range t.Items {
			items[of.Item] = upTo(calls, t.Owner, of)
		}
	}
	var all []proof.Calls
	var hash proof.Hash
	for _, item := range slices.Sorted(maps.Keys(items)) {
		hash = hash.Calls(hashOf(items[item]))
		all = append(all, proof.Calls{Item: &item, Events: eventsOf(items[item])})
	}
	if hash.String() != row.CallsHash {
		return nil
	}
	return all
}

// upTo returns the calls for an element in an earlier term of a row. of names the last of
// them, and how many there are.
func upTo(calls []call, owner string, of auditlog.ItemCalls) []call {
	last := slices.IndexFunc(calls, func(c call) bool { return c.item == of.Item && c.Owner == owner && c.CallIndex == of.CallIndex })
	if last < 0 {
		return nil
	}
	var all []call
	for _, c := range calls[:last+1] {
		if c.item == of.Item && c.RunID == calls[last].RunID {
			all = append(all, c)
		}
	}
	return all[max(0, len(all)-of.Calls):]
}

// unique returns the calls in the order in which they were made, each once.
func unique(calls []call) []call {
	terms := make(map[string]int)
	for _, c := range calls {
		if _, known := terms[c.Owner]; !known {
			terms[c.Owner] = len(terms)
		}
	}
	slices.SortStableFunc(calls, func(a, b call) int {
		return cmp.Or(cmp.Compare(terms[a.Owner], terms[b.Owner]), cmp.Compare(a.CallIndex, b.CallIndex))
	})
	return slices.CompactFunc(calls, func(a, b call) bool { return a.hash == b.hash && a.item == b.item })
}

func byRun(calls []call) map[string][]call {
	runs := make(map[string][]call)
	for _, c := range calls {
		runs[c.RunID] = append(runs[c.RunID], c)
	}
	return runs
}

func hashOf(calls []call) (hash proof.Hash) {
	for _, c := range calls {
		hash = hash.Calls(c.hash)
	}
	return hash
}

func eventsOf(calls []call) []proof.Event {
	events := make([]proof.Event, len(calls))
	for i, c := range calls {
		events[i] = c.event
	}
	return events
}
