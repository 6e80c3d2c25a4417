package lane

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/batchapi"
)

// refusalsMost is how many refusals in a row that name no line are taken for the account's
// fault rather than a row's.
const refusalsMost = 5

// refusals decides what becomes of batches that the provider refuses as a whole, and of
// their rows. inRow counts refusals without a named line since the provider last worked
// on a batch.
type refusals struct {
	*desk
	inRow int
}

// refused goes on with a batch that the provider has refused as a whole.
func (rs *refusals) refused(b *batch, r *batchapi.Refusal, now time.Time) {
	if r == nil {
		r = new(batchapi.Refusal)
	}
	if r.Err == nil {
		r.Err = &llm.Error{Class: llm.Permanent, Reason: llm.ReasonAPICallFailed, Provider: rs.cfg.Provider, Err: errors.New("the provider gave no reason")}
	}
	if r.Err.Class == llm.Fatal {
		rs.standing.pause.set(r.Err, now, rs.cfg.ProbeInterval)
		if b.id != "" || b.body == nil {
			rs.abandon(b, "refused: "+r.Err.Error(), false, rs.places.release)
		}
		return
	}
	why := "refused: " + r.Err.Error()
	do, bad := remedyFor(r, len(b.state))
	if do == remedySplit && rs.cfg.Collect {
		do = remedyLive
	}
	switch do {
	case remedyWait:
		rs.refusedForNow(b, r, now)
	case remedyFail:
		rs.abandon(b, why, false, rs.releaseBut(bad, lineOf(r.Err)))
	case remedyLive:
		rs.refusedAgain(r, now)
		rs.abandon(b, why, false, rs.places.releaseLive)
	case remedySplit:
		rs.refusedAgain(r, now)
		rs.abandon(b, why, false, rs.releaseHalves)
	}
}

// refusedForNow has a batch wait for room in the provider's queue, where that can help.
func (rs *refusals) refusedForNow(b *batch, r *batchapi.Refusal, now time.Time) {
	c := rs.standing.capacity(b.model)
	queued := rs.batches.queued(b.model, b)
	small := len(b.state) <= smallRows
	c.refused(queued, b.tokens, small, max(r.Err.RetryAfter, b.remote.RetryAfter), now)
	c.why = r.Err.Error()
	retry := *c
	if b.body != nil && b.id == "" && (queued > 0 || small) {
		b.problem, b.next = r.Err.Error(), c.retry
		return
	}
	rs.abandon(b, "refused: "+r.Err.Error(), false, func(b *batch) {
		*c = retry // abandon takes it for the end of a batch, but it has not made room
		rs.places.release(b)
	})
}

// refusedAgain pauses the lane when one batch after the other is refused: then it is no
// row's fault.
func (rs *refusals) refusedAgain(r *batchapi.Refusal, now time.Time) {
	if rs.inRow++; rs.inRow >= refusalsMost {
		rs.standing.pause.set(fmt.Errorf("%d batches in a row were refused, without a word about a line: %w", rs.inRow, r.Err), now, rs.cfg.ProbeInterval)
	}
}

// releaseBut is release for a batch with bad rows, which fail with the provider's message.
func (rs *refusals) releaseBut(bad []int, line batchapi.Line) func(*batch) {
	return func(b *batch) {
		for _, i := range bad {
			if rs.places.unanswered(b, i) {
				seq, own := b.rows.Seqs[i], line
				own.ID = customID(b.token, seq)
				b.set(i, rowElsewhere)
				rs.places.answers.failing = append(rs.places.answers.failing, failing{seq: seq, errand: &Errand{
					Line: &own, Key: keyText(b.rows.Hashes[i]), BatchID: b.id, Token: b.token, Tries: b.tries(i),
				}})
			}
		}
		rs.places.release(b)
	}
}

// releaseHalves has a batch gather again in two halves.
func (rs *refusals) releaseHalves(b *batch) {
	var seqs []uint64
	for i, seq := range b.rows.Seqs {
		if rs.places.unanswered(b, i) {
			b.set(i, rowElsewhere)
			seqs = append(seqs, seq)
		}
	}
	for _, part := range [][]uint64{seqs[:len(seqs)/2], seqs[len(seqs)/2:]} {
		h := &half{gather: newGather(b.model)}
		for _, seq := range part {
			h.pending.add(seq)
			h.left.add(seq)
		}
		if len(part) > 0 {
			rs.places.intake.halves = append(rs.places.intake.halves, h)
		}
	}
}

// remedy is what to do with a batch that was refused as a whole.
type remedy uint8

const (
	// remedyWait means that there is no room for it now. It goes again later.
	remedyWait remedy = iota + 1
	// remedyFail means that the named rows fail, and the others go again.
	remedyFail
	// remedySplit means that one of the rows must be bad. The batch goes again in halves,
	// so that a bad row in 1,000 is found after seven splits, when 10 rows or fewer go
	// live.
	remedySplit
	// remedyLive means that so few rows are left that each finds out for itself.
	remedyLive
)

// remedyFor decides on a refusal of a batch with so many rows. bad are the places of the
// rows that fail.
func remedyFor(r *batchapi.Refusal, rows int) (do remedy, bad []int) {
	if r.Capacity {
		return remedyWait, nil
	}
	for _, line := range r.Lines {
		if line >= 1 && line <= rows {
			bad = append(bad, line-1)
		}
	}
	slices.Sort(bad)
	switch bad = slices.Compact(bad); {
	case len(bad) > 0:
		return remedyFail, bad
	case rows <= fewRows:
		return remedyLive, nil
	}
	return remedySplit, nil
}

// lineOf is the line that a live call would have answered.
func lineOf(e *llm.Error) batchapi.Line {
	type text struct {
		Message string `json:"message"`
		Type    string `json:"type,omitempty"`
		Code    string `json:"code,omitempty"`
	}
	body, err := json.Marshal(struct {
		Error text `json:"error"`
	}{text{Message: e.Err.Error(), Type: e.Type, Code: e.Code}})
	if err != nil {
		body = nil
	}
	status := e.Status
	if status/100 != 4 {
		status = 400
	}
	return batchapi.Line{Kind: batchapi.Answered, Status: status, Body: body}
}
