package stagetest

import (
	"strconv"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go"
)

// Order is that of the results of a job which is not in stream order.
type Order struct {
	streams.Order

	// Place is where a row's key is, as in STAGE_ORDER_KEY, and Keys has the keys of the
	// rows from the first on.
	Place string
	Keys  []string
}

// ClaimOrder records that an owner claimed the partition for results in an order;
// [Job.Count] sets its mark.
func (j *Job) ClaimOrder(owner string, o Order) {
	j.Claim(owner, 0)
	c := j.Steps[len(j.Steps)-1].Claim
	c.Version, c.Order, c.Key = 2, o.Order, o.Place
	if o.Order != streams.OrderKey {
		c.Key = ""
	}
	j.order = o
}

// mark gives a result the headers that it gets from its row.
func (o *Order) mark(r *stored.ResultRow) {
	if int(r.Seq) > len(o.Keys) { //nolint:gosec // small
		return
	}
	key := o.Keys[r.Seq-1]
	r.Subject, r.Header = "rows."+key, nats.Header{"Customer": {key}}
	if o.Order != streams.OrderKey {
		return
	}
	if o.Place == "subject" {
		key = r.Subject
	}
	r.Key = &key
}

// Count sets what each result and claim that is not in stream order says about the rows
// that have their results: the truth, of rows numbered from 1 without a gap, in the log
// from the first result on.
func (j *Job) Count() {
	var low, at uint64
	done := make(map[uint64]uint64) // rows above low, and where they are stored
	ordered := false
	for i := range j.Steps {
		s := &j.Steps[i]
		if s.Claim == nil && s.Result == nil {
			continue
		}
		if !s.Lost {
			at++
		}
		if r := s.Result; r != nil {
			if _, again := done[r.Seq]; !again && r.Seq > low {
				done[r.Seq] = at
			}
			for done[low+1] > 0 {
				low++
				delete(done, low)
			}
			if ordered {
				r.Progress = progressOf(low, done)
			}
			continue
		}
		if ordered = s.Claim.Version > 1; ordered {
			s.Claim.Mark, s.Claim.Progress = low, progressOf(low, done)
		}
	}
}

func progressOf(low uint64, done map[uint64]uint64) stored.Progress {
	p := stored.Progress{Named: true, Low: low, Ahead: uint64(len(done))}
	for _, at := range done {
		if p.From == 0 || at < p.From {
			p.From = at
		}
	}
	return p
}

// setProgress sets the headers of a message of a log that is not in stream order.
func setProgress(h nats.Header, p stored.Progress) {
	if !p.Named {
		return
	}
	h.Set(streams.HeaderLow, strconv.FormatUint(p.Low, 10))
	if p.Ahead > 0 {
		h.Set(streams.HeaderAhead, strconv.FormatUint(p.Ahead, 10))
	}
	if p.From > 0 {
		h.Set(streams.HeaderAheadFrom, strconv.FormatUint(p.From, 10))
	}
}

// RowsOfKeys publishes a row for each key, on the subject rows.<key>, with the key also
// as its header Customer.
func (b *Bench) RowsOfKeys(keys []string) {
	b.T.Helper()
	for _, key := range keys {
		b.Publish(&nats.Msg{Subject: "rows." + key, Data: []byte(`{}`), Header: nats.Header{"Customer": {key}}})
	}
}

// OrderedJob is a whole job of one process, whose results are in an order of their own:
// those of the rows listed.
func (b *Bench) OrderedJob(o Order, rows ...uint64) *Job {
	b.T.Helper()
	b.RowsOfKeys(o.Keys)
	j := b.Job()
	j.Start("run1")
	j.ClaimOrder("run1.a", o)
	for _, seq := range rows {
		j.Answer("run1.a", seq)
	}
	j.End("run1")
	j.Count()
	return j
}
