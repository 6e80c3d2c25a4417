package answers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/llm-stage/stage/internal/files/rowfile"
	"github.com/llm-stage/stage/internal/jsonbytes"
)

// membersMax bounds the members of answers that are compared one by one.
const membersMax = 32

// value is an answer in a form that can be compared. Two answers are equal if their texts
// are.
//
// The text of a string is the string without white space around it. That of any other value
// is its canonical JSON, in which neither white space nor the order of members counts. Tool
// calls are equal if names and arguments are: their ids are new with each call.
type value struct {
	text  string // of the answer and its tool calls
	plain string // of the answer alone
	// members has the text of each top-level member, by name, if the answer is an object.
	// Otherwise it has those of the arguments if there is one tool call, or is nil.
	members map[string]string
}

// newValue reads an answer and its tool calls. Either may be nil.
func newValue(answer, tools json.RawMessage) value {
	v := value{plain: textOf(answer), members: membersOf(answer)}
	v.text = v.plain
	if tools == nil {
		return v
	}
	var calls []map[string]json.RawMessage
	if json.Unmarshal(tools, &calls) != nil {
		v.text += "\n" + string(tools)
		return v
	}
	for _, call := range calls {
		v.text += "\n" + textOf(call["name"]) + " " + textOf(call["arguments"])
	}
	if len(calls) == 1 && v.members == nil {
		v.members = membersOf(calls[0]["arguments"])
	}
	return v
}

// textOf returns the text of a JSON value, or "" if there is none.
func textOf(raw []byte) string {
	switch {
	case len(raw) == 0:
		return ""
	case raw[0] == '"':
		return strings.TrimSpace(jsonbytes.Text(raw))
	case !jsonbytes.Valid(raw):
		return string(raw)
	}
	var c jsonbytes.Canonicalizer
	return string(c.Canonical(raw))
}

// membersOf returns the texts of the members of an object, or nil if raw is no object.
func membersOf(raw []byte) map[string]string {
	if raw = bytes.TrimSpace(raw); len(raw) == 0 || raw[0] != '{' || !jsonbytes.Valid(raw) {
		return nil
	}
	members := make(map[string]string)
	for name, member := range jsonbytes.Members(raw) {
		members[string(name)] = textOf(member)
	}
	return members
}

// Expected says where the known answers are.
type Expected struct {
	field  string // of the row
	member string // of the answer, or "" for the one of the same name, or all of the answer
}

// expectPrefix begins the name of a member of the row, as in --by of usage.
const expectPrefix = "field."

// ParseExpected reads the value of --expect: field.NAME, the top-level member of the rows
// that holds the known answer, or field.NAME=MEMBER, where MEMBER is the member of the
// answers that it is about.
func ParseExpected(text string) (*Expected, error) {
	name, ok := strings.CutPrefix(text, expectPrefix)
	field, member, chosen := strings.Cut(name, "=")
	if !ok || field == "" || chosen && member == "" {
		return nil, fmt.Errorf("--expect %q: give field.NAME, the member of the rows that has the known answer, or field.NAME=MEMBER for a member of answers that are objects", text)
	}
	return &Expected{field: field, member: member}, nil
}

// String returns the text that was read.
func (e *Expected) String() string {
	if e.member == "" {
		return expectPrefix + e.field
	}
	return expectPrefix + e.field + "=" + e.member
}

// of returns the known answer to a row, or nil.
func (e *Expected) of(row rowfile.Row) json.RawMessage {
	if e == nil || row.Fault != nil || !json.Valid(row.Body) {
		return nil
	}
	known := jsonbytes.Find(row.Body, e.field)
	if len(known) == 0 || string(known) == "null" {
		return nil
	}
	return known
}

// check returns an error if no row has a known answer, as after a typing mistake.
func (e *Expected) check(rows []rowfile.Row) error {
	if e == nil || slices.ContainsFunc(rows, func(row rowfile.Row) bool { return e.of(row) != nil }) {
		return nil
	}
	return errors.New("--expect " + e.String() + ": none of the rows has the member " + e.field)
}

// met reports whether an answer is the known one. With --expect field.label, the known
// answer "spam" is compared with the member label of the answer {"label":"spam","why":"…"},
// and with all of an answer that has no such member. A known answer that is an object is
// always compared with all of the answer.
func (e *Expected) met(known json.RawMessage, v *value) bool {
	want := textOf(known)
	if e.member != "" {
		got, ok := v.members[e.member]
		return ok && got == want
	}
	if got, ok := v.members[e.field]; ok && known[0] != '{' {
		return got == want
	}
	return v.plain == want
}

// agree counts the rows with equal answers.
func (r *Report) agree() {
	agreement := &Agreement{Pairs: []Pair{}, Members: []Member{}}
	for n := range r.Rows {
		row := &r.Rows[n]
		if !row.complete() {
			continue
		}
		first := row.Answers[0].value.text
		same := !slices.ContainsFunc(row.Answers, func(a Answer) bool { return a.value.text != first })
		row.Agree = &same
		agreement.All.count(same)
	}
	for i := range r.Columns {
		for j := i + 1; j < len(r.Columns); j++ {
			pair := Pair{Columns: [2]int{i, j}}
			for n := range r.Rows {
				a, b := &r.Rows[n].Answers[i], &r.Rows[n].Answers[j]
				if a.Status == StatusAnswered && b.Status == StatusAnswered {
					pair.count(a.value.text == b.value.text)
				}
			}
			agreement.Pairs = append(agreement.Pairs, pair)
		}
	}
	for _, name := range r.members() {
		member := Member{Name: name}
		for n := range r.Rows {
			if row := &r.Rows[n]; row.complete() && row.objects() {
				member.count(!row.differs(name))
			}
		}
		agreement.Members = append(agreement.Members, member)
	}
	r.Agreement = agreement
}

func (s *Share) count(equal bool) {
	s.Rows++
	if equal {
		s.Equal++
	}
}

// complete reports whether all columns have answered the row.
func (r *RowReport) complete() bool {
	return !slices.ContainsFunc(r.Answers, func(a Answer) bool { return a.Status != StatusAnswered })
}

// objects reports whether all answers have members.
func (r *RowReport) objects() bool {
	return !slices.ContainsFunc(r.Answers, func(a Answer) bool { return a.value.members == nil })
}

// differs reports whether a member is not the same in all answers. Missing in some counts
// as a difference, missing in all does not.
func (r *RowReport) differs(name string) bool {
	first, there := r.Answers[0].value.members[name]
	return slices.ContainsFunc(r.Answers, func(a Answer) bool {
		text, has := a.value.members[name]
		return has != there || text != first
	})
}

// members returns the names of the members that [Agreement] compares. Only rows whose
// answers all have members count.
func (r *Report) members() []string {
	names := make(map[string]bool)
	for n := range r.Rows {
		row := &r.Rows[n]
		if !row.complete() || !row.objects() {
			continue
		}
		for i := range row.Answers {
			for name := range row.Answers[i].value.members {
				names[name] = true
			}
		}
	}
	sorted := slices.Sorted(maps.Keys(names))
	return sorted[:min(len(sorted), membersMax)]
}
