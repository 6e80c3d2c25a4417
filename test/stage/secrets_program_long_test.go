//go:build long

package stage_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/llm-stage/stage/consumer/natsd"
	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
)

const (
	echoedKey     = "sk/echoed+key_0123456789~"
	echoedGateway = "gateway/token+9876543210"
	echoedMember  = "member/of+the_body-1357"
	otlpToken     = "otlp-token-2468013579"
)

// spellings are ways in which servers repeat a secret.
var spellings = []struct {
	name  string
	spell func(string) string
}{
	{"plain", func(s string) string { return s }},
	{"slashes escaped", func(s string) string { return strings.ReplaceAll(s, "/", `\/`) }},
	{"by code", func(s string) string {
		return strings.NewReplacer("/", `\u002f`, "+", `\u002B`, "k", `\u006b`).Replace(s)
	}},
	{"JSON in JSON", func(s string) string { return strings.NewReplacer("/", `\\/`, "+", `\\u002b`).Replace(s) }},
	{"URL", url.QueryEscape},
	{"URL twice, lower", func(s string) string {
		return strings.NewReplacer("/", "%252f", "+", "%252b", "e", "%65").Replace(s)
	}},
	{"HTML", func(s string) string {
		return strings.NewReplacer("/", "&#x2F;", "+", "&plus;").Replace(html.EscapeString(s))
	}},
	{"base64", func(s string) string { return base64.StdEncoding.EncodeToString([]byte("user:" + s)) }},
	{"base64 for URLs", func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte("Bearer " + s + "\n")) }},
	{"hex", func(s string) string { return strings.ToUpper(hex.EncodeToString([]byte(s))) }},
}

// echo is an LLM that repeats what it was sent, in all spellings and in all places of a reply. The kinds of replies
// alternate: five failures in a row would be an outage, and no row would succeed.
func echo(c llmtest.Call) *llmtest.Step {
	const kinds = 6
	var body struct {
		APIKey string `json:"api_key"`
	}
	_ = json.Unmarshal(c.Body, &body)
	var all []string
	spell := spellings[c.N/kinds%len(spellings)].spell
	for _, secret := range []string{strings.TrimPrefix(c.Header.Get("Authorization"), "Bearer "), c.Header.Get("X-Gateway-Token"), body.APIKey} {
		all = append(all, spell(secret))
	}
	text := strings.Join(all, " ")
	fault := fmt.Sprintf(`{"error":{"message":"rejected %s","type":"%s","code":"%s"}}`, text, all[0], all[0])
	header := map[string]string{"X-Request-Id": strings.ReplaceAll(all[0], "\n", ""), "X-Echo": all[1]}
	switch c.N % kinds {
	case 0:
		return &llmtest.Step{Status: 500, Body: fault, Header: header}
	case 1:
		return &llmtest.Step{Status: 400, Body: fault, Header: header}
	case 2:
		return &llmtest.Step{Body: `{"choices":[],"debug":"` + text + `"}`}
	case 3:
		return &llmtest.Step{Status: 502, Body: "<html><title>" + text + "</title>" + strings.Repeat("x", 450) + text, Header: header}
	default:
		return &llmtest.Step{Body: fmt.Sprintf(
			`{"id":"%[1]s","model":"%[1]s","system_fingerprint":"%[2]s","choices":[{"message":{"content":"your secrets: %[2]s."},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1}}`,
			all[0], text)}
	}
}

// TestNoStoreLogPageOrSpanHoldsASecret runs the program against a server that repeats every secret, and looks for all
// spellings in everything that the program stores and shows.
func TestNoStoreLogPageOrSpanHoldsASecret(t *testing.T) {
	t.Parallel()
	const rows = 120
	store := t.TempDir()
	srv := stagetest.Value(natsd.Start(natsd.Config{Dir: store}))(t)
	t.Cleanup(srv.Stop)
	nc := stagetest.Value(srv.Connect())(t)
	t.Cleanup(nc.Close)
	js := stagetest.Value(jetstream.New(nc))(t)
	for _, stream := range []string{"rows", "dead"} {
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: strings.ToUpper(stream), Subjects: []string{stream + ".>"}}); err != nil {
			t.Fatal(err)
		}
	}
	_, environ := realLLM(t, llmtest.Config{Script: echo})
	rec, dir := &receiver{}, t.TempDir()
	maps.Copy(environ, vars{
		"STAGE_LLM_API_KEY_FILE": stagetest.File(t, "key", echoedKey+"\n"), "STAGE_LLM_EXTRA_BODY_FILE": stagetest.File(t, "body", `{"api_key":"`+echoedMember+`"}`),
		"STAGE_LLM_EXTRA_HEADERS": `{"x-gateway-token":"` + echoedGateway + `"}`, "STAGE_NATS_URL": srv.URL(), "STAGE_NATS_TOKEN": srv.Token(),
		"STAGE_LOG_LEVEL": "debug", "STAGE_DASHBOARD_PAYLOADS": "true", "STAGE_DEDUPE": "stored", "STAGE_JOURNAL_AFTER": "0s", "STAGE_ON_FATAL": "fail",
		"STAGE_DEAD_LETTER_SUBJECT": "dead.letters", "STAGE_RETRY_MAX_ATTEMPTS": "2", "STAGE_RETRY_BASE_DELAY": "1ms", "STAGE_OUTAGE_HOLD": "1s",
		"STAGE_FATAL_PROBE_INTERVAL":  "1s",
		"OTEL_EXPORTER_OTLP_ENDPOINT": rec.serveHTTP(t), "OTEL_EXPORTER_OTLP_HEADERS": "Authorization: Bearer " + otlpToken + ",ok=1",
	})
	kept, err := nc.SubscribeSync("journal.>") // the stream is purged as results are stored
	if err != nil {
		t.Fatal(err)
	}
	p := runStage(t, dir, environ, "run")
	for n := range rows {
		stagetest.Value(js.Publish(t.Context(), "rows.in", fmt.Appendf(nil, `{"n":%d}`, n+1)))(t)
	}
	eventually(t, "all results", func() bool {
		results, err := js.Stream(t.Context(), "RESULTS")
		return err == nil && results.CachedInfo().State.Msgs > rows
	})
	places := map[string]string{}
	reply, err := nc.Request("stage.llm_batch", []byte(`{"prompts":["`+strings.Repeat(`one","`, 29)+`last"]}`), realPatience)
	if err != nil {
		t.Fatal(err)
	}
	places["reply to a batched request"] = fmt.Sprint(reply.Header, string(reply.Data))
	at := regexp.MustCompile(`"dashboard":"(http://[^"/]+)`).FindStringSubmatch(p.stderr.String())
	if at == nil {
		t.Fatal("the log does not say where the dashboard is")
	}
	for _, path := range []string{"/", "/metrics", "/api/status", "/api/events", "/readyz"} {
		places["page "+path] = page(t, at[1]+path)
	}
	p.signal(syscall.SIGTERM)
	p.ends(0)
	shown := runStage(t, dir, environ, "config")
	shown.ends(0)
	places["standard error"], places["stage config"] = p.stdout.String()+p.stderr.String(), shown.stdout.String()+shown.stderr.String()

	names := js.StreamNames(t.Context())
	for name := range names.Name() {
		places["stream "+name] = storedMessages(t, js, name)
	}
	for m, err := kept.NextMsg(time.Second); err == nil; m, err = kept.NextMsg(time.Millisecond) {
		places["journal"] += fmt.Sprint(m.Header, string(m.Data))
	}
	for _, s := range rec.received(t) {
		places["spans"] += fmt.Sprintf("%+v\n", *s)
	}
	readStore(t, store, places)
	for place, text := range places {
		for _, found := range secretsIn(text) {
			t.Errorf("%s holds a secret: %s", place, found)
		}
	}
	for _, place := range []string{
		"stream RESULTS", "stream AUDIT", "journal", "stream DEDUPE", "spans", "reply to a batched request", "page /api/status", "standard error",
	} {
		if !strings.Contains(places[place], "[redacted]") {
			t.Errorf("%s holds nothing redacted, so this test proves nothing: %.500s", place, places[place])
		}
	}
	if log := places["standard error"]; !strings.Contains(log, `"message":"parse headers"`) || strings.Contains(log, otlpToken) {
		t.Error("the log lacks OpenTelemetry's message about its headers, or holds the token")
	}
}

// secretsIn returns the secrets found in a text, in any spelling, or after undoing the escapes of the whole text.
func secretsIn(text string) (found []string) {
	undone := text
	for range 4 {
		undone = escape.ReplaceAllStringFunc(undone, func(s string) string {
			code, err := hex.DecodeString(s[len(s)-2:])
			if err != nil {
				return s
			}
			return string(code)
		})
		undone = strings.ReplaceAll(html.UnescapeString(undone), `\/`, "/")
	}
	for _, secret := range []string{echoedKey, echoedGateway, echoedMember} {
		for _, s := range spellings {
			spelt := s.spell(secret)
			spelt = spelt[len(spelt)/3 : len(spelt)-4] // without the ends, whose base64 depends on the bytes around
			if i := strings.Index(text, spelt); i >= 0 {
				found = append(found, s.name+" "+text[max(0, i-100):min(len(text), i+100)])
			}
		}
		if i := strings.Index(undone, secret); i >= 0 {
			found = append(found, "with escapes "+undone[max(0, i-100):min(len(undone), i+100)])
		}
	}
	return found
}

var escape = regexp.MustCompile(`\\+u00[0-9a-fA-F]{2}|%[0-9a-fA-F]{2}`)

// page returns the body at an address; of an event stream, the first status.
func page(t *testing.T, address string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), realPatience)
	defer cancel()
	req := stagetest.Value(http.NewRequestWithContext(ctx, http.MethodGet, address, nil))(t)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		body := stagetest.Value(io.ReadAll(resp.Body))(t)
		return string(body)
	}
	var text strings.Builder
	status := false
	lines := bufio.NewReader(resp.Body)
	for {
		line, err := lines.ReadString('\n')
		text.WriteString(line)
		if status && line == "\n" {
			return text.String()
		}
		if status = status || strings.HasPrefix(line, "event: status"); err != nil {
			t.Fatalf("the events end with %v: %s", err, &text)
		}
	}
}

// storedMessages returns all messages of a stream with their subjects and headers, decoded.
func storedMessages(t *testing.T, js jetstream.JetStream, name string) string {
	t.Helper()
	stream := stagetest.Value(js.Stream(t.Context(), name))(t)
	var text strings.Builder
	for seq, state := stream.CachedInfo().State.FirstSeq, stream.CachedInfo().State; seq <= state.LastSeq; seq++ {
		if m, err := stream.GetMsg(t.Context(), seq); err == nil { // else it was deleted
			fmt.Fprintln(&text, m.Subject, m.Header, string(m.Data))
		}
	}
	return text.String()
}

// readStore adds the files of the server's store.
func readStore(t *testing.T, dir string, places map[string]string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		places["file "+path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
