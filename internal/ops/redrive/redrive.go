// Package redrive publishes the rows of failed results again, each once.
//
// It reads the results of each partition, and finds the row of a failed one in the input or
// among the dead letters (redrive.go, letters.go). It publishes rows in groups. Marks in the
// results stream say which results were redriven, so that neither a kill nor a second
// redrive publishes a row twice (marks.go).
package redrive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/ops/erased"
	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/llm-stage/stage/llm/row"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// A group of rows is published at once when it has so many rows or bytes.
	groupRows  = 200
	groupBytes = 4 << 20

	// LoadSuffix is what the name of a load gets for the subject of its rows that are
	// published again.
	LoadSuffix = "-redriven"
)

// Options are the flags of the command redrive.
type Options struct {
	Reasons []string // only results that failed for one of these reasons; empty means all
	DryRun  bool     // count and publish nothing
	// Only selects results by their sequence in the results stream. The others are not even
	// counted. Without it all results are selected.
	Only func(at uint64) bool
}

// Report is what a redrive did. Published, Before, Gone, TooLarge, Upstream, Erased
// and Unsure add up to Failed, unless it ended early.
type Report struct {
	options Options
	// Published counts the rows that were published again or, with a dry run, that would
	// be.
	Published int `json:"published"`
	Failed    int `json:"failed"` // failed results with a reason of the options
	// Before counts results that were redriven before, or by another redrive meanwhile.
	Before int `json:"before"`
	Gone   int `json:"gone"` // results whose row is no longer in the input
	// TooLarge counts results whose row never fitted into a message, or does not fit with
	// what a redrive adds.
	TooLarge int `json:"too_large"`
	// Upstream counts results whose row was an error of an earlier stage.
	Upstream int `json:"upstream"`
	// Erased counts results whose row `stage erase` has removed. Their reason is unknown.
	Erased int `json:"erased"`
	// Unsure counts results whose row an interrupted redrive may have published, where the
	// input deletes rows.
	Unsure  int            `json:"unsure"`
	Reasons map[string]int `json:"reasons"` // all failed results by reason

	input string // the input stream of the settings
	// elsewhere is an input stream of rows that are gone, other than input. If it is set,
	// the settings may be another stage's.
	elsewhere string
	hint      string // how rows that are gone could have been redriven; may be empty
}

// Write prints the report for people.
func (r *Report) Write(w io.Writer) {
	did := "published again"
	if r.options.DryRun {
		did = "would be published again"
	}
	terminal.PrintLine(w,
		"%d rows %s, of %d failed results%s", r.Published, did, r.Failed, r.leftOut())
	reasons := make([]string, 0, len(r.Reasons))
	for _, reason := range slices.Sorted(maps.Keys(r.Reasons)) {
		reasons = append(reasons, fmt.Sprintf("%s %d", terminal.OrDash(reason), r.Reasons[reason]))
	}
	if len(reasons) > 0 {
		terminal.PrintLine(w, "failed results by reason: %s", strings.Join(reasons, ", "))
	}
}

// leftOut explains why the rows that were not published are left out.
func (r *Report) leftOut() string {
	var b strings.Builder
	for _, part := range []struct {
		n    int
		text string
	}{
		{r.Before, "were redriven before"},
		{r.Gone, "have no row in the input any more"},
		{r.TooLarge, "had a row too large for a message"},
		{r.Erased, "were erased, with their rows: publish a row again yourself if it must be answered"},
		{r.Unsure, "may have been published again by a redrive that was interrupted, and the input deletes rows"},
		{r.Upstream, "were errors when they came in: redrive the stage before this one"},
	} {
		if part.n > 0 {
			fmt.Fprintf(&b, "; %d %s", part.n, part.text)
		}
	}
	if r.Gone > 0 {
		b.WriteString(r.hint)
	}
	if r.elsewhere != "" {
		fmt.Fprintf(&b, "; STAGE_INPUT_STREAM is %s, and there are results of rows of stream %s: give all settings of the stage", r.input, r.elsewhere)
	}
	return b.String()
}

// redriver redrives the failed results of one partition.
type redriver struct {
	js        jetstream.JetStream
	cfg       *config.Config
	partition int
	// foreign says that the stage has more partitions than the configuration, whose input
	// subject is of no use then.
	foreign bool
	done    *Report // of all partitions
	results jetstream.Stream
	input   jetstream.Stream

	letters *letters // of all partitions, or nil until they are read

	// These are read once, before the first result.
	marks *redriveMarks
	since uint64 // results before this one are of another input stream

	// The group holds the rows that are published next: rows without a finished mark, in
	// stream order.
	group []*redriveRow
	bytes int // size of the group's rows
	// copied is the subject of the rows of the group if they are results of another stage,
	// see [streams.CopySubject].
	copied string

	// The next append is on condition that the input ends at last: the stream, or the
	// subject that only redrives of this stage publish on. Last is read before the marks
	// are stored or read again, so a redrive that takes them over publishes behind it.
	last uint64
	// marked is the last mark of the partition when all marks of the group were known to
	// be ours, or 0 if it is unknown.
	marked uint64
}

// redriveRow is a failed result on its way.
type redriveRow struct {
	at      uint64 // sequence of the result in its stream
	of      uint64 // sequence of the row that is published again
	stateID string
	msg     *nats.Msg    // the new row
	copied  string       // its subject if the row is a result of another stage
	begun   *redriveMark // its first mark, ours or an earlier redrive's, or nil
}

// Run publishes the original rows of the failed results that are there now, each once,
// however many redrives run or were killed. It shows its progress if progress is a
// terminal. The report is returned with an error as well, unless a stream does not exist.
func Run(ctx context.Context, js jetstream.JetStream, cfg *config.Config, o Options, progress io.Writer) (*Report, error) {
	done := &Report{options: o, Reasons: make(map[string]int)}
	results, err := js.Stream(ctx, cfg.Result.Stream)
	if err != nil {
		return nil, stored.MissingStream(err, cfg.Result.Stream, "STAGE_RESULT_STREAM")
	}
	input, err := js.Stream(ctx, cfg.Input.Stream)
	if err != nil {
		return nil, stored.MissingStream(err, cfg.Input.Stream, "STAGE_INPUT_STREAM")
	}
	partitions, err := stored.Partitions(ctx, js, cfg)
	if err != nil {
		return nil, err
	}
	if retention := input.CachedInfo().Config.Retention; retention != jetstream.LimitsPolicy && cfg.Streams.DeadLetterSubject == "" {
		done.hint = fmt.Sprintf("; stream %s deletes rows that are acked (%s retention): with STAGE_DEAD_LETTER_SUBJECT the stage keeps those that fail, and they are redriven from there",
			cfg.Input.Stream, retention)
	}
	var dead *letters
	for p := range partitions {
		r := &redriver{js: js, cfg: cfg, partition: p, foreign: partitions > cfg.Streams.Partitions, done: done, results: results, input: input, letters: dead}
		if err := r.run(ctx, progress); err != nil {
			return done, fmt.Errorf("redrive partition %d: %w", p, err)
		}
		dead = r.letters
	}
	return done, nil
}

// run reads the results up to the present last one: a row that is redriven and fails
// again is not redriven for ever.
func (r *redriver) run(ctx context.Context, progress io.Writer) error {
	log, subject := r.cfg.Result.Stream, stored.LogSubject(r.cfg, r.partition, "rows")
	end, err := streams.LastMessage(ctx, r.js.Conn(), log, subject)
	if err != nil {
		return fmt.Errorf("read the end of the results: %w", err)
	}
	if end == nil {
		return nil
	}
	if err := r.compareInput(ctx); err != nil {
		return err
	}
	if r.marks, err = r.readMarks(ctx); err != nil {
		return err
	}
	rows, err := stored.OpenReader(ctx, r.js, log, subject, end.Sequence, true)
	if err != nil {
		return err
	}
	defer rows.Close()
	var published atomic.Int64
	left := int64(rows.Left) //nolint:gosec // messages of a stream
	bar := terminal.NewBar(ctx, progress, left, 0, func(int64, bool) terminal.Beside {
		return terminal.Beside{First: []string{fmt.Sprintf("%d published again", published.Load())}}
	})
	defer bar.Finish()
	for seen := int64(1); ; seen++ {
		m, err := rows.Next(ctx)
		if err != nil {
			return err
		}
		if m == nil {
			return errors.Join(r.flush(ctx), r.countErased(ctx))
		}
		if m.Header.Get(streams.HeaderStatus) == auditlog.RowError {
			if err := r.failed(ctx, m.Sequence, m.Header); err != nil {
				return err
			}
		}
		if seen%256 == 0 {
			published.Store(int64(r.done.Published))
			bar.Set(seen)
		}
	}
}

// countErased counts the failed results that were erased. Which reason they had is not
// known, so none is counted where reasons are given.
func (r *redriver) countErased(ctx context.Context) error {
	if len(r.done.options.Reasons) > 0 || r.done.options.Only != nil {
		return nil
	}
	return erased.Each(ctx, r.js, r.cfg, r.partition, func(t *proof.Tombstone) error {
		if t.Header(streams.HeaderStatus) == auditlog.RowError {
			r.done.Failed++
			r.done.Erased++
		}
		return nil
	})
}

// compareInput sets since: results from there on are about rows of the present input stream,
// and earlier ones about rows of another stream, which are gone.
func (r *redriver) compareInput(ctx context.Context) error {
	claims, err := stored.ReadClaims(ctx, r.js, r.cfg, r.partition, r.results.CachedInfo().State.LastSeq)
	if err != nil {
		return err
	}
	info := r.input.CachedInfo()
	if len(claims) > 0 {
		r.since = math.MaxUint64
	}
	for i := len(claims) - 1; i >= 0 && claims[i].Input == info.Config.Name && claims[i].Created.Equal(info.Created); i-- {
		if r.since = claims[i].At; i == 0 {
			r.since = 0 // results before the first claim that is left, too
		}
	}
	return nil
}

// failed counts one failed result, and adds its row to the group.
func (r *redriver) failed(ctx context.Context, at uint64, header nats.Header) error {
	if only := r.done.options.Only; only != nil && !only(at) {
		return nil
	}
	result, err := streams.MessageAt(ctx, r.js.Conn(), r.cfg.Result.Stream, at)
	if err == nil && result == nil {
		err = jetstream.ErrMsgNotFound
	}
	if err != nil {
		return fmt.Errorf("read result %d: %w", at, err)
	}
	reason := row.FailureReason(result.Data, r.cfg.Prompt.ResponseField)
	r.done.Reasons[reason]++
	if want := r.done.options.Reasons; len(want) > 0 && !slices.Contains(want, reason) {
		return nil
	}
	r.done.Failed++
	mark := r.marks.begun[at]
	if r.marks.done.Has(at) || r.done.options.DryRun && mark != nil && mark.as > 0 {
		r.done.Before++
		return nil
	}
	row, err := r.original(ctx, at, header)
	if err != nil || row == nil {
		return err
	}
	if r.done.options.DryRun {
		r.done.Published++
		return nil
	}
	if subject := row.copied; subject != r.copied { // the next append has another condition
		if err := r.flush(ctx); err != nil {
			return err
		}
		r.copied = subject
	}
	row.begun = mark
	r.group = append(r.group, row)
	r.bytes += row.msg.Size()
	if len(r.group) >= groupRows || r.bytes >= groupBytes {
		return r.flush(ctx)
	}
	return nil
}

// original returns the new row of a failed result. If it can't be redriven, original counts
// the reason and returns nil.
func (r *redriver) original(ctx context.Context, at uint64, header nats.Header) (*redriveRow, error) {
	seq, err := strconv.ParseUint(header.Get(streams.HeaderSourceSeq), 10, 64)
	if source := header.Get(streams.HeaderSourceStream); source != "" && source != r.cfg.Input.Stream {
		r.done.Gone++
		r.done.input, r.done.elsewhere = r.cfg.Input.Stream, source
		return nil, nil //nolint:nilnil // counted
	}
	if err != nil || at < r.since {
		r.done.Gone++
		return nil, nil //nolint:nilerr,nilnil // counted
	}
	m, err := r.row(ctx, seq, header)
	var count *int
	mark := r.marks.begun[at]
	switch {
	case err != nil:
		return nil, err
	case m == nil:
		count = &r.done.Gone
	// An earlier redrive may have published the row, and it may be answered and deleted.
	case mark != nil && mark.as == 0 && r.input.CachedInfo().Config.Retention != jetstream.LimitsPolicy:
		count = &r.done.Unsure
	case m.Header.Get(streams.HeaderRowError) != "":
		count = &r.done.TooLarge
	case m.Header.Get(streams.HeaderStatus) == auditlog.RowError && r.cfg.Rows.OnUpstreamError == "pass":
		count = &r.done.Upstream
	default:
		m.Subject = header.Get(streams.HeaderSourceSubject) // its bytes
		row := &redriveRow{at: at, of: seq, stateID: header.Get(streams.HeaderStateID)}
		if row.msg, err = r.newRow(ctx, m, row); err != nil {
			return nil, err
		}
		if r.fits(row.msg) {
			return row, nil
		}
		count = &r.done.TooLarge
	}
	*count++
	return nil, nil //nolint:nilnil // counted
}

// row returns the row of a failed result from the input, or from its dead letter if the
// input no longer has it. It is nil if neither has it.
func (r *redriver) row(ctx context.Context, seq uint64, result nats.Header) (*jetstream.RawStreamMsg, error) {
	subject := result.Get(streams.HeaderSourceSubject)
	m, err := streams.MessageAt(ctx, r.js.Conn(), r.cfg.Input.Stream, seq)
	if err != nil {
		return nil, fmt.Errorf("read row %d: %w", seq, err)
	}
	if m != nil && m.Subject == streams.Text(subject) { // the answer is JSON
		return m, nil
	}
	if r.letters == nil {
		if r.letters, err = readLetters(ctx, r.js, r.cfg); err != nil {
			return nil, err
		}
	}
	return r.letters.row(ctx, r, seq, subject, result.Get(streams.HeaderStateID))
}

// fits reports whether the input takes a row with the headers that a redrive adds: a row
// that has nearly the size of the largest message does not fit with them, nor does one
// with as many bytes of headers as a server takes.
func (r *redriver) fits(msg *nats.Msg) bool {
	headers, limit := streams.HeaderBytes(msg.Header)+appendRoom, int(r.js.Conn().MaxPayload())
	if most := int(r.input.CachedInfo().Config.MaxMsgSize); most > 0 {
		limit = min(limit, most)
	}
	return headers <= streams.HeaderBytesMax && headers+len(msg.Data) <= limit
}

// appendRoom is the room for the condition, which the append of a single row adds.
const appendRoom = len(jetstream.ExpectedLastSubjSeqHeader+": \r\n") + len("18446744073709551615")

// newRow returns the message that publishes a row again. It leaves out the headers for
// the server and the headers that a stage has added.
func (r *redriver) newRow(ctx context.Context, m *jetstream.RawStreamMsg, row *redriveRow) (*nats.Msg, error) {
	header := make(nats.Header, len(m.Header)+5)
	streams.Carry(header, m.Header, func(name string) bool {
		return name == streams.HeaderModel || name == streams.HeaderRowProblem || streams.PassHeader(name)
	})
	streams.CopyLineage(header, m.Header)
	first, err := stored.Replaced(ctx, r.js.Conn(), r.cfg, m.Header)
	if err != nil {
		return nil, err
	}
	if first == 0 {
		first = m.Sequence
	}
	header[streams.HeaderReplaces] = []string{strconv.FormatUint(first, 10)}
	at := strconv.FormatUint(row.at, 10)
	header[streams.HeaderRedriveOf] = []string{row.stateID}
	header[headerRedriveResult] = []string{at}
	header[jetstream.MsgIDHeader] = []string{row.stateID + "/redrive/" + at}
	header[jetstream.ExpectedStreamHeader] = []string{r.cfg.Input.Stream}
	stream := r.input.CachedInfo().Config
	if row.copied, err = r.copySubject(m); err != nil {
		return nil, err
	}
	if row.copied != "" {
		return &nats.Msg{Subject: row.copied, Header: header, Data: m.Data}, nil
	}
	subject, err := streams.InputSubjectOf(stream, m.Subject)
	// The subject of such a row belongs to the load.
	if load := m.Header.Get(streams.HeaderLoadID); isLoaded(m.Subject, load) {
		var address streams.InputAddress
		filter := r.cfg.Input.Subject
		if r.foreign {
			filter = loadFilter(m.Subject, load, r.partition)
		}
		address, err = streams.AddressInput(stream, filter, r.partition, load+LoadSuffix)
		subject = address.Publish
	}
	if err != nil {
		return nil, fmt.Errorf("publish row %d again: %w", m.Sequence, config.Explained(err))
	}
	return &nats.Msg{Subject: subject, Header: header, Data: m.Data}, nil
}

// copySubject returns the subject for a copy of a row that is a result of another stage. It
// is empty if the row is no such result, or lies outside of that stage's log. The copy must
// not be in the log, where it would be an end that the stage does not know: the stage would
// be fenced, and when it takes over again the log would not end with a row of its own.
func (r *redriver) copySubject(m *jetstream.RawStreamMsg) (string, error) {
	filter := r.cfg.Input.PartitionSubject(r.partition)
	subject, ok := streams.CopySubject(filter, m.Subject, r.cfg.Name)
	stage := streams.InLog(m.Subject, m.Header)
	switch {
	case stage == "" && (subject != m.Subject || streams.Upstream(m.Header) == ""):
		return "", nil
	case !ok:
		return "", config.Invalid(fmt.Errorf("STAGE_INPUT_SUBJECT %s: row %d is a result of stage %s, and published again on %s it would break that stage's log: "+
			"with an input subject of a wildcard in place of the partition, such as %s, it gets a subject of its own (docs/chains.md#redrive)",
			r.cfg.Input.Subject, m.Sequence, stage, m.Subject, wildcardOf(m.Subject)))
	}
	return subject, nil
}

// wildcardOf is the filter for the results of all partitions of a stage, one of whose
// results has the subject.
func wildcardOf(subject string) string {
	tokens := strings.Split(subject, ".")
	tokens[len(tokens)-2] = "*"
	return strings.Join(tokens, ".")
}

// isLoaded reports whether a load has published a row: its subject then has a token with
// the name of the load. Anybody can put a name into the header, and a subject that is
// made of it may not be one, as with "a b".
func isLoaded(subject, load string) bool {
	const none = -1 // no partition
	return load != "" && loadFilter(subject, load, none) != subject
}

// loadFilter returns the filter into which a load has put its name, reconstructed from
// the subject of one of its rows: each token with the name is a wildcard, but for the
// partition's.
func loadFilter(subject, load string, partition int) string {
	tokens := strings.Split(subject, ".")
	own := slices.Index(tokens, strconv.Itoa(partition))
	for i, t := range tokens {
		if rest, ok := strings.CutPrefix(t, load); ok && i != own {
			number, numbered := strings.CutPrefix(rest, "-") // see [streams.AddressInput]
			if _, err := strconv.Atoi(number); rest == "" || numbered && err == nil {
				tokens[i] = "*"
			}
		}
	}
	return strings.Join(tokens, ".")
}
