package browser

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
)

// open starts a stage that may be steered, with a few rows a second to answer, and opens its page.
func open(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	dir := t.TempDir()
	cmd := exec.CommandContext(ctx, program, "run", "--http-addr", "127.0.0.1:0")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "STAGE_CONTROL=true", "STAGE_LLM_PROVIDER=mock", "STAGE_TEMPLATE=Say {{ row.n }}", "STAGE_NAME=reviews",
		"STAGE_LLM_RPM=600", "STAGE_DATA_DIR="+dir)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGINT)
		_ = cmd.Wait()
	})
	url := ""
	for lines := bufio.NewScanner(stderr); url == "" && lines.Scan(); {
		var line struct {
			Dashboard string `json:"dashboard"`
		}
		if json.Unmarshal(lines.Bytes(), &line) == nil {
			url = line.Dashboard
		}
	}
	if url == "" {
		t.Fatal("the stage names no dashboard")
	}
	go func() { _, _ = io.Copy(io.Discard, stderr) }()
	var rows strings.Builder
	for n := range 5000 {
		fmt.Fprintf(&rows, "{\"n\":%d}\n", n)
	}
	file := filepath.Join(dir, "rows.jsonl")
	if err := os.WriteFile(file, []byte(rows.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	load := exec.CommandContext(ctx, program, "load", file)
	load.Dir, load.Env = dir, cmd.Env
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("load: %v\n%s", err, out)
	}
	browser, end := chromedp.NewExecAllocator(ctx, chromedp.Headless, chromedp.DisableGPU)
	t.Cleanup(end)
	browser, end = chromedp.NewContext(browser)
	t.Cleanup(end)
	err = chromedp.Listen(browser, func(event any) {
		if _, ok := event.(*page.EventJavascriptDialogOpening); ok {
			go func() { // the event is not over before its handler is
				_, _ = chromedp.Call(browser, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: true})
			}()
		}
	})
	if err != nil {
		t.Fatalf("start Chromium (apt-get install chromium): %v", err)
	}
	if err := chromedp.Do(browser, chromedp.EmulateViewport(1280, 900), chromedp.Navigate(url)); err != nil {
		t.Fatal(err)
	}
	await(t, browser, `samples.length >= 3 && wholeStage !== null && document.getElementById("state").dataset.state === "working"`)
	return browser
}

// threeReplicas is a stage of three replicas, one of them missing, and eight partitions, after which the page is told no more.
const threeReplicas = `(() => {
	source.close();
	const at = new Date().toISOString(), rows = { succeeded: 4120, failed: 11, skipped: 0, pending: 18400, open: 96, per_second: 38.2, eta_seconds: 484 };
	const pool = { size: 32, in_flight: 20, waiting: 6, dispatched: 2200, successes: 2060, capacity_retries: 102, allowed_per_second: 12 };
	const usage = { calls: 2060, prompt_tokens: 40000, completion_tokens: 9000, total_tokens: 49000, cost_usd: 6.2, known_cost_usd: 6.2, unpriced_calls: 0 };
	const one = (n, more) => ({ status: "answers", self: n === 0, last_seen: at, note: "", replica: "RUN" + n, host: "pod-" + n, pid: 7, version: "v1", time: at, state: "working", why: "",
		ready: true, control: true, rows, pool, pause: null, usage, budget: [{ share: .5 }], lane: null, partitions: [], left_out: 0, ...more });
	const pause = { reason: "billing", error: "openai: 402 <b>quota", since: new Date(Date.now() - 125e3).toISOString(), next_probe: new Date(Date.now() + 42e3).toISOString(), probes: 3, held: "no row is lost" };
	const partitions = Array.from({ length: 8 }, (_, p) => ({ partition: p, replica: p < 4 ? "RUN0" : p < 7 ? "RUN1" : "", host: p < 4 ? "pod-0" : p < 7 ? "pod-1" : "", rivals: [], role: "owner",
		pending_rows: 2300, open_rows: 12, head_sequence: 51873 + p, head_of_line_seconds: p === 5 ? 90 : 1.2, paused: p === 3 ? "paused by alice@laptop" : "", problem: "" }));
	return { stage: "reviews", time: at, state: "paused", why: "1 of 2 replicas: " + pause.error, problem: "", control: true, rows, pool: { ...pool, size: 64 }, usage, row_errors: [{ reason: "api_call_failed", rows: 11 }],
		budget: [{ name: "team", provider: "openai", share: .75, members: 3 }], lane: { rows: { "in batches": 120, answered: 0 }, open: 2, oldest_batch_seconds: 7200, paused: "" },
		pauses: [{ replicas: 1, advice: "add credit", ...pause }], left_out: 0, partition_count: 8, partitions,
		replicas: [one(0, { partitions: [0, 1, 2, 3] }), one(1, { state: "paused", why: pause.error, pause, partitions: [4, 5, 6] }), one(2, { status: "missing", last_seen: new Date(Date.now() - 21e3).toISOString() })] };
})()`

func TestPageShowsTheWholeStage(t *testing.T) {
	t.Parallel()
	ctx := open(t)
	if evaluate[bool](t, ctx, `document.getElementById("replicas-card").checkVisibility()`) {
		t.Error("a table of replicas is shown, and there is one alone")
	}
	got := evaluate[map[string]string](t, ctx, `(() => {
		wholeStage = `+threeReplicas+`;
		showWhole();
		show(latest);
		const text = id => document.getElementById(id).textContent, row = (id, n) => Array.from(document.getElementById(id).rows[n].cells, c => c.textContent).join("|");
		return { word: text("state-word"), why: text("state-why"), todo: text("state-do"), title: document.title, rows: text("rows-done"), sub: text("replicas-sub"), own: text("own"),
			first: row("replicas", 0), second: row("replicas", 1), third: row("replicas", 2), paused: row("all-partitions", 3), slow: row("all-partitions", 5), lost: row("all-partitions", 7), errors: row("errors", 0) };
	})()`)
	for name, want := range map[string]string{
		"word": "Paused", "why": "billing (1 replica): openai: 402 <b>quota, for 2 min 05 s. Next probe in 42 s, 3 sent.",
		"todo": "No row is lost. To do: add credit.", "title": "Paused · reviews", "rows": "4,131 of 22,627",
		"sub": "2 replicas, 1 missing. Budget team for openai: 75.0% is this stage's, 3 members share it. Batch lane: 120 in batches, 2 open batches, the oldest for 2 h 00 min.", "own": "This replica: pod-0, run RUN0",
		"first":  "RUN0 (this)|pod-0|working|0–3|38.2 rows/s|20 of 32|102|$6.2000|50.0%|–|PauseDrain",
		"second": "RUN1|pod-1|paused (billing)|4–6|38.2 rows/s|20 of 32|102|$6.2000|50.0%|in 42 s|PauseDrain",
		"third":  "RUN2|pod-2|missing for 21 s|–|–|–|–|–|–|–|",
		"paused": "3|pod-0|2,300|12|row 51876 for 1.20 s|paused by alice@laptop|ResumeDrain",
		"slow":   "5|pod-1|2,300|12|row 51878 for 90.0 s|–|PauseDrain",
		"errors": "rows|api_call_failed|11",
		"lost":   "7|nobody|2,300|12|row 51880 for 1.20 s|–|PauseDrain",
	} {
		if got[name] != want {
			t.Errorf("%s: the page shows %q, want %q", name, got[name], want)
		}
	}
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{1400, 390} {
			t.Run(fmt.Sprintf("it can be read, %s, %d pixels", scheme, width), func(t *testing.T) { checkLook(t, ctx, scheme, width) })
		}
	}
	t.Run("at 390 pixels nothing is cut", func(t *testing.T) {
		cut := evaluate[[]string](t, ctx, `Array.from(document.querySelectorAll("main *")).filter(e => e.checkVisibility() && !e.closest(".u-wrap, thead") && e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0 && getComputedStyle(e).display !== "inline").map(e => e.outerHTML.slice(0, 120))`)
		if len(cut) > 0 {
			t.Errorf("cut: %q", cut)
		}
	})
	t.Run("without control there is no button", func(t *testing.T) {
		buttons := evaluate[int](t, ctx, `(() => {
			wholeStage.control = false;
			showWhole();
			return Array.from(document.querySelectorAll("button[data-verb]")).filter(b => b.checkVisibility()).length;
		})()`)
		if buttons != 0 {
			t.Errorf("%d buttons", buttons)
		}
	})
	t.Run("without a connection it is grey", func(t *testing.T) {
		got := evaluate[[]string](t, ctx, `(() => {
			link("late", "no update");
			return [document.title, getComputedStyle(document.querySelector("main")).filter];
		})()`)
		if got[0] != "No connection · reviews" || got[1] != "grayscale(1)" {
			t.Errorf("got %q", got)
		}
	})
}

// Each state says what it means for the rows, and what to do.
func TestStatesSayWhatToDo(t *testing.T) {
	t.Parallel()
	ctx := open(t)
	got := evaluate[map[string][]string](t, ctx, `(async () => {
		source.close();
		wholeStage = null;
		showWhole();
		const s = await (await fetch("api/status")).json(), now = new Date(s.time).getTime(), at = ms => new Date(now + ms).toISOString();
		const look = change => {
			const shown = structuredClone(s);
			change(shown, shown.pool);
			show(shown);
			const link = document.getElementById("state-failed");
			return [document.getElementById("state-word").textContent, document.getElementById("state-why").textContent + (link.checkVisibility() ? " [" + link.textContent + "](" + link.getAttribute("href") + ")" : ""),
				document.getElementById("state-do").textContent, document.getElementById("state-runbook").checkVisibility() ? new URL(document.getElementById("state-runbook").href).hash : ""];
		};
		const pause = (reason, error, next) => (s, p) => { s.state = "paused"; s.why = error; Object.assign(p, { pause_reason: reason, paused: error, paused_since: at(-60e3), next_probe: next, probes: 4, held: "no row is lost", advice: "do this" }); };
		const rows = (s, failed) => Object.assign(s.rows, { succeeded: 5, failed, pending: 0, open: 0 });
		return {
			outage: look(pause("outage", "503 <i>", at(9e3))),
			cost: look(pause("cost_ceiling", "ceiling", at(-1))),
			operator: look(pause("operator", "paused by alice@laptop", null)),
			idle: look(s => { s.state = "idle"; rows(s, 0); }),
			failed: look(s => { s.state = "idle"; rows(s, 11); }),
			stopping: look(s => { s.state = "stopping"; s.why = "waiting for 3 calls in flight"; s.since = at(-2000); s.stop = {}; }),
			held: look(s => { s.state = "held"; s.why = "results: the stream is full"; s.since = null; }),
			waiting: look((s, p) => { s.state = "waiting"; s.why = "the provider asked to wait"; p.law_paused_until = at(5000); }),
		};
	})()`)
	for name, want := range map[string][]string{
		"outage":   {"Outage", "503 <i>, for 1 min 00 s. Next probe in 9 s, 4 sent.", "No row is lost. To do: do this.", "#llmstagepaused"},
		"cost":     {"Paused", "cost ceiling: ceiling, for 1 min 00 s. The next probe is due, 4 sent.", "No row is lost. To do: do this.", "#llmstagepaused"},
		"operator": {"Paused", "operator: paused by alice@laptop, for 1 min 00 s. No probes, 4 sent.", "No row is lost. To do: do this.", "#llmstagepaused"},
		"idle":     {"Idle", "All rows are answered.", "", ""},
		"failed":   {"Idle", "All rows are answered, [11 failed.](#failures)", "", ""},
		"stopping": {"Stopping", "waiting for 3 calls in flight, for 2 s.", "Nothing to do: calls in flight end, and their results are stored. Rows that have not begun stay in the input stream.", ""},
		"held":     {"Blocked", "results: the stream is full.", "No row is lost: results are kept until they can be stored. To do: read the reason above, and the log.", "#llmstagepaused"},
	} {
		if strings.Join(got[name], "|") != strings.Join(want, "|") {
			t.Errorf("%s: the page shows %q, want %q", name, got[name], want)
		}
	}
	if w := got["waiting"]; !strings.Contains(w[1], ", 5 s: the provider asked to wait.") || !strings.HasPrefix(w[2], "No row fails of it") {
		t.Errorf("waiting: the page shows %q", w)
	}
}

// The buttons pause a real stage, and resume it.
func TestButtonsSteer(t *testing.T) {
	t.Parallel()
	ctx := open(t)
	await(t, ctx, `document.getElementById("steer-pause").checkVisibility() && !document.getElementById("steer-resume").checkVisibility()`)
	if err := chromedp.Do(ctx, chromedp.Click("#steer-pause")); err != nil {
		t.Fatal(err)
	}
	await(t, ctx, `document.getElementById("state-word").textContent === "Paused" && document.getElementById("steer-resume").checkVisibility()`)
	said := evaluate[string](t, ctx, `document.getElementById("steer-said").textContent`)
	if !strings.Contains(said, "done: paused") {
		t.Errorf("the page says %q", said)
	}
	if why := evaluate[string](t, ctx, `document.getElementById("state-why").textContent`); !strings.Contains(why, "paused by dashboard@127.0.0.1") {
		t.Errorf("the page says %q", why)
	}
	if err := chromedp.Do(ctx, chromedp.Click("#steer-resume")); err != nil {
		t.Fatal(err)
	}
	await(t, ctx, `document.getElementById("state-word").textContent === "Working"`)
}
