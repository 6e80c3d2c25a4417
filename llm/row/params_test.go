package row_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/row"
)

// A row's own parameters take precedence over those of all rows, member by member.
func TestParamsOfARow(t *testing.T) {
	for _, tt := range []struct{ body, extra, want, err string }{
		{body: `{"p":{"temperature":0}}`, want: `{"temperature":0}`},
		{body: `{"p":{"temperature":0,"a":{"c":3}}}`, extra: `{"temperature":1,"top_p":0.5,"a":{"b":1,"c":2}}`, want: `{"temperature":0,"top_p":0.5,"a":{"b":1,"c":3}}`},
		{body: `{"x":1}`, extra: `{"top_p":1}`, want: `{"top_p":1}`},
		{body: `{"p":null}`, extra: `{"top_p":1}`, want: `{"top_p":1}`},
		{body: `{"p":{}}`, extra: `{"top_p":1}`, want: `{"top_p":1}`},
		{body: `{"p":[1]}`, err: `the member "p" is no object`},
		{body: `{"p":{"messages":[]}}`, err: `the member "p": "messages" may not be set by a row`},
		{body: `{"p":{"stream":true}}`, err: `the member "p": "stream" is not supported`},
		{body: `{"p":{"n":2}}`, err: `the member "p": "n" may not be set by a row`},
	} {
		got, err := must.Value(row.Parse([]byte(tt.body)))(t).Params("p", []byte(tt.extra))
		if tt.err == "" {
			if err != nil || string(got) != tt.want {
				t.Errorf("%s over %s: %s, %v; want %s", tt.body, tt.extra, got, err, tt.want)
			}
			continue
		}
		if e, ok := errors.AsType[*llm.Error](err); !ok || e.Reason != llm.ReasonInvalidRow || !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %v, want an invalid row: %s", tt.body, err, tt.err)
		}
	}
}
