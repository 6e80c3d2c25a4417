package erase

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/internal/ops/erased"
	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/rowkey"
	"github.com/llm-stage/stage/internal/seqset"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// partitionLog is what the log of a partition says about its rows.
type partitionLog struct {
	number int
	// since is the first message of the present input stream: those before name rows of
	// another one. earlier are the terms before it.
	since   uint64
	earlier map[string]bool
	low     uint64 // every row up to it has its result
	end     uint64 // last message
	key     string // where a row's key is, or empty if results are not in order by key

	tombstones map[uint64]*proof.Tombstone // of the present input, by row
	replaces   map[uint64]uint64           // by row: the row whose place it takes
	results    seqset.Set                  // rows above the mark that have a result
}

// isMissing reports whether a stream does not exist.
func isMissing(err error) bool { return errors.Is(err, jetstream.ErrStreamNotFound) }

// choose finds the rows that are meant, with the places of their results.
func (p *Plan) choose(ctx context.Context) error {
	partitions, err := stored.Partitions(ctx, p.js, p.cfg)
	if err != nil {
		return err
	}
	if p.o.Partition >= partitions {
		return config.Invalid(fmt.Errorf("--partition %d: there are %d, counted from 0", p.o.Partition, partitions))
	}
	for number := range partitions {
		if p.o.Partition >= 0 && number != p.o.Partition {
			continue
		}
		if err := p.chooseOf(ctx, number); err != nil {
			return fmt.Errorf("partition %d: %w", number, err)
		}
	}
	waits := make(map[uint64]bool, len(p.report.Pending))
	for _, w := range p.report.Pending {
		waits[w.Row] = true
	}
	p.rows = slices.DeleteFunc(p.rows, func(e *erasure) bool { return waits[e.row] })
	slices.SortFunc(p.rows, func(a, b *erasure) int { return cmp.Compare(a.row, b.row) })
	slices.SortFunc(p.report.Pending, func(a, b Pending) int { return cmp.Compare(a.Row, b.Row) })
	return p.unknown(ctx)
}

// unknown refuses single rows that are nowhere.
func (p *Plan) unknown(ctx context.Context) error {
	if p.o.Partition >= 0 {
		return nil
	}
	for _, r := range p.o.Rows {
		pending := slices.ContainsFunc(p.report.Pending, func(w Pending) bool { return w.Row == r.First })
		if r.First != r.Last || pending || p.byRow[r.First] != nil {
			continue
		}
		why := "no result of it is stored, and it is not in the input"
		if m, err := streams.MessageAt(ctx, p.nc, p.cfg.Input.Stream, r.First); err == nil && m != nil {
			why = fmt.Sprintf("it is on %s, which is no row of this stage's input", m.Subject)
		}
		return config.Invalid(fmt.Errorf("--row %d: there is no such row: %s", r.First, why))
	}
	return nil
}

func (p *Plan) chooseOf(ctx context.Context, number int) error {
	log, err := p.openLog(ctx, number)
	if err != nil || log.end == 0 {
		return err
	}
	p.logs = append(p.logs, log)
	fields, err := p.byField(ctx, number)
	if err != nil {
		return err
	}
	var chosen seqset.Set
	choose := func(row uint64, h nats.Header) bool {
		return chosen.Has(row) || fields.Has(row) || p.named(row) || p.ofKey(h) || p.ofOrigin(h)
	}
	unfinished := make(map[uint64]bool)
	err = p.eachResult(ctx, log, func(at, row uint64, h nats.Header) {
		if first := streams.Replaced(h, p.cfg.Name, p.cfg.Input.Stream); first > 0 {
			log.replaces[row] = first
		} else if first := streams.Replaces(h); first > 0 {
			log.replaces[row] = first
		}
		if t := log.tombstones[row]; t != nil && t.Sequence == at {
			unfinished[row] = true
		}
		if unfinished[row] || choose(row, h) {
			chosen.Add(row)
		}
	})
	if err != nil {
		return err
	}
	for row, t := range log.tombstones {
		if first, err := strconv.ParseUint(t.Header(streams.HeaderReplaces), 10, 64); err == nil {
			log.replaces[row] = first
		}
		if choose(row, nats.Header{
			streams.HeaderOriginStream: {t.Header(streams.HeaderOriginStream)}, streams.HeaderOriginSeq: {t.Header(streams.HeaderOriginSeq)},
		}) {
			chosen.Add(row)
		}
	}
	p.together(log, &chosen)
	if err := p.waiting(ctx, log, &chosen, fields); err != nil {
		return err
	}
	return p.place(ctx, log, &chosen)
}

// together adds the rows that are the same row's data: a row that was redriven, and each
// of its copies.
func (p *Plan) together(log *partitionLog, chosen *seqset.Set) {
	firsts := make(map[uint64]bool)
	for row, first := range log.replaces {
		if chosen.Has(row) || chosen.Has(first) {
			firsts[first] = true
		}
	}
	for row, first := range log.replaces {
		if firsts[first] {
			chosen.Add(row)
			chosen.Add(first)
		}
	}
}

// place notes where the results of the chosen rows are.
func (p *Plan) place(ctx context.Context, log *partitionLog, chosen *seqset.Set) error {
	for row, t := range log.tombstones {
		if chosen.Has(row) {
			p.row(log.number, row).tombstone = t
		}
	}
	return p.eachResult(ctx, log, func(at, row uint64, h nats.Header) {
		switch {
		case !chosen.Has(row):
		case row > log.low:
			p.wait(log.number, row, "its result is above the low-water mark, row %d: an earlier row still waits", log.low)
		default:
			e := p.row(log.number, row)
			e.at, e.header = at, h
		}
	})
}

// openLog reads what is needed of the log before its results are.
func (p *Plan) openLog(ctx context.Context, number int) (*partitionLog, error) {
	log := &partitionLog{
		number: number, tombstones: make(map[uint64]*proof.Tombstone), replaces: make(map[uint64]uint64), earlier: make(map[string]bool),
	}
	last, err := streams.LastMessage(ctx, p.nc, p.cfg.Result.Stream, streams.LogFilter(p.cfg.Result.Subject, p.cfg.Name, number))
	if err != nil || last == nil {
		return log, err
	}
	log.end, log.low = last.Sequence, lowOf(last.Header)
	claims, err := stored.ReadClaims(ctx, p.js, p.cfg, number, last.Sequence)
	if err != nil {
		return nil, err
	}
	if n := len(claims); n > 0 {
		log.key = claims[n-1].Key
		first := n - 1
		for first > 0 && claims[first-1].SameInput(claims[n-1]) {
			first--
		}
		if first > 0 {
			log.since = claims[first].At
		}
		for _, c := range claims[:first] {
			log.earlier[c.Owner] = true
		}
	}
	return log, p.readTombstones(ctx, log)
}

// lowOf returns the row up to which every row has its result, by the last message of a
// log.
func lowOf(h nats.Header) uint64 {
	text := h.Get(streams.HeaderLow)
	if text == "" {
		text = h.Get(streams.HeaderSourceSeq)
	}
	low, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0
	}
	return low
}

// readTombstones reads what was erased of the present input's rows, the newest tombstone
// of each.
func (p *Plan) readTombstones(ctx context.Context, log *partitionLog) error {
	return erased.Each(ctx, p.js, p.cfg, log.number, func(t *proof.Tombstone) error {
		if t.Sequence >= log.since {
			log.tombstones[t.Row] = t
		}
		return nil
	})
}

// eachResult calls f with each result of a row of the present input.
func (p *Plan) eachResult(ctx context.Context, log *partitionLog, f func(at, row uint64, h nats.Header)) error {
	r, err := stored.OpenReader(ctx, p.js, p.cfg.Result.Stream, stored.LogSubject(p.cfg, log.number, "rows"), log.end, true)
	if err != nil {
		return err
	}
	defer r.Close()
	for {
		m, err := r.Next(ctx)
		if err != nil || m == nil {
			return err
		}
		row, err := strconv.ParseUint(m.Header.Get(streams.HeaderSourceSeq), 10, 64)
		if err == nil && m.Sequence >= log.since {
			if row > log.low {
				log.results.Add(row)
			}
			f(m.Sequence, row, m.Header)
		}
	}
}

func (p *Plan) named(row uint64) bool {
	return slices.ContainsFunc(p.o.Rows, func(r Range) bool { return r.First <= row && row <= r.Last })
}

func (p *Plan) ofKey(h nats.Header) bool {
	key := h[streams.HeaderKey]
	return p.o.Key != nil && len(key) > 0 && key[0] == streams.KeyHeader(*p.o.Key)
}

func (p *Plan) ofOrigin(h nats.Header) bool {
	if p.o.Origin == nil {
		return false
	}
	seq, err := strconv.ParseUint(h.Get(streams.HeaderOriginSeq), 10, 64)
	return err == nil && p.o.Origin(h.Get(streams.HeaderOriginStream), seq)
}

// wait notes a row that can't be erased yet.
func (p *Plan) wait(partition int, row uint64, why string, args ...any) {
	if !slices.ContainsFunc(p.report.Pending, func(w Pending) bool { return w.Row == row }) {
		p.report.Pending = append(p.report.Pending, Pending{Partition: partition, Row: row, Why: fmt.Sprintf(why, args...)})
	}
}

// byField reads the input for the rows that have the member.
func (p *Plan) byField(ctx context.Context, number int) (rows *seqset.Set, err error) {
	rows = new(seqset.Set)
	if p.o.Field == "" {
		return rows, nil
	}
	if p.input == nil {
		p.report.note("stream %s does not exist, and nothing else says which rows have the member %s: "+
			"select by --row",
			p.cfg.Input.Stream, p.o.Field)
		return rows, nil
	}
	err = p.eachRow(ctx, number, 1, func(in *stored.InputRow) error {
		if hasMember(in.Body, p.o.Field, p.o.Value) {
			rows.Add(in.Seq)
		}
		return nil
	})
	if gone := p.input.State.FirstSeq - min(1, p.input.State.FirstSeq) + uint64(p.input.State.NumDeleted); err == nil && gone > 0 { //nolint:gosec // a count
		p.report.note("%d messages of stream %s are gone, and nothing else says which of those rows had "+
			"the member %s: select them by --row",
			gone, p.cfg.Input.Stream, p.o.Field)
	}
	return rows, err
}

// hasMember reports whether a row has a member of this name whose value is text: a string
// by what it says, anything else by its JSON.
func hasMember(body []byte, name, text string) bool {
	value := jsonbytes.Find(body, name)
	if len(value) == 0 {
		return false
	}
	if string(value) == text {
		return true
	}
	var s string
	return value[0] == '"' && json.Unmarshal(value, &s) == nil && s == text
}

// eachRow calls f with the rows of a partition that the input still has, from a sequence
// on. Rows that are objects are read, too.
func (p *Plan) eachRow(ctx context.Context, number int, from uint64, f func(*stored.InputRow) error) error {
	if p.input == nil {
		return nil
	}
	var r *stored.Reader
	filter := p.cfg.Input.PartitionSubject(number)
	if p.input.Config.Retention == jetstream.LimitsPolicy {
		var err error
		if r, err = stored.Open(ctx, p.js, stored.ReadOptions{
			Stream: p.cfg.Input.Stream, Filters: []string{filter}, From: from, Until: max(1, p.input.State.LastSeq),
		}); err != nil {
			return err
		}
		defer r.Close()
	}
	next := stored.NextInputFunc(ctx, p.nc, r, p.cfg.Input.Stream, filter)
	for {
		in, err := next()
		if err != nil || in.Seq == 0 {
			return err
		}
		if err := in.Fetch(ctx, p.nc); err != nil {
			return err
		}
		if in.Seq >= from {
			if err := f(&in); err != nil {
				return err
			}
		}
	}
}

// waiting notes the rows of the selection that have no result yet.
func (p *Plan) waiting(ctx context.Context, log *partitionLog, chosen, fields *seqset.Set) error {
	var place rowkey.Place
	keyed := p.o.Key != nil
	if keyed {
		if log.key == "" {
			return config.Invalid(errors.New("--key: results are not in order by key (STAGE_ORDER=key), so none has a key: select by --field or --row"))
		}
		var err error
		if place, err = rowkey.Parse(log.key); err != nil {
			return config.Invalid(fmt.Errorf("the claim of partition %d: order by key %w", log.number, err))
		}
	}
	waits := make(map[uint64]bool) // rows of which a copy has no result yet
	err := p.eachRow(ctx, log.number, log.low+1, func(in *stored.InputRow) error {
		if log.results.Has(in.Seq) || log.tombstones[in.Seq] != nil {
			return nil
		}
		first := streams.Replaced(in.Header, p.cfg.Name, p.cfg.Input.Stream)
		again := first > 0 && chosen.Has(first)
		switch {
		case p.named(in.Seq), fields.Has(in.Seq), again, p.fromOrigin(in.Header),
			keyed && place.Of(in.Subject, in.Header, in.Body) == streams.KeyHeader(*p.o.Key):
			p.wait(log.number, in.Seq, "it has no result yet")
			waits[first] = again
		}
		return nil
	})
	for row, first := range log.replaces {
		if waits[first] {
			p.wait(log.number, row, "its row was redriven, and has no result yet")
			p.wait(log.number, first, "it was redriven, and has no result yet")
		}
	}
	for first := range waits {
		if waits[first] {
			p.wait(log.number, first, "it was redriven, and has no result yet")
		}
	}
	return err
}

// fromOrigin reports whether the result of a row will be of the origins that are selected.
func (p *Plan) fromOrigin(row nats.Header) bool {
	if p.o.Origin == nil {
		return false
	}
	stream, text := streams.Origin(row)
	seq, err := strconv.ParseUint(text, 10, 64)
	return err == nil && p.o.Origin(stream, seq)
}
