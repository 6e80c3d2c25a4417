// Package dashboard is the HTTP server of a stage: metrics, health, status, live events
// and the page.
//
// The routes of one stage are in server.go ([Handlers]), those of several in site.go
// ([Site]). live.go has the events, rows.go the questions about single rows, and this file
// the page, whose own files are in the directory page. hosts.go decides which requests are
// answered, and connections.go how many clients may be connected. client.go asks such a
// server, for stage status.
package dashboard

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"fmt"
	"mime"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"
)

// pageFiles are the page and all that it loads. The chart library is uPlot 1.6.32 (MIT,
// licence included), from the npm package uplot, unchanged.
//
//go:embed page
var pageFiles embed.FS

// pagePolicy lets the page load its own files and connect to its own server, and nothing
// else: no inline script or style, no other host, no frame, no form.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// pageFile is a file of the page, ready to be sent.
type pageFile struct {
	kind, tag     string
	plain, zipped []byte
}

// readPage reads the files of the page, by their paths.
var readPage = sync.OnceValue(func() map[string]*pageFile {
	files := make(map[string]*pageFile)
	entries, err := pageFiles.ReadDir("page")
	for _, e := range entries {
		f := &pageFile{kind: cmp.Or(mime.TypeByExtension(path.Ext(e.Name())), "text/plain; charset=utf-8")}
		if f.plain, err = pageFiles.ReadFile("page/" + e.Name()); err != nil {
			break
		}
		var zipped bytes.Buffer
		z := gzip.NewWriter(&zipped)
		z.Write(f.plain) //nolint:errcheck // to memory
		z.Close()        //nolint:errcheck // to memory
		f.zipped, f.tag = zipped.Bytes(), fmt.Sprintf("%x", sha256.Sum256(f.plain))[:16]
		files["/"+e.Name()] = f
	}
	if err != nil {
		panic(err) // the files are in the binary
	}
	files["/"] = files["/index.html"]
	return files
})

// newPage returns a handler of the page at / and its files below. They are sent
// compressed, and once: a browser that has them asks whether they have changed.
func newPage() http.Handler {
	files := readPage()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			writePlain(w, http.StatusMethodNotAllowed, "pages are read")
			return
		}
		f := files[r.URL.Path]
		if f == nil {
			http.NotFound(w, r)
			return
		}
		header, body, tag := w.Header(), f.plain, f.tag
		header.Set("Content-Security-Policy", pagePolicy)
		header.Set("Cache-Control", "no-cache")
		header.Set("Content-Type", f.kind)
		header.Set("Vary", "Accept-Encoding")
		if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			header.Set("Content-Encoding", "gzip")
			body, tag = f.zipped, tag+"z"
		}
		header.Set("ETag", `"`+tag+`"`)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
	})
}
