package erase

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/llm-stage/stage/internal/terminal"
)

// Report is what an erasure will do, or has done. -o json prints it as JSON.
type Report struct {
	Stage string `json:"stage"`
	// Rows are the chosen rows that can be erased. Before counts the ones whose result was
	// erased earlier, and Unfinished the ones whose erasure was begun and not finished.
	Rows       []uint64 `json:"rows"`
	Before     int      `json:"erased_before"`
	Unfinished int      `json:"unfinished"`
	// Erased are the rows that this erasure has finished. It is empty in a plan.
	Erased []uint64 `json:"erased"`
	// Pending are chosen rows that can't be erased yet.
	Pending []Pending `json:"pending"`
	// Places are where something of the rows lies, in the order in which it is erased.
	Places []PlaceCount `json:"places"`
	// Shared counts the calls that served other rows, too. Their requests and answers are
	// removed as a whole.
	Shared int      `json:"shared_calls"`
	Notes  []string `json:"notes"`
	// Failed says what could not be removed, and why.
	Failed []string `json:"failed,omitempty"`
}

// PlaceCount is how much there is of the rows in one place.
type PlaceCount struct {
	Place    Place  `json:"place"`
	Stream   string `json:"stream"`   // for batches, the provider
	Messages int    `json:"messages"` // or objects, or batches
	Rows     int    `json:"rows"`
	// Stays says why nothing of it is removed. It is empty if all is.
	Stays string `json:"stays,omitempty"`
}

// Pending is a row that can't be erased yet.
type Pending struct {
	Partition int    `json:"partition"`
	Row       uint64 `json:"row"`
	Why       string `json:"why"`
}

func (r *Report) note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

func (r *Report) fail(format string, args ...any) {
	r.Failed = append(r.Failed, fmt.Sprintf(format, args...))
}

func (r *Report) keep(place Place, stream string, rows int, why string) {
	r.Places = append(r.Places, PlaceCount{Place: place, Stream: stream, Messages: rows, Rows: rows, Stays: why})
}

// Err returns nil if all that was chosen is erased. Otherwise it says what is left to do.
func (r *Report) Err() error {
	switch {
	case len(r.Failed) > 0:
		return fmt.Errorf("erase: %s could not be done: %s; run it again", terminal.Plural(len(r.Failed), "step"), r.Failed[0])
	case len(r.Pending) > 0:
		return fmt.Errorf("erase: %s can't be erased yet, such as row %d: %s; run it again", terminal.Plural(len(r.Pending), "row"), r.Pending[0].Row, r.Pending[0].Why)
	}
	return nil
}

// wait notes a row that can't be erased yet.
func (r *Report) wait(partition int, row uint64, why string, args ...any) {
	if !slices.ContainsFunc(r.Pending, func(w Pending) bool { return w.Row == row }) {
		r.Pending = append(r.Pending, Pending{Partition: partition, Row: row, Why: fmt.Sprintf(why, args...)})
	}
}

// count sums what was found of rows, whose results are in a stream.
func (r *Report) count(rows []*erasure, results string) {
	for _, e := range rows {
		r.Rows = append(r.Rows, e.row)
		switch {
		case e.begun():
			r.Unfinished++
		case e.at == 0:
			r.Before++
		}
	}
	for _, place := range places {
		counts := make(map[string]*PlaceCount) // by stream
		var order []*PlaceCount
		add := func(stream string, messages int) {
			if messages == 0 {
				return
			}
			c := counts[stream]
			if c == nil {
				c = &PlaceCount{Place: place, Stream: stream}
				counts[stream], order = c, append(order, c)
			}
			c.Messages += messages
			c.Rows++
		}
		for _, e := range rows {
			of := make(map[string]int)
			for i := range e.found {
				if f := &e.found[i]; f.place == place {
					of[f.stream]++
				}
			}
			for stream, n := range of {
				add(stream, n)
			}
			switch {
			case place == PlaceResult && e.at > 0:
				add(results, 1)
			case place == PlaceBatch:
				for _, b := range e.batches {
					add(b.Provider, 1)
				}
			}
		}
		for _, c := range order {
			r.Places = append(r.Places, *c)
		}
	}
}

// summary returns the report in a line, for the audit.
func (r *Report) summary() string {
	parts := []string{"rows " + rowsText(r.Rows)}
	for _, c := range r.Places {
		if c.Stays == "" {
			parts = append(parts, fmt.Sprintf("%s %d", c.Place, c.Messages))
		}
	}
	return strings.Join(parts, "; ")
}

// placeText says what each place holds, for people.
var placeText = map[Place]string{
	PlaceInput: "rows", PlaceLetters: "dead letters", PlaceJournal: "kept replies", PlaceReplies: "stored replies (STAGE_DEDUPE)",
	PlaceObject: "large results", PlaceLane: "records of batches", PlaceBatch: "batches at the provider", PlaceCalls: "prompts and answers of calls",
	PlaceEvents: "keys, hashes and errors of rows", PlaceResult: "results",
}

// Write prints the report for people.
func (r *Report) Write(w io.Writer) {
	done := len(r.Erased) > 0
	switch {
	case done:
		terminal.PrintLine(w,
			"%s erased: %s", terminal.Plural(len(r.Erased), "row"), rowsText(r.Erased))
	case len(r.Rows) == 0:
		terminal.PrintLine(w, "no row to erase")
	default:
		terminal.PrintLine(w,
			"%s to erase: %s", terminal.Plural(len(r.Rows), "row"), rowsText(r.Rows))
	}
	if r.Before > 0 {
		terminal.PrintLine(w, "%d of them were erased before", r.Before)
	}
	if r.Unfinished > 0 && !done {
		terminal.PrintLine(w,
			"%d of them were begun by an erasure that did not finish", r.Unfinished)
	}
	table := terminal.NewTable(w)
	for _, c := range r.Places {
		stays := ""
		if c.Stays != "" {
			stays = "stays: " + c.Stays
		}
		table.Line("  "+c.Stream, placeText[c.Place], fmt.Sprintf("%d of %s", c.Messages, terminal.Plural(c.Rows, "row")), stays)
	}
	_ = table.Flush() // nowhere left to report it
	if r.Shared > 0 {
		terminal.PrintLine(w,
			"note: %s served other rows, too: request and answer go as a whole, and the other "+
				"rows keep their results",
			terminal.Plural(r.Shared, "call"))
	}
	for _, note := range r.Notes {
		terminal.PrintLine(w, "note: %s", note)
	}
	const most = 20
	for _, pending := range r.Pending[:min(len(r.Pending), most)] {
		terminal.PrintLine(w,
			"not yet: row %d of partition %d: %s", pending.Row, pending.Partition, pending.Why)
	}
	if more := len(r.Pending) - most; more > 0 {
		terminal.PrintLine(w, "not yet: and %d more rows", more)
	}
	for _, failed := range r.Failed {
		terminal.PrintLine(w, "failed: %s", failed)
	}
}

// rowsText lists rows for people, as far as a line goes.
func rowsText(rows []uint64) string {
	const most = 8
	texts := make([]string, 0, most)
	for _, row := range rows[:min(len(rows), most)] {
		texts = append(texts, strconv.FormatUint(row, 10))
	}
	text := strings.Join(texts, ", ")
	if more := len(rows) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
