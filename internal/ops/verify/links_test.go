package verify

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/row"
	"github.com/nats-io/nats.go"
)

// upstreamRow is row seq of a linkJob: a result of stage map.
func upstreamRow(seq uint64) *nats.Msg {
	m := &nats.Msg{Subject: "rows.map.0.rows", Data: fmt.Appendf(nil, `{"n":%d,"F":"chunk","F_error":{"reason":"x"}}`, seq), Header: nats.Header{
		streams.HeaderSourceStream: {"CHUNKS"}, streams.HeaderSourceSeq: {fmt.Sprint(seq + 100)}, streams.HeaderStatus: {auditlog.RowSuccess},
		streams.HeaderStateID: {auditlog.StateID("map", "CHUNKS", 0, seq+100)},
	}}
	switch {
	case seq == 9: // a copy of row 2
		m = upstreamRow(2)
		m.Subject = "rows.map.redriven-stage.rows"
		m.Header.Set(streams.HeaderReplaces, "2")
	case seq == 5:
		m.Header.Set(streams.HeaderStatus, auditlog.RowError)
	case seq > 5: // of a later stage
		m.Header.Set(streams.HeaderOriginStream, "FILES")
		m.Header.Set(streams.HeaderOriginSeq, fmt.Sprint(seq/2))
	}
	return m
}

// linkJob is a job of nine rows that are results of another stage. Row 2 has failed, row
// 5 was passed on, row 9 is row 2 again.
func linkJob(b *stagetest.Bench) *stagetest.Job {
	b.T.Helper()
	format := stagetest.Value(row.NewFormat("F", row.Provenance{}))(b.T)
	var rows []*nats.Msg
	for seq := range uint64(9) {
		rows = append(rows, upstreamRow(seq+1))
		b.Publish(rows[seq])
	}
	j := b.Job()
	j.Start("run1")
	j.Claim("run1.a", 0)
	for i, m := range rows {
		seq := uint64(i) + 1 //nolint:gosec // small
		j.Answer("run1.a", seq)
		r, event := j.Steps[len(j.Steps)-1].Result, rowEventOf(j, seq)
		of := stagetest.Value(row.Parse(m.Data))(b.T)
		of.KeepAs("map")
		event.VariablesHash = of.VariablesHash()
		r.Subject = m.Subject
		r.Header = nats.Header{streams.HeaderOriginStream: {"CHUNKS"}, streams.HeaderOriginSeq: {m.Header.Get(streams.HeaderSourceSeq)}}
		if origin := m.Header.Get(streams.HeaderOriginSeq); origin != "" {
			r.Header = nats.Header{streams.HeaderOriginStream: {"FILES"}, streams.HeaderOriginSeq: {origin}}
		}
		r.Body = format.AppendSuccess(nil, of, &row.Answer{Text: "hi", VariablesHash: of.VariablesHash()})
		switch seq {
		case 2:
			r.Body = format.AppendError(nil, of, &llm.Error{Reason: "api_call_failed", Err: errors.New("no")}, nil, 0)
		case 5:
			r.Body, event.VariablesHash, event.Source = m.Data, "", auditlog.SourceUpstream
			event.Attempts, event.Usage = 0, nil
			j.Remove(j.Index(func(s stagetest.Step) bool { return s.Call != nil && s.Call.Sequence == 5 }))
		case 9:
			r.Replaces = "2"
		}
	}
	j.End("run1")
	fail(j, 2)
	fail(j, 5)
	return j
}

func verifyLinks(b *stagetest.Bench) (*Report, string, int) {
	b.T.Helper()
	return verifyWith(b, Options{Linked: true, Upstream: Upstream{Name: "map", ResultSubject: "rows", Partitions: 1}})
}

func TestVerifyProvesTheLinksOfAStage(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	b.Store(linkJob(b))
	report, text, code := verifyLinks(b)
	if code != codeProven || report.Partitions[0].Linked != 9 {
		t.Errorf("got exit code %d, %d links:\n%s", code, report.Partitions[0].Linked, text)
	}
}

// swap swaps what a part of two results is.
func swapBodies(j *stagetest.Job, one, other uint64) {
	a, b := j.Steps[j.ResultOf(one)].Result, j.Steps[j.ResultOf(other)].Result
	a.Body, b.Body = b.Body, a.Body
}

// linkFaults are what may be wrong with the links of linkJob.
var linkFaults = []fault{
	{
		"two bodies swapped", func(j *stagetest.Job) { swapBodies(j, 3, 4) },
		[]string{"bad_link: partition 0: the result at 4 of the results stream is not made from row 3, which it names: it has the variables' hash"},
	},
	{
		"two origins swapped", func(j *stagetest.Job) {
			a, b := j.Steps[j.ResultOf(3)].Result, j.Steps[j.ResultOf(7)].Result
			a.Header, b.Header = b.Header, a.Header
		},
		[]string{"bad_origin: partition 0: the result of row 3, at 4 of the results stream, names 3 of stream FILES as the first row of its chain; it is 103 of stream CHUNKS"},
	},
	{
		"an origin missing", func(j *stagetest.Job) { j.Steps[j.ResultOf(3)].Result.Header = nil },
		[]string{"bad_origin: partition 0: the result of row 3, at 4 of the results stream, names none as the first row of its chain; it is 103 of stream CHUNKS"},
	},
	{
		"the link doubled, and one missing", func(j *stagetest.Job) {
			i := j.ResultOf(4)
			r := *j.Steps[j.ResultOf(3)].Result
			j.Steps[i].Result = &r
		},
		[]string{"doubled: partition 0: row 3 has another result", "lost: partition 0: row 4 has no result"},
	},
	{
		"two links swapped", func(j *stagetest.Job) { // results and ids, in the order of the stream
			swapBodies(j, 3, 4)
			a, b := j.Steps[j.ResultOf(3)].Result, j.Steps[j.ResultOf(4)].Result
			a.Header, b.Header = b.Header, a.Header
		},
		[]string{"bad_link: partition 0: the result at 4", "bad_origin: partition 0: the result of row 4, at 5"},
	},
	{
		"an error with another row's members", func(j *stagetest.Job) {
			r := j.Steps[j.ResultOf(2)].Result
			r.Body = []byte(strings.Replace(string(r.Body), `"n":2`, `"n":3`, 1))
		},
		[]string{"bad_link: partition 0: the result at 3 of the results stream is not made from row 2, which it names: it has other members"},
	},
	{
		"an error without a member", func(j *stagetest.Job) {
			r := j.Steps[j.ResultOf(2)].Result
			r.Body = []byte(strings.Replace(string(r.Body), `"n":2,`, ``, 1))
		},
		[]string{"bad_link: partition 0: the result at 3 of the results stream is not made from row 2, which it names: it has other members"},
	},
	{
		"a row event of another row", func(j *stagetest.Job) { rowEventOf(j, 3).VariablesHash = rowEventOf(j, 4).VariablesHash },
		[]string{"bad_link: partition 0: the row event of row 3 has the variables' hash "},
	},
	{
		"the body of an error that was passed on", func(j *stagetest.Job) { j.Steps[j.ResultOf(5)].Result.Body = []byte(`{"n":6,"F_error":{}}`) },
		[]string{"bad_link: partition 0: the result at 6 of the results stream is not made from row 5"},
	},
	{
		"another text in an error that was passed on", func(j *stagetest.Job) {
			r := j.Steps[j.ResultOf(5)].Result
			r.Body = []byte(strings.Replace(string(r.Body), `"reason":"x"`, `"reason":"y"`, 1))
		},
		[]string{"bad_link: partition 0: row 5 is an error that was passed on, and its result, at 6 of the results stream, has another body"},
	},
	{
		"a success with another row's member", func(j *stagetest.Job) {
			r := j.Steps[j.ResultOf(3)].Result
			r.Body = []byte(strings.Replace(string(r.Body), `"n":3`, `"n":4`, 1))
		},
		[]string{"bad_link: partition 0: the result at 4 of the results stream is not made from row 3, which it names: it has other members"},
	},
	{
		"a success with a member more", func(j *stagetest.Job) {
			r := j.Steps[j.ResultOf(3)].Result
			r.Body = []byte(strings.Replace(string(r.Body), `"n":3`, `"n":3,"m":3`, 1))
		},
		[]string{"bad_link: partition 0: the result at 4 of the results stream is not made from row 3, which it names: it has other members"},
	},
	{
		"another subject of the row", func(j *stagetest.Job) { j.Steps[j.ResultOf(3)].Result.Subject = "rows.map.1.rows" },
		[]string{`bad_link: partition 0: the result at 4 of the results stream is not made from row 3, which it names: it names "rows.map.1.rows" as its subject`},
	},
	{
		"a success without its fields", func(j *stagetest.Job) { j.Steps[j.ResultOf(3)].Result.Body = []byte(`{"n":3}`) },
		[]string{"bad_link: partition 0: the result at 4 of the results stream is not made from row 3, which it names: it lacks the fields of a success"},
	},
}

// looseRow is row seq of a looseJob. Its elements, of which there are none, have no hash.
func looseRow(seq uint64) *nats.Msg {
	m := upstreamRow(seq)
	m.Data = fmt.Appendf(nil, `{"F":"x","a":"x","n":%d,"xs":[],"long":"%s"}`, seq, strings.Repeat("é", 400))
	if seq < 3 { // of no stage
		m.Header = nil
	}
	return m
}

// looseJob is a job of seven rows, of which no result holds a hash: 1 to 4 have empty
// arrays, 5 to 7 failed and there was no room for the row. A loader could not read row 7,
// and what it put there is not the row's beginning.
func looseJob(b *stagetest.Bench) *stagetest.Job {
	b.T.Helper()
	format := stagetest.Value(row.NewFormat("F", row.Provenance{}))(b.T)
	j := b.Job()
	j.Start("run1")
	j.Steps[0].Run.Settings["STAGE_FOREACH"], j.Steps[0].Run.Settings["STAGE_RESPONSE_FIELD"] = "xs", "F"
	j.Claim("run1.a", 0)
	for seq := range uint64(7) {
		seq++
		m := looseRow(seq)
		if seq == 7 {
			m.Data, m.Header = []byte("a quote is missing: \"n\",7\r\n"), nats.Header{streams.HeaderRowProblem: {"a quote is missing"}}
		}
		b.Publish(m)
		j.Answer("run1.a", seq)
		if seq < 5 { // there was no call
			j.Remove(len(j.Steps) - 3)
			event := rowEventOf(j, seq)
			event.Attempts, event.Usage, event.Source = 0, nil, ""
		}
		r := j.Steps[len(j.Steps)-1].Result
		r.Subject, r.Header = m.Subject, nats.Header{}
		if m.Header.Get(streams.HeaderSourceSeq) != "" {
			r.Header = nats.Header{streams.HeaderOriginStream: {"CHUNKS"}, streams.HeaderOriginSeq: {m.Header.Get(streams.HeaderSourceSeq)}}
			if seq > 5 {
				r.Header = nats.Header{streams.HeaderOriginStream: {"FILES"}, streams.HeaderOriginSeq: {m.Header.Get(streams.HeaderOriginSeq)}}
			}
		}
		rowEventOf(j, seq).VariablesHash = "" // as where the audit has expired
		of, err := row.Parse(m.Data)
		if err == nil && seq >= 3 {
			of.KeepAs("map")
		}
		switch {
		case seq < 5:
			items, err := of.Items("xs", 1)
			if err != nil || items.Len() > 0 {
				b.T.Fatal(items, err)
			}
			r.Body = format.AppendItems(nil, of, nil)
		case seq < 7:
			r.Body = format.AppendError(nil, of, &llm.Error{Reason: "api_call_failed", Err: errors.New("no")}, nil, 700)
		default:
			r.Body = format.AppendError(nil, nil, row.Broken("a quote is missing", []byte(`"n",7`)), nil, 0)
		}
	}
	j.End("run1")
	for seq := range uint64(3) {
		fail(j, 5+seq)
	}
	return j
}

func verifyLoose(b *stagetest.Bench) (*Report, string, int) {
	b.T.Helper()
	return verifyWith(b, Options{Linked: true})
}

func TestVerifyProvesTheLinksOfResultsWithoutAHash(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	b.Store(looseJob(b))
	if report, text, code := verifyLoose(b); code != codeProven || report.Partitions[0].Linked != 7 {
		t.Errorf("got exit code %d, %d links:\n%s", code, report.Partitions[0].Linked, text)
	}
}

func TestVerifyFindsFaultsOfLinksWithoutAHash(t *testing.T) {
	swapped := func(one, other uint64, what string) fault {
		return fault{
			fmt.Sprint("the bodies of ", one, " and ", other), func(j *stagetest.Job) { swapBodies(j, one, other) },
			[]string{
				fmt.Sprintf("bad_link: partition 0: the result at %d of the results stream is not made from row %d, which it names: it %s", one+1, one, what),
				fmt.Sprintf("bad_link: partition 0: the result at %d of the results stream is not made from row %d, which it names: it %s", other+1, other, what),
			},
		}
	}
	findsFaults(t, []fault{
		swapped(1, 2, "has other members"), swapped(3, 4, "has other members"), swapped(5, 6, "quotes another row"), swapped(7, 6, "quotes another row"),
	}, looseJob, verifyLoose)
}

func TestVerifyFindsFaultsOfLinks(t *testing.T) { findsFaults(t, linkFaults, linkJob, verifyLinks) }

// A success has all members of its row but those that it replaces, which only a row of no
// stage loses.
func TestVerifyKnowsTheMembersThatASuccessReplaces(t *testing.T) {
	format := stagetest.Value(row.NewFormat("F", row.Provenance{}))(t)
	for _, tt := range []struct {
		name, row, planted string
		fields             []string
		want               string
		keep               llm.Keep
	}{
		{"nothing", `{"n":1,"m":[1, 2]}`, "", []string{"F"}, "", 0},
		{"parts that are kept", `{"n":1,"F_id":2,"F_raw":3}`, "", []string{"F"}, "", llm.KeepID | llm.KeepReasoning},
		{"a part that is not kept", `{"n":1,"F_id":2}`, "", []string{"F"}, "", llm.KeepReasoning},
		{"a part that is not replaced", `{"F_id":2,"F_x":2}`, `"F_x":3`, []string{"F"}, "has other members", llm.KeepID},
		{"a reply before", `{"F":"old","n":1,"F_usage":null,"F_error":{},"F_x":2}`, "", []string{"G", "F"}, "", 0},
		{"another field before", `{"G":"old","n":1}`, "", []string{"G", "F"}, "", 0},
		{"a member that is not replaced", `{"F":"old","n":1,"F_x":2}`, `"F_x":3`, []string{"G", "F"}, "has other members", 0},
		{"a field that no run has had", `{"F":"old","n":1}`, "", []string{"G"}, "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			of := stagetest.Value(row.Parse([]byte(tt.row)))(t)
			format.Keep = tt.keep
			body := format.AppendSuccess(nil, of, &row.Answer{Text: "new", VariablesHash: of.VariablesHash()})
			if tt.planted != "" {
				body = []byte(strings.Replace(string(body), `"F_x":2`, tt.planted, 1))
			}
			b := &bodies{read: true, linked: true, fields: tt.fields}
			r := &stored.ResultRow{Status: auditlog.RowSuccess, Subject: "rows.a", Body: body}
			s := b.sourceOf(&stored.InputRow{Seq: 1, Subject: "rows.a", Body: []byte(tt.row)})
			if got := b.differs(s, r, b.madeOf(r)); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// row10 puts a row in the place of the last one of a linkJob, as row 10, and returns its result.
func row10(b *stagetest.Bench, j *stagetest.Job, m *nats.Msg) *stored.ResultRow {
	b.T.Helper()
	stagetest.Must(b.T, b.Stream("ROWS").DeleteMsg(b.T.Context(), 9))
	b.Publish(m)
	r := j.Steps[j.ResultOf(9)].Result
	for _, s := range j.Steps {
		switch {
		case s.Call != nil && s.Call.Sequence == 9:
			s.Call.Sequence = 10
		case s.Row != nil && s.Row.Sequence == 9:
			s.Row.Sequence = 10
		}
	}
	r.Seq, r.StateID, r.Subject = 10, auditlog.StateID("stage", "ROWS", 0, 10), m.Subject
	return r
}

func TestVerifyFindsACopyOfARowThatIsNone(t *testing.T) {
	bench := stagetest.NewBench(t, nil)
	for name, tt := range map[string]struct {
		replaces string
		origin   string // of the copy, by default the one of the original
		want     string
		code     int
	}{
		"of another row":     {"3", "", "bad_link: partition 0: row 9 was published again for row 3, and has another body", codeViolated},
		"of one that is not": {"77", "", "1 results are made from rows that are in no log of stage map", codeUnproven},
		"of none":            {"", "", "1 results are made from rows that are in no log of stage map", codeUnproven},
		"of another chain": {
			"2", "4", "bad_origin: partition 0: row 9 was published again for row 2, and names 4 of stream CHUNKS as the first row of its chain; it is 102 of stream CHUNKS", codeViolated,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := bench.Renew(t)
			j := linkJob(b)
			m := upstreamRow(9)
			m.Header.Set(streams.HeaderReplaces, tt.replaces)
			m.Header.Set(streams.HeaderOriginStream, "CHUNKS")
			m.Header.Set(streams.HeaderOriginSeq, cmp.Or(tt.origin, "102"))
			row10(b, j, m).Header.Set(streams.HeaderOriginSeq, m.Header.Get(streams.HeaderOriginSeq))
			b.Store(j)
			want := strings.Replace(tt.want, "row 9", "row 10", 1)
			if _, text, code := verifyLinks(b); code != tt.code || !strings.Contains(text, want) {
				t.Errorf("got exit code %d, want %d and %q:\n%s", code, tt.code, want, text)
			}
		})
	}
}

func TestVerifyTellsWhichRowsAreNoResultsOfTheStageBefore(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	b.Store(linkJob(b))
	_, text, code := verifyWith(b, Options{Linked: true, Upstream: Upstream{Name: "other", ResultSubject: "rows", Partitions: 1}})
	if want := "9 results are made from rows that are in no log of stage other"; code != codeUnproven || !strings.Contains(text, want) {
		t.Errorf("got exit code %d, want %d and %q:\n%s", code, codeUnproven, want, text)
	}
}

// A message that somebody else has published on a subject that the input matches, with
// the headers of a result.
func TestVerifyTellsARowBesideTheLogsOfTheStageBefore(t *testing.T) {
	bench := stagetest.NewBench(t, nil)
	for name, change := range map[string]func(m *nats.Msg){
		"in a partition that there is not": func(m *nats.Msg) {
			m.Subject = "rows.map.1.rows"
			m.Header.Del(streams.HeaderReplaces)
			m.Header.Set(streams.HeaderStateID, auditlog.StateID("map", "CHUNKS", 1, 102))
		},
		"in the log of another partition": func(m *nats.Msg) {
			m.Subject = "rows.map.0.rows"
			m.Header.Del(streams.HeaderReplaces)
			m.Header.Set(streams.HeaderStateID, auditlog.StateID("map", "CHUNKS", 1, 102))
		},
		"a copy of itself": func(m *nats.Msg) { m.Header.Set(streams.HeaderReplaces, "10") },
	} {
		t.Run(name, func(t *testing.T) {
			b := bench.Renew(t)
			j := linkJob(b)
			m := upstreamRow(9)
			change(m)
			row10(b, j, m)
			b.Store(j)
			_, text, code := verifyLinks(b)
			if want := "1 results are made from rows that are in no log of stage map"; code != codeUnproven || !strings.Contains(text, want) {
				t.Errorf("got exit code %d, want %d and %q:\n%s", code, codeUnproven, want, text)
			}
		})
	}
}
