package rowfile

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

// A batch file is JSONL whose requests have names of their own. What is wrong with one line
// is the fault of that row, which keeps its name in front.
func TestRequestsOfABatchHaveNames(t *testing.T) {
	long := strings.Repeat("x", 600)
	in := strings.Join([]string{
		`{"custom_id":"a","body":{}}`,
		``,
		`{"body":{"p":"` + long + `"},"custom_id":"a"}`,
		`{"body":{}}`,
		`{"custom_id":7}`,
		`not JSON`,
		`{"custom_id":"b"}`,
	}, "\n")
	r := NewReader(strings.NewReader(in), Layout{Format: FormatBatch}, 1<<20)
	var got []string
	for {
		row, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if row.Fault == nil {
			got = append(got, fmt.Sprintf("%d %s", row.Line, row.Body))
			continue
		}
		got = append(got, fmt.Sprintf("%v %t %s", row.Fault, row.Fault.Twice, BatchID(row.Fault.Head)))
	}
	want := []string{
		`1 {"custom_id":"a","body":{}}`,
		`line 3: the custom_id "a" is that of line 1: it must be unique in the file true "a"`,
		`line 4: the request has no text "custom_id" false `,
		`line 5: the request has no text "custom_id" false `,
		`6 not JSON`,
		`7 {"custom_id":"b"}`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
