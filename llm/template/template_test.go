package template

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cockroachdb/datadriven"
	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/row"
	"github.com/llm-stage/stage/llm/template/internal/value"
)

func render(source, body string) (string, error) {
	tpl, err := Parse([]byte(source), Options{Source: "prompts/prompt.j2", NoItem: "name it"})
	if err != nil {
		return "", err
	}
	r, err := row.Parse([]byte(body))
	if err != nil {
		return "", err
	}
	return tpl.Render(r)
}

// runFile renders each template of a file, and compares what it renders to, or its error.
func runFile(t *testing.T, path string, row *row.Row, o Options) {
	t.Helper()
	datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
		source := d.Input
		if d.HasArg("quoted") {
			source = must.Value(strconv.Unquote(source))(t)
		}
		tpl, err := Parse([]byte(source), o)
		if err != nil {
			return fmt.Sprintf("does not compile: %v\n", err)
		}
		got, err := tpl.Render(row)
		if err == nil {
			return fmt.Sprintf("%q\n", got)
		}
		e, ok := errors.AsType[*llm.Error](err)
		if !ok || e.Facts["template_hash"] != llm.Hash([]byte(source)) || e.Facts["template_source"] != any(o.Source) && o.Source != "" {
			t.Errorf("%q: facts %v", source, e.Facts)
		}
		return fmt.Sprintf("%v\n", err)
	})
}

func TestTemplateErrorsNameProblemAndLine(t *testing.T) {
	row := mustRow(t, `{"id":1,"text":"abc","none":null,"list":[1,2],"o":{}}`)
	o := Options{Source: "prompts/prompt.j2", NoItem: "name it"}
	runFile(t, "testdata/errors.txt", row, o)
	for source, want := range map[string]string{
		"{{ " + strings.Repeat("9", 4301) + " }}":   "the number 999999999999999999999999999999 is too large (line 1 of prompt.j2)",
		"{{ 0x" + strings.Repeat("f", 4000) + " }}": "the number 0xffffffffffffffffffffffffffff is too large (line 1 of prompt.j2)",
	} {
		if _, err := Parse([]byte(source), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20s: %v, want %s", source, err, want)
		}
	}
}

// TestSyntaxIsThatOfJinja has what Jinja 3.1.6 renders with StrictUndefined.
func TestSyntaxIsThatOfJinja(t *testing.T) {
	runFile(t, "testdata/syntax.txt", mustRow(t, `{"n":3,"s":"ab","l":[1,2,3],"o":{"is":1,"k":"v"}}`), Options{})
}

// Each element is rendered by itself, so nothing is known of the last call: loop.changed
// would be true of each.
func TestLoopOfAnElementHasNoChanged(t *testing.T) {
	r := must.Value(row.Parse([]byte(`{"list":[1,1]}`)))(t)
	items := must.Value(r.Items("list", 2))(t)
	for source, want := range map[string]string{
		"a\n{{ loop.changed(item) }}":                                "loop.changed is not available for elements",
		"{% for x in [1] if loop.changed(x) %}{% endfor %}":          "loop.changed is not available for elements",
		"{% set l = loop %}{{ l.changed(item) }}":                    "loop.changed is not available for elements",
		"{% for x in [1, 1] %}{{ loop.changed(x) }} {% endfor %}":    "",
		"{{ loop.cycle('a', 'b') }}{{ loop.index0 }}{{ loop.last }}": "",
	} {
		tpl, err := Parse([]byte(source), Options{Item: true})
		if err == nil {
			_, err = tpl.RenderItem(items, 1)
		}
		if got := fmt.Sprint(err); (err == nil) != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%q: got %v, want %q", source, err, want)
		}
	}
	if _, err := Parse([]byte("{{ loop.changed(item) }}"), Options{Item: true}); err == nil {
		t.Error("loop.changed of an element is found at a row only, want it refused at start")
	}
}

func TestHintsStayShort(t *testing.T) {
	var row strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&row, `,"%s%03d":1`, strings.Repeat("é", 100), i)
	}
	_, err := render("{{ row.x }}", "{"+row.String()[1:]+"}")
	if err == nil || len(err.Error()) > 1500 || !utf8.ValidString(err.Error()) || !strings.Contains(err.Error(), "and 980 more") {
		t.Error(err)
	}
}

func TestTemplateHasItsProvenance(t *testing.T) {
	source := []byte("{{ row.a }}\r\n")
	tpl := must.Value(Parse(source, Options{Source: "a/b.j2"}))(t)
	if tpl.Hash() != llm.Hash(source) || tpl.Source() != "a/b.j2" || tpl.Lookup() != nil {
		t.Errorf("hash %s, source %q, lookup %v", tpl.Hash(), tpl.Source(), tpl.Lookup())
	}
	inline := must.Value(Parse(source, Options{}))(t)
	_, err := inline.Render(mustRow(t, "{}"))
	e, _ := errors.AsType[*llm.Error](err)
	if e == nil || e.Facts["template_source"] != nil || !strings.Contains(err.Error(), "(line 1 of the template)") {
		t.Error(err)
	}
}

func TestBigIntegersKeepTheirDigits(t *testing.T) {
	got, err := render(`{{ row.id }} {{ [row.id] }} {{ row.id|tojson }} {{ row.id + 1 }} {{ row.id == row.id }} {{ row.id > 5 }} {{ {"18446744073709551615": "found"}[row.id] }} {{ 9 in [row.id] }}`,
		`{"id":18446744073709551615}`)
	const want = "18446744073709551615 [18446744073709551615] 18446744073709551615 18446744073709551616 True True found False"
	if got != want || err != nil {
		t.Errorf("got %q, %v\nwant %q", got, err, want)
	}
}

// Differences from Jinja2 that are not errors; docs/templates.md lists them.
func TestDifferencesFromJinja2(t *testing.T) {
	const row = `{"b":1,"a":{"z":1,"y":2},"items":"field","n":3}`
	for source, want := range map[string]string{
		`{{ row.a }}{% for k in row.a %}{{ k }}{% endfor %}`:                                             `{'y': 2, 'z': 1}yz`, // sorted keys
		`{{ row.items }} {{ row.a.items() }}`:                                                            `field dict_items([('y', 2), ('z', 1)])`,
		`{{ [1]|map("string") }}`:                                                                        `['1']`, // a list, not a generator
		`{{ row.no.such.thing|default("d") }}{{ row.no.such is defined }}`:                               `dFalse`,
		`{{ 'A' in row.items.upper()|lower }} {{ ("f" in row.items)|string }} {{ (1 + row.n) is even }}`: `False True True`,
		`{{ "x" if row.n == 4 }}|`:                                                                       `|`,
		`{{ {"1": "a"}[1] }}`:                                                                            `a`,
		`{{ "é"|tojson(ensure_ascii=false) }}`:                                                           `"é"`,
		`{{ ("<"|e) + "<" }}{{ "<"|e|e }}{{ "<"|safe|e }}`:                                               `&lt;<&amp;lt;&lt;`, // text, not Markup
	} {
		if got, err := render(source, row); got != want || err != nil {
			t.Errorf("%s\n got %q, %v\nwant %q", source, got, err, want)
		}
	}
}

func TestLimitsAreSettings(t *testing.T) {
	row := mustRow(t, `{"s":"0123456789"}`)
	for _, c := range []struct {
		source string
		o      Options
		want   string
	}{
		{"{{ row.s }}", Options{MaxOutput: 10}, ""},
		{"{{ row.s }}!", Options{MaxOutput: 10}, "the text is larger than 10 bytes"},
		{"{% set x %}{{ row.s }}!{% endset %}", Options{MaxOutput: 10}, "the text is larger than 10 bytes"},
		{"{{ row.s }}", Options{MaxWork: 1000}, ""},
		{"{{ row.s }}", Options{MaxWork: 10}, "the limit of 10 units of work is exceeded"},
	} {
		tpl := must.Value(Parse([]byte(c.source), c.o))(t)
		if _, err := tpl.Render(row); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s with %+v: %v, want %q", c.source, c.o, err, c.want)
		}
	}
}

func TestLongLoopIsWithinTheLimits(t *testing.T) {
	got, err := render("{% for i in range(50000) %}{{ i }} {{ row.a }}\n{% endfor %}", `{"a":"b"}`)
	if err != nil || len(got) != 388890 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func TestDocsListEverythingAvailable(t *testing.T) {
	content := must.Value(os.ReadFile("../../docs/templates.md"))(t)
	for section, table := range map[string]map[string]value.Callable{"filters": value.Filters, "tests": value.Tests, "functions": value.Functions, "methods of strings": value.Methods} {
		_, listed, found := strings.Cut(string(content), "\n| "+section+" |")
		if !found {
			t.Fatalf("no line on %s", section)
		}
		listed, after, _ := strings.Cut(listed, "\n")
		if section == "methods of strings" {
			more, _, _ := strings.Cut(after, "\n")
			listed += more + "`cycle` `changed`" // listed with the loop
		}
		for name := range table {
			if !strings.Contains(listed, "`"+name+"`") {
				t.Errorf("%s: %s is not in docs/templates.md", section, name)
			}
		}
	}
}

func FuzzTemplate(f *testing.F) {
	for _, s := range []string{
		"{{ row.s|upper }}", "{% for a, b in row.o.items() if a %}{{ loop.index }}{% else %}-{% endfor %}", "{% set x %}a{% endset %}{{ x ~ 1 in [2]|join }}",
		"{% if row.i is odd and not row.s in 'abc'|lower %}{% elif 1 %}{% else %}{% endif %}", "{% raw %}{{ x {% endraw %}{# c #}{%- with a = 1 -%}{{ -a ** 2 }}{% endwith %}",
		"{% filter replace('a', 'b')|trim %} a {% endfilter %}{{ row['l'][1:-1:2] | map('string') | list }}", "{{ '%s %5.2f' % [1, 2.5] }}{{ {'a': [1, (2, 3)]}.a.1.0 if 1 else 2 }}",
		"{% set ns = namespace(a=1) %}{% set ns.a = ns.a + 1 %}{{ dict(a=range(3)) | tojson(indent=1) }}", "{{ row.x | default(row.y | default('z')) }}{{ row.l | selectattr('a', 'defined') | sum(attribute='b.c') }}",
		"{{ '{:>{}} {0[a]!r} {x:,.2f}'.format(row.f, 9, x=2 ** 99) }}{{ '%(a)s %-5d' % row.o }}", "{{ row.s.rsplit('s', 1) }}{{ row.s.center(9).find('t', -3) }}{{ (1, 2)[1:] + (3,) }}",
		"{{ row.l|batch(2, 0)|list }}{{ range(9)[2:7:2] }}{{ row.o.items() }}{{ [row.o]|groupby('c', default=1) }}", "{{ '0x1f'|int(1, 16) // -3 % 1.5 }}{{ row.f|round(-1) }}{{ 'ßΣ'.title()|e|striptags|urlencode }}",
		"{{ in }}", "{{ a[] }}", "{% raw %}{% endraw %}", "{{ not in 1 }}", "{{ \n'a\\'\n' }}", "{% for in %}{% endfor %}", "{{ x is }}", "{%", "{{ 'a'", "{% if x %}{% endif",
	} {
		f.Add(s)
	}
	row := must.Value(row.Parse([]byte(`{"s":"tést","i":3,"f":1.5,"l":[1,"a",null,[2]],"o":{"a":{"b":1},"c":true}}`)))(f)
	lookup := must.Value(ParseLookup([]byte(`{"a":[1,2,{"b":"c"}]}`), ""))(f)
	f.Fuzz(func(t *testing.T, source string) {
		tpl, err := Parse([]byte(source), Options{Lookup: lookup, MaxWork: 1 << 18, MaxOutput: 1 << 16})
		if err != nil {
			return
		}
		text, err := tpl.Render(row)
		switch {
		case err != nil && strings.Contains(err.Error(), "panic"):
			t.Fatalf("%q: %v", source, err)
		case err == nil && (!utf8.ValidString(text) || len(text) > 1<<16):
			t.Fatalf("%q: %q", source, text)
		}
	})
}

func ExampleTemplate_Render() {
	lookup, err := ParseLookup([]byte("de: German\nen: English\n"), "languages.yaml")
	if err != nil {
		fmt.Println(err)
		return
	}
	template, err := Parse([]byte(`Summarise this {{ lookup[row.language] }} review ({{ row.stars }} of 5):
{{ row.text | trim | truncate(40) }}`), Options{Source: "prompt.j2", Lookup: lookup})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, body := range []string{
		`{"language":"en","stars":4,"text":" Boils water, looks good. "}`,
		`{"language":"en","text":"Boils water."}`,
	} {
		row, err := row.Parse([]byte(body))
		if err != nil {
			fmt.Println(err)
			continue
		}
		prompt, err := template.Render(row)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(prompt)
	}
	// Output:
	// Summarise this English review (4 of 5):
	// Boils water, looks good.
	// undefined: row.stars (line 1 of prompt.j2); the row has: language, text
}

func TestRowDecodedInPartsIsTheRow(t *testing.T) {
	many := `{"a":1,"b":{"c":[2]},"\u0061\ud800":"x","b":{"c":[3]}`
	for i := range 64 {
		many += fmt.Sprintf(`,"m%d":%d`, i, i)
	}
	for _, body := range []string{`{"a":1,"b":{"c":[2]},"\u0061\ud800":"x","b":{"c":[3]}}`, many + "}"} {
		for _, source := range []string{
			`{{ row.a }}`, `{{ row['a'] }}`, `{{ row.b.c }} {{ row.b }} {{ row.b.c[0] }}`, `{{ row['a\ufffd'] }}`, `{{ row.none|default('-') }}`, `{{ row.a is defined and row.none is undefined }}`,
			`{{ row.none }}`, `{{ row.0 }}`, `{{ 'a' in row }} {{ row|length }} {{ row.keys()|list }} {{ row }}`, `{% for k in row %}{{ row[k] }},{% endfor %}`,
			`{% if row %}{{ row.a }}{% endif %}`, `{{ row.a }}{% set row = {"a": 7} %}{{ row.a }}{{ row }}`, `{% for row in [{"a": 8}] %}{{ row.a }}{{ row }}{% endfor %}`, `{{ row == row }}{{ row.b == row['b'] }}`,
		} {
			got, err := render(source, body)
			want, wantErr := render("{% set all = row %}"+strings.ReplaceAll(source, "row", "all"), body)
			if got != want || (err == nil) != (wantErr == nil) || err != nil && strings.ReplaceAll(wantErr.Error(), "all", "row") != err.Error() {
				t.Errorf("%s of %.60s\n got %q %v\nwant %q %v", source, body, got, err, want, wantErr)
			}
		}
	}
}

func BenchmarkRender(b *testing.B) {
	row := mustRow(b, benchmarkRow())
	for name, source := range map[string]string{
		"field":     "{{ row.text }}",
		"fields":    "Review {{ row.id }} of {{ row.product.name }} ({{ row.stars }} stars):\n{{ row.text }}\nAnswer in one word.",
		"condition": "{% if row.verified and row.stars > 3 %}Verified: {% endif %}{{ row.text|trim }}",
		"loop":      "{% for tag in row.product.tags %}{{ loop.index }}. {{ tag|upper }}\n{% endfor %}{{ row.text }}",
	} {
		tpl := must.Value(Parse([]byte(source), Options{}))(b)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := tpl.Render(row); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func mustRow(tb testing.TB, body string) *row.Row {
	tb.Helper()
	r, err := row.Parse([]byte(body))
	if err != nil {
		tb.Fatalf("%.80q: %v", body, err)
	}
	return r
}

func benchmarkRow() string {
	return `{"id":123456789,"product":{"name":"Kettle","price":29.90,"tags":["kitchen","steel"]},"stars":4,"language":"en","verified":true,` +
		`"title":"Does what it says","text":"` + strings.Repeat(`It boils water \"quickly\" and looks good. `, 18) + `","date":"2025-03-01T12:00:00Z","votes":12}`
}
