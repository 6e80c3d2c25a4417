package dashboard

import (
	"bytes"
	"compress/gzip"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest"
)

func serveDashboard(t *testing.T, path string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	r.Host = "localhost"
	guarded(testHandlers(), onLoopback).ServeHTTP(w, r)
	return w
}

const runbook = "https://github.com/llm-stage/stage/blob/main/docs/operations.md"

// ownFiles are the files of the page that are not the chart library's, or the icon.
func ownFiles(t *testing.T) (names []string) {
	t.Helper()
	entries := stagetest.Value(fs.ReadDir(pageFiles, "page"))(t)
	for _, e := range entries {
		if name := e.Name(); !strings.HasPrefix(name, "uPlot") && !strings.HasSuffix(name, ".svg") && name != "index.html" {
			names = append(names, name)
		}
	}
	return names
}

// What a browser loads when it opens the page is small, library and all.
func TestPageIsSmall(t *testing.T) {
	const limit = 60_000
	sent := 0
	loaded := []string{"", "favicon.svg"}
	for _, name := range regexp.MustCompile(`(?:src|href)="([a-zA-Z.]+\.(?:js|css))"`).FindAllStringSubmatch(serveDashboard(t, "/").Body.String(), -1) {
		loaded = append(loaded, name[1])
	}
	for _, name := range loaded {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/"+name, nil)
		r.Host = "localhost"
		r.Header.Set("Accept-Encoding", "gzip, br")
		guarded(testHandlers(), onLoopback).ServeHTTP(w, r)
		sent += w.Body.Len()
		z, err := gzip.NewReader(w.Body)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		text, err := io.ReadAll(z)
		if err != nil || string(text) != serveDashboard(t, "/"+name).Body.String() {
			t.Errorf("%s is another one when it is compressed: %v", name, err)
		}
	}
	if len(loaded) < 6 || sent > limit {
		t.Errorf("%d files, %d bytes; want at most %d", len(loaded), sent, limit)
	}
	t.Logf("%d files, %d bytes", len(loaded), sent)
}

func TestPageIsSentOnce(t *testing.T) {
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/text.js", nil)
	r.Host = "localhost"
	r.Header.Set("If-None-Match", serveDashboard(t, "/text.js").Header().Get("ETag"))
	guarded(testHandlers(), onLoopback).ServeHTTP(w, r)
	if w.Code != http.StatusNotModified || w.Body.Len() != 0 {
		t.Errorf("status %d, %d bytes", w.Code, w.Body.Len())
	}
}

func TestDashboardPolicyAllowsItsOwnFilesOnly(t *testing.T) {
	policy := serveDashboard(t, "/").Header().Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "frame-ancestors 'none'", "form-action 'none'", "base-uri 'none'"} {
		if !strings.Contains(policy, want) {
			t.Errorf("policy %q: no %s", policy, want)
		}
	}
	if strings.Contains(policy, "unsafe") || strings.Contains(policy, "*") || strings.Contains(policy, "http") {
		t.Errorf("policy %q is not strict", policy)
	}
}

// What the policy would block, or what would leave the machine, must not be there in the
// first place.
func TestDashboardHasNothingInlineAndLoadsNothingFromElsewhere(t *testing.T) {
	page := serveDashboard(t, "/").Body.String()
	for _, bad := range []string{"http:", "https:", "//", "<style", " style=", " onclick", " onload", "javascript:", "@import"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page contains %q", bad)
		}
	}
	for _, script := range regexp.MustCompile(`<script[^>]*>[^<]*`).FindAllString(page, -1) {
		if !regexp.MustCompile(`^<script src="[a-zA-Z.]+" defer>$`).MatchString(script) {
			t.Errorf("not a file of ours: %s", script)
		}
	}
	for _, name := range regexp.MustCompile(`(?:src|href)="([a-zA-Z./]+)"`).FindAllStringSubmatch(page, -1) {
		if w := serveDashboard(t, "/"+name[1]); w.Code != http.StatusOK {
			t.Errorf("%s: got %d", name[1], w.Code)
		}
	}
	for _, name := range ownFiles(t) {
		text := stagetest.Value(fs.ReadFile(pageFiles, "page/"+name))(t)
		text = bytes.Replace(text, []byte(runbook), nil, 1) // a link is followed by people
		for _, bad := range []string{"innerHTML", "outerHTML", "insertAdjacent", "eval(", "document.write", "http:", "https:", "@import", "url("} {
			if strings.Contains(string(text), bad) {
				t.Errorf("%s contains %q", name, bad)
			}
		}
	}
}

func TestChartLibraryIsTheOneThatIsDocumented(t *testing.T) {
	library := stagetest.Value(fs.ReadFile(pageFiles, "page/uPlot.iife.min.js"))(t)
	if !strings.HasPrefix(string(library), "/*! https://github.com/leeoniya/uPlot (v1.6.32) */") {
		t.Errorf("it begins with %.80s", library)
	}
	if licence := serveDashboard(t, "/uPlot.LICENSE").Body.String(); !strings.HasPrefix(licence, "The MIT License (MIT)\n") {
		t.Errorf("the licence begins with %.80s", licence)
	}
}
