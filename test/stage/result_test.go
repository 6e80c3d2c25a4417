package stage_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/llm-stage/stage/internal/lab/llmtest"
	"github.com/llm-stage/stage/internal/stagetest"
	"github.com/llm-stage/stage/llm"
	"github.com/nats-io/nats.go"
)

// says is a chat completion without usage.
func says(text, finish string) string {
	body, err := json.Marshal(map[string]any{
		"model":   "small-2025",
		"choices": []any{map[string]any{"index": 0, "message": map[string]any{"role": "assistant", "content": text}, "finish_reason": finish}},
	})
	if err != nil {
		panic(err)
	}
	return string(body)
}

// always answers every call alike.
func always(step llmtest.Step) llmtest.Config {
	return llmtest.Config{Script: func(llmtest.Call) *llmtest.Step { return &step }}
}

func TestAResultIsTheRowAndTheAddedFieldsToTheLetter(t *testing.T) {
	const template = "About {{ row.product }}: {{ lookup.tone }}"
	const lookup = "tone: calm\n"
	const usage = `,"usage":{"prompt_tokens":12,"completion_tokens":3,"total_tokens":15,` +
		`"prompt_tokens_details":{"cached_tokens":8},"completion_tokens_details":{"reasoning_tokens":2},"cost":0.0025}`
	const reported = `{"prompt_tokens":12,"completion_tokens":3,"total_tokens":15,"cached_tokens":8,"reasoning_tokens":2,"cost":0.0025}`
	hash := func(s string) string { return llm.Hash([]byte(s)) }
	provenance := func(template, lookup string) string {
		return `"llm_response_template_source":"` + template + `","llm_response_lookup_hash":"` + hash("tone: calm\n") + `","llm_response_lookup_source":"` + lookup + `"`
	}
	tests := []struct {
		name, row string
		usage     string // in the reply
		reported  string // in the result
		variables string // canonical
		kept      string // beginning of the result
	}{
		{
			name: "bytes are kept", row: `{"product": "kettle",  "b":1.50, "a":12345678901234567890,"nested":{"z":null,"y":[1 , 2]},"u":"\u00e9é"}`,
			usage: usage, reported: reported, variables: `{"a":12345678901234567890,"b":1.50,"nested":{"y":[1,2],"z":null},"product":"kettle","u":"éé"}`,
			kept: `{"product": "kettle",  "b":1.50, "a":12345678901234567890,"nested":{"z":null,"y":[1 , 2]},"u":"\u00e9é",`,
		},
		{
			name: "usage that was not reported is null", row: `{"product":"kettle"}`,
			reported: "null", variables: `{"product":"kettle"}`, kept: `{"product":"kettle",`,
		},
		{
			name: "fields of these names are replaced", row: `{"llm_response":"old","product":"kettle","llm_response_error":{"reason":"old"},"llm_response_model":"old","id":7}`,
			reported: "null", variables: `{"id":7,"llm_response":"old","llm_response_error":{"reason":"old"},"llm_response_model":"old","product":"kettle"}`,
			kept: `{"product":"kettle","id":7,`,
		},
	}
	templateFile, lookupFile := stagetest.File(t, "prompt.jinja", template), stagetest.File(t, "lookup.yaml", lookup)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		reply := says("It is \"fine\" & <good>\n", "stop")
		var steps []llmtest.Step
		for _, tt := range tests {
			steps = append(steps, llmtest.Step{Body: strings.TrimSuffix(reply, "}") + tt.usage + "}"})
		}
		s := newSite(t, llmtest.Config{Script: llmtest.Steps(steps...)})
		s.newInput()
		for _, tt := range tests {
			s.publish(tt.row, nil)
		}
		r := s.start(vars{"STAGE_TEMPLATE": "", "STAGE_TEMPLATE_FILE": templateFile, "STAGE_LOOKUP_FILE": lookupFile, "STAGE_POOL_SIZE": "1"})
		s.await(len(tests))
		r.stop()
		s.verify()
		results := s.results(0)
		for i, tt := range tests {
			want := tt.kept + `"llm_response":"It is \"fine\" & <good>\n","llm_response_usage":` + tt.reported +
				`,"llm_response_template_hash":"` + hash(template) + `","llm_response_variables_hash":"` + hash(tt.variables) + `",` +
				provenance(templateFile, lookupFile) + `,"llm_response_model":"small-2025"}`
			if got := string(results[i].Body); got != want {
				t.Errorf("%s: got  %s\nwant %s", tt.name, got, want)
			}
		}
		for _, call := range s.tap.seen() {
			if want := `{"model":"small","messages":[{"role":"user","content":"About kettle: calm"}]}`; string(call.Request) != want {
				t.Errorf("sent %s, want %s", call.Request, want)
			}
		}
	})
}

func TestTheResponseFieldNamesAllFields(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, llmtest.Config{})
		s.newInput()
		s.publish(`{"n":1}`, nil)
		s.publish(`{"other":1}`, nil)
		r := s.start(vars{"STAGE_RESPONSE_FIELD": "answer"})
		s.await(2)
		r.stop()
		results := s.results(0)
		if got, want := fieldNames(t, results[0].Body), []string{
			"n", "answer", "answer_usage", "answer_template_hash", "answer_variables_hash", "answer_template_source",
			"answer_lookup_hash", "answer_lookup_source", "answer_model",
		}; !slices.Equal(got, want) {
			t.Errorf("fields %q, want %q", got, want)
		}
		if got, want := fieldNames(t, results[1].Body), []string{"other", "answer_error"}; !slices.Equal(got, want) {
			t.Errorf("fields of an error %q, want %q", got, want)
		}
	})
}

// fieldNames lists the members of an object in their order.
func fieldNames(t *testing.T, body []byte) (names []string) {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(string(body)))
	stagetest.Value(dec.Token())(t)
	for dec.More() {
		name := stagetest.Value(dec.Token())(t)
		names = append(names, name.(string))
		var value json.RawMessage
		stagetest.Must(t, dec.Decode(&value))
	}
	return names
}

func TestHeadersOfTheRowPassOnExceptThoseOfNATSAndStage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, llmtest.Config{})
		s.newInput()
		row := s.publish(`{"n":1}`, nats.Header{
			"traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, "X-Tenant": {"a", "b"}, "lower": {"x"},
			"Nats-Msg-Id": {"my-id"}, "Stage-Model": {"large"}, "Stage-Owner": {"somebody"}, "Stage-Reason": {"old"}, "Stage-Status": {"success"},
		})
		r := s.start(nil)
		s.await(1)
		r.stop()
		s.verify()
		res := one(t, "results", s.results(0))
		got := maps.Clone(res.Header)
		owner := got.Get("Stage-Owner")
		maps.DeleteFunc(got, func(name string, _ []string) bool {
			return name == "Stage-Owner" || name == "Stage-Chain" || name == "Stage-Event" || strings.HasPrefix(name, "Nats-Expected-") // the condition of the append
		})
		want := nats.Header{
			"traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, "X-Tenant": {"a", "b"}, "lower": {"x"},
			"Stage-Source-Stream": {"ROWS"}, "Stage-Source-Seq": {"1"}, "Stage-Source-Subject": {"rows.a"},
			"Stage-Status": {"success"}, "Stage-State-Id": {"stage/ROWS/0/1"},
		}
		if row != 1 || !maps.EqualFunc(got, want, slices.Equal) {
			t.Errorf("headers %v, want %v", got, want)
		}
		if owner == "" || owner == "somebody" {
			t.Errorf("owner %q", owner)
		}
	})
}

func TestARowMayNameItsModel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, llmtest.Config{Script: func(c llmtest.Call) *llmtest.Step {
			if c.Model == "unheard-of" {
				return &llmtest.Step{Status: 404, Body: `{"error":{"message":"no such model","type":"invalid_request_error","code":"model_not_found"}}`}
			}
			return nil
		}})
		s.newInput()
		s.publish(`{"n":1}`, nats.Header{"Stage-Model": {"unheard-of"}}) // the row's own mistake: no reason to pause
		s.publish(`{"n":2}`, nats.Header{"Stage-Model": {"large"}})
		s.publish(`{"n":3}`, nil)
		r := s.start(nil)
		s.await(3)
		r.stop()
		a := s.verify()
		results := s.results(0)
		if f := results[0].Fault; f == nil || f.Reason != "api_call_failed" || f.Raw["provider_code"] != "model_not_found" {
			t.Errorf("an unknown model named by the row: %s", results[0].Body)
		}
		for i, want := range []string{"large", "small"} {
			if body := string(results[i+1].Body); !strings.HasSuffix(body, `"llm_response_model":"`+want+`"}`) {
				t.Errorf("result %s, want model %s", body, want)
			}
			if calls, _ := eventsOf(t, &a, uint64(i+2)); one(t, "calls", calls).Model != want {
				t.Errorf("call event names %s, want %s", calls[0].Model, want)
			}
		}
	})
}

func TestAReplyThatDoesNotValidateIsRequestedAgain(t *testing.T) {
	const schema = `{"type":"object","required":["stars"],"properties":{"stars":{"type":"integer","minimum":1,"maximum":5}},"additionalProperties":false}`
	path := stagetest.File(t, "schema.json", schema)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answers := map[int][]string{
			1: {`{"stars": 4}`},
			2: {`four stars`, `{"stars":9}`, "```json\n{\"stars\":5}\n```"},
			3: {`{"stars":0}`, `{"stars":0}`, `{"stars":0}`, `{"stars":3}`}, // the fourth is not requested
		}
		s := newSite(t, llmtest.Config{Script: oneAtATime(func(c llmtest.Call) *llmtest.Step {
			var body struct {
				Messages []struct{ Content string }
			}
			if err := json.Unmarshal(c.Body, &body); err != nil {
				return &llmtest.Step{Status: 400}
			}
			row := promptRow(body.Messages[0].Content)
			next := answers[row][0]
			answers[row] = answers[row][1:]
			return &llmtest.Step{Body: says(next, "stop")}
		})})
		s.newInput()
		s.load(3)
		r := s.start(vars{"STAGE_RESPONSE_SCHEMA_FILE": path})
		s.await(3)
		r.stop()
		a := s.verify()
		results := s.results(0)
		for i, want := range []string{`{"stars":4}`, `{"stars":5}`} {
			var body struct {
				Value json.RawMessage `json:"llm_response"`
			}
			if err := json.Unmarshal(results[i].Body, &body); err != nil || string(body.Value) != want {
				t.Errorf("result %d holds %s (%v), want the value %s", i, body.Value, err, want)
			}
		}
		if f := results[2].Fault; f == nil || f.Reason != "schema_validation_failed" || len(f.Errors) != 3 {
			t.Errorf("three replies that do not validate: %s", results[2].Body)
		}
		if calls, row := eventsOf(t, &a, 2); len(calls) != 3 || row.Attempts != 3 || len(row.Errors) != 2 {
			t.Errorf("row 2: %d calls, %d attempts, %d errors; want 3, 3, 2", len(calls), row.Attempts, len(row.Errors))
		}
	})
}
