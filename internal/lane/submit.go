package lane

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/batchapi"
)

// errSuspended: so much time has passed since the ownership was proven that the batch is not created.
var errSuspended = errors.New("the process was held up before it could create the batch")

// open counts the batches that are not ended, those that still gather included.
func (t *term) open() int {
	n := len(t.gathers) + t.sealed()
	if t.split != nil {
		n++
	}
	return n
}

// sealed counts the batches that are not ended, from their intents on.
func (t *term) sealed() (n int) {
	for _, b := range t.batches {
		if !b.ended() {
			n++
		}
	}
	return n
}

// queued sums the tokens of a model's batches that are in the provider's queue.
func (t *term) queued(model string) (sum int64) {
	for _, b := range t.batches {
		if b.model == model && (b.stage == stageLooking || b.stage == stageFound || b.stage == stageRunning) {
			sum += b.tokens
		}
	}
	return sum
}

func (t *term) capacityOf(model string) *capacity {
	c := t.room[model]
	if c == nil {
		c = new(capacity)
		t.room[model] = c
	}
	return c
}

// seal makes batches of what has gathered.
func (t *term) seal(ctx context.Context, now time.Time) {
	if t.stopping {
		return
	}
	for model, g := range t.gathers {
		switch {
		case len(g.rows) == 0:
			delete(t.gathers, model)
		case !t.full(g) && t.wait(g.since.Add(t.cfg.Settings.Wait), now):
		case t.maySubmit(model, g.tokens, now):
			t.submit(ctx, g, now)
		}
	}
	s := t.split
	if s == nil || s.left.n > 0 && t.wait(s.gather.last.Add(max(t.cfg.Settings.Wait, splitPatience)), now) {
		return
	}
	for _, seq := range s.left.take(s.left.n) { // they did not come: they are elsewhere, or will be
		t.await(s.gather.model, seq)
	}
	if len(s.gather.rows) == 0 {
		t.split = nil
	} else if t.maySubmit(s.gather.model, s.gather.tokens, now) {
		t.submit(ctx, s.gather, now)
	}
}

// haltedLook is the time between two looks whether batches may be submitted again.
const haltedLook = time.Second

// full reports that no more rows of usual size fit.
func (t *term) full(g *gather) bool {
	n := int64(len(g.rows))
	limit := t.capacityOf(g.model).limit
	return g.full || len(g.rows) >= t.most.rows || g.bytes+g.bytes/n > t.most.bytes || limit > 0 && g.tokens+g.tokens/n > limit
}

// maySubmit reports whether there is capacity and money for a batch.
func (t *term) maySubmit(model string, tokens int64, now time.Time) bool {
	if t.sealed() >= t.cfg.Settings.Open || t.wait(t.held, now) {
		return false
	}
	c, queued := t.capacityOf(model), t.queued(model)
	room := c.room(queued, now)
	if t.denial.err != nil && (t.unread() || t.wait(t.denial.until, now)) {
		return false
	}
	if room == 0 || queued > 0 && tokens > room {
		t.wait(c.retry, now)
		return false
	}
	if t.cfg.Halted != nil && t.cfg.Halted() != nil {
		t.wait(now.Add(haltedLook), now)
		return false
	}
	if t.cfg.Exhausted != nil {
		if err := t.cfg.Exhausted(); err != nil {
			t.hold(err, now)
			return false
		}
	}
	return true
}

func (t *term) hold(err error, now time.Time) {
	t.held, t.heldBy, t.heldIdle = now.Add(t.cfg.ProbeInterval), err, t.idle()
	t.wait(t.held, now)
}

// newToken returns the name of a batch, of [tokenLen] lower-case letters and digits.
func newToken() string { return strings.ToLower(rand.Text()[:tokenLen]) }

// submit seals a batch of what fits of the rows that have gathered.
func (t *term) submit(ctx context.Context, g *gather, now time.Time) {
	body := g.sorted()
	if limit := t.capacityOf(g.model).limit; limit > 0 && t.queued(g.model) == 0 {
		body = firstTokens(body, limit)
	}
	if t.denial.err != nil {
		body = body[:1]
	}
	rows, fits := rowsOf(body), int(t.cfg.conn().MaxPayload())-recordSpare
	for len(body) > 1 && recordSize(&rows) > fits {
		body = body[:len(body)/2]
		rows = rowsOf(body)
	}
	r := &Record{
		Kind: RecordIntent, Token: newToken(), Time: now, InputCreated: t.of.InputCreated, Provider: t.cfg.Provider, Model: g.model,
		Account: t.cfg.Account(), Rows: &rows,
	}
	for _, row := range body {
		r.Bytes += int64(row.size)
		r.Tokens += row.tokens
		r.Cost += row.cost
	}
	if t.cfg.Reserve != nil {
		if err := t.cfg.Reserve(r.Token, r.Cost); err != nil {
			t.hold(err, now)
			return
		}
	}
	t.heldBy = nil
	for _, row := range body {
		g.remove(row.seq)
	}
	g.full, g.since = false, now
	if len(g.rows) == 0 && t.gathers[g.model] == g {
		delete(t.gathers, g.model)
	}
	if t.split != nil && t.split.gather == g && len(g.rows) == 0 && t.split.left.n == 0 {
		t.split = nil
	}
	b := newBatch(r)
	b.body, b.busy = body, true
	t.batches = append(t.batches, b)
	t.do(ctx, uploadTime+transfer(r.Bytes), func(context.Context) func(context.Context, time.Time) {
		hash := sha256.New()
		_, _ = io.Copy(hash, linesOf(t.cfg.API, b.token, body).Open())
		return func(context.Context, time.Time) {
			r.InputSHA256 = hex.EncodeToString(hash.Sum(nil))
			b.sha = r.InputSHA256
			t.record(r, func(time.Time) { t.intended(b) })
		}
	})
}

// firstTokens returns as many of the rows as have no more tokens than limit, at least one.
func firstTokens(body []*gathered, limit int64) []*gathered {
	var sum int64
	for i, row := range body {
		if sum += row.tokens; sum > limit && i > 0 {
			return body[:i]
		}
	}
	return body
}

func recordSize(rows *Rows) int {
	data, err := json.Marshal(rows)
	if err != nil {
		return 0
	}
	return len(data)
}

// intentOf is the record of a batch's intent, once more.
func (t *term) intentOf(b *batch) *Record {
	return &Record{
		Kind: RecordIntent, Token: b.token, Time: b.intent, InputCreated: t.of.InputCreated, Provider: t.cfg.Provider, Model: b.model,
		Account: b.account, Rows: &b.rows, Bytes: b.bytes, InputSHA256: b.sha, Tokens: b.tokens, Cost: b.cost,
	}
}

// intended goes on after the intent is stored.
func (t *term) intended(b *batch) {
	b.busy, b.stage = false, stageRecorded
	for _, older := range t.batches {
		if older == b {
			break
		}
		moved(older, b)
	}
	t.reindex()
	t.audit(b, t.event(b, auditlog.BatchIntent, ""))
}

// upload stores the lines at the provider.
func (t *term) upload(ctx context.Context, b *batch) {
	lines := linesOf(t.cfg.API, b.token, b.body)
	t.call(ctx, b, uploadTime+transfer(b.bytes), func(ctx context.Context) func(context.Context, time.Time) {
		t.l.step("uploading")
		file, err := t.cfg.API.Upload(ctx, b.token, lines)
		t.l.step("uploaded")
		return func(ctx context.Context, now time.Time) {
			switch {
			case err != nil && meaningOf(uploading, err) == refused:
				t.pause.clear()
				t.refused(ctx, b, &batchapi.Refusal{Err: asLLM(err)}, now)
			default:
				tried, absent := b.tried, b.noAPI
				if t.succeeded(uploading, b, err, now) {
					b.file, b.stage = file, stageUploaded
					if absent > 0 { // says nothing about the creation, whose tries are counted
						b.tried, b.noAPI = tried, absent
					}
				}
			}
		}
	})
}

// create submits the batch, if it is still certain that this term owns the partition, see [createTime].
func (t *term) create(ctx context.Context, b *batch) {
	job := batchapi.Job{Token: b.token, Model: b.model, File: b.file, Lines: linesOf(t.cfg.API, b.token, b.body)}
	bound := createTime(t.limits, b.bytes, t.cfg.Settings.AdoptWait)
	t.vital++
	t.call(ctx, b, bound+callTime, func(ctx context.Context) func(context.Context, time.Time) {
		at, err := t.prove(ctx)
		if err != nil {
			return func(_ context.Context, now time.Time) {
				t.vital--
				if errors.Is(err, consumer.ErrFenced) {
					t.fence(err)
					return
				}
				b.fail(fmt.Errorf("see whether the partition is still ours: %w", err), now, 0)
			}
		}
		t.l.step("creating")
		ctx, cancel := context.WithDeadline(ctx, at.Add(bound))
		defer cancel()
		if ctx.Err() != nil {
			return func(_ context.Context, now time.Time) {
				t.vital--
				b.fail(errSuspended, now, 0)
			}
		}
		remote, err := t.cfg.API.Create(ctx, job)
		t.l.step("created")
		return func(ctx context.Context, now time.Time) {
			t.vital--
			t.created(ctx, b, remote, err, now)
		}
	})
}

// created goes on after the provider was asked to create the batch.
func (t *term) created(ctx context.Context, b *batch, remote batchapi.Batch, err error, now time.Time) {
	m := meaningOf(creating, err)
	switch {
	case err == nil && remote.State == batchapi.Refused:
		t.pause.clear()
		t.refused(ctx, b, remote.Refusal, now)
	case err == nil:
		t.pause.clear()
		b.fine()
		t.found(b, remote, false, now)
	case uncertain(err):
		b.stage, b.problem = stageLooking, err.Error()
		b.next = now.Add(t.lookEvery())
		b.lookUntil = now.Add(adoptTime(t.limits, b.bytes, t.cfg.Settings.AdoptWait))
	case m == crowded:
		t.pause.clear()
		e := asLLM(err)
		t.refused(ctx, b, &batchapi.Refusal{Capacity: true, Err: e}, now)
	case m == refused:
		t.pause.clear()
		t.refused(ctx, b, &batchapi.Refusal{Err: asLLM(err)}, now)
	default:
		t.succeeded(creating, b, err, now)
		if m == noAPI && b.file != "" { // it may also be the file that the provider does not know
			b.file, b.stage = "", stageRecorded
		}
	}
}

// uncertain reports whether the batch may exist after an error of its creation. What is no verdict of the API is none
// at all.
func uncertain(err error) bool {
	_, verdict := errors.AsType[*llm.Error](err)
	return batchapi.Uncertain(err) || !verdict
}

func asLLM(err error) *llm.Error {
	if e, ok := errors.AsType[*llm.Error](err); ok {
		return e
	}
	return &llm.Error{Class: llm.Permanent, Reason: llm.ReasonAPICallFailed, Err: err}
}

// found records that the provider has the batch.
func (t *term) found(b *batch, remote batchapi.Batch, adopted bool, now time.Time) {
	t.freeBody(b)
	b.fine()
	b.remote, b.id, b.adopted, b.submitted, b.stage = remote, remote.ID, adopted, now, stageFound
	b.tentative = adopted && !t.limits.Tokens && b.tentative
	b.missing = time.Time{}
	t.capacityOf(b.model).accepted(t.queued(b.model), now)
	t.vital++
	r := &Record{Kind: RecordSubmitted, Token: b.token, Time: now, BatchID: b.id, Adopted: adopted, Tentative: b.tentative}
	t.record(r, func(now time.Time) {
		t.vital--
		b.stage, b.next = stageRunning, now.Add(t.pollEvery(b))
		phase := auditlog.BatchSubmitted
		if adopted {
			phase = auditlog.BatchAdopted
		}
		t.audit(b, t.event(b, phase, ""))
	})
}
