package usage

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/llm-stage/stage/internal/terminal"
)

// Format is how a report is printed.
type Format string

// The values of Format.
const (
	Table Format = "table"
	JSON  Format = "json"
	CSV   Format = "csv"
)

// ParseFormat reads the name of a format. The error lists the names.
func ParseFormat(name string) (Format, error) {
	if f := Format(name); f == Table || f == JSON || f == CSV {
		return f, nil
	}
	return "", fmt.Errorf("%q: it is table, json or csv", name)
}

// Write prints a report.
func (r *Report) Write(w io.Writer, f Format) error {
	switch f {
	case JSON:
		return terminal.WriteJSON(w, r)
	case CSV:
		return csv.NewWriter(w).WriteAll(append([][]string{r.columns()}, r.records()...))
	case Table:
	}
	return r.writeTable(w)
}

// writeTable prints the table, and below it what the numbers leave open.
func (r *Report) writeTable(w io.Writer) error {
	rows := [][]string{{"CALLS", "OK", "FAILED", "RETRIED", "UNKNOWN", "PROMPT", "CACHED", "COMPLETION", "REASONING", "TOTAL", "COST USD", "UNPRICED"}}
	for i, d := range r.By {
		rows[0] = slices.Insert(rows[0], i, strings.ToUpper(string(d)))
	}
	for i := range r.Groups {
		g := &r.Groups[i]
		row := r.names(g)
		for i := range row {
			row[i] = terminal.OrDash(row[i])
		}
		rows = append(rows, append(row, g.cells()...))
	}
	total := append(make([]string, len(r.By)), r.Total.cells()...)
	if len(r.By) > 0 {
		total[0] = "total"
		rows = append(rows, total)
	} else {
		rows = append(rows[:1], total)
	}
	if err := writeAligned(w, rows, len(r.By)); err != nil {
		return err
	}
	for _, note := range r.notes() {
		if _, err := fmt.Fprintln(w, note); err != nil {
			return err
		}
	}
	return nil
}

// writeAligned prints cells in columns, the first ones to the left, the others to the
// right.
func writeAligned(w io.Writer, rows [][]string, left int) error {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var text strings.Builder
	for _, row := range rows {
		padded := make([]string, len(row))
		for i, cell := range row {
			fill := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if padded[i] = fill + cell; i < left {
				padded[i] = cell + fill
			}
		}
		text.WriteString(strings.TrimRight(strings.Join(padded, "  "), " ") + "\n")
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// cells returns the numbers of the table.
func (n *Numbers) cells() []string {
	return []string{
		count(n.Calls), count(n.Succeeded), count(n.Failed), count(n.CapacityRetries), count(n.Unknown),
		orDash(n.PromptTokens), orDash(n.CachedTokens), orDash(n.CompletionTokens), orDash(n.ReasoningTokens), orDash(n.TotalTokens),
		n.costText(), count(n.UnpricedCalls),
	}
}

// costText returns the cost, or the least that it can be.
func (n *Numbers) costText() string {
	switch {
	case n.UnpricedCalls == 0:
		return usd(n.KnownCostUSD)
	case n.KnownCostUSD == 0:
		return "unknown"
	}
	return ">=" + usd(n.KnownCostUSD)
}

// notes says what parallel calls gained, and lists the reasons why the numbers may be
// incomplete.
func (r *Report) notes() (notes []string) {
	add := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	if text := r.Gain(0); text != "" {
		add("Speed-up %s.", text)
	}
	if n := r.Total.UnpricedCalls; n > 0 {
		text := fmt.Sprintf("The cost of %s is unknown (no price is set, or no usage was reported)", terminal.Plural(int(n), "call")) //nolint:gosec // far below
		if r.Total.KnownCostUSD > 0 {
			text += ", so the cost is a lower bound"
		}
		notes = append(notes, text+".")
	}
	if u := r.Unused; u.Answers > 0 {
		text := fmt.Sprintf("Not included: %s of batches that no row has used, %d tokens, %s USD", terminal.Plural(u.Answers, "answer"), u.TotalTokens, usd(u.KnownCostUSD))
		if u.UnpricedBatches > 0 {
			text += " or more, as that of some is unknown"
		}
		notes = append(notes, text+".")
	}
	if t := r.AuditBegins; t != nil {
		add("The audit begins at %s: calls before are not included, as their events have expired or were deleted.", t.Format(time.RFC3339))
	}
	if r.NoRollUp != "" && r.AuditBegins != nil {
		add("Days that were rolled up are not included, if there are any: stream %s: %s.", RollUpStream, r.NoRollUp)
	}
	if r.RowsGone > 0 {
		add("The rows of %s are no longer stored: they count as rows without a value.", terminal.Plural(int(r.RowsGone), "call")) //nolint:gosec // far below
	}
	if r.Unreadable > 0 {
		add("%s could not be read: the numbers are too low. A newer version of stage may have stored them.", terminal.Plural(int(r.Unreadable), "event")) //nolint:gosec // far below
	}
	return notes
}

// columns is the header of CSV.
func (r *Report) columns() (names []string) {
	for _, d := range r.By {
		names = append(names, string(d))
	}
	return append(names, "calls", "succeeded", "failed", "capacity_retries", "unknown",
		"prompt_tokens", "cached_tokens", "cache_write_tokens", "cache_write_1h_tokens", "completion_tokens", "reasoning_tokens", "total_tokens",
		"cost_usd", "known_cost_usd", "unpriced_calls")
}

// records returns the groups as CSV, or the total if there are no dimensions. An unknown
// number is an empty cell.
func (r *Report) records() (records [][]string) {
	groups := r.Groups
	if len(r.By) == 0 {
		groups = []Group{{Numbers: r.Total}}
	}
	for i := range groups {
		g := &groups[i]
		cost := ""
		if g.CostUSD != nil {
			cost = float(*g.CostUSD)
		}
		records = append(records, append(r.names(g), count(g.Calls), count(g.Succeeded), count(g.Failed), count(g.CapacityRetries), count(g.Unknown),
			orEmpty(g.PromptTokens), orEmpty(g.CachedTokens), orEmpty(g.CacheWriteTokens), orEmpty(g.CacheWrite1hTokens),
			orEmpty(g.CompletionTokens), orEmpty(g.ReasoningTokens), orEmpty(g.TotalTokens),
			cost, float(g.KnownCostUSD), count(g.UnpricedCalls)))
	}
	return records
}

// names returns the values that a group is grouped by, in the order of By. Control
// characters are removed, because rows may name any model.
func (r *Report) names(g *Group) (names []string) {
	for _, d := range r.By {
		named := map[Dimension]*string{ByStage: g.Stage, ByProvider: g.Provider, ByModel: g.Model, ByDay: g.Day, g.dimension: g.Field}
		name := *named[d]
		names = append(names, terminal.OneLine(name))
	}
	return names
}

// Live prints a report again and again while it changes. It is not safe for concurrent use.
type Live struct {
	w      io.Writer
	format Format
	screen bool
	shown  map[string]string // CSV: the last record of each group, by its names
}

// NewLive returns a printer. With screen, w is a terminal, and a table replaces the one
// before it.
func NewLive(w io.Writer, f Format, screen bool) *Live { return &Live{w: w, format: f, screen: screen} }

// clearScreen moves to the upper left corner and clears.
const clearScreen = "\x1b[H\x1b[2J"

// Show prints the report. As a table it prints the table on a terminal, and elsewhere a
// line with the totals. As JSON it prints the report in one line. As CSV it prints the
// records of the groups that have changed, and before the first ones a header.
func (l *Live) Show(r *Report) error {
	switch {
	case l.format == JSON:
		enc := json.NewEncoder(terminal.JSON(l.w))
		enc.SetEscapeHTML(false)
		return enc.Encode(r)
	case l.format == CSV:
		return l.showRecords(r)
	case l.screen:
		if _, err := io.WriteString(l.w, clearScreen); err != nil {
			return err
		}
		return r.writeTable(l.w)
	}
	_, err := fmt.Fprintln(l.w, r.line())
	return err
}

// showRecords prints the groups that have changed.
func (l *Live) showRecords(r *Report) error {
	var changed [][]string
	if l.shown == nil {
		l.shown, changed = make(map[string]string), [][]string{r.columns()}
	}
	for _, record := range r.records() {
		name, text := strings.Join(record[:len(r.By)], "\x00"), strings.Join(record, ",")
		if l.shown[name] != text {
			l.shown[name], changed = text, append(changed, record)
		}
	}
	return csv.NewWriter(l.w).WriteAll(changed)
}

// line returns the total in one line, with the time of the last call.
func (r *Report) line() string {
	at := "-"
	if r.Until != nil {
		at = r.Until.Format(time.DateTime)
	}
	n := &r.Total
	price := n.costText()
	if n.KnownCostUSD > 0 && n.UnpricedCalls > 0 {
		price += fmt.Sprintf(", unknown of %s", terminal.Plural(int(n.UnpricedCalls), "call")) //nolint:gosec // far below
	}
	return fmt.Sprintf("%s  %s: %d succeeded, %d failed, %d retried, %d unknown; tokens %s+%s, %s in total; cost in USD %s", at,
		terminal.Plural(int(n.Calls), "call"), n.Succeeded, n.Failed, n.CapacityRetries, n.Unknown, //nolint:gosec // far below
		orDash(n.PromptTokens), orDash(n.CompletionTokens), orDash(n.TotalTokens), price)
}

func count(n uint64) string { return strconv.FormatUint(n, 10) }

func orEmpty(n *int64) string {
	if n == nil {
		return ""
	}
	return strconv.FormatInt(*n, 10)
}

func orDash(n *int64) string { return terminal.OrDash(orEmpty(n)) }

// usd writes a cost to a millionth of a dollar. float writes all digits.
func usd(cost float64) string { return strconv.FormatFloat(cost, 'f', 6, 64) }

func float(cost float64) string { return strconv.FormatFloat(cost, 'g', -1, 64) }
