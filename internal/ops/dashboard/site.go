package dashboard

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"html/template"
	"net/http"
	"sync"
)

// Entry is one of several stages of a process.
type Entry struct {
	// Name is the name of the stage. Its pages are at /stages/<name>/.
	Name string
	// State returns what the list of stages shows: the state in one word, and the reason
	// for it if something is wrong.
	State func() (state, why string)
	Handlers
}

// Site is what the HTTP server of a process with several stages serves: /metrics,
// /healthz and /readyz of all, a page that lists them at /, and /api/status and /api/stage
// with each of them. Below /stages/<name>/ it serves what the stage would serve as the only
// one of its process. All fields are required.
type Site struct {
	Metrics http.Handler
	Stages  []Entry
}

// indexText is the page that lists the stages. It runs no script, and the browser loads it
// again every few seconds.
//
//go:embed index.html
var indexText string

var indexPage = template.Must(template.New("index").Parse(indexText))

// indexPolicy lets the list load the style and the icon of the pages, and nothing else.
const indexPolicy = "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// mux implements [Routes].
func (s *Site) mux(hosts hostCheck) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.Metrics)
	mux.HandleFunc("GET /healthz", serveHealthy)
	mux.HandleFunc("GET /readyz", s.serveReady(hosts))
	mux.HandleFunc("GET /api/status", s.serveStatus)
	mux.HandleFunc("GET /api/stage", s.serveWhole)
	mux.HandleFunc("GET /{$}", s.serveIndex)
	for i := range s.Stages {
		path := "/stages/" + s.Stages[i].Name
		mux.Handle(path+"/", http.StripPrefix(path, s.Stages[i].mux(hosts)))
	}
	files := newPage()
	mux.Handle("GET /dashboard.css", files)
	mux.Handle("GET /favicon.svg", files)
	return mux
}

// readiness is the JSON of /readyz.
type readiness struct {
	Ready  bool             `json:"ready"`
	Stages []stageReadiness `json:"stages"`
}

type stageReadiness struct {
	Stage  string `json:"stage"`
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"` // see [Handlers.serveReady] on who may read it
}

// serveReady answers /readyz: the process is ready if each of its stages is.
func (s *Site) serveReady(hosts hostCheck) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		all, status := readiness{Ready: true}, http.StatusOK
		for i := range s.Stages {
			e := &s.Stages[i]
			ready, reason := e.Ready()
			if !ready {
				all.Ready, status = false, http.StatusServiceUnavailable
				if !hosts.allows(r.Host) {
					reason = hiddenReason
				}
			}
			all.Stages = append(all.Stages, stageReadiness{Stage: e.Name, Ready: ready, Reason: reason})
		}
		writeJSON(w, status, all)
	}
}

// serveStatus serves /api/status: {"stages": [...]} with the status of each.
func (s *Site) serveStatus(w http.ResponseWriter, _ *http.Request) {
	all := struct {
		Stages []any `json:"stages"`
	}{}
	for i := range s.Stages {
		all.Stages = append(all.Stages, s.Stages[i].Status())
	}
	writeJSON(w, http.StatusOK, all)
}

// serveWhole serves /api/stage: {"stages": [...]} with each as all its replicas report
// it, asked at the same time.
func (s *Site) serveWhole(w http.ResponseWriter, r *http.Request) {
	all := struct {
		Stages []any `json:"stages"`
	}{make([]any, len(s.Stages))}
	var asked sync.WaitGroup
	ctx := r.Context()
	for i := range s.Stages {
		whole := s.Stages[i].Whole
		asked.Go(func() { all.Stages[i] = whole(ctx) })
	}
	asked.Wait()
	writeJSON(w, http.StatusOK, all)
}

// serveIndex serves the page that lists the stages.
func (s *Site) serveIndex(w http.ResponseWriter, _ *http.Request) {
	type line struct{ Name, State, Why string }
	var lines []line
	for i := range s.Stages {
		state, why := s.Stages[i].State()
		lines = append(lines, line{s.Stages[i].Name, state, why})
	}
	var page bytes.Buffer
	if err := indexPage.Execute(&page, lines); err != nil {
		writePlain(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", indexPolicy)
	w.Header().Set("Cache-Control", "no-store")
	w.Write(page.Bytes()) //nolint:errcheck // the client has gone
}

// writeJSON answers with a line of JSON.
func writeJSON(w http.ResponseWriter, status int, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		writePlain(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	w.Write(append(body, '\n')) //nolint:errcheck // the client has gone
}
