package verify

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// stone is the tombstone of an erased result.
type stone struct {
	at, row uint64
	result  *stored.ResultRow // as far as the tombstone has it
	record  proof.Record
	chain   proof.Hash
}

// tombstones are the tombstones of one partition, sorted by place, one for each place.
type tombstones []*stone

// erasures has what erasures have left in the streams: a tombstone for each result, and for
// each event a copy without the row's contents.
type erasures struct {
	stones []tombstones      // by partition
	rows   []map[uint64]bool // by partition, the rows that have a tombstone
	others []uint64          // places of erased results of other stages in the stream
	copies []eventCopy       // by the places of their originals
}

// readErasures reads the tombstones of all partitions, whose logs end at the bounds, and
// explains by them what the results stream has lost.
func readErasures(ctx context.Context, s *store, report *Report, bounds []logBound, lost *streamLoss, deleted *deletions) (*erasures, error) {
	e := &erasures{stones: make([]tombstones, s.cfg.Streams.Partitions)}
	o := stored.ReadOptions{Stream: s.cfg.Result.Stream, Filters: []string{s.cfg.Result.Subject + ".*.erased.*.*"}}
	err := stored.Each(ctx, s.js, o, func(m *jetstream.RawStreamMsg) error {
		parts := strings.Split(m.Subject, ".")
		if name := parts[len(parts)-4]; name != s.cfg.Name { // of a stage that shares the stream
			if t, err := proof.ParseTombstone(m.Data); err == nil {
				e.others = append(e.others, t.Sequence)
			}
			return nil
		}
		number, err := strconv.Atoi(parts[len(parts)-2])
		if err != nil || number < 0 || number >= len(e.stones) {
			return nil //nolint:nilerr // it is in no log that is checked
		}
		t, err := proof.ParseTombstone(m.Data)
		if err == nil && t.Kind() != proof.Result {
			err = fmt.Errorf("it is of a %s, and only results are erased", t.Kind())
		}
		if err != nil {
			report.violate(violationChain, number, 0,
				"message %d of the results stream, on %s: %v", m.Sequence, m.Subject, err)
			return nil
		}
		// An erasure leaves the end of the log.
		if t.Sequence > bounds[number].at && m.Sequence <= lost.info.State.LastSeq {
			report.violate(violationChain, number, t.Row,
				"the tombstone of row %d is of message %d of the results stream, and the log "+
					"ends at %d: its end is gone, or nobody has erased the row",
				t.Row, t.Sequence, bounds[number].at)
			return nil
		}
		e.stones[number] = append(e.stones[number], stoneOf(t))
		return nil
	})
	if err != nil {
		return nil, err
	}
	places := slices.Clone(e.others)
	for i := range e.stones {
		of := e.stones[i]
		slices.SortFunc(of, func(a, b *stone) int { return cmp.Compare(a.at, b.at) })
		of = slices.CompactFunc(of, func(a, b *stone) bool { return a.at == b.at })
		rows := make(map[uint64]bool, len(of))
		for _, s := range of {
			rows[s.row] = true
			places = append(places, s.at)
		}
		e.stones[i], e.rows = of, append(e.rows, rows)
	}
	return e, lost.explain(places, deleted)
}

// stoneOf keeps of a tombstone what the check needs.
func stoneOf(t *proof.Tombstone) *stone {
	r := &stored.ResultRow{
		At: t.Sequence, Stored: t.At, Seq: t.Row, Owner: t.Header(streams.HeaderOwner), Status: t.Header(streams.HeaderStatus),
		StateID: t.Header(streams.HeaderStateID), Source: t.Header(streams.HeaderSourceStream), Replaces: t.Header(streams.HeaderReplaces),
	}
	head := make(nats.Header)
	for _, name := range []string{streams.HeaderLow, streams.HeaderAhead, streams.HeaderAheadFrom} {
		if value := t.Header(name); value != "" {
			head.Set(name, value)
		}
	}
	r.Progress = stored.ProgressOf(head)
	return &stone{at: t.Sequence, row: t.Row, result: r, record: t.Record(), chain: t.Chain}
}

// covers reports whether a row that an event is about was erased. Only such an event may
// be a copy that carries the hash of its original. Otherwise any change of an event could
// be covered by a hash that the event itself carries.
func (e *erasures) covers(event *auditlog.Event) bool {
	var rows []uint64
	switch {
	case event.Partition < 0 || int(event.Partition) >= len(e.rows):
		return false
	case event.Row != nil:
		rows = []uint64{event.Row.Sequence}
	case event.Call != nil && len(event.Call.Rows) > 0:
		rows = event.Call.Rows
	case event.Call != nil:
		rows = []uint64{event.Call.Sequence}
	}
	return slices.ContainsFunc(rows, func(row uint64) bool { return e.rows[event.Partition][row] })
}

// among puts erased results into their places among those that are there. A result that
// has a tombstone and is still there comes by itself.
func (stones tombstones) among(results func() (*stored.ResultRow, error), claims []stored.Claim, logEnd uint64) func() (*stored.ResultRow, error) {
	var next *stored.ResultRow
	var err error
	read, from := false, uint64(math.MaxUint64)
	return func() (*stored.ResultRow, error) {
		if !read {
			if read = true; next == nil && len(claims) > 0 {
				from = claims[0].At
			}
			next, err = results()
			if next != nil {
				from = min(from, next.At)
			}
		}
		for len(stones) > 0 && err == nil && stones[0].at <= logEnd && (next == nil || stones[0].at <= next.At) {
			s := stones[0]
			stones = stones[1:]
			if s.at < from || next != nil && s.at == next.At {
				continue // it is of the part of the log that is gone, or not erased yet
			}
			return s.result, nil
		}
		read = false
		return next, err
	}
}

// at returns the tombstone of the message at a place of the log, or nil.
func (stones tombstones) at(at uint64) *stone {
	i, found := slices.BinarySearchFunc(stones, at, func(s *stone, at uint64) int { return cmp.Compare(s.at, at) })
	if !found {
		return nil
	}
	return stones[i]
}
