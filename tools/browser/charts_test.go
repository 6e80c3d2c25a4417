package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

const (
	hours     = 30
	endedAt   = 1_800_000_123 // of the history that the page receives, in Unix seconds
	gapBefore = 7200          // seconds before the end: for half an hour before that the process was suspended
	gapLength = 1800
)

// history is the history of a run of hours as the stage sends it: calls go up and down in the course of an hour.
func history() map[string][]any {
	columns := make(map[string][]any)
	const began = endedAt - hours*3600
	for end := int64(began); end < endedAt; {
		step := int64(1)
		switch age := endedAt - end; {
		case age > 36_000:
			step = 120
		case age > 6_000:
			step = 60
		case age > 640:
			step = 10
		}
		step -= end % step
		end += step
		if end > endedAt-gapBefore-gapLength && end-step < endedAt-gapBefore {
			continue
		}
		calls := 40.
		if end%3600 > 1800 {
			calls = 20
		}
		for name, value := range map[string]any{
			"time": end, "seconds": step, "calls": calls, "rejected": calls / 8, "rows": calls, "allowed": 1.2 * calls, "in_flight": calls / 2, "window": 900 + end%100,
			"reorder": end % 300, "p50_ms": 500 + 10*calls, "p90_ms": 1000 + 20*calls, "held": end%20_000 < 600,
		} {
			columns[name] = append(columns[name], value)
		}
	}
	return columns
}

// servePage serves the page to a browser, with a history and without any status.
func servePage(t *testing.T) (address string) {
	t.Helper()
	text, err := json.Marshal(history())
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/", http.FileServer(http.Dir(filepath.Join("..", "..", "internal", "ops", "dashboard", "page"))))
	mux.HandleFunc("/api/events", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "event: history\ndata: %s\n\n", text)
		_ = http.NewResponseController(w).Flush() // the page waits for it
		<-r.Context().Done()
	})
	server := httptest.NewServer(mux)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.URL
}

func TestChartsShowARunOfHours(t *testing.T) {
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
	if err := chromedp.Do(browser, chromedp.EmulateViewport(1280, 900), chromedp.Navigate(servePage(t))); err != nil {
		t.Fatal(err)
	}
	await(t, browser, fmt.Sprintf(`samples.length > 0 && charts[0].u.scales.x.max === %d`, endedAt))

	t.Run("what is drawn is what was chosen", func(t *testing.T) { checkRanges(t, browser) })
	t.Run("the time under the pointer is shown", func(t *testing.T) { checkPointer(t, browser) })
	t.Run("the arrow keys go from step to step", func(t *testing.T) { checkSteps(t, browser) })
	t.Run("every number has its unit", func(t *testing.T) { checkUnits(t, browser) })
	t.Run("a gap is no line", func(t *testing.T) { checkGap(t, browser) })
	t.Run("old samples are thinned as by the stage", func(t *testing.T) { checkThinning(t, browser) })
	said.mu.Lock()
	defer said.mu.Unlock()
	for _, complaint := range said.list {
		if !strings.Contains(complaint, "willReadFrequently") { // pixels are read by the test alone
			t.Errorf("the browser complains: %s", complaint)
		}
	}
}

// choose chooses a range as a user does.
func choose(t *testing.T, ctx context.Context, seconds int) {
	t.Helper()
	if err := chromedp.Do(ctx, chromedp.Click(fmt.Sprintf(`label:has(input[name=range][value="%d"])`, seconds))); err != nil {
		t.Fatal(err)
	}
}

// drawn is the axis of a chart, and the steps that it has values of.
type drawn struct{ From, To, Step, Steps int64 }

func whatIsDrawn(t *testing.T, ctx context.Context) []drawn {
	t.Helper()
	return evaluate[[]drawn](t, ctx, `charts.map(({ u: { scales: { x }, data } }) => ({ from: x.min, to: x.max, step: view.step, steps: data[1].filter(v => v !== null).length }))`)
}

func checkRanges(t *testing.T, ctx context.Context) {
	t.Helper()
	if got := evaluate[string](t, ctx, `document.querySelector("input[name=range]:checked").parentNode.textContent`); got != "whole run" {
		t.Errorf("at first it shows %q", got)
	}
	for _, c := range []struct {
		chosen int
		want   drawn
	}{
		{60, drawn{From: 60, Step: 1, Steps: 60}},
		{600, drawn{From: 600, Step: 1, Steps: 600}},
		{3600, drawn{From: 3600, Step: 10, Steps: 361}}, // both ends are within a step
		{21600, drawn{From: 21600, Step: 60, Steps: 361 - 31}},
		{0, drawn{From: hours * 3600, Step: 240, Steps: 451 - 7}},
	} {
		choose(t, ctx, c.chosen)
		c.want.From, c.want.To = endedAt-c.want.From, endedAt
		for i, got := range whatIsDrawn(t, ctx) {
			if got != c.want {
				t.Errorf("chosen %d s: chart %d shows %+v, want %+v", c.chosen, i, got, c.want)
			}
		}
	}
	// A run that has just begun: what was chosen is shown all the same.
	got := evaluate[[]drawn](t, ctx, `(async () => {
		const all = samples, look = async seconds => {
			shownSeconds = seconds;
			drawCharts();
			await new Promise(done => setTimeout(done));
			const { scales: { x }, data } = charts[0].u;
			return { from: x.min, to: x.max, step: view.step, steps: data[1].filter(v => v !== null).length };
		};
		samples = all.slice(-5);
		const found = [await look(3600), await look(0)];
		samples = all;
		drawCharts();
		return found;
	})()`)
	if want := (drawn{endedAt - 3600, endedAt, 10, 2}); got[0] != want {
		t.Errorf("an hour of a young run: got %+v, want %+v", got[0], want)
	}
	if want := (drawn{endedAt - 60, endedAt, 1, 5}); got[1] != want {
		t.Errorf("all of a young run: got %+v, want %+v", got[1], want)
	}
}

// point moves the mouse to a time on the first chart, and returns what the legends say of it and what the chart has there.
func point(t *testing.T, ctx context.Context, at int64) (legends []string, steps float64) {
	t.Helper()
	place := evaluate[struct{ X, Y float64 }](t, ctx, fmt.Sprintf(`(() => {
		const box = document.querySelector("#plot-rate .u-over").getBoundingClientRect();
		return { x: box.left + box.width * (%d - view.from) / (view.to - view.from), y: box.top + 20 };
	})()`, at))
	move := input.DispatchMouseEventParams{Type: input.DispatchMouseEventTypeMouseMoved, X: place.X, Y: place.Y}
	for range 2 { // uPlot ignores the first move over a chart
		if _, err := chromedp.Call(ctx, input.DispatchMouseEvent, move); err != nil {
			t.Fatal(err)
		}
		move.Y++
	}
	await(t, ctx, fmt.Sprintf(`Math.abs(cursorAt - %d) <= 2 * view.step`, at))
	return evaluate[[]string](t, ctx, `Array.from(document.querySelectorAll(".legend .at dd"), e => e.textContent)`), evaluate[float64](t, ctx, `pointAt(cursorAt)?.s?.calls ?? -1`)
}

func checkPointer(t *testing.T, ctx context.Context) {
	t.Helper()
	for _, c := range []struct {
		name   string
		chosen int
		ago    int64
		want   string
	}{
		{"a second", 60, 20, `^\d\d:\d\d:\d\d$`},
		{"ten seconds", 3600, 2000, `^\d\d:\d\d:\d0–\d\d:\d\d:\d0$`},
		{"a minute", 21600, 9900, `^\d\d:\d\d–\d\d:\d\d$`},
		{"more than a day", 0, 80_000, `^\d\d? \w+ \d\d:\d\d–\d\d:\d\d$`},
		{"a gap", 21600, gapBefore + gapLength/2, `^\d\d:\d\d, no data$`},
	} {
		choose(t, ctx, c.chosen)
		legends, calls := point(t, ctx, endedAt-c.ago)
		for i, got := range legends {
			if !regexp.MustCompile(c.want).MatchString(got) {
				t.Errorf("%s: chart %d says %q, want %s", c.name, i, got, c.want)
			}
		}
		shown := evaluate[string](t, ctx, `document.querySelector("#legend-rate div:nth-child(3) dd").textContent`)
		if want := strings.TrimPrefix(fmt.Sprintf("%.1f calls/s", calls), "-1.0 calls/s"); shown != want && (want != "" || shown != "–") {
			t.Errorf("%s: sent %q, want %q", c.name, shown, want)
		}
	}
	// The time that is named is that under the pointer.
	choose(t, ctx, 3600)
	legends, _ := point(t, ctx, endedAt-2000)
	inside := evaluate[bool](t, ctx, fmt.Sprintf(`(() => {
		const { s } = pointAt(cursorAt), text = t => new Date(t * 1000).toLocaleTimeString("en-GB");
		return s.time - s.seconds < cursorAt && cursorAt <= s.time && %q === text(s.time - s.seconds) + "–" + text(s.time);
	})()`, legends[0]))
	if !inside {
		t.Errorf("the legend says %q", legends[0])
	}
}

func checkSteps(t *testing.T, ctx context.Context) {
	t.Helper()
	choose(t, ctx, 21600)
	if err := chromedp.Do(ctx, chromedp.Focus("#plot-latency"), chromedp.KeyEvent(kb.ArrowLeft), chromedp.KeyEvent(kb.ArrowLeft), chromedp.KeyEvent(kb.ArrowLeft)); err != nil {
		t.Fatal(err)
	}
	at := func() int64 { return evaluate[int64](t, ctx, `pointAt(cursorAt).s.time`) }
	const third = endedAt/60*60 - 2*60 // the last step has only begun
	if got := at(); got != third {
		t.Errorf("three steps to the left: at %d, want %d", got, third)
	}
	time := evaluate[[]string](t, ctx, `(async () => {
		const text = () => document.querySelector("#legend-rate .at dd").textContent, before = text();
		for (let i = 1; i <= 300; i++) takeSample({ ...samples[samples.length - 1], time: samples[samples.length - 1].time + 1 });
		drawCharts();
		await new Promise(done => setTimeout(done));
		return [before, text()];
	})()`)
	if got := at(); got != third || time[0] != time[1] {
		t.Errorf("five minutes later: at %d, and shown is %s; want %d and %s as before", got, time[1], third, time[0])
	}
	if err := chromedp.Do(ctx, chromedp.KeyEvent(kb.Home)); err != nil {
		t.Fatal(err)
	}
	if got := at(); got != (endedAt+300-21600)/60*60+60 {
		t.Errorf("Home: at %d", got)
	}
	if err := chromedp.Do(ctx, chromedp.KeyEvent(kb.Escape)); err != nil {
		t.Fatal(err)
	}
	if !evaluate[bool](t, ctx, `cursorAt === null`) {
		t.Error("Escape leaves the cursor")
	}
	if err := chromedp.Do(ctx, chromedp.Navigate(evaluate[string](t, ctx, "location.href"))); err != nil {
		t.Fatal(err)
	}
	await(t, ctx, fmt.Sprintf(`samples.length > 0 && samples[samples.length - 1].time === %d`, endedAt))
}

// checkUnits looks at the texts that are drawn at the axes, and at the legends.
func checkUnits(t *testing.T, ctx context.Context) {
	t.Helper()
	choose(t, ctx, 600)
	texts := evaluate[map[string][]string](t, ctx, `(async () => {
		const found = {}, draw = CanvasRenderingContext2D.prototype.fillText;
		CanvasRenderingContext2D.prototype.fillText = function (text, ...at) { (found[this.canvas.closest(".plot").id] ??= []).push(text); draw.call(this, text, ...at); };
		charts.forEach(c => c.u.redraw(false));
		await new Promise(done => setTimeout(done, 50));
		CanvasRenderingContext2D.prototype.fillText = draw;
		for (const [id, list] of Object.entries(found)) list.push(...Array.from(document.querySelectorAll("#" + id.replace("plot", "legend") + " div:not(.at) dd"), e => e.textContent));
		return found;
	})()`)
	for id, unit := range map[string]string{"plot-rate": "calls/s", "plot-flight": "calls?", "plot-latency": "s|ms", "plot-reorder": "rows?", "plot-window": "rows?"} {
		number := regexp.MustCompile(`^[\d,.]+ (` + unit + `)$`)
		numbers := 0
		for _, text := range texts[id] {
			if number.MatchString(text) {
				numbers++
			} else if !regexp.MustCompile(`^\d\d:\d\d(:\d\d)?$`).MatchString(text) && text != "" {
				t.Errorf("%s: %q is no time and has another unit than %s", id, text, unit)
			}
		}
		if numbers < 4 {
			t.Errorf("%s: %d numbers with unit in %q", id, numbers, texts[id])
		}
	}
}

// checkGap counts the coloured pixels in columns of the first chart.
func checkGap(t *testing.T, ctx context.Context) {
	t.Helper()
	choose(t, ctx, 21600)
	coloured := func(at int64) int {
		return evaluate[int](t, ctx, fmt.Sprintf(`(async () => {
			await new Promise(done => setTimeout(done, 50));
			const box = document.querySelector("#plot-rate"), over = box.querySelector(".u-over"), canvas = box.querySelector("canvas"), ratio = canvas.width / canvas.clientWidth;
			const x = Math.round(ratio * (over.offsetLeft + over.offsetWidth * (%d - view.from) / (view.to - view.from)));
			const data = canvas.getContext("2d").getImageData(x, ratio * over.offsetTop, 1, ratio * over.offsetHeight - 2).data;
			let n = 0;
			for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 20 && Math.max(data[i], data[i + 1], data[i + 2]) - Math.min(data[i], data[i + 1], data[i + 2]) > 20) n++;
			return n;
		})()`, at))
	}
	for _, c := range []struct {
		at  int64
		gap bool
	}{
		{endedAt - gapBefore - gapLength - 300, false},
		{endedAt - gapBefore - gapLength + 180, true},
		{endedAt - gapBefore - gapLength/2, true},
		{endedAt - gapBefore - 180, true},
		{endedAt - gapBefore + 300, false},
	} {
		if n := coloured(c.at); n == 0 != c.gap {
			t.Errorf("%d s before the end: %d coloured pixels", endedAt-c.at, n)
		}
	}
}

// checkThinning compares what the page makes of samples with what the stage does, and feeds it two days.
func checkThinning(t *testing.T, ctx context.Context) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "internal", "ops", "status", "testdata", "thinned.json"))
	if err != nil {
		t.Fatal(err)
	}
	different := evaluate[[]string](t, ctx, fmt.Sprintf(`(() => {
		const { now, given, want } = %s;
		takeHistory(given);
		const got = thin(samples, s => secondsAt(now - s.time));
		takeHistory(want);
		const same = (a, b) => a === b || typeof a === "number" && Math.abs(a - b) < 1e-9;
		const list = got.length === samples.length ? [] : [got.length + " samples, not " + samples.length];
		got.forEach((s, i) => { for (const name of Object.keys(want)) if (!same(s[name], samples[i]?.[name])) list.push([i, name, s[name], samples[i]?.[name]].join(" ")); });
		return list;
	})()`, text))
	if len(different) > 0 {
		t.Errorf("%d values are not those of the stage, at first %s", len(different), different[0])
	}
	days := evaluate[struct {
		Most  int
		Calls float64
		Step  int
		Drawn int
	}](t, ctx, `(() => {
		takeHistory({ time: [] });
		let most = 0;
		for (let i = 1; i <= 2 * 86400; i++) {
			takeSample({ time: 1.8e9 + i, seconds: 1, allowed: null, calls: i % 2, rejected: 0, rows: 0, in_flight: 0, window: 0, reorder: 0, p50_ms: null, p90_ms: null, held: false });
			most = Math.max(most, samples.length);
		}
		document.querySelector("input[name=range][value='0']").click();
		return { most, calls: samples.reduce((sum, s) => sum + s.calls * s.seconds, 0), step: view.step, drawn: view.steps.length };
	})()`)
	if days.Most > 2260 || days.Calls < 2*43200-.01 || days.Calls > 2*43200+.01 || days.Step != 480 || days.Drawn > 361 {
		t.Errorf("after two days: got %+v, want at most 2260 samples, and all %d calls", days, 2*43200)
	}
}
