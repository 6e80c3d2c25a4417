package llm

import (
	"bytes"
	"html"
	"regexp"
	"strings"

	"github.com/llm-stage/stage/internal/excerpt"
)

var (
	htmlStart = regexp.MustCompile(`(?i)^\s*<(!doctype html|html|head)\b`)
	htmlTitle = regexp.MustCompile(`(?is)<title[^>]*>(.*?)</title`)
)

// titleBytes bounds the title of a page in an error.
const titleBytes = 80

// readHTML reports whether body is an HTML page, and returns its title on one line; empty: it has none.
func readHTML(body []byte) (page bool, title string) {
	body = bytes.TrimPrefix(body[:min(len(body), errorBytes)], []byte("\ufeff"))
	if !htmlStart.Match(body) {
		return false, ""
	}
	if match := htmlTitle.FindSubmatch(body); match != nil {
		title = strings.Join(strings.Fields(html.UnescapeString(string(match[1]))), " ")
	}
	return true, excerpt.Clip(title, titleBytes)
}
