package tail

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/terminal"
)

// tone is how much an event should stand out.
type tone int

const (
	toneQuiet tone = iota // as expected
	toneTurn              // a run starts, ends or changes
	toneWarn              // it is retried
	toneBad               // it failed
)

// escapes are the terminal's escape sequences for the tones.
var escapes = [...]string{toneTurn: "\x1b[1m", toneWarn: "\x1b[33m", toneBad: "\x1b[31m"}

// toneOf returns the tone of an event.
func toneOf(e *auditlog.Event) tone {
	if e.Batch != nil {
		return toneOfBatch(e.Batch.Phase)
	}
	switch c, r := e.Call, e.Run; {
	case c != nil && c.Status == auditlog.CallSuccess, e.Row != nil && e.Row.Status == auditlog.RowSuccess:
		return toneQuiet
	case c != nil && (c.ErrorClass == "permanent" || c.ErrorClass == "fatal"), e.Row != nil, r != nil && r.Phase == auditlog.PhasePause:
		return toneBad
	case c != nil, r.Phase == auditlog.PhaseFenced, r.Phase == auditlog.PhaseAlone:
		return toneWarn
	}
	return toneTurn
}

// toneOfBatch returns the tone of a batch's event. An event that makes another batch
// necessary stands out.
func toneOfBatch(phase auditlog.BatchPhase) tone {
	switch phase {
	case auditlog.BatchExpired, auditlog.BatchAbandoned:
		return toneWarn
	case auditlog.BatchIntent:
		return toneQuiet
	case auditlog.BatchSubmitted, auditlog.BatchAdopted, auditlog.BatchEnded, auditlog.BatchCancelled:
	}
	return toneTurn
}

// didFail reports whether --failed shows an event.
func didFail(e *auditlog.Event) bool { return toneOf(e) > toneTurn }

// printLine prints one line as [terminal.OneLine] shows it, so that a server's error text
// neither breaks the line nor controls the terminal.
func printLine(w io.Writer, line string, t tone, colour bool) {
	line = terminal.OneLine(line)
	if colour && t != toneQuiet {
		line = escapes[t] + line + "\x1b[0m"
	}
	fmt.Fprintln(w, line) //nolint:errcheck // a flush reports it
}

// eventLine returns an event as one line, in columns of fixed width.
func eventLine(e *auditlog.Event) string {
	at := clockOf(e.Time)
	switch {
	case e.Call != nil:
		c := e.Call
		return fmt.Sprintf("%s  call  %-12s %3s  %-24s %-15s %8s  %-12s delay %-8s%s", at, subjectOf(c), "#"+fmt.Sprint(c.CallIndex+1),
			modelText(c.Provider, c.Model), outcomeText(c), terminal.Duration(c.Latency), tokenCounts(c.Usage), terminal.Duration(c.DispatchDelay), laneText(c)+because(c))
	case e.Row != nil:
		r := e.Row
		about := attemptsText(r)
		if key := keyText(r); key != "" {
			about = key + ", " + about
		}
		return fmt.Sprintf("%s  row   %-12s      %-24s %-15s %8s  %-12s %s", at, fmt.Sprint("row ", r.Sequence), sourceText(r), r.Status,
			terminal.Duration(r.FinishedAt.Sub(r.QueuedAt)), tokenCounts(r.Usage), about)
	case e.Batch != nil:
		return fmt.Sprintf("%s  batch %s", at, batchText(e.Batch))
	}
	return fmt.Sprintf("%s  run   %s", at, turnText(e.Run))
}

// clockOf returns the local time of day.
func clockOf(t time.Time) string { return t.Local().Format("15:04:05.000") }

// subjectOf names the row or batched request of a call; the element of a row as its state
// id does. "row 12 +63" is a call for row 12 and 63 others.
func subjectOf(c *auditlog.Call) string {
	if c.Sequence == 0 {
		return "batch " + c.BatchID
	}
	if n := len(c.Rows); n > 1 {
		return fmt.Sprintf("row %d +%d", c.Sequence, n-1)
	}
	return fmt.Sprint("row ", c.Sequence) + itemText(c.Item)
}

// itemText names an element of a row, which is counted from 0. For nil, which stands for
// the whole row, it returns "".
func itemText(item *int) string {
	if item == nil {
		return ""
	}
	return fmt.Sprint("#", *item)
}

// modelText returns provider and model, or one of them if they have the same name.
func modelText(provider, model string) string {
	if provider == model {
		return provider
	}
	return provider + " " + model
}

// outcomeText returns how a call ended, with the HTTP status.
func outcomeText(c *auditlog.Call) string {
	text := map[auditlog.CallStatus]string{
		auditlog.CallSuccess: "ok", auditlog.CallFailure: "failed", auditlog.CallCapacityRetry: "no capacity", auditlog.CallUnknown: "cut off",
	}[c.Status]
	if c.StatusCode != 0 {
		text += fmt.Sprint(" ", c.StatusCode)
	}
	if c.Unused {
		text += ", not used (its row had gone live)"
	}
	return text
}

// laneText names the batch of a call that a provider's Batch API answered.
func laneText(c *auditlog.Call) string {
	if c.Lane == "" {
		return ""
	}
	return "  " + c.Lane + " " + c.BatchID
}

// because returns why a call failed, how long the server asked to wait, and what the
// throttle believed.
func because(c *auditlog.Call) string {
	text := ""
	if c.RetryAfter > 0 {
		text = "  asked to wait " + terminal.Duration(c.RetryAfter)
	}
	if c.Belief != "" {
		text += "  [" + c.Belief + "]"
	}
	if c.Error != "" {
		text += "  " + c.Error
	}
	return text
}

// sourceTexts are the sources of answers, for people.
var sourceTexts = map[string]string{
	auditlog.SourceCall: "answered", auditlog.SourceJournal: "answered from the journal",
	auditlog.SourceDedupe: "answered like an equal row", auditlog.SourceUpstream: "passed on",
}

// sourceText is where the row's answer came from.
func sourceText(r *auditlog.Row) string { return cmp.Or(sourceTexts[r.Source], "not called") }

// attemptsText returns how many calls a row took, and why it failed if it did.
func attemptsText(r *auditlog.Row) string {
	text := terminal.Plural(r.Attempts+r.CapacityRetries, "call")
	if r.CapacityRetries > 0 {
		text += fmt.Sprintf(", %d without capacity", r.CapacityRetries)
	}
	if r.Reason != "" {
		text += ": " + r.Reason
	}
	// The errors of a success are those of earlier attempts.
	if n := len(r.Errors); n > 0 && r.Status == auditlog.RowError {
		last := &r.Errors[n-1]
		if text += ": "; last.Item != nil {
			text += itemText(last.Item) + ": "
		}
		text += last.Error
	}
	return text
}

// keyText names the key of a row. It returns "" if results are not in order by key.
func keyText(r *auditlog.Row) string {
	switch {
	case r.Key == nil:
		return ""
	case *r.Key == "":
		return "no key"
	}
	return "key " + *r.Key
}

// turnText is what a run event reports.
func turnText(r *auditlog.Run) string {
	text := string(r.Phase)
	if r.Partition != auditlog.All {
		text += " partition " + r.Partition.String()
	}
	if r.Owner != "" {
		text += " as " + r.Owner
	}
	if s := r.Summary; s != nil {
		text += fmt.Sprintf(": %s succeeded, %d failed, %d calls, %d without capacity", terminal.Plural(int(s.RowsSucceeded), "row"), s.RowsFailed, s.Total.Calls, s.CapacityRetries)
		if s.Belief != "" {
			text += ", " + s.Belief
		}
	}
	if r.Reason != "" {
		text += ": " + r.Reason
	}
	return text
}

// batchText returns what a batch event reports: the phase, the batch and its rows. Once the
// batch is over, it also has how the rows were answered, and the cost.
func batchText(b *auditlog.Batch) string {
	text := fmt.Sprintf("%-9s %-12s %-24s ", b.Phase, cmp.Or(b.BatchID, b.Token), modelText(b.Provider, b.Model)) + terminal.Plural(b.Rows, "row")
	if b.BatchID != "" {
		text += ", token " + b.Token
	}
	if !b.Phase.Over() {
		text += ", " + terminal.Bytes(b.Bytes)
	} else {
		text += fmt.Sprintf(": %d answered", b.Answered) + countsText(b) + ", " + tokenCounts(b.Usage) + ", " + costText(b.Usage)
	}
	if b.Reason != "" {
		text += ": " + b.Reason
	}
	return text
}

// countsText returns the counts of rows and lines without a plain answer, except those that
// are 0.
func countsText(b *auditlog.Batch) string {
	var text strings.Builder
	for _, c := range []struct {
		n    int
		what string
	}{{b.Failed, "failed"}, {b.Lapsed, "lapsed"}, {b.Missing, "missing"}, {b.Foreign, "foreign"}, {b.Dropped, "dropped"}} {
		if c.n != 0 {
			_, _ = fmt.Fprintf(&text, ", %d %s", c.n, c.what)
		}
	}
	return text.String()
}

// costText is the cost in US dollars.
func costText(u *auditlog.Usage) string {
	if u == nil || u.CostUSD == nil {
		return "cost unknown"
	}
	return fmt.Sprintf("$%.6f", *u.CostUSD)
}

// tokenCounts returns the tokens in and out, or a dash if none were reported.
func tokenCounts(u *auditlog.Usage) string {
	if u == nil {
		return "-"
	}
	return u.Tokens() + " tok"
}
