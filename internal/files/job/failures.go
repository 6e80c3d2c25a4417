package job

import (
	"cmp"
	"fmt"
	"io"
	"math/big"
	"slices"

	"github.com/llm-stage/stage/internal/excerpt"
	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/internal/terminal"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/row"
)

// otherReasons counts failed rows that state no reason. It also counts rows of further
// reasons once reasonsMax are known.
const otherReasons llm.Reason = "other"

// reasonsMax bounds the reasons that are counted.
const reasonsMax = 64

// failures are the failed rows of a job by reason, each with the first one as an example.
// The zero value has none. It is not safe for concurrent use: the goroutine that writes
// the results has it.
type failures struct {
	byReason map[llm.Reason]*failedRows
}

// failedRows are the rows that failed for one reason.
type failedRows struct {
	reason   llm.Reason
	rows     int64
	number   int64  // which row of the input the first one is, from 1
	sequence uint64 // sequence of the first one in the input stream
	text     string // why the first one failed, on one line
}

// add counts a failed row. If it is the first of its reason, the rows of that reason are
// returned, and the caller sets the number; otherwise nil.
func (f *failures) add(r stored.Result) (first *failedRows) {
	reason, text := row.ReadFailure(r.Body)
	reason = cmp.Or(reason, otherReasons)
	if f.byReason[reason] == nil && len(f.byReason) >= reasonsMax {
		reason = otherReasons
	}
	if known := f.byReason[reason]; known != nil {
		known.rows++
		return nil
	}
	if f.byReason == nil {
		f.byReason = make(map[llm.Reason]*failedRows)
	}
	text = cmp.Or(terminal.OneLine(excerpt.Of(text)), "the result does not say why")
	first = &failedRows{reason: reason, rows: 1, sequence: r.Seq, text: text}
	f.byReason[reason] = first
	return first
}

// print prints the failed rows by reason, the most frequent first:
//
//	api_call_failed: 3 rows, the first is row 70 (sequence 70)
//	  openai: 400 invalid_request_error: injected failure
//	  all of them: stage tail --reason api_call_failed --job reviews
//
// rest returns the last line of a reason. repaired says that some rows of the job were
// repaired since they had failed. rest may be nil.
func (f *failures) print(
	w io.Writer, repaired bool, rest func(reason llm.Reason, repaired bool) string,
) {
	kinds := make([]*failedRows, 0, len(f.byReason))
	for _, kind := range f.byReason {
		kinds = append(kinds, kind)
	}
	slices.SortFunc(kinds, func(a, b *failedRows) int {
		return cmp.Or(cmp.Compare(b.rows, a.rows), cmp.Compare(a.number, b.number))
	})
	for _, kind := range kinds {
		which := "the first is"
		if kind.rows == 1 {
			which = "which is"
		}
		terminal.PrintLine(w, "  %s: %s, %s row %d (sequence %d)", kind.reason,
			terminal.Plural(int(kind.rows), "row"), which, kind.number, kind.sequence)
		terminal.PrintLine(w, "    %s", kind.text)
		if rest != nil {
			terminal.PrintLine(w, "    %s", rest(kind.reason, repaired))
		}
	}
}

// FailedRowsError ends a job if more of its rows have failed than were allowed. All
// results are written all the same.
type FailedRowsError struct {
	Failed, Rows int64
	Allowed      *big.Rat // share of the rows that may fail, in percent
}

// Error implements error.
func (e *FailedRowsError) Error() string {
	allowed := "none"
	if e.Allowed.Sign() > 0 {
		allowed = e.Allowed.FloatString(allowedDigits(e.Allowed)) + "% of them"
	}
	return fmt.Sprintf("%d of %s failed, --fail-on-error allows %s", e.Failed,
		terminal.Plural(int(e.Rows), "row"), allowed)
}

// allowedDigits returns how many decimals a share needs, for example 1 for 12.5%.
func allowedDigits(share *big.Rat) int {
	digits, _ := share.FloatPrec()
	return digits
}

// checkFailed returns a [FailedRowsError] if more than the allowed share of the rows has
// failed, in percent. A nil share allows any number. The shares are compared as
// fractions: with floating point, 7 of 100 rows may be 7.000000000000001%.
func checkFailed(failed, rows int64, allowed *big.Rat) error {
	if allowed == nil || failed == 0 || big.NewRat(100*failed, rows).Cmp(allowed) <= 0 {
		return nil
	}
	return &FailedRowsError{Failed: failed, Rows: rows, Allowed: allowed}
}
