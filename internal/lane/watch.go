package lane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/batchapi"
)

const (
	// unknownFor is for how long a provider may say that it does not know a batch until it is looked for again.
	unknownFor = 10 * time.Minute
	// refusalsMost is how many batches in a row may be refused without a line that is named, until that is taken for the
	// account's fault rather than a row's.
	refusalsMost = 5
)

// advance takes the next step with a batch, if it is time.
func (t *term) advance(ctx context.Context, b *batch, now time.Time) {
	if t.takenByOther(b) {
		t.notOurs(b, now)
	}
	if b.stage == stageOver || b.stage == stageSettling {
		t.judge(b, now)
	}
	if b.stage == stageSettling && b.isSettled() && b.untold == 0 {
		b.stage = stageDone
		t.record(&Record{Kind: RecordDone, Token: b.token}, func(time.Time) { t.close(b) })
		return
	}
	if t.stopping {
		t.cancelOnStop(ctx, b)
		return
	}
	if b.futile() && !b.cancelled && t.mayCall(now) {
		t.cancel(ctx, b)
		return
	}
	if b.stage > stageRunning || t.wait(b.next, now) || !t.mayCall(now) {
		return
	}
	switch b.stage {
	case stageRecorded, stageUploaded:
		t.advanceNew(ctx, b, now)
	case stageLooking:
		t.look(ctx, b, now)
	case stageRunning:
		t.poll(ctx, b, now)
	case stageSealed, stageFound, stageOver, stageSettling, stageAbandoned, stageDone, stageClosed:
	}
}

// advanceNew takes the next step with a batch that is not created yet.
func (t *term) advanceNew(ctx context.Context, b *batch, now time.Time) {
	c, queued := t.capacityOf(b.model), t.queued(b.model)
	room := c.room(queued, now)
	switch {
	case !b.wanted():
		t.abandon(b, "no row of it is wanted any more", false, t.release)
	case b.stage == stageRecorded && !t.limits.Inline:
		t.upload(ctx, b)
	case room == 0, queued > 0 && b.tokens > room:
		t.wait(c.retry, now)
	default:
		t.create(ctx, b)
	}
}

func (t *term) cancelOnStop(ctx context.Context, b *batch) {
	if b.stage == stageRunning && b.ours() && !b.cancelled && t.cfg.CancelOnStop != nil && t.cfg.CancelOnStop() {
		t.cancel(ctx, b)
	}
}

// cancel asks the provider to end a batch. What it has answered by then is read.
func (t *term) cancel(ctx context.Context, b *batch) {
	b.cancelled = true
	t.vital++
	t.call(ctx, b, callTime, func(ctx context.Context) func(context.Context, time.Time) {
		err := t.cfg.API.Cancel(ctx, b.id)
		return func(_ context.Context, now time.Time) {
			t.vital--
			if t.succeeded(cancelling, b, err, now) {
				b.next = now.Add(t.pollEvery(b))
			}
		}
	})
}

// pollEvery is the time until the next look at a batch.
func (t *term) pollEvery(b *batch) time.Duration {
	every := t.cfg.Settings.Poll
	if b.remote.RetryAfter > 0 {
		every = b.remote.RetryAfter
	}
	if t.closed && b.futile() {
		every = max(closePoll, b.remote.RetryAfter)
	}
	every = max(every, t.limits.Poll)
	return every + rand.N(every/10+1)
}

// poll looks at a batch that the provider works on.
func (t *term) poll(ctx context.Context, b *batch, now time.Time) {
	if b.account != t.cfg.Account() {
		t.reloadFor(ctx, b, now)
		return
	}
	t.call(ctx, b, callTime, func(ctx context.Context) func(context.Context, time.Time) {
		remote, err := t.cfg.API.Get(ctx, b.id)
		t.l.step("polled")
		return func(ctx context.Context, now time.Time) {
			if err != nil && meaningOf(polling, err) == unknown {
				t.unknown(b, err, now)
				return
			}
			if !t.succeeded(polling, b, err, now) {
				b.next = maxTime(b.next, now.Add(t.limits.Poll))
				return
			}
			b.missing = time.Time{}
			t.polled(ctx, b, remote, now)
		}
	})
}

func maxTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

func (t *term) polled(ctx context.Context, b *batch, remote batchapi.Batch, now time.Time) {
	b.remote = remote
	switch {
	case remote.State == batchapi.Refused:
		t.refused(ctx, b, remote.Refusal, now)
	case remote.State.Over():
		b.stage, b.overSince = stageOver, now
		t.capacityOf(b.model).ended(b.tokens)
		t.refusals = 0
	default:
		if remote.Answered > 0 {
			t.refusals = 0
		}
		b.next = now.Add(t.pollEvery(b))
	}
}

// unknown goes on where the provider does not know a batch that it has created. Right after that it proves nothing.
func (t *term) unknown(b *batch, err error, now time.Time) {
	t.pause.clear()
	if b.missing.IsZero() {
		b.missing = now
	}
	if t.cfg.Forgets {
		b.stage, b.tried, b.lookUntil = stageLooking, 0, now
		return
	}
	b.fail(fmt.Errorf("look at batch %s: %w", b.id, err), now, t.limits.Poll)
	switch long := now.Sub(b.missing) > max(unknownFor, 2*t.cfg.Settings.AdoptWait); {
	case !long:
	case b.tentative: // it was another's, who has deleted it
		t.notOurs(b, now)
	default:
		b.stage, b.tried = stageLooking, 0
		b.lookUntil = now.Add(adoptTime(t.limits, b.bytes, t.cfg.Settings.AdoptWait))
	}
}

// refused goes on with a batch that the provider has refused as a whole.
func (t *term) refused(_ context.Context, b *batch, r *batchapi.Refusal, now time.Time) {
	if r == nil {
		r = new(batchapi.Refusal)
	}
	if r.Err == nil {
		r.Err = &llm.Error{Class: llm.Permanent, Reason: llm.ReasonAPICallFailed, Provider: t.cfg.Provider, Err: errors.New("the provider gave no reason")}
	}
	if r.Err.Class == llm.Fatal {
		t.pause.set(r.Err, now, t.cfg.ProbeInterval)
		if b.id != "" || b.body == nil {
			t.abandon(b, "refused: "+r.Err.Error(), false, t.release)
		}
		return
	}
	why := "refused: " + r.Err.Error()
	do, bad := remedyFor(r, len(b.state))
	if do == remedySplit && t.cfg.Collect {
		do = remedyLive
	}
	switch do {
	case remedyWait:
		t.refusedForNow(b, r, now)
	case remedyFail:
		t.abandon(b, why, false, t.releaseBut(bad, t.lineOf(r.Err)))
	case remedyLive:
		t.refusedAgain(r, now)
		t.abandon(b, why, false, t.releaseLive)
	case remedySplit:
		t.refusedAgain(r, now)
		t.abandon(b, why, false, t.releaseHalves)
	}
}

// refusedForNow has a batch wait for room in the provider's queue, where that can help.
func (t *term) refusedForNow(b *batch, r *batchapi.Refusal, now time.Time) {
	c := t.capacityOf(b.model)
	stage := b.stage
	b.stage = stageSealed // not in the queue itself
	queued := t.queued(b.model)
	b.stage = stage
	small := len(b.state) <= smallRows
	c.refused(queued, b.tokens, small, max(r.Err.RetryAfter, b.remote.RetryAfter), now)
	retry := *c
	if b.body != nil && b.id == "" && (queued > 0 || small) {
		b.problem, b.next = r.Err.Error(), c.retry
		return
	}
	t.abandon(b, "refused: "+r.Err.Error(), false, func(b *batch) {
		*c = retry // it has not made room
		t.release(b)
	})
}

// refusedAgain pauses the lane when one batch after the other is refused: then it is no row's fault.
func (t *term) refusedAgain(r *batchapi.Refusal, now time.Time) {
	if t.refusals++; t.refusals >= refusalsMost {
		t.pause.set(fmt.Errorf("%d batches in a row were refused, without a word about a line: %w", t.refusals, r.Err), now, t.cfg.ProbeInterval)
	}
}

// lineOf is the line that a live call would have answered.
func (t *term) lineOf(e *llm.Error) batchapi.Line {
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
