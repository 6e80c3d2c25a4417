package template_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/row"
	"github.com/llm-stage/stage/llm/template"
)

const tickets = `
- {role: system, content: "You label tickets: {{ lookup.labels | join(', ') }}"}
- for: ex in lookup.examples if ex.label
  messages:
    - {role: user, content: "{{ loop.index }}. {{ ex.text }}"}
    - {role: assistant, content: "{{ ex.label }}"}
- role: user
  if: row.text
  content: |
    {% set shout = row.text | upper %}
    {{- shout }}
- role: user
  content:
    - {type: text, text: "a {{ row.text }}"}
    - {type: text, text: "{{ row.more }}"}
    - {type: text, text: c}
- for: turn in row.history
  messages: [{role: "{{ turn.who }}", content: "{{ turn.said }}"}]
`

func shown(messages []llm.Message) string {
	var b strings.Builder
	for _, m := range messages {
		fmt.Fprintf(&b, "%s: ", m.Role)
		if m.Parts != nil {
			for _, p := range m.Parts {
				if m := p.Media; m != nil {
					fmt.Fprintf(&b, "[%s %s %s%s]", m.Kind, m.Source, m.Name, m.Detail)
					continue
				}
				fmt.Fprintf(&b, "[%s]", p.Text)
			}
		} else {
			b.WriteString(m.Text)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func TestAConversationIsRendered(t *testing.T) {
	lookup := must.Value(template.ParseLookup([]byte(`{"labels":["bug","idea"],"examples":[{"text":"It crashes","label":"bug"},{"text":"x","label":""},{"text":"Add it","label":"idea"}]}`), ""))(t)
	conversation := must.Value(template.ParseConversation([]byte(tickets), template.Options{Lookup: lookup}))(t)
	for _, tt := range []struct{ row, want string }{
		{
			`{"text":"help","more":"","history":[{"who":"assistant","said":"yes?"},{"who":"developer","said":"be kind"}]}`,
			"system: You label tickets: bug, idea\nuser: 1. It crashes\nassistant: bug\nuser: 2. Add it\nassistant: idea\n" +
				"user: HELP\nuser: [a help][c]\nassistant: yes?\nsystem: be kind\n",
		},
		{
			`{"text":"","more":"b","history":[]}`,
			"system: You label tickets: bug, idea\nuser: 1. It crashes\nassistant: bug\nuser: 2. Add it\nassistant: idea\nuser: [a ][b][c]\n",
		},
	} {
		messages := must.Value(conversation.Messages(must.Value(row.Parse([]byte(tt.row)))(t), nil, 0))(t)
		if got := shown(messages); got != tt.want {
			t.Errorf("%s:\n%s\nwant\n%s", tt.row, got, tt.want)
		}
	}
}

// Media are named by their sources; one whose source renders to nothing is left out.
func TestAConversationHasMedia(t *testing.T) {
	const file = `
- role: user
  content:
    - {type: image, source: "{{ row.photo }}", detail: "{{ row.detail }}"}
    - {type: image, source: " {{ row.photo }} "}
    - {type: file, source: "{{ row.invoice }}", name: "{{ row.id }}.pdf"}
    - {type: audio, source: "{{ row.call | default('') }}"}
    - {type: text, text: "what is it?"}
`
	conversation := must.Value(template.ParseConversation([]byte(file), template.Options{}))(t)
	for _, tt := range []struct{ row, want string }{
		{
			`{"id":7,"photo":"nats://photos/1.jpg","detail":"low","invoice":"a.pdf","call":"https://a/b"}`,
			"user: [image nats://photos/1.jpg low][image nats://photos/1.jpg ][file a.pdf 7.pdf][audio https://a/b ][what is it?]\n",
		},
		{`{"id":7,"photo":"","invoice":" "}`, "user: [what is it?]\n"},
		{`{"id":7,"photo":"","invoice":null,"call":null}`, "user: [what is it?]\n"},
	} {
		messages := must.Value(conversation.Messages(must.Value(row.Parse([]byte(tt.row)))(t), nil, 0))(t)
		if got := shown(messages); got != tt.want {
			t.Errorf("%s:\n%s\nwant\n%s", tt.row, got, tt.want)
		}
	}
}

func TestARowThatGivesNoConversationSaysWhy(t *testing.T) {
	for _, tt := range []struct{ file, row, want string }{
		{"- {role: user, content: '{{ row.text }}'}", `{"text":""}`, "the content of message 1, role user, is empty (line 1 of the messages); leave such a message out with if"},
		{"- {role: user, content: [{type: text, text: '{{ row.text }}'}]}", `{"text":""}`, "the content of message 1, role user, is empty"},
		{"- {role: user, content: [{type: image, source: '{{ row.text }}'}]}", `{"text":""}`, "the content of message 1, role user, is empty"},
		{"- role: user\n  content:\n  - {type: image, source: a, detail: '{{ row.d }}'}", `{"d":"full"}`, `the detail "full" is unknown: there are low, high, auto and original (line 3 of the messages)`},
		{"- {role: user, content: a, if: row.a}", `{"a":0}`, "the conversation has no messages"},
		{"- {role: '{{ row.who }}', content: a}", `{"who":"bot"}`, `the role "bot" is unknown: write system, user or assistant (line 1 of the messages)`},
		{"- {role: user, content: a}\n- role: user\n  content: |\n    one\n    {{ row.no }}", `{}`, "(line 5 of the messages)"},
		{"- {role: user,\n   content: \"one\\n\\n\\n{{ row.no }}\"}", `{}`, "(line 2 of the messages)"},
		{"- for: i in range(20000)\n  messages: [{role: user, content: a}]", `{}`, "more than 10000 messages (line 2 of the messages)"},
	} {
		conversation := must.Value(template.ParseConversation([]byte(tt.file), template.Options{}))(t)
		_, err := conversation.Messages(must.Value(row.Parse([]byte(tt.row)))(t), nil, 0)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s with %s: %v, want %s", tt.file, tt.row, err, tt.want)
		}
	}
}

func TestAllErrorsOfAConversationAreReported(t *testing.T) {
	const file = `
- {role: usr, content: a}
- {role: user, content: "{{ row.text | nofilter }}"}
- {role: user}
- {role: user, content: a, iff: row.a}
- role: user
  content: |
    fine
    {{ tex }}
- for: x lookup
  messages: [{role: user, content: a}]
- for: x in row.list
  messages: []
- text
- {role: user, content: [{type: video, source: a}, text]}
- {role: user, content: a, if: "row.a %} b"}
- {role: user, content: {a: b}}
- {role: user, content: "{% if row.a %}"}
- {role: user, content: "{% set mine = 1 %}{{ mine }}"}
- {role: user, content: "{{ mine }} {{ x }}"}
- {role: user, content: [{type: image, source: a, detail: full}, {type: file, source: "{{ nope }}", detail: low}, {type: audio}]}
- {role: user, content: null}
- {role: system, content: [{type: text, text: a}, {type: image, source: "{{ row.a }}"}]}
- {role: usr, content: [{type: video}, {type: image, source: "{{ row.a", detal: low}], iff: a}
- {for: x in row.list, mesages: [], messages: [{role: user}]}
`
	want := []string{
		`line 2, column 10: the role "usr" is unknown: write system, user or assistant`,
		`line 3, column 25: the filter nofilter is not available`,
		`line 4, column 3: content is missing`,
		`line 5, column 28: "iff" is unknown here: there are role, content, if`,
		`line 9, column 5: undefined: tex; there are row`,
		`line 10, column 8: expected "in", found "lookup"`,
		`line 13, column 13: not a list of messages`,
		`line 14, column 3: not a message`,
		`line 15, column 33: parts of type "video" are not available: there are text, image, file and audio`,
		`line 15, column 52: not a part`,
		`line 16, column 32: expected an expression, found "%}" behind one`,
		`line 17, column 25: not a text`,
		`line 18, column 25: the block "if" is not closed by "endif"`,
		`line 20, column 25: undefined: mine`,
		`line 20, column 25: undefined: x`, // the name of a loop further up
		`line 21, column 59: the detail "full" is unknown`,
		`line 21, column 101: "detail" is unknown here: there are type, source, name`,
		`line 21, column 87: undefined: nope`,
		`line 21, column 115: source is missing`,
		`line 22, column 25: the text is missing`,
		`line 23, column 27: media of role system: only a message of the user can have any`,
		`line 24, column 10: the role "usr" is unknown`,
		`line 24, column 32: parts of type "video" are not available`,
		`line 24, column 62: the tag is not closed`,
		`line 24, column 74: "detal" is unknown here`,
		`line 24, column 88: "iff" is unknown here`,
		`line 25, column 24: "mesages" is unknown here`,
		`line 25, column 48: content is missing`,
	}
	_, err := template.ParseConversation([]byte(file), template.Options{})
	if err == nil {
		t.Fatal("no error")
	}
	for _, line := range want {
		if !strings.Contains(err.Error(), line) {
			t.Errorf("%q is missing", line)
		}
	}
	if lines := strings.Split(err.Error(), "\n"); len(lines) != len(want) {
		t.Errorf("%d errors, want %d:\n%v", len(lines), len(want), err)
	}
	_, err = template.ParseConversation([]byte(strings.Repeat("- text\n", 500)), template.Options{})
	if lines := strings.Split(err.Error(), "\n"); len(lines) != 101 || lines[100] != "line 101 and below: there are more errors" {
		t.Errorf("%d lines for 500 errors, the last is %q", len(lines), lines[len(lines)-1])
	}
}
