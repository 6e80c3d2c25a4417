package row

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm"
	"pgregory.net/rapid"
)

func mustFormat(tb testing.TB, field string, from Provenance) *Format {
	tb.Helper()
	f := must.Value(NewFormat(field, from))(tb)
	return f
}

// added is what a success of the answer {Text: "hi"} adds where nothing is known.
const added = `"F":"hi","F_usage":null,"F_template_hash":null,"F_variables_hash":null,"F_template_source":null,"F_lookup_hash":null,"F_lookup_source":null,"F_model":null}`

func TestSuccessKeepsTheRowAndAddsFieldsLast(t *testing.T) {
	f := mustFormat(t, "F", Provenance{})
	for row, want := range map[string]string{
		`{}`:                                  `{`,
		"  { \n }  ":                          `{`,
		`{"a":1}`:                             `{"a":1,`,
		"\t{ \"b\" :  1.10 , \"a\": [ 1 ] } ": `{"b" :  1.10 , "a": [ 1 ],`,
		`{"F":1}`:                             `{`,
		`{"F":1,"a":2}`:                       `{"a":2,`,
		`{"a":1,"F":{"x":[]}}`:                `{"a":1,`,
		`{"a":1,"F":2,"b":3}`:                 `{"a":1,"b":3,`,
		`{"a":1 , "F":2 , "F":3 , "b":3}`:     `{"a":1,"b":3,`,
		`{"F_error":{"reason":"x"},"a":1,"F_usage":1,"F_model":"m","b":2,"c":3,"F_lookup_hash":0}`: `{"a":1,"b":2,"c":3,`,
		`{"\u0046":1,"a":2,"F\u005fmodel":3}`:                                                      `{"a":2,`,
		`{"F_":1,"FF":2,"f":3,"F_usage_":4,"xF":5}`:                                                `{"F_":1,"FF":2,"f":3,"F_usage_":4,"xF":5,`,
		`{"a":{"F":1}}`: `{"a":{"F":1},`,
		`{"a":1,"a":2}`: `{"a":1,"a":2,`,
	} {
		want += added
		if got := string(f.AppendSuccess(nil, mustRow(t, row), &Answer{Text: "hi"})); got != want {
			t.Errorf("%s\n got %s\nwant %s", row, got, want)
		}
	}
}

func TestSuccessWritesEveryField(t *testing.T) {
	f := mustFormat(t, `my "field"`, Provenance{
		TemplateHash: llm.Hash([]byte("{{ row.a }}")), TemplateSource: `prompts/"p".j2`,
		LookupHash: llm.Hash([]byte(`{"a":1}`)), LookupSource: "lookups/a.json",
	})
	row := mustRow(t, `{"a":1,"my \"field\"_error":{}}`)
	got := string(f.AppendSuccess([]byte("before "), row, &Answer{
		Text: "not used", Value: json.RawMessage(`{"stars": 4}`), VariablesHash: row.VariablesHash(), Model: "m-1",
		Usage: &llm.Usage{PromptTokens: 1, CompletionTokens: 2, TotalTokens: 3, CachedTokens: new(int64), CacheWriteTokens: new(int64(1)), CacheWrite1hTokens: new(int64), ReasoningTokens: new(int64(5)), Cost: new(0.00012)},
	}))
	want := `before {"a":1,"my \"field\"":{"stars": 4},` +
		`"my \"field\"_usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3,"cached_tokens":0,"cache_write_tokens":1,"cache_write_1h_tokens":0,"reasoning_tokens":5,"cost":0.00012},` +
		`"my \"field\"_template_hash":"` + llm.Hash([]byte("{{ row.a }}")) + `","my \"field\"_variables_hash":"` + row.VariablesHash() + `",` +
		`"my \"field\"_template_source":"prompts/\"p\".j2","my \"field\"_lookup_hash":"` + llm.Hash([]byte(`{"a":1}`)) + `",` +
		`"my \"field\"_lookup_source":"lookups/a.json","my \"field\"_model":"m-1"}`
	if got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
}

func TestResponseFieldMustBeAName(t *testing.T) {
	for _, field := range []string{"", "\xff"} {
		if _, err := NewFormat(field, Provenance{}); err == nil {
			t.Errorf("%q is taken", field)
		}
	}
}

func TestErrorKeepsTheRowAndAddsTheReason(t *testing.T) {
	f := mustFormat(t, "F", Provenance{})
	fault := &llm.Error{
		Provider: "openai", Status: 500, Class: llm.Transient, Reason: llm.ReasonAPICallFailed, Err: errors.New(`it said "no"`),
		Facts: map[string]any{"status_code": 500, "provider_code": nil, "response": json.RawMessage(`{"a": 1}`), "broken": json.RawMessage("{"), "keys": []string{"a"}, "errors": 1},
	}
	attempts := []auditlog.AttemptError{
		{Attempt: 1, Provider: "openai", Class: "transient", StatusCode: 500, Error: "one"},
		{Attempt: 2, Provider: "mock", Error: "two"},
	}
	const failure = `"F_error":{"reason":"api_call_failed","error":"openai: 500: it said \"no\"",` +
		`"broken":"{","keys":["a"],"provider_code":null,"response":{"a": 1},"status_code":500,` +
		`"errors":[{"attempt":1,"provider":"openai","class":"transient","status_code":500,"error":"one"},{"attempt":2,"provider":"mock","class":null,"status_code":null,"error":"two"}]}}`
	for row, want := range map[string]string{
		`{}`:                        `{`,
		`{"a":1}`:                   `{"a":1,`,
		`{"F_error":1,"F":2,"a":3}`: `{"F":2,"a":3,`,
		`{"a":1,"F_\u0065rror":{},"F_usage":null}`: `{"a":1,"F_usage":null,`,
	} {
		want += failure
		if got := string(f.AppendError(nil, mustRow(t, row), fault, attempts, 0)); got != want {
			t.Errorf("%s\n got %s\nwant %s", row, got, want)
		}
	}
	_, err := Parse([]byte("nonsense"))
	invalid, _ := errors.AsType[*llm.Error](err)
	want := `{"F_error":{"reason":"invalid_row","error":"row: not a JSON object","body_preview":"nonsense","errors":[]}}`
	if got := string(f.AppendError(nil, nil, invalid, nil, 0)); got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
	// An object that is no row for another reason: a header, or what the provider can't be asked.
	refused := &llm.Error{Reason: llm.ReasonInvalidRow, Err: errors.New("no"), Facts: map[string]any{"x": 1}}
	want = `{"a":1,"F_error":{"reason":"invalid_row","error":"no","body_preview":"{\"a\":1}","x":1,"errors":[]}}`
	if got := string(f.AppendError(nil, mustRow(t, `{"a":1}`), refused, nil, 0)); got != want || len(refused.Facts) != 1 {
		t.Errorf("facts %v\n got %s\nwant %s", refused.Facts, got, want)
	}
}

func TestErrorFitsTheServersMaximum(t *testing.T) {
	f := mustFormat(t, "F", Provenance{})
	row := mustRow(t, `{"text":"`+strings.Repeat("é", 2000)+`"}`)
	fault := &llm.Error{
		Reason: llm.ReasonTruncated, Err: errors.New(strings.Repeat("e", 3000)),
		Facts: map[string]any{"partial": strings.Repeat("\x01", 9000), "n": 1, "raw": json.RawMessage(`"` + strings.Repeat("x", 600) + `"`), "keys": slices.Repeat([]string{strings.Repeat("k", 600)}, 20)},
	}
	attempts := slices.Repeat([]auditlog.AttemptError{{Attempt: 1, Error: strings.Repeat("a", 700)}}, 30)
	type failure struct {
		Reason      string
		Error       string
		Partial     *string
		BodyPreview *string `json:"body_preview"`
		Errors      []any
	}
	for _, c := range []struct {
		max                   int
		row, partial, preview bool
		errors                int
	}{
		{0, true, true, false, 30},
		{1 << 20, true, true, false, 30},
		{50_000, true, true, false, 8}, // shortened
		{15_000, false, true, true, 8}, // without the row
		{5_000, false, false, false, 0},
		{10, false, false, false, 0},
	} {
		body := f.AppendError([]byte("before"), row, fault, attempts, c.max)[len("before"):]
		if c.max >= 500 && len(body) > c.max {
			t.Errorf("%d: %d bytes", c.max, len(body))
		}
		var got struct {
			Text  *string
			Error failure `json:"F_error"`
		}
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatalf("%d: %v: %.200s", c.max, err, body)
		}
		if (got.Text != nil) != c.row || (got.Error.Partial != nil) != c.partial || (got.Error.BodyPreview != nil) != c.preview ||
			len(got.Error.Errors) != c.errors || got.Error.Reason != "truncated" || got.Error.Error == "" {
			t.Errorf("%d: %.300s", c.max, body)
		}
		if p := got.Error.BodyPreview; p != nil && (len(*p) > 500 || !strings.HasPrefix(string(row.Body()), *p)) {
			t.Errorf("%d: preview %q", c.max, *p)
		}
	}
	if len(fault.Facts["partial"].(string)) != 9000 || len(attempts[0].Error) != 700 {
		t.Error("shortening changed what it was given")
	}
}

func TestSizeErrorsNameBothSizes(t *testing.T) {
	for _, e := range []*llm.Error{ResultTooLarge(2_000_000, 1_048_576, ", or raise it"), TooLarge(2_000_000, 1_048_576, []byte("{"), true)} {
		if text := e.Error(); !strings.Contains(text, "2000000") || !strings.Contains(text, "1048576") || e.Class != llm.Permanent {
			t.Errorf("%s, class %s", text, e.Class)
		}
	}
}

// rawMember is a member of an object as it is written.
type rawMember struct{ key, raw string }

// rawMembers takes an object apart by encoding/json.
func rawMembers(tb interface{ Fatalf(string, ...any) }, body []byte) (all []rawMember) {
	d := json.NewDecoder(bytes.NewReader(body))
	if _, err := d.Token(); err != nil {
		tb.Fatalf("%q: %v", body, err)
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			tb.Fatalf("%q: %v", body, err)
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			tb.Fatalf("%q: %v", body, err)
		}
		all = append(all, rawMember{key.(string), string(raw)}) //nolint:forcetypeassert // keys are strings
	}
	return all
}

// checkSplice compares a result with the row taken apart and put together again.
func checkSplice(tb interface{ Fatalf(string, ...any) }, f *Format, row *Row, success bool) {
	var body []byte
	var names []string
	if success {
		body = f.AppendSuccess(nil, row, &Answer{Text: "hi \xff\n\"", Usage: &llm.Usage{TotalTokens: 1}})
		for _, suffix := range []string{"", "_usage", "_template_hash", "_variables_hash", "_template_source", "_lookup_hash", "_lookup_source", "_model"} {
			names = append(names, f.Field()+suffix)
		}
	} else {
		body = f.AppendError(nil, row, &llm.Error{Reason: llm.ReasonRefused, Err: errors.New("no")}, nil, 0)
		names = append(names, f.Field()+"_error")
	}
	if !json.Valid(body) || !utf8.Valid(body) {
		tb.Fatalf("%q: no JSON: %q", row.Body(), body)
	}
	var want []rawMember
	for _, m := range rawMembers(tb, row.Body()) {
		if !slices.Contains(names, m.key) && m.key != f.Field()+"_error" {
			want = append(want, m)
		}
	}
	got := rawMembers(tb, body)
	kept, tail := got[:len(got)-len(names)], got[len(got)-len(names):]
	if len(kept) != len(want) || len(want) > 0 && !reflect.DeepEqual(kept, want) {
		tb.Fatalf("%q: kept %q, want %q", row.Body(), kept, want)
	}
	for i, m := range tail {
		if m.key != names[i] {
			tb.Fatalf("%q: field %d is %q, want %q", row.Body(), i, m.key, names[i])
		}
	}
}

func TestResultIsTheRowTakenApartAndPutTogether(t *testing.T) {
	fields := []string{"F", "a", "F_usage", "é\"", `\`}
	rapid.Check(t, func(t *rapid.T) {
		field := rapid.SampledFrom(fields).Draw(t, "field")
		f, err := NewFormat(field, Provenance{})
		if err != nil {
			t.Fatalf("%v", err)
		}
		row := mustParse(t, drawObject(t, 2, field, field+"_error", field+"_usage", field+"_model", field+"_variables_hash"))
		checkSplice(t, f, row, rapid.Bool().Draw(t, "success"))
	})
}

func FuzzResult(f *testing.F) {
	f.Add([]byte(`{"a":1,"F":2}`), "F")
	f.Add([]byte(`{ "a":[] , "\u0046_error":{} , "F_usage" : 1e5 } `), "F")
	f.Add([]byte(`{"é\"_model":"\ud800"}`), `é"`)
	f.Fuzz(func(t *testing.T, body []byte, field string) {
		row, err := Parse(body)
		if err != nil || strings.Contains(string(body), `\ud`) || strings.Contains(string(body), `\uD`) {
			return // to encoding/json, which the model uses, all lone surrogates are equal
		}
		format, err := NewFormat(field, Provenance{})
		if err != nil {
			return
		}
		checkSplice(t, format, row, true)
		checkSplice(t, format, row, false)
	})
}

func ExampleFormat() {
	row, err := Parse([]byte(`{"id":7,"price":1.10,"llm_response":"an old one"}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	format, err := NewFormat("llm_response", Provenance{})
	if err != nil {
		fmt.Println(err)
		return
	}
	failed := &llm.Error{Reason: llm.ReasonRefused, Class: llm.Permanent, Err: errors.New("the model refused")}
	fmt.Printf("%.55s…\n", format.AppendSuccess(nil, row, &Answer{Text: "a kettle"}))
	fmt.Printf("%s\n", format.AppendError(nil, row, failed, nil, 0))
	// Output:
	// {"id":7,"price":1.10,"llm_response":"a kettle","llm_res…
	// {"id":7,"price":1.10,"llm_response":"an old one","llm_response_error":{"reason":"refused","error":"the model refused","errors":[]}}
}

func TestAResultIsPutIntoItsRowWithoutAllocating(t *testing.T) {
	format, row := mustFormat(t, "llm_response", Provenance{}), mustRow(t, benchmarkRow())
	dst := make([]byte, 0, 4096)
	n := testing.AllocsPerRun(100, func() {
		dst = format.AppendSuccess(dst[:0], row, &Answer{Text: "Good.", Usage: &llm.Usage{PromptTokens: 3}, VariablesHash: "h", Model: "m"})
	})
	if n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// BenchmarkResult measures how the result fields are put into a row, and how long that takes by what decoding the row and
// encoding it again with encoding/json takes, in turn in one run.
func BenchmarkResult(b *testing.B) {
	body := []byte(benchmarkRow())
	text := strings.Repeat("A short answer. ", 8)
	usage := &llm.Usage{PromptTokens: 300, CompletionTokens: 40, TotalTokens: 340}
	format, row := mustFormat(b, "llm_response", Provenance{}), mustRow(b, string(body))
	var dst []byte
	splice := func() {
		dst = format.AppendSuccess(dst[:0], row, &Answer{Text: text, Usage: usage, Model: "m"})
	}
	parseAndSplice := func() {
		row := must.Value(Parse(body))(b)
		_ = format.AppendSuccess(nil, row, &Answer{Text: text, Usage: usage, Model: "m"})
	}
	decodeAndEncode := func() {
		var m map[string]any
		must.Do(b, json.Unmarshal(body, &m))
		m["llm_response"], m["llm_response_model"], m["llm_response_usage"] = text, "m", usage
		if _, err := json.Marshal(m); err != nil {
			b.Fatal(err)
		}
	}
	for _, way := range []struct {
		name string
		run  func()
	}{{"splice", splice}, {"parse+splice", parseAndSplice}, {"decode+encode", decodeAndEncode}} {
		b.Run(way.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				way.run()
			}
		})
	}
	b.Run("ratios", func(b *testing.B) {
		var took [3]time.Duration
		for b.Loop() {
			for i, way := range []func(){splice, parseAndSplice, decodeAndEncode} {
				began := time.Now()
				way()
				took[i] += time.Since(began)
			}
		}
		b.ReportMetric(float64(took[0])/float64(took[2]), "splice/decode+encode")
		b.ReportMetric(float64(took[1])/float64(took[2]), "parse+splice/decode+encode")
	})
}
