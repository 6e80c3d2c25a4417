package llm

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest/must"
)

// answersOf returns a whole reply with this answer in each wire format. ended reports whether
// it ends naturally, else at the token limit.
func answersOf(t *testing.T, text string, ended bool) map[Wire][]byte {
	t.Helper()
	quoted := must.Value(json.Marshal(text))(t)
	pick := func(natural, limit string) string {
		if ended {
			return natural
		}
		return limit
	}
	return map[Wire][]byte{
		ChatCompletions{}: fmt.Appendf(nil, `{"choices":[{"message":{"content":%s},"finish_reason":%q}]}`, quoted, pick("stop", "length")),
		Messages{}:        fmt.Appendf(nil, `{"content":[{"type":"text","text":%s}],"stop_reason":%q}`, quoted, pick("end_turn", "max_tokens")),
		GenerateContent{}: fmt.Appendf(nil, `{"candidates":[{"content":{"parts":[{"text":%s}]},"finishReason":%q}]}`, quoted, pick("STOP", "MAX_TOKENS")),
		Converse{}:        fmt.Appendf(nil, `{"output":{"message":{"role":"assistant","content":[{"text":%s}]}},"stopReason":%q}`, quoted, pick("end_turn", "max_tokens")),
		Responses{}: fmt.Appendf(nil, `{"status":%q,"incomplete_details":{"reason":"max_output_tokens"},"output":[{"type":"message","content":[{"type":"output_text","text":%s}]}]}`,
			pick("completed", "incomplete"), quoted),
	}
}

func TestReasoningBeforeTheAnswerIsNotPartOfIt(t *testing.T) {
	for _, row := range []struct{ text, reasoning, answer string }{
		{"<think>\nA label is wanted.\n</think>\n\ngood", "A label is wanted.", "good"},
		{"<think>\n\n</think>\n\ngood", "", "good"},
		{"<think></think>good\n", "", "good\n"},
		{"<thinking>x</thinking> good", "x", "good"},
		{"<reasoning>x</reasoning>good", "x", "good"},
		{"\ufeff\n <think>x</think>good", "x", "good"},
		{"<think>first</think><think>second</think>good", "first", "<think>second</think>good"}, // one block
		{"<think>I begin with <think>.</think>good", "I begin with <think>.", "good"},
		{"<think>It ends with </thinking>.</think>good", "It ends with </thinking>.", "good"},
		{"<think>maybe {\"label\": \"bad\"}?</think>{\"label\": \"good\"}", `maybe {"label": "bad"}?`, `{"label": "good"}`},

		{"good", "", "good"},
		{" \ufeffgood ", "", " \ufeffgood "},
		{"good <think>x</think>", "", "good <think>x</think>"},
		{"A label.\n</think>\n\ngood", "", "A label.\n</think>\n\ngood"}, // what the tag ends is not known
		{"<thinker>x</thinker>good", "", "<thinker>x</thinker>good"},
		{"<Think>x</Think>good", "", "<Think>x</Think>good"},
		{"```\n<think>x</think>\n```", "", "```\n<think>x</think>\n```"},
	} {
		reasoning, answer, _ := splitReasoning(row.text)
		if reasoning != row.reasoning || answer != row.answer {
			t.Errorf("%q: reasoning %q, answer %q, want %q and %q", row.text, reasoning, answer, row.reasoning, row.answer)
		}
		for w, body := range answersOf(t, row.text, true) {
			if r, err := ParseReply(w, Known{}, now, 200, nil, body); err != nil || r.Text != row.answer {
				t.Errorf("%T: %q: text %q, %v, want %q", w, row.text, r.Text, err, row.answer)
			}
		}
	}
}

func TestReplyOfReasoningAloneIsNoAnswer(t *testing.T) {
	for _, text := range []string{"<think>Hm.</think>", "<think>Hm.</think>\n\n", "<think>Hm, well", "<reasoning>", "<think></think>"} {
		for w, body := range answersOf(t, text, true) {
			checkNoAnswer(t, w, body, Transient, ReasonEmptyContent, "no text behind its reasoning")
		}
		for w, body := range answersOf(t, text, false) {
			checkNoAnswer(t, w, body, Permanent, ReasonTruncated, "reasoning (<think>) ends at the token limit")
		}
	}
}

// checkNoAnswer checks the verdict on a reply, also where truncated replies are accepted.
func checkNoAnswer(t *testing.T, w Wire, body []byte, class Class, reason Reason, message string) {
	t.Helper()
	for _, known := range []Known{{}, {AcceptTruncated: true}} {
		r, err := ParseReply(w, known, now, 200, nil, body)
		e, ok := errors.AsType[*Error](err)
		if !ok || e.Class != class || e.Reason != reason || r.Text != "" || !strings.Contains(err.Error(), message) {
			t.Errorf("%T: %s: %+v, %v, want the class %v, %s and %q", w, body, r, err, class, reason, message)
		}
	}
}

// What was cut in the answer keeps the part of the answer.
func TestReasoningIsNotInThePartOfATruncatedAnswer(t *testing.T) {
	for w, body := range answersOf(t, "<think>x</think>\ngoo", false) {
		_, err := ParseReply(w, Known{}, now, 200, nil, body)
		if e, ok := errors.AsType[*Error](err); !ok || e.Facts["partial"] != "goo" {
			t.Errorf("%T: %v", w, err)
		}
		if r, err := ParseReply(w, Known{AcceptTruncated: true}, now, 200, nil, body); err != nil || r.Text != "goo" {
			t.Errorf("%T: %+v, %v", w, r, err)
		}
	}
}

// A content that is a list of parts is joined first.
func TestReasoningInPartsIsNotPartOfTheAnswer(t *testing.T) {
	body := []byte(`{"choices":[{"message":{"content":[{"type":"text","text":"<think>a "},{"type":"text","text":"b</think>"},` +
		`{"type":"thinking","thinking":"c"},{"type":"text","text":"good"}]},"finish_reason":"stop"}]}`)
	if r, err := ParseReply(ChatCompletions{}, Known{}, now, 200, nil, body); err != nil || r.Text != "good" {
		t.Errorf("%+v, %v", r, err)
	}
}

// With a schema the value behind the last closing tag counts, whatever stands before.
func TestValueBehindReasoningSatisfiesASchema(t *testing.T) {
	s := schemaOf(t, reviewSchema)
	const value = `{"mood":"good","stars":5}`
	for _, text := range []string{
		"A label is wanted.\n</think>\n\n" + value,
		"</think>" + value,
		"maybe {\"mood\":\"bad\"}?</thinking>\n```json\n" + value + "\n```<|im_end|>",
		"<think>a</think><think>b</think>" + value,
		"<think>I close with </think>.</think>" + value,
		"</reasoning></think>" + value,
	} {
		if got, err := ValidateReply(s, text); err != nil || string(got) != value {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"A label is wanted.\n</think>\n\n{\"mood\":\"so-so\"}": "missing property 'stars'",
		value + "</think>": "is not one JSON value",
		"A label is wanted.\n</think>\n\nThe label: 1": "is not one JSON value",
	} {
		if _, err := ValidateReply(s, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	quoted := schemaOf(t, `{"type":"object","properties":{"text":{"type":"string"}}}`)
	const mentions = `{"text":"</think>{}"}`
	if got, err := ValidateReply(quoted, mentions); err != nil || string(got) != mentions {
		t.Errorf("%s, %v", got, err)
	}
}

func FuzzReasoning(f *testing.F) {
	for _, seed := range []string{"<think>a</think>b", "<thinking>", "a</think>{}", "\ufeff <reasoning>a</reasoning> </reasoning>1", "<think><think></think>"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		reasoning, answer, found := splitReasoning(text)
		if !found && (answer != text || reasoning != "") || !strings.HasSuffix(text, answer) || !strings.Contains(text, reasoning) {
			t.Errorf("%q: reasoning %q, answer %q, found %t", text, reasoning, answer, found)
		}
		// What a JSON value holds is never taken for the end of reasoning.
		if rest, found := afterReasoning(text); found && json.Valid([]byte(text)) && json.Valid([]byte(rest)) {
			t.Errorf("%q is JSON, and so is %q", text, rest)
		}
	})
}
