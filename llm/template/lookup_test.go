package template

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm"
)

func TestLookupsFromJSONAndYAMLAreEqual(t *testing.T) {
	want := map[string]any{"labels": []any{"good", "bad"}, "n": int64(3), "f": 1.5, "yes": true, "no": nil, "m": map[string]any{"k": "v", "1": "one"}, "big": json.Number("18446744073709551615")}
	for _, content := range []string{
		`{"labels":["good","bad"],"n":3,"f":1.5,"yes":true,"no":null,"m":{"k":"v","1":"one"},"big":18446744073709551615}`,
		"labels: [good, bad]\nn: 3\nf: 1.5\n\"yes\": true\n\"no\": ~\nm:\n  k: v\n  1: one\nbig: 18446744073709551615\n",
		"\ufeff" + `{"labels":["good","bad"],"n":3,"f":1.5,"yes":true,"no":null,"m":{"k":"v","1":"one"},"big":18446744073709551615}`,
		"\ufefflabels: [good, bad]\r\nn: 3\r\nf: 1.5\r\n\"yes\": true\r\n\"no\": ~\r\nm:\r\n  k: v\r\n  1: one\r\nbig: 18446744073709551615\r\n",
		"# comment\nlabels:\n- &g good\n- bad\nn: 0x3\nf: 1.5\n'yes': true\nno: null\nbase: &b {k: v}\nm:\n  <<: *b\n  1: one\nbig: 18446744073709551615\n",
	} {
		l, err := ParseLookup([]byte(content), "l.yaml")
		if err != nil {
			t.Errorf("%s: %v", content, err)
			continue
		}
		if m, ok := l.value.(map[string]any); ok {
			delete(m, "base")
		}
		if !reflect.DeepEqual(l.value, want) {
			t.Errorf("%s\n got %#v\nwant %#v", content, l.value, want)
		}
		if l.Hash() != llm.Hash([]byte(content)) || l.Source() != "l.yaml" {
			t.Errorf("hash %s, source %s", l.Hash(), l.Source())
		}
	}
}

func TestLookupErrorsNameTheProblem(t *testing.T) {
	for content, want := range map[string]string{
		"":                                   "neither a mapping nor a list",
		"hello":                              "neither a mapping nor a list",
		"3":                                  "neither a mapping nor a list",
		`{"a":1,"a":2}`:                      "an object has a duplicate key",
		`{"x":[{"":1,"":2}]}`:                "an object has a duplicate key",
		"a: 1\na: 2\n":                       `line 2, column 1: mapping key "a" already defined at line 1, column 1`,
		"a: 1\n---\nb: 2\n":                  "line 3, column 1: a second document: write all into one",
		"a: [1\n":                            "line 2, column 1: did not find expected ',' or ']'",
		"a: *nope\n":                         "line 1, column 4: unknown anchor 'nope' referenced",
		"d: !!timestamp 2020-01-01":          "line 1, column 4: a value of the type !!timestamp is not supported: write it as a string, in quotes",
		"d: !!binary aGk=":                   "line 1, column 4: a value of the type !!binary is not supported",
		"a: \xff":                            "invalid UTF-8 at byte 3",
		"? {a: 1}\n: x\n":                    "invalid key",
		strings.Repeat("a", maxLookupYAML+1): "convert it to JSON",
		strings.Repeat("[", 100_000):         "line 1, column 1001: exceeded max depth of 1000",
	} {
		_, err := ParseLookup([]byte(content), "data/l.yaml")
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "lookup data/l.yaml: ") {
			t.Errorf("%.40q: %v, want %s", content, err, want)
		}
	}
}

func TestAliasesOfAliasesCostNothing(t *testing.T) {
	var b strings.Builder
	b.WriteString("a0: &a0 [x, x]\n")
	for i := 1; i < 100; i++ {
		fmt.Fprintf(&b, "a%d: &a%d [*a%d, *a%d]\n", i, i, i-1, i-1)
	}
	l := must.Value(ParseLookup([]byte(b.String()), ""))(t)
	tpl := must.Value(Parse([]byte("{{ lookup.a99 }}"), Options{Lookup: l}))(t)
	if _, err := tpl.Render(mustRow(t, "{}")); err == nil || !strings.Contains(err.Error(), "units of work") {
		t.Error(err)
	}
}

func TestLoadLookupReadsAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l.json")
	if _, err := LoadLookup(path); err == nil || !strings.HasPrefix(err.Error(), "lookup: open ") {
		t.Error(err)
	}
	must.Do(t, os.WriteFile(path, []byte(`[1]`), 0o600))
	l, err := LoadLookup(path)
	if err != nil || l.Source() != path {
		t.Errorf("%+v, %v", l, err)
	}
}

func FuzzParseLookup(f *testing.F) {
	for _, s := range []string{`{"a":[1,{"b":null}]}`, "a: &x [1]\nb: *x\nc:\n  - d: |\n      text\n", "<<: {a: 1}\n", "a: !!int 3\n? b\n: c\n", "- - - 1\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		l, err := ParseLookup(content, "")
		if err != nil {
			return
		}
		if _, err := json.Marshal(l.value); err != nil && !strings.Contains(err.Error(), "unsupported value") { // .nan and .inf
			t.Fatalf("%q: %v", content, err)
		}
	})
}
