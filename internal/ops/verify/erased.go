package verify

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go"
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

// readStones reads the tombstones of all partitions, whose logs end at the bounds.
func (v *verification) readStones(ctx context.Context, bounds []logBound) error {
	v.stones = make([]tombstones, v.cfg.Streams.Partitions)
	v.entombed = make([]map[uint64]bool, len(v.stones))
	r, err := stored.Open(ctx, v.js, stored.ReadOptions{Stream: v.cfg.Result.Stream, Filters: []string{v.cfg.Result.Subject + ".*.erased.*.*"}})
	if err != nil {
		return err
	}
	defer r.Close()
	for {
		m, err := r.Next(ctx)
		if err != nil {
			return err
		}
		if m == nil {
			break
		}
		parts := strings.Split(m.Subject, ".")
		if name := parts[len(parts)-4]; name != v.cfg.Name { // of a stage that shares the stream
			if t, err := proof.ParseTombstone(m.Data); err == nil {
				v.othersStones = append(v.othersStones, &stone{at: t.Sequence})
			}
			continue
		}
		number, err := strconv.Atoi(parts[len(parts)-2])
		if err != nil || number < 0 || number >= len(v.stones) {
			continue
		}
		t, err := proof.ParseTombstone(m.Data)
		if err == nil && t.Kind() != proof.Result {
			err = fmt.Errorf("it is of a %s, and only results are erased", t.Kind())
		}
		if err != nil {
			v.report.violate(violationChain, number, 0,
				"message %d of the results stream, on %s: %v", m.Sequence, m.Subject, err)
			continue
		}
		if t.Sequence > bounds[number].at && m.Sequence <= v.resultsLoss.info.State.LastSeq { // an erasure leaves the end of the log
			v.report.violate(violationChain, number, t.Row,
				"the tombstone of row %d is of message %d of the results stream, and the log "+
					"ends at %d: its end is gone, or nobody has erased the row",
				t.Row, t.Sequence, bounds[number].at)
			continue
		}
		v.stones[number] = append(v.stones[number], stoneOf(t))
	}
	for i := range v.stones {
		slices.SortFunc(v.stones[i], func(a, b *stone) int { return cmp.Compare(a.at, b.at) })
		v.stones[i] = slices.CompactFunc(v.stones[i], func(a, b *stone) bool { return a.at == b.at })
		v.entombed[i] = make(map[uint64]bool, len(v.stones[i]))
		for _, s := range v.stones[i] {
			v.entombed[i][s.row] = true
		}
	}
	return v.resultsLoss.explain(append(slices.Clone(v.stones), v.othersStones), v.deleted)
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

// explain takes erased results out of what the stream has lost: their tombstones say what
// they were.
func (l *streamLoss) explain(stones []tombstones, gone *deletions) error {
	for _, of := range stones {
		for _, s := range of {
			if err := l.explainOne(s.at, gone); err != nil {
				return err
			}
		}
	}
	l.gone = l.goneOf(l.inside > 0)
	return nil
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
