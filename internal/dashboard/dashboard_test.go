package dashboard

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

func serveDashboard(t *testing.T, path string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	r.Host = "localhost"
	guarded(testHandlers(), onLoopback).ServeHTTP(w, r)
	return w
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

// What the policy would block, or what would leave the machine, must not be there in the first place.
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
	for _, name := range []string{"dashboard.js", "charts.js", "dashboard.css"} {
		text, err := fs.ReadFile(pageFiles, "page/"+name)
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{"innerHTML", "outerHTML", "insertAdjacent", "eval(", "document.write", "http:", "https:", "@import", "url("} {
			if strings.Contains(string(text), bad) {
				t.Errorf("%s contains %q", name, bad)
			}
		}
	}
}

func TestChartLibraryIsTheOneThatIsDocumented(t *testing.T) {
	library, err := fs.ReadFile(pageFiles, "page/uPlot.iife.min.js")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(string(library), "/*! https://github.com/leeoniya/uPlot (v1.6.32) */") {
		t.Errorf("it begins with %.80s", library)
	}
	if licence := serveDashboard(t, "/uPlot.LICENSE").Body.String(); !strings.HasPrefix(licence, "The MIT License (MIT)\n") {
		t.Errorf("the licence begins with %.80s", licence)
	}
}
