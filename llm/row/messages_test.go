package row_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest/must"
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
		{body: `{"m":[{"role":"user","content":"a"},{"role":"tool","content":"a"}]}`, err: `message 2 of "m": has the role tool and no "tool_call_id"`},
		{body: `{"m":[{"role":"assistant","content":null,"tool_calls":[{}]}]}`, err: `message 1 of "m": "tool_calls" must be calls of functions: `},
		{body: `{"m":[{"role":"user","content":null}]}`, err: `message 1 of "m": has no content`},
		{body: `{"m":[{"role":"user","content":{}}]}`, err: `message 1 of "m": the content is neither a text nor a list of parts`},
		{body: `{"m":[{"role":"user","content":[]}]}`, err: `message 1 of "m": the content is an empty list`},
		{body: `{"m":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://a/b","detail":"low"}},{"type":"image_url","image_url":{"url":""}},` +
			`{"type":"file","file":{"filename":"a.pdf","file_data":"nats://docs/a"}},{"type":"file","file":{"file_id":null,"file_data":"JVBERg=="}},` +
			`{"type":"input_audio","input_audio":{"data":"SUQz","format":"mp3"}},{"type":"input_audio","input_audio":{"data":"calls/1.wav","format":"wav"}},{"type":"text","text":"a"}]}]}`, want: []llm.Message{
			{Role: llm.RoleUser, Parts: []llm.Part{
				{Media: &llm.Media{Kind: llm.KindImage, Source: "https://a/b", Detail: "low"}},
				{Media: &llm.Media{Kind: llm.KindFile, Source: "nats://docs/a", Name: "a.pdf"}},
				{Media: &llm.Media{Kind: llm.KindFile, Source: "data:;base64,JVBERg=="}},
				{Media: &llm.Media{Kind: llm.KindAudio, Source: "data:;base64,SUQz"}},
				{Media: &llm.Media{Kind: llm.KindAudio, Source: "calls/1.wav"}},
				{Text: "a"},
			}},
		}},
		{body: `{"m":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]}`, err: `message 1 of "m": part 1: "image_url" has no text "url"`},
		{body: `{"m":[{"role":"user","content":[{"type":"image_url","image_url":"a"}]}]}`, err: `part 1: has no object "image_url" with "url"`},
		{body: `{"m":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"a","detail":"full"}}]}]}`, err: `part 1: the detail "full" is unknown`},
		{body: `{"m":[{"role":"user","content":[{"type":"file","file":{"file_id":"f"}}]}]}`, err: `part 1: "file_id" of "file" is not supported: there are the texts file_data and filename`},
		{body: `{"m":[{"role":"user","content":[{"type":"video_url"}]}]}`, err: `part 1: the type "video_url" is not supported: there are text, image_url, file and input_audio`},
		{body: `{"m":[{"role":"user","content":[{"type":"image_url","image_url":{"url":null}}]}]}`, err: `message 1 of "m": the content is an empty list`},
		{body: `{"m":[{"role":"user","content":[` + strings.Repeat(`{"type":"text","text":"a"},`, 100) + `{"type":"text","text":"a"}]}]}`, err: `more than 100 parts`},
		{body: `{"m":[` + strings.Repeat(`{"role":"user","content":"a"},`, 10000) + `{"role":"user","content":"a"}]}`, err: `has more than 10000`},
		{body: `{"m":[{"role":"user","content":[{"type":"text"}]}]}`, err: `message 1 of "m": part 1: has no text`},
	} {
		got, err := must.Value(row.Parse([]byte(tt.body)))(t).Messages("m")
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
