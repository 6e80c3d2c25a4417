package operator_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/ops/control"
	"github.com/llm-stage/stage/internal/ops/operator"
	"github.com/llm-stage/stage/internal/stagetest"
)

func TestThePageAsks(t *testing.T) {
	t.Parallel()
	all := func(context.Context, operator.Wish) ([]operator.Outcome, error) {
		return []operator.Outcome{{Replica: "A", Outcome: "done"}, {Replica: "B", Outcome: "nothing"}}, nil
	}
	for _, c := range []struct {
		name, body string
		header     map[string]string
		steer      func(context.Context, operator.Wish) ([]operator.Outcome, error)
		status     int
		says       string
	}{
		{"done", `{"verb":"pause"}`, nil, all, http.StatusOK, `"outcome":"nothing"`},
		{"from the page itself", `{"verb":"pause"}`, map[string]string{"Sec-Fetch-Site": "same-origin"}, all, http.StatusOK, `"outcome":"done"`},
		{"another site", `{"verb":"pause"}`, map[string]string{"Sec-Fetch-Site": "cross-site"}, nil, http.StatusForbidden, "cross-origin"},
		{"another site, old browser", `{"verb":"pause"}`, map[string]string{"Origin": "http://elsewhere.example"}, nil, http.StatusForbidden, "cross-origin"},
		{"a form", `{"verb":"pause"}`, map[string]string{"Content-Type": "text/plain"}, nil, http.StatusUnsupportedMediaType, "application/json"},
		{"with a charset", `{"verb":"stop"}`, map[string]string{"Content-Type": "application/json; charset=utf-8"}, nil, http.StatusBadRequest, "stop"},
		{"no JSON", `{`, nil, nil, http.StatusBadRequest, `send {\"verb\": \"pause\"`},
		{"nothing", ``, nil, nil, http.StatusBadRequest, `send {\"verb\": \"pause\"`},
		{"two", `{"verb":"pause"} {"verb":"resume"}`, nil, nil, http.StatusBadRequest, "more than one JSON value"},
		{"more behind it", `{"verb":"pause"} x`, nil, nil, http.StatusBadRequest, "invalid character"},
		{"misspelt, which would be all partitions", `{"verb":"pause","partiton":3}`, nil, nil, http.StatusBadRequest, "partiton"},
		{"another name", `{"verb":"pause","by":{"user":"root"}}`, nil, nil, http.StatusBadRequest, `\"by\"`},
		{"too long", `{"verb":"` + strings.Repeat("x", 5000) + `"}`, nil, nil, http.StatusBadRequest, "too large"},
		{"unknown verb", `{"verb":"stop"}`, nil, nil, http.StatusBadRequest, "pause, resume, probe and drain"},
		{"negative", `{"verb":"pause","partition":-1}`, nil, nil, http.StatusBadRequest, "numbered from 0"},
		{"all drained", `{"verb":"drain"}`, nil, nil, http.StatusBadRequest, "name what to drain"},
		{"one refuses", `{"verb":"drain","partition":3}`, nil, func(context.Context, operator.Wish) ([]operator.Outcome, error) {
			return []operator.Outcome{{Replica: "A", Outcome: "refused", Failed: true}}, nil
		}, http.StatusConflict, `"refused"`},
		{"nobody", `{"verb":"probe"}`, nil, func(context.Context, operator.Wish) ([]operator.Outcome, error) {
			return nil, errors.New("nobody answers")
		}, http.StatusConflict, `"error":"nobody answers"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			steer := c.steer
			if steer == nil {
				steer = func(context.Context, operator.Wish) ([]operator.Outcome, error) {
					t.Error("it was asked")
					return nil, nil
				}
			}
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://stage.example/api/control", strings.NewReader(c.body))
			r.Header.Set("Content-Type", "application/json")
			for name, value := range c.header {
				r.Header.Set(name, value)
			}
			w := httptest.NewRecorder()
			operator.Page{Steer: steer}.Handler().ServeHTTP(w, r)
			if w.Code != c.status || !strings.Contains(w.Body.String(), c.says) {
				t.Errorf("status %d, %s; want %d, %s", w.Code, w.Body, c.status, c.says)
			}
		})
	}
}

func TestThePageSaysWhoAsks(t *testing.T) {
	t.Parallel()
	var got operator.Wish
	page := operator.Page{Steer: func(_ context.Context, w operator.Wish) ([]operator.Outcome, error) {
		got = w
		return nil, nil
	}}
	body := stagetest.Value(json.Marshal(map[string]any{"verb": "drain", "partition": 3, "replica": "ABC"}))(t)
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://stage.example/api/control", strings.NewReader(string(body)))
	r.Header.Set("Content-Type", "application/json")
	r.RemoteAddr = "10.1.2.3:4567"
	page.Handler().ServeHTTP(httptest.NewRecorder(), r)
	if got.Verb != control.Drain || got.Partition == nil || *got.Partition != 3 || got.Replica != "ABC" || got.By.User != "dashboard" || got.By.Host != "10.1.2.3" {
		t.Errorf("got %+v", got)
	}
}
