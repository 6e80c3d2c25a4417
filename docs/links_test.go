package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	fenced  = regexp.MustCompile("(?ms)^```.*?^```$")
)

// TestEveryLinkBetweenDocumentsLeadsSomewhere checks the files and headings that Markdown files here link to.
func TestEveryLinkBetweenDocumentsLeadsSomewhere(t *testing.T) {
	checked := 0
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains([]string{".git", "bin", "dist", "testdata"}, d.Name()):
			return fs.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".md":
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(string(text), ""), -1) {
			if !strings.Contains(m[1], "://") {
				checked++
				checkLink(t, path, m[1])
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if checked < 30 {
		t.Errorf("%d links: the test no longer finds them", checked)
	}
}

func checkLink(t *testing.T, from, to string) {
	t.Helper()
	name, anchor, _ := strings.Cut(to, "#")
	path := from
	if name != "" {
		path = filepath.Join(filepath.Dir(from), name)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("%s links to %s: %v", from, to, err)
		return
	}
	if anchor == "" {
		return
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(string(text), ""), -1) {
		if anchorOf(m[1]) == anchor {
			return
		}
	}
	t.Errorf("%s links to %s: no such heading", from, to)
}

// anchorOf is the name that GitHub gives a heading.
func anchorOf(heading string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(heading) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-' || r == '_' || 'a' <= r && r <= 'z' || '0' <= r && r <= '9' || r > 127:
			b.WriteRune(r)
		}
	}
	return b.String()
}
