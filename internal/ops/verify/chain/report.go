package chain

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/llm-stage/stage/internal/ops/verify"
	"github.com/llm-stage/stage/internal/terminal"
)

// Report holds the findings. verify --chain --json prints it as JSON.
type Report struct {
	Chain   []string         `json:"chain"`   // names of the stages, in order of flow
	Verdict string           `json:"verdict"` // proven, violated or cannot_tell
	Stages  []*verify.Report `json:"stages"`  // of each, also of its links to the stage before
	Links   []Link           `json:"links"`   // between a stage and the next
	// CannotTell lists the checks that were impossible for the chain as a whole; each
	// stage's report has its own list. Notes are for the reader's information.
	CannotTell []string `json:"cannot_tell"`
	Notes      []string `json:"notes"`
}

// Link is the way from the results of one stage into another.
type Link struct {
	From string `json:"from"`
	To   string `json:"to"`
	// Stream and Subject are the input of To. Unread are the partitions of From that are
	// not part of it.
	Stream  string `json:"stream"`
	Subject string `json:"subject"`
	Unread  []int  `json:"partitions_unread"`
	// Linked counts the results of To that were compared with the results of From that they
	// name.
	Linked int `json:"linked"`
	// Gone counts the results of To that name results of From which are no longer there.
	Gone int `json:"gone"`
	// Waiting counts the results of From that have no result of To yet. It is null if
	// that is unknown.
	Waiting *uint64 `json:"waiting"`
}

func newReport(names []string) *Report {
	return &Report{Chain: names, CannotTell: []string{}, Notes: []string{}}
}

func (r *Report) cannot(format string, args ...any) {
	r.CannotTell = append(r.CannotTell, fmt.Sprintf(format, args...))
}

func (r *Report) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// conclude sums up the links and sets the verdict.
func (r *Report) conclude() {
	for i := range r.Links {
		l := &r.Links[i]
		l.Waiting = new(uint64)
		for _, p := range r.Stages[i+1].Partitions {
			l.Linked += p.Linked
			l.Gone += p.ByAudit + p.Unknown
			switch {
			case p.Pending == nil:
				l.Waiting = nil
			case l.Waiting != nil:
				*l.Waiting += *p.Pending
			}
		}
		if len(r.Stages[i+1].Partitions) == 0 {
			l.Waiting = nil
		}
		if l.Gone > 0 {
			r.cannot("link %s -> %s: %d results of stage %s name results of stage %s that are gone: what they are made from was not checked", l.From, l.To, l.Gone, l.To, l.From)
		}
	}
	r.Verdict = verify.VerdictProven
	if len(r.CannotTell) > 0 {
		r.Verdict = verify.VerdictCannotTell
	}
	for _, s := range r.Stages {
		err := s.Err()
		if _, unproven := errors.AsType[*verify.UnprovenError](err); unproven && r.Verdict == verify.VerdictProven {
			r.Verdict = verify.VerdictCannotTell
		} else if err != nil && !unproven {
			r.Verdict = verify.VerdictViolated
		}
	}
}

// Err returns nil if all is proven, [*verify.UnprovenError] if something could not be
// checked, and another error for violations.
func (r *Report) Err() error {
	var violated, reasons []string
	for i, s := range r.Stages {
		err := s.Err()
		if unproven, ok := errors.AsType[*verify.UnprovenError](err); ok {
			for _, why := range unproven.Reasons {
				reasons = append(reasons, "stage "+r.Chain[i]+": "+why)
			}
		} else if err != nil {
			violated = append(violated, "stage "+r.Chain[i]+": "+err.Error())
		}
	}
	reasons = append(reasons, r.CannotTell...)
	switch {
	case len(violated) > 0:
		return errors.New(strings.Join(violated, "\n"))
	case len(reasons) > 0:
		return &verify.UnprovenError{Reasons: reasons}
	}
	return nil
}

// WriteText prints the report for people, stage by stage and link by link. Without
// violations the reasons why verify cannot tell are left out: they are in the error of
// [Report.Err].
func (r *Report) WriteText(w io.Writer) {
	for i, s := range r.Stages {
		if i > 0 {
			r.Links[i-1].write(w)
		}
		terminal.PrintLine(w, "stage %s", r.Chain[i])
		s.WriteText(w)
	}
	for _, note := range r.Notes {
		terminal.PrintLine(w, "note: %s", note)
	}
	switch r.Verdict {
	case verify.VerdictViolated:
		for _, why := range r.CannotTell {
			terminal.PrintLine(w, "cannot tell: %s", why)
		}
	case verify.VerdictProven:
		terminal.PrintLine(w, "proven: every result of stage %s is made from the results that it names, down to the input of stage %s",
			r.Chain[len(r.Chain)-1], r.Chain[0])
	}
}

func (l *Link) write(w io.Writer) {
	waiting := "rows that wait unknown"
	if l.Waiting != nil {
		waiting = fmt.Sprintf("%d results of %s wait", *l.Waiting, l.From)
	}
	terminal.PrintLine(w, "link %s -> %s (%s of stream %s): %d results of %s compared with those of %s that they name; %s",
		l.From, l.To, l.Subject, l.Stream, l.Linked, l.To, l.From, waiting)
}
