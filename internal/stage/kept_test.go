package stage

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/nats-io/nats.go"
)

// keptRows are the rows of a stage that is killed while the first one has no reply yet, and the replies to the others.
var keptRows = []struct{ row, reply string }{
	{`{"q":"first"}`, `"first"`},
	{`{"q":"plain"}`, "It is \"fine\" \u00e9."},
	{`{"q":"object"}`, "```json\n{\"mood\": \"good\", \"n\": 1.50}\n```"},
	{`{"answer":"own","q":"named","llm_response":1,"llm_response_error":{"reason":"old"},"answer_usage":2,"answer_error":3}`, `plain`},
	{`{"q":"refused","answer_error":"own","llm_response_error":"own","answer":1}`, ""},
	{`{"q":"string"}`, `"a string"`},
	{`{"q":"cut"}`, "It is fi"},
	{`{"q":"long"}`, `"` + strings.Repeat("long ", 1000) + `"`},
}

// keptLab answers the rows of keptRows. The requests are the same with any schema: the extra body takes it out.
type keptLab struct {
	*lab
	slow atomic.Bool // the first row takes an hour
}

func newKeptLab(t *testing.T) *keptLab {
	t.Helper()
	l := &keptLab{}
	l.lab = newLab(t, llmtest.Config{Script: l.step}, map[string]string{
		"STAGE_ON_FATAL":       "fail", // a schema that no reply satisfies is no reason to wait here
		"STAGE_LLM_EXTRA_BODY": `{"response_format":null}`, "STAGE_RETRY_MAX_ATTEMPTS": "2", "STAGE_LLM_TIMEOUT": "2h",
	})
	return l
}

func (l *keptLab) step(c llmtest.Call) *llmtest.Step {
	var asked struct {
		Messages []struct{ Role, Content string }
	}
	if err := json.Unmarshal(c.Body, &asked); err != nil {
		return &llmtest.Step{Status: 400}
	}
	question := asked.Messages[0].Content
	if asked.Messages[0].Role == "system" {
		question = asked.Messages[1].Content
	}
	for _, r := range keptRows {
		if !strings.Contains(r.row, fmt.Sprintf(`"q":%q`, question)) {
			continue
		}
		if r.reply == "" {
			return &llmtest.Step{Status: 400}
		}
		finish, delay := "stop", time.Duration(0)
		if question == "cut" {
			finish = "length"
		}
		if question == "first" && l.slow.Load() {
			delay = time.Hour
		}
		return &llmtest.Step{Delay: delay, Body: fmt.Sprintf(
			`{"model":"large-1","choices":[{"message":{"content":%s},"finish_reason":%q}],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7,"cost":0.0125}}`,
			jsonText(r.reply), finish)}
	}
	return &llmtest.Step{Status: 500}
}

func jsonText(s string) string {
	text, _ := json.Marshal(s) // a string is never refused
	return string(text)
}

// limitResults bounds the messages of the results stream; 0: unchanged.
func (l *keptLab) limitResults(bytes int32) {
	l.t.Helper()
	if bytes == 0 {
		return
	}
	s := stagetest.Value(l.js.Stream(l.t.Context(), "RESULTS"))(l.t)
	cfg := s.CachedInfo().Config
	cfg.MaxMsgSize = bytes
	stagetest.Value(l.js.UpdateStream(l.t.Context(), cfg))(l.t)
}

// keptSettings are what shapes results.
type keptSettings struct {
	vars     map[string]string
	maxBytes int32 // of a result message
}

// begin makes the streams and loads the rows.
func (l *keptLab) begin(s keptSettings) {
	l.t.Helper()
	r := l.start(s.vars, Options{})
	time.Sleep(3 * time.Second)
	r.stop()
	l.limitResults(s.maxBytes)
	for _, r := range keptRows {
		stagetest.Value(l.js.Publish(l.t.Context(), "rows.in", []byte(r.row)))(l.t)
	}
}

// kill ends the stage as SIGKILL does: nothing more reaches the server.
func (r *running) kill() {
	r.Conn.NC().Close()
	r.hard()
	r.soft()
	r.lab.t.Logf("killed: %v", <-r.done)
}

// paidAgain lists the rows whose results are not from the journal.
func (l *keptLab) paidAgain() (rows []uint64) {
	l.t.Helper()
	last := map[uint64]string{}
	for _, e := range l.events(auditlog.KindRow) {
		last[e.Row.Sequence] = e.Row.Source
	}
	for seq, source := range last {
		if source != auditlog.SourceJournal {
			rows = append(rows, seq)
		}
	}
	slices.Sort(rows)
	return rows
}

// TestKeptRepliesFollowTheCurrentSettings: a stage is killed, and the next one runs with other settings. Its results
// are those of a stage that has had its settings from the beginning, and it makes no unnecessary call.
func TestKeptRepliesFollowTheCurrentSettings(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		stagetest.Must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	set := func(pairs ...string) keptSettings {
		s := keptSettings{vars: map[string]string{}}
		for i := 0; i < len(pairs); i += 2 {
			s.vars[pairs[i]] = pairs[i+1]
		}
		return s
	}
	schema := func(name, text string) keptSettings { return set("STAGE_RESPONSE_SCHEMA_FILE", file(name, text)) }
	objects, both := schema("objects", `{"type":"object"}`), schema("both", `{"type":["object","string"]}`)
	small := keptSettings{maxBytes: 3000}
	cases := []struct {
		name     string
		was, now keptSettings
		paid     []uint64 // again; the first row never was
	}{
		{"nothing changes", set(), set(), []uint64{1}},
		{"another field", set(), set("STAGE_RESPONSE_FIELD", "answer"), []uint64{1}},
		{"a field named like another's", set(), set("STAGE_RESPONSE_FIELD", "llm_response_error"), []uint64{1}},
		{"another template with the same prompt", set(), set("STAGE_TEMPLATE", "{# new #}{{ row.q }}"), []uint64{1}},
		{"a lookup", set(), set("STAGE_LOOKUP_FILE", file("lookup.json", `{"a":1}`)), []uint64{1}},
		{"a template with another prompt", set(), set("STAGE_SYSTEM_PROMPT", "Be brief."), []uint64{1, 2, 3, 4, 5, 6, 7, 8}},
		{"a schema is added", set(), objects, []uint64{1, 2, 4, 6, 8}},
		{"the schema stays", both, both, []uint64{1}},
		{"the schema stays, another field", both, set("STAGE_RESPONSE_FIELD", "answer", "STAGE_RESPONSE_SCHEMA_FILE", both.vars["STAGE_RESPONSE_SCHEMA_FILE"]), []uint64{1}},
		{"another schema", both, objects, []uint64{1, 2, 4, 6, 8}},
		{"the schema is removed", both, set(), []uint64{1, 2, 3, 4, 6, 8}},
		{"what was cut is accepted", set(), set("STAGE_LLM_ACCEPT_TRUNCATED", "true"), []uint64{1, 7}},
		{"a result is too large now", set(), small, []uint64{1}},
		{"a result is still too large", small, small, []uint64{1}},
		{"a result is no longer too large", small, keptSettings{maxBytes: 100_000}, []uint64{1, 8}},
	}
	for i := 0; i < len(cases); i += stagetest.Stride(4) {
		test := cases[i]
		t.Run(test.name, func(t *testing.T) {
			stagetest.Virtual(t, func(t *testing.T) {
				l := newKeptLab(t)
				l.slow.Store(true)
				l.begin(test.was)
				r := l.start(test.was.vars, Options{})
				time.Sleep(10 * time.Second) // all but the first row are answered and kept
				r.kill()
				l.slow.Store(false)
				l.limitResults(test.now.maxBytes)
				l.work(len(keptRows), test.now.vars)

				fresh := newKeptLab(t)
				fresh.begin(test.now)
				fresh.work(len(keptRows), test.now.vars)
				for i, want := range fresh.bodies() {
					if got := l.bodies()[i]; got != want {
						t.Errorf("row %d\n got %s\nwant %s", i+1, got, want)
					}
				}
				if got := l.paidAgain(); !slices.Equal(got, test.paid) {
					t.Errorf("rows %v were paid for, want %v", got, test.paid)
				}
			})
		})
	}
}

// TestAReplyThatWasPaidForAgainIsKeptToo: the journal holds a reply that the current settings refuse; the one that is
// paid for in its place must survive the next kill.
func TestAReplyThatWasPaidForAgainIsKeptToo(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newKeptLab(t)
		l.slow.Store(true)
		l.begin(keptSettings{})
		accept := map[string]string{"STAGE_LLM_ACCEPT_TRUNCATED": "true"}
		for _, vars := range []map[string]string{nil, accept} {
			r := l.start(vars, Options{})
			time.Sleep(10 * time.Second)
			r.kill()
		}
		l.slow.Store(false)
		before := l.received()
		l.work(len(keptRows), accept)
		if got := l.received() - before; got != 1 {
			t.Errorf("%d calls after the second kill, want the first row's alone", got)
		}
	})
}

// TestAnEntryOfAnOlderVersionIsPaidForAgain: it does not record whether its field holds the reply or a validated
// value. An error is the same either way.
func TestAnEntryOfAnOlderVersionIsPaidForAgain(t *testing.T) {
	stagetest.Virtual(t, func(t *testing.T) {
		l := newKeptLab(t)
		l.slow.Store(true)
		l.begin(keptSettings{})
		r := l.start(nil, Options{})
		time.Sleep(10 * time.Second)
		r.kill()
		journal := stagetest.Value(l.js.Stream(t.Context(), "JOURNAL"))(t)
		entries := l.stored("JOURNAL", "journal.stage.0.>", 1)
		stagetest.Must(t, journal.Purge(t.Context()))
		for _, e := range entries {
			m := &nats.Msg{Subject: e.Subject, Data: e.Body, Header: maps.Clone(e.Header)}
			m.Header.Del("Stage-Reply-Form")
			stagetest.Value(l.js.PublishMsg(t.Context(), m))(t)
		}
		l.slow.Store(false)
		l.work(len(keptRows), nil)
		if got, want := l.paidAgain(), []uint64{1, 2, 3, 4, 6, 7, 8}; !slices.Equal(got, want) {
			t.Errorf("rows %v were paid for, want %v", got, want)
		}
	})
}
