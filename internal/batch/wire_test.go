package batch

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/llm-stage/stage/llm"
)

func TestServiceVersionsAreSemantic(t *testing.T) {
	for version, want := range map[string]string{
		"v1.2.3": "1.2.3", "1.2.3-rc.1+x": "1.2.3-rc.1+x", "devel": "0.0.0-devel", "v1.2": "0.0.0-devel", "01.2.3": "0.0.0-devel",
		"v0.0.0-20261121153401-3dd12c5da4fe+dirty": "0.0.0-20261121153401-3dd12c5da4fe+dirty",
	} {
		if got := semanticVersion(version); got != want {
			t.Errorf("%s: %s, want %s", version, got, want)
		}
	}
}

func TestADescriptionFitsIntoAHeader(t *testing.T) {
	if got := oneLine("a\r\nNats-Service-Error-Code: x\tb"); got != "a Nats-Service-Error-Code: x b" {
		t.Errorf("%q", got)
	}
	if got := oneLine(strings.Repeat("ä", 400)); len(got) > 510 || !strings.HasSuffix(got, "ä…") {
		t.Errorf("%q", got)
	}
}

func FuzzReadRequest(f *testing.F) {
	for _, seed := range []string{
		"", "null", `{"prompts": ["a", "b"], "contexts": ["c", null], "max_parallel": 5, "model": null}`,
		`{"prompts": ["\ud800"]}`, `{"prompts": ["a"], "max_parallel": -9223372036854775808}`, `{"Prompts": ["a"], "prompts": null}`,
	} {
		f.Add([]byte(seed))
	}
	batch, err := llm.NewBatch(llm.DefaultBatch())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := ReadRequest(data)
		if err == nil {
			err = batch.Check(r)
		}
		if err != nil {
			body, code, description := encodeReply("openai", nil, err, 1<<20)
			if !json.Valid(body) || code == "" || description == "" || strings.ContainsAny(oneLine(description), "\r\n") {
				t.Errorf("%q of %v: %q, %s", code, err, description, body)
			}
			return
		}
		if len(r.Prompts) == 0 || r.MaxParallel < 0 || r.Contexts != nil && len(r.Contexts) != len(r.Prompts) {
			t.Errorf("%+v", r)
		}
	})
}

func TestErrorsOfDeferredRequestsSayWhatIsWanted(t *testing.T) {
	submit := func(data string) error { _, err := readSubmission([]byte(data)); return err }
	get := func(data string) error { _, err := readQuestion([]byte(data), false); return err }
	for _, tt := range []struct {
		read func(string) error
		data string
		want []string
		not  string
	}{
		{submit, `{"prompts": "a"}`, []string{"prompts is of type string", `"keep": duration`}, "wireRequest"},
		{submit, `{"prompts": ["a"], "keep": 7}`, []string{"keep is of type number", `"keep": duration`, `"id": text`}, ""},
		{submit, `{"prompts": ["a"], "keep": "999ms"}`, []string{"between 1s and 168h0m0s"}, ""},
		{get, `{"id": 7}`, []string{"id is of type number", `{"id": text, "wait": duration`}, "prompts"},
		{get, `{"id": "a", "wait": "1 hour"}`, []string{"between 0s and 10m0s", `such as "5m"`}, ""},
	} {
		err := tt.read(tt.data)
		for _, want := range tt.want {
			if err == nil || !strings.Contains(err.Error(), want) || tt.not != "" && strings.Contains(err.Error(), tt.not) {
				t.Errorf("%s: %v, want %q", tt.data, err, want)
			}
		}
	}
	for _, data := range []string{`{"prompts": ["a"], "keep": "1s"}`, `{"prompts": ["a"], "keep": "168h", "id": "x"}`, `{"prompts": ["a"], "keep": null, "id": null}`} {
		if err := submit(data); err != nil {
			t.Errorf("%s: %v", data, err)
		}
	}
}

func TestAReportTooLargeForAMessageIsCut(t *testing.T) {
	reply := &llm.BatchReply{Results: make([]llm.BatchResult, 5000)}
	for i := range reply.Results {
		reply.Results[i] = llm.BatchResult{Status: llm.BatchError, Error: strings.Repeat("no ", 100), Reason: "api_call_failed"}
	}
	const bytesMax = 1 << 20
	body, code, _ := encodeReply("openai", nil, &llm.AllFailedError{Reply: reply}, bytesMax)
	var got ErrorBody
	if err := json.Unmarshal(body, &got); err != nil || code != CodeAllFailed || !got.ReportCut || *got.Total != 5000 {
		t.Errorf("%v, code %s, cut %v: %.200s", err, code, got.ReportCut, body)
	}
	if n := len(got.Report); len(body) > bytesMax || n < 1000 || n == 5000 {
		t.Errorf("%d bytes, %d in the report", len(body), n)
	}
}
