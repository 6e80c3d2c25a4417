// Package dashboard is the HTTP server of a stage: metrics, health, status, live events and the page.
package dashboard

import (
	"embed"
	"io/fs"
	"net/http"
	"strings"
)

// dashboardFiles are the page and all that it loads. The chart library is uPlot 1.6.32 (MIT, its licence beside it), from
// the npm package uplot, unchanged.
//
//go:embed page
var dashboardFiles embed.FS

// dashboardPolicy lets the page load its own files and ask its own server, and nothing else: no inline script or style, no
// other host, no frame, no form.
const dashboardPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// newDashboard serves the page at / and its files below.
func newDashboard() http.Handler {
	files, err := fs.Sub(dashboardFiles, "page")
	if err != nil {
		panic(err) // the directory is in the binary
	}
	server := http.FileServerFS(files)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			writePlain(w, http.StatusMethodNotAllowed, "the dashboard is read-only")
			return
		}
		if r.URL.Path != "/" && strings.HasSuffix(r.URL.Path, "/") {
			http.NotFound(w, r) // no listings
			return
		}
		w.Header().Set("Content-Security-Policy", dashboardPolicy)
		w.Header().Set("Cache-Control", "no-cache")
		server.ServeHTTP(w, r)
	})
}
