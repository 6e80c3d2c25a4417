package chain_test

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/ops/verify"
	"github.com/llm-stage/stage/internal/ops/verify/chain"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/llm-stage/stage/llm/row"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestMain(m *testing.M) { stagetest.Main(m) }

// stage is one of a chain that a test stores.
type stage struct {
	name, stream, subject string
	answered              int // rows, or 0 for all
	plant                 func(s *stage, j *stagetest.Job)
	results               string // stream, RESULTS by default
	partition             int
	audit                 string // subject, audit by default
}

// text is what a message of stage "stage" is for this one.
func (s *stage) text(text string) string {
	text = strings.ReplaceAll(text, `"stage/ROWS/0/`, `"`+s.name+"/"+s.stream+"/"+strconv.Itoa(s.partition)+"/")
	text = strings.ReplaceAll(text, `"stage":"stage"`, `"stage":"`+s.name+`"`)
	text = strings.ReplaceAll(text, `"partition":0`, `"partition":`+strconv.Itoa(s.partition))
	return strings.ReplaceAll(text, `"input_stream":"ROWS"`, `"input_stream":"`+s.stream+`"`)
}

// store stores what a stage would have stored that has answered its input.
func (s *stage) store(b *stagetest.Bench) {
	b.T.Helper()
	format := stagetest.Value(row.NewFormat("F", row.Provenance{}))(b.T)
	run, owner := "run"+s.name, "run"+s.name+".a"
	j := b.Job()
	j.Created = b.Stream(s.stream).CachedInfo().Created
	j.Start(run)
	settings := j.Steps[0].Run.Settings
	settings["STAGE_INPUT_STREAM"], settings["STAGE_INPUT_SUBJECT"] = s.stream, s.subject
	settings["STAGE_RESULT_STREAM"], settings["STAGE_RESULT_SUBJECT"] = "RESULTS", "results"
	if s.results != "" {
		settings["STAGE_RESULT_STREAM"], settings["STAGE_RESULT_SUBJECT"] = s.results, strings.ToLower(s.results)
	}
	j.Claim(owner, 0)
	for i, m := range stagetest.Read(b.T, b.JS, s.stream, s.subject) {
		if s.answered > 0 && i == s.answered {
			break
		}
		of := stagetest.Value(row.Parse(m.Body))(b.T)
		of.KeepAs(streams.Upstream(m.Header))
		j.Answer(owner, m.Seq)
		j.Steps[len(j.Steps)-2].Row.VariablesHash = of.VariablesHash()
		r := j.Steps[len(j.Steps)-1].Result
		r.StateID = auditlog.StateID(s.name, s.stream, auditlog.Partition(s.partition), m.Seq)
		r.Source, r.Subject = s.stream, m.Subject
		if h := m.Header; h.Get(streams.HeaderStateID) != "" {
			r.Header = nats.Header{streams.HeaderOriginStream: {h.Get(streams.HeaderSourceStream)}, streams.HeaderOriginSeq: {h.Get(streams.HeaderSourceSeq)}}
			if first := h.Get(streams.HeaderOriginSeq); first != "" {
				r.Header = nats.Header{streams.HeaderOriginStream: {h.Get(streams.HeaderOriginStream)}, streams.HeaderOriginSeq: {first}}
			}
		}
		r.Body = format.AppendSuccess(nil, of, &row.Answer{Text: s.name + strconv.Itoa(i), VariablesHash: of.VariablesHash()})
	}
	if s.plant != nil {
		s.plant(s, j)
	}
	j.End(run)
	for _, step := range j.Steps {
		m := step.Message(b.T)
		m.Subject = strings.Replace(m.Subject, ".stage.0.", "."+s.name+"."+strconv.Itoa(s.partition)+".", 1)
		m.Subject = strings.Replace(m.Subject, ".stage.", "."+s.name+".", 1)
		if s.results != "" {
			m.Subject = strings.Replace(m.Subject, "results.", strings.ToLower(s.results)+".", 1)
		}
		if s.audit != "" {
			m.Subject = strings.Replace(m.Subject, "audit.", s.audit+".", 1)
		}
		if step.Result == nil {
			m.Data = []byte(s.text(string(m.Data)))
		}
		b.Publish(m)
	}
}

// newChain stores rows and what stages made of them: a of the rows, b of a's results, c
// of b's. change may change them.
func newChain(t *testing.T, change func(stages []*stage)) *stagetest.Bench {
	t.Helper()
	b := stagetest.NewBench(t, nil)
	b.Rows(12, "rows.a")
	stages := []*stage{
		{name: "a", stream: "ROWS", subject: "rows.>"},
		{name: "b", stream: "RESULTS", subject: "results.a.*.rows"},
		{name: "c", stream: "RESULTS", subject: "results.b.*.rows"},
	}
	if change != nil {
		change(stages)
	}
	for _, s := range stages {
		s.store(b)
	}
	return b
}

// check verifies a chain and returns what people see of it.
func check(b *stagetest.Bench, names ...string) (*chain.Report, string) {
	b.T.Helper()
	var out stagetest.Buffer
	report := stagetest.Value(chain.Run(b.T.Context(), b.JS, b.Cfg, names, &out))(b.T)
	report.WriteText(&out)
	text := out.String()
	if err := report.Err(); err != nil {
		text += err.Error() + "\n"
	}
	return report, text
}

func TestAChainIsProvenDownToItsFirstInput(t *testing.T) {
	b := newChain(t, func(s []*stage) { s[2].answered = 9 })
	report, text := check(b, "a", "b", "c")
	if report.Verdict != verify.VerdictProven || report.Err() != nil || report.Links[0].Linked != 12 || report.Links[1].Linked != 9 || *report.Links[1].Waiting != 3 {
		t.Errorf("want 12 and 9 links and 3 rows that wait:\n%s", text)
	}
	for _, want := range []string{
		"stage a\npartition 0: 12 results up to row 12 in 1 terms",
		"link b -> c (results.b.*.rows of stream RESULTS): 9 results of c compared with those of b that they name; 3 results of b wait\n",
		"proven: every result of stage c is made from the results that it names, down to the input of stage a\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in:\n%s", want, text)
		}
	}
	var out strings.Builder
	stagetest.Must(t, terminal.WriteJSON(&out, report))
	var got struct {
		Chain   []string
		Verdict string
		Links   []struct {
			From, To        string
			Linked, Waiting int
		}
		Stages []struct{ Verdict, Stage string }
	}
	stagetest.Must(t, json.Unmarshal([]byte(out.String()), &got))
	if got.Verdict != "proven" || len(got.Links) != 2 || got.Links[1].From != "b" || got.Links[1].Waiting != 3 || len(got.Stages) != 3 || got.Stages[1].Stage != "b" {
		t.Errorf("got as JSON:\n%s", out.String())
	}
	if report, text := check(b, "b", "c"); report.Verdict != verify.VerdictProven {
		t.Errorf("the end of the chain alone:\n%s", text)
	}
}

// result returns the result n of a job, from 0.
func result(j *stagetest.Job, n int) *stagetest.Step {
	for i := range j.Steps {
		if j.Steps[i].Result != nil {
			if n == 0 {
				return &j.Steps[i]
			}
			n--
		}
	}
	return nil
}

func TestAFaultAnywhereInAChainIsFound(t *testing.T) {
	type planted func(s *stage, j *stagetest.Job)
	for name, plant := range map[string]planted{
		"bad_link: partition 0: the result at": func(_ *stage, j *stagetest.Job) { // bodies swapped
			x, y := result(j, 3), result(j, 7)
			x.Result.Body, y.Result.Body = y.Result.Body, x.Result.Body
		},
		"doubled: partition 0: row": func(_ *stage, j *stagetest.Job) {
			again := *result(j, 3)
			j.Steps = append(j.Steps, again)
		},
		"lost: partition 0: row": func(_ *stage, j *stagetest.Job) { // it is not the last
			x := result(j, 3)
			j.Remove(j.ResultOf(x.Result.Seq))
		},
		"out_of_order: partition 0: the result of row": func(_ *stage, j *stagetest.Job) { // headers swapped
			x, y := result(j, 3).Result, result(j, 7).Result
			x.Seq, y.Seq, x.StateID, y.StateID = y.Seq, x.Seq, y.StateID, x.StateID
		},
		"bad_origin: partition 0: the result of row": func(_ *stage, j *stagetest.Job) {
			if r := result(j, 3).Result; r.Header == nil {
				r.Header = nats.Header{streams.HeaderOriginStream: {"ROWS"}, streams.HeaderOriginSeq: {"3"}}
			} else {
				r.Header = result(j, 7).Result.Header
			}
		},
	} {
		for i, in := range []string{"a", "b", "c"} {
			t.Run(in+" "+name, func(t *testing.T) {
				b := newChain(t, func(s []*stage) { s[i].plant = plant })
				report, text := check(b, "a", "b", "c")
				if report.Verdict != verify.VerdictViolated || !strings.Contains(text, "VIOLATION "+name) || !strings.Contains(text, "stage "+in+": verify found violations") {
					t.Errorf("want a violation %q of stage %s:\n%s", name, in, text)
				}
				for k, s := range report.Stages {
					if k != i && s.Verdict == verify.VerdictViolated && strings.HasPrefix(name, "bad_") {
						t.Errorf("stage %s has violations, too:\n%s", s.Stage, text)
					}
				}
			})
		}
	}
}

func TestNamesThatAreNoChainAreRefused(t *testing.T) {
	b := newChain(t, nil)
	for want, names := range map[string][]string{
		"a chain has two stages or more": {"a"},
		"name 2 is empty":                {"a", ""},
		"stage a is named twice":         {"a", "b", "a"},
		"there is no stage named x":      {"a", "x"},
		"reads results.b.*.rows of str":  {"a", "c"},
		"stage a reads stream ROWS":      {"b", "a"},
	} {
		_, err := chain.Run(t.Context(), b.JS, b.Cfg, names, &stagetest.Buffer{})
		if _, invalid := errors.AsType[*config.Error](err); !invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", names, err, want)
		}
	}
}

func TestTheStreamsOfAStageAreThoseOfItsRuns(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	for name, subject := range map[string]string{"LOGA": "loga.>", "AUDIT-B": "audit-b.>"} {
		if _, err := b.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{subject}, Storage: jetstream.MemoryStorage}); err != nil {
			t.Fatal(err)
		}
	}
	b.Rows(12, "rows.a")
	(&stage{name: "a", stream: "ROWS", subject: "rows.>", results: "LOGA"}).store(b)
	(&stage{name: "b", stream: "LOGA", subject: "loga.a.*.rows", audit: "audit-b"}).store(b)
	if report, text := check(b, "a", "b"); report.Verdict != verify.VerdictProven || report.Links[0].Linked != 12 {
		t.Errorf("got:\n%s", text)
	}
}

func TestWithoutItsRunsAStageIsTakenToHaveThePresentSettings(t *testing.T) {
	b := newChain(t, nil)
	b.Drop("AUDIT")
	report, text := check(b, "a", "b", "c")
	if report.Verdict != verify.VerdictCannotTell || !strings.Contains(text, "note: stage b: no run of it is in stream AUDIT") || report.Links[1].Linked != 12 {
		t.Errorf("got:\n%s", text)
	}
}

// Results whose row is gone are counted.
func TestWhatOfAChainCannotBeToldIsSaid(t *testing.T) {
	b := newChain(t, nil)
	if err := b.Stream("RESULTS").DeleteMsg(t.Context(), 2); err != nil { // the first result of a
		t.Fatal(err)
	}
	report, text := check(b, "a", "b", "c")
	if want := "link a -> b: 1 results of stage b name results of stage a that are gone"; report.Verdict == verify.VerdictProven || !strings.Contains(text, want) {
		t.Errorf("want %q in:\n%s", want, text)
	}
}
