package chart

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestTheSchemaNamesTheProgramsVariables generates the config part of values.schema.json.
func TestTheSchemaNamesTheProgramsVariables(t *testing.T) {
	const path = chartDir + "/values.schema.json"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var schema, own map[string]any
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(variableSchema(t)), &own); err != nil {
		t.Fatal(err)
	}
	schema["properties"].(map[string]any)["config"] = map[string]any{
		"type": "object", "additionalProperties": false, "properties": own["properties"],
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(schema); err != nil {
		t.Fatal(err)
	}
	golden(t, path, out.String())
}

// TestTheReadmeHoldsTheValues generates the table of the chart's README from the comments of values.yaml.
func TestTheReadmeHoldsTheValues(t *testing.T) {
	const begin, end = "<!-- values: begin, written by make chart -->\n", "<!-- values: end -->"
	readme, err := os.ReadFile(chartDir + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(readme), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatal("README.md of the chart: the markers of the table are missing")
	}
	text, err := os.ReadFile(chartDir + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	table := &valueTable{t: t}
	table.WriteString("| value | default | meaning |\n| --- | --- | --- |\n")
	table.add(document.Content[0], "")
	golden(t, chartDir+"/README.md", before+begin+table.String()+end+after)
}

// valueTable is the table of values, in the order of values.yaml.
type valueTable struct {
	t *testing.T
	strings.Builder
}

// add writes a line for each key below node that has a comment, and looks below those whose own keys have comments.
func (v *valueTable) add(node *yaml.Node, path string) {
	for i := 0; i < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		name := path + key.Value
		below := value.Kind == yaml.MappingNode && commented(value)
		// What stands above a blank line is not about the key.
		paragraphs := strings.Split(key.HeadComment, "\n\n")
		meaning := strings.TrimSpace(strings.ReplaceAll(strings.ReplaceAll(paragraphs[len(paragraphs)-1], "# ", ""), "\n", " "))
		if meaning == "" && !below {
			v.t.Errorf("values.yaml: %s has no comment", name)
		}
		if meaning != "" {
			fallback := ""
			if !below {
				fallback = "`" + flow(v.t, value) + "`"
			}
			fmt.Fprintf(v, "| `%s` | %s | %s |\n", name, strings.ReplaceAll(fallback, "|", `\|`), strings.ReplaceAll(meaning, "|", `\|`))
		}
		if below {
			v.add(value, name+".")
		}
	}
}

func commented(node *yaml.Node) bool {
	for i := 0; i < len(node.Content); i += 2 {
		if node.Content[i].HeadComment != "" || node.Content[i+1].Kind == yaml.MappingNode && commented(node.Content[i+1]) {
			return true
		}
	}
	return false
}

// flow writes a value on one line.
func flow(t *testing.T, node *yaml.Node) string {
	var value any
	if err := node.Decode(&value); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
