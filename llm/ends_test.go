package llm

import (
	"errors"
	"strings"
	"testing"
)

func TestFinishReasonIsAFactOfBoundedLength(t *testing.T) {
	long := strings.Repeat("x", 3000)
	_, err := ParseReply(Messages{}, Known{}, now, 200, nil, []byte(`{"content":[],"stop_reason":"`+long+`"}`))
	e, _ := errors.AsType[*Error](err)
	if got, _ := e.Facts["finish_reason"].(string); got != long[:finishBytes]+"…" || len(e.Error()) > 200 {
		t.Errorf("finish_reason %q, error %q", got, e)
	}
}

// Servers that write every member of their structs put an empty error next to an answer.
func TestAnEmptyErrorBesideAnAnswerIsNone(t *testing.T) {
	answers := map[Wire]string{
		ChatCompletions{}: `"choices":[{"finish_reason":"stop","message":{"content":"yes"},"error":ERROR}]`,
		Responses{}:       `"status":"completed","output":[{"type":"message","content":[{"type":"output_text","text":"yes"}]}]`,
		Messages{}:        `"content":[{"type":"text","text":"yes"}],"stop_reason":"end_turn"`,
		GenerateContent{}: `"candidates":[{"finishReason":"STOP","content":{"parts":[{"text":"yes"}]}}]`,
	}
	for w, answer := range answers {
		for object, empty := range map[string]bool{
			`null`: true, `{}`: true, `{ }`: true, `{"message":"","type":"","param":"","code":null}`: true, `{"code":0, "message": "" }`: true,
			`{"code":"x"}`: false, `{"message":"","code":500}`: false,
		} {
			for _, body := range []string{`{"error":ERROR,` + answer + `}`, `{` + answer + `,"error":ERROR}`, `{` + answer + `}`} {
				if !strings.Contains(body, "ERROR") {
					continue
				}
				body = strings.ReplaceAll(body, "ERROR", object)
				r, err := ParseReply(w, Known{}, now, 200, nil, []byte(body))
				e, failed := errors.AsType[*Error](err)
				if failed == empty || failed && e.Reason != ReasonAPICallFailed || !failed && r.Text != "yes" {
					t.Errorf("%T of %s: %v", w, body, err)
				}
			}
		}
		// Without an answer it is still an error.
		_, err := ParseReply(w, Known{}, now, 200, nil, []byte(`{"error":{}}`))
		if e, ok := errors.AsType[*Error](err); !ok || e.Class != Transient || e.Reason != ReasonAPICallFailed {
			t.Errorf("%T without an answer: %v", w, err)
		}
	}
}
