package verify

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/llm-stage/stage/internal/ops/stored"
)

// chainVerifier follows the chain through the log of a partition: each message must carry
// the hash of the one before it and of itself. The tombstone of an erased result takes its
// place.
//
// After a message that breaks the chain it goes on with the value that this message
// carries, so one change is one violation. For example, message 3 of 5 was altered:
//
//	message    1   2   3     4   5
//	carries    a   b   c     d   e
//	computed   a   b   X≠c   d   e      d is computed from the c that message 3 carries
type chainVerifier struct {
	on bool // the log has a chain, and bodies are read, since they count in it
	// value, at and row describe the last message with a chain: the chain's value there,
	// its place in the results stream and its row. at is 0 before the first such message.
	value   proof.Hash
	at, row uint64
	begun   bool   // a message was read
	bare    uint64 // the last message where it has no chain, or 0
	broken  bool

	// These are shared with the verifier of the log, which sets them as it begins.
	*findings
	facts *logFacts

	stones  tombstones // of the partition
	roots   []*Root    // the given roots that the log has not reached yet, by place
	deleted *deletions // of the results stream
}

// Root is the end of the log of a partition at some time.
type Root = proof.Root

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

// claim checks the chain at a claim. The first one behind dropped results stands for the
// last of these.
func (c *chainVerifier) claim(claim *stored.Claim, first bool) error {
	switch a := c.facts.anchor; {
	case first && a != nil:
		c.findRoots(a.Sequence, a.chain)
		c.begun, c.value, c.at, c.row = true, a.chain, a.Sequence, a.Row
	case c.on:
		l := link{at: claim.At, row: claim.Mark, kind: proof.Claim}
		l.record = proof.RecordOf(proof.Claim, claim.Header, claim.Body)
		l.value, l.has, l.err = proof.ChainOf(claim.Header)
		return c.follow(&l)
	}
	return nil
}

// result checks the chain at a result, which may be erased, and notes the hash of its
// body.
func (c *chainVerifier) result(h *verifiedRow) error {
	if !c.on {
		return nil
	}
	l := link{at: h.At, row: h.Seq, kind: proof.Result}
	if h.erased {
		s := c.stones.at(h.At)
		// The tombstone of a result that a version without a chain has stored has no chain.
		l.record, l.value, l.has = s.record, s.chain, s.chain != proof.Hash{}
		c.stats.Erased++
	} else {
		body := proof.HashOf(h.Body)
		l.record = proof.RecordOfHash(proof.Result, h.Header, body)
		l.value, l.has, l.err = proof.ChainOf(h.Header)
		if h.Object == nil {
			h.sha = body.String()
		} else if len(h.Body) > 0 {
			// The chain covers only the object, but a stage that takes the message as a row
			// prefers the body. So a body added here would change the row unnoticed.
			c.violate(violationChain, h.Seq,
				"%v has a body of its own beside the object that it names: somebody has added "+
					"that",
				&l)
		}
		if names := h.Header[proof.HeaderEvent]; len(names) > 0 {
			h.event = names[0]
		}
		if c.stones.at(h.At) != nil {
			c.violate(violationErasure, h.Seq,
				"%v has a tombstone and is still there: its erasure was interrupted", &l)
		}
	}
	return c.follow(&l)
}

// follow checks whether a message of the log follows the one before it.
func (c *chainVerifier) follow(l *link) (err error) {
	first := !c.begun
	c.begun = true
	begins := l.value == proof.Hash{}.Next(l.record)
	switch {
	case l.err != nil:
		return c.breaks(l, "has a wrong %s: %v", proof.HeaderChain, l.err)
	case !l.has && c.at > 0:
		c.bare = l.at
		return c.breaks(l,
			"has no %s, and message %d before it has one: an older version of the stage, or "+
				"somebody else, has stored it",
			proof.HeaderChain, c.at)
	case !l.has:
		c.bare = l.at
		return nil
	case c.at == 0 && begins && (first || l.kind == proof.Claim): // the beginning
	// What it follows is gone, which is reported elsewhere.
	case c.at == 0 && first && c.facts.resultsGone:
	case c.at == 0:
		err = c.breaks(l, "does not begin the chain: it was altered, or messages before it are gone")
	case l.value == c.value.Next(l.record):
	// The chain begins again, as behind an older version, which is a violation already.
	case c.bare > c.at && begins && l.kind == proof.Claim:
	default:
		err = c.breaks(l,
			"does not follow message %d: one of them was altered, or another was between them",
			c.at)
	}
	c.findRoots(l.at, l.value)
	c.leadsTo(l.at, l.value)
	c.value, c.at, c.row, c.bare = l.value, l.at, l.row, 0
	return err
}

// breaks reports that the chain does not go on with a message. If a message between the
// two was deleted, that is the cause, and the violation says so instead.
func (c *chainVerifier) breaks(l *link, format string, args ...any) error {
	c.broken = true
	kind := violationChain
	gone, err := c.deletedBetween(c.at, l.at)
	if err != nil {
		return err
	}
	if gone > 0 {
		kind = violationDeleted
		format += "; message %d of the stream was deleted"
		args = append(args, gone)
	}
	c.violate(kind, l.row, "%v "+format, append([]any{l}, args...)...)
	return nil
}

// deletedBetween returns a message between two places of the results stream that was
// deleted and has no tombstone, or 0.
func (c *chainVerifier) deletedBetween(from, to uint64) (uint64, error) {
	if from == 0 {
		return 0, nil
	}
	gone, err := c.deleted.from(from + 1)
	for _, at := range gone {
		if at >= to {
			break
		}
		if c.stones.at(at) == nil {
			return at, nil
		}
	}
	return 0, err
}

// findRoots compares the roots up to a message of the log with the chain there.
func (c *chainVerifier) findRoots(at uint64, value proof.Hash) {
	for len(c.roots) > 0 && c.roots[0].Sequence <= at {
		r := c.roots[0]
		c.roots = c.roots[1:]
		switch {
		case r.Sequence == at && r.Chain == value:
			c.report.RootsFound++
		case r.Sequence == at:
			c.violate(violationRoot, r.Row,
				"message %d of the results stream has the chain %s, the root has %s: the log "+
					"is another one since",
				at, value, r.Chain)
		case c.at == 0 && c.facts.resultsGone:
			c.report.cannot("partition %d: the root at %d of the results stream is in the part of the log "+
				"that is gone",
				c.stats.Partition, r.Sequence)
		default:
			c.violate(violationRoot, r.Row,
				"the root at %d of the results stream is not on the chain, which has message "+
					"%d next: the log is another one since",
				r.Sequence, at)
		}
	}
}

// leadsTo checks that a result whose record of dropping is written, and which is not purged
// yet, has the chain that the record says. After the purge the record is all that is left.
func (c *chainVerifier) leadsTo(at uint64, value proof.Hash) {
	if r := c.facts.recorded; r != nil && r.Sequence == at && r.chain != value {
		c.violate(violationChain, r.Row,
			"message %d of the results stream has the chain %s, and the record of dropped "+
				"results says %s",
			at, value, r.chain)
	}
}

// finish reports the root of the partition, and the roots that the log does not reach.
func (c *chainVerifier) finish() {
	for _, r := range c.roots {
		c.violate(violationRoot, r.Row,
			"the root at %d of the results stream is behind the end of the log, at %d: its "+
				"end is gone",
			r.Sequence, c.facts.logEnd)
	}
	c.report.Erased += c.stats.Erased
	if c.at > 0 && !c.broken && c.bare == 0 {
		c.report.Roots = append(c.report.Roots, &Root{Partition: c.stats.Partition, Sequence: c.at, Row: c.row, Chain: c.value})
	}
}

// rootsOf returns the given roots of a partition, by their places.
func rootsOf(given []Root, partition int) (roots []*Root) {
	for i := range given {
		if r := &given[i]; r.Partition == partition {
			roots = append(roots, r)
		}
	}
	slices.SortFunc(roots, func(a, b *Root) int { return cmp.Compare(a.Sequence, b.Sequence) })
	return roots
}

// missRoots reports the given roots of partitions that have no log.
func missRoots(given []Root, partitions int, stream string, report *Report) {
	for i := range given {
		if r := &given[i]; r.Partition < 0 || r.Partition >= partitions {
			report.violate(violationRoot, r.Partition, r.Row,
				"the root at %d of the results stream is in no log: stream %s has none of "+
					"this partition",
				r.Sequence, stream)
		}
	}
}
