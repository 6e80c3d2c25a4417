// Package verify proves from the streams alone that every row has exactly one result, in
// order, and that the audit adds up.
//
// It trusts nothing that the stage says of itself. It reads three streams side by side, each
// once, and compares what they say of each row:
//
//	input     row 7                      it exists, with these variables
//	results   result of row 7            exactly one, behind the result of row 6
//	audit     call events of row 7       numbered 0, 1, 2 … in each term
//	          row event of row 7         the sum of these calls
//
// A contradiction is a violation, for example "call_event_missing" if the row event counts
// three calls and the audit has two. What cannot be decided, because a stream has lost
// messages for instance, is reported too, and then the verdict is not "proven":
//
//	report, err := verify.Run(ctx, js, cfg, os.Stderr)
//	if err != nil {
//		return err // the check could not be made
//	}
//	return report.Err() // nil if everything is proven
//
// Where to look: a [verification] opens the streams (store.go) and works out what is gone from
// them, and why (loss.go, erased.go, copies.go, dropped.go). An auditFeed reads the audit and
// hands each event to the partitionVerifier of its row, which has three parts:
//
//	logVerifier   log.go, keyed.go: the order of the log; chained.go: its chain
//	linkVerifier  links.go: a result and the row that it is made from
//	auditor       auditor.go, audit.go, items.go: a result and the events of its calls
//
// window.go holds events until their result is read; runs.go and batches.go add up processes
// and batches.
package verify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/objects"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/nats-io/nats.go/jetstream"
)

// claimVersionKnown is the newest format of claims that verify reads.
const claimVersionKnown = 2

// windowMax is the largest STAGE_WINDOW. It stands in for the window of a process whose
// start, an event with its settings, is gone from the audit.
const windowMax = 50_000

// claimVersionOrder is the format from which on a claim names an order.
const claimVersionOrder = 2

// verification checks one stage against its streams. It reads each stream once, and all
// of them side by side. Memory is bounded: by the stage's window for the events of rows,
// by its span for rows above the low-water mark, by the number of open batches, by a hash
// for each result whose body is an object, and by two bytes a row at most for sets of
// sequences, so a million rows need 2 MB at most.
type verification struct {
	store
	options Options
	report  *Report
	runs    *runVerifier
	objects *objectVerifier
	lane    *batchVerifier
	parts   []*partitionVerifier // by partition; none if there is no log to check

	laned    bool   // there are batches
	bodies   bodies // once the runs are known
	losses   losses
	deleted  *deletions // of the results stream
	erasures *erasures
	drops    drops  // of results that were too old
	began    string // where the logs began (see firsts), or empty without any log

	total int64 // results
}

// logBound is where the log of a partition ended when the check began. Later messages are
// not checked.
type logBound struct {
	at uint64 // its last message, or 0 if there is no log
	// chained says that this message has a chain.
	chained bool
	mark    uint64 // the row that this message names: its own, or the mark of a claim
}

// Run proves from the streams alone that every row up to the high-water mark has exactly
// one result, in stream order or that which the claims name, and that the audit adds up
// with the results. It shows its progress if progress is a terminal. An error means that
// the check could not be made; violations are in the report (see [Report.Err]).
func Run(ctx context.Context, js jetstream.JetStream, cfg *config.Config, progress io.Writer) (*Report, error) {
	return RunWith(ctx, js, cfg, Options{}, progress)
}

// Options are the options of [RunWith].
type Options struct {
	// Linked compares each result with the row that it names, if the input still has the
	// row: by the hash of the row's variables, the members that it has kept, and the
	// first row of the chain. It reads all bodies.
	Linked bool
	// Upstream is the stage whose results the rows are.
	Upstream Upstream
	// Roots are ends that the logs had earlier, which must be on the chains of today.
	Roots []Root

	opened func() // called after the streams are opened, for tests that change them then
}

// RunWith is [Run] with options. If the verdict is not that all is proven, and the owner has
// dropped old results while they were read, it reads everything again, since the parts
// read before and after the drop contradict each other.
func RunWith(ctx context.Context, js jetstream.JetStream, cfg *config.Config, o Options, progress io.Writer) (*Report, error) {
	for attempt := 1; ; attempt++ {
		v, err := checkOnce(ctx, js, cfg, o, progress)
		if err != nil {
			return nil, err
		}
		if v.report.Verdict == VerdictProven || v.began == "" || attempt == attempts {
			return v.report, nil
		}
		if now, err := v.firsts(ctx); err != nil || now == v.began {
			return v.report, err
		}
	}
}

// attempts is how often all is read, at most, while the owner drops old results meanwhile.
const attempts = 3

func checkOnce(ctx context.Context, js jetstream.JetStream, cfg *config.Config, o Options, progress io.Writer) (*verification, error) {
	report := newReport(cfg.Name)
	v := &verification{
		store:   store{js: js, cfg: cfg},
		options: o, report: report, runs: newRunVerifier(),
		objects: &objectVerifier{named: make(map[string]map[uint64]bool)},
		lane:    newBatchVerifier(report),
	}
	defer v.close()
	if err := v.open(ctx); err != nil {
		return nil, err
	}
	if o.opened != nil {
		o.opened()
	}
	if len(v.parts) > 0 {
		if err := v.read(ctx, progress); err != nil {
			return nil, err
		}
	}
	v.conclude()
	return v, nil
}

// conclude reaches the verdict once everything is read.
func (v *verification) conclude() {
	missRoots(v.options.Roots, len(v.parts), v.cfg.Result.Stream, v.report)
	if len(v.parts) > 0 {
		for _, p := range v.parts {
			if a := p.log.anchor; a != nil {
				v.runs.dropped += a.Results
				v.runs.droppedTo = later(v.runs.droppedTo, a.Stored)
			}
		}
		v.runs.finish(v.report, v.cfg.Streams.Partitions, &v.losses.audit, &v.losses.results)
		v.lane.finish()
		v.report.Audit.usage.Add(v.lane.usage.Reported, v.lane.usage.Unpriced)
		v.losses.explain(v.parts, v.report)
	}
	used := v.report.Audit.Batched
	for _, p := range v.parts {
		used += p.audit.used
		if n := p.stats.foreign; n > 0 {
			v.report.cannot("partition %d: %d results are made from rows that are in no log of stage %s, "+
				"nor copies of its results: of another publisher, or of a result that is gone",
				p.stats.Partition, n, p.links.upstream.Name)
		}
		v.report.Partitions = append(v.report.Partitions, p.stats)
	}
	v.report.Audit.Elsewhere = v.report.Audit.Calls - min(used, v.report.Audit.Calls)
	v.report.conclude()
}

// open takes a snapshot of where the streams end and begins to read them. The order
// matters on a running stage: the summaries of runs first, since all results of a run are
// there when its summary is; then the ends of the logs; then the audit, which holds the
// events of every result by then.
func (v *verification) open(ctx context.Context) (err error) {
	if err := v.readRuns(ctx); err != nil {
		return err
	}
	v.bodies = bodiesOf(v.cfg, v.options, v.runs)
	bounds, err := v.readEnds(ctx)
	if err != nil || bounds == nil {
		return err
	}
	input, err := v.streamInfo(ctx, v.cfg.Input.Stream)
	if err != nil {
		return err
	}
	audit, err := v.streamInfo(ctx, v.cfg.Audit.Stream)
	if err != nil {
		return err
	}
	v.losses.input, v.losses.audit = lossOf(input), lossOf(audit)
	if err := v.erasures.readCopies(ctx, &v.store, &v.losses.audit); err != nil {
		return err
	}
	v.lane.resultsLost = v.losses.results.any()
	if input == nil {
		v.report.note("stream %s no longer exists: the results were checked against the audit alone",
			v.cfg.Input.Stream)
	}
	if audit == nil {
		v.report.cannot("stream %s does not exist (STAGE_AUDIT_STREAM): calls, tokens and cost were not "+
			"checked",
			v.cfg.Audit.Stream)
	}
	for i, bound := range bounds {
		if err := v.openPartition(ctx, i, bound); err != nil {
			return err
		}
	}
	v.lane.auditLost = v.losses.audit.any() // as the partitions have shown, too
	return nil
}

// readRuns reads the run events stored so far. It also looks for events of batches: with
// a batch lane, more rows than the window may be answered from the start.
func (v *verification) readRuns(ctx context.Context) error {
	err := stored.ReadAudit(ctx, v.js, v.cfg, stored.ReadOptions{}, []auditlog.Kind{auditlog.KindRun, auditlog.KindBatch}, func(_ []byte, e *auditlog.Event) error {
		if e != nil && e.Run != nil {
			v.runs.run(e.Run)
		}
		v.laned = v.laned || e != nil && e.Batch != nil
		return nil
	})
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	return err
}

// readEnds reads where the logs of all partitions end, or nil.
func (v *verification) readEnds(ctx context.Context) ([]logBound, error) {
	results := v.cfg.Result.Stream
	info, err := v.streamInfo(ctx, results)
	if err != nil {
		return nil, err
	}
	if info == nil {
		v.report.cannot("stream %s does not exist (STAGE_RESULT_STREAM)", results)
		return nil, nil
	}
	n := v.runs.number("STAGE_PARTITIONS", 0)
	if n == 0 { // the start of its runs has expired
		if n, err = stored.Partitions(ctx, v.js, v.cfg); err != nil {
			return nil, fmt.Errorf("look for partitions in stream %s: %w", results, err)
		}
	}
	if n > v.cfg.Streams.Partitions {
		v.report.cannot("the stage has served %d partitions, STAGE_PARTITIONS is %d", n,
			v.cfg.Streams.Partitions)
		return nil, nil
	}
	v.losses.results = lossOf(info)
	v.deleted = v.deletionsOf(ctx, results, v.losses.results.inside)
	bounds := make([]logBound, v.cfg.Streams.Partitions)
	for i := range bounds {
		m, err := streams.LastMessage(ctx, v.js.Conn(), results, stored.LogSubject(v.cfg, i, ">"))
		if err != nil {
			return nil, fmt.Errorf("read the end of the results of partition %d: %w", i, err)
		}
		if m == nil {
			continue
		}
		bounds[i].at = m.Sequence
		bounds[i].chained = len(m.Header[proof.HeaderChain]) > 0
		if err := v.checkSubjects(ctx, i); err != nil {
			return nil, err
		}
		if bounds[i].mark, err = strconv.ParseUint(m.Header.Get(streams.HeaderSourceSeq), 10, 64); err != nil {
			v.report.violate(violationResult, i, 0,
				"message %d of stream %s has no %s header", m.Sequence, results,
				streams.HeaderSourceSeq)
		}
	}
	if !slices.ContainsFunc(bounds, func(b logBound) bool { return b.at > 0 }) {
		v.explainNoLog()
		return nil, nil
	}
	if v.began, err = v.firsts(ctx); err != nil {
		return nil, err
	}
	v.erasures, err = readErasures(ctx, &v.store, v.report, bounds, &v.losses.results, v.deleted)
	if err != nil {
		return nil, err
	}
	v.drops, err = readDropped(ctx, &v.store, v.report, bounds, &v.losses.results)
	return bounds, err
}

// checkSubjects reports messages in the log of a partition that are neither results nor
// claims. The stage takes the last message for the end of its log, whatever it is.
func (v *verification) checkSubjects(ctx context.Context, partition int) error {
	s, err := v.js.Stream(ctx, v.cfg.Result.Stream)
	if err != nil {
		return fmt.Errorf("look at stream %s: %w", v.cfg.Result.Stream, err)
	}
	info, err := s.Info(ctx, jetstream.WithSubjectFilter(stored.LogSubject(v.cfg, partition, ">")))
	if err != nil {
		return fmt.Errorf("look at stream %s: %w", v.cfg.Result.Stream, err)
	}
	for _, subject := range slices.Sorted(maps.Keys(info.State.Subjects)) {
		if subject != stored.LogSubject(v.cfg, partition, "rows") && subject != streams.ClaimSubject(v.cfg.Result.Subject, v.cfg.Name, partition) {
			v.report.violate(violationChain, partition, 0,
				"the results stream has %d messages on %s, which are neither results nor "+
					"claims: the stage does not store such",
				info.State.Subjects[subject], subject)
		}
	}
	return nil
}

// explainNoLog reports that there is nothing of this stage to check.
func (v *verification) explainNoLog() {
	if v.losses.results.any() {
		v.report.cannot("stream %s holds nothing of a stage named %s on %s, and messages of the stream are gone: %s",
			v.cfg.Result.Stream, v.cfg.Name, v.cfg.Result.Subject, v.losses.results.cause())
		return
	}
	v.report.cannot("stream %s holds nothing of a stage named %s on %s: has it run, and are STAGE_NAME and STAGE_RESULT_SUBJECT correct",
		v.cfg.Result.Stream, v.cfg.Name, v.cfg.Result.Subject)
}

// openPartition opens the streams of one partition.
func (v *verification) openPartition(ctx context.Context, number int, bound logBound) error {
	p := v.partition(number, bound)
	if bound.at > 0 {
		if err := v.openLog(ctx, p, bound); err != nil {
			return err
		}
	}
	if err := v.openInput(ctx, p); err != nil {
		return err
	}
	p.audit.gap = v.losses.gapOf(&p.log, v.runs)
	return p.start()
}

// partition makes the verifier of a partition, which reads nothing yet.
func (v *verification) partition(number int, bound logBound) *partitionVerifier {
	p := newPartitionVerifier(v.report, v.runs, number, v.windowRows(nil))
	p.log.logFacts = logFacts{
		name: v.cfg.Name, stream: v.cfg.Input.Stream, bound: bound.mark, logEnd: bound.at,
		resultsGone: v.losses.results.any(),
	}
	p.log.chain.roots = rootsOf(v.options.Roots, number)
	p.links.bodies, p.links.objects = v.bodies, v.objects
	v.parts = append(v.parts, p)
	return p
}

// openLog opens the log of a partition, which has messages.
func (v *verification) openLog(ctx context.Context, p *partitionVerifier, bound logBound) (err error) {
	number, log := p.stats.Partition, &p.log
	if log.claims, err = stored.ReadClaims(ctx, v.js, v.cfg, number, bound.at); err != nil {
		return err
	}
	from := uint64(1)
	if a := v.drops.anchors[number]; a != nil {
		log.beginAt(a)
		from = a.Sequence + 1
	}
	log.recorded = v.drops.recorded[number]
	p.window = newAuditWindow(v.windowRows(log.claims))
	p.links.every = p.links.linked && slices.ContainsFunc(log.claims, v.runs.unknown)
	log.chain.on = log.chain.on || bound.chained || slices.ContainsFunc(log.claims, func(c stored.Claim) bool { return len(c.Header[proof.HeaderChain]) > 0 })
	rows, err := v.reader(ctx, stored.ReadOptions{
		Stream: v.cfg.Result.Stream, Filters: []string{stored.LogSubject(v.cfg, number, "rows")},
		From: from, Until: bound.at, HeadersOnly: !v.bodies.read && !log.chain.on,
	})
	if err != nil {
		return err
	}
	v.total += int64(rows.Left) //nolint:gosec // messages of a stream
	log.chain.stones, log.chain.deleted = v.erasures.stones[number], v.deleted
	log.results = log.chain.stones.among(stored.NextResultFunc(ctx, rows), log.claims, log.logEnd)
	p.links.object = func(ref *objects.Ref) ([]byte, error) { return ref.Get(ctx, v.js.Conn(), ref.Bytes) }
	return nil
}

// windowRows returns how many rows without a result may have events, see
// [auditWindow.full]: twice the stage's window, and the rows that may be in batches.
// Where results are in order of keys, a term may set rows aside that an earlier one has
// called, so after some take-overs there are more.
func (v *verification) windowRows(claims []stored.Claim) int {
	windows := 2
	if slices.ContainsFunc(claims, func(c stored.Claim) bool { return c.Version >= claimVersionOrder }) {
		windows = 8
	}
	rows := v.runs.number("STAGE_WINDOW", v.cfg.Window.Rows)
	if slices.ContainsFunc(claims, v.runs.unknown) {
		rows = windowMax
	}
	if v.laned || v.cfg.LaneOn() {
		rows += v.runs.number("STAGE_LANE_OPEN", v.cfg.Lane.Open) * v.runs.number("STAGE_LANE_ROWS", v.cfg.Lane.Rows)
	}
	return windows * rows
}

// openInput opens the rows of a partition, unless the results are of another input stream.
func (v *verification) openInput(ctx context.Context, p *partitionVerifier) error {
	p.log.input.last = math.MaxUint64
	input, number := v.losses.input.info, p.stats.Partition
	for _, c := range p.log.claims {
		if c.Version > claimVersionKnown {
			v.report.cannot("partition %d: the claim at %d has format %d, which a newer stage has "+
				"written: run the verify of that version",
				number, c.At, c.Version)
		}
	}
	if n := len(p.log.claims); n > 0 {
		switch last := p.log.claims[n-1]; {
		case last.Input != p.log.stream:
			p.log.stream = last.Input
			v.report.cannot("partition %d: the results are of stream %s, STAGE_INPUT_STREAM is %s", number,
				last.Input, v.cfg.Input.Stream)
			return nil
		case input != nil && !last.Created.Equal(input.Created):
			v.report.note("partition %d: stream %s was re-created after the last claim and has other rows: the results were checked against the audit alone",
				number, v.cfg.Input.Stream)
			return nil
		}
	}
	if input == nil {
		return nil
	}
	p.log.input.last = input.State.LastSeq
	filter := v.cfg.Input.PartitionSubject(number)
	if input.Config.Retention == jetstream.LimitsPolicy {
		var err error
		rows := stored.ReadOptions{Stream: v.cfg.Input.Stream, Filters: []string{filter}}
		if p.log.input.reader, err = v.reader(ctx, rows); err != nil {
			return err
		}
	}
	p.links.original = func(seq uint64) (*stored.InputRow, error) { return v.row(ctx, seq) }
	next := stored.NextInputFunc(ctx, v.js.Conn(), p.log.input.reader, v.cfg.Input.Stream, filter)
	p.log.input.read = func() (in stored.InputRow, err error) {
		if in, err = next(); err == nil && v.bodies.read {
			err = in.Fetch(ctx, v.js.Conn())
		}
		return in, err
	}
	return nil
}

// read reads the audit and hands each event to its partition, which reads results and
// input as far as the events allow. It shows how far it is.
func (v *verification) read(ctx context.Context, progress io.Writer) error {
	feed := &auditFeed{
		report: v.report, stream: v.cfg.Audit.Stream, erasures: v.erasures, runs: v.runs, lane: v.lane, parts: v.parts,
	}
	bar := terminal.NewBar(ctx, progress, v.total, 0, func(int64, bool) terminal.Beside {
		return terminal.Beside{First: []string{fmt.Sprintf("%d audit events", feed.events.Load())}}
	})
	defer bar.Finish()
	if audit := v.losses.audit.info; audit != nil {
		filter := v.cfg.Audit.Subject + "." + v.cfg.Name + ".>"
		r, err := v.reader(ctx, stored.ReadOptions{Stream: feed.stream, Filters: []string{filter}, Until: audit.State.LastSeq})
		if err != nil {
			return err
		}
		if err := feed.run(v.erasures.inOrder(ctx, &v.store, r), bar); err != nil {
			return err
		}
	}
	for _, p := range v.parts {
		err := p.finish()
		if err != nil {
			return err
		}
		bar.Set(resultsOf(v.parts))
		if p.stats.Pending, err = v.pending(ctx, p); err != nil {
			return err
		}
	}
	return v.objects.findUnnamed(ctx, &v.store, v.parts, v.report)
}

// resultsOf counts the results that are read.
func resultsOf(parts []*partitionVerifier) (n int64) {
	for _, p := range parts {
		n += int64(p.stats.Results)
	}
	return n
}

// pending counts the rows after the high-water mark, or nil if it is unknown.
func (v *verification) pending(ctx context.Context, p *partitionVerifier) (*uint64, error) {
	n := p.log.pendingAhead
	switch in := &p.log.input; {
	case in.read == nil:
		return nil, nil //nolint:nilnil // unknown
	case in.reader != nil && in.next.Seq != 0:
		n += in.reader.Left + 1
	case in.reader == nil:
		c, err := v.js.Consumer(ctx, v.cfg.Input.Stream, streams.DurableName(v.cfg.Name, p.stats.Partition))
		if errors.Is(err, jetstream.ErrConsumerNotFound) {
			return nil, nil //nolint:nilnil // as above
		}
		if err != nil {
			return nil, fmt.Errorf("look at the consumer of partition %d: %w", p.stats.Partition, err)
		}
		info := c.CachedInfo()
		n = info.NumPending + uint64(info.NumAckPending) //nolint:gosec // a count
	}
	return &n, nil
}
