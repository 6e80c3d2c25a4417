package app

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // the page
	"encoding/base64"
	"fmt"
	"net/http"
)

//go:embed statuspage.html
var statusPageHTML []byte

// newStatusPage serves a page that shows /api/status every second. It loads nothing from elsewhere, and its policy lets
// nothing run but its own script, named by hash.
func newStatusPage() http.Handler {
	policy := fmt.Sprintf("default-src 'none'; script-src '%s'; style-src '%s'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
		elementHash(statusPageHTML, "script"), elementHash(statusPageHTML, "style"))
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Security-Policy", policy)
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Cache-Control", "no-cache")
		w.Write(statusPageHTML) //nolint:errcheck // the client has gone
	})
}

// elementHash is the hash of the only element of that name, as a content security policy takes it.
func elementHash(page []byte, name string) string {
	_, rest, _ := bytes.Cut(page, []byte("<"+name+">"))
	text, _, _ := bytes.Cut(rest, []byte("</"+name+">"))
	sum := sha256.Sum256(text)
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}
