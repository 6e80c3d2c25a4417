package row_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/redact"
	"github.com/llm-stage/stage/llm/row"
)

// Whatever a row's request is, it is refused as an invalid row, or each provider gets valid
// JSON.
func FuzzRequests(f *testing.F) {
	for _, m := range documented {
		f.Add([]byte(`{"messages":[{"role":"user","content":"hi"}],"` + m.name + `":` + m.value + `}`))
	}
	f.Add([]byte(`{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}],"refusal":"n"},{"role":"tool","tool_call_id":"c","content":[{"type":"text","text":"a"}]}]}`))
	var clients []*llm.Client
	for _, name := range llm.Providers() {
		c := must.Value(llm.NewProvider(name, llm.ProviderConfig{BaseURL: "http://llm.test/v1", Model: "m", APIKey: redact.NewSecret("sk-0123456789abcdef")}))(f)
		clients = append(clients, c)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		parsed, err := row.Parse(append(append([]byte(`{"body":`), body...), '}'))
		if err != nil {
			return
		}
		for _, c := range clients {
			var r llm.Request
			err := new(row.Requests).Read(parsed, "body", &r)
			var p *llm.Prepared
			if err == nil {
				media := 0
				for range llm.MediaOf(r.Messages) {
					media++
				}
				if media > 0 { // they need to be described first
					return
				}
				p, err = c.Prepare(&r)
			}
			if failure, ok := errors.AsType[*llm.Error](err); err != nil {
				if !ok || failure.Class != llm.Permanent {
					t.Fatalf("%s: %v", c.Provider(), err)
				}
				continue
			}
			if !json.Valid(p.Body) {
				t.Fatalf("%s: %s", c.Provider(), p.Body)
			}
		}
	})
}
