package yamldoc

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cockroachdb/datadriven"
	"github.com/llm-stage/stage/internal/stagetest/must"
	"go.yaml.in/yaml/v4"
)

// show prints a value with its type: 1 is a whole number, 1f has a point, n1 is a whole number above int64.
func show(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64) + "f"
	case string:
		return strconv.Quote(v)
	case json.Number:
		return "n" + string(v)
	case []any:
		parts := make([]string, len(v))
		for i := range v {
			parts[i] = show(v[i])
		}
		return "[" + strings.Join(parts, " ") + "]"
	case map[string]any:
		var parts []string
		for _, name := range slices.Sorted(maps.Keys(v)) {
			parts = append(parts, strconv.Quote(name)+":"+show(v[name]))
		}
		return "{" + strings.Join(parts, " ") + "}"
	}
	return fmt.Sprint(v)
}

// read returns the value of a text.
func read(text string) (any, error) {
	root, err := Parse([]byte(text))
	if err != nil || root == nil {
		return nil, err
	}
	return Value(root)
}

func TestValuesStayAsTheyWere(t *testing.T) {
	file := must.Value(os.Open("testdata/values.txt"))(t)
	defer file.Close() //nolint:errcheck // read only
	n := 0
	for lines := bufio.NewScanner(file); lines.Scan(); {
		quoted, want, ok := strings.Cut(lines.Text(), "\t")
		if !ok {
			continue // a comment
		}
		text, err := strconv.Unquote(quoted)
		if err != nil {
			t.Fatal(quoted, err)
		}
		if value, err := read(text); err != nil || show(value) != want {
			t.Errorf("%s: %s, %v, want %s", quoted, show(value), err, want)
		}
		n++
	}
	if n < 400 {
		t.Errorf("%d documents, want all of them", n)
	}
}

// Where the parser that stage had before this one was wrong.
func TestValuesThatAreReadBetter(t *testing.T) {
	for _, row := range []struct{ text, want, was string }{
		{"v: a\tb\n", `{"v":"a\tb"}`, `{"v":"ab"}`},
		{"a: \"x\r\n  y\"\r\n", `{"a":"x y"}`, `{"a":"x\ny"}`},
		{"\ufeffa: 1\n", `{"a":1}`, `{"\ufeffa":1}`},
		{"\ufeff- 1\n", `[1]`, "an error"},
		{"v: !!str ~\n", `{"v":"~"}`, `{"v":""}`},
		{"a: !!int '0x10'\n", `{"a":16}`, `{"a":0}`},
		{"a: !!float 1e3\n", `{"a":1000f}`, `{"a":1000f}`},
		{"a: |+\n\nb: 1\n", `{"a":"\n" "b":1}`, "an error"},
		{"---\n---\na: 1\n", `{"a":1}`, "an error"},
		{"%YAML 1.2\n%TAG !e! tag:e,2000:\n---\na: !e!x 1\n", `{"a":"1"}`, "an error"},
		{"? \n: x\n", `{"null":"x"}`, "an error"},
	} {
		if value, err := read(row.text); err != nil || show(value) != row.want {
			t.Errorf("%q: %s, %v, want %s (it was %s)", row.text, show(value), err, row.want, row.was)
		}
	}
}

// TestErrorsNameThePlace runs testdata/errors.txt.
func TestErrorsNameThePlace(t *testing.T) {
	datadriven.RunTest(t, "testdata/errors.txt", func(t *testing.T, d *datadriven.TestData) string {
		text := d.Input
		if d.HasArg("quoted") {
			text = must.Value(strconv.Unquote(text))(t)
		}
		value, err := read(text)
		if _, ok := errors.AsType[*Error](err); !ok {
			t.Errorf("%.60q: %s, %v", text, show(value), err)
		}
		return fmt.Sprintln(err)
	})
}

// hostile are files that cost another parser gigabytes, minutes or the process. ok: they are read.
var hostile = map[string]struct {
	text string
	ok   bool
	want string // of the error
}{
	"open brackets":         {strings.Repeat("[", 100_000), false, "exceeded max depth of 1000"},
	"open braces":           {strings.Repeat("{", 100_000), false, "exceeded max depth of 1000"},
	"brackets of keys":      {strings.Repeat("{[", 100_000), false, "exceeded max depth of 1000"},
	"dashes":                {strings.Repeat("- ", 1<<19), false, "exceeded max depth of 1000"},
	"question marks":        {strings.Repeat("? ", 1<<19), false, "exceeded max depth of 1000"},
	"deep blocks":           {deepBlocks(1500), false, "exceeded max depth of 1000"},
	"nested within":         {strings.Repeat("[", 999) + strings.Repeat("]", 999), true, ""},
	"colons":                {strings.Repeat("a: ", 1<<18), false, ""},
	"a long scalar":         {"a: " + strings.Repeat("x", 1<<20), true, ""},
	"a long comment":        {"a: 1 #" + strings.Repeat("x", 1<<20), true, ""},
	"many directives":       {strings.Repeat("%TAG !a tag:a\n", 1<<16), false, ""},
	"many numbers":          {"[" + strings.Repeat("1,", 1<<19) + "1]", false, "too many for YAML"},
	"spaces":                {"a:" + strings.Repeat(" ", 1<<20) + "1", true, ""},
	"aliases of aliases":    {laughs(30, 9), true, ""},
	"a chain of aliases":    {laughs(2000, 1), false, "nested deeper than 1000"},
	"many anchors":          {many(10_000, "- &a%d x\n"), true, ""},
	"many merges":           {"a: &a {x: 1}\nb:\n" + many(5000, "  k%d: {<<: *a}\n"), true, ""},
	"merges of a large map": {"a: &a {" + many(1000, "k%d: 1,") + "}\n" + many(1001, "m%d: {<<: *a}\n"), false, "copy more than 1000000 members"},
	"a list of merges":      {"a: &a {" + many(1000, "k%d: 1,") + "}\nb: {<<: [" + strings.Repeat("*a,", 1001) + "]}\n", false, "copy more than 1000000 members"},
	"many keys":             {many(10_000, "key%d: 1\n"), true, ""},
}

func many(n int, line string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, line, i)
	}
	return b.String()
}

func deepBlocks(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return b.String()
}

// laughs is a bomb of aliases: each of n lists has the one before it so many times.
func laughs(n, times int) string {
	var b strings.Builder
	b.WriteString("- &a0 [lol]\n")
	for i := 1; i < n; i++ {
		fmt.Fprintf(&b, "- &a%d [%s]\n", i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), times), ", "))
	}
	return b.String()
}

func TestHostileFilesAreReadWithinBounds(t *testing.T) {
	for name, file := range hostile {
		t.Run(name, func(t *testing.T) {
			_, err := read(file.text)
			if (err == nil) != file.ok || err != nil && !strings.Contains(err.Error(), file.want) {
				t.Errorf("error %v, want one: %t, %s", err, !file.ok, file.want)
			}
		})
	}
}

func TestMarksAreBounded(t *testing.T) {
	for _, mark := range []string{",", "[", "{", "&", "*", "!", "\n", `""`, "''"} {
		if err := checkSize([]byte(strings.Repeat(mark, marksMax))); err != nil {
			t.Errorf("%q at the bound: %v", mark, err)
		}
		if err := checkSize([]byte(strings.Repeat(mark, marksMax+1))); err == nil {
			t.Errorf("%q above the bound: no error", mark)
		}
	}
}

func BenchmarkHostile(b *testing.B) {
	for name, file := range hostile {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(file.text)))
			for b.Loop() {
				_, _ = read(file.text)
			}
		})
	}
}

// A merge that refers to a place is shown at the mapping that has it.
func TestErrorAtNamesTheLastKeyThatIsThere(t *testing.T) {
	root := must.Value(Parse([]byte("a: &a {x: 1}\nb:\n  <<: *a\n  y: 2\n")))(t)
	for _, row := range []struct {
		path []string
		line int
	}{{nil, 1}, {[]string{"b"}, 2}, {[]string{"b", "y"}, 4}, {[]string{"b", "x"}, 2}, {[]string{"c", "x"}, 1}} {
		if e := ErrorAt(root, row.path, "wrong"); e.Line != row.line {
			t.Errorf("%v: line %d, want %d", row.path, e.Line, row.line)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"a: &x [1]\nb: *x\nc:\n  - d: |\n      text\n", "<<: {a: 1}\n", "a: !!int 3\n? b\n: c\n", "- - - 1\n", "%YAML 1.2\n---\na: \u2028\n", "{a:1}", "a: 0x-1\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		root, err := Parse(text)
		if err != nil {
			e, ok := errors.AsType[*Error](err)
			lines := strings.Count(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(text)), "\n") + 1
			if !ok || e.Text == "" || e.Line < 0 || e.Line > lines+1 || !utf8.ValidString(e.Error()) {
				t.Fatalf("%q: %#v", text, err)
			}
			return
		}
		if root == nil {
			return
		}
		value, err := Value(root)
		if err != nil {
			if _, ok := errors.AsType[*Error](err); !ok {
				t.Fatalf("%q: %#v", text, err)
			}
			return
		}
		checkValue(t, text, value)
		if root.Kind == yaml.ScalarNode && IsNull(root) && value != nil {
			t.Errorf("%q is null and %v", text, value)
		}
	})
}

// checkValue checks the types of a small value.
func checkValue(t *testing.T, text []byte, value any) {
	t.Helper()
	left := 10_000
	var check func(v any)
	check = func(v any) {
		if left--; left < 0 {
			return
		}
		switch v := v.(type) {
		case nil, bool, string, int64, float64, json.Number:
		case []any:
			for _, part := range v {
				check(part)
			}
		case map[string]any:
			for _, part := range v {
				check(part)
			}
		default:
			t.Fatalf("%q: a value of the type %T", text, v)
		}
	}
	check(value)
}
