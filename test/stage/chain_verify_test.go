package stage_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/ops/proof"
	"github.com/llm-stage/stage/internal/ops/verify"
	"github.com/llm-stage/stage/internal/ops/verify/chain"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// provenChain fails the test unless the chain is proven by its streams, without settings of its stages.
func (s *site) provenChain(names ...string) *chain.Report {
	s.t.Helper()
	report, text := verifyChain(s.t, s.js, names...)
	if report.Verdict != verify.VerdictProven || report.Err() != nil {
		s.t.Errorf("chain of %v: %s, %v\n%s", names, report.Verdict, report.Err(), text)
	}
	return report
}

func verifyChain(t *testing.T, js jetstream.JetStream, names ...string) (*chain.Report, string) {
	t.Helper()
	report := stagetest.Value(chain.Run(t.Context(), js, stagetest.Config(t), names, io.Discard))(t)
	var text strings.Builder
	report.WriteText(&text)
	return report, text.String()
}

// chunkRows is how many rows recordChain gives the chain.
const chunkRows = 12

// recordChain runs a chain of three stages, of which the second fans out over the chunks of a row, and returns all that
// they stored, by stream. Each row has 0 to 3 chunks; row 5 fails at the first stage, row 6 at the second.
func recordChain(t *testing.T) (recorded map[string][]stagetest.Message) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
			if strings.HasPrefix(c.Prompt, "title t5 ") || strings.HasPrefix(c.Prompt, "map t6 ") {
				return &llmtest.Step{Status: 400}
			}
			return nil
		}})
		s.newStream("ROWS", "rows.>")
		for i := range chunkRows {
			chunks := []string{}
			for j := range i % 4 {
				chunks = append(chunks, fmt.Sprintf("chunk %d", j))
			}
			body, err := json.Marshal(map[string]any{"n": i, "title": fmt.Sprintf("t%d ", i), "chunks": chunks})
			if err != nil {
				t.Fatal(err)
			}
			s.publish(string(body), nil)
		}
		var stages []*replica
		start := func(name, before string, settings vars) {
			stages = append(stages, s.link(name, before, settings))
			s.awaitOf(name, 1)
		}
		start("titles", "", vars{"STAGE_TEMPLATE": "title {{ row.title }}"})
		start("map", "results.titles.*.rows", vars{"STAGE_TEMPLATE": "map {{ row.title }}{{ item }}", "STAGE_FOREACH": "chunks"})
		start("reduce", "results.map.*.rows", vars{"STAGE_TEMPLATE": "reduce {{ row.title }}"})
		s.awaitOf("reduce", chunkRows)
		for _, r := range stages {
			r.stop()
		}
		report := s.provenChain("titles", "map", "reduce")
		for _, l := range report.Links {
			if l.Linked != chunkRows || l.Waiting == nil || *l.Waiting != 0 {
				t.Errorf("got %+v, want %d results linked and none that waits", l, chunkRows)
			}
		}
		recorded = make(map[string][]stagetest.Message)
		for _, stream := range []string{"ROWS", "RESULTS", "AUDIT"} {
			recorded[stream] = s.read(stream, ">")
		}
	})
	return recorded
}

// replay stores what a chain has stored on another server, without what was in these streams before. Claims name the
// streams that are there, and the hashes through the results are made again: what a test has changed must be found by the
// links.
func replay(t *testing.T, b *stagetest.Bench, recorded map[string][]stagetest.Message, streamNames ...string) {
	t.Helper()
	logs := make(map[string]proof.Hash)
	for _, stream := range streamNames {
		cfg := b.Stream(stream).CachedInfo().Config
		b.Drop(stream)
		stagetest.Value(b.JS.CreateStream(t.Context(), cfg))(t)
		for _, m := range recorded[stream] {
			if strings.HasSuffix(m.Subject, ".claim") {
				var claim streams.Claim
				stagetest.Must(t, json.Unmarshal(m.Body, &claim))
				claim.InputCreated = b.Stream(claim.InputStream).CachedInfo().Created
				m.Body, _ = json.Marshal(claim)
			}
			header := nats.Header{}
			for name, values := range m.Header {
				if !strings.HasPrefix(name, "Nats-") {
					header[name] = values
				}
			}
			if log, what, _ := strings.Cut(m.Subject, ".0."); header[proof.HeaderChain] != nil && m.Subject != "results.gone" {
				kind := proof.Result
				if what == "claim" {
					kind = proof.Claim
				}
				logs[log] = logs[log].Next(proof.RecordOf(kind, header, m.Body))
				header[proof.HeaderChain] = []string{logs[log].String()}
			}
			b.Publish(&nats.Msg{Subject: m.Subject, Header: header, Data: m.Body})
		}
	}
}

func TestVerifyOfAChain(t *testing.T) {
	recorded := recordChain(t)
	b := stagetest.NewBench(t, nil)
	replay(t, b, recorded, "ROWS", "AUDIT", "RESULTS")
	t.Run("unchanged", func(t *testing.T) {
		if report, text := verifyChain(t, b.JS, "titles", "map", "reduce"); report.Verdict != verify.VerdictProven {
			t.Errorf("got %s, %v:\n%s", report.Verdict, report.Err(), text)
		}
	})
	t.Run("no chain", func(t *testing.T) { namesOfNoChain(t, b) })
	t.Run("settings", func(t *testing.T) { settingsOfAChain(t, b, recorded) })
	replay(t, b, recorded, "AUDIT", "RESULTS")
	t.Run("planted faults", func(t *testing.T) { faultsOfAChain(t, b, recorded) })
}

// faultsOfAChain plants faults anywhere in a chain, which verify must find.
func faultsOfAChain(t *testing.T, b *stagetest.Bench, recorded map[string][]stagetest.Message) {
	t.Helper()
	result := func(all []stagetest.Message, stage string, n int) *stagetest.Message { // counted from 0
		for i := range all {
			if all[i].Subject == "results."+stage+".0.rows" {
				if n--; n < 0 {
					return &all[i]
				}
			}
		}
		t.Fatalf("stage %s has too few results", stage)
		return nil
	}
	swap := func(names ...string) func(a, b *stagetest.Message) {
		return func(a, b *stagetest.Message) {
			for _, name := range names {
				a.Header[name], b.Header[name] = b.Header[name], a.Header[name]
			}
		}
	}
	for _, c := range []struct {
		name  string
		plant func(a, b *stagetest.Message) // results 7 and 9 of a stage, both successes
		want  []string                      // kinds of violations, of which one must be found
	}{
		{"bodies swapped", func(a, b *stagetest.Message) { a.Body, b.Body = b.Body, a.Body }, []string{"bad_link"}},
		{"links swapped", swap(streams.HeaderSourceSeq, streams.HeaderStateID, streams.HeaderOriginSeq), []string{"bad_link", "out_of_order"}},
		{"links and bodies swapped", func(a, b *stagetest.Message) {
			swap(streams.HeaderSourceSeq, streams.HeaderStateID)(a, b)
			a.Body, b.Body = b.Body, a.Body
		}, []string{"out_of_order"}},
		{"link doubled", func(a, b *stagetest.Message) { b.Header, b.Body = a.Header, a.Body }, []string{"doubled", "lost"}},
		{"link missing", func(_, b *stagetest.Message) { b.Subject = "results.gone" }, []string{"lost"}},
		{"another origin", func(_, b *stagetest.Message) { b.Header[streams.HeaderOriginSeq] = []string{"2"} }, []string{"bad_origin"}},
		{"another stream of origin", func(_, b *stagetest.Message) { b.Header[streams.HeaderOriginStream] = []string{"AUDIT"} }, []string{"bad_origin"}},
		{"members swapped", func(a, b *stagetest.Message) { // with the reply and the hashes left in their places
			at := func(m *stagetest.Message) int { return strings.LastIndex(string(m.Body), `,"llm_response":`) }
			i, j := at(a), at(b)
			a.Body, b.Body = []byte(string(b.Body[:j])+string(a.Body[i:])), []byte(string(a.Body[:i])+string(b.Body[j:]))
		}, []string{"bad_link"}},
		{"replies swapped", func(a, b *stagetest.Message) { // with all that tells of the row left in its place
			cut := func(m *stagetest.Message) (before, reply, after string) {
				body := string(m.Body)
				from := strings.LastIndex(body, `"llm_response":`)
				to := strings.LastIndex(body, `,"llm_response_usage":`)
				return body[:from], body[from:to], body[to:]
			}
			before, reply, after := cut(a)
			before2, reply2, after2 := cut(b)
			if reply == reply2 {
				t.Error("the replies are equal")
			}
			a.Body, b.Body = []byte(before+reply2+after), []byte(before2+reply+after2)
		}, []string{"row_event_differs"}},
		{"another subject of its row", func(_, b *stagetest.Message) { b.Header[streams.HeaderSourceSubject] = []string{"rows.b"} }, []string{"bad_link"}},
		{"another row in its body", func(_, b *stagetest.Message) {
			b.Body = []byte(strings.ReplaceAll(string(b.Body), "_variables_hash\":", "_variables_hash\":[],\"x\":"))
		}, []string{"bad_link"}},
	} {
		for _, stage := range []string{"titles", "map", "reduce"} {
			if strings.Contains(c.name, "origin") && stage == "titles" {
				continue // its results have none
			}
			t.Run(stage+": "+c.name, func(t *testing.T) {
				changed := maps.Clone(recorded)
				changed["RESULTS"] = nil
				for _, m := range recorded["RESULTS"] {
					m.Header = maps.Clone(m.Header)
					changed["RESULTS"] = append(changed["RESULTS"], m)
				}
				c.plant(result(changed["RESULTS"], stage, 7), result(changed["RESULTS"], stage, 9))
				replay(t, b, changed, "RESULTS")
				report, text := verifyChain(t, b.JS, "titles", "map", "reduce")
				if err := report.Err(); err == nil || report.Verdict != "violated" {
					t.Errorf("got %s, %v:\n%s", report.Verdict, err, text)
				}
				for _, kind := range c.want {
					if !strings.Contains(text, "VIOLATION "+kind+": ") {
						t.Errorf("want %s in:\n%s", kind, text)
					}
				}
			})
		}
	}
	for _, stage := range []string{"map", "reduce"} {
		t.Run(stage+": another text in an error that was passed on", func(t *testing.T) {
			changed := maps.Clone(recorded)
			changed["RESULTS"] = slices.Clone(recorded["RESULTS"])
			m := result(changed["RESULTS"], stage, 5)
			m.Body = []byte(strings.Replace(string(m.Body), "api_call_failed", "api_call_forged", 1))
			replay(t, b, changed, "RESULTS")
			report, text := verifyChain(t, b.JS, "titles", "map", "reduce")
			if report.Verdict != "violated" || !strings.Contains(text, "VIOLATION bad_link: ") {
				t.Errorf("got %s, %v:\n%s", report.Verdict, report.Err(), text)
			}
		})
	}
}

func namesOfNoChain(t *testing.T, b *stagetest.Bench) {
	t.Helper()
	for _, c := range []struct {
		names string
		want  string
	}{
		{"map", "a chain has two stages or more"},
		{"map,map", "stage map is named twice"},
		{"titles,,map", "name 2 is empty"},
		{"titles,*", `"*" is no name of a stage`},
		{"map,titles", "stage titles reads stream ROWS, and the results of stage map are in stream RESULTS: give the stages in the order"},
		{"titles,reduce", "stage reduce reads results.map.*.rows of stream RESULTS, and the results of stage titles are on results.titles.*.rows"},
		{"titles,nobody", "there is no stage named nobody on this server"},
	} {
		_, err := chain.Run(t.Context(), b.JS, stagetest.Config(t), strings.Split(c.names, ","), io.Discard)
		if err == nil || !strings.Contains(err.Error(), c.want) || !config.IsInvalid(err) {
			t.Errorf("%s: got %v, want %q", c.names, err, c.want)
		}
	}
}

// settingsOfAChain has verify find the settings of a stage without its runs in the audit, and with an audit stream of its
// own.
func settingsOfAChain(t *testing.T, b *stagetest.Bench, recorded map[string][]stagetest.Message) {
	t.Helper()
	t.Run("no runs", func(t *testing.T) {
		changed := maps.Clone(recorded)
		changed["AUDIT"] = slices.DeleteFunc(slices.Clone(recorded["AUDIT"]), func(m stagetest.Message) bool { return m.Subject == "audit.map.all.run" })
		replay(t, b, changed, "AUDIT", "RESULTS")
		report, text := verifyChain(t, b.JS, "titles", "map", "reduce")
		if report.Verdict != verify.VerdictProven || !strings.Contains(text, "note: stage map: no run of it is in stream AUDIT") {
			t.Errorf("got %s, %v:\n%s", report.Verdict, report.Err(), text)
		}
	})
	for name, expired := range map[string]bool{"an audit stream of its own": false, "one whose runs have expired": true} {
		t.Run(name, func(t *testing.T) {
			replay(t, b, recorded, "AUDIT", "RESULTS")
			own := jetstream.StreamConfig{Name: "MAPAUDIT", Subjects: []string{"own.>"}, Storage: jetstream.MemoryStorage}
			stagetest.Value(b.JS.CreateStream(t.Context(), own))(t)
			defer b.Drop("MAPAUDIT")
			for _, m := range stagetest.Read(t, b.JS, "AUDIT", "audit.map.>") {
				if !expired || !strings.HasSuffix(m.Subject, ".run") {
					b.Publish(&nats.Msg{Subject: "own." + strings.TrimPrefix(m.Subject, "audit."), Data: m.Body})
				}
				stagetest.Must(t, b.Stream("AUDIT").DeleteMsg(t.Context(), m.Seq))
			}
			report, text := verifyChain(t, b.JS, "titles", "map", "reduce")
			if report.Stages[1].Audit.Calls != 17 || strings.Contains(text, "stage map: no run of it is in stream MAPAUDIT") != expired {
				t.Errorf("got %v:\n%s", report.Err(), text)
			}
		})
	}
}

// The start of a run is the oldest event of its stage: it is the first to expire.
func TestVerifyKnowsTheInputOfStagesWhoseRunsHaveExpired(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const rows = 24
		s := newSite(t, llmtest.Config{})
		a := s.link("a", "", vars{"STAGE_INPUT_SUBJECT": "rows.{partition}.>", "STAGE_PARTITIONS": "3"})
		s.until("the input", func() bool {
			_, err := s.js.Stream(t.Context(), "ROWS")
			return err == nil
		})
		s.publishKeyed(1, rows)
		s.awaitOf("a", rows)
		b := s.link("b", "results.a.{partition}.rows", vars{"STAGE_PARTITIONS": "3"})
		s.awaitOf("b", rows)
		s.link("c", "results.b.*.rows", nil).finish("c", rows)
		a.stop()
		b.stop()
		s.provenChain("a", "b", "c")
		audit, err := s.js.Stream(t.Context(), "AUDIT")
		if err != nil {
			t.Fatal(err)
		}
		stagetest.Must(t, audit.Purge(t.Context(), jetstream.WithPurgeSubject("audit.*.all.run")))
		check := func() {
			report, text := verifyChain(t, s.js, "a", "b", "c")
			for _, stage := range report.Stages {
				if stage.Violations.Count > 0 {
					t.Errorf("violations of a healthy chain:\n%s", text)
				}
			}
			for _, l := range report.Links {
				if l.Linked != rows || l.Waiting == nil || *l.Waiting != 0 {
					t.Errorf("got %+v, want %d results linked and none that waits", l, rows)
				}
			}
			if n := len(report.Stages[1].Partitions); n != 3 {
				t.Errorf("got %d partitions of b, want 3", n)
			}
		}
		check()
		for p := range 3 { // what b read is then known by what a has written
			stagetest.Must(t, s.js.DeleteConsumer(t.Context(), "RESULTS", fmt.Sprintf("b-%d", p)))
		}
		check()
		stagetest.Must(t, s.js.DeleteConsumer(t.Context(), "ROWS", "a-0"))
		_, err = chain.Run(t.Context(), s.js, stagetest.Config(t), []string{"a", "b", "c"}, io.Discard)
		if err == nil || !strings.Contains(err.Error(), "stage a has 3 partitions, and neither a run of it in stream AUDIT nor its consumers on stream ROWS say") {
			t.Errorf("got %v", err)
		}
	})
}
