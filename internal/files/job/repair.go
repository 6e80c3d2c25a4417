package job

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/ops/redrive"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/seqset"
	"github.com/nats-io/nats.go/jetstream"
)

// loadID is the name of the load in a job: its rows have a subject of their own. Rows
// that stage redrive publishes again have another subject.
const loadID = "in"

// places knows which place in OUT each result takes. A redrive publishes a failed row
// again as another row of the input, and its result takes the place of the failed one:
//
//	row 7 fails                  result 7: error          place 7
//	row 101 is row 7 again       result 101: succeeded    place 7, in place of result 7
//
// So OUT has one line for each row of the file, with its newest result. Memory grows with
// the rows that were published again, and by two bytes at most for each other row.
//
// It is not safe for concurrent use. Before the stage runs, repair uses it; then write
// does.
type places struct {
	cfg      *config.Config
	js       jetstream.JetStream
	input    jetstream.Stream
	subject  string // subject of the job's own rows, as they are stored
	redriven string // subject of the rows that were published again

	until  uint64            // the last row that has a place; --limit leaves out later ones
	seen   uint64            // sequence of the last noted result in the results stream
	low    uint64            // low-water mark at that result: each row up to it has a result
	own    seqset.Set        // rows with a place of their own that have a result
	rows   int64             // size of own
	newest map[uint64]answer // the last result in the place of a row, by that row
	// pending has the row of the input that will take the place of a row, and has no
	// result yet, by the row whose place it is.
	pending map[uint64]uint64
}

// answer is a result that takes the place of an earlier one, for example result 101
// above.
type answer struct {
	at  uint64 // sequence of the result in the results stream
	row uint64 // the row of the input that it answers
}

// openPlaces finds the places of a job whose streams exist.
func openPlaces(ctx context.Context, js jetstream.JetStream, cfg *config.Config) (*places, error) {
	p := &places{
		cfg: cfg, js: js, until: math.MaxUint64, newest: make(map[uint64]answer),
		pending: make(map[uint64]uint64),
	}
	var err error
	if p.input, err = js.Stream(ctx, cfg.Input.Stream); err != nil {
		return nil, stored.MissingStream(err, cfg.Input.Stream, "STAGE_INPUT_STREAM")
	}
	if _, err = js.Stream(ctx, cfg.Result.Stream); err != nil {
		return nil, stored.MissingStream(err, cfg.Result.Stream, "STAGE_RESULT_STREAM")
	}
	for id, subject := range map[string]*string{
		loadID:                      &p.subject,
		loadID + redrive.LoadSuffix: &p.redriven,
	} {
		address, err := streams.AddressInput(p.input.CachedInfo().Config, cfg.Input.Subject, 0, id)
		if err != nil {
			return nil, config.Invalid(config.Explained(err))
		}
		*subject = address.Stored
	}
	return p, nil
}

// limitTo gives places to the first rows of the file only, whichever rows are answered
// first. It looks for the row of that number. Between the rows of the file there are rows
// that were published again, so its sequence is only known to be at or above the number.
func (p *places) limitTo(ctx context.Context, rows int64) error {
	for from := uint64(rows); ; { //nolint:gosec // above 0
		m, err := streams.NextMessage(ctx, p.js.Conn(), p.cfg.Input.Stream, p.subject, from)
		if err != nil || m == nil {
			return err
		}
		number, err := rowNumber(m)
		if err != nil {
			return err
		}
		if number >= rows {
			p.until = m.Sequence
			return nil
		}
		from = m.Sequence + uint64(rows-number) //nolint:gosec // above 0
	}
}

// rowNumber returns which row of the input file a message is, counted from 1.
func rowNumber(m *jetstream.RawStreamMsg) (int64, error) {
	number, err := strconv.ParseInt(m.Header.Get(streams.HeaderLoadRow), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("message %d on %s has no %s: another program has published it",
			m.Sequence, m.Subject, streams.HeaderLoadRow)
	}
	return number, nil
}

// number returns which row of the input file a row of the stream is, counted from 1.
func (p *places) number(ctx context.Context, row uint64) (int64, error) {
	m, err := streams.MessageAt(ctx, p.js.Conn(), p.cfg.Input.Stream, row)
	if err == nil && m == nil {
		err = jetstream.ErrMsgNotFound
	}
	if err != nil {
		return 0, fmt.Errorf("read row %d: %w", row, err)
	}
	return rowNumber(m)
}

// note notes a result, which may be noted already. It returns the place that the result
// takes, or 0 if its row is beyond the limit. newer says that it takes the place of an
// earlier result.
func (p *places) note(ctx context.Context, r stored.Result) (place uint64, newer bool, err error) {
	if r.Subject == p.subject {
		if r.Seq <= p.until {
			place = r.Seq
		}
	} else if place, err = p.placeOf(ctx, r); err != nil {
		return 0, false, err
	}
	if r.At <= p.seen {
		return place, false, nil
	}
	p.seen, p.low = r.At, r.Low
	switch place {
	case 0:
		return 0, false, nil

	case r.Seq:
		if p.own.Add(place) {
			p.rows++
		}
		return place, false, nil
	}

	// A row may be published again several times. Only a result of the latest one, or of
	// a later one, ends the wait for the place.
	p.newest[place] = answer{at: r.At, row: r.Seq}
	if r.Seq >= p.pending[place] {
		delete(p.pending, place)
	}
	return place, true, nil
}

// placeOf returns the place of a result whose row was published again, or 0 if it has
// none. The headers name the place. Where they do not, an older version has published or
// answered the row, and the row itself is read.
func (p *places) placeOf(ctx context.Context, r stored.Result) (uint64, error) {
	if p.own.Has(r.Replaces) {
		return r.Replaces, nil
	}
	m, err := streams.MessageAt(ctx, p.js.Conn(), p.cfg.Input.Stream, r.Seq)
	if err != nil {
		return 0, fmt.Errorf("read row %d: %w", r.Seq, err)
	}
	if m == nil {
		return 0, nil
	}
	first, err := stored.Replaced(ctx, p.js.Conn(), p.cfg, m.Header)
	if err != nil || !p.own.Has(first) {
		return 0, err
	}
	return first, nil
}

// failedResults has the sequence of the newest result of each row for which that is an
// error, by the place of the row.
type failedResults map[uint64]uint64

// read notes the results that are stored, and returns those that have failed.
func (p *places) read(ctx context.Context) (failedResults, error) {
	failed := make(failedResults)
	end, err := p.end(ctx)
	if err != nil || end == 0 {
		return failed, err
	}
	results, err := p.open(ctx, stored.ReadOptions{From: p.seen + 1, Until: end})
	if err != nil {
		return nil, err
	}
	defer results.Close()
	for {
		r, err := results.next(ctx, 0)
		if errors.Is(err, stored.ErrNoMore) {
			return failed, nil
		}
		if err != nil {
			return nil, err
		}
		place, _, err := p.note(ctx, r)
		if err != nil {
			return nil, err
		}
		switch {
		// The newest result counts: a success after the failure takes the row off the
		// list.
		case r.Failed && place > 0:
			failed[place] = r.At
		case !r.Failed:
			delete(failed, place)
		}
	}
}

// end returns the sequence of the last stored result, or 0 if there is none.
func (p *places) end(ctx context.Context) (uint64, error) {
	m, err := stored.LastMessage(ctx, p.js.Conn(), p.cfg.Result.Stream,
		stored.LogSubject(p.cfg, 0, "rows"))
	if err != nil || m == nil {
		return 0, err
	}
	return m.Sequence, nil
}

// open begins to read the headers of results.
func (p *places) open(ctx context.Context, o stored.ReadOptions) (*resultsOf, error) {
	o.Stream, o.HeadersOnly = p.cfg.Result.Stream, true
	o.Filters = []string{stored.LogSubject(p.cfg, 0, "rows")}
	r, err := stored.Open(ctx, p.js, o)
	if err != nil {
		return nil, err
	}
	return &resultsOf{places: p, reader: r, at: p.seen}, nil
}

// findPending looks in the input for rows that were published again and have no result
// yet. of selects the places to look at.
func (p *places) findPending(ctx context.Context, of func(place uint64) bool) error {
	if next, err := streams.NextSequence(ctx, p.js.Conn(), p.cfg.Input.Stream, p.redriven,
		p.low+1); err != nil || next == 0 {
		return err
	}
	o := stored.ReadOptions{Stream: p.cfg.Input.Stream, Filters: []string{p.redriven}, From: p.low + 1}
	return stored.Each(ctx, p.js, o, func(m *jetstream.RawStreamMsg) error {
		place, err := stored.Replaced(ctx, p.js.Conn(), p.cfg, m.Header)
		if err != nil {
			return err
		}
		// The read begins above the low-water mark, where some rows have their result
		// already.
		if p.own.Has(place) && of(place) && m.Sequence > p.newest[place].row {
			p.pending[place] = m.Sequence
		}
		return nil
	})
}

// wait notes results until no row that was published again lacks one.
func (p *places) wait(ctx context.Context) error {
	if len(p.pending) == 0 {
		return nil
	}
	results, err := p.open(ctx, stored.ReadOptions{From: p.seen + 1, Follow: true})
	if err != nil {
		return err
	}
	defer results.Close()
	for len(p.pending) > 0 {
		r, err := results.next(ctx, resultPoll)
		if errors.Is(err, stored.ErrNoMore) {
			continue
		}
		if err != nil {
			return err
		}
		if _, _, err := p.note(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// newestOf returns the result that counts in the place of a result: itself, or the last
// that has taken its place.
func (p *places) newestOf(ctx context.Context, r stored.Result) (stored.Result, error) {
	newest, replaced := p.newest[r.Seq]
	if !replaced || r.Erased {
		return r, nil
	}
	m, err := streams.MessageAt(ctx, p.js.Conn(), p.cfg.Result.Stream, newest.at)
	if err == nil && m == nil {
		err = jetstream.ErrMsgNotFound
	}
	if err != nil {
		return r, fmt.Errorf("read result %d, which replaces that of row %d: %w", newest.at, r.Seq,
			err)
	}
	of, err := stored.NewResult(m)
	if err != nil {
		return r, err
	}
	r.At, r.Body, r.Object, r.Failed = newest.at, of.Body, of.Object, of.Failed
	return r, nil
}

// Retry asks for failed rows to be sent again.
type Retry struct {
	Reasons []string // only rows that failed for one of these reasons; all rows if it is empty
}

// repair reads what the run must know of rows that were published again, and publishes
// failed rows again if that was asked for. The stage must not run yet. Otherwise a row that
// fails after the failed results were read would not be published again.
func (p *Pipeline) repair(ctx context.Context) error {
	js, err := streams.JetStream(p.Stage.Conn.NC())
	if err != nil {
		return err
	}
	if p.places, err = openPlaces(ctx, js, p.Stage.Cfg); err != nil {
		return err
	}
	redriven, err := streams.NextSequence(ctx, js.Conn(), p.Stage.Cfg.Input.Stream,
		p.places.redriven, 1)
	// Most jobs have no such row, and read their results only once, when they are
	// written.
	if err != nil || redriven == 0 && p.retry == nil && p.limit == 0 {
		return err
	}
	if p.limit > 0 {
		if err := p.places.limitTo(ctx, p.limit); err != nil {
			return err
		}
	}

	failed, err := p.places.read(ctx)
	if err != nil {
		return err
	}
	if p.retry != nil {
		if err := p.publishAgain(ctx, js, failed); err != nil {
			return err
		}
	}
	return p.places.findPending(ctx, func(place uint64) bool {
		_, has := failed[place]
		return has
	})
}

// publishAgain publishes the rows of failed results again, for the reasons that were
// asked for. A result that was repaired before is not in failed, so its row is not sent
// twice.
func (p *Pipeline) publishAgain(
	ctx context.Context, js jetstream.JetStream, failed failedResults,
) error {
	var chosen seqset.Set
	for _, at := range failed {
		chosen.Add(at)
	}
	o := redrive.Options{Reasons: p.retry.Reasons, Only: chosen.Has}
	report, err := redrive.Run(ctx, js, p.Stage.Cfg, o, p.Stderr)
	if report != nil {
		report.Write(p.Stderr)
	}
	return err
}
