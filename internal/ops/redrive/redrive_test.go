package redrive

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/files/load"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// redriveBench has rows and their results, of which some failed.
type redriveBench struct {
	*stagetest.Bench
	job *stagetest.Job
}

func newRedriveBench(t *testing.T) *redriveBench {
	t.Helper()
	b := &redriveBench{Bench: stagetest.NewBench(t, nil)}
	b.job = b.Job()
	b.job.Claim("run1.a", 0)
	b.Store(b.job)
	return b
}

// fail publishes a row and its failed result, and returns the sequence of the result.
func (b *redriveBench) fail(reason string, row *nats.Msg) (at uint64) {
	b.T.Helper()
	return b.answer(b.Publish(row), row.Subject, auditlog.RowError, fmt.Appendf(nil, `{"n":1,"llm_response_error":{"reason":%q,"error":"x"}}`, reason))
}

func (b *redriveBench) answer(seq uint64, subject, status string, body []byte) (at uint64) {
	b.T.Helper()
	m := stagetest.Step{Result: &stored.ResultRow{Seq: seq, Owner: "run1.a", Status: status, StateID: auditlog.StateID("stage", "ROWS", 0, seq), Source: "ROWS"}}.Message(b.T)
	m.Header.Set(streams.HeaderSourceSubject, subject)
	m.Data = body
	return b.Publish(m)
}

func (b *redriveBench) redrive(o Options) string {
	b.T.Helper()
	var out strings.Builder
	done := stagetest.Value(Run(b.T.Context(), b.JS, b.Cfg, o, &out))(b.T)
	done.Write(&out)
	return out.String()
}

// input returns the messages of the input from a sequence on, one line each.
func (b *redriveBench) input(from uint64) (lines []string) {
	b.T.Helper()
	for {
		m := stagetest.Value(streams.NextMessage(b.T.Context(), b.NC, "ROWS", ">", from))(b.T)
		if m == nil {
			return lines
		}
		from = m.Sequence + 1
		var keys []string
		for key := range m.Header {
			keys = append(keys, key+"="+m.Header.Get(key))
		}
		slices.Sort(keys)
		lines = append(lines, fmt.Sprintf("%d %s %s %s", m.Sequence, m.Subject, m.Data, strings.Join(keys, " ")))
	}
}

func want(t *testing.T, got, want string) {
	t.Helper()
	if !strings.Contains(got, want) {
		t.Errorf("got:\n%s\nwant in it:\n%s", got, want)
	}
}

func TestRedrivePublishesTheRowsOfFailedResultsOnce(t *testing.T) {
	b := newRedriveBench(t)
	first := b.fail("api_call_failed", &nats.Msg{Subject: "rows.a", Data: []byte(`{"n":1}`), Header: nats.Header{
		"Stage-Model": {"small"}, "Stage-Other": {"x"}, "Nats-Msg-Id": {"id"}, "Traceparent": {"00-1"},
	}}) // row 1
	b.answer(b.Publish(&nats.Msg{Subject: "rows.a", Data: []byte(`{"n":2}`)}), "rows.a", auditlog.RowSuccess, []byte(`{"n":2}`)) // row 2
	second := b.fail("refused", &nats.Msg{Subject: "rows.b.c", Data: []byte(`not json`)})                                        // row 3

	got := b.redrive(Options{DryRun: true})
	want(t, got, "2 rows would be published again, of 2 failed results\nfailed results by reason: api_call_failed 1, refused 1\n")
	if rows := b.input(4); len(rows) > 0 {
		t.Errorf("a dry run has published %q", rows)
	}
	want(t, b.redrive(Options{Reasons: []string{"unheard_of", "other"}}), "0 rows published again, of 0 failed results\nfailed results by reason: api_call_failed 1, refused 1\n")
	want(t, b.redrive(Options{Reasons: []string{"refused"}}), "1 rows published again, of 1 failed results\n")
	want(t, b.redrive(Options{}), "1 rows published again, of 2 failed results; 1 were redriven before\n")
	want(t, b.redrive(Options{}), "0 rows published again, of 2 failed results; 2 were redriven before\n")
	rows := []string{
		fmt.Sprintf("4 rows.b.c not json Nats-Expected-Last-Sequence=3 Nats-Expected-Stream=ROWS Nats-Msg-Id=stage/ROWS/0/3/redrive/%d Stage-Redrive-Of=stage/ROWS/0/3 Stage-Redrive-Result=%d Stage-Replaces=3", second, second),
		fmt.Sprintf(`5 rows.a {"n":1} Nats-Expected-Last-Sequence=4 Nats-Expected-Stream=ROWS Nats-Msg-Id=stage/ROWS/0/1/redrive/%d Stage-Model=small Stage-Redrive-Of=stage/ROWS/0/1 Stage-Redrive-Result=%d Stage-Replaces=1 Traceparent=00-1`, first, first),
	}
	if got := b.input(4); !slices.Equal(got, rows) {
		t.Errorf("got rows\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(rows, "\n"))
	}
	// The new row fails as well: that is another failed result.
	b.answer(5, "rows.a", auditlog.RowError, []byte(`{"llm_response_error":{"reason":"refused"}}`))
	want(t, b.redrive(Options{}), "1 rows published again, of 3 failed results; 2 were redriven before\n")
	if got := b.input(6); len(got) != 1 || !strings.Contains(got[0], `6 rows.a {"n":1}`) || !strings.Contains(got[0], "Stage-Redrive-Of=stage/ROWS/0/5 ") || !strings.HasSuffix(got[0], "Stage-Replaces=1 Traceparent=00-1") {
		t.Errorf("got %q", got)
	}
}

func TestRedriveTakesOnlyWhatWasChosen(t *testing.T) {
	b := newRedriveBench(t)
	b.fail("refused", &nats.Msg{Subject: "rows.a", Data: []byte(`{"n":1}`)})
	chosen := b.fail("refused", &nats.Msg{Subject: "rows.a", Data: []byte(`{"n":2}`)})
	only := func(at uint64) bool { return at == chosen }
	want(t, b.redrive(Options{Only: only}), "1 rows published again, of 1 failed results\nfailed results by reason: refused 1\n")
	if got := b.input(3); len(got) != 1 || !strings.Contains(got[0], `{"n":2}`) {
		t.Errorf("got %q", got)
	}
	want(t, b.redrive(Options{Only: only}), "0 rows published again, of 1 failed results; 1 were redriven before\n")
}

// An older version has named only the row before.
func TestARedriveFindsTheFirstRowOfAChain(t *testing.T) {
	b := newRedriveBench(t)
	b.fail("refused", &nats.Msg{Subject: "rows.a", Data: []byte(`{"n":1}`)})
	for seq := range uint64(3) {
		of := auditlog.StateID("stage", "ROWS", 0, seq+1)
		b.fail("refused", &nats.Msg{Subject: "rows.a", Data: []byte(`{"n":1}`), Header: nats.Header{streams.HeaderRedriveOf: {of}}})
	}
	b.redrive(Options{})
	for _, row := range b.input(5) {
		want(t, row, " Stage-Replaces=1")
	}
	if err := b.Stream("ROWS").DeleteMsg(t.Context(), 2); err != nil { // a chain ends where a row is gone
		t.Fatal(err)
	}
	b.fail("refused", &nats.Msg{Subject: "rows.a", Data: []byte(`{"n":1}`), Header: nats.Header{streams.HeaderRedriveOf: {auditlog.StateID("stage", "ROWS", 0, 3)}}})
	b.redrive(Options{})
	if rows := b.input(10); len(rows) != 1 || !strings.Contains(rows[0], " Stage-Replaces=2") {
		t.Errorf("got %q", rows)
	}
}

// Only the header tells a row that its file does not hold correctly from one that a
// producer has published.
func TestARowThatItsFileBreaksIsStillOneWhenRedriven(t *testing.T) {
	b := newRedriveBench(t)
	problem := "line 3: 3 columns, the header has 2"
	b.fail("invalid_row", &nats.Msg{
		Subject: "rows.a", Data: []byte(problem + ": 1,2,3"), Header: nats.Header{streams.HeaderRowProblem: {problem}, "Stage-Other": {"x"}},
	})
	want(t, b.redrive(Options{}), "1 rows published again, of 1 failed results\n")
	if got := b.input(2); len(got) != 1 || !strings.Contains(got[0], " Stage-Row-Problem="+problem) || strings.Contains(got[0], "Stage-Other") {
		t.Errorf("got %q", got)
	}
}

func TestRedriveLeavesOutWhatItCannotPublish(t *testing.T) {
	b := newRedriveBench(t)
	b.fail("refused", &nats.Msg{Subject: "rows.a", Data: []byte(`{"n":1}`)})
	b.fail("row_too_large", &nats.Msg{Subject: "rows.a", Data: []byte(`{"n":`), Header: nats.Header{streams.HeaderRowError: {"row_too_large"}}})
	b.fail("refused", &nats.Msg{Subject: "rows.a", Data: []byte(`{"n":3}`), Header: nats.Header{streams.HeaderStatus: {auditlog.RowError}}})
	b.fail("refused", &nats.Msg{Subject: "rows.a", Data: []byte(`{"n":4}`)})
	stagetest.Must(t, b.Stream("ROWS").DeleteMsg(t.Context(), 1))
	want(t, b.redrive(Options{}), "1 rows published again, of 4 failed results; 1 have no row in the input any more; "+
		"1 had a row too large for a message; 1 were errors when they came in: redrive the stage before this one\n")
	if got := b.input(5); len(got) != 1 || !strings.Contains(got[0], `{"n":4}`) {
		t.Errorf("got %q", got)
	}
	b.Cfg.Rows.OnUpstreamError = "process" // then it was this stage where it failed
	want(t, b.redrive(Options{}), "1 rows published again, of 4 failed results; 1 were redriven before; ")
}

// What strangers put into a row stops no redrive: each of these made it fail, for all rows.
func TestRedrivePublishesWhateverTheRowsAre(t *testing.T) {
	b := newRedriveBench(t)
	for _, row := range []*nats.Msg{
		{Subject: "rows.a", Header: nats.Header{streams.HeaderLoadID: {"a b"}}},
		{Subject: "rows.a", Header: nats.Header{streams.HeaderLoadID: {"{{ row.n }}"}}},
		{Subject: "rows.a.\xff", Data: []byte("1")},
		{Subject: "rows.*", Data: []byte("2")},
	} {
		b.fail("refused", row)
	}
	b.fail("refused", &nats.Msg{Subject: "rows.a", Data: make([]byte, b.NC.MaxPayload())})
	want(t, b.redrive(Options{}), "4 rows published again, of 5 failed results; 1 had a row too large for a message")
	var subjects []string
	for _, m := range stagetest.Read(t, b.JS, "ROWS", ">")[5:] {
		subjects = append(subjects, m.Subject)
	}
	if want := []string{"rows.a", "rows.a", "rows.a.\xff", "rows.*"}; !slices.Equal(subjects, want) {
		t.Errorf("published again on %q, want %q", subjects, want)
	}
}

func TestRedriveTakesNoRowOfAnotherInput(t *testing.T) {
	b := newRedriveBench(t)
	b.fail("refused", &nats.Msg{Subject: "rows.a", Data: []byte(`{"n":"old"}`)})
	b.Drop("ROWS")
	if _, err := b.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ROWS", Subjects: []string{"rows.>"}}); err != nil {
		t.Fatal(err)
	}
	b.Rows(1, "rows.a") // the same sequence, another row
	want(t, b.redrive(Options{}), "0 rows published again, of 1 failed results; 1 have no row in the input any more\n")
	b.job = b.Job()
	b.job.Claim("run2.a", 0)
	b.Store(b.job)
	b.answer(1, "rows.a", auditlog.RowError, []byte(`{"llm_response_error":{"reason":"refused"}}`))
	want(t, b.redrive(Options{}), "1 rows published again, of 2 failed results; 1 have no row in the input any more\n")
}

func TestRedriveLeavesTheSubjectsOfLoadsAlone(t *testing.T) {
	b := newRedriveBench(t)
	next := rowsOf(3)
	l, _, err := load.New(t.Context(), b.NC, b.Cfg, "abc", "")
	if err != nil {
		t.Fatal(err)
	}
	stagetest.Must(t, l.Run(t.Context(), 0, next, func(int64) {}))
	b.answer(2, "rows.abc", auditlog.RowError, []byte(`{"llm_response_error":{"reason":"refused"}}`))
	want(t, b.redrive(Options{}), "1 rows published again")
	if got := b.input(4); len(got) != 1 || !strings.HasPrefix(got[0], `4 rows.abc-redriven {"n":2} `) {
		t.Errorf("got %q", got)
	}
	if _, loaded, err := load.New(t.Context(), b.NC, b.Cfg, "abc", ""); err != nil || loaded != 3 {
		t.Errorf("loading again: got %d rows loaded, error %v; want 3", loaded, err)
	}
}

// A redrive may be killed anywhere. Whatever it has published is not published again, and
// what it has not is.
func TestAKilledRedriveIsContinued(t *testing.T) {
	b := newRedriveBench(t)
	var ats []uint64
	for n := range 9 {
		ats = append(ats, b.fail("refused", &nats.Msg{Subject: "rows.a", Data: fmt.Appendf(nil, `{"n":%d}`, n+1)}))
	}
	r := b.redriver()
	rows := b.rowsOf(r, ats)
	if _, err := r.begin(t.Context(), rows[:6]); err != nil { // marked, and killed
		t.Fatal(err)
	}
	if err := r.publishRows(t.Context(), rows[2:4]); err != nil { // published, and killed
		t.Fatal(err)
	}
	stagetest.Must(t, r.publishRows(t.Context(), rows[4:6]))
	stagetest.Must(t, r.finish(t.Context(), rows[4:6]))
	b.Publish(&nats.Msg{Subject: "rows.a", Data: []byte(`{"n":"other"}`)})
	want(t, b.redrive(Options{DryRun: true}), "5 rows would be published again, of 9 failed results; 4 were redriven before\n")
	want(t, b.redrive(Options{}), "5 rows published again, of 9 failed results; 4 were redriven before\n")
	want(t, b.redrive(Options{}), "0 rows published again, of 9 failed results; 9 were redriven before\n")
	var got []string
	for _, line := range b.input(10) {
		got = append(got, strings.Fields(line)[2])
	}
	if want := []string{`{"n":3}`, `{"n":4}`, `{"n":5}`, `{"n":6}`, `{"n":"other"}`, `{"n":1}`, `{"n":2}`, `{"n":7}`, `{"n":8}`, `{"n":9}`}; !slices.Equal(got, want) {
		t.Errorf("got rows %s, want %s", got, want)
	}
}

// redriver returns one to be driven step by step.
func (b *redriveBench) redriver() *redriver {
	return &redriver{
		js: b.JS, cfg: b.Cfg, done: &Report{Reasons: map[string]int{}}, results: b.Stream("RESULTS"), input: b.Stream("ROWS"),
		marks: &redriveMarks{begun: map[uint64]*redriveMark{}},
	}
}

func (b *redriveBench) rowsOf(r *redriver, ats []uint64) (rows []*redriveRow) {
	b.T.Helper()
	for _, at := range ats {
		m := stagetest.Value(r.results.GetMsg(b.T.Context(), at))(b.T)
		row, err := r.original(b.T.Context(), at, m.Header)
		if err != nil || row == nil {
			b.T.Fatalf("result %d: row %v, error %v", at, row, err)
		}
		rows = append(rows, row)
	}
	return rows
}

func TestOfManyRedrivesOneWinsEachResult(t *testing.T) {
	b := newRedriveBench(t)
	const failed = 500
	for n := range failed {
		b.fail("refused", &nats.Msg{Subject: "rows.a", Data: fmt.Appendf(nil, `{"n":%d}`, n+1)})
	}
	var wg sync.WaitGroup
	published := make([]int, 3)
	for i := range published {
		wg.Go(func() {
			done, err := Run(t.Context(), b.JS, b.Cfg, Options{}, &strings.Builder{})
			if err != nil {
				t.Error(err)
				return
			}
			published[i] = done.Published
		})
	}
	wg.Wait()
	// One of them may have met marks that another had begun: the server drops the second
	// copy by its message id.
	if got := len(b.input(failed + 1)); got != failed || published[0]+published[1]+published[2] != failed {
		t.Errorf("%v rows published, %d are there; want %d", published, got, failed)
	}
	want(t, b.redrive(Options{}), "0 rows published again, of 500 failed results; 500 were redriven before\n")
}

func TestRedriveReportsWhatIsMissing(t *testing.T) {
	b := newRedriveBench(t)
	b.fail("refused", &nats.Msg{Subject: "rows.a", Data: []byte(`{"n":1}`)})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, b.JS, b.Cfg, Options{}, &strings.Builder{}); err == nil {
		t.Error("interrupted: want an error")
	}
	// A results stream that takes results alone.
	if _, err := b.JS.UpdateStream(t.Context(), jetstream.StreamConfig{Name: "RESULTS", Subjects: []string{"results.*.*.rows"}, Storage: jetstream.MemoryStorage}); err != nil {
		t.Fatal(err)
	}
	_, err := Run(t.Context(), b.JS, b.Cfg, Options{}, &strings.Builder{})
	if err == nil || !strings.Contains(err.Error(), "stream RESULTS must capture the subject") {
		t.Errorf("got %v", err)
	}
	if rows := b.input(2); len(rows) > 0 {
		t.Errorf("rows without a mark: %q", rows)
	}
	b.Drop("ROWS")
	if _, err := Run(t.Context(), b.JS, b.Cfg, Options{}, &strings.Builder{}); !config.IsInvalid(err) || !strings.Contains(err.Error(), "stream ROWS does not exist (STAGE_INPUT_STREAM)") {
		t.Errorf("got %v", err)
	}
}

// rowsOf gives n rows to a loader.
func rowsOf(n int) func() (*nats.Msg, error) {
	i := 0
	return func() (*nats.Msg, error) {
		if i++; i > n {
			return nil, io.EOF
		}
		return &nats.Msg{Data: fmt.Appendf(nil, `{"n":%d}`, i)}, nil
	}
}

func TestAFullStreamIsTheCauseOfAMissingMark(t *testing.T) {
	b := newRedriveBench(t)
	b.fail("refused", &nats.Msg{Subject: "rows.a", Data: []byte(`{"n":1}`)})
	info := b.Stream("RESULTS").CachedInfo()
	info.Config.MaxMsgs, info.Config.Discard = int64(info.State.Msgs), jetstream.DiscardNew
	stagetest.Value(b.JS.UpdateStream(t.Context(), info.Config))(t)
	if _, err := Run(t.Context(), b.JS, b.Cfg, Options{}, io.Discard); err == nil || !strings.Contains(err.Error(), "maximum messages") || strings.Contains(err.Error(), "must capture") {
		t.Errorf("got %v", err)
	}
}
