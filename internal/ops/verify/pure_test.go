package verify

import (
	"slices"
	"strconv"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go/jetstream"
)

// pureStream is a stream that counts as the server does what is removed from it.
type pureStream[T any] struct {
	cfg     jetstream.StreamConfig
	created time.Time
	last    uint64
	msgs    []pureMessage[T]
}

type pureMessage[T any] struct {
	seq    uint64
	stored time.Time
	is     T
}

func (s *pureStream[T]) add(at time.Time, m T) uint64 {
	s.last++
	s.msgs = append(s.msgs, pureMessage[T]{s.last, at, m})
	return s.last
}

func (s *pureStream[T]) remove(match func(m pureMessage[T]) bool) {
	s.msgs = slices.DeleteFunc(s.msgs, match)
}

// purge removes the first n messages that are left.
func (s *pureStream[T]) purge(n int) { s.msgs = slices.Clone(s.msgs[min(n, len(s.msgs)):]) }

func (s *pureStream[T]) info(now time.Time) *jetstream.StreamInfo {
	state := jetstream.StreamState{Msgs: uint64(len(s.msgs)), Bytes: uint64(100 * len(s.msgs)), FirstSeq: s.last + 1, LastSeq: s.last}
	if n := len(s.msgs); n > 0 {
		state.FirstSeq, state.FirstTime, state.LastTime = s.msgs[0].seq, s.msgs[0].stored, s.msgs[n-1].stored
		state.NumDeleted = int(s.last-state.FirstSeq+1) - n //nolint:gosec // few
	}
	return &jetstream.StreamInfo{Config: s.cfg, Created: s.created, State: state, TimeStamp: now}
}

// pureJob is a job of one process in streams that need no server.
type pureJob struct {
	now     time.Time
	input   pureStream[string]
	results pureStream[stagetest.Step]
	audit   pureStream[*auditlog.Event]
	window  int
}

const pureMaxAge = 720 * time.Hour

// newPureJob returns a job of n rows that began ago before now and took each for a row: a
// second process takes over in the middle; both leave their summaries.
func newPureJob(n int, ago, each time.Duration) *pureJob {
	rows := make([]uint64, n)
	for i := range rows {
		rows[i] = uint64(i + 1) //nolint:gosec // small
	}
	return newPureJobOf(stagetest.Order{Order: streams.OrderStream}, rows, ago, each)
}

// newPureJobOf is newPureJob with the results of all rows in an order of their own.
func newPureJobOf(order stagetest.Order, rows []uint64, ago, each time.Duration) *pureJob {
	j := &pureJob{now: time.Unix(1_800_000_000, 0), window: 8}
	at := j.now.Add(-ago)
	for name, s := range map[string]*jetstream.StreamConfig{"ROWS": &j.input.cfg, "RESULTS": &j.results.cfg, "AUDIT": &j.audit.cfg} {
		s.Name = name
	}
	j.results.cfg.Discard, j.audit.cfg.MaxAge = jetstream.DiscardNew, pureMaxAge
	j.input.created, j.results.created, j.audit.created = at, at, at
	for i := range rows {
		subject := "rows.a"
		if len(order.Keys) > 0 {
			subject = "rows." + order.Keys[i]
		}
		j.input.add(at, subject)
	}
	at = at.Add(time.Second)
	job := &stagetest.Job{Created: j.input.created, Now: at}
	done := 0
	flush := func() {
		for ; done < len(job.Steps); done++ {
			at = at.Add(time.Millisecond)
			j.store(at, job.Steps[done])
		}
	}
	middle := len(rows) / 2
	for half, run := range []string{"run1", "run2"} {
		owner := run + ".a"
		job.Start(run)
		if order.Order == streams.OrderStream {
			job.Claim(owner, uint64(half*middle)) //nolint:gosec // small
		} else {
			job.ClaimOrder(owner, order)
		}
		for _, seq := range [][]uint64{rows[:middle], rows[middle:]}[half] {
			flush()
			at = at.Add(each)
			job.Now = at
			job.Answer(owner, seq)
		}
		job.End(run)
		flush()
	}
	job.Count()
	return j
}

// store stores a step as the stage would.
func (j *pureJob) store(at time.Time, s stagetest.Step) {
	switch {
	case s.Call != nil:
		j.audit.add(at, &auditlog.Event{Header: s.Call.Header, Call: s.Call})
	case s.Row != nil:
		j.audit.add(at, &auditlog.Event{Header: s.Row.Header, Row: s.Row})
	case s.Run != nil:
		if s.Run.Settings != nil {
			s.Run.Settings["STAGE_WINDOW"] = strconv.Itoa(j.window)
		}
		j.audit.add(at, &auditlog.Event{Header: s.Run.Header, Run: s.Run})
	default:
		j.results.add(at, s)
	}
}

// age removes from the audit what has expired.
func (j *pureJob) age() {
	j.audit.remove(func(m pureMessage[*auditlog.Event]) bool {
		return j.audit.cfg.MaxAge > 0 && m.stored.Before(j.now.Add(-j.audit.cfg.MaxAge))
	})
}

// verify checks the streams as [Run] does those of a server.
func (j *pureJob) verify() *Report {
	cfg := &config.Config{Name: "stage"}
	cfg.Input.Stream, cfg.Streams.Partitions, cfg.Window.Rows = "ROWS", 1, j.window
	report := newReport("stage")
	v := &verification{
		store: store{cfg: cfg}, report: report, runs: newRunVerifier(), lane: newBatchVerifier(report),
		losses: losses{input: lossOf(j.input.info(j.now)), audit: lossOf(j.audit.info(j.now)), results: lossOf(j.results.info(j.now))},
	}
	for _, m := range j.audit.msgs {
		if m.is.Run != nil {
			v.runs.run(m.is.Run)
		}
	}
	var bound logBound
	var rows []stored.ResultRow
	var claims []stored.Claim
	for _, m := range j.results.msgs {
		bound.at = m.seq
		if c := m.is.Claim; c != nil {
			entry := *c
			entry.At, entry.Stored, bound.mark = m.seq, m.stored, c.Mark
			claims = append(claims, entry)
			continue
		}
		row := *m.is.Result
		row.At, row.Stored, bound.mark = m.seq, m.stored, row.Seq
		if row.Subject == "" {
			row.Subject = "rows.a"
		}
		rows = append(rows, row)
	}
	if bound.at == 0 {
		v.report.cannot("nothing")
		v.conclude()
		return v.report
	}
	p := v.partition(0, bound)
	p.log.claims, p.window = claims, newAuditWindow(v.windowRows(claims))
	p.audit.gap = v.losses.gapOf(&p.log, v.runs)
	p.log.results = func() (*stored.ResultRow, error) {
		if len(rows) == 0 {
			return nil, nil //nolint:nilnil // the end
		}
		row := rows[0]
		rows = rows[1:]
		return &row, nil
	}
	p.log.input.last = v.losses.input.info.State.LastSeq
	left := j.input.msgs
	p.log.input.read = func() (stored.InputRow, error) {
		if len(left) == 0 {
			return stored.InputRow{}, nil
		}
		m := left[0]
		left = left[1:]
		return stored.InputRow{Seq: m.seq, Subject: m.is}, nil
	}
	_ = p.start()
	feed := &auditFeed{report: report, runs: v.runs, lane: v.lane, parts: v.parts}
	for _, m := range j.audit.msgs {
		_ = feed.event(m.is, proof.Hash{})
	}
	_ = p.finish()
	v.conclude()
	return v.report
}
