package lane

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/batchapi"
)

// errSuspended says that too much time has passed since the ownership was proven, for
// instance because the process was suspended, so the batch is not created.
var errSuspended = errors.New("the process was held up before it could create the batch")

// haltedLook is the time between two looks whether batches may be submitted again.
const haltedLook = time.Second

// seal makes batches of the gathered rows.
func (s *submitter) seal(ctx context.Context, now time.Time) {
	if s.stopping {
		return
	}
	in := &s.places.intake
	for model, g := range in.gathers {
		switch {
		case len(g.rows) == 0:
			delete(in.gathers, model)
		case !s.full(g) && s.loop.wait(g.since.Add(s.cfg.Settings.Wait), now):
		case s.maySubmit(model, g.tokens, now):
			s.submit(ctx, g, now)
		}
	}
	h := in.half
	if h == nil || h.left.n > 0 && s.loop.wait(h.gather.last.Add(max(s.cfg.Settings.Wait, splitPatience)), now) {
		return
	}
	for _, seq := range h.left.take(h.left.n) { // they did not come: they are elsewhere, or will be
		s.places.await(h.gather.model, seq)
	}
	if len(h.gather.rows) == 0 {
		in.half = nil
	} else if s.maySubmit(h.gather.model, h.gather.tokens, now) {
		s.submit(ctx, h.gather, now)
	}
}

// full reports that no more rows of usual size fit, where the usual size is the mean of
// those that have gathered: with 10 rows of 990 kB together and a bound of 1,000 kB, the
// eleventh would need 99 kB, so the batch is full.
func (s *submitter) full(g *gather) bool {
	n := int64(len(g.rows))
	limit := s.standing.capacity(g.model).limit
	return g.full || len(g.rows) >= s.places.intake.most.rows ||
		g.bytes+g.bytes/n > s.places.intake.most.bytes ||
		limit > 0 && g.tokens+g.tokens/n > limit
}

// maySubmit reports whether there is capacity and money for a batch.
func (s *submitter) maySubmit(model string, tokens int64, now time.Time) bool {
	if s.batches.sealed() >= s.cfg.Settings.Open || s.loop.wait(s.standing.noBudget.until, now) {
		return false
	}
	c, queued := s.standing.capacity(model), s.batches.queued(model, nil)
	room := c.room(queued, now)
	if s.standing.denial.err != nil && (s.batches.unread() || s.loop.wait(s.standing.denial.until, now)) {
		return false
	}
	if room == 0 || queued > 0 && tokens > room {
		s.loop.wait(c.retry, now)
		return false
	}
	if s.cfg.Halted != nil && s.cfg.Halted() != nil {
		s.loop.wait(now.Add(haltedLook), now)
		return false
	}
	if s.cfg.Exhausted != nil {
		if err := s.cfg.Exhausted(); err != nil {
			s.holdBack(err, now)
			return false
		}
	}
	return true
}

// holdBack has no batch sealed for a while, since there is no money.
func (s *submitter) holdBack(err error, now time.Time) {
	until := now.Add(s.cfg.ProbeInterval)
	s.standing.noBudget = noBudget{err: err, until: until, stuck: s.batches.idle()}
	s.loop.wait(until, now)
}

// submit seals a batch of what fits of the rows that have gathered.
func (s *submitter) submit(ctx context.Context, g *gather, now time.Time) {
	body := g.sorted()
	if limit := s.standing.capacity(g.model).limit; limit > 0 && s.batches.queued(g.model, nil) == 0 {
		body = firstTokens(body, limit)
	}
	if s.standing.denial.err != nil {
		body = body[:1]
	}
	rows, fits := rowsOf(body), int(s.cfg.conn().MaxPayload())-recordSpare
	for len(body) > 1 && recordSize(&rows) > fits {
		body = body[:len(body)/2]
		rows = rowsOf(body)
	}
	r := &Record{
		Kind: RecordIntent, Token: newToken(), Time: now, InputCreated: s.of.InputCreated, Provider: s.cfg.Provider, Model: g.model,
		Account: s.cfg.Account(), Rows: &rows,
	}
	for _, row := range body {
		r.Bytes += int64(row.size)
		r.Tokens += row.tokens
		r.Cost += row.cost
	}
	if s.cfg.Reserve != nil {
		if err := s.cfg.Reserve(r.Token, r.Cost); err != nil {
			s.holdBack(err, now)
			return
		}
	}
	s.standing.noBudget.err = nil
	s.places.intake.seal(g, body, now)
	b := newBatch(r)
	b.body, b.busy = body, true
	s.batches.all = append(s.batches.all, b)
	s.loop.do(ctx, uploadTime+transfer(r.Bytes), func(context.Context) followUp {
		hash := sha256.New()
		_, _ = io.Copy(hash, linesOf(s.cfg.API, b.token, body).Open())
		return func(context.Context, time.Time) {
			r.InputSHA256 = hex.EncodeToString(hash.Sum(nil))
			b.sha = r.InputSHA256
			s.book.record(r, func(time.Time) { s.intended(b) })
		}
	})
}

// firstTokens returns the longest start of the rows with no more tokens than limit, at
// least one row: rows of 400, 500 and 300 tokens with a limit of 1,000 give the first
// two.
func firstTokens(body []*gathered, limit int64) []*gathered {
	var sum int64
	for i, row := range body {
		if sum += row.tokens; sum > limit && i > 0 {
			return body[:i]
		}
	}
	return body
}

// recordSize is the size of rows in a record, in bytes.
func recordSize(rows *Rows) int {
	data, err := json.Marshal(rows)
	if err != nil {
		return 0
	}
	return len(data)
}

// intended goes on after the intent is stored.
func (s *submitter) intended(b *batch) {
	b.busy, b.phase = false, phaseRecorded
	s.batches.supersede(b)
	s.reindex()
	s.events.changed(b, auditlog.BatchIntent, "")
}

// advanceNew takes the next step with a batch that is not created yet.
func (s *submitter) advanceNew(ctx context.Context, b *batch, now time.Time) {
	c, queued := s.standing.capacity(b.model), s.batches.queued(b.model, nil)
	room := c.room(queued, now)
	switch {
	case !b.wanted():
		s.abandon(b, "no row of it is wanted any more", false, s.places.release)
	case b.phase == phaseRecorded && !s.limits.Inline:
		s.upload(ctx, b)
	case room == 0, queued > 0 && b.tokens > room:
		s.loop.wait(c.retry, now)
	default:
		s.create(ctx, b)
	}
}

// upload stores the lines at the provider.
func (s *submitter) upload(ctx context.Context, b *batch) {
	lines := linesOf(s.cfg.API, b.token, b.body)
	s.call(ctx, b, uploadTime+transfer(b.bytes), func(ctx context.Context) followUp {
		s.lane.step("uploading")
		file, err := s.cfg.API.Upload(ctx, b.token, lines)
		s.lane.step("uploaded")
		return func(_ context.Context, now time.Time) {
			switch {
			case err != nil && meaningOf(uploading, err) == refused:
				s.standing.pause.clear()
				s.refusals.refused(b, &batchapi.Refusal{Err: asLLM(err)}, now)
			default:
				tried, absent := b.tried, b.noAPI
				if s.succeeded(uploading, b, err, now) {
					b.file, b.phase = file, phaseUploaded
					if absent > 0 { // says nothing about the creation, whose tries are counted
						b.tried, b.noAPI = tried, absent
					}
				}
			}
		}
	})
}

// create submits the batch, if it is still certain that this term owns the partition.
// [createTime] has the interleaving in which two owners would pay for the same rows.
func (s *submitter) create(ctx context.Context, b *batch) {
	job := batchapi.Job{Token: b.token, Model: b.model, File: b.file, Lines: linesOf(s.cfg.API, b.token, b.body)}
	bound := createTime(s.limits, b.bytes, s.cfg.Settings.AdoptWait)
	s.loop.vital++
	s.call(ctx, b, bound+callTime, func(ctx context.Context) followUp {
		at, err := s.book.prove(ctx)
		if err != nil {
			return func(_ context.Context, now time.Time) {
				s.loop.vital--
				if errors.Is(err, consumer.ErrFenced) {
					s.fence(err)
					return
				}
				b.fail(fmt.Errorf("see whether the partition is still ours: %w", err), now, 0)
			}
		}
		s.lane.step("creating")
		ctx, cancel := context.WithDeadline(ctx, at.Add(bound))
		defer cancel()
		if ctx.Err() != nil {
			return func(_ context.Context, now time.Time) {
				s.loop.vital--
				b.fail(errSuspended, now, 0)
			}
		}
		remote, err := s.cfg.API.Create(ctx, job)
		s.lane.step("created")
		return func(_ context.Context, now time.Time) {
			s.loop.vital--
			s.created(b, remote, err, now)
		}
	})
}

// created goes on after the provider was asked to create the batch.
func (s *submitter) created(b *batch, remote batchapi.Batch, err error, now time.Time) {
	m := meaningOf(creating, err)
	switch {
	case err == nil && remote.State == batchapi.Refused:
		s.standing.pause.clear()
		s.refusals.refused(b, remote.Refusal, now)
	case err == nil:
		s.standing.pause.clear()
		b.fine()
		s.found(b, remote, false, now)
	case uncertain(err):
		b.phase, b.problem = phaseLooking, err.Error()
		b.next = now.Add(s.lookEvery())
		b.lookUntil = now.Add(adoptTime(s.limits, b.bytes, s.cfg.Settings.AdoptWait))
	case m == crowded:
		s.standing.pause.clear()
		e := asLLM(err)
		s.refusals.refused(b, &batchapi.Refusal{Capacity: true, Err: e}, now)
	case m == refused:
		s.standing.pause.clear()
		s.refusals.refused(b, &batchapi.Refusal{Err: asLLM(err)}, now)
	default:
		s.succeeded(creating, b, err, now)
		if m == noAPI && b.file != "" { // it may also be the file that the provider does not know
			b.file, b.phase = "", phaseRecorded
		}
	}
}

// uncertain reports whether the batch may exist after an error of its creation. An error
// that did not come from the API says nothing, so the batch may exist.
func uncertain(err error) bool {
	_, verdict := errors.AsType[*llm.Error](err)
	return batchapi.Uncertain(err) || !verdict
}

// asLLM returns an error as the refusal that it is.
func asLLM(err error) *llm.Error {
	if e, ok := errors.AsType[*llm.Error](err); ok {
		return e
	}
	return &llm.Error{Class: llm.Permanent, Reason: llm.ReasonAPICallFailed, Err: err}
}
