package llmtest_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/lab/llmtest/batches"
)

const day = 24 * time.Hour

func TestBatchAnswersAsTheLiveEndpoint(t *testing.T) {
	each(t, batches.Config{Delay: time.Hour}, func(b *testbed, d dialect) {
		id := d.submit(b, "t", d.requests(20))
		time.Sleep(30 * time.Minute)
		if got := d.state(b.call("GET", d.get(id), "")); got == d.words[0] {
			b.Errorf("half-way it is %s", got)
		}
		time.Sleep(31 * time.Minute)
		if got := d.state(b.call("GET", d.get(id), "")); got != d.words[0] {
			b.Errorf("at the end it is %s", got)
		}
		lines := slices.DeleteFunc(d.results(b, id), func(s string) bool { return s == "" })
		if len(lines) != 20 {
			b.Fatalf("%d lines, want 20: %q", len(lines), lines)
		}
		inOrder := true
		for i, l := range lines {
			inOrder = inOrder && strings.Contains(l, fmt.Sprintf(`"t-%d"`, i))
		}
		if inOrder != (d.name == "gemini") {
			b.Errorf("in order: %v", inOrder)
		}
		for i := range 20 {
			want := llmtest.Answer(fmt.Sprintf("prompt %d", i))
			if !slices.ContainsFunc(lines, func(l string) bool {
				return strings.Contains(l, fmt.Sprintf(`"t-%d"`, i)) && strings.Contains(l, want) && strings.Contains(l, "sage")
			}) {
				b.Errorf("no line answers t-%d with %q and a usage", i, want)
			}
		}
		s := b.server.Stats().Batches
		if s.Created != 1 || s.Completed != 1 || s.Answered != 20 || s.Prompt == 0 || s.Completion == 0 {
			b.Errorf("stats %+v", s)
		}
	})
}

func TestBatchExpiresByTheProvidersRule(t *testing.T) {
	each(t, batches.Config{Delay: time.Hour, Expire: 1}, func(b *testbed, d dialect) {
		id := d.submit(b, "t", d.requests(50))
		time.Sleep(2 * time.Hour)
		azure := strings.HasPrefix(d.name, "azure")
		want := d.words[1]
		if azure {
			want = d.words[0]
		}
		if got := d.state(b.call("GET", d.get(id), "")); got != want {
			b.Fatalf("it is %s, want %s", got, want)
		}
		lines := d.results(b, id)
		lapsed := 0
		for _, l := range lines {
			if strings.Contains(l, "batch_expired") || strings.Contains(l, `"type":"expired"`) {
				lapsed++
			}
		}
		s := b.server.Stats().Batches
		billed := len(b.server.Batches().Billed(nil))
		switch {
		case azure && (s.Expired != 0 || billed != 50):
			b.Errorf("stats %+v, %d billed: it never expires", s, billed)
		case d.name == "gemini" && (len(lines) != 0 || billed != 0 || s.Lapsed != 50):
			b.Errorf("%d lines, stats %+v: want no results at all", len(lines), s)
		case !azure && d.name != "gemini" && (lapsed == 0 || billed == 0 || lapsed+billed != 50 || len(lines) != 50):
			b.Errorf("%d lines, %d lapsed, %d billed of 50", len(lines), lapsed, billed)
		}
	})
}

func TestBatchLongerThanItsWindowExpires(t *testing.T) {
	each(t, batches.Config{Delay: 72 * time.Hour}, func(b *testbed, d dialect) {
		id := d.submit(b, "t", d.requests(10))
		time.Sleep(24*time.Hour - time.Minute)
		running := d.state(b.call("GET", d.get(id), ""))
		time.Sleep(25 * time.Hour)
		got := d.state(b.call("GET", d.get(id), ""))
		ended := got == d.words[1]
		if running == d.words[1] || ended == strings.HasPrefix(d.name, "azure") {
			b.Errorf("before the window's end %s, after it %s", running, got)
		}
	})
}

func TestCancelledBatchHasWhatWasAnswered(t *testing.T) {
	each(t, batches.Config{Delay: time.Hour, CancelDelay: 5 * time.Minute}, func(b *testbed, d dialect) {
		id := d.submit(b, "t", d.requests(50))
		time.Sleep(30 * time.Minute)
		b.call("POST", d.cancel(id), "")
		if got := d.state(b.call("GET", d.get(id), "")); got == d.words[2] {
			b.Errorf("at once it is %s", got)
		}
		time.Sleep(6 * time.Minute)
		if got := d.state(b.call("GET", d.get(id), "")); got != d.words[2] {
			b.Errorf("later it is %s", got)
		}
		b.refused("POST", d.cancel(id), "")
		s, lines := b.server.Stats().Batches, d.results(b, id)
		if d.name == "gemini" {
			if len(lines) != 0 || s.Answered != 0 {
				b.Errorf("%d lines, stats %+v", len(lines), s)
			}
			return
		}
		if len(lines) != 50 || s.Answered == 0 || s.Lapsed == 0 || s.Answered+s.Lapsed != 50 || s.Cancelled != 1 {
			b.Errorf("%d lines, stats %+v", len(lines), s)
		}
	})
}

func TestLinesFailAndGoAstray(t *testing.T) {
	nasty := batches.Config{Fail: map[int]float64{400: .1, 429: .1, 500: .1}, Missing: .1, Doubled: .1, Foreign: .1, Torn: .1}
	each(t, nasty, func(b *testbed, d dialect) {
		id := d.submit(b, "t", d.requests(200))
		seen := map[string]int{}
		garbled, strangers, failures := 0, 0, 0
		for _, l := range d.results(b, id) {
			_, rest, _ := strings.Cut(l, `"t-`)
			n, _, _ := strings.Cut(rest, `"`)
			switch {
			case l == "":
			case strings.Contains(l, `"stranger-t-`):
				strangers++
			case !strings.HasSuffix(l, "}"):
				garbled++
			case strings.Contains(l, "injected failure"):
				failures++
				seen[n]++
			default:
				seen[n]++
			}
		}
		doubled := 0
		for _, times := range seen {
			if times > 1 {
				doubled++
			}
		}
		missing := 200 - garbled - len(seen)
		if garbled == 0 || strangers == 0 || doubled == 0 || missing <= 0 || failures < 30 || failures > 90 {
			b.Errorf("%d garbled, %d strangers, %d doubled, %d missing, %d failures", garbled, strangers, doubled, missing, failures)
		}
		for line, times := range b.server.Batches().Billed(nil) {
			if times != 1 || strings.HasPrefix(line, "stranger") {
				b.Errorf("%s is billed %d times", line, times)
			}
		}
		if s := b.server.Stats().Batches; s.LineErrors != int64(failures) || s.Answered+s.LineErrors != 200 {
			b.Errorf("stats %+v, %d failures seen", s, failures)
		}
	})
}

func TestLostCreateIsCarriedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestbed(t, batches.Config{LoseCreate: 1})
		body := `{"requests":[` + anthropicDialect().line("a-1", "p") + `]}`
		if status, _, _, cut := b.send("POST", "/v1/messages/batches", nil, body); status != 0 || !cut {
			t.Errorf("status %d", status)
		}
		list := b.call("GET", "/v1/messages/batches", "")["data"].([]any)
		if len(list) != 1 || b.server.Batches().Billed(nil)["a-1"] != 1 {
			t.Errorf("list %v, billed %v", list, b.server.Batches().Billed(nil))
		}
	})
}

func TestListLagsAndNewBatchIsHidden(t *testing.T) {
	each(t, batches.Config{ListLag: time.Minute, Hidden: 10 * time.Second}, func(b *testbed, d dialect) {
		id := d.submit(b, "t", d.requests(1))
		list := strings.TrimSuffix(d.get(""), "/")
		list = strings.Replace(list, "/?", "?", 1)
		if got := b.refused("GET", d.get(id), ""); !strings.HasPrefix(got, "404") {
			b.Errorf("at once: %s", got)
		}
		time.Sleep(11 * time.Second)
		b.call("GET", d.get(id), "")
		_, early, _, _ := b.send("GET", list, nil, "")
		time.Sleep(50 * time.Second)
		_, late, _, _ := b.send("GET", list, nil, "")
		if strings.Contains(early, id) || !strings.Contains(late, id) {
			b.Errorf("early list %s\nlate list %s", early, late)
		}
	})
}

func TestListsHavePages(t *testing.T) {
	each(t, batches.Config{}, func(b *testbed, d dialect) {
		var want []string
		for i := range 5 {
			want = append(want, d.submit(b, fmt.Sprint("t", i), d.requests(1)))
			time.Sleep(time.Second)
		}
		slices.Reverse(want)
		path, query, _ := strings.Cut(d.get(""), "?")
		path = strings.TrimSuffix(path, "/") + "?" + query
		size, cursor := "&limit=2", "&after="
		switch d.name {
		case "anthropic":
			cursor = "&after_id="
		case "gemini":
			size, cursor = "&pageSize=2", "&pageToken="
		}
		var got []string
		after := ""
		for range 5 {
			o := b.call("GET", path+size+after, "")
			rows, _ := o["data"].([]any)
			if d.name == "gemini" {
				rows, _ = o["operations"].([]any)
			}
			for _, row := range rows {
				id, _ := row.(object)["id"].(string)
				if d.name == "gemini" {
					id = strings.TrimPrefix(row.(object)["name"].(string), "batches/")
				}
				got = append(got, id)
			}
			next, _ := o["nextPageToken"].(string)
			if more, _ := o["has_more"].(bool); more {
				next = o["last_id"].(string)
			}
			if next == "" {
				break
			}
			after = cursor + next
		}
		if !slices.Equal(got, want) {
			b.Errorf("got %v, want %v", got, want)
		}
		for _, n := range []string{"0", "1001", "x"} {
			b.refused("GET", path+size[:strings.Index(size, "=")+1]+n, "")
		}
	})
}

func TestDownloadsFail(t *testing.T) {
	var op atomic.Value
	synctest.Test(t, func(t *testing.T) {
		b := newTestbed(t, batches.Config{BadGateway: .3, CutContent: .3, Script: func(r batches.Request) *batches.Step {
			op.Store(r.Op)
			return nil
		}})
		d := anthropicDialect()
		id := d.submit(b, "t", d.requests(40))
		bad, cuts, good := 0, 0, 0
		for range 60 {
			status, body, _, cut := b.send("GET", d.get(id)+"/results", nil, "")
			switch {
			case status == http.StatusBadGateway:
				bad++
			case cut:
				cuts++
			case strings.Count(body, "\n") == 40:
				good++
			}
		}
		if bad < 5 || cuts < 5 || good < 5 || bad+cuts+good != 60 || op.Load() != batches.Content {
			t.Errorf("%d bad, %d cut, %d good; last %v", bad, cuts, good, op.Load())
		}
	})
}

func TestWithdrawnFileRefusesTheCreation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestbed(t, batches.Config{})
		file := b.upload("/v1", "t.jsonl", dialects()[0].requests(1)[0])
		b.call("DELETE", "/v1/files/"+file, "")
		got := b.refused("POST", "/v1/batches", fmt.Sprintf(`{"input_file_id":%q,"endpoint":"/v1/chat/completions","completion_window":"24h"}`, file))
		if !strings.HasPrefix(got, "400") || b.server.Stats().Batches.Created != 0 {
			t.Errorf("got %s", got)
		}
		got = b.refused("POST", "/v1beta/models/m:batchGenerateContent", `{"batch":{"displayName":"t","inputConfig":{"fileName":"files/gone"}}}`)
		if !strings.HasPrefix(got, "404") {
			t.Errorf("got %s", got)
		}
	})
}

func TestBadLinesRefuseTheWholeBatch(t *testing.T) {
	poison := func(id string, _ []byte) bool { return id == "t-3" }
	tests := []struct {
		name, code string
		cfg        batches.Config
		change     func(lines []string) []string
		line       any
	}{
		{"poison", "invalid_request", batches.Config{Poison: poison}, nil, 4.},
		{"unnamed", "invalid_request", batches.Config{Poison: poison, Unnamed: true}, nil, nil},
		{"doubled id", "duplicate_custom_id", batches.Config{}, func(l []string) []string { return append(l, l[1]) }, 6.},
		{"no id", "missing_required_parameter", batches.Config{}, func(l []string) []string {
			return append(l, strings.Replace(l[0], "t-0", "", 1))
		}, 6.},
		{"no JSON", "invalid_json_line", batches.Config{}, func(l []string) []string { return append([]string{"{\n"}, l...) }, 1.},
		{"byte order mark", "invalid_json_line", batches.Config{}, func(l []string) []string { return append([]string{"\ufeff"}, l...) }, 1.},
		{"other model", "model_mismatch", batches.Config{}, func(l []string) []string {
			return append(l, strings.NewReplacer(`"m"`, `"n"`, "t-0", "t-9").Replace(l[0]))
		}, 6.},
		{"other endpoint", "url_mismatch", batches.Config{}, func(l []string) []string {
			return append(l, strings.NewReplacer("chat/completions", "responses", "t-0", "t-9").Replace(l[0]))
		}, 6.},
		{"too many", "too_many_tasks", batches.Config{MaxLines: 4}, nil, nil},
		{"queue full", "token_limit_exceeded", batches.Config{Enqueued: 1}, nil, nil},
	}
	for _, tt := range tests {
		for _, d := range []dialect{dialects()[0], dialects()[2]} {
			t.Run(tt.name+" "+d.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newTestbed(t, tt.cfg)
					lines := d.requests(5)
					if tt.change != nil {
						lines = tt.change(lines)
					}
					id := d.submit(b, "t", lines)
					o := b.call("GET", d.get(id), "")
					list, _ := o["errors"].(object)
					if list == nil || o["status"] != "failed" {
						t.Fatalf("got %v", o)
					}
					first := list["data"].([]any)[0].(object)
					if first["code"] != tt.code || first["line"] != tt.line {
						t.Errorf("got %v, want code %s, line %v", first, tt.code, tt.line)
					}
					if s := b.server.Stats().Batches; s.Failed != 1 || s.Answered != 0 {
						t.Errorf("stats %+v", s)
					}
				})
			})
		}
	}
}

func TestBatchRequestsAreCheckedStrictly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestbed(t, batches.Config{MaxLines: 3, Enqueued: 500, RefuseAtOnce: true})
		file := b.upload("/v1", "t.jsonl", strings.Join(dialects()[0].requests(2), ""))
		create := func(endpoint, window, more string) string {
			return fmt.Sprintf(`{"input_file_id":%q,"endpoint":%q,"completion_window":%q%s}`, file, endpoint, window, more)
		}
		a := anthropicDialect()
		long := a.line("a", strings.Repeat("word ", 1000))
		requests := func(lines ...string) string { return `{"requests":[` + strings.Join(lines, ",") + `]}` }
		const chat, inline = "/v1/chat/completions", "/v1beta/models/m:batchGenerateContent"
		tests := []struct{ method, path, body, want string }{
			{"POST", "/v1/batches", create("/v1/videos", "24h", ""), "400 endpoint"},
			{"POST", "/v1/batches", create("/chat/completions", "24h", ""), "400 endpoint"},
			{"POST", "/v1/batches", create(chat, "48h", ""), "400 completion_window"},
			{"POST", "/v1/batches", create(chat, "24h", `,"token":"x"`), "400 token"},
			{"POST", "/v1/batches", create(chat, "24h", `,"metadata":{"a":1}`), "400 metadata"},
			{"POST", "/v1/batches", `{"endpoint":"/v1/chat/completions","completion_window":"24h"}`, "400 input_file_id"},
			{"POST", "/v1/files", "", "400 multipart"},
			{"GET", "/openai/batches", "", "404 api-version"},
			{"PUT", "/v1/batches/x", "", "405 "},
			{"GET", "/v1/batches/x", "", "404 x"},
			{"POST", "/v1/batches/x/cancel", "", "404 x"},
			{"GET", "/v1/files/x/content", "", "404 x"},
			{"GET", "/v1/batches?after=x", "", "404 x"},
			{"POST", a.root, requests(), "400 at least 1"},
			{"POST", a.root, requests(a.line("a b", "p")), "400 pattern"},
			{"POST", a.root, requests(a.line("a", "p"), a.line("a", "q")), "400 duplicate"},
			{"POST", a.root, requests(a.requests(4)...), "400 at most 3"},
			{"POST", a.root, requests(long), "429 rate_limit_error"},
			{"GET", a.root + "/x", "", "404 not_found_error"},
			{"POST", inline, `{"batch":{"inputConfig":{"fileName":"files/x"}}}`, "400 display_name"},
			{"POST", inline, `{"batch":{"displayName":"t"}}`, "400 input_config"},
			{"POST", inline, `{"batch":{"displayName":"t"},"extra":1}`, "400 extra"},
			{"GET", "/v1beta/batches/x", "", "404 NOT_FOUND"},
			{"GET", "/download/v1beta/files/x:download?alt=media", "", "403 PERMISSION_DENIED"},
		}
		for _, tt := range tests {
			status, part, _ := strings.Cut(tt.want, " ")
			if got := b.refused(tt.method, tt.path, tt.body); !strings.HasPrefix(got, status+" ") || !strings.Contains(got, part) {
				t.Errorf("%s %s %s: %s, want %s", tt.method, tt.path, tt.body, got, tt.want)
			}
		}
	})
}

func TestInlineGeminiBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestbed(t, batches.Config{Delay: time.Minute})
		b.call("POST", "/v1beta/models/m:batchGenerateContent", `{"batch":{"display_name":"t","input_config":{"requests":{"requests":[{"request":`+
			fmt.Sprintf(geminiBody, "hello")+`,"metadata":{"key":"k-1"}}]}}}}`)
		time.Sleep(2 * time.Minute)
		list := b.call("GET", "/v1beta/batches", "")["operations"].([]any)
		response := list[0].(object)["response"].(object)["inlinedResponses"].(object)["inlinedResponses"].([]any)
		if got := fmt.Sprint(response); len(response) != 1 || !strings.Contains(got, "k-1") || !strings.Contains(got, llmtest.Answer("hello")) {
			t.Errorf("got %s", got)
		}
	})
}

func TestBatchScriptDecidesPerRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		steps := []*batches.Step{
			{Lose: batches.LoseRequest}, {Status: 503}, {Status: 418, Body: "tea"}, {Lose: batches.LoseAnswer}, {Delay: time.Hour},
		}
		b := newTestbed(t, batches.Config{Script: func(r batches.Request) *batches.Step {
			if r.N < len(steps) {
				return steps[r.N]
			}
			return nil
		}})
		body := `{"requests":[` + anthropicDialect().line("a-1", "p") + `]}`
		created := []int64{0, 0, 0, 1, 2}
		statuses := []int{0, 503, 418, 0, 200}
		for i := range steps {
			from := time.Now()
			status, _, _, _ := b.send("POST", "/v1/messages/batches", nil, body)
			if n := b.server.Stats().Batches.Created; status != statuses[i] || n != created[i] {
				t.Errorf("step %d: status %d, %d created", i, status, n)
			}
			if took := time.Since(from); i == 4 && took != time.Hour {
				t.Errorf("took %v", took)
			}
		}
		// The same batch twice is what a test looks for.
		if got := b.server.Batches().Billed(func(id string) string { return id[:1] })["a"]; got != 2 {
			t.Errorf("billed %d times, want 2", got)
		}
		infos := b.server.Batches().Batches()
		if len(infos) != 2 || infos[0].First != infos[1].First || infos[0].ID == infos[1].ID {
			t.Errorf("got %+v", infos)
		}
	})
}

func TestDeletedBatchIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestbed(t, batches.Config{Delay: day / 24})
		for _, d := range []dialect{anthropicDialect(), geminiDialect()} {
			id := d.submit(b, "t", d.requests(1))
			b.refused("DELETE", d.get(id), "") // it is running
			time.Sleep(2 * time.Hour)
			b.call("DELETE", d.get(id), "")
			b.refused("GET", d.get(id), "")
		}
		d := dialects()[0]
		id := d.submit(b, "t", d.requests(1))
		time.Sleep(2 * time.Hour)
		output := b.call("GET", d.get(id), "")["output_file_id"].(string)
		b.call("DELETE", "/v1/files/"+output, "")
		b.refused("GET", "/v1/files/"+output+"/content", "")
		if got := len(b.server.Batches().Billed(nil)); got != 1 {
			t.Errorf("%d custom ids billed", got) // t-0, thrice: what is deleted stays billed
		}
	})
}

func TestBatchSettingsAreChecked(t *testing.T) {
	_, err := llmtest.New(llmtest.Config{Batches: batches.Config{Expire: 2, Delay: -1, Fail: map[int]float64{200: .5, 500: .7}}})
	for _, want := range []string{"expire 2", "delay -1ns", "status 200", "add up to"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %q", err, want)
		}
	}
}
