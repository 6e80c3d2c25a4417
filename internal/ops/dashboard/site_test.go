package dashboard

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// testSite has one stage that is ready and one that is not.
func testSite() *Site {
	good, bad := testHandlers(), testHandlers()
	good.Ready = func() (bool, string) { return true, "" }
	return &Site{
		Metrics: http.NotFoundHandler(),
		Stages: []Entry{
			{Name: "good", State: func() (string, string) { return "idle", "" }, Handlers: good},
			{Name: "bad", State: func() (string, string) { return "paused", "<b>no credit</b>" }, Handlers: bad},
		},
	}
}

// askSite returns the answer to a request for a host.
func askSite(t *testing.T, check hostCheck, method, path, host string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, nil)
	r.Host = host
	w := httptest.NewRecorder()
	guarded(testSite(), check).ServeHTTP(w, r)
	return w
}

func TestSeveralStagesAreReadyIfEachIs(t *testing.T) {
	w := askSite(t, onLoopback, http.MethodGet, "/readyz", "localhost")
	if want := `{"ready":false,"stages":[{"stage":"good","ready":true},{"stage":"bad","ready":false,"reason":"paused: no credit"}]}` + "\n"; w.Code != http.StatusServiceUnavailable || w.Body.String() != want {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	w = askSite(t, hostCheck{}, http.MethodGet, "/readyz", "pod.example")
	if w.Code != http.StatusServiceUnavailable || strings.Contains(w.Body.String(), "credit") {
		t.Errorf("a host that is not known: got %d %s", w.Code, w.Body)
	}
}

// All stages are asked at the same time, so that the answer of many takes no longer than
// that of one.
func TestTheWholeOfSeveralStagesIsThatOfEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testSite()
		for i := range s.Stages {
			name := s.Stages[i].Name
			s.Stages[i].Whole = func(context.Context) any {
				time.Sleep(300 * time.Millisecond)
				return map[string]string{"stage": name}
			}
		}
		ask := func(path string) string {
			t.Helper()
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
			r.Host = "localhost"
			w := httptest.NewRecorder()
			guarded(s, onLoopback).ServeHTTP(w, r)
			return fmt.Sprint(w.Code, " ", w.Body)
		}
		began := time.Now()
		if got, want := ask("/api/stage"), `200 {"stages":[{"stage":"good"},{"stage":"bad"}]}`+"\n"; got != want {
			t.Errorf("got %s want %s", got, want)
		}
		if took := time.Since(began); took != 300*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		if got, want := ask("/stages/bad/api/stage"), `200 {"stage":"bad"}`+"\n"; got != want {
			t.Errorf("got %s want %s", got, want)
		}
	})
}

func TestTheListOfStagesRunsNoScript(t *testing.T) {
	w := askSite(t, onLoopback, http.MethodGet, "/", "localhost")
	body, policy := w.Body.String(), w.Header().Get("Content-Security-Policy")
	if strings.Contains(body, "<b>") || strings.Contains(body, "<script") || !strings.Contains(policy, "default-src 'none'") || strings.Contains(policy, "script-src") {
		t.Errorf("policy %s\n%s", policy, body)
	}
}

func TestPagesOfEachStageAreForKnownHosts(t *testing.T) {
	for _, path := range []string{"/", "/api/status", "/stages/good/", "/stages/good/readyz", "/stages/good/metrics", "/stages/bad/api/events"} {
		for _, check := range []hostCheck{onLoopback, {}} {
			if w := askSite(t, check, http.MethodGet, path, "evil.example"); w.Code != http.StatusMisdirectedRequest {
				t.Errorf("%s: got %d", path, w.Code)
			}
		}
		if w := askSite(t, onLoopback, http.MethodGet, path, "localhost"); w.Code != http.StatusOK && w.Code != http.StatusServiceUnavailable {
			t.Errorf("%s: got %d", path, w.Code)
		}
	}
	if w := askSite(t, onLoopback, http.MethodPost, "/stages/good/", "localhost"); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST: got %d", w.Code)
	}
}
