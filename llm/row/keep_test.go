package row

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/llm-stage/stage/llm"
)

func TestPartsOfTheReplyFollowTheAnswer(t *testing.T) {
	kept := map[string]json.RawMessage{"reasoning": json.RawMessage(`"why"`), "id": json.RawMessage(`"1"`)}
	for _, c := range []struct {
		name, row, upstream string
		keep                llm.Keep
		begin, end          string
	}{
		{"nothing is kept", `{"F_id":7,"F_raw":1}`, "", 0, `{"F_id":7,"F_raw":1,"F":"hi",`, `"F_model":null}`},
		{"in their order", `{"x":1}`, "", llm.KeepID | llm.KeepReasoning | llm.KeepRaw, `{"x":1,"F":"hi",`, `"F_model":null,"F_reasoning":"why","F_id":"1","F_raw":null}`},
		{"what is kept replaces the row's own", `{"F_id":7,"F_raw":1,"x":1}`, "", llm.KeepID, `{"F_raw":1,"x":1,"F":"hi",`, `"F_model":null,"F_id":"1"}`},
		{"of another stage", `{"F":"a","F_model":"m","F_id":7}`, "a", llm.KeepReasoning, `{"a_F":"a","a_F_model":"m","a_F_id":7,"F":"hi",`, `"F_reasoning":"why"}`},
		{"of another stage, and none here", `{"F":"a","F_model":"m","F_id":7}`, "a", 0, `{"a_F":"a","a_F_model":"m","a_F_id":7,"F":"hi",`, `"F_model":null}`},
		{"the row's own in a result of another stage", `{"F_id":7,"F":"a","F_model":"m"}`, "a", 0, `{"F_id":7,"a_F":"a","a_F_model":"m","F":"hi",`, `"F_model":null}`},
		{"its name is taken by a part", `{"a_F_id":0,"F":"a","F_model":"m","F_id":7}`, "a", 0, `{"a_F_id":0,"a_F_2":"a","a_F_2_model":"m","a_F_2_id":7,"F":"hi",`, `"F_model":null}`},
	} {
		f := mustFormat(t, "F", Provenance{})
		f.Keep = c.keep
		in := mustRow(t, c.row)
		if c.upstream != "" {
			in.KeepAs(c.upstream)
		}
		body := string(f.AppendSuccess(nil, in, &Answer{Text: "hi", Kept: kept}))
		if !strings.HasPrefix(body, c.begin) || !strings.HasSuffix(body, c.end) {
			t.Errorf("%s:\n got %s\nwant %s … %s", c.name, body, c.begin, c.end)
		}
	}
}

func TestPartsOfElementsAreListsInTheirOrder(t *testing.T) {
	f := mustFormat(t, "F", Provenance{})
	f.Keep = llm.KeepReasoning
	body := string(f.AppendItems(nil, mustRow(t, `{}`), []*Answer{
		{Text: "a", Kept: map[string]json.RawMessage{"reasoning": json.RawMessage(`"why"`)}},
		{Text: "b"},
		{Text: "c", Keep: llm.KeepToolCalls, Kept: map[string]json.RawMessage{"tool_calls": json.RawMessage(`[{}]`)}},
	}))
	if want := `"F_model":null,"F_reasoning":["why",null,null],"F_tool_calls":[null,null,[{}]]}`; !strings.HasSuffix(body, want) {
		t.Errorf("got %s, want … %s", body, want)
	}
	if body := string(f.AppendItems(nil, mustRow(t, `{}`), nil)); !strings.HasSuffix(body, `,"F_reasoning":[]}`) {
		t.Errorf("without elements: %s", body)
	}
}
