package answers

import (
	"encoding/json"
	"testing"

	"github.com/llm-stage/stage/internal/files/rowfile"
)

func TestAnswersAreEqualInTheirMeaning(t *testing.T) {
	for _, tt := range []struct {
		a, b, aTools, bTools string
		equal                bool
	}{
		{a: `"yes"`, b: `" yes\n"`, equal: true},
		{a: `"yes"`, b: `"Yes"`},
		{a: `"\u00e9"`, b: `"é"`, equal: true},
		{a: `{"a":1,"b":[true, null]}`, b: `{ "b":[true,null], "a" : 1 }`, equal: true},
		{a: `[1,2]`, b: `[2,1]`},
		{a: `1`, b: `1.0`}, // numbers count as they are written, as in the hash of a row
		{a: `{"a":1}`, b: `"{\"a\":1}"`, equal: true},
		{a: `""`, b: `""`, aTools: `[{"id":"c1","name":"f","arguments":{"x":1,"y":2}}]`, bTools: `[{"id":"c9","name":"f","arguments":{"y":2,"x":1}}]`, equal: true},
		{a: `""`, b: `""`, aTools: `[{"id":"c1","name":"f","arguments":{}}]`, bTools: `[{"id":"c1","name":"g","arguments":{}}]`},
		{a: `""`, b: `""`, aTools: `[{"id":"c1","name":"f","arguments":{}}]`},
	} {
		tools := func(text string) json.RawMessage {
			if text == "" {
				return nil
			}
			return json.RawMessage(text)
		}
		a, b := newValue(json.RawMessage(tt.a), tools(tt.aTools)), newValue(json.RawMessage(tt.b), tools(tt.bTools))
		if got := a.text == b.text; got != tt.equal {
			t.Errorf("%s %s and %s %s: equal %t", tt.a, tt.aTools, tt.b, tt.bTools, got)
		}
	}
}

func TestAKnownAnswerIsComparedWithTheAnswerOrAMemberOfIt(t *testing.T) {
	for _, tt := range []struct {
		expect, row, answer, tools string
		met                        bool
	}{
		{"field.l", `{"l":"pos"}`, `"pos "`, ``, true},
		{"field.l", `{"l":"pos"}`, `"neg"`, ``, false},
		{"field.l", `{"l":"pos"}`, `{"l":"pos","why":"x"}`, ``, true},
		{"field.l", `{"l":"pos"}`, `{"l":"neg","why":"x"}`, ``, false},
		{"field.l", `{"l":"pos"}`, `{"label":"pos"}`, ``, false},
		{"field.l=label", `{"l":"pos"}`, `{"label":"pos"}`, ``, true},
		{"field.l=label", `{"l":"pos"}`, `"pos"`, ``, false},
		{"field.l", `{"l":{"a":1,"b":2}}`, `{"b":2,"a":1}`, ``, true},
		{"field.l", `{"l":"5"}`, `5`, ``, true}, // a file of CSV has strings alone
		{"field.l", `{"l":true}`, `{"l":true}`, ``, true},
		{"field.team", `{"team":"billing"}`, `""`, `[{"id":"c","name":"f","arguments":{"team":"billing"}}]`, true},
	} {
		e, err := ParseExpected(tt.expect)
		if err != nil {
			t.Fatal(err)
		}
		var tools json.RawMessage
		if tt.tools != "" {
			tools = json.RawMessage(tt.tools)
		}
		v := newValue(json.RawMessage(tt.answer), tools)
		if got := e.met(e.of(rowfile.Row{Body: []byte(tt.row)}), &v); got != tt.met {
			t.Errorf("%s of %s and %s%s: %t", tt.expect, tt.row, tt.answer, tt.tools, got)
		}
		if e.String() != tt.expect {
			t.Errorf("%s is written as %s", tt.expect, e)
		}
	}
	for _, text := range []string{"", "label", "field.", "field.l=", "row.l"} {
		if e, err := ParseExpected(text); err == nil {
			t.Errorf("%q: %v", text, e)
		}
	}
}

// rows makes the rows of a report: each of the texts is an answer, "" for one that is missing.
func rowsOf(rows ...[]string) *Report {
	r := &Report{}
	for _, texts := range rows {
		row := RowReport{Row: json.RawMessage(`{}`)}
		for _, text := range texts {
			a := Answer{Status: StatusNotCalled}
			if text != "" {
				a = Answer{Status: StatusAnswered, Answer: json.RawMessage(text), value: newValue(json.RawMessage(text), nil)}
			}
			row.Answers = append(row.Answers, a)
		}
		r.Rows = append(r.Rows, row)
	}
	r.Columns = make([]ColumnReport, len(rows[0]))
	r.agree()
	return r
}

func TestAgreementCountsRowsThatAllHaveAnswered(t *testing.T) {
	r := rowsOf(
		[]string{`"a"`, `"a"`, `"a"`},
		[]string{`"a"`, `"a"`, `"b"`},
		[]string{`"a"`, `"a"`, ``},
		[]string{`{"x":1,"y":"p"}`, `{"x":1,"y":"q"}`, `{"x":1}`},
	)
	text, _ := json.Marshal(r.Agreement) // it can't fail
	const want = `{"all":{"equal":1,"rows":3},"pairs":[{"columns":[0,1],"equal":3,"rows":4},{"columns":[0,2],"equal":1,"rows":3},{"columns":[1,2],"equal":1,"rows":3}],` +
		`"members":[{"name":"x","equal":1,"rows":1},{"name":"y","equal":0,"rows":1}]}`
	if string(text) != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
	if a := r.Rows[2].Agree; a != nil {
		t.Errorf("a row without an answer: %t", *a)
	}
}

func TestThereIsABoundOnMembers(t *testing.T) {
	object := map[string]int{}
	for i := range 2 * membersMax {
		object[string(rune('a'+i))] = i
	}
	text, _ := json.Marshal(object)
	if n := len(rowsOf([]string{string(text), string(text)}).Agreement.Members); n != membersMax {
		t.Errorf("%d members", n)
	}
}
