package yamldoc

import (
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest/must"
)

func TestJSONKeepsTheOrderOfMembers(t *testing.T) {
	for source, want := range map[string]string{
		"b: 1\na: [x, 'y', 2.5, ~, yes]":          `{"b":1,"a":["x","y",2.5,null,"yes"]}`,
		"x: &a {q: <é>}\ny: *a":                   `{"x":{"q":"<é>"},"y":{"q":"<é>"}}`,
		`{"type": "object", "minimum": 1}`:        `{"type":"object","minimum":1}`,
		"a: .inf":                                 "line 1, column 4: .inf has no value in JSON",
		"a: &a {q: 1}\nb:\n  <<: *a":              "line 3, column 3: a merge is not supported here",
		"a: &a [1, *a]":                           "inside of its own anchor",
		"a: &a 'xxxxxxxxxx'\nb: [*a, *a, *a, *a]": "line 2, column 13: more than 40 bytes",
	} {
		n := must.Value(Parse([]byte(source)))(t)
		got, err := JSON(n, 40)
		if string(got) != want && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %s, %v, want %s", source, got, err, want)
		}
	}
}
