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
	// since is the first message of the present input stream. The messages before it name
	// rows of another input stream, and earlier are the terms that have stored them.
	since   uint64
	earlier map[string]bool
	low     uint64 // every row up to it has its result
	end     uint64 // last message
	key     string // where a row's key is, or empty if results are not in order by key

	tombstones map[uint64]*proof.Tombstone // of the present input, by row
	replaces   map[uint64]uint64           // the row that a row was made in place of
	// results has the rows above low that have a result, once eachResult has run.
	results seqset.Set
}

// chooser finds the rows that the options select, with the places of their results. It reads
// the log of each partition, and the input where only that can say which rows are meant.
type chooser struct {
	*store
	o      *Options
	report *Report
	rows   *chosenRows
	logs   logs // of the partitions whose rows may be chosen
}

// logs are the logs of the partitions that have one.
type logs []*partitionLog

// of returns the log of a partition, which must be among them.
func (l logs) of(partition int) *partitionLog {
	i := slices.IndexFunc(l, func(l *partitionLog) bool { return l.number == partition })
	return l[i]
}

// all chooses among the rows of all partitions.
func (c *chooser) all(ctx context.Context) error {
	partitions, err := stored.Partitions(ctx, c.js, c.cfg)
	if err != nil {
		return err
	}
	if c.o.Partition >= partitions {
		return config.Invalid(fmt.Errorf("--partition %d: there are %d, counted from 0", c.o.Partition, partitions))
	}
	for number := range partitions {
		if c.o.Partition >= 0 && number != c.o.Partition {
			continue
		}
		if err := c.chooseOf(ctx, number); err != nil {
			return fmt.Errorf("partition %d: %w", number, err)
		}
	}
	c.rows.drop(c.report.Pending)
	c.rows.sort()
	slices.SortFunc(c.report.Pending, func(a, b Pending) int { return cmp.Compare(a.Row, b.Row) })
	return c.unknown(ctx)
}

// unknown returns an error if a single row that was asked for is nowhere.
func (c *chooser) unknown(ctx context.Context) error {
	if c.o.Partition >= 0 {
		return nil
	}
	for _, r := range c.o.Rows {
		pending := slices.ContainsFunc(c.report.Pending, func(w Pending) bool { return w.Row == r.First })
		if r.First != r.Last || pending || c.rows.byRow[r.First] != nil {
			continue
		}
		why := "no result of it is stored, and it is not in the input"
		if m, err := streams.MessageAt(ctx, c.nc, c.cfg.Input.Stream, r.First); err == nil && m != nil {
			why = fmt.Sprintf("it is on %s, which is no row of this stage's input", m.Subject)
			if c.answered(m.Subject, r.First) {
				why = fmt.Sprintf("its result has gone (STAGE_RESULT_MAX_AGE), and without that "+
					"nothing is erased: delete message %d of stream %s; the events of the row go "+
					"with the age of the audit", r.First, c.cfg.Input.Stream)
			}
		}
		return config.Invalid(fmt.Errorf("--row %d: there is no such row: %s", r.First, why))
	}
	return nil
}

// answered reports whether a row on this subject is in a partition that has answered it.
func (c *chooser) answered(subject string, row uint64) bool {
	return slices.ContainsFunc(c.logs, func(l *partitionLog) bool {
		return row <= l.low && subjectIsOf(streams.InputFilter(c.cfg.Input.Subject, l.number), subject)
	})
}

func (c *chooser) chooseOf(ctx context.Context, number int) error {
	log, err := c.openLog(ctx, number)
	if err != nil || log.end == 0 {
		return err
	}
	c.logs = append(c.logs, log)
	fields, err := c.byField(ctx, number)
	if err != nil {
		return err
	}
	var chosen seqset.Set
	choose := func(row uint64, h nats.Header) bool {
		return chosen.Has(row) || fields.Has(row) || c.named(row) || c.ofKey(h) || c.ofOrigin(h)
	}
	unfinished := make(map[uint64]bool)
	err = c.eachResult(ctx, log, func(at, row uint64, h nats.Header) {
		if first := streams.Replaced(h, c.cfg.Name, c.cfg.Input.Stream); first > 0 {
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
	c.together(log, &chosen)
	if err := c.waiting(ctx, log, &chosen, fields); err != nil {
		return err
	}
	return c.place(ctx, log, &chosen)
}

// together adds the rows that hold the data of a chosen row: a row that was redriven, and
// each of its copies.
func (c *chooser) together(log *partitionLog, chosen *seqset.Set) {
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
func (c *chooser) place(ctx context.Context, log *partitionLog, chosen *seqset.Set) error {
	for row, t := range log.tombstones {
		if chosen.Has(row) {
			c.rows.take(log.number, row).tombstone = t
		}
	}
	return c.eachResult(ctx, log, func(at, row uint64, h nats.Header) {
		switch {
		case !chosen.Has(row):
		case row > log.low:
			c.report.wait(log.number, row, "its result is above the low-water mark, row %d: an earlier row still waits", log.low)
		default:
			e := c.rows.take(log.number, row)
			e.at, e.header = at, h
		}
	})
}

// openLog reads what is needed of the log before its results are.
func (c *chooser) openLog(ctx context.Context, number int) (*partitionLog, error) {
	log := &partitionLog{
		number: number, tombstones: make(map[uint64]*proof.Tombstone), replaces: make(map[uint64]uint64), earlier: make(map[string]bool),
	}
	last, err := streams.LastMessage(ctx, c.nc, c.cfg.Result.Stream, streams.LogFilter(c.cfg.Result.Subject, c.cfg.Name, number))
	if err != nil || last == nil {
		return log, err
	}
	log.end, log.low = last.Sequence, lowOf(last.Header)
	claims, err := stored.ReadClaims(ctx, c.js, c.cfg, number, last.Sequence)
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
		for _, claim := range claims[:first] {
			log.earlier[claim.Owner] = true
		}
	}
	return log, c.readTombstones(ctx, log)
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
func (c *chooser) readTombstones(ctx context.Context, log *partitionLog) error {
	return erased.Each(ctx, c.js, c.cfg, log.number, func(t *proof.Tombstone) error {
		if t.Sequence >= log.since {
			log.tombstones[t.Row] = t
		}
		return nil
	})
}

// eachResult calls f with each result of a row of the present input, and notes in the log
// which rows above the low-water mark have one.
func (c *chooser) eachResult(ctx context.Context, log *partitionLog, f func(at, row uint64, h nats.Header)) error {
	o := stored.ReadOptions{
		Stream: c.cfg.Result.Stream, Filters: []string{stored.LogSubject(c.cfg, log.number, "rows")}, Until: log.end, HeadersOnly: true,
	}
	return stored.Each(ctx, c.js, o, func(m *jetstream.RawStreamMsg) error {
		row, err := strconv.ParseUint(m.Header.Get(streams.HeaderSourceSeq), 10, 64)
		if err == nil && m.Sequence >= log.since {
			if row > log.low {
				log.results.Add(row)
			}
			f(m.Sequence, row, m.Header)
		}
		return nil
	})
}

// named reports whether a row is among the sequences that are asked for.
func (c *chooser) named(row uint64) bool {
	return slices.ContainsFunc(c.o.Rows, func(r Range) bool { return r.First <= row && row <= r.Last })
}

func (c *chooser) ofKey(h nats.Header) bool {
	key := h[streams.HeaderKey]
	return c.o.Key != nil && len(key) > 0 && key[0] == streams.KeyHeader(*c.o.Key)
}

func (c *chooser) ofOrigin(h nats.Header) bool {
	if c.o.Origin == nil {
		return false
	}
	seq, err := strconv.ParseUint(h.Get(streams.HeaderOriginSeq), 10, 64)
	return err == nil && c.o.Origin(h.Get(streams.HeaderOriginStream), seq)
}

// byField reads the input, and returns the rows that have the member.
func (c *chooser) byField(ctx context.Context, number int) (rows *seqset.Set, err error) {
	rows = new(seqset.Set)
	if c.o.Field == "" {
		return rows, nil
	}
	if c.input == nil {
		c.report.note("stream %s does not exist, and nothing else says which rows have the member %s: "+
			"select by --row",
			c.cfg.Input.Stream, c.o.Field)
		return rows, nil
	}
	err = c.eachRow(ctx, number, 1, func(in *stored.InputRow) error {
		if hasMember(in.Body, c.o.Field, c.o.Value) {
			rows.Add(in.Seq)
		}
		return nil
	})
	if gone := c.input.State.FirstSeq - min(1, c.input.State.FirstSeq) + uint64(c.input.State.NumDeleted); err == nil && gone > 0 { //nolint:gosec // a count
		c.report.note("%d messages of stream %s are gone, and nothing else says which of those rows had "+
			"the member %s: select them by --row",
			gone, c.cfg.Input.Stream, c.o.Field)
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

// waiting notes the rows of the selection that have no result yet.
func (c *chooser) waiting(ctx context.Context, log *partitionLog, chosen, fields *seqset.Set) error {
	var place rowkey.Place
	keyed := c.o.Key != nil
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
	err := c.eachRow(ctx, log.number, log.low+1, func(in *stored.InputRow) error {
		if log.results.Has(in.Seq) || log.tombstones[in.Seq] != nil {
			return nil
		}
		first := streams.Replaced(in.Header, c.cfg.Name, c.cfg.Input.Stream)
		again := first > 0 && chosen.Has(first)
		switch {
		case c.named(in.Seq), fields.Has(in.Seq), again, c.fromOrigin(in.Header),
			keyed && place.Of(in.Subject, in.Header, in.Body) == streams.KeyHeader(*c.o.Key):
			c.report.wait(log.number, in.Seq, "it has no result yet")
			waits[first] = again
		}
		return nil
	})
	for row, first := range log.replaces {
		if waits[first] {
			c.report.wait(log.number, row, "its row was redriven, and has no result yet")
			c.report.wait(log.number, first, "it was redriven, and has no result yet")
		}
	}
	for first := range waits {
		if waits[first] {
			c.report.wait(log.number, first, "it was redriven, and has no result yet")
		}
	}
	return err
}

// fromOrigin reports whether the result of a row will be of the origins that are selected.
func (c *chooser) fromOrigin(row nats.Header) bool {
	if c.o.Origin == nil {
		return false
	}
	stream, text := streams.Origin(row)
	seq, err := strconv.ParseUint(text, 10, 64)
	return err == nil && c.o.Origin(stream, seq)
}
