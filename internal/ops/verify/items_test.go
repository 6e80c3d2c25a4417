package verify

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/llm-stage/stage/auditlog"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/row"
	"github.com/nats-io/nats.go"
)

// fanBody is a row with an array of 4 elements.
const fanBody = `{"xs":[{"a":1},2,"c",[]]}`

// fanResult is the body of a success of a row with this array.
func fanResult(tb testing.TB, body string) []byte {
	tb.Helper()
	format := stagetest.Value(row.NewFormat("F", row.Provenance{}))(tb)
	r := stagetest.Value(row.Parse([]byte(body)))(tb)
	items := stagetest.Value(r.Items("xs", 100))(tb)
	answers := make([]*row.Answer, items.Len())
	for i := range answers {
		answers[i] = &row.Answer{Text: fmt.Sprint("reply ", i), VariablesHash: items.VariablesHash(i)}
	}
	return format.AppendItems(nil, r, answers)
}

// sum makes the last row event count these calls: those of the row, less those that skip names.
func sum(j *stagetest.Job, source string, skip func(*auditlog.Call) bool) {
	event := j.Steps[len(j.Steps)-1].Row
	event.Attempts, event.CapacityRetries, event.Usage, event.Source = 0, 0, nil, source
	for _, s := range j.Steps {
		switch c := s.Call; {
		case c == nil || c.Sequence != event.Sequence || skip != nil && skip(c):
		case c.Status == auditlog.CallCapacityRetry:
			event.CapacityRetries++
		default:
			event.Attempts++
			event.Usage = event.Usage.Plus(c.Usage)
		}
	}
	nameEarlier(j, event, skip)
}

// nameEarlier has a row event name the calls of the earlier terms among those that it
// counts. A term has all calls for an element.
func nameEarlier(j *stagetest.Job, event *auditlog.Row, skip func(*auditlog.Call) bool) {
	type element struct {
		owner string
		item  int
	}
	named := make(map[element]*auditlog.ItemCalls)
	for _, s := range j.Steps {
		c := s.Call
		if c == nil || c.Sequence != event.Sequence || c.Owner == event.Owner || skip != nil && skip(c) {
			continue
		}
		e := element{c.Owner, *c.Item}
		if named[e] == nil {
			named[e] = &auditlog.ItemCalls{Item: *c.Item}
		}
		named[e].CallIndex = c.CallIndex
		named[e].Calls++
	}
	event.EarlierCalls = nil
	for e, calls := range named {
		event.EarlierCalls = append(event.EarlierCalls, auditlog.TermCalls{Owner: e.owner, Items: []auditlog.ItemCalls{*calls}})
	}
}

// fanJob is a job of three rows with four elements each. The first is answered in one
// term. Of the second the first process has answered and kept two elements, and paid for
// a third whose reply it took with it; the second process calls for that one and the
// last. The third comes from the journal.
func fanJob(b *stagetest.Bench) *stagetest.Job {
	b.T.Helper()
	b.Cfg.Foreach.Field = "xs"
	for range 4 {
		b.Publish(&nats.Msg{Subject: "rows.a", Data: []byte(fanBody)})
	}
	j := b.Job()
	result := func(owner string, seq uint64) {
		j.Result(owner, seq)
		j.Steps[len(j.Steps)-1].Result.Body = fanResult(b.T, fanBody)
	}
	start := func(run string) {
		j.Start(run)
		j.Steps[len(j.Steps)-1].Run.Settings["STAGE_FOREACH"] = "xs"
	}
	start("run1")
	j.Claim("run1.a", 0)
	for i, item := range []int{2, 0, 3, 1} {
		j.Item("run1.a", 1, item, i, auditlog.CallSuccess)
	}
	j.Row("run1.a", 1, 0, "")
	sum(j, auditlog.SourceCall, nil)
	result("run1.a", 1)
	j.Item("run1.a", 2, 0, 0, auditlog.CallSuccess)
	j.Item("run1.a", 2, 1, 1, auditlog.CallCapacityRetry)
	j.Item("run1.a", 2, 2, 2, auditlog.CallSuccess)
	j.Item("run1.a", 2, 1, 3, auditlog.CallSuccess)
	for item := range 4 {
		j.Item("run1.a", 3, item, 2*item, auditlog.CallFailure)
		j.Item("run1.a", 3, item, 2*item+1, auditlog.CallSuccess)
	}
	start("run2")
	j.Claim("run2.a", 1)
	j.Item("run2.a", 2, 2, 0, auditlog.CallCapacityRetry)
	j.Item("run2.a", 2, 3, 1, auditlog.CallSuccess)
	j.Item("run2.a", 2, 2, 2, auditlog.CallSuccess)
	j.Row("run2.a", 2, 0, "")
	sum(j, auditlog.SourceCall, func(c *auditlog.Call) bool { return c.Owner == "run1.a" && *c.Item == 2 })
	result("run2.a", 2)
	j.Row("run2.a", 3, 0, "")
	sum(j, auditlog.SourceJournal, nil)
	result("run2.a", 3)
	j.Item("run2.a", 4, 0, 0, auditlog.CallSuccess) // the others are those of equal requests
	j.Row("run2.a", 4, 0, "")
	sum(j, auditlog.SourceCall, nil)
	result("run2.a", 4)
	return j
}

func TestVerifyAddsUpTheCallsOfElements(t *testing.T) {
	b := stagetest.NewBench(t, nil)
	b.Store(fanJob(b))
	_, text := proven(b)
	if want := "audit: 20 calls, 2 of them capacity retries, 1 of rows or terms without a result;"; !strings.Contains(text, want) {
		t.Errorf("want %q in:\n%s", want, text)
	}
}

// With another STAGE_FOREACH, or none, the calls of earlier terms are for the elements of
// another array: they were paid for in vain, and prove nothing wrong.
func TestVerifyTakesTheCallsOfAnotherArrayForWhatTheyAre(t *testing.T) {
	bench := stagetest.NewBench(t, nil)
	for _, tt := range []struct {
		name, before, after string
		whole               bool // the rows of the second process
		items               int  // of the first
	}{
		{"a longer array before", "ys", "xs", false, 7},
		{"no array before", "", "xs", false, 0},
		{"an array before", "xs", "", true, 4},
		{"settings that are gone", "-", "xs", false, 7},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := bench.Renew(t)
			b.Cfg.Foreach.Field = "xs"
			b.Publish(&nats.Msg{Subject: "rows.a", Data: []byte(fanBody)})
			j := b.Job()
			start := func(run, array string) {
				j.Start(run)
				if j.Steps[len(j.Steps)-1].Run.Settings["STAGE_FOREACH"] = array; array == "-" {
					j.Remove(len(j.Steps) - 1)
				}
				j.Claim(run+".a", 0)
			}
			start("run1", tt.before)
			for item := range tt.items {
				j.Item("run1.a", 1, item, item, auditlog.CallSuccess)
			}
			if tt.items == 0 {
				j.Call("run1.a", 1, 0, auditlog.CallSuccess)
			}
			start("run2", tt.after)
			if tt.whole {
				j.Call("run2.a", 1, 0, auditlog.CallSuccess)
			} else {
				for item := range 4 {
					j.Item("run2.a", 1, item, item, auditlog.CallSuccess)
				}
			}
			j.Row("run2.a", 1, 0, "")
			sum(j, auditlog.SourceCall, func(c *auditlog.Call) bool { return c.Owner == "run1.a" })
			j.Result("run2.a", 1)
			if !tt.whole {
				j.Steps[len(j.Steps)-1].Result.Body = fanResult(b.T, fanBody)
			}
			b.Store(j)
			proven(b)
		})
	}
}

// ofItem finds the first call for an element of a row.
func ofItem(j *stagetest.Job, owner string, seq uint64, item int) int {
	return j.Index(func(s stagetest.Step) bool {
		return s.Call != nil && s.Call.Owner == owner && s.Call.Sequence == seq && *s.Call.Item == item
	})
}

func rowEventOf(j *stagetest.Job, seq uint64) *auditlog.Row {
	return j.Steps[j.Index(func(s stagetest.Step) bool { return s.Row != nil && s.Row.Sequence == seq })].Row
}

// itemFaults are what may be wrong with the elements of fanJob.
var itemFaults = []fault{
	{
		"a call removed", func(j *stagetest.Job) { j.Remove(ofItem(j, "run1.a", 1, 2)) },
		[]string{"call_event_missing: partition 0: row 1 has 3 call events of run1.a, its row event counts 4 calls, call 0 is missing"},
	},
	{
		"the call of a kept element removed", func(j *stagetest.Job) { j.Remove(ofItem(j, "run1.a", 2, 0)) },
		[]string{"call_event_missing: partition 0: row 2: its reply to element 0 is from the 1 calls up to call 0 of run1.a, which are not all in the audit"},
	},
	{
		"the first call of a kept element removed", func(j *stagetest.Job) { j.Remove(ofItem(j, "run1.a", 2, 1)) },
		[]string{"call_event_missing: partition 0: row 2: its reply to element 1 is from the 2 calls up to call 3 of run1.a, which are not all in the audit"},
	},
	{
		"a kept element that is not named", func(j *stagetest.Job) {
			event := rowEventOf(j, 2)
			event.EarlierCalls = slices.DeleteFunc(event.EarlierCalls, func(t auditlog.TermCalls) bool { return t.Items[0].Item == 0 })
		},
		[]string{"call_event_missing: partition 0: row 2 has 5 call events of run2.a and the earlier terms that it names, its row event counts 6 calls, call 3 is missing"},
	},
	{
		"a kept element that is named twice", func(j *stagetest.Job) {
			event := rowEventOf(j, 2)
			event.EarlierCalls = append(event.EarlierCalls, event.EarlierCalls[0])
		},
		[]string{"call_event_extra: partition 0: row 2 has"},
	},
	{
		"a term that is not there", func(j *stagetest.Job) { rowEventOf(j, 3).EarlierCalls[0].Owner = "run0.a" },
		[]string{"call_event_missing: partition 0: row 3: its reply to element"},
	},
	{
		"no calls", func(j *stagetest.Job) { rowEventOf(j, 3).EarlierCalls[0].Items[0].Calls = 0 },
		[]string{"call_event_missing: partition 0: row 3: its reply to element"},
	},
	{
		"the result of another row in its place", func(j *stagetest.Job) {
			for seq := range uint64(2) {
				rowEventOf(j, seq+2).ResultHash = llm.Hash(j.Steps[j.ResultOf(seq+2)].Result.Body)
			}
			r := j.Steps[j.ResultOf(3)].Result
			r.Body = []byte(strings.Replace(string(r.Body), `"reply 0","reply 1"`, `"reply 1","reply 0"`, 1))
		},
		[]string{"row_event_differs: partition 0: row 3 has another result than that of its row event: the SHA-256 of its body is "},
	},
	{
		"a call of the last term removed", func(j *stagetest.Job) { j.Remove(ofItem(j, "run2.a", 2, 3)) },
		[]string{"call_event_missing: partition 0: row 2 has 5 call events of run2.a and the earlier terms that it names, its row event counts 6 calls, call 1 is missing"},
	},
	{
		"tokens that do not add up", func(j *stagetest.Job) { rowEventOf(j, 2).Usage.PromptTokens++ },
		[]string{"tokens_differ: partition 0: row 2: 40 prompt tokens in the call events, 41 in the row event"},
	},
	{
		"a cost that does not add up", func(j *stagetest.Job) { rowEventOf(j, 1).Usage.CostUSD = new(0.5) },
		[]string{"cost_differs: partition 0: row 1: cost in USD 0.004000 in the call events, 0.500000 in the row event"},
	},
	{
		"retries that do not add up", func(j *stagetest.Job) { rowEventOf(j, 2).CapacityRetries, rowEventOf(j, 2).Attempts = 1, 5 },
		[]string{"retries_differ: partition 0: row 2 has 2 capacity retries in the call events, 1 in the row event"},
	},
	{
		"an element paid twice", func(j *stagetest.Job) { j.Steps[ofItem(j, "run1.a", 1, 3)].Call.Item = new(2); fixID(j, 1) },
		[]string{"paid_twice: partition 0: row 1: run1.a was given two replies to element 2, each of which was paid for"},
	},
	{
		"an element that the row does not have", func(j *stagetest.Job) { j.Steps[ofItem(j, "run1.a", 1, 3)].Call.Item = new(4); fixID(j, 1) },
		[]string{"bad_item: partition 0: row 1 has a call for element 4, call 2 of run1.a, and its array has 4"},
	},
	{
		"an element that the row does not have, in an earlier term", func(j *stagetest.Job) { j.Steps[ofItem(j, "run1.a", 2, 2)].Call.Item = new(4); fixID(j, 2) },
		[]string{"bad_item: partition 0: row 2 has a call for element 4, call 2 of run1.a, and its array has 4"},
	},
	{
		"a call for the whole row, in an earlier term", func(j *stagetest.Job) { j.Steps[ofItem(j, "run1.a", 2, 2)].Call.Item = nil },
		[]string{"bad_item: partition 0: row 2 has calls for single elements, and one for the whole row, call 2 of run1.a"},
	},
	{
		"the id of another element", func(j *stagetest.Job) { j.Steps[ofItem(j, "run1.a", 1, 3)].Call.StateID = "stage/ROWS/0/1#1" },
		[]string{"bad_item: partition 0: row 1 has a call for element 3, call 2 of run1.a, with the state id of another one"},
	},
	{
		"the id of another row", func(j *stagetest.Job) { j.Steps[ofItem(j, "run1.a", 1, 3)].Call.StateID = "stage/ROWS/0/11#3" },
		[]string{"bad_item: partition 0: row 1 has a call for element 3, call 2 of run1.a, with the state id of another one"},
	},
	{
		"a call for the whole row", func(j *stagetest.Job) { j.Steps[ofItem(j, "run1.a", 1, 3)].Call.Item = nil },
		[]string{"bad_item: partition 0: row 1 has calls for single elements, and one for the whole row, call 2 of run1.a"},
	},
	{
		"a result with fewer replies", func(j *stagetest.Job) {
			j.Steps[j.ResultOf(3)].Result.Body = []byte(`{"F":["a"],"F_usage":null,"F_template_hash":null,"F_variables_hash":["h"],"F_template_source":null,"F_lookup_hash":null,"F_lookup_source":null,"F_model":null}`)
		},
		[]string{"bad_item: partition 0: the result of row 3, at 5 of the results stream, has replies to 1 elements; its row has 4"},
	},
	{
		"a result with fewer replies than hashes", func(j *stagetest.Job) {
			r := j.Steps[j.ResultOf(3)].Result
			r.Body = []byte(strings.Replace(string(r.Body), `"reply 0",`, "", 1))
		},
		[]string{"bad_item: partition 0: the result of row 3, at 5 of the results stream, has not as many replies as hashes of elements"},
	},
}

// fixID gives the calls of a row the ids of their elements.
func fixID(j *stagetest.Job, seq uint64) {
	for _, s := range j.Steps {
		if s.Call != nil && s.Call.Sequence == seq {
			s.Call.StateID = auditlog.ItemStateID(auditlog.RowStateID(s.Call.StateID), *s.Call.Item)
		}
	}
}

func TestVerifyFindsFaultsOfElements(t *testing.T) { findsFaults(t, itemFaults, fanJob, verifyAll) }
