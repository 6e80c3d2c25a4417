package job

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/ops/stored"
	"github.com/llm-stage/stage/llm"
	"pgregory.net/rapid"
)

// failedResult is the result of a row that failed.
func failedResult(seq uint64, reason, text string) stored.Result {
	body, err := json.Marshal(map[string]any{"llm_response_error": map[string]any{"reason": reason, "error": text, "errors": []string{}}})
	if err != nil {
		panic(err) // strings
	}
	return stored.Result{Seq: seq, Failed: true, Body: body}
}

func TestFailedRowsAreReportedByReason(t *testing.T) {
	var f failures
	add := func(number int64, r stored.Result) (first bool) {
		rows := f.add(r)
		if rows != nil {
			rows.number = number
		}
		return rows != nil
	}
	if !add(2, failedResult(12, "invalid_row", "line 3: 3 columns,\nthe header has 2\x1b[2J")) {
		t.Error("the first of a reason is not said to be")
	}
	for number := range int64(3) {
		if first := add(4+number, failedResult(14, "refused", strings.Repeat("no ", 400))); first != (number == 0) {
			t.Errorf("row %d: the first: %v", 4+number, first)
		}
	}
	add(9, stored.Result{Seq: 19, Failed: true, Body: []byte("no result of ours")})
	var b strings.Builder
	f.print(&b, false, func(reason llm.Reason, _ bool) string { return "show " + string(reason) })
	want := "  refused: 3 rows, the first is row 4 (sequence 14)\n    " + strings.Repeat("no ", 166) + "no" + "\n    show refused\n" +
		"  invalid_row: 1 row, which is row 2 (sequence 12)\n    line 3: 3 columns, the header has 2 [2J\n    show invalid_row\n" +
		"  other: 1 row, which is row 9 (sequence 19)\n    the result does not say why\n    show other\n"
	if got := b.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestReasonsOfFailedRowsAreBounded(t *testing.T) {
	var f failures
	for i := range 10_000 {
		f.add(failedResult(1, fmt.Sprint("reason", i), "why"))
	}
	if n := len(f.byReason); n != reasonsMax+1 {
		t.Errorf("got %d reasons, want %d", n, reasonsMax+1)
	}
	if other := f.byReason[otherReasons]; other.rows != 10_000-reasonsMax {
		t.Errorf("%d rows of other reasons, want %d", other.rows, 10_000-reasonsMax)
	}
}

func TestMoreFailedRowsThanAllowedAreAnError(t *testing.T) {
	for _, tt := range []struct {
		failed, rows int64
		allowed      string // empty: any number
		want         string // empty: no error
	}{
		{5, 5, "", ""},
		{0, 0, "0", ""},
		{0, 5, "0", ""},
		{1, 5, "0", "1 of 5 rows failed, --fail-on-error allows none"},
		{1, 1, "0", "1 of 1 row failed, --fail-on-error allows none"},
		{1, 5, "20", ""},
		{2, 5, "20", "2 of 5 rows failed, --fail-on-error allows 20% of them"},
		{5, 5, "100", ""},
		{7, 1000, "0.7", ""},
		{8, 1000, "0.7", "8 of 1000 rows failed, --fail-on-error allows 0.7% of them"},
	} {
		var allowed *big.Rat
		if tt.allowed != "" {
			allowed, _ = new(big.Rat).SetString(tt.allowed)
		}
		err, got := checkFailed(tt.failed, tt.rows, allowed), ""
		if err != nil {
			got = err.Error()
			if _, ok := errors.AsType[*FailedRowsError](err); !ok {
				t.Errorf("got %T", err)
			}
		}
		if got != tt.want {
			t.Errorf("%d of %d with %q: got %q, want %q", tt.failed, tt.rows, tt.allowed, got, tt.want)
		}
	}
}

func TestASharePermitsSoManyRowsExactly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.Int64Range(1, 1<<40).Draw(t, "rows")
		millionths := rapid.Int64Range(0, 100_000_000).Draw(t, "millionths of a percent")
		allowed := big.NewRat(millionths, 1_000_000)
		most := new(big.Int).Mul(big.NewInt(rows), big.NewInt(millionths))
		most.Quo(most, big.NewInt(100_000_000))
		if err := checkFailed(most.Int64(), rows, allowed); err != nil {
			t.Fatalf("%v rows of %d: %v", most, rows, err)
		}
		if err := checkFailed(most.Int64()+1, rows, allowed); most.Int64() < rows && err == nil {
			t.Fatalf("%v+1 rows of %d: no error", most, rows)
		}
	})
}
