package load

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// loadRecord is how far a load has come. It is written before rows are published and when
// the load ends. What a killed load published after its last record is found in the input
// and the results.
type loadRecord struct {
	Owner string `json:"owner"` // the loader, unique
	// The first Loaded rows are stored, the last of them at End of the input, or 0 if that
	// is unknown. The rows after them, up to Until, may be stored after sequence Last.
	Loaded int64  `json:"loaded"`
	Until  int64  `json:"until"`
	End    uint64 `json:"end"`
	Last   uint64 `json:"input_last"`
	// InputCreated distinguishes streams of the same name.
	InputCreated time.Time `json:"input_created"`

	seq uint64 // of the record in the results stream
}

// loadPosition keeps the records of one source on a subject of their own in the results
// stream, which still has them when the rows are gone from the input. The stage's appends
// there do not depend on that subject. A loader appends a record on condition that no
// other was added since it looked, so one of two loaders is refused:
//
//  1. A and B read record 5 and both find 300 rows stored.
//  2. A appends record 6, for rows 301 to 800, and publishes them.
//  3. B's record is refused, and B ends before it publishes the same rows.
type loadPosition struct {
	nc            *nats.Conn
	input, stream string // streams of rows, and of results
	subject       string
	resultFilter  string
	created       time.Time
	owner         string
	seq           uint64     // of the newest record when this loader began, or wrote
	record        loadRecord // the last valid one, or zero
}

// newLoadPosition returns the position of the source that publishes on a subject of the
// input.
func newLoadPosition(ctx context.Context, js jetstream.JetStream, cfg *config.Config, source string) (loadPosition, error) {
	p := loadPosition{
		nc: js.Conn(), input: cfg.Input.Stream, stream: cfg.Result.Stream, owner: rand.Text(),
		subject:      cfg.Result.Subject + "." + cfg.Name + ".load." + cfg.Input.Stream + "." + source,
		resultFilter: cfg.Result.Subject + ".*.*.rows", // of any stage, whatever its name
	}
	s, err := js.Stream(ctx, p.stream)
	if err != nil {
		return p, stored.MissingStream(err, p.stream, "STAGE_RESULT_STREAM")
	}
	if subjects := s.CachedInfo().Config.Subjects; !slices.ContainsFunc(subjects, func(filter string) bool { return streams.Overlap(filter, p.subject) }) {
		return p, config.Invalid(fmt.Errorf("STAGE_RESULT_STREAM: stream %s does not capture %s, where a load keeps its position: add %s.%s.load.> to its subjects",
			p.stream, p.subject, cfg.Result.Subject, cfg.Name))
	}
	return p, nil
}

// admits reports whether this loader has recorded that the rows up to n may be stored.
func (p *loadPosition) admits(n int64) bool { return p.record.Owner == p.owner && n <= p.record.Until }

// ended reports whether by the newest record n rows are stored and no more are being
// published.
func (p *loadPosition) ended(n int64) bool {
	return p.record.seq == p.seq && p.record.Loaded == n && p.record.Until == n
}

// newest returns the last record, with sequence 0 if there is none.
func (p *loadPosition) newest(ctx context.Context) (*jetstream.RawStreamMsg, error) {
	m, err := streams.LastMessage(ctx, p.nc, p.stream, p.subject)
	if err == nil && m == nil {
		m = &jetstream.RawStreamMsg{}
	}
	return m, err
}

// valid returns the newest record that is true of the input as it is, or a zero one. A
// power cut can take the end of the input and leave the records. For example, the input
// ends at sequence 700, and the newest record says that row 900 is at 900. Then an earlier
// record is used.
func (p *loadPosition) valid(ctx context.Context, newest *jetstream.RawStreamMsg, input *jetstream.StreamInfo, isRow func(context.Context, uint64, int64) (bool, error)) (loadRecord, error) {
	p.created, p.record = input.Created, loadRecord{}
	check := func(m *jetstream.RawStreamMsg) (ok bool, err error) {
		r, err := p.decode(m)
		if err != nil || !r.InputCreated.Equal(input.Created) || r.Last > input.State.LastSeq {
			return false, err
		}
		if ok = true; r.End > 0 {
			ok, err = isRow(ctx, r.End, r.Loaded)
		}
		if ok {
			p.record = r
		}
		return ok, err
	}
	if newest.Sequence == 0 {
		return p.record, nil
	}
	if ok, err := check(newest); ok || err != nil {
		return p.record, err
	}
	for from := uint64(1); ; {
		m, err := streams.NextMessage(ctx, p.nc, p.stream, p.subject, from)
		if err != nil || m == nil || m.Sequence >= newest.Sequence {
			return p.record, err
		}
		if _, err := check(m); err != nil {
			return p.record, err
		}
		from = m.Sequence + 1
	}
}

// decode reads a record. Any other message is an error.
func (p *loadPosition) decode(m *jetstream.RawStreamMsg) (r loadRecord, err error) {
	if err := json.Unmarshal(m.Data, &r); err != nil {
		return r, fmt.Errorf("message %d of stream %s on %s is no position of a load: %w", m.Sequence, p.stream, p.subject, err)
	}
	r.seq = m.Sequence
	return r, nil
}

// write appends a record. errRivalLoad means that another loader has written one since;
// any other error may leave the record stored, which the next write finds out.
func (p *loadPosition) write(ctx context.Context, r loadRecord) error {
	r.Owner, r.InputCreated = p.owner, p.created
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	seq, err := streams.Append(ctx, p.nc, []*nats.Msg{{Subject: p.subject, Data: body, Header: nats.Header{
		jetstream.ExpectedStreamHeader:      {p.stream},
		jetstream.ExpectedLastSubjSeqHeader: {strconv.FormatUint(p.seq, 10)},
	}}})
	if err == nil {
		r.seq = seq
		p.seq, p.record = seq, r
		return nil
	}
	m, readErr := p.newest(ctx)
	if readErr != nil || m.Sequence == p.seq {
		return streams.Denied(p.nc, err)
	}
	if stored, readErr := p.decode(m); readErr != nil || stored.Owner != p.owner {
		return errRivalLoad
	}
	p.seq = m.Sequence // of an earlier attempt, which had no answer and is stored
	return p.write(ctx, r)
}

// results calls row for each result that was stored after the record, if its row came into
// the input after the record, too. It ends when row returns false.
func (p *loadPosition) results(ctx context.Context, r loadRecord, row func(subject string, seq uint64) (more bool)) error {
	for from := r.seq + 1; ; {
		m, err := streams.NextMessage(ctx, p.nc, p.stream, p.resultFilter, from)
		if err != nil || m == nil {
			return err
		}
		from = m.Sequence + 1
		seq, err := strconv.ParseUint(m.Header.Get(streams.HeaderSourceSeq), 10, 64)
		if err != nil || seq <= r.Last || m.Header.Get(streams.HeaderSourceStream) != p.input {
			continue
		}
		if !row(m.Header.Get(streams.HeaderSourceSubject), seq) {
			return nil
		}
	}
}
