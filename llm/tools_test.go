package llm

import (
	"strings"
	"testing"
)

func TestToolsAreThoseOfOpenAIsForm(t *testing.T) {
	const label = `{"type":"function","function":{"name":"label","description":"d","parameters":{"type":"object"},"strict":true}}`
	for source, want := range map[string]string{
		`[` + label + `]`: "",
		` [{"type":"function","function":{"name":"skip","parameters":null}}]`: "",
		`{}`:                                   "not a list of tools",
		`["label"]`:                            "tool 1: not a tool",
		`[{"type":"web_search"}]`:              `tool 1: type: "web_search" is not supported`,
		`[{"type":"function","name":"label"}]`: "tool 1: name: is unknown",
		`[{"type":"function","function":{}}]`:  "tool 1: function.name: is missing",
		`[` + label + `,` + label + `]`:        `tool 2: function.name: "label" is the name of an earlier tool`,
		`[{"type":"function","function":{"name":"a b"}}]`:                                         "tool 1: function.name: must be a text of 1 to 64",
		`[{"type":"function","function":{"name":"a","parameters":{}}}]`:                           `tool 1: function.parameters: must be a JSON Schema of the type "object"`,
		`[{"type":"function","function":{"name":"a","strict":1,"description":[],"returns":"x"}}]`: "function.strict: must be true or false\nfunction.description: must be a text\nfunction.returns: is unknown",
	} {
		tools, err := ParseTools([]byte(source))
		switch {
		case want == "" && (err != nil || len(tools) != 1):
			t.Errorf("%s: %v, %v", source, tools, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: got %v, want %s", source, err, want)
		}
	}
}

func TestAToolChoiceNamesATool(t *testing.T) {
	tools := []Tool{{Name: "label"}, {Name: "skip"}}
	for _, c := range []struct {
		raw, want string
		choice    ToolChoice
	}{
		{`null`, "", ToolChoice{}},
		{`"required"`, "", ToolChoice{Mode: ToolsRequired}},
		{`{"type":"function","function":{"name":"skip"}}`, "", ToolChoice{Mode: ToolsFunction, Function: "skip"}},
		{`{"type":"function","function":{"name":"drop"}}`, `names "drop"`, ToolChoice{}},
		{`"skip"`, "must be auto, none, required", ToolChoice{}},
		{`"drop"`, `"drop" is no tool: choose auto, none, required, or one of label, skip`, ToolChoice{}},
		{`7`, "must be auto", ToolChoice{}},
	} {
		choice, err := ReadToolChoice([]byte(c.raw), tools)
		if c.want == "" && (err != nil || choice != c.choice) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, %v, want %v %s", c.raw, choice, err, c.choice, c.want)
		}
	}
	for _, word := range []string{"skip", `{"type":"function","function":{"name":"skip"}}`} {
		if choice, err := ParseToolChoice(word, tools); err != nil || choice.Function != "skip" {
			t.Errorf("%s: %v, %v", word, choice, err)
		}
	}
	if _, err := ParseToolChoice(`{"type":"function"`, tools); err == nil {
		t.Error("an object that is cut is taken")
	}
	if _, err := ParseToolChoice("auto", nil); err == nil {
		t.Error("a choice among no tools is taken")
	}
}
