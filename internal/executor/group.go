package executor

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer"
	"github.com/llm-stage/stage/internal/call"
	"github.com/llm-stage/stage/internal/hold"
	"github.com/llm-stage/stage/internal/tracing"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/pooled"
	"github.com/llm-stage/stage/pool"
)

// A stage that makes vectors (STAGE_TASK=embed) puts the texts of many rows into one call.
// Until then a row is a job of its own: it is rendered, looked up in journal and store, and
// may share the call of an equal text, as any row. Then it joins a group, and the group
// takes its place in the pool: one job, whose weight is that of all its texts, so that the
// law, the limits and the gates see one call. With its reply the group falls apart again,
// and each row is answered with its own vector.
//
// A call that is refused for one of its texts fails no other row. The group is split in
// halves, which are called by themselves, and so on until the text is found. For example, a
// bad text among 64 takes 13 calls: the first, and two for each of the sizes 32, 16, 8, 4,
// 2 and 1. Those that are refused cost nothing, and no text is answered twice.

// groupBytesMax bounds the bytes of a group's texts: a call is held in memory a few times.
const groupBytesMax = 4 << 20

// group is jobs that share one call. Its jobs are in the order in which they came. One
// goroutine at a time works on it, as on a job.
type group struct {
	groupKey
	most   limits
	jobs   []*job
	weight int64 // estimated tokens of the texts
	bytes  int   // of the texts
	since  time.Time
	// attempts is how many attempts the group may have. With 0 it may have
	// STAGE_RETRY_MAX_ATTEMPTS of them.
	attempts int

	// These are the request of the next call, for target. prepared is nil until it is made.
	target   int
	request  llm.Request
	prepared *llm.Prepared
}

// groupKey is what jobs of a group have in common. Rows of one partition are lost and
// handed over together.
type groupKey struct {
	partition int
	model     string // that the rows name, or empty for the target's own
	extra     string // members that the rows add to the request
}

// add adds a job, unless the group is full.
func (g *group) add(j *job) bool {
	n, size := j.Weight(0), len(j.request.Prompt)
	full := len(g.jobs) >= g.most.rows || g.bytes+size > groupBytesMax || g.most.tokens > 0 && g.weight+n > g.most.tokens
	if len(g.jobs) > 0 && full {
		return false
	}
	g.jobs, g.weight, g.bytes = append(g.jobs, j), g.weight+n, g.bytes+size
	return true
}

// wanted reports whether the rows are all wanted.
func (g *group) wanted() bool {
	return !slices.ContainsFunc(g.jobs, func(j *job) bool { return !j.row.Wanted() })
}

// has reports whether a job of the group is for the row, or for an element of it.
func (g *group) has(row *consumer.Row) bool {
	return slices.ContainsFunc(g.jobs, func(j *job) bool { return j.row == row })
}

// rows counts the rows that the jobs are for.
func (g *group) rows() int {
	rows := make(map[*consumer.Row]bool, len(g.jobs))
	for _, j := range g.jobs {
		rows[j.row] = true
	}
	return len(rows)
}

// texts returns the texts that a provider's message about the call may quote.
func (g *group) texts() (texts []string) {
	for _, j := range g.jobs {
		texts = append(texts, j.texts()...)
	}
	return texts
}

// limits bound the rows and the tokens of one call. With 0 tokens these are not bounded.
type limits struct {
	rows   int
	tokens int64
}

// limits returns the limits of a call that hold with all providers that may be called:
// the first, whose model a row may name, and the fallbacks. A call also has no more tokens
// than STAGE_LLM_TPM allows in a minute: where that is low, a call of the size that a
// provider takes might have several times as many.
func (s *gathering) limits(model string) limits {
	most := limits{rows: s.e.cfg.Embed.Rows, tokens: int64(s.e.cfg.LLM.TPM)}
	for i := range s.e.caller.Len() {
		t := s.e.caller.At(i)
		if i > 0 || model == "" {
			model = t.Model()
		}
		p, _ := llm.LookupProvider(t.Provider())
		texts, tokens := p.EmbedLimits(model)
		if texts > 0 {
			most.rows = min(most.rows, texts)
		}
		if tokens > 0 && (most.tokens == 0 || tokens < most.tokens) {
			most.tokens = tokens
		}
	}
	return most
}

// gathering collects jobs into groups. Without it every job makes a call of its own. It is
// safe for concurrent use.
type gathering struct {
	e    *Executor
	rows int           // of a full call to the configured models
	wait time.Duration // of the first job of a group for others

	mu       sync.Mutex
	open     []*group    // that take more jobs, in the order in which they began
	gathered int         // jobs in them
	out      int         // groups that the pool has
	alarm    *time.Timer // looks at the first open group when it has waited long enough; nil before the first
}

func newGathering(e *Executor) *gathering {
	if !e.cfg.Embeds() {
		return nil
	}
	s := &gathering{e: e, wait: e.cfg.Embed.Wait}
	s.rows = s.limits("").rows
	return s
}

// add takes a job into a group. A group that is full goes to the pool.
func (s *gathering) add(j *job) {
	key := groupKey{partition: j.row.Partition, model: j.model, extra: string(j.request.ExtraBody)}
	s.mu.Lock()
	i := slices.IndexFunc(s.open, func(g *group) bool { return g.groupKey == key })
	var full []*group
	if i >= 0 && !s.open[i].add(j) {
		full, i = append(full, s.close(i)), -1
	}
	if i < 0 {
		g := &group{groupKey: key, most: s.limits(j.model), since: time.Now()}
		g.add(j)
		i, s.open = len(s.open), append(s.open, g)
	}
	s.gathered++
	if len(s.open[i].jobs) == s.open[i].most.rows {
		full = append(full, s.close(i))
	}
	s.mu.Unlock()
	s.submit(full)
}

// close takes a group out of the open ones. The lock is held.
func (s *gathering) close(i int) *group {
	g := s.open[i]
	s.open = slices.Delete(s.open, i, i+1)
	s.gathered -= len(g.jobs)
	s.out++
	return g
}

// flush sends the groups that have waited long enough, and the first one at once where no
// group is on its way. The alarm looks again when the next one has waited long enough.
func (s *gathering) flush() {
	if s == nil {
		return
	}
	s.mu.Lock()
	var due []*group
	for len(s.open) > 0 {
		left := s.wait - time.Since(s.open[0].since)
		if s.out > 0 && left > 0 {
			if s.alarm != nil {
				s.alarm.Stop()
			}
			s.alarm = time.AfterFunc(left, s.e.backlog.wake)
			break
		}
		due = append(due, s.close(0))
	}
	s.mu.Unlock()
	s.submit(due)
}

// submit hands groups to the pool.
func (s *gathering) submit(groups []*group) {
	for _, g := range groups {
		j := &job{group: g}
		if err := s.e.Pool.Add(j, s.e.done); err != nil { // it has stopped
			s.e.done(result{In: j, Class: pool.Cancelled})
		}
	}
}

// room returns how many more jobs may be gathered while the pool has room for so many
// calls: as many as fill them, for each group that is open. For example, with 64 rows a
// call and room for one, the rows of eight partitions are taken until one of their eight
// groups is full.
func (s *gathering) room(calls int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return calls*s.rows*max(1, len(s.open)) - s.gathered
}

// any reports whether jobs wait in open groups.
func (s *gathering) any() bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gathered > 0
}

// handBack hands back the jobs of open groups that match.
func (s *gathering) handBack(match func(*job) bool) {
	if s == nil {
		return
	}
	var taken []*job
	s.mu.Lock()
	for _, g := range s.open {
		all := g.jobs
		g.jobs, g.weight, g.bytes = nil, 0, 0
		for _, j := range all {
			if match(j) { // asked once for each, since the answer may change at any time
				taken = append(taken, j)
			} else {
				g.add(j)
			}
		}
	}
	s.open = slices.DeleteFunc(s.open, func(g *group) bool { return len(g.jobs) == 0 })
	s.gathered -= len(taken)
	s.mu.Unlock()
	for _, j := range taken {
		s.e.done(result{In: j, Class: pool.Cancelled})
	}
}

// attempt makes one call for all jobs of a group, on a worker of the pool.
func (s *gathering) attempt(ctx context.Context, g *group, a pool.Attempt) pool.Verdict {
	e := s.e
	if !g.wanted() {
		return pool.Verdict{Class: pool.Cancelled, Err: errNotWanted, Unsent: true}
	}
	if err := e.caller.Exhausted(); err != nil {
		return pool.Verdict{Class: pool.Fatal, Err: err, Unsent: true}
	}
	e.reloadKey(a)
	if err := s.address(g, a.Server); err != nil {
		failure := call.AsError(err)
		return s.failed(g, a, failure, pooled.Judge(failure, &llm.Exchange{}))
	}
	first := g.jobs[0]
	to := e.caller.At(g.target)
	for _, j := range g.jobs {
		e.log.started(j, a)
	}
	span := tracing.FromRow(first.row).Call(ctx, to.Provider(), g.prepared, &g.request, a)
	step := e.steps.enter(hold.Call, to.Provider(), time.Now(), g.jobs...)
	place := e.caller.Began(e.ongoing(first, a, to.Provider(), g.prepared.Model))
	x, err := to.Do(ctx, g.prepared)
	e.caller.Ended(place)
	e.steps.leave(step)
	span.ExchangeEnded()
	outcome := e.caller.Outcome(g.target, g.prepared, a, x, err)
	s.record(g, a, outcome)
	answers := s.answers(g, x.Reply, outcome.Err)
	span.End(outcome.Event, outcome.Exchange, outcome.Err)
	if outcome.Err != nil {
		return s.failed(g, a, outcome.Err, outcome.Verdict())
	}
	for i, j := range g.jobs {
		e.Sharing.reply(j, answers[i])
	}
	return outcome.Verdict()
}

// address makes the request of a group to a target.
func (s *gathering) address(g *group, to int) (err error) {
	if g.prepared != nil && g.target == to {
		return nil
	}
	first := g.jobs[0]
	g.request, g.target = first.request, to
	g.request.Prompt, g.request.Inputs = "", make([]string, len(g.jobs))
	for i, j := range g.jobs {
		g.request.Inputs[i] = j.request.Prompt
	}
	g.request.Model = s.e.caller.At(to).Model()
	if to == 0 && g.model != "" {
		g.request.Model = g.model
	}
	g.prepared, err = s.e.caller.At(to).Prepare(&g.request)
	return err
}

// weights returns the bytes of each text, by which the tokens of the call are divided.
func weights(jobs []*job) []int64 {
	weights := make([]int64, len(jobs))
	for i, j := range jobs {
		weights[i] = int64(len(j.request.Prompt))
	}
	return weights
}

// answers makes the results of a reply, on the worker, where many can do so at once. After
// an error there are none.
func (s *gathering) answers(g *group, reply *llm.Reply, failure *llm.Error) []*answer {
	if failure != nil {
		return nil
	}
	usages := splitUsage(reply.Usage, weights(g.jobs))
	answers := make([]*answer, len(g.jobs))
	for i, j := range g.jobs {
		a := &answer{Text: reply.Vectors[i], Model: reply.Model, Usage: usages[i]}
		if a.Model == "" {
			a.Model = g.prepared.Model
		}
		j.form = s.e.prompt.form(a)
		j.body, j.tooLarge, _ = s.e.prompt.result(j, a) // it could fail only by a schema, which vectors have not
		answers[i] = a
	}
	return answers
}

// splitUsage divides the usage of a call by weights.
func splitUsage(u *llm.Usage, weights []int64) []*llm.Usage {
	parts := make([]*llm.Usage, len(weights))
	if u == nil {
		return parts
	}
	for i, tokens := range auditlog.Split(u.PromptTokens, weights) {
		parts[i] = &llm.Usage{PromptTokens: tokens, TotalTokens: tokens}
		if u.Cost != nil {
			parts[i].Cost = new(*u.Cost * auditlog.Share(tokens, u.PromptTokens, len(weights)))
		}
	}
	return parts
}

// record adds the call to the audit, the cost ledger, the sums of the rows and the log.
func (s *gathering) record(g *group, a pool.Attempt, outcome call.Outcome) {
	e, event := s.e, outcome.Event
	place := e.steps.enter(hold.Storing, storingCall, event.Time, g.jobs...)
	hash := s.recordCall(g.jobs, event)
	e.steps.leave(place)
	e.caller.Count(outcome)
	for i, j := range g.jobs {
		j.calls++
		j.hash.add(hash)
		j.usage.Add(event.UsageOf(i), event.Unpriced())
	}
	e.caller.NoteRefusal(outcome, g.texts)
	if e.Show != nil {
		e.Show(event.CallID, e.cfg.Secrets().Redact(g.jobs[0].row.Body)) // a row may quote a secret
	}
	e.log.call(g.jobs[0], a, event, outcome.Err, g.texts)
}

// recordCall adds a call for these jobs to the audit, and returns the hash of its event.
func (s *gathering) recordCall(jobs []*job, event *auditlog.Call) [sha256.Size]byte {
	rows := make([]*consumer.Row, len(jobs))
	var items []int
	for i, j := range jobs {
		rows[i] = j.row
		if j.fan != nil {
			items = append(items, j.index)
		}
	}
	if event.Usage != nil {
		event.RowTokens = auditlog.Split(event.Usage.PromptTokens, weights(jobs))
	}
	return consumer.RecordCallOf(rows, items, event)
}

// failed adds a failed attempt to those that error results list. Only a text that was
// alone in its call can show that all rows fail in the same way: of several, another one
// may be the reason.
func (s *gathering) failed(g *group, a pool.Attempt, failure *llm.Error, verdict pool.Verdict) pool.Verdict {
	if len(g.jobs) == 1 {
		g.jobs[0].prepared = g.prepared
		return s.e.failed(g.jobs[0], a, failure, verdict)
	}
	s.e.logPanic(g.jobs[0], failure)
	if rows := g.rows(); rows > 1 && (failure.Status != 0 || failure.Reason == llm.ReasonInternalError) {
		failure = sharedError(failure, rows)
		if pauses := verdict.Class == pool.Fatal && a.Server == 0 && s.e.cfg.Rows.OnFatal != "fail"; !pauses {
			verdict.Err = failure // which a row may fail with
		}
	}
	for _, j := range g.jobs {
		s.e.failed(j, a, failure, verdict)
	}
	verdict.Alike = ""
	return verdict
}

// sharedError is the error of a call for several rows as the results and events of these
// rows have it. It has no words of the provider, which may quote the text of another row.
// For example, "openai: 400: a call for 8 rows was refused; the provider's words are in
// the audit".
func sharedError(failure *llm.Error, rows int) *llm.Error {
	how := "was refused"
	if failure.Class == llm.Transient {
		how = "failed"
	}
	shared := *failure
	shared.Code, shared.Type, shared.Facts = "", "", nil
	if failure.Reason == llm.ReasonAPICallFailed {
		shared.Facts = map[string]any{"status_code": failure.Status, "provider_code": nil}
	}
	shared.Err = fmt.Errorf("a call for %d rows %s; the provider's words are in the audit", rows, how)
	if failure.Reason == llm.ReasonInternalError {
		shared.Err = fmt.Errorf("a call for %d rows failed by a bug of the stage; the audit and the log have its error", rows)
	}
	return &shared
}

// done takes the outcome of a group, see [Executor.done], and passes it on to its jobs.
func (s *gathering) done(r result) {
	g := r.In.group
	s.mu.Lock()
	s.out--
	s.mu.Unlock()
	if len(g.jobs) > 1 && mayBeOneText(r) {
		s.split(g, r)
		return
	}
	for _, j := range g.jobs {
		own := r
		own.In = j
		s.e.done(own)
	}
	s.e.backlog.wake() // groups may wait for the last one to end
}

// mayBeOneText reports whether a call may have failed for one of its texts: the provider
// has refused it, or has failed at it in all attempts while it answered others.
func mayBeOneText(r result) bool {
	if r.Class == pool.Cancelled || r.Err == nil || errors.Is(r.Err, pool.ErrRowTimeout) || errors.Is(r.Err, pool.ErrOutage) {
		return false
	}
	failure, ok := errors.AsType[*llm.Error](r.Err)
	return ok && (failure.Class == llm.Permanent || failure.Class == llm.Transient)
}

// split has the halves of a group called by themselves. The group has made all attempts
// that its error allows, so a half makes one, and is split in turn where that fails, too.
// A text that is alone makes all attempts again, because another text of the group may have
// been the reason why the earlier ones failed.
func (s *gathering) split(g *group, r result) {
	half := len(g.jobs) / 2
	halves := make([]*group, 2)
	for i, jobs := range [][]*job{g.jobs[:half], g.jobs[half:]} {
		halves[i] = &group{groupKey: g.groupKey, since: g.since}
		if len(jobs) > 1 {
			halves[i].attempts = 1
		}
		for _, j := range jobs {
			j.spent = j.after(&r)
			halves[i].jobs = append(halves[i].jobs, j)
			halves[i].weight += j.Weight(0)
		}
	}
	s.mu.Lock()
	s.out += len(halves)
	s.mu.Unlock()
	s.submit(halves)
}
