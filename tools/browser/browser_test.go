// Package browser looks at the dashboard of a running demo with headless Chromium. It belongs to the module of the tools,
// so that the program does not depend on what drives the browser.
package browser

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

const (
	demoRows = 240 // some 15 s
	// patience bounds the whole test, far above what a loaded machine needs.
	patience = 3 * time.Minute
)

// demo is a stage demo that runs.
type demo struct {
	url string
	out *bufio.Scanner
	cmd *exec.Cmd
}

// program is the path of the program, built once.
var program string

func TestMain(m *testing.M) {
	code := 1
	defer func() { os.Exit(code) }()
	dir, err := os.MkdirTemp("", "stage")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	program = filepath.Join(dir, "stage")
	build := exec.Command("go", "build", "-o", program, "./cmd/stage")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the program: %v\n%s\n", err, out)
		return
	}
	code = m.Run()
}

func startDemo(t *testing.T, ctx context.Context) *demo {
	t.Helper()
	d := &demo{cmd: exec.CommandContext(ctx, program, "demo", "--rows", strconv.Itoa(demoRows), "--http-addr", "127.0.0.1:0")}
	d.cmd.Stderr = os.Stderr
	stdout, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	d.out = bufio.NewScanner(stdout)
	for d.out.Scan() {
		if url, ok := strings.CutPrefix(d.out.Text(), "dashboard: "); ok {
			d.url = url
			return d
		}
	}
	t.Fatal("the demo names no dashboard")
	return nil
}

// end reads what the demo prints at its end.
func (d *demo) end(t *testing.T) (output string) {
	t.Helper()
	for d.out.Scan() {
		output += d.out.Text() + "\n"
	}
	if err := d.cmd.Wait(); err != nil {
		t.Errorf("the demo: %v", err)
	}
	return output
}

// complaints are the messages of the browser's console: errors of scripts, and what the content security policy blocked.
type complaints struct {
	mu   sync.Mutex
	list []string
}

func (c *complaints) note(event any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch e := event.(type) {
	case *log.EventEntryAdded:
		c.list = append(c.list, string(e.Entry.Level)+": "+e.Entry.Text)
	case *runtime.EventExceptionThrown:
		c.list = append(c.list, fmt.Sprintf("exception: %+v", e.ExceptionDetails))
	case *runtime.EventConsoleAPICalled:
		c.list = append(c.list, "console."+string(e.Type))
	}
}

// evaluate returns the value of an expression, or what its promise brings. The page keeps the promise: nothing else refers
// to it while it waits for an answer, and a garbage collection in that moment ends the wait with "Promise was collected".
func evaluate[T any](t *testing.T, ctx context.Context, script string) T {
	t.Helper()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T]("globalThis.evaluated = "+script, chromedp.EvalAwaitPromise))
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return v
}

// await waits until a condition holds on the page.
func await(t *testing.T, ctx context.Context, condition string) {
	t.Helper()
	err := chromedp.Do(ctx, chromedp.Poll[chromedp.Void](condition, chromedp.WithPollingInterval(100*time.Millisecond), chromedp.WithPollingTimeout(0)))
	if err != nil {
		t.Fatalf("waiting for %s: %v", condition, err)
	}
}

func TestDashboardShowsARunningDemo(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	browser, end := chromedp.NewExecAllocator(ctx, chromedp.Headless, chromedp.DisableGPU)
	defer end()
	browser, end = chromedp.NewContext(browser)
	defer end()
	var said complaints
	if err := chromedp.Listen(browser, said.note); err != nil {
		t.Fatalf("start Chromium (apt-get install chromium): %v", err)
	}
	demo := startDemo(t, ctx) // which does not wait for the browser
	if err := chromedp.Do(browser, chromedp.EmulateViewport(1280, 900), chromedp.Navigate(demo.url)); err != nil {
		t.Fatal(err)
	}
	await(t, browser, `samples.length >= 3 && document.getElementById("state").dataset.state === "working"`)

	t.Run("it shows what the status says", func(t *testing.T) { checkFigures(t, browser) })
	t.Run("nothing has moved", func(t *testing.T) { checkLayoutShift(t, browser) })
	t.Run("the charts are drawn", func(t *testing.T) { checkCharts(t, browser) })
	t.Run("it shows the order of results", func(t *testing.T) { checkOrder(t, browser) })
	t.Run("it shows the shared budget", func(t *testing.T) { checkBudget(t, browser) })
	t.Run("it works by keyboard", func(t *testing.T) { checkKeyboard(t, browser) })
	t.Run("all has a name", func(t *testing.T) { checkNames(t, browser) })
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{1280, 360} {
			t.Run(fmt.Sprintf("it can be read, %s, %d pixels", scheme, width), func(t *testing.T) { checkLook(t, browser, scheme, width) })
		}
	}
	t.Run("at the end it shows the end", func(t *testing.T) {
		output := demo.end(t)
		await(t, browser, `document.getElementById("state").dataset.state === "ended" && document.getElementById("link-text").textContent === "ended"`)
		calls := regexp.MustCompile(`audit: (\d+) calls`).FindStringSubmatch(output)
		shown := evaluate[struct{ Rows, Failed, Calls string }](t, browser, `({
			rows: document.getElementById("rows-done").textContent, failed: document.getElementById("failed").textContent,
			calls: document.getElementById("models").rows[0].cells[1].textContent})`)
		if calls == nil || shown.Rows != strconv.Itoa(demoRows) || shown.Failed != "0" || shown.Calls != calls[1] {
			t.Errorf("got %+v, want %d rows, none failed, and the calls of\n%s", shown, demoRows, output)
		}
	})
	said.mu.Lock()
	defer said.mu.Unlock()
	for _, complaint := range said.list {
		// The demo has ended, and with it the stream of events.
		if !strings.Contains(complaint, "ERR_CONNECTION_REFUSED") && !strings.Contains(complaint, "ERR_INCOMPLETE_CHUNKED_ENCODING") {
			t.Errorf("the browser complains: %s", complaint)
		}
	}
}

// checkFigures asks for the status before and after a moment at which the page is read: what only grows lies between.
func checkFigures(t *testing.T, ctx context.Context) {
	t.Helper()
	got := evaluate[struct {
		Before, After json.RawMessage
		Page          map[string]string
	}](t, ctx, `(async () => {
		const status = async () => (await fetch("api/status")).json();
		const before = await status();
		await new Promise(done => {
			const look = () => { if (document.documentElement.dataset.time > before.time) done(); else setTimeout(look, 20); };
			look();
		});
		const text = id => document.getElementById(id).textContent, cell = (id, n) => document.getElementById(id).rows[0].cells[n].textContent;
		const page = {
			stage: text("stage"), run: text("run"), state: text("state-word"), rows: text("rows-done"), inFlight: text("in-flight"), rejected: text("failed-sub"),
			tokens: text("tokens"), latency: text("latency"), calls: cell("models", 1), model: cell("models", 0), role: cell("partitions", 1),
			head: cell("partitions", 2), emitted: cell("partitions", 6), owner: cell("partitions", 8), events: text("events"), title: document.title,
			believes: text("belief").startsWith("The throttle believes: ") ? "something" : text("belief"),
		};
		return { before, after: await status(), page };
	})()`)
	type status struct {
		Stage string `json:"stage"`
		RunID string `json:"run_id"`
		Rows  struct {
			Succeeded int64 `json:"succeeded"`
		} `json:"rows"`
		Pool struct {
			Size            int64 `json:"size"`
			CapacityRetries int64 `json:"capacity_retries"`
		} `json:"pool"`
		Latency struct {
			P50 float64 `json:"p50_ms"`
		} `json:"latency"`
		Usage struct {
			Calls  int64 `json:"calls"`
			Tokens int64 `json:"total_tokens"`
		} `json:"usage"`
		Partitions []struct {
			Owner   string `json:"owner"`
			Emitted int64  `json:"emitted"`
		} `json:"partitions"`
	}
	var before, after status
	if err := json.Unmarshal(got.Before, &before); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(got.After, &after); err != nil {
		t.Fatal(err)
	}
	page := got.Page
	for name, want := range map[string]string{
		"stage": before.Stage, "run": "run " + before.RunID, "state": "Working", "model": "mock", "role": "owner", "owner": before.Partitions[0].Owner, "title": "Working · " + before.Stage,
		"believes": "something",
	} {
		if page[name] != want {
			t.Errorf("%s: the page says %q, the status %q", name, page[name], want)
		}
	}
	for name, limits := range map[string][2]int64{
		"rows":     {before.Rows.Succeeded, after.Rows.Succeeded},
		"rejected": {before.Pool.CapacityRetries, after.Pool.CapacityRetries},
		"tokens":   {before.Usage.Tokens, after.Usage.Tokens},
		"calls":    {before.Usage.Calls, after.Usage.Calls},
		"emitted":  {before.Partitions[0].Emitted, after.Partitions[0].Emitted},
	} {
		if n := number(page[name]); n < limits[0] || n > limits[1] {
			t.Errorf("%s: the page says %q, the status %d before and %d after", name, page[name], limits[0], limits[1])
		}
	}
	if !strings.HasSuffix(page["inFlight"], fmt.Sprintf("of %d", before.Pool.Size)) || number(page["inFlight"]) > before.Pool.Size {
		t.Errorf("in flight: the page says %q, the pool has %d", page["inFlight"], before.Pool.Size)
	}
	if !strings.HasSuffix(page["latency"], " s") && !strings.HasSuffix(page["latency"], " ms") {
		t.Errorf("latency: the page says %q, the status %v ms", page["latency"], after.Latency.P50)
	}
	if !strings.HasPrefix(page["head"], "row ") && page["head"] != "none" {
		t.Errorf("head of line: the page says %q", page["head"])
	}
	if !strings.Contains(page["events"], "claim of partition 0") {
		t.Errorf("events: the page says %q", page["events"])
	}
}

// number reads the number that a text begins with; -1: none.
func number(text string) int64 {
	digits := regexp.MustCompile(`^[0-9,]+`).FindString(text)
	n, err := strconv.ParseInt(strings.ReplaceAll(digits, ",", ""), 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// checkOrder shows the page the status of stages in the other orders.
func checkOrder(t *testing.T, ctx context.Context) {
	t.Helper()
	got := evaluate[map[string][]string](t, ctx, `(async () => {
		const s = await (await fetch("api/status")).json();
		const look = change => {
			const shown = structuredClone(s);
			change(shown, shown.partitions[0]);
			show(shown);
			const visible = id => document.getElementById(id).checkVisibility();
			const cells = id => Array.from(document.getElementById(id).rows[0].cells, c => c.textContent + (c.classList.contains("warn") ? "!" : ""));
			return [visible("order") ? document.getElementById("order").textContent : "", ...(visible("order-card") ? cells("order-partitions") : []), cells("partitions")[2]];
		};
		const wait = { high_water_mark: 12345, ahead_rows: 60000, set_aside_rows: 1500, keys_waiting: 2, waited_for_sequence: 12346, key_wait_seconds: 3.2, head_sequence: 12346, head_of_line_seconds: 90 };
		const found = {
			stream: look((s, p) => Object.assign(p, { head_sequence: 7, head_of_line_seconds: 90 })),
			key: look((s, p) => { s.order = "key"; s.order_key = "subject.2"; Object.assign(p, wait, { waited_for_key: "<b>north" }); }),
			hidden: look((s, p) => { s.order = "key"; s.order_key = "field.customer"; Object.assign(p, wait, { waited_for_key: null, key_wait_seconds: 90 }); }),
			keyless: look((s, p) => { s.order = "key"; s.order_key = "subject.2"; Object.assign(p, wait, { waited_for_key: "" }); }),
			none: look((s, p) => { s.order = "none"; Object.assign(p, { high_water_mark: 5, ahead_rows: 3, head_sequence: 0 }); }),
			standby: look((s, p) => { s.order = "none"; Object.assign(p, { role: "standby", head_sequence: 0 }); }),
		};
		show(s);
		return found;
	})()`)
	for name, want := range map[string][]string{
		"stream":  {"", "row 7 for 90.0 s!"},
		"key":     {"order by key (subject.2)", "0", "12345", "60,000", "1,500", "2", "row 12346 for 3.20 s, key <b>north", "row 12346 for 90.0 s"},
		"hidden":  {"order by key (field.customer)", "0", "12345", "60,000", "1,500", "2", "row 12346 for 90.0 s!", "row 12346 for 90.0 s"},
		"keyless": {"order by key (subject.2)", "0", "12345", "60,000", "1,500", "2", "row 12346 for 3.20 s, no key", "row 12346 for 90.0 s"},
		"none":    {"no order", "0", "5", "3", "–", "–", "none", "none"},
		"standby": {"no order", "no partition is owned", "none"},
	} {
		if !slices.Equal(got[name], want) {
			t.Errorf("%s: the page shows %q, want %q", name, got[name], want)
		}
	}
}

// checkBudget shows the page the status of stages that share a budget.
func checkBudget(t *testing.T, ctx context.Context) {
	t.Helper()
	got := evaluate[map[string][]string](t, ctx, `(async () => {
		const s = await (await fetch("api/status")).json();
		const look = budget => {
			show({ ...s, budget });
			const head = document.getElementById("budget-head").checkVisibility() ? "head" : "no head";
			const cells = Array.from(document.getElementById("budget").rows, r => Array.from(r.cells, c => c.textContent + (c.className ? "|" + c.className : "")).join(", "));
			return [head, ...cells];
		};
		const one = { name: "team", provider: "openai", mode: "member", members: 64, share: .03125, rate_per_second: 19.96, leader: "<b>run7" };
		const found = {
			off: look(null),
			member: look([one]),
			several: look([{ ...one, mode: "leader", rate_per_second: 1234.5 }, { ...one, provider: "anthropic", mode: "alone", members: 1, share: 1, rate_per_second: null, leader: "" }]),
		};
		show(s);
		return found;
	})()`)
	for name, want := range map[string][]string{
		"off":    {"no head", "not shared: this process throttles by itself (STAGE_BUDGET)|none"},
		"member": {"head", "team, openai|wrap, member, 64|r, 3.1%|r, 20.0/s|r, <b>run7|dim"},
		"several": {
			"head", "team, openai|wrap, leader|good, 64|r, 3.1%|r, 1,235/s|r, <b>run7|dim", "team, anthropic|wrap, alone|warn, 1|r, 100.0%|r, –|r, –|dim",
		},
	} {
		if !slices.Equal(got[name], want) {
			t.Errorf("%s: the page shows %q, want %q", name, got[name], want)
		}
	}
}

func checkLayoutShift(t *testing.T, ctx context.Context) {
	t.Helper()
	shift := evaluate[float64](t, ctx, `new Promise(done => {
		let sum = 0;
		new PerformanceObserver(list => { for (const e of list.getEntries()) sum += e.value; }).observe({ type: "layout-shift", buffered: true });
		setTimeout(() => done(sum), 300);
	})`)
	if shift > 0.02 { // a good page has less than 0.1
		t.Errorf("the layout has shifted by %v since the page was opened", shift)
	}
}

// checkCharts counts pixels that are neither background nor grid: lines, and the fill below them.
func checkCharts(t *testing.T, ctx context.Context) {
	t.Helper()
	await(t, ctx, `samples.filter(s => s.p50_ms !== null).length >= 2`) // replies take a second
	for _, id := range []string{"rate", "flight", "latency", "reorder"} {
		drawn := evaluate[int](t, ctx, fmt.Sprintf(`(() => {
			const canvas = document.querySelector("#plot-%s canvas");
			const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
			let n = 0;
			for (let i = 0; i < data.length; i += 4) {
				const [r, g, b, a] = data.slice(i, i + 4);
				if (a > 20 && Math.max(r, g, b) - Math.min(r, g, b) > 60) n++;
			}
			return n;
		})()`, id))
		if drawn < 50 {
			t.Errorf("chart %s: %d coloured pixels", id, drawn)
		}
	}
}

func checkKeyboard(t *testing.T, ctx context.Context) {
	t.Helper()
	var seen []string
	for range 14 {
		if err := chromedp.Do(ctx, chromedp.KeyEvent(kb.Tab)); err != nil {
			t.Fatal(err)
		}
		at := evaluate[string](t, ctx, `(e => e.id || e.name || e.getAttribute("aria-labelledby") || e.getAttribute("href"))(document.activeElement)`)
		seen = append(seen, at)
		if at == "plot-rate" {
			break
		}
	}
	order := strings.Join(seen, " ")
	if want := "#main metrics api/status find-row find-show range plot-rate"; order != want {
		t.Fatalf("Tab goes to %s, want %s", order, want)
	}
	last := evaluate[string](t, ctx, `document.getElementById("legend-rate").textContent`)
	if err := chromedp.Do(ctx, chromedp.KeyEvent(kb.ArrowLeft), chromedp.KeyEvent(kb.ArrowLeft)); err != nil {
		t.Fatal(err)
	}
	if evaluate[bool](t, ctx, `cursorAt === null`) {
		t.Errorf("the arrow keys do not move the cursor; the legend says %s", last)
	}
	if err := chromedp.Do(ctx, chromedp.KeyEvent(kb.Escape)); err != nil {
		t.Fatal(err)
	}
	if !evaluate[bool](t, ctx, `cursorAt === null`) {
		t.Error("Escape leaves the cursor")
	}
}

func checkNames(t *testing.T, ctx context.Context) {
	t.Helper()
	nameless := evaluate[[]string](t, ctx, `Array.from(document.querySelectorAll("a, input, section, [role=region], [role=group], [role=progressbar], [tabindex='0']"))
		.filter(e => { const by = e.getAttribute("aria-labelledby"); return !(e.getAttribute("aria-label") || by && document.getElementById(by)?.textContent || e.closest("label")?.textContent || e.matches("a") && e.textContent); })
		.map(e => e.outerHTML.slice(0, 80))`)
	if len(nameless) > 0 {
		t.Errorf("without a name: %q", nameless)
	}
}

// checkLook holds that nothing sticks out to the right, and that all text has the contrast of WCAG AA, 4.5 to 1.
func checkLook(t *testing.T, ctx context.Context, scheme string, width int64) {
	t.Helper()
	media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}
	if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, media); err != nil {
		t.Fatal(err)
	}
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(width, 900)); err != nil {
		t.Fatal(err)
	}
	got := evaluate[struct {
		Wide int64
		Dark bool
		Weak []string
	}](t, ctx, `(() => {
		const rgb = text => text.match(/[\d.]+/g).map(Number);
		const light = ([r, g, b]) => { const f = v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }; return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
		const ground = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] === 1) return c; } return [255, 255, 255]; };
		const weak = [];
		for (const e of document.querySelectorAll("body *")) {
			if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) || !e.checkVisibility() || e.closest("noscript")) continue;
			const a = light(rgb(getComputedStyle(e).color)), b = light(ground(e));
			const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
			if (ratio < 4.5) weak.push(ratio.toFixed(1) + " " + e.outerHTML.slice(0, 80));
		}
		return { wide: document.documentElement.scrollWidth, dark: light(ground(document.body)) < 0.2, weak };
	})()`)
	if got.Wide > width {
		t.Errorf("the page is %d pixels wide", got.Wide)
	}
	if got.Dark != (scheme == "dark") {
		t.Errorf("dark is %v", got.Dark)
	}
	if len(got.Weak) > 0 {
		t.Errorf("too little contrast: %q", got.Weak)
	}
}
