package browser

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// rowCount is how many rows a stage answers that loses some of them.
const rowCount = 60

// startProgram starts the program and returns what a pattern finds in its output, after which nothing reads that.
func startProgram(t *testing.T, ctx context.Context, dir string, environ []string, pattern string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), environ...)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = write, write
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = read.Close()
		_ = write.Close()
	})
	for out := bufio.NewScanner(read); out.Scan(); {
		if found := regexp.MustCompile(pattern).FindStringSubmatch(out.Text()); found != nil {
			go func() {
				for out.Scan() { // so that the program never waits for a reader
				}
			}()
			return found[1]
		}
	}
	t.Fatalf("stage %s: nothing like %s in its output", strings.Join(args, " "), pattern)
	return ""
}

// startLossy starts a stage whose LLM fails one call in five for good and refuses as many, and returns its dashboard.
func startLossy(t *testing.T, ctx context.Context) string {
	t.Helper()
	dir := t.TempDir()
	var rows strings.Builder
	for i := range rowCount {
		_, _ = fmt.Fprintf(&rows, "{\"text\":\"<b>kettle</b> %d\"}\n", i+1)
	}
	if err := os.WriteFile(filepath.Join(dir, "rows.jsonl"), []byte(rows.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	llm := startProgram(t, ctx, dir, nil, `(http://\S+)`, "mockllm", "--addr", "127.0.0.1:0", "--errors", "400=.2,429=.2", "--latency", "20ms")
	page := startProgram(t, ctx, dir, []string{
		"STAGE_LLM_PROVIDER=openai", "STAGE_LLM_BASE_URL=" + llm, "STAGE_LLM_MODEL=mock", "STAGE_LLM_API_KEY=key", "STAGE_TEMPLATE=Review of {{ row.text }}",
		"STAGE_HTTP_ADDR=127.0.0.1:0", "STAGE_DATA_DIR=data", "STAGE_DASHBOARD_PAYLOADS=true",
	}, `"dashboard":"([^"]+)"`, "run")
	load := exec.CommandContext(ctx, program, "load", "rows.jsonl", "--data-dir", "data")
	load.Dir = dir
	if out, err := load.CombinedOutput(); err != nil {
		t.Fatalf("load: %v\n%s", err, out)
	}
	return page
}

// From the reason that rows failed for to one of them, to its attempts.
func TestFromAReasonToTheAttemptsOfARow(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	page := startLossy(t, ctx)
	browser, end := chromedp.NewExecAllocator(ctx, chromedp.Headless, chromedp.DisableGPU)
	defer end()
	browser, end = chromedp.NewContext(browser)
	defer end()
	var said complaints
	if err := chromedp.Listen(browser, said.note); err != nil {
		t.Fatalf("start Chromium (apt-get install chromium): %v", err)
	}
	if err := chromedp.Do(browser, chromedp.EmulateViewport(1280, 900), chromedp.Navigate(page)); err != nil {
		t.Fatal(err)
	}
	await(t, browser, fmt.Sprintf(`document.getElementById("rows-done").textContent === "%d" && document.querySelector("#errors [data-reason]") !== null && document.querySelector("#payload-list pre") !== null`, rowCount))
	failed := evaluate[int](t, browser, `latest.rows.failed`)
	if failed < 3 {
		t.Fatalf("%d rows failed: too few to look at", failed)
	}

	t.Run("a reason lists its rows", func(t *testing.T) {
		click(t, browser, `#errors [data-reason=api_call_failed]`)
		await(t, browser, fmt.Sprintf(`document.getElementById("story")?.open && document.querySelectorAll("#failures [data-row]").length === %d`, failed))
		if got := evaluate[string](t, browser, `location.hash + " " + document.getElementById("story-title").textContent`); got != "#failures=api_call_failed Failed rows: api_call_failed" {
			t.Errorf("got %s", got)
		}
		if !evaluate[bool](t, browser, `document.getElementById("failures-older").hidden && [...document.querySelectorAll("#failures [data-row]")].map(b => Number(b.dataset.row)).every((row, i, all) => i === 0 || row !== all[i - 1])`) {
			t.Error("there is an older page, or a row is there twice")
		}
	})
	t.Run("a row has its attempts", func(t *testing.T) {
		row := evaluate[string](t, browser, `document.querySelector("#failures [data-row]").dataset.row`)
		click(t, browser, `#failures [data-row]`)
		await(t, browser, `document.querySelector("#story li.finished") !== null`)
		got := evaluate[struct{ Hash, Title, Note, Text, Calls string }](t, browser, `({
			hash: location.hash, title: document.getElementById("story-title").textContent, note: document.getElementById("story-note").textContent,
			text: document.getElementById("story-body").textContent, calls: Array.from(document.querySelectorAll("#story li.call strong"), e => e.textContent).join("; ")})`)
		if got.Hash != "#row="+row || got.Title != "Row "+row || !strings.HasPrefix(got.Note, "Failed: api_call_failed. Partition 0 of stream ROWS, 20") || !strings.HasSuffix(got.Calls, "failed 400, permanent") {
			t.Errorf("got %+v", got)
		}
		for _, want := range []string{"Review of <b>kettle</b> " + row, "injected failure", "openai mock · ", `"text": "<b>kettle</b> ` + row, "emitted: result"} {
			if !strings.Contains(got.Text, want) {
				t.Errorf("the story lacks %q: %s", want, got.Text)
			}
		}
		click(t, browser, `#story-back`)
		await(t, browser, `location.hash === "#failures=api_call_failed" && document.querySelector("#failures [data-row]") !== null`)
	})
	t.Run("Escape closes it, and the focus returns", func(t *testing.T) {
		if err := chromedp.Do(browser, chromedp.KeyEvent(kb.Escape)); err != nil {
			t.Fatal(err)
		}
		await(t, browser, `!document.getElementById("story")?.open && location.hash === "" && document.activeElement.dataset.reason === "api_call_failed"`)
	})
	t.Run("a row is searched for", func(t *testing.T) {
		look := func(row, note string) {
			t.Helper()
			evaluate[bool](t, browser, `(document.getElementById("find-row").value = "`+row+`", document.getElementById("find-row").focus(), true)`)
			if err := chromedp.Do(browser, chromedp.KeyEvent(kb.Enter)); err != nil {
				t.Fatal(err)
			}
			await(t, browser, `document.getElementById("story")?.open && document.getElementById("story-note").textContent.includes("`+note+`")`)
			click(t, browser, "#story-close")
			await(t, browser, `!document.getElementById("story").open`)
		}
		look(" 1 ", "of stream ROWS")
		look("4711", "row 4711 has no event")
		look("1#3", "element 3 of row 1 has no call")
		look("one", "give the sequence of a row")
		evaluate[bool](t, browser, `(document.getElementById("find-row").value = "", true)`)
	})
	t.Run("the address of a row can be opened", func(t *testing.T) {
		if err := chromedp.Do(browser, chromedp.Navigate("about:blank"), chromedp.Navigate(page+"#row=2")); err != nil {
			t.Fatal(err)
		}
		await(t, browser, `document.getElementById("story")?.open && document.querySelector("#story li.emitted") !== null`)
	})
	t.Run("all has a name", func(t *testing.T) { checkNames(t, browser) })
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{1280, 390} {
			t.Run(fmt.Sprintf("a story can be read, %s, %d pixels", scheme, width), func(t *testing.T) {
				evaluate[bool](t, browser, `(location.hash = "#row=2", true)`)
				checkLook(t, browser, scheme, width)
				checkDialog(t, browser, width)
				evaluate[bool](t, browser, `(location.hash = "#failures", true)`)
				await(t, browser, `document.querySelector("#failures [data-row]") !== null`)
				checkLook(t, browser, scheme, width)
				checkDialog(t, browser, width)
			})
		}
	}
	said.mu.Lock()
	defer said.mu.Unlock()
	for _, complaint := range said.list {
		if !strings.Contains(complaint, "status of 40") { // the rows that were searched for in vain
			t.Errorf("the browser complains: %s", complaint)
		}
	}
}

// click clicks on the first element of a selector.
func click(t *testing.T, ctx context.Context, selector string) {
	t.Helper()
	if !evaluate[bool](t, ctx, fmt.Sprintf(`(e => { if (!e) return false; e.focus(); e.click(); return true; })(document.querySelector(%q))`, selector)) {
		t.Fatalf("there is no %s", selector)
	}
}

// checkDialog holds that the dialog is on the screen, and nothing in it is cut at the right.
func checkDialog(t *testing.T, ctx context.Context, width int64) {
	t.Helper()
	got := evaluate[struct{ Left, Right, Inner, Outer float64 }](t, ctx, `(d => { const r = d.getBoundingClientRect();
		return { left: r.left, right: r.right, inner: d.scrollWidth, outer: d.clientWidth }; })(document.getElementById("story"))`)
	if got.Left < 0 || got.Right > float64(width) || got.Inner > got.Outer {
		t.Errorf("the dialog is %+v on a screen of %d pixels", got, width)
	}
}
