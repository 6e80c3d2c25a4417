package row

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/llm"
	"pgregory.net/rapid"
)

// trickyFields are names of which one begins with another, or looks like a field that another adds.
var trickyFields = []string{"F", "a", "F_usage", "F_error", "é\"", `\`, "x\ny"}

// drawFormats draws the format that a result was written in and the present one, and a row with members named like fields
// of both.
func drawFormats(t *rapid.T) (was, is *Format, row *Row) {
	var formats [2]*Format
	var names []string
	for i := range formats {
		field := rapid.SampledFrom(trickyFields).Draw(t, "field")
		from := Provenance{
			TemplateHash:   rapid.SampledFrom([]string{"0a", "0b"}).Draw(t, "template"),
			TemplateSource: rapid.SampledFrom([]string{"", "p.j2"}).Draw(t, "source"),
		}
		var err error
		if formats[i], err = NewFormat(field, from); err != nil {
			t.Fatal(err)
		}
		formats[i].Keep = llm.Keep(rapid.Byte().Draw(t, "keep")) & rapid.SampledFrom([]llm.Keep{0, 1<<len(llm.KeepNames()) - 1}).Draw(t, "kept")
		names = append(names, field, field+"_error", field+"_usage", field+"_model", field+"_reasoning", field+"_id")
	}
	return formats[0], formats[1], mustParse(t, drawObject(t, 2, names...))
}

func drawAnswer(t *rapid.T) *Answer {
	text := rapid.StringN(0, 20, -1).Draw(t, "text") + rapid.SampledFrom([]string{"", "\"", "\n", "\xff", `\u00e9`, "\x01", "{}"}).Draw(t, "tail")
	a := &Answer{Text: text, Model: rapid.SampledFrom([]string{"", "m", "mö\"del"}).Draw(t, "model"), VariablesHash: "hash"}
	if rapid.Bool().Draw(t, "validated") {
		a.Text, a.Value = "", json.RawMessage(rapid.SampledFrom([]string{`"s"`, `null`, `{"F":[1.50,{}]}`, `12345678901234567890`, `[]`}).Draw(t, "value"))
	}
	if rapid.Bool().Draw(t, "has parts") {
		a.Kept = map[string]json.RawMessage{"reasoning": json.RawMessage(`"a\nb"`), "raw": json.RawMessage(`{"F":1}`), "id": json.RawMessage("null")}
	}
	if rapid.Bool().Draw(t, "counted") {
		a.Usage = &llm.Usage{PromptTokens: rapid.Int64Min(0).Draw(t, "prompt"), TotalTokens: 7}
		if rapid.Bool().Draw(t, "more") {
			a.Usage.CachedTokens, a.Usage.ReasoningTokens = new(int64), new(rapid.Int64Min(0).Draw(t, "reasoning"))
			a.Usage.Cost = new(rapid.Float64Min(0).Draw(t, "cost"))
		}
	}
	return a
}

func TestAResultIsMadeAgainFromItsBody(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		was, is, row := drawFormats(t)
		a := drawAnswer(t)
		body := was.AppendSuccess(nil, row, a)
		read, ok := ReadAnswer(body, len(a.Value) > 0)
		if !ok {
			t.Fatalf("not read: %q", body)
		}
		if read.Keep != was.Keep {
			t.Fatalf("the parts %v are read as %v: %q", was.Keep, read.Keep, body)
		}
		read.VariablesHash, read.Keep = a.VariablesHash, 0
		for name := range a.Kept { // what was not kept can't be made again
			if part, _ := llm.ParseKeep(name); !was.Keep.Has(part) {
				delete(a.Kept, name)
			}
		}
		if got, want := is.AppendSuccess(nil, row, read), is.AppendSuccess(nil, row, a); string(got) != string(want) {
			t.Fatalf("from %q\n got %q\nwant %q", body, got, want)
		}
	})
}

func drawFailure(t *rapid.T) (fault *llm.Error, attempts []auditlog.AttemptError) {
	long := func(label string) string {
		return strings.Repeat("é", rapid.SampledFrom([]int{0, 10, 300, 2000}).Draw(t, label))
	}
	fault = &llm.Error{Provider: "p", Status: 400, Class: llm.Permanent, Reason: llm.ReasonTruncated, Err: errors.New("no " + long("error")), Facts: map[string]any{
		"partial": long("partial"), "status_code": 400, "response": json.RawMessage(`{"a": "` + long("response") + `"}`),
		"keys": []string{"<k>", long("key")}, "none": nil,
	}}
	for i := range rapid.IntRange(0, 20).Draw(t, "attempts") {
		attempts = append(attempts, auditlog.AttemptError{Attempt: i + 1, Provider: "p", Class: "transient", Error: long("attempt")})
	}
	return fault, attempts
}

func TestAnErrorResultIsMadeAgainFromItsBody(t *testing.T) {
	sizes := rapid.SampledFrom([]int{0, 100, 600, 1500, 3000, 6000, 20_000})
	rapid.Check(t, func(t *rapid.T) {
		was, is, row := drawFormats(t)
		fault, attempts := drawFailure(t)
		before, now := sizes.Draw(t, "bytes before"), sizes.Draw(t, "bytes now")
		body := was.AppendError(nil, row, fault, attempts, before)
		got, ok := is.AppendErrorAgain(nil, row, body, attempts, now)
		if !ok || !json.Valid(got) {
			t.Fatalf("from %q: %v, %q", body, ok, got)
		}
		if was.Field() == is.Field() && before == now && string(got) != string(body) {
			t.Fatalf("nothing changed\n got %q\nwant %q", got, body)
		}
		if whole := string(is.AppendError(nil, row, fault, attempts, 0)); before == 0 && string(got) != whole && (now == 0 || len(whole) <= now) {
			t.Fatalf("from all of it\n got %q\nwant %q", got, whole)
		}
		if now >= 600 && len(got) > now {
			t.Fatalf("%d bytes, at most %d fit: %q", len(got), now, got)
		}
		members := rawMembers(t, got)
		if last := members[len(members)-1]; last.key != is.Field()+"_error" || !strings.HasPrefix(last.raw, `{"reason":"truncated","error":"p: 400: no `) {
			t.Fatalf("ends with %q: %q", last.key, last.raw)
		}
	})
}

func TestAnErrorWithoutItsRowStaysSo(t *testing.T) {
	f := mustFormat(t, "answer", Provenance{})
	const object = `{"reason":"refused","error":"no","errors":[]}`
	for _, c := range []struct{ row, body, want string }{
		{`{"a":1}`, `{"F_error":` + object + `}`, `{"answer_error":` + object + `}`},
		{`{}`, `{"F_error":` + object + `}`, `{"answer_error":` + object + `}`},
		{`{"F_error":1}`, `{"F_error":` + object + `}`, `{"F_error":1,"answer_error":` + object + `}`},
		{`{"a":1}`, `{"a":1,"F_error":` + object + `}`, `{"a":1,"answer_error":` + object + `}`},
	} {
		got, ok := f.AppendErrorAgain(nil, mustRow(t, c.row), []byte(c.body), nil, 0)
		if !ok || string(got) != c.want {
			t.Errorf("row %s, error %s\n got %s\nwant %s", c.row, c.body, got, c.want)
		}
	}
}

func TestForeignBodiesAreNoResults(t *testing.T) {
	f := mustFormat(t, "F", Provenance{})
	whole := string(f.AppendSuccess(nil, mustRow(t, `{"a":1}`), &Answer{Text: "hi"}))
	for _, body := range []string{
		``, `null`, `{}`, `{"F":"hi"}`, whole + "}", whole[:len(whole)-1] + `,"b":2}`,
		strings.Replace(whole, `"F_usage":null`, `"F_usage":"many"`, 1), strings.Replace(whole, `"F_model"`, `"G_model"`, 1),
		strings.Replace(whole, `"F":"hi"`, `"F":{}`, 1),
	} {
		if a, ok := ReadAnswer([]byte(body), false); ok {
			t.Errorf("%s: read as %+v", body, a)
		}
	}
	for _, body := range []string{``, `[]`, `{}`, whole, `{"error":{}}`, `{"F_error":"no"}`, `{"F_error":{},"a":1}`} {
		if got, ok := f.AppendErrorAgain(nil, mustRow(t, `{}`), []byte(body), nil, 0); ok {
			t.Errorf("%s: made into %s", body, got)
		}
	}
}
