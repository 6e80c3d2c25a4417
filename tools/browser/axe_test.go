//go:build axe

package browser

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// axeVersion is the version of axe-core, an npm package, that looks for what people with a disability would stumble over.
const axeVersion = "4.14.1"

// axe returns the source of axe-core.
func axe(t *testing.T, ctx context.Context) string {
	t.Helper()
	npm, err := exec.LookPath("npm")
	if err != nil {
		t.Fatalf("%v: install Node.js with npm", err)
	}
	dir := t.TempDir()
	cmd := exec.CommandContext(ctx, npm, "install", "--prefix", dir, "--ignore-scripts", "--no-audit", "--no-fund", "--no-save", "axe-core@"+axeVersion)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("npm install: %v\n%s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(dir, "node_modules", "axe-core", "axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestPageIsAccessible has axe-core check the page by all its rules, best practices included.
func TestPageIsAccessible(t *testing.T) {
	t.Parallel()
	ctx := open(t)
	evaluate[bool](t, ctx, axe(t, ctx)+";true")
	evaluate[bool](t, ctx, `(() => { source.close(); ended = true; return true; })()`)
	for _, state := range []struct{ name, script string }{
		{"working", `true`},
		{"three replicas, paused", `(() => { wholeStage = ` + threeReplicas + `; showWhole(); showHead(); return true; })()`},
		{"the story of a row", shownWhen("#row=1", `document.querySelector("#story li.call")`)},
		{"rows that failed", shownWhen("#failures", `document.getElementById("story-note")?.textContent.includes("rows that failed")`)},
		{"no connection", `(() => { document.getElementById("story").close(); link("late", "no update"); return true; })()`},
	} {
		evaluate[bool](t, ctx, state.script)
		for _, scheme := range []string{"light", "dark"} {
			for _, width := range []int64{1400, 390} {
				t.Run(fmt.Sprintf("%s, %s, %d pixels", state.name, scheme, width), func(t *testing.T) {
					emulate(t, ctx, scheme, width)
					found := evaluate[[]string](t, ctx, `axe.run().then(r => r.violations.map(v => v.id + ": " + v.help + ": " + v.nodes.slice(0, 9).map(n => n.html.slice(0, 120)).join(" ")))`)
					for _, violation := range found {
						t.Error(violation)
					}
				})
			}
		}
	}
}

// shownWhen opens an address of the page, and waits for what it shows.
func shownWhen(hash, condition string) string {
	return `(async () => { location.hash = "` + hash + `"; while (!(` + condition + `)) await new Promise(done => setTimeout(done, 50)); return true; })()`
}

// emulate sets the colours and the width of the page.
func emulate(t *testing.T, ctx context.Context, scheme string, width int64) {
	t.Helper()
	media := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
	}}
	if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, media); err != nil {
		t.Fatal(err)
	}
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(width, 900)); err != nil {
		t.Fatal(err)
	}
	// The next frame is laid out again.
	evaluate[bool](t, ctx, `new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))`)
}
