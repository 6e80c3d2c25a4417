package security_test

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/consumer/streams"
	"github.com/llm-stage/stage/internal/config"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/stage"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/test/permissions"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// outcome is what became of a stage with some permissions.
type outcome struct {
	err     error     // of Run
	ready   bool      // three minutes after the start
	why     string    // of /readyz
	results int       // stored at the end
	rows    [2]string // what the dashboard has of one row, and of the rows that failed
	denied  []string  // subjects that the server did not allow
	warned  []string  // lines of the log that are warnings or errors
}

// well reports whether the stage did all its work, and reported itself ready.
func (o outcome) well() bool { return o.err == nil && o.ready && o.results == everythingRows }

// everythingRows is how many rows [work] loads.
const everythingRows = 2 * 12

var violation = regexp.MustCompile(`Permissions Violation for (?:Publish|Subscription) to "([^"]+)"`)

// everything are all settings that need permissions but those that exclude each other: two partitions, journal, dead
// letters, stored replies, pictures, a ceiling of cost.
var everything = map[string]string{
	"STAGE_PARTITIONS": "2", "STAGE_INPUT_SUBJECT": "rows.{partition}.>", "STAGE_CREATE_STREAMS": "false", "STAGE_DEAD_LETTER_SUBJECT": "dead.rows",
	"STAGE_BUDGET": "account", "STAGE_DEDUPE": "stored", "STAGE_MAX_COST_USD": "1000", "STAGE_CONTROL": "true",
	"STAGE_TEMPLATE": "", "STAGE_MESSAGES_FILE": "testdata/messages.yaml",
}

// configured reads the configuration of a stage with some settings, that calls a provider at a URL.
func configured(t *testing.T, settings map[string]string, url string) *config.Config {
	t.Helper()
	prices := stagetest.File(t, "prices.yaml", "small: {input: 1, output: 1}")
	environ := map[string]string{
		"STAGE_LLM_PROVIDER": "openai", "STAGE_LLM_BASE_URL": url, "STAGE_LLM_API_KEY": "key", "STAGE_LLM_MODEL": "small",
		"STAGE_TEMPLATE": "Row {{ row.n }} of {{ row.p }}", "STAGE_POOL_SIZE": "4", "STAGE_JOURNAL_AFTER": "0",
		"STAGE_PRICES_FILE": prices, "STAGE_WINDOW": "8", "STAGE_NATS_INBOX_PREFIX": "_INBOX_stage",
	}
	maps.Copy(environ, settings)
	cfg := stagetest.Value(stagetest.Source(environ).Load(t.Context(), config.NeedCalls))(t)
	return cfg
}

// work runs a stage with some settings as a user with a grant, in virtual time: for three minutes, or until the log names
// what is missing. script is what the provider does.
func work(t *testing.T, settings map[string]string, script func(llmtest.Call) *llmtest.Step, g permissions.Grant, missing string) (o outcome) {
	t.Helper()
	handler := stagetest.Value(llmtest.New(llmtest.Config{Script: script}))(t)
	pipe, stop := handler.Pipe()
	defer stop()
	cfg := configured(t, settings, pipe.URL())
	srv, err := server.NewServer(&server.Options{
		DontListen: true, JetStream: true, StoreDir: stagetest.Dir(t), NoLog: true, NoSigs: true,
		Users: []*server.User{{Username: "admin", Password: "admin"}, g.User("stage")},
	})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	defer srv.WaitForShutdown()
	defer srv.Shutdown()
	if !srv.ReadyForConnections(time.Minute) {
		t.Fatal("the server is not ready")
	}
	logs := &stagetest.Buffer{}
	log := slog.New(slog.NewTextHandler(logs, nil))
	connect := func(user string) (*nats.Conn, error) {
		return nats.Connect("", nats.InProcessServer(srv), nats.UserInfo(user, user), nats.CustomInboxPrefix(cmp.Or(cfg.NATS.InboxPrefix, "_INBOX")), nats.MaxReconnects(-1),
			nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
				if !streams.IsReadingEnd(err) { // as a stage's own connection does
					log.Warn("NATS", slog.Any("error", err))
				}
			}))
	}
	nc := stagetest.Value(connect("admin"))(t)
	defer nc.Close()
	js := prepare(t, nc, cfg)
	pages := llmtest.NewPipeListener()
	hard, kill := context.WithCancel(t.Context())
	defer kill()
	soft, drain := context.WithCancel(hard)
	defer drain()
	done := make(chan error, 1)
	go func() {
		done <- stage.Run(soft, hard, cfg, stage.Deps{
			MockLLM: llmtest.Config{}.Start,
			NATS:    func() (*nats.Conn, error) { return connect("stage") }, DialLLM: pipe.DialContext, Listener: pages, Logger: log,
		})
	}()
	asked := time.After(30 * time.Second)
	over := time.After(3 * time.Minute)
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for ended := false; !ended; {
		select {
		case <-look.C:
			if missing != "" && names(denials(logs), missing) {
				drain()
				o.err = <-done
				ended = true
			}
			continue
		case o.err = <-done:
			ended = true
			continue
		case <-asked:
			if cfg.Streams.Create {
				publishRows(t, js, cfg)
			}
			asking, cancel := context.WithTimeout(t.Context(), time.Minute)
			_, _ = nc.RequestWithContext(asking, config.BatchSubject(cfg.Name), []byte(`{"prompts":["one"]}`)) // perhaps no one may answer
			_, _ = nc.RequestWithContext(asking, config.DeferredSubject(cfg.Name, "submit"), []byte(`{"prompts":["one"],"id":"b"}`))
			_, _ = nc.RequestWithContext(asking, config.DeferredSubject(cfg.Name, "get"), []byte(`{"id":"b","wait":"10s"}`))
			_, _ = nc.RequestWithContext(asking, config.DeferredSubject(cfg.Name, "cancel"), []byte(`{"id":"b"}`))
			cancel()
			if cfg.Serve.Batches { // what a removed batch has left is removed
				stagetest.Must(t, nc.Publish(streams.BatchPrefix(cfg.Name)+"stray.beat", nil))
			}
			continue
		case <-over:
		}
		ended = true
		o.ready, o.why = readPage(t, pages.DialContext, "/readyz")
		for i, path := range []string{"/api/row?sequence=1000", "/api/failures"} {
			if ok, text := readPage(t, pages.DialContext, path); !ok {
				o.rows[i] = text
			}
		}
		drain()
		o.err = <-done
	}
	o.denied = denials(logs)
	for line := range strings.Lines(logs.String()) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			o.warned = append(o.warned, line)
		}
	}
	o.results = countResults(t, js, cfg)
	return o
}

// denials lists the subjects that the log says were denied.
func denials(logs *stagetest.Buffer) (subjects []string) {
	for _, found := range violation.FindAllStringSubmatch(strings.ReplaceAll(logs.String(), `\"`, `"`), -1) {
		subjects = append(subjects, found[1])
	}
	return subjects
}

// names reports whether one of these subjects is of an entry.
func names(denied []string, entry string) bool {
	return slices.ContainsFunc(denied, func(subject string) bool { return permissions.Matches(entry, subject) })
}

// prepare creates what a stage of this configuration may not create, and then stores its rows.
func prepare(t *testing.T, nc *nats.Conn, cfg *config.Config) jetstream.JetStream {
	t.Helper()
	js := stagetest.Value(jetstream.New(nc))(t)
	stagetest.Value(js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "DEAD", Subjects: []string{"dead.>"}}))(t)
	stagetest.NewBucket(t, js, "BUCKET").Put("picture", stagetest.Picture)
	if cfg.Streams.Create {
		return js
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "DEDUPE", Subjects: []string{"dedupe.>"}, AllowDirect: true}); err != nil {
		t.Fatal(err)
	}
	create := *cfg
	create.Streams.Create = true
	stagetest.Must(t, streams.Ensure(t.Context(), nc, stored.Streams(&create)))
	if cfg.Serve.Batches {
		stagetest.Must(t, streams.EnsureBatches(t.Context(), nc, stored.Streams(&create)))
	}
	for p := range cfg.Streams.Partitions {
		stagetest.Value(streams.OpenDurable(t.Context(), nc, stored.Durable(&create, p)))(t)
	}
	publishRows(t, js, cfg)
	return js
}

// publishRows stores rows, and events of an earlier run.
func publishRows(t *testing.T, js jetstream.JetStream, cfg *config.Config) {
	t.Helper()
	// A reply of an earlier run, which the owner of the partition reads.
	if _, err := js.Publish(t.Context(), streams.JournalPrefix(cfg.Name, 0)+"1.row", nil); err != nil && !errors.Is(err, jetstream.ErrNoStreamResponse) { // without a journal
		t.Fatal(err)
	}
	// An event of an earlier run, whose cost is read.
	stagetest.Value(js.Publish(t.Context(), cfg.Audit.Subject+"."+cfg.Name+".0.call", []byte(`{}`)))(t)
	// One of a row without a result, which the page of the stage looks for.
	open := &auditlog.Row{Header: auditlog.Header{Time: time.Now(), Stage: cfg.Name}, Owner: "run.a", Sequence: 1000, Status: auditlog.RowSuccess, QueuedAt: time.Now(), FinishedAt: time.Now()}
	if _, err := js.Publish(t.Context(), cfg.Audit.Subject+"."+cfg.Name+".0.row", open.AppendJSON(nil, auditlog.PayloadsFull, 0)); err != nil {
		t.Fatal(err)
	}
	for i := range everythingRows {
		body := []byte(`{"n":` + string(rune('0'+i/2%10)) + `,"p":` + string(rune('0'+i%2)) + `}`)
		stagetest.Value(js.Publish(t.Context(), "rows."+string(rune('0'+i%2))+".a", body))(t)
	}
}

// readPage reads a page of a stage that listens on a pipe.
func readPage(t *testing.T, dial func(context.Context, string, string) (net.Conn, error), path string) (ok bool, body string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	req := stagetest.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost"+path, nil))(t)
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	text := stagetest.Value(io.ReadAll(resp.Body))(t)
	return resp.StatusCode == http.StatusOK, string(text)
}

func countResults(t *testing.T, js jetstream.JetStream, cfg *config.Config) (n int) {
	t.Helper()
	stream := stagetest.Value(js.Stream(t.Context(), cfg.Result.Stream))(t)
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(cfg.Result.Subject+"."+cfg.Name+".*.rows"))
	if err != nil {
		t.Fatal(err)
	}
	for _, stored := range info.State.Subjects {
		n += int(stored) //nolint:gosec // a few
	}
	return n
}

// slowAndRefused is a provider that lets others wait for row 3, in the journal, and refuses row 4.
func slowAndRefused(c llmtest.Call) *llmtest.Step {
	switch {
	case strings.HasPrefix(c.Prompt, "Row 3 "):
		return &llmtest.Step{Delay: 5 * time.Second}
	case strings.HasPrefix(c.Prompt, "Row 4 "):
		return &llmtest.Step{Status: http.StatusBadRequest}
	}
	return &llmtest.Step{Delay: 10 * time.Millisecond}
}

// savings are permissions that the stage can do without: they save time or money, and nothing depends on them. The log
// reports a missing one.
var savings = []string{
	"$JS.EVENT.ADVISORY.STREAM.UPDATED.ROWS", "$JS.EVENT.ADVISORY.STREAM.UPDATED.RESULTS", "$JS.EVENT.ADVISORY.STREAM.UPDATED.AUDIT",
	"$JS.EVENT.ADVISORY.STREAM.UPDATED.JOURNAL",                                  // an edited stream is noticed later
	"$JS.API.CONSUMER.UNPIN.ROWS.stage-0", "$JS.API.CONSUMER.UNPIN.ROWS.stage-1", // the pin expires by itself
	"$JS.API.STREAM.PURGE.JOURNAL", "$JS.API.DIRECT.GET.JOURNAL", "journal.stage.0.>", "journal.stage.1.>",
	"dedupe.>", "$JS.API.DIRECT.GET.DEDUPE.dedupe.>",
	"llm-stage.stage.replicas", "llm-stage.budget.account.>", "llm-stage.stage.status", "llm-stage.stage.control",
	"$JS.API.CONSUMER.CREATE.RESULTS.>", "$JS.API.CONSUMER.MSG.NEXT.RESULTS.>", // the page has no story of a row
	"$JS.ACK.ROWS.stage-0.>", "$JS.ACK.ROWS.stage-1.>", // slowly: the stage sets the consumer back again and again
	"$JS.API.STREAM.INFO.BATCHES", "$JS.API.STREAM.MSG.GET.BATCHES", "$JS.API.STREAM.PURGE.BATCHES", // deferred batches are refused, or not removed
	"$JS.API.CONSUMER.CREATE.BATCHES.>", "$JS.API.CONSUMER.MSG.NEXT.BATCHES.>", "batches.stage.>",
	"stage.llm_batch.submit", "stage.llm_batch.get", "stage.llm_batch.cancel",
	"stage.llm_batch", "stage.llm_query_batched", "$SRV.*", "$SRV.*.llm-stage", "$SRV.*.llm-stage.*",
}

// A stage with all lists works. The log names each entry that is removed; without most of them the stage ends,
// or reports in /readyz that it is blocked; without the others it still does all its work.
func TestEachPermissionThatIsMissingIsReported(t *testing.T) {
	g := stagetest.Value(permissions.Read("../../docs/permissions.md"))(t)
	all := g[permissions.Run].And(g[permissions.Batches], g[permissions.Status], g[permissions.Rows], g[permissions.Control], g[permissions.Partitions], g[permissions.Budget], g[permissions.DeadLetters], g[permissions.Dedupe], g[permissions.Media], g[permissions.Ceiling])
	rows := g[permissions.Rows]
	type missing struct {
		entry string
		grant permissions.Grant
	}
	cases := []missing{{"", all}}
	all.Publish = slices.Compact(slices.Sorted(slices.Values(all.Publish))) // two features may need the same
	for _, entry := range all.Publish {
		grant := permissions.Grant{Publish: drop(all.Publish, entry), Subscribe: all.Subscribe, Responses: all.Responses}
		if strings.HasPrefix(entry, "$JS.ACK.") {
			// An ack goes to the reply subject of a row, so whoever may answer messages may ack each delivery once. Only a
			// row that was delivered twice, before and after the reset of a take-over, would then be denied its ack.
			grant.Responses = nil
		}
		cases = append(cases, missing{entry, grant})
	}
	for _, entry := range all.Subscribe {
		cases = append(cases, missing{entry, permissions.Grant{Publish: all.Publish, Subscribe: drop(all.Subscribe, entry), Responses: all.Responses}})
	}
	for i := 0; i < len(cases); i += stagetest.Stride(8) {
		c := cases[i]
		t.Run(c.entry, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o := work(t, everything, slowAndRefused, c.grant, "")
				if c.entry == "" {
					if !o.well() || len(o.denied) > 0 || o.rows != [2]string{} {
						t.Errorf("with all permissions: %+v", o)
					}
					return
				}
				if !names(o.denied, c.entry) {
					t.Errorf("the log names %q, none of it is %s", o.denied, c.entry)
				}
				if slices.Contains(rows.Publish, c.entry) && o.ready && !strings.Contains(o.rows[0], "docs/permissions.md has what rows on the dashboard need") {
					t.Errorf("without %s the page says %q of a row", c.entry, o.rows[0])
				}
				if saving := slices.Contains(savings, c.entry); o.well() != saving {
					t.Errorf("done without %s: %v, want %v: error %v, ready %v %q, %d results", c.entry, o.well(), saving, o.err, o.ready, o.why, o.results)
				}
			})
		})
	}
}

func drop(list []string, entry string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(e string) bool { return e == entry })
}
