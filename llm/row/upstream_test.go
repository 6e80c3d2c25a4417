package row

import (
	"errors"
	"strings"
	"testing"

	"github.com/llm-stage/stage/llm"
)

func TestARowOfAnotherStageKeepsItsFields(t *testing.T) {
	for _, c := range []struct{ field, stage, row, want string }{
		{"F", "a", `{}`, `{`},
		{"F", "a", `{"x":1,"y":2}`, `{"x":1,"y":2,`},
		{"F", "a", `{"F":1}`, `{"a_F":1,`},
		{
			"F", "a", `{"x":1, "F" : 1.10 ,"F_usage":null, "y":2,"F_model":"m","F_error":{"reason":"x"}}`,
			`{"x":1,"a_F":1.10,"a_F_usage":null,"y":2,"a_F_model":"m","a_F_error":{"reason":"x"},`,
		},
		{"F", "a", `{"\u0046":"\u00e9","F\u005fmodel":3}`, `{"a_F":"\u00e9","a_F_model":3,`},
		{"F", "a", `{"F_":1,"FF":2,"F_usage_":4}`, `{"F_":1,"FF":2,"F_usage_":4,`},
		// A name is taken by the same stage's fields of an earlier pass, or by the row's own.
		{"F", "a", `{"a_F":0,"F":1,"F_usage":2}`, `{"a_F":0,"a_F_2":1,"a_F_2_usage":2,`},
		{"F", "a", `{"F":1,"F_usage":2,"a_F_usage":0}`, `{"a_F_2":1,"a_F_2_usage":2,"a_F_usage":0,`},
		{"F", "a", `{"a_F":0,"a_F_2_model":0,"a_F_x":0,"a_F_3x":0,"F":1}`, `{"a_F":0,"a_F_2_model":0,"a_F_x":0,"a_F_3x":0,"a_F_3":1,`},
		{"F", "a", `{"a_F_2":0,"F":1}`, `{"a_F_2":0,"a_F":1,`},
		// STAGE_F may be a field of the result itself.
		{"model", "model", `{"model":1}`, `{"model_model_2":1,`},
		{"F", "b", `{"F":1,"F":2}`, `{"b_F":1,"b_F":2,`},
	} {
		f := mustFormat(t, c.field, Provenance{})
		f.Replaced = func(name string) { t.Errorf("%s: %s is replaced", c.row, name) }
		row := mustRow(t, c.row)
		row.KeepAs(c.stage)
		if got, want := string(f.AppendSuccess(nil, row, &Answer{Text: "hi"})), c.want+strings.ReplaceAll(added, `"F`, `"`+c.field); got != want {
			t.Errorf("%s\n got %s\nwant %s", c.row, got, want)
		}
		failed := f.AppendError(nil, row, &llm.Error{Reason: "x", Err: errors.New("e")}, nil, 0)
		if want := c.want + `"` + c.field + `_error":{"reason":"x",`; !strings.HasPrefix(string(failed), want) {
			t.Errorf("%s\n got %s\nwant %s …", c.row, failed, want)
		}
		again, ok := f.AppendErrorAgain(nil, row, failed, nil, 0)
		if !ok || string(again) != string(failed) {
			t.Errorf("%s: made again\n got %s\nwant %s", c.row, again, failed)
		}
		if c.stage == "a" { // the answer is found, whatever the row has
			if a, ok := ReadAnswer(f.AppendSuccess(nil, row, &Answer{Text: "hi"}), false); !ok || a.Text != "hi" {
				t.Errorf("%s: the answer was not read back: %v", c.row, a)
			}
		}
	}
}

func TestAMemberThatIsReplacedIsReported(t *testing.T) {
	f := mustFormat(t, "F", Provenance{})
	var names []string
	f.Replaced = func(name string) { names = append(names, name) }
	f.AppendSuccess(nil, mustRow(t, `{"x":1,"F_error":0,"F_usage":1,"\u0046":2}`), &Answer{})
	f.AppendError(nil, mustRow(t, `{"F_error":0,"F":2}`), &llm.Error{Err: errors.New("e")}, nil, 0)
	f.AppendSuccess(nil, mustRow(t, `{"x":1}`), &Answer{})
	if got, want := strings.Join(names, " "), "F_error F_usage F F_error"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
