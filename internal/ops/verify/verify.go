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
// Where to look: a [verification] opens the streams and hands each event of the audit to the
// partitionVerifier of its row. window.go holds events until their result is read, order.go
// and keyed.go follow the log, links.go compares rows with results, and audit.go adds up
// calls.
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
	"sync/atomic"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/objects"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/nats-io/nats.go/jetstream"
)

// claimVersionKnown is the format of claims that verify reads.
const claimVersionKnown = 2

// windowMax is the largest STAGE_WINDOW. A process had it at most, also where the event
// of its start, which has its settings, is gone from the audit.
const windowMax = 50_000

// claimVersionOrder is the format of claims that name an order.
const claimVersionOrder = 2

// verification checks one stage against its streams. It reads each stream once, and all
// of them side by side. Memory is bounded: by the stage's window for the events of rows,
// by its span for rows above the low-water mark, by the number of open batches, and by
// two bytes a row at most for sets of sequences, so a million rows need 2 MB at most.
type verification struct {
	js      jetstream.JetStream
	cfg     *config.Config
	options Options
	bodies  bodies // once the runs are known
	report  *Report
	runs    *runVerifier
	objects *objectVerifier
	lane    *batchVerifier
	laned   bool                 // there are batches
	parts   []*partitionVerifier // by partition; none if there is no log to check

	inputLoss, resultsLoss, auditLoss streamLoss // when the check began

	othersStones []*stone          // places of erased results of other stages in the stream
	stones       []tombstones      // of erased results, by partition
	entombed     []map[uint64]bool // the rows of these, by partition
	deleted      *deletions        // of the results stream
	copies       []eventCopy       // of erased events, by the places of these
	cut          int               // events that are stored shorter than they were recorded
	drops        drops             // of results that were too old
	began        string            // where the logs began (see firsts), or empty without any log

	readers []*stored.Reader // to close at the end

	total  int64        // results
	events atomic.Int64 // audit events that are read; the progress bar reads it meanwhile
}

// logBound is where the log of a partition ended when the check began. Later messages are
// not checked.
type logBound struct {
	at uint64 // its last message, or 0 if there is no log
	// chained says that this message has a chain.
	chained bool
	mark    uint64 // the row of its last result
}

// Run proves from the streams alone that every row up to the high-water mark has exactly
// one result, in stream order or that which the claims name, and that the audit adds up
// with the results. It shows its progress if progress is a terminal. An error means that
// the check could not be made; violations are in the report (see [Report.Err]).
func Run(ctx context.Context, js jetstream.JetStream, cfg *config.Config, progress io.Writer) (*Report, error) {
	return RunWith(ctx, js, cfg, Options{}, progress)
}

// Options of [RunWith].
type Options struct {
	// Linked has each result compared with the row that it names, as far as the input
	// still has it: by the hash of the row's variables, the members that it has kept, and
	// the first row of the chain. It reads all bodies.
	Linked bool
	// Upstream is the stage whose results the rows are.
	Upstream Upstream
	// Roots are ends that the logs had earlier, which must be on the chains of today.
	Roots []Root

	opened func() // tests change the streams then
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
		js: js, cfg: cfg, options: o, report: report, runs: newRunVerifier(),
		objects: &objectVerifier{named: make(map[string]map[uint64]bool)},
		lane:    newBatchVerifier(report),
	}
	defer v.closeReaders()
	if err := v.open(ctx); err != nil {
		return nil, err
	}
	if o.opened != nil {
		o.opened()
	}
	if len(v.parts) > 0 {
		bar := terminal.NewBar(ctx, progress, v.total, 0, func(int64, bool) terminal.Beside {
			return terminal.Beside{First: []string{fmt.Sprintf("%d audit events", v.events.Load())}}
		})
		err := v.read(ctx, bar)
		bar.Finish()
		if err != nil {
			return nil, err
		}
	}
	v.conclude()
	return v, nil
}

// conclude reaches the verdict once everything is read.
func (v *verification) conclude() {
	v.missRoots()
	if len(v.parts) > 0 {
		for _, p := range v.parts {
			if a := p.anchor; a != nil {
				v.runs.dropped += a.Results
				v.runs.droppedTo = later(v.runs.droppedTo, a.Stored)
			}
		}
		v.runs.finish(v.report, v.cfg.Streams.Partitions, &v.auditLoss, &v.resultsLoss)
		v.lane.finish()
		v.report.Audit.usage.Add(v.lane.usage.Reported, v.lane.usage.Unpriced)
		v.explain()
	}
	used := v.report.Audit.Batched
	for _, p := range v.parts {
		used += p.used
		if n := p.stats.foreign; n > 0 {
			v.report.cannot("partition %d: %d results are made from rows that are in no log of stage %s, "+
				"nor copies of its results: of another publisher, or of a result that is gone",
				p.stats.Partition, n, p.upstream.Name)
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
	v.bodies = v.bodiesOf()
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
	v.inputLoss, v.auditLoss = lossOf(input), lossOf(audit)
	if err := v.readCopies(ctx); err != nil {
		return err
	}
	v.lane.resultsLost = v.resultsLoss.any()
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
	v.lane.auditLost = v.auditLoss.any() // as the partitions have shown, too
	return nil
}

// reader opens a reader that is closed at the end.
func (v *verification) reader(ctx context.Context, stream, filter string, until uint64, headersOnly bool) (*stored.Reader, error) {
	return v.readerOf(ctx, stored.ReadOptions{Stream: stream, Filters: []string{filter}, Until: until, HeadersOnly: headersOnly})
}

func (v *verification) readerOf(ctx context.Context, o stored.ReadOptions) (*stored.Reader, error) {
	r, err := stored.Open(ctx, v.js, o)
	if err == nil {
		v.readers = append(v.readers, r)
	}
	return r, err
}

func (v *verification) closeReaders() {
	for _, r := range v.readers {
		r.Close()
	}
}

// streamInfo returns nil for a stream that does not exist.
func (v *verification) streamInfo(ctx context.Context, name string) (*jetstream.StreamInfo, error) {
	s, err := v.js.Stream(ctx, name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return nil, nil //nolint:nilnil // that it is missing is an answer
	case err != nil:
		return nil, fmt.Errorf("look at stream %s: %w", name, err)
	}
	return s.CachedInfo(), nil
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
	v.resultsLoss = lossOf(info)
	v.deleted = v.deletionsOf(ctx, results, v.resultsLoss.inside)
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
	if err := v.readStones(ctx, bounds); err != nil {
		return nil, err
	}
	return bounds, v.readDropped(ctx, bounds)
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
	if v.resultsLoss.any() {
		v.report.cannot("stream %s holds nothing of a stage named %s on %s, and messages of the stream are gone: %s",
			v.cfg.Result.Stream, v.cfg.Name, v.cfg.Result.Subject, v.resultsLoss.cause())
		return
	}
	v.report.cannot("stream %s holds nothing of a stage named %s on %s: has it run, and are STAGE_NAME and STAGE_RESULT_SUBJECT correct",
		v.cfg.Result.Stream, v.cfg.Name, v.cfg.Result.Subject)
}

// openPartition opens the streams of one partition.
func (v *verification) openPartition(ctx context.Context, number int, bound logBound) error {
	cfg := v.cfg
	p := v.partition(number, bound)
	if bound.at > 0 {
		var err error
		if p.claims, err = stored.ReadClaims(ctx, v.js, cfg, number, bound.at); err != nil {
			return err
		}
		from := uint64(1)
		if a := v.drops.anchors[number]; a != nil {
			p.beginAt(a)
			from = a.Sequence + 1
		}
		p.recorded = v.drops.recorded[number]
		p.window = newAuditWindow(v.windowRows(p.claims))
		p.every = p.linked && slices.ContainsFunc(p.claims, v.runs.unknown)
		p.chain.on = p.chain.on || bound.chained || slices.ContainsFunc(p.claims, func(c stored.Claim) bool { return len(c.Header[proof.HeaderChain]) > 0 })
		rows, err := v.readerOf(ctx, stored.ReadOptions{
			Stream: cfg.Result.Stream, Filters: []string{stored.LogSubject(cfg, number, "rows")}, From: from, Until: bound.at, HeadersOnly: !v.bodies.read && !p.chain.on,
		})
		if err != nil {
			return err
		}
		v.total += int64(rows.Left) //nolint:gosec // messages of a stream
		p.chain.stones, p.chain.deleted = v.stones[number], v.deleted
		p.results = p.chain.stones.among(stored.NextResultFunc(ctx, rows), p.claims, p.logEnd)
		p.object = func(ref *objects.Ref) ([]byte, error) { return ref.Get(ctx, v.js.Conn(), ref.Bytes) }
	}
	if err := v.openInput(ctx, p); err != nil {
		return err
	}
	p.auditGone, p.auditGoneByItself = v.auditOf(p, v.auditLoss.gone), v.auditOf(p, v.auditLoss.goneByItself())
	return p.start()
}

// partition makes the verifier of a partition, which reads nothing yet.
func (v *verification) partition(number int, bound logBound) *partitionVerifier {
	p := &partitionVerifier{
		report: v.report, runs: v.runs, objects: v.objects, bodies: v.bodies,
		partitionFacts: partitionFacts{
			name: v.cfg.Name, stream: v.cfg.Input.Stream, bound: bound.mark, logEnd: bound.at,
			auditExpired: v.auditLoss.expired, resultsGone: v.resultsLoss.any(),
		},
		stats: verifiedPartition{Partition: number}, window: newAuditWindow(v.windowRows(nil)),
	}
	p.chain.roots = v.rootsOf(number)
	p.results = func() (*stored.ResultRow, error) { return nil, nil } //nolint:nilnil // the end
	v.parts = append(v.parts, p)
	return p
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
	p.inputLast = math.MaxUint64
	input, number := v.inputLoss.info, p.stats.Partition
	for _, c := range p.claims {
		if c.Version > claimVersionKnown {
			v.report.cannot("partition %d: the claim at %d has format %d, which a newer stage has "+
				"written: run the verify of that version",
				number, c.At, c.Version)
		}
	}
	if n := len(p.claims); n > 0 {
		switch last := p.claims[n-1]; {
		case last.Input != p.stream:
			p.stream = last.Input
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
	p.inputLast = input.State.LastSeq
	filter := v.cfg.Input.PartitionSubject(number)
	if input.Config.Retention == jetstream.LimitsPolicy {
		var err error
		if p.rows, err = v.reader(ctx, v.cfg.Input.Stream, filter, math.MaxUint64, false); err != nil {
			return err
		}
	}
	p.original = v.originalFunc(ctx)
	next := stored.NextInputFunc(ctx, v.js.Conn(), p.rows, v.cfg.Input.Stream, filter)
	p.input = func() (in stored.InputRow, err error) {
		if in, err = next(); err == nil {
			err = v.fetch(ctx, &in)
		}
		return in, err
	}
	return nil
}

// fetch reads the body of a row that is an object, if bodies are read at all.
func (v *verification) fetch(ctx context.Context, in *stored.InputRow) error {
	if !v.bodies.read {
		return nil
	}
	return in.Fetch(ctx, v.js.Conn())
}

// read reads the audit and hands each event to its partition, which reads results and
// input as far as the events allow.
func (v *verification) read(ctx context.Context, bar *terminal.Bar) error {
	if audit := v.auditLoss.info; audit != nil {
		r, err := v.reader(ctx, v.cfg.Audit.Stream, v.cfg.Audit.Subject+"."+v.cfg.Name+".>", audit.State.LastSeq, false)
		if err != nil {
			return err
		}
		if err := v.readAudit(v.inOrder(ctx, r), bar); err != nil {
			return err
		}
	}
	for _, p := range v.parts {
		err := p.finish()
		if err != nil {
			return err
		}
		bar.Set(v.results())
		if p.stats.Pending, err = v.pending(ctx, p); err != nil {
			return err
		}
	}
	return v.findUnnamed(ctx)
}

// results counts the results that are read.
func (v *verification) results() (n int64) {
	for _, p := range v.parts {
		n += int64(p.stats.Results)
	}
	return n
}

func (v *verification) readAudit(next func() (*jetstream.RawStreamMsg, error), bar *terminal.Bar) error {
	later, foreign := 0, 0
	for {
		m, err := next()
		if err != nil {
			return err
		}
		if m == nil {
			break
		}
		e, err := auditlog.Decode(m.Data)
		switch {
		case errors.Is(err, auditlog.ErrSchemaVersion):
			later++
		case err != nil:
			foreign++
		default:
			if err := v.event(e, v.recorded(m, e)); err != nil {
				return err
			}
		}
		if v.events.Add(1)%1024 == 0 {
			bar.Set(v.results())
		}
	}
	if later > 0 {
		v.report.cannot("%d audit events were written by a newer version of the stage: run the verify of "+
			"that version",
			later)
	}
	if v.cut > 0 {
		v.report.note("%d events of stream %s are stored shorter than they were recorded, as the "+
			"server's max_payload was lowered: what is left of them is taken on trust",
			v.cut, v.cfg.Audit.Stream)
	}
	if foreign > 0 {
		v.report.note("%d messages of stream %s are not audit events and were skipped", foreign,
			v.cfg.Audit.Stream)
	}
	return nil
}

// recorded returns the hash of an event as it was recorded. An event that was cut to fit
// into the stream, or whose row was erased, is stored together with its original hash.
func (v *verification) recorded(m *jetstream.RawStreamMsg, e *auditlog.Event) proof.Hash {
	if len(m.Header[streams.HeaderErased]) > 0 {
		if r := e.Row; r != nil && r.Source != auditlog.SourceDedupe && r.Partition >= 0 && int(r.Partition) < len(v.parts) {
			v.parts[r.Partition].used += uint64(max(0, r.Attempts+r.CapacityRetries)) //nolint:gosec // not negative
		}
	}
	erased := len(m.Header[streams.HeaderErased]) > 0 && v.hasTombstone(e)
	if whole := m.Header.Get(proof.HeaderRecorded); whole != "" && (erased || truncated(e)) {
		if !erased {
			v.cut++
		}
		hash, _ := proof.ParseHash(whole) // a wrong text gives the hash of no event
		return hash
	}
	if e.Row == nil && e.Call == nil {
		return proof.Hash{}
	}
	return proof.HashOf(m.Data)
}

// hasTombstone reports whether a row that an event is about was erased. Without that the
// hash which a copy carries would cover any change of an event.
func (v *verification) hasTombstone(e *auditlog.Event) bool {
	var rows []uint64
	switch {
	case e.Partition < 0 || int(e.Partition) >= len(v.entombed):
		return false
	case e.Row != nil:
		rows = []uint64{e.Row.Sequence}
	case e.Call != nil && len(e.Call.Rows) > 0:
		rows = e.Call.Rows
	case e.Call != nil:
		rows = []uint64{e.Call.Sequence}
	}
	return slices.ContainsFunc(rows, func(row uint64) bool { return v.entombed[e.Partition][row] })
}

// truncated reports whether an event says that parts of it were left out. Only such an
// event may stand by a hash that it carries itself. Otherwise somebody could alter any
// event and store the old hash beside it.
func truncated(e *auditlog.Event) bool {
	return e.Call != nil && e.Call.Truncated || e.Row != nil && e.Row.Truncated
}

// event hands an event, and its hash, to its run and its partition.
func (v *verification) event(e *auditlog.Event, hash proof.Hash) error {
	var p *partitionVerifier // stays nil if the event is about no row
	if e.Partition >= 0 && int(e.Partition) < len(v.parts) {
		p = v.parts[e.Partition]
	}
	switch c := e.Call; {
	case e.Batch != nil:
		v.lane.event(e.Batch)
		return nil
	case c == nil:
	case c.Lane != "" && p != nil:
		v.runs.call(c, v.lane.call(c, p.term(c.Owner).epoch))
	default:
		v.lane.wentLive(c)
		v.runs.call(c, true)
	}
	if e.Call != nil && e.Call.Unused {
		return nil // the row was answered by others
	}
	if p == nil || e.Row == nil && (e.Call == nil || e.Call.Sequence == 0) {
		return nil
	}
	if e.Call == nil {
		return p.event(e, hash)
	}
	p.checkParts(e.Call)
	for call := range e.Call.EachRow() {
		one := *e
		one.Call = call
		if err := p.event(&one, hash); err != nil {
			return err
		}
	}
	return nil
}

// pending counts the rows after the high-water mark, or nil if it is unknown.
func (v *verification) pending(ctx context.Context, p *partitionVerifier) (*uint64, error) {
	n := uint64(0)
	switch {
	case p.input == nil:
		return nil, nil //nolint:nilnil // unknown
	case p.rows != nil && p.nextInput.Seq != 0:
		n = p.rows.Left + 1 + p.pendingAhead
	case p.rows != nil:
		n = p.pendingAhead
	case p.rows == nil:
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
