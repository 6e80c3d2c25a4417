package row_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/row"
)

// A conversation in OpenAI's form, and what is wrong with others.
func TestMessagesOfARow(t *testing.T) {
	for _, tt := range []struct {
		body string
		want []llm.Message
		err  string
	}{
		{body: `{"m":[{"role":"developer","content":"be kind"},{"role":"user","content":"a\n\"b\""},{"role":"assistant","content":"c","refusal":null}]}`, want: []llm.Message{
			{Role: llm.RoleSystem, Text: "be kind"}, {Role: llm.RoleUser, Text: "a\n\"b\""}, {Role: llm.RoleAssistant, Text: "c"},
		}},
		{body: `{"m":1,"m":[{"content":[{"type":"text","text":"a"},{"text":"b","type":"text"}],"role":"user"}]}`, want: []llm.Message{
			{Role: llm.RoleUser, Parts: []llm.Part{{Text: "a"}, {Text: "b"}}},
		}},
		{body: `{"x":1}`, err: `there is no member "m": it must be a list of messages`},
		{body: `{"m":"hello"}`, err: `the member "m" is no list of messages`},
		{body: `{"m":[]}`, err: `the list of messages "m" is empty`},
		{body: `{"m":[1]}`, err: `message 1 of "m": is no object with role and content`},
		{body: `{"m":[{"content":"a"}]}`, err: `message 1 of "m": the role "" is unknown: write system, user or assistant`},
		{body: `{"m":[{"role":"user","content":"a"},{"role":"tool","content":"a"}]}`, err: `message 2 of "m": the role "tool" is unknown`},
		{body: `{"m":[{"role":"assistant","content":null,"tool_calls":[{}]}]}`, err: `message 1 of "m": "tool_calls" is not supported`},
		{body: `{"m":[{"role":"user","content":null}]}`, err: `message 1 of "m": has no content`},
		{body: `{"m":[{"role":"user","content":{}}]}`, err: `message 1 of "m": the content is neither a text nor a list of parts`},
		{body: `{"m":[{"role":"user","content":[]}]}`, err: `message 1 of "m": the content is an empty list`},
		{body: `{"m":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]}`, err: `message 1 of "m": part 1: the type "image_url" is not supported: there is text`},
		{body: `{"m":[{"role":"user","content":[{"type":"text"}]}]}`, err: `message 1 of "m": part 1: has no text`},
	} {
		got, err := stagetest.Value(row.Parse([]byte(tt.body)))(t).Messages("m")
		if tt.err == "" {
			if err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%s: %+v, %v", tt.body, got, err)
			}
			continue
		}
		if e, ok := errors.AsType[*llm.Error](err); !ok || e.Reason != llm.ReasonInvalidRow || !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %v, want an invalid row: %s", tt.body, err, tt.err)
		}
	}
}
