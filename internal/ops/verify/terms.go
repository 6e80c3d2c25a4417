package verify

import (
	"cmp"
	"strings"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/ops/stored"
)

// auditTerm is one term of ownership, by its claim and events.
type auditTerm struct {
	owner string
	epoch int // of the input streams that the partition has had, counted from 0
	// since is when the term was claimed, or its last finished row was queued: the row
	// events of later results were stored after it. It is zero if unknown.
	since  time.Time
	number int // of the partition's terms, in the order of their claims
}

// rowKey names a row: the sequences of a re-created input stream mean other rows.
type rowKey struct {
	epoch int
	seq   uint64
}

func (k rowKey) compare(o rowKey) int {
	return cmp.Or(cmp.Compare(k.epoch, o.epoch), cmp.Compare(k.seq, o.seq))
}

// auditTerms are the terms of ownership of one partition: the terms of all claims, and
// one for each owner without a claim, which counts for the newest input stream. Two
// events belong to one term exactly if they have the same pointer.
type auditTerms struct {
	byOwner map[string]*auditTerm
	epochs  int // input streams that the claims name, at least 1
}

// termsOf returns the terms of claims.
func termsOf(claims []stored.Claim) auditTerms {
	t := auditTerms{byOwner: make(map[string]*auditTerm), epochs: 1}
	for i, c := range claims {
		if i > 0 && !c.SameInput(claims[i-1]) {
			t.epochs++
		}
		if t.byOwner[c.Owner] == nil { // an owner may claim more than once, see claimAhead
			t.byOwner[c.Owner] = &auditTerm{owner: c.Owner, epoch: t.epochs - 1, since: c.Stored, number: len(t.byOwner)}
		}
	}
	return t
}

// of returns the term of an owner. An owner without a claim counts for the newest input,
// because the log was purged.
func (t *auditTerms) of(owner string) *auditTerm {
	term := t.byOwner[owner]
	if term == nil {
		term = &auditTerm{owner: strings.Clone(owner), epoch: t.epochs - 1, number: len(t.byOwner)}
		t.byOwner[owner] = term
	}
	return term
}

// rowOf returns the row that an event of a call or a row is about, and the term that it is of.
func (t *auditTerms) rowOf(e *auditlog.Event) (*auditTerm, rowKey) {
	if e.Call != nil {
		term := t.of(e.Call.Owner)
		return term, rowKey{term.epoch, e.Call.Sequence}
	}
	term := t.of(e.Row.Owner)
	return term, rowKey{term.epoch, e.Row.Sequence}
}
