package answers

import (
	_ "embed" // the page
	"html/template"
	"io"
	"strings"

	"github.com/llm-stage/stage/internal/files/rowfile"
	"github.com/llm-stage/stage/internal/jsonbytes"
	"github.com/llm-stage/stage/internal/terminal"
)

//go:embed page.html
var pageText string

// page is the comparison as a page. It has neither scripts nor anything to load, and its
// Content-Security-Policy forbids both, so that nothing in an answer is executed or loaded.
var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"visible": terminal.Lines, "input": rowfile.InputName, "ms": milliseconds, "usd": dollars, "letter": letter, "rows": rowsText,
}).Parse(pageText))

// letter is the short name of column i, from 0: A, B, C.
func letter(i int) string { return string(rune('A' + i)) }

// WriteHTML writes the comparison as one page that needs no other file.
func (r *Report) WriteHTML(w io.Writer) error { return page.Execute(w, r) }

// Same reports whether the row has the same answer in all columns, for the page.
func (r *RowReport) Same() bool { return r.Agree != nil && *r.Agree }

// Shown is an answer on the page.
type Shown struct {
	*Answer
	Text    string        // all of the answer, or "" if Members are shown
	Members []ShownMember // of an answer that is an object
	Note    string
}

// ShownMember is a member of an answer on the page.
type ShownMember struct {
	Name, Text string
	Differs    bool // the answer of another column differs in it
}

// Shown returns the answers for the page. The members of an object are shown one by one,
// and compared if all answers to the row are objects.
func (r *RowReport) Shown() []Shown {
	shown := make([]Shown, len(r.Answers))
	for i := range r.Answers {
		a := &r.Answers[i]
		shown[i] = Shown{Answer: a, Text: a.text(), Note: a.note()}
		if a.Status != StatusAnswered || membersOf(a.Answer) == nil {
			continue
		}
		shown[i].Text = ""
		compared := len(r.Answers) > 1 && r.complete() && r.objects()
		for name, member := range jsonbytes.Members(a.Answer) {
			shown[i].Members = append(shown[i].Members, ShownMember{string(name), textOf(member), compared && r.differs(string(name))})
		}
	}
	return shown
}

// ExpectedMark is ✓ if the answer is the known one, and otherwise ✗. Expected must be set.
func (a *Answer) ExpectedMark() string {
	if *a.Expected {
		return "✓"
	}
	return "✗"
}

// RowText is the row on the page.
func (r *RowReport) RowText() string { return string(r.Row) }

// ExpectedText is the known answer on the page, or "".
func (r *RowReport) ExpectedText() string { return strings.TrimSpace(textOf(r.Expected)) }

// AgreeText says how a row's answers compare. It is "" if one is missing.
func (r *RowReport) AgreeText() string {
	switch {
	case r.Agree == nil:
		return ""
	case *r.Agree:
		return "same"
	}
	return "differ"
}
