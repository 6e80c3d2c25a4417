package batchapi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/batchapi"
)

const goodLine = `{"custom_id":"b-1","response":{"status_code":200,"body":{}}}` + "\n"

// A server that breaks off, lies about lengths or answers with something else costs the lines after that, and no more.
func TestHostileResults(t *testing.T) {
	for name, tt := range map[string]struct {
		serve http.HandlerFunc
		lines int
		want  string // of the error
	}{
		"whole": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, goodLine+goodLine) }, 2, ""},
		"empty": {func(http.ResponseWriter, *http.Request) {}, 0, ""},
		"wrong length": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, goodLine+goodLine[:20])
		}, 1, "unexpected EOF"},
		"cut": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, goodLine+goodLine[:20])
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, 1, "unexpected EOF"},
		"page": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>"+secret+"</html>") }, 0, "no list of results"},
		"stalls": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, goodLine)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, 1, "timed out"},
		"gone": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "{}", http.StatusGone) }, 0, "does not know"},
		"busy": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "{}", http.StatusServiceUnavailable) }, 0, "503"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api, n := piped(t, llm.OpenAI, tt.serve), 0
				err := api.Results(t.Context(), batchapi.Batch{Output: "o"}, func(batchapi.Line) error { n++; return nil })
				if n != tt.lines || (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%d lines, %v; want %d, %q", n, err, tt.lines, tt.want)
				}
				if e, ok := errors.AsType[*llm.Error](err); err != nil && (!ok || e.Class == 0 || strings.Contains(err.Error(), secret)) {
					t.Errorf("error %#v", err)
				}
			})
		})
	}
}

func TestResultsStopWithTheirReader(t *testing.T) {
	api := open(t, llm.OpenAI, httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil { // for ever
			_, _ = io.WriteString(w, goodLine)
		}
	})), llm.ProviderConfig{})
	enough := errors.New("enough")
	n := 0
	err := api.Results(t.Context(), batchapi.Batch{Output: "o"}, func(batchapi.Line) error {
		if n++; n == 100 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) || n != 100 {
		t.Errorf("%d lines, %v", n, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err = api.Results(ctx, batchapi.Batch{Output: "o"}, func(batchapi.Line) error { cancel(); return nil })
	if e, ok := errors.AsType[*llm.Error](err); !ok || e.Class != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// An answer that leads elsewhere gets no credential there, whatever its status.
func TestKeyGoesToItsHostAlone(t *testing.T) {
	var asked, keys atomic.Int64
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		if strings.Contains(fmt.Sprint(r.Header, r.URL), secret) {
			keys.Add(1)
		}
		_, _ = io.WriteString(w, `{"file":{"name":"files/f"},"custom_id":"b-1","key":"b-1","response":{"status_code":200,"body":{}}}`)
	}))
	defer elsewhere.Close()
	away := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Goog-Upload-Url", elsewhere.URL)
		if r.Method == http.MethodGet {
			http.Redirect(w, r, elsewhere.URL+"/x", http.StatusFound)
			return
		}
		_, _ = io.WriteString(w, "{}")
	}
	for _, provider := range []string{llm.OpenAI, llm.Azure, llm.Gemini, llm.Anthropic} {
		api := open(t, provider, httptest.NewServer(http.HandlerFunc(away)), llm.ProviderConfig{})
		n := 0
		b := batchapi.Batch{ID: "b", Output: elsewhere.URL + "/results"}
		if err := api.Results(t.Context(), b, func(batchapi.Line) error { n++; return nil }); err != nil || n != 1 {
			t.Errorf("%s: %d lines, %v", provider, n, err)
		}
	}
	gemini := open(t, llm.Gemini, httptest.NewServer(http.HandlerFunc(away)), llm.ProviderConfig{})
	if _, err := gemini.Upload(t.Context(), token, batchapi.Lines{Open: func() io.Reader { return strings.NewReader("x") }, Size: 1}); err != nil {
		t.Error(err)
	}
	if asked.Load() != 5 || keys.Load() != 0 {
		t.Errorf("%d requests elsewhere, %d with the key", asked.Load(), keys.Load())
	}
	circle := open(t, llm.OpenAI, httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.Path, http.StatusFound)
	})), llm.ProviderConfig{})
	if _, err := circle.Get(t.Context(), "b"); err == nil || !strings.Contains(err.Error(), "redirects") {
		t.Errorf("in a circle: %v", err)
	}
}

// After which failures of Create a batch may exist all the same, and what each means.
func TestUncertainCreation(t *testing.T) {
	answer := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	for name, tt := range map[string]struct {
		serve     http.HandlerFunc
		uncertain bool
		class     llm.Class
	}{
		"lost": {func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			panic(http.ErrAbortHandler)
		}, true, llm.Transient},
		"silent": {func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		}, true, llm.Transient},
		"cut": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, `{"id":"b`)
		}, true, llm.Transient},
		"page":        {answer(200, "<html>ok</html>"), true, llm.Transient},
		"no id":       {answer(200, `{"id":null}`), true, llm.Transient},
		"502":         {answer(502, "<html>bad gateway</html>"), true, llm.Transient},
		"500":         {answer(500, `{"error":{"message":"x","type":"server_error"}}`), true, llm.Transient},
		"503":         {answer(503, ""), true, llm.Capacity},
		"overloaded":  {answer(529, `{"error":{"type":"overloaded_error","message":"x"}}`), false, llm.Capacity},
		"429":         {answer(429, `{"error":{"message":"x"}}`), false, llm.Capacity},
		"full queue":  {answer(400, `{"error":{"code":"token_limit_exceeded","message":"x"}}`), false, llm.Capacity},
		"bad request": {answer(400, `{"error":{"type":"invalid_request_error","message":"x `+secret+`"}}`), false, llm.Permanent},
		"bad key":     {answer(401, `{"error":{"message":"x"}}`), false, llm.Fatal},
		"no credit":   {answer(429, `{"error":{"code":"insufficient_quota","message":"x"}}`), false, llm.Fatal},
		"no API":      {answer(404, `not found`), false, llm.Fatal},
		"redirect":    {answer(302, ``), false, llm.Fatal},
	} {
		for _, provider := range []string{llm.OpenAI, llm.Anthropic} {
			synctest.Test(t, func(t *testing.T) {
				api := piped(t, provider, tt.serve)
				_, err := api.Create(t.Context(), batchapi.Job{Token: token, File: "f", Lines: linesOf(t, provider, api, llm.ProviderConfig{})})
				e, ok := errors.AsType[*llm.Error](err)
				if !ok || e.Class != tt.class || batchapi.Uncertain(err) != tt.uncertain || strings.Contains(err.Error(), secret) {
					t.Errorf("%s %s: %v, uncertain %t", provider, name, err, batchapi.Uncertain(err))
				}
			})
		}
	}
	nobody := httptest.NewServer(http.NotFoundHandler())
	api := open(t, llm.OpenAI, nobody, llm.ProviderConfig{})
	nobody.Close()
	if _, err := api.Create(t.Context(), batchapi.Job{Token: token, File: "f"}); err == nil || batchapi.Uncertain(err) {
		t.Errorf("nobody listens: %v", err)
	}
}

// A list is read to its end, or to what is older than the batch can be, and no server keeps us turning its pages.
func TestListsEnd(t *testing.T) {
	at := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	pages := 0
	api := open(t, llm.OpenAI, httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		pages++
		first := at.Add(-time.Duration(pages-1) * time.Hour).Unix()
		name := "other"
		if r.URL.Query().Get("after") == "b2" {
			name = token
		}
		_, _ = fmt.Fprintf(w, `{"data":[{"id":"a%d","created_at":%d},{"id":"b%d","created_at":%d,"metadata":{"llm_stage_batch":%q}}],"has_more":true}`,
			pages, first, pages, first-1800, name)
	})), llm.ProviderConfig{})
	found, err := api.Find(t.Context(), token, at.Add(-4*time.Hour), 2)
	if err != nil || len(found) != 1 || found[0].ID != "b3" || pages != 6 {
		t.Errorf("found %+v after %d pages, %v", found, pages, err)
	}
	stuck := open(t, llm.OpenAI, httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"data":[{"id":"a"}],"has_more":true}`)
	})), llm.ProviderConfig{})
	if _, err := stuck.Find(t.Context(), token, at, 2); err == nil || !strings.Contains(err.Error(), "does not advance") {
		t.Errorf("the same page for ever: %v", err)
	}
	if certain, err := stuck.Withdraw(t.Context(), token, at); err == nil || certain {
		t.Errorf("withdraw: %t %v", certain, err)
	}
}

// A large upload is sent as it is read.
func TestUploadIsStreamed(t *testing.T) {
	const size = 64 << 20
	var got int64
	api := open(t, llm.OpenAI, httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, `{"id":"f"}`)
	})), llm.ProviderConfig{})
	row := bytes.Repeat([]byte("x"), 1<<20)
	var most int
	lines := batchapi.Lines{Size: size, Open: func() io.Reader {
		return io.LimitReader(readerFunc(func(p []byte) (int, error) { most = max(most, len(p)); return copy(p, row), nil }), size)
	}}
	if _, err := api.Upload(t.Context(), token, lines); err != nil || got < size || most > 1<<20 {
		t.Errorf("%d bytes arrived, read up to %d at once, %v", got, most, err)
	}
	short := batchapi.Lines{Size: 100, Open: func() io.Reader { return strings.NewReader("short") }}
	if _, err := api.Upload(t.Context(), token, short); err == nil {
		t.Error("a body shorter than its length was sent")
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
