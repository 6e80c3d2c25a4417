package config

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"testing"

	"github.com/llm-stage/stage/consumer/streams"
)

func TestEverySettingOfTheConsumerHasAName(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../../consumer/streams/setting.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	fields := 0
	ast.Inspect(file, func(n ast.Node) bool {
		spec, is := n.(*ast.ValueSpec)
		if !is || len(spec.Values) != 1 {
			return true
		}
		if value, is := spec.Values[0].(*ast.BasicLit); is {
			fields++
			name, err := strconv.Unquote(value.Value)
			if err != nil || settings[streams.Field(name)] == "" {
				t.Errorf("field %s: no setting of that name (%v)", name, err)
			}
		}
		return true
	})
	if fields != len(settings) {
		t.Errorf("%d fields, %d settings", fields, len(settings))
	}
}
