package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/internal/ops/tail"
	"github.com/llm-stage/stage/internal/stagetest"
)

// echoRows answers with what was asked. There is no row 404.
func echoRows(t *testing.T) Rows {
	t.Helper()
	b := stagetest.NewBench(t, nil)
	return Rows{
		Story: func(ctx context.Context, o tail.StoryOptions) (any, error) {
			if o.Row == 404 {
				return tail.Tell(ctx, b.JS, b.Cfg, o)
			}
			text := fmt.Sprint(o.Row)
			if o.Item != nil {
				text += fmt.Sprint("#", *o.Item)
			}
			if o.Partition != nil {
				text += fmt.Sprint(" of ", *o.Partition)
			}
			return text, nil
		},
		Failures: func(_ context.Context, o tail.FailuresOptions) (any, error) {
			if o.Reason == "down" {
				return nil, errors.New("not connected to NATS: connection refused")
			}
			return fmt.Sprintf("%s before %d, %d", o.Reason, o.Before, o.Limit), nil
		},
	}
}

// askRows answers a request by a stage with these rows.
func askRows(t *testing.T, rows Rows, method, address string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	handlers := testHandlers()
	handlers.Rows = rows
	r := httptest.NewRequestWithContext(t.Context(), method, address, nil)
	r.Host = "localhost"
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	guarded(handlers, onLoopback).ServeHTTP(w, r)
	return w
}

func TestQuestionsAboutRows(t *testing.T) {
	rows := echoRows(t)
	for _, tt := range []struct {
		address string
		status  int
		body    string // part of it
	}{
		{"/api/row?sequence=4711", 200, `"4711"`},
		{"/api/row?sequence=4711%233", 200, `"4711#3"`},
		{"/api/row?sequence=+4711+&partition=7", 200, `"4711 of 7"`},
		{"/api/row", 400, `sequence="": give the sequence of a row`},
		{"/api/row?sequence=0", 400, "sequences begin with 1"},
		{"/api/row?sequence=-1", 400, "give the sequence of a row"},
		{"/api/row?sequence=4711%23x", 400, "index of an element"},
		{"/api/row?sequence=1&partition=1024", 400, `partition="1024": give a number from 0 to 1023`},
		{"/api/row?sequence=1&partition=x", 400, `partition="x"`},
		{"/api/row?row=1", 400, `"row": there are sequence, partition`},
		{"/api/row?sequence=%zz", 400, "invalid URL escape"},
		{"/api/row?sequence=404", 404, "row 404 has no event of stage stage in stream AUDIT"},
		{"/api/failures", 200, `" before 0, 50"`},
		{"/api/failures?reason=api_call_failed&before=12&limit=200", 200, `"api_call_failed before 12, 200"`},
		{"/api/failures?before=0", 400, `before="0": give a number from 1`},
		{"/api/failures?limit=201", 400, `limit="201": give a number from 1 to 200`},
		{"/api/failures?limit=ten", 400, `limit="ten"`},
		{"/api/failures?reason=down", 503, "not connected to NATS: connection refused"},
	} {
		w := askRows(t, rows, http.MethodGet, tt.address)
		if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.body) {
			t.Errorf("%s: got %d %s, want %d with %s", tt.address, w.Code, w.Body, tt.status, tt.body)
		}
		if (w.Code == http.StatusServiceUnavailable) != (w.Header().Get("Retry-After") != "") {
			t.Errorf("%s: got %d and Retry-After %q", tt.address, w.Code, w.Header().Get("Retry-After"))
		}
	}
	for _, path := range []string{"/api/row?sequence=1", "/api/failures"} {
		if w := askRows(t, rows, http.MethodPost, path); w.Code != http.StatusNotFound {
			t.Errorf("POST %s: got %d", path, w.Code)
		}
		if w := askSite(t, onLoopback, http.MethodGet, "/stages/good"+path, "evil.example"); w.Code != http.StatusMisdirectedRequest {
			t.Errorf("%s of another host: got %d", path, w.Code)
		}
	}
}

// A page of another site may make a browser ask.
func TestQuestionsAboutRowsOfOtherSitesAreRefused(t *testing.T) {
	rows := echoRows(t)
	for from, want := range map[string]int{"": 200, "same-origin": 200, "none": 200, "same-site": 403, "cross-site": 403} {
		if w := askRows(t, rows, http.MethodGet, "/api/row?sequence=1", "Sec-Fetch-Site", from); w.Code != want {
			t.Errorf("from %q: got %d, want %d", from, w.Code, want)
		}
	}
}

// Two questions that get no answer take all turns: a third one is refused in time, and
// each ends. Another stage of the process has turns of its own.
func TestQuestionsAboutRowsAreFewAndEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := Rows{
			Story: func(ctx context.Context, _ tail.StoryOptions) (any, error) {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			},
			Failures: func(context.Context, tail.FailuresOptions) (any, error) { return "none", nil },
		}
		began := time.Now()
		server := newRowsServer(stuck)
		type answer struct {
			code int
			body string
			took time.Duration
		}
		answers := make(chan answer, rowsAtOnce+1)
		ask := func(serve http.HandlerFunc, address string) {
			w := httptest.NewRecorder()
			serve(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, address, nil))
			answers <- answer{w.Code, w.Body.String(), time.Since(began)}
		}
		for range rowsAtOnce {
			go ask(server.serveRow, "/?sequence=1")
		}
		synctest.Wait()
		go ask(server.serveFailures, "/")
		if a := <-answers; a.code != http.StatusServiceUnavailable || !strings.Contains(a.body, "2 questions about rows are being answered") || a.took != rowsTurn {
			t.Errorf("a third question: got %+v", a)
		}
		for range rowsAtOnce {
			if a := <-answers; a.code != http.StatusServiceUnavailable || !strings.Contains(a.body, "no answer within 10s") || a.took != rowsPatience {
				t.Errorf("a question without an answer: got %+v", a)
			}
		}
		ask(server.serveFailures, "/")
		if a := <-answers; a.code != http.StatusOK {
			t.Errorf("then: got %+v", a)
		}
	})
}
