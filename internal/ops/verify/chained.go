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
	"github.com/nats-io/nats.go/jetstream"
)

// chainVerifier follows the chain through the log of a partition: each message must carry
// the hash of the one before it and of itself. The tombstone of an erased result takes its
// place.
//
// Behind a message that breaks the chain it goes on with the value that this one carries,
// so one change is one violation.
type chainVerifier struct {
	on bool // the log has a chain, and bodies are read, since they count in it
	// value, at and row are those of the last message with a chain; at is 0 before it.
	value   proof.Hash
	at, row uint64
	begun   bool   // a message was read
	bare    uint64 // the last message where it has no chain, or 0
	broken  bool

	stones  []*stone        // of the partition, by place
	erased  int             // of them, as far as the log is read
	roots   []*Root         // that are still to come, by place
	removed func() []uint64 // messages that are gone from the middle of the results stream, sorted; nil: none are
}

// stone is the tombstone of an erased result.
type stone struct {
	at, row uint64
	result  *stored.ResultRow // as far as the tombstone has it
	record  proof.Record
	chain   proof.Hash
}

// Root is the end of the log of a partition at some time.
type Root = proof.Root

// readStones reads the tombstones of all partitions, whose logs end at the bounds.
func (v *verification) readStones(ctx context.Context, bounds []logBound) error {
	v.stones = make([][]*stone, v.cfg.Streams.Partitions)
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
			v.report.violate(violationChain, number, 0, "message %d of the results stream, on %s: %v", m.Sequence, m.Subject, err)
			continue
		}
		if t.Sequence > bounds[number].at && m.Sequence <= v.resultsLoss.info.State.LastSeq { // an erasure leaves the end of the log
			v.report.violate(violationChain, number, t.Row, "the tombstone of row %d is of message %d of the results stream, and the log ends at %d: its end is gone, or nobody has erased the row", t.Row, t.Sequence, bounds[number].at)
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
	v.resultsLoss.explain(append(slices.Clone(v.stones), v.othersStones), v.removed)
	return nil
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
// they were. removed names the messages that are gone from its middle.
func (l *streamLoss) explain(stones [][]*stone, removed func() []uint64) {
	for _, of := range stones {
		for _, s := range of {
			switch {
			case l.info == nil:
			case s.at < l.info.State.FirstSeq:
				l.front -= min(l.front, 1)
			case removed != nil:
				if _, gone := slices.BinarySearch(removed(), s.at); gone {
					l.inside = max(0, l.inside-1)
				}
			}
		}
	}
	l.gone = l.goneOf(l.inside > 0)
}

// withErased puts erased results into their places among those that are there. A result
// that has a tombstone and is still there comes by itself.
func (v *partitionVerifier) withErased(results func() (*stored.ResultRow, error)) func() (*stored.ResultRow, error) {
	stones := v.chain.stones
	var next *stored.ResultRow
	var err error
	read, from := false, uint64(math.MaxUint64)
	return func() (*stored.ResultRow, error) {
		if !read {
			if read = true; next == nil && len(v.claims) > 0 {
				from = v.claims[0].At
			}
			next, err = results()
			if next != nil {
				from = min(from, next.At)
			}
		}
		for len(stones) > 0 && err == nil && stones[0].at <= v.logEnd && (next == nil || stones[0].at <= next.At) {
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

// stoneAt returns the tombstone of the message at a place of the log, or nil.
func (v *partitionVerifier) stoneAt(at uint64) *stone {
	i, found := slices.BinarySearchFunc(v.chain.stones, at, func(s *stone, at uint64) int { return cmp.Compare(s.at, at) })
	if !found {
		return nil
	}
	return v.chain.stones[i]
}

// link is a message of the log as the chain sees it.
type link struct {
	at, row uint64
	kind    proof.Kind
	record  proof.Record
	value   proof.Hash
	has     bool  // a value
	err     error // why it is none
}

func (l *link) String() string {
	if l.kind == proof.Claim {
		return fmt.Sprintf("the claim at %d of the results stream", l.at)
	}
	return fmt.Sprintf("the result of row %d, at %d of the results stream,", l.row, l.at)
}

// chainClaim checks the chain at a claim.
func (v *partitionVerifier) chainClaim(c *stored.Claim) {
	switch {
	case v.nextClaim == 0 && v.anchor != nil:
		v.chainAnchor()
	case v.chain.on:
		l := link{at: c.At, row: c.Mark, kind: proof.Claim, record: proof.RecordOf(proof.Claim, c.Header, c.Body)}
		l.value, l.has, l.err = proof.ChainOf(c.Header)
		v.chained(&l)
	}
}

// chainResult checks the chain at a result, which may be erased, and notes the hash of its
// body.
func (v *partitionVerifier) chainResult(h *verifiedRow) {
	if !v.chain.on {
		return
	}
	l := link{at: h.At, row: h.Seq, kind: proof.Result}
	if h.erased {
		s := v.stoneAt(h.At)
		l.record, l.value, l.has = s.record, s.chain, s.chain != proof.Hash{} // of a version without a chain
		v.chain.erased++
	} else {
		body := proof.HashOf(h.Body)
		l.record = proof.RecordOfHash(proof.Result, h.Header, body)
		l.value, l.has, l.err = proof.ChainOf(h.Header)
		if h.Object == nil {
			h.sha = body.String()
		} else if len(h.Body) > 0 { // in the chain only the object counts, and a stage that takes the message as a row prefers its own body
			v.violate(violationChain, h.Seq, "%v has a body of its own beside the object that it names: somebody has added that", &l)
		}
		if names := h.Header[proof.HeaderEvent]; len(names) > 0 {
			h.event = names[0]
		}
		if v.stoneAt(h.At) != nil {
			v.violate(violationErasure, h.Seq, "%v has a tombstone and is still there: its erasure was interrupted", &l)
		}
	}
	v.chained(&l)
}

// chained checks whether a message of the log follows the one before it.
func (v *partitionVerifier) chained(l *link) {
	c := &v.chain
	first := !c.begun
	c.begun = true
	begins := l.value == proof.Hash{}.Next(l.record)
	switch {
	case l.err != nil:
		v.breaks(l, "has a wrong %s: %v", proof.HeaderChain, l.err)
		return
	case !l.has && c.at > 0:
		v.breaks(l, "has no %s, and message %d before it has one: an older version of the stage, or somebody else, has stored it", proof.HeaderChain, c.at)
		c.bare = l.at
		return
	case !l.has:
		c.bare = l.at
		return
	case c.at == 0 && begins && (first || l.kind == proof.Claim): // the beginning
	case c.at == 0 && first && v.resultsGone: // what it follows is gone, which is reported elsewhere
	case c.at == 0:
		v.breaks(l, "does not begin the chain: it was altered, or messages before it are gone")
	case l.value == c.value.Next(l.record):
	case c.bare > c.at && begins && l.kind == proof.Claim: // as behind an older version, which is a violation already
	default:
		v.breaks(l, "does not follow message %d: one of them was altered, or another was between them", c.at)
	}
	v.findRoots(l.at, l.value)
	v.leadsTo(l.at, l.value)
	c.value, c.at, c.row, c.bare = l.value, l.at, l.row, 0
}

// breaks reports that the chain does not go on with a message.
func (v *partitionVerifier) breaks(l *link, format string, args ...any) {
	v.chain.broken = true
	kind := violationChain
	gone := v.removedBetween(v.chain.at, l.at)
	if gone > 0 {
		kind = violationDeleted
		format += "; message %d of the stream was deleted"
		args = append(args, gone)
	}
	v.violate(kind, l.row, "%v "+format, append([]any{l}, args...)...)
}

// removedBetween returns a message between two places of the results stream that was
// removed and has no tombstone, or 0.
func (v *partitionVerifier) removedBetween(from, to uint64) uint64 {
	if v.chain.removed == nil || from == 0 {
		return 0
	}
	gone := v.chain.removed()
	i, _ := slices.BinarySearch(gone, from+1)
	for ; i < len(gone) && gone[i] < to; i++ {
		if v.stoneAt(gone[i]) == nil {
			return gone[i]
		}
	}
	return 0
}

// removedFunc returns a function that asks once which messages are gone from the middle of
// the results stream. Where that can't be told there are none.
func (v *verification) removedFunc(ctx context.Context) func() []uint64 {
	if v.resultsLoss.inside == 0 {
		return nil
	}
	var gone []uint64
	asked := false
	return func() []uint64 {
		if asked {
			return gone
		}
		asked = true
		if s, err := v.js.Stream(ctx, v.cfg.Result.Stream); err == nil {
			if info, err := s.Info(ctx, jetstream.WithDeletedDetails(true)); err == nil {
				gone = info.State.Deleted
				slices.Sort(gone)
			}
		}
		return gone
	}
}

// findRoots compares the roots up to a message of the log with the chain there.
func (v *partitionVerifier) findRoots(at uint64, value proof.Hash) {
	c := &v.chain
	for len(c.roots) > 0 && c.roots[0].Sequence <= at {
		r := c.roots[0]
		c.roots = c.roots[1:]
		switch {
		case r.Sequence == at && r.Chain == value:
			v.report.RootsFound++
		case r.Sequence == at:
			v.violate(violationRoot, r.Row, "message %d of the results stream has the chain %s, the root has %s: the log is another one since", at, value, r.Chain)
		case c.at == 0 && v.resultsGone:
			v.report.cannot("partition %d: the root at %d of the results stream is in the part of the log that is gone", v.stats.Partition, r.Sequence)
		default:
			v.violate(violationRoot, r.Row, "the root at %d of the results stream is not on the chain, which has message %d next: the log is another one since", r.Sequence, at)
		}
	}
}

// finishChain reports the root of the partition, and the roots that the log does not reach.
func (v *partitionVerifier) finishChain() {
	c := &v.chain
	for _, r := range c.roots {
		v.violate(violationRoot, r.Row, "the root at %d of the results stream is behind the end of the log, at %d: its end is gone", r.Sequence, v.logEnd)
	}
	v.stats.Erased = c.erased
	v.report.Erased += c.erased
	if c.at > 0 && !c.broken && c.bare == 0 {
		v.report.Roots = append(v.report.Roots, &Root{Partition: v.stats.Partition, Sequence: c.at, Row: c.row, Chain: c.value})
	}
}

// checkCalls compares the calls that a row event counts with its hash of them. A row event
// of an earlier version, or about a reply that such a version has kept, has none.
func (v *partitionVerifier) checkCalls(h *verifiedRow, row *rowAudit, event *rowFacts, calls []callFacts) {
	if event.callsHash == "" {
		return
	}
	hash := hashOfCalls(calls)
	if row.fanned() {
		hash = row.hashOfItems(event)
	}
	if hash.String() != event.callsHash {
		v.violate(violationEvent, h.Seq, "row %d: its call events are not those that its row event counts (calls_hash): one was altered", h.Seq)
	}
}

// rootsOf returns the given roots of a partition, by their places.
func (v *verification) rootsOf(partition int) (roots []*Root) {
	for i := range v.options.Roots {
		if r := &v.options.Roots[i]; r.Partition == partition {
			roots = append(roots, r)
		}
	}
	slices.SortFunc(roots, func(a, b *Root) int { return cmp.Compare(a.Sequence, b.Sequence) })
	return roots
}

// missRoots reports the given roots of partitions that have no log.
func (v *verification) missRoots() {
	for i := range v.options.Roots {
		if r := &v.options.Roots[i]; r.Partition < 0 || r.Partition >= len(v.parts) {
			v.report.violate(violationRoot, r.Partition, r.Row, "the root at %d of the results stream is in no log: stream %s has none of this partition", r.Sequence, v.cfg.Result.Stream)
		}
	}
}
