// Package dashboard is the HTTP server of a stage: metrics, health, status, live events and the page.
package dashboard

import (
	"embed"
	"io/fs"
	"net/http"
	"strings"
)

// pageFiles are the page and all that it loads. The chart library is uPlot 1.6.32 (MIT, licence included), from the npm
// package uplot, unchanged.
//
//go:embed page
var pageFiles embed.FS

// pagePolicy lets the page load its own files and connect to its own server, and nothing else: no inline script or
// style, no other host, no frame, no form.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// newPage returns a handler of the page at / and its files below.
func newPage() http.Handler {
	files, err := fs.Sub(pageFiles, "page")
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
		w.Header().Set("Content-Security-Policy", pagePolicy)
		w.Header().Set("Cache-Control", "no-cache")
		server.ServeHTTP(w, r)
	})
}
