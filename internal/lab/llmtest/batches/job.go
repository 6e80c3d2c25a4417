package batches

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"time"
)

// phase of a batch. The dialects have their own words for it.
type phase string

const (
	validating phase = "validating"
	running    phase = "in_progress"
	finalizing phase = "finalizing"
	cancelling phase = "cancelling"
	completed  phase = "completed"
	failed     phase = "failed"
	expired    phase = "expired"
	cancelled  phase = "cancelled"
)

func (p phase) over() bool { return p == completed || p == failed || p == expired || p == cancelled }

// problem is why a batch is refused as a whole.
type problem struct {
	code, message, param string
	line                 int // 0: none named
}

// line is one request of a batch.
type line struct {
	id     string
	body   []byte // part of the input
	status int    // once settled: 0 lapsed, 200 answered, else failed
}

// job is a batch.
type job struct {
	n                        int
	id, endpoint, model      string
	name                     string // Gemini's display name
	metadata                 json.RawMessage
	provider                 Provider
	input                    string // file id; "": inline
	first                    string
	total                    int
	size                     int64
	tokens                   int64 // of the prompts, as the queue counts them
	lines                    []line
	problems                 []problem
	created, valid           time.Time // valid: the end of validation
	done                     time.Time // when the last line is answered
	expires                  time.Time // zero: never
	cancelAt, cancelledAt    time.Time
	settled                  bool
	answered, failed, lapsed int
	prompt, completion       int64
	noOutput, noErrors       bool // deleted, or there are none
}

// window is how long a batch may take; 0 means as long as it does.
func window(p Provider) time.Duration {
	return map[Provider]time.Duration{OpenAI: 24 * time.Hour, Anthropic: 24 * time.Hour, Gemini: 48 * time.Hour}[p]
}

// limits are the provider's limits of a batch.
func (s *Server) limits(p Provider, inline bool) (lines int, bytes int64) {
	switch p {
	case OpenAI:
		lines, bytes = 50_000, 200<<20
	case Azure:
		lines, bytes = 100_000, 200<<20
	case Anthropic:
		lines, bytes = 100_000, 256<<20
	case Gemini:
		lines, bytes = 1<<30, 2<<30
		if inline {
			bytes = 20 << 20
		}
	}
	return cmp.Or(s.cfg.MaxLines, lines), cmp.Or(s.cfg.MaxBytes, bytes)
}

// add accepts a batch now.
func (s *Server) add(j *job) *job {
	s.serial++
	j.n, j.created = s.serial, time.Now()
	j.id = fmt.Sprintf("%s%x%06x", map[Provider]string{Anthropic: "msgbatch_", OpenAI: "batch_", Azure: "batch_"}[j.provider], s.born, j.n)
	j.total = len(j.lines)
	if j.total > 0 {
		j.first = j.lines[0].id
	}
	j.valid = j.created.Add(min(s.cfg.Delay/10, 10*time.Second))
	j.done = j.created.Add(s.cfg.Delay)
	if w := window(j.provider); w > 0 {
		j.expires = j.created.Add(w)
		if s.draw("expire", j.n, 0) < s.cfg.Expire {
			j.expires = j.created.Add(min(w, cmp.Or(s.cfg.ExpireAfter, s.cfg.Delay)))
			part := .1 + .8*s.draw("part", j.n, 0)
			j.done = j.valid.Add(max(1, time.Duration(float64(j.expires.Sub(j.valid))/part)))
		}
	}
	s.jobs = append(s.jobs, j)
	s.byID[j.id] = j
	s.stored += j.size
	s.stats.Created++
	if len(s.jobs) > maxKept {
		s.drop(s.jobs[0])
	}
	return j
}

// drop forgets a batch.
func (s *Server) drop(j *job) {
	s.jobs = slices.DeleteFunc(s.jobs, func(other *job) bool { return other == j })
	delete(s.byID, j.id)
	s.release(j)
}

// release forgets the lines of a batch.
func (s *Server) release(j *job) {
	s.stored -= j.size
	j.size, j.lines, j.noOutput, j.noErrors = 0, nil, true, true
}

func (j *job) phase(now time.Time) phase {
	switch {
	case now.Before(j.valid):
		return validating
	case len(j.problems) > 0:
		return failed
	case !j.cancelAt.IsZero() && now.Before(j.cancelledAt):
		return cancelling
	case !j.cancelAt.IsZero():
		return cancelled
	case !j.expires.IsZero() && !now.Before(j.expires) && j.expires.Before(j.done):
		return expired
	case !now.Before(j.done):
		return completed
	case !now.Before(j.done.Add(-j.done.Sub(j.valid) / 20)):
		return finalizing
	}
	return running
}

// end is when a batch that is over became so.
func (j *job) end(p phase) time.Time {
	switch p { //nolint:exhaustive // the others are not over
	case failed:
		return j.valid
	case cancelled:
		return j.cancelledAt
	case expired:
		return j.expires
	}
	return j.done
}

// due reports whether a line is answered by then.
func (s *Server) due(j *job, i int, at time.Time) bool {
	span := float64(j.done.Sub(j.valid)) * .95
	return !at.Before(j.valid.Add(time.Duration(span * s.draw("due", j.n, i))))
}

// settle bills the batches that are over by now.
func (s *Server) settle() {
	now := time.Now()
	for _, j := range s.jobs {
		if p := j.phase(now); !j.settled && p.over() {
			s.finish(j, p)
		}
	}
}

func (s *Server) finish(j *job, p phase) {
	j.settled = true
	switch p { //nolint:exhaustive // the others are not over
	case completed:
		s.stats.Completed++
	case failed:
		s.stats.Failed++
		s.release(j)
		return
	case expired:
		s.stats.Expired++
	case cancelled:
		s.stats.Cancelled++
	}
	void := j.provider == Gemini && (p == expired || p == cancelled) // no results at all
	for i := range j.lines {
		l := &j.lines[i]
		if void || p != completed && !s.due(j, i, j.end(p)) {
			j.lapsed++
			continue
		}
		var a Reply
		if a.Status = s.bad(j, i); a.Status == 0 {
			a = s.live.Answer(j.endpoint, l.body)
		}
		if l.status = a.Status; l.status != 200 {
			j.failed++
			continue
		}
		j.answered++
		j.prompt += a.Prompt
		j.completion += a.Completion
		s.bill(l.id)
	}
	s.stats.Answered += int64(j.answered)
	s.stats.LineErrors += int64(j.failed)
	s.stats.Lapsed += int64(j.lapsed)
	s.stats.Prompt += j.prompt
	s.stats.Completion += j.completion
	j.noOutput = j.answered == 0
	j.noErrors = j.failed+j.lapsed == 0 && j.provider != Azure // whose error file is there, and empty
}

func (s *Server) bill(id string) {
	if _, known := s.billed[id]; !known && len(s.billed) >= maxBilled {
		s.stats.Forgotten++
		return
	}
	s.billed[id]++
}

// bad returns the status with which a line fails; 0 means that it does not.
func (s *Server) bad(j *job, i int) int {
	if len(s.cfg.Fail) == 0 {
		return 0
	}
	luck := s.draw("fail", j.n, i)
	for _, status := range slices.Sorted(maps.Keys(s.cfg.Fail)) {
		if luck -= s.cfg.Fail[status]; luck < 0 {
			return status
		}
	}
	return 0
}

// counts of a batch so far: answered, failed.
func (s *Server) counts(j *job) (answered, bad int) {
	if j.settled {
		return j.answered, j.failed
	}
	now := time.Now()
	for i := range j.lines {
		switch {
		case len(j.problems) > 0:
		case now.Before(j.valid) || !s.due(j, i, now):
		case s.bad(j, i) != 0:
			bad++
		default:
			answered++
		}
	}
	return answered, bad
}

// cancel asks for it, and reports whether the batch was running.
func (s *Server) cancel(j *job) bool {
	now := time.Now()
	if j.phase(now).over() {
		return false
	}
	if j.cancelAt.IsZero() {
		j.cancelAt, j.cancelledAt = now, now.Add(s.cfg.CancelDelay)
		if j.valid.After(now) {
			j.valid = now
		}
	}
	return true
}

// find returns a batch, unless it is hidden still.
func (s *Server) find(p Provider, id string) *job {
	j := s.byID[id]
	if j == nil || j.provider != p || time.Since(j.created) < s.cfg.Hidden {
		return nil
	}
	return j
}

// listed are the batches in the provider's list, newest first.
func (s *Server) listed(p Provider) []*job {
	var list []*job
	for _, j := range slices.Backward(s.jobs) {
		if j.provider == p && time.Since(j.created) >= s.cfg.ListLag {
			list = append(list, j)
		}
	}
	return list
}

// full reports whether the queue of a model has no room for so many tokens.
func (s *Server) full(j *job) bool {
	if s.cfg.Enqueued == 0 {
		return false
	}
	sum := j.tokens
	for _, other := range s.jobs {
		if !other.settled && other.provider == j.provider && other.model == j.model && len(other.problems) == 0 {
			sum += other.tokens
		}
	}
	return sum > s.cfg.Enqueued
}

// results writes the lines that want holds for, with all that goes wrong with them. It
// takes no lock: a batch that is over changes no more.
func (s *Server) results(lines []line, j *job, ordered bool, want func(*line) bool, put func(dst []byte, i int, l *line) []byte) func(io.Writer) {
	return func(w io.Writer) {
		order := make([]int, len(lines))
		for i := range order {
			order[i] = i
		}
		if !ordered {
			rand.New(rand.NewPCG(s.seed, uint64(j.n))).Shuffle(len(order), func(a, b int) { order[a], order[b] = order[b], order[a] })
		}
		var buf []byte
		var again []int
		for _, i := range order {
			l := &lines[i]
			if !want(l) || l.status == 200 && s.draw("missing", j.n, i) < s.cfg.Missing {
				continue
			}
			buf = put(buf[:0], i, l)
			if l.status == 200 {
				switch {
				case s.draw("torn", j.n, i) < s.cfg.Torn:
					buf = buf[:len(buf)/2]
				case s.draw("doubled", j.n, i) < s.cfg.Doubled:
					again = append(again, i)
				case s.draw("foreign", j.n, i) < s.cfg.Foreign:
					stranger := *l
					stranger.id = "stranger-" + l.id
					buf = put(append(buf, '\n'), i, &stranger)
				}
			}
			if _, err := w.Write(append(buf, '\n')); err != nil {
				return
			}
		}
		for _, i := range again {
			if _, err := w.Write(append(put(buf[:0], i, &lines[i]), '\n')); err != nil {
				return
			}
		}
	}
}

// body is what a line is answered.
func (s *Server) body(j *job, l *line) []byte {
	if l.status == 200 {
		return s.live.Answer(j.endpoint, l.body).Body
	}
	if a := s.live.Answer(j.endpoint, l.body); a.Status == l.status {
		return a.Body // it was refused by the endpoint itself
	}
	return s.live.Fault(j.endpoint, l.status, "injected failure")
}
