package template

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/llm-stage/stage/internal/stagetest/must"
	"github.com/llm-stage/stage/llm"
	"github.com/llm-stage/stage/llm/row"
)

// hostileRow has a long text, a long list and a wide object.
func hostileRow(tb testing.TB) *row.Row {
	tb.Helper()
	return mustRow(tb, `{"s":"`+strings.Repeat("x", 10_000)+`","l":[`+strings.Repeat("1,", 5000)+`1],"o":{`+
		strings.Repeat(`"k":1,`, 10)+`"a":1},"min":-9223372036854775808,"huge":`+strings.Repeat("9", 5000)+`,"huge2":`+strings.Repeat("8", 5000)+`,"deep":`+strings.Repeat("[", 9000)+strings.Repeat("]", 9000)+`}`)
}

// long are templates like those of testdata/endless.txt that are too long for a file.
var long = map[string]string{
	"long loop body":           `{% for a in row.l %}` + strings.Repeat("{{ a or 0 }}", 1000) + `{% endfor %}`,
	"conditions without cost":  `{% for a in row.l %}{% if ` + strings.Repeat("0 or ", 150) + `0 %}{% endif %}{% if ` + strings.Repeat("0 or ", 150) + `0 %}{% endif %}{% endfor %}`,
	"empty loops":              `{% set e = [] %}{% for a in range(1000) %}` + strings.Repeat(`{% for b in e %}{% endfor %}`, 100) + `{% endfor %}`,
	"many arguments":           `{% for a in range(1000) %}{{ loop.cycle(` + strings.Repeat("1, ", 200) + `) }}{% endfor %}`,
	"many targets":             `{% set l = range(200) %}{% for a in range(1000) %}{% set (` + strings.Repeat("x, ", 200) + `) = l %}{% endfor %}`,
	"many defaults":            `{% for a in range(1000) %}{{ a` + strings.Repeat("|default(1)", 150) + ` }}{% endfor %}`,
	"filter block":             `{% filter replace("a", row.s) %}` + strings.Repeat("a", 1000) + `{% endfilter %}`,
	"output":                   strings.Repeat("{{ row.s }}", 200),
	"plain text in loops":      `{% for a in row.l %}` + strings.Repeat("text ", 1000) + `{% endfor %}`,
	"whitespace text in loops": `{% for a in row.l %}{% if 1 %} ` + strings.Repeat("\n", 1000) + `{%- endif %}{% endfor %}`,
}

// TestNoTemplateRunsForever runs templates that would run forever, or exhaust the memory,
// without limits. Each must end with an error within its work.
func TestNoTemplateRunsForever(t *testing.T) {
	row, o := hostileRow(t), Options{MaxWork: 1 << 20, MaxOutput: 1 << 20}
	runFile(t, "testdata/endless.txt", row, o)
	for name, source := range long {
		tpl := must.Value(Parse([]byte(source), o))(t)
		if _, err := tpl.Render(row); err == nil || !strings.Contains(err.Error(), "limit of 1048576 units of work") && !strings.Contains(err.Error(), "larger than 1048576 bytes") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Templates that must not compile: they could read files, run forever, modify what others
// see, or reach into the process.
func TestForbiddenThingsDoNotCompile(t *testing.T) {
	for _, source := range []string{
		`{% include "/etc/passwd" %}`, `{% include "template" %}`, `{% import "a" as b %}`, `{% from "a" import b %}`, `{% extends "/etc/passwd" %}`,
		`{% block a %}{% endblock %}`, `{% macro m() %}{{ m() }}{% endmacro %}`, `{% call m() %}{% endcall %}`, `{% do row.update({}) %}`,
		`{% autoescape true %}{% endautoescape %}`, `{% trans %}{% endtrans %}`, `{% break %}`, `{% continue %}`, `{% debug %}`,
		`{% for x in row.l recursive %}{{ loop(x) }}{% endfor %}`, `{%include "x"%}`, "{%-\n include 'x' %}",
		`{{ row.l.append(1) }}`, `{{ row.l.reverse() }}`, `{{ row.l.sort() }}`, `{{ row.l.clear() }}`, `{{ row.l.extend([1]) }}`, `{{ row.l.insert(0, 1) }}`,
		`{{ row.update({"a": 1}) }}`, `{{ row.pop("s") }}`, `{{ row.clear() }}`, `{{ row.setdefault("x", 1) }}`, `{{ row.popitem() }}`,
		`{% set row.x = 1 %}{{ nope }}`, `{{ self }}`, `{{ self.x() }}`, `{{ gonja }}`, `{{ gonja.version }}`, `{{ cycler(1) }}`, `{{ joiner() }}`, `{{ lipsum(n=10**9) }}`,
		`{{ gettext("x") }}`, `{{ _("x") }}`, `{{ row.s.encode() }}`, `{{ row.s.format_map(row) }}`, `{{ row.s.translate({}) }}`, `{{ row.s.maketrans("a", "b") }}`,
		`{{ row.l|random }}`, `{{ row.l|pprint }}`, `{{ row.s|urlize }}`, `{{ row.s|wordwrap(1) }}`, `{{ row|attr("x") }}`,
		`{{ row.l|map(row.s) }}`, `{{ row.l|map("map", "upper") }}`, `{{ row.l|map("default", 1) }}`, `{{ row.l|select(row.s) }}`, `{{ row.l|selectattr(row.s) }}`,
		`{{ (row.l.Len)() }}`, `{{ row.l.Len() }}`, `{{ row.l.Swap(0, 1) }}`, `{{ row.MethodByName("x") }}`, `{{ range.x }}`, `{{ row() }}`, `{{ "x"() }}`, `{{ row.l[0]() }}`,
		"{% for loop in row.l %}{% endfor %}", "{% set loop = 1 %}", "{% set true = false %}", "{% for row.x in row.l %}{% endfor %}",
	} {
		if _, err := Parse([]byte(source), Options{}); err == nil {
			t.Errorf("%s compiles", source)
		} else if !strings.Contains(err.Error(), "(line ") {
			t.Errorf("%s: no line: %v", source, err)
		}
	}
}

// Templates that must render or fail with an error, where other template engines panic,
// wrap around, or expose what is behind a value.
func TestForbiddenThingsDoNotRender(t *testing.T) {
	row := hostileRow(t)
	for source, want := range map[string]string{
		`{{ 1 % 0 }}`: "division by zero", `{{ 1 // 0 }}`: "division by zero", `{{ 1 / 0 }}`: "division by zero", `{{ 1.5 % 0 }}`: "division by zero",
		`{{ 1.5 // 0.0 }}`: "division by zero", `{{ 4 is divisibleby(0) }}`: "division by zero", `{{ 0 ** -1 }}`: "division by zero", `{{ (-3) ** 0.5 }}`: "not a number", `{{ 10.0 ** 1000 }}`: "not a number",
		`{{ 10 ** 4299 }}`: "", `{{ 10 ** 4300 }}`: "4300 digits", `{{ -(10 ** 4299) * 10 }}`: "4300 digits", `{{ 2 ** 10000000000 }}`: "4300 digits", `{{ 10 ** (10 ** 1000) }}`: "4300 digits", `{{ (-1) ** (10 ** 1000) + 0 ** 10 ** 30 }}`: "",
		`{{ -row.min }}`: "", `{{ row.min // -1 }}`: "", `{{ row.min * -1 }}`: "", `{{ row.min|abs }}`: "", `{{ row.min % -1 }}`: "", `{{ 10 ** 30 // 0 }}`: "division by zero", `{{ 10 ** 30 % 0 }}`: "division by zero", `{{ 10 ** 30 / 0.0 }}`: "division by zero",
		`{{ 10 ** 400 * 1.5 }}`: "too large for a float", `{{ 10 ** 400 / 3 }}`: "too large for a float", `{{ (10 ** 400)|float }}`: "too large for a float", `{{ "%f" % (10 ** 400) }}`: "too large for a float", `{{ "{:f}".format(10 ** 400) }}`: "too large for a float",
		`{{ row.huge + 1 }}`: "4300 digits", `{{ row.huge > row.huge }}`: "4300 digits", `{{ 1 // (row.huge == row.huge2) }}`: "division by zero", `{{ row.huge == row.huge }}{{ row.huge > 1 }}{{ row.huge in [1, row.huge] }}{{ [row.huge]|unique|length }}`: "", `{{ row.huge|int }}`: "", `{{ row.huge|float }}`: "too large for a float", `{{ "%d" % row.huge }}`: "not an integer",
		`{{ "{:.1001f}".format(1) }}`: "1000", `{{ "{:99999999999999999999}".format(1) }}`: "width", `{{ "{}{}".format(1) }}`: "more fields", `{{ "{0.x}".format(row) }}`: "only have an index", `{{ "{0[x]}".format(row) }}`: "undefined", `{{ "{0".format(1) }}`: "without its", `{{ "{:{:{}}}".format(1, 2, 3) }}`: "too deep", `{{ "{!".format(1) }}`: "without its", `{{ "{!}".format(1) }}`: "conversion",
		`{{ "{:c}".format(row.min) }}`: "no character", `{{ "%c" % 1114112 }}`: "no character", `{{ "%c" % 55296 }}`: "no character", `{{ "%(a" % row }}`: "in brackets", `{{ "%(a)s" % 1 }}`: "in brackets", `{{ "%(nope)s" % row }}`: "undefined", `{{ "x".rjust(10**30) }}`: "64 bits", `{{ "%s"|format(1, a=2) }}`: "all positional or all named",
		`{{ row.l|batch(0) }}`: "1 or more", `{{ row.l|slice(0) }}`: "1 or more", `{{ row.l|batch(row.min) }}`: "1 or more", `{{ row.o|dictsort(by="x") }}`: "by", `{{ {"a b": 1}|xmlattr }}`: "attribute", `{{ "x".partition("") }}`: "separator", `{{ "x".rsplit("") }}`: "separator", `{{ "x".index("y") }}`: "not found", `{{ row.l.index("y") }}`: "not in the list",
		`{{ "x".center(row.min) }}{{ "x".zfill(row.min) }}{{ "x".expandtabs(row.min) }}{{ "x".find("x", row.min, 9223372036854775807) }}{{ "x".rsplit("y", row.min) }}`: "", `{{ row.l.upper() }}`: "no such method", `{{ row.s.keys() }}`: "no such method", `{{ range(3).upper() }}`: "no such method",
		`{{ range(3) + range(3) }}`: "not possible", `{{ (1,) + [1] }}`: "not possible", `{{ (1,) < [1] }}`: "cannot be ordered", `{{ row.o.keys()[0] }}`: "undefined", `{{ row.o.keys()[1:] }}`: "sliced", `{{ range(3)|tojson }}`: "as JSON", `{{ [[]]|unique }}`: "cannot be compared", `{{ range(9)[::9223372036854775807] }}`: "", `{{ ["a", "b"]|sum(start="") }}`: "cannot be summed",
		`{{ row.l[10**18] }}`: "undefined", `{{ row.l[row.min] }}`: "undefined", `{{ row.s[row.min:] }}`: "", `{{ row.l[::row.min] }}`: "", `{{ row.l[9223372036854775807:row.min:-1] }}`: "",
		`{{ row.l[::0] }}`: "step", `{{ range(1, 2, 0) }}`: "step", `{{ range(row.min, 9223372036854775807) }}`: "too large",
		`{{ row.s.__class__ }}`: "undefined", `{{ row.__class__.__mro__ }}`: "undefined", `{{ row["__class__"] }}`: "undefined", `{{ [].__init__ }}`: "undefined", `{{ row.l.Len }}`: "undefined", `{{ {"a": 1}.Pairs }}`: "undefined",
		`{% for i in row.l %}{{ loop.items }}{% endfor %}`: "undefined", `{% for i in row.l %}{{ loop }}{% endfor %}`: "",
		`{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}{{ ns.me.me.me }}{{ [ns] }}`: "", `{% set ns = namespace() %}{% set ns.me = ns %}{{ ns|tojson }}`: "as JSON",
		`{% set row.x = 1 %}`: "not a namespace", `{{ "%s%s" % [] }}`: "fewer", `{{ "%" % 1 }}`: "directive", `{{ "%d" % "x" }}`: "number", `{{ "%99999999999999999999d" % 1 }}`: "width", `{{ "%.2000f" % 1 }}`: "precision", `{{ "%n" % 1 }}`: "not available", `{{ "%p" % 1 }}`: "not available", `{{ "%[1]d" % 1 }}`: "not available", `{{ "%*d" % (1, 2) }}`: "not available",
		`{{ row.l|tojson(indent=-1) }}`: "indent", `{{ row.l|tojson(indent=10**9) }}`: "indent", `{{ 1e308 * 10 }}`: "", `{{ (1e308 * 10)|tojson }}`: "no infinity", `{{ (1e308 * 10)|int }}`: "not an integer", `{{ "%d" % (1e308 * 10) }}`: "not an integer", `{{ ("nan"|float)|round(2, "ceil") }}`: "not an integer",
		`{{ row.s|truncate(-1) }}`: "length", `{{ row.s|truncate(9223372036854775807) }}`: "", `{{ row.s|truncate(5, leeway=9223372036854775807) }}`: "", `{{ row.s|replace("x", "", -5) }}`: "", `{{ "a b".split(none, 9223372036854775807) }}`: "", `{{ 1|round(10**6) }}`: "precision", `{{ row.deep }}`: "", `{{ row.deep == row.deep }}`: "", `{{ row.deep|tojson }}`: "",
	} {
		tpl, err := Parse([]byte(source), Options{})
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		_, err = tpl.Render(row)
		e, _ := errors.AsType[*llm.Error](err)
		switch {
		case err == nil && want != "":
			t.Errorf("%s: rendered, want an error with %q", source, want)
		case err != nil && (want == "" || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "panic")):
			t.Errorf("%s: %v, want %q", source, err, want)
		case err != nil && (e == nil || e.Reason != llm.ReasonTemplateRenderingFailed || e.Class != llm.Permanent):
			t.Errorf("%s: %#v", source, err)
		}
	}
}

// Sources whose nesting would overflow the stack of a parser, which ends a process.
func TestDeepSourcesAreRefused(t *testing.T) {
	for name, source := range map[string]string{
		"brackets":       "{{ " + strings.Repeat("(", 5_000) + "1" + strings.Repeat(")", 5_000) + " }}",
		"lists":          "{{ " + strings.Repeat("[", 5_000) + strings.Repeat("]", 5_000) + " }}",
		"mappings":       "{{ " + strings.Repeat("{1:", 3_000) + "1" + strings.Repeat("}", 3_000) + " }}",
		"open brackets":  "{{ " + strings.Repeat("(", 12_500),
		"blocks":         strings.Repeat("{%if 1%}", 1_500) + strings.Repeat("{%endif%}", 1_500),
		"open blocks":    strings.Repeat("{%if 1%}", 1_500),
		"loops":          strings.Repeat("{%for a in b%}", 1_500) + strings.Repeat("{%endfor%}", 1_500),
		"else":           strings.Repeat("{%if 1%}{%else%}", 1_500) + strings.Repeat("{%endif%}", 1_500),
		"sums":           "{{ 1" + strings.Repeat("+1", 5_000) + " }}",
		"texts":          "{{ 1" + strings.Repeat("~1", 5_000) + " }}",
		"or":             "{{ 1" + strings.Repeat(" or 1", 2_500) + " }}",
		"attributes":     "{{ row" + strings.Repeat(".a", 5_000) + " }}",
		"indexes":        "{{ row" + strings.Repeat("[1]", 4_000) + " }}",
		"calls":          "{{ row" + strings.Repeat(".get()", 2_000) + " }}",
		"filters":        "{{ row" + strings.Repeat("|lower", 2_000) + " }}",
		"signs":          "{{ " + strings.Repeat("- ", 5_000) + "1 }}",
		"not":            "{{ " + strings.Repeat("not ", 3_000) + "1 }}",
		"tests":          "{{ 1" + strings.Repeat(" is odd", 1_500) + " }}",
		"arguments":      "{{ " + strings.Repeat("range(", 2_000) + "1" + strings.Repeat(")", 2_000) + " }}",
		"too many bytes": strings.Repeat("x", maxSourceBytes+1),
	} {
		if _, err := Parse([]byte(source), Options{}); err == nil {
			t.Errorf("%s: compiles", name)
		} else if len(err.Error()) > 500 {
			t.Errorf("%s: an error of %d bytes: %.300s", name, len(err.Error()), err)
		}
	}
}

// A copy of the rest of a string for each of its escapes would take seconds.
func TestEscapesAreReadInPlace(t *testing.T) {
	for _, escape := range []string{`\n`, `\\`, `\0`, `\777`, `\x41`, `\u00e9`, `\U0001f600`} {
		source := []byte(`{{ "` + strings.Repeat(escape, 1000) + `" }}`)
		if n := testing.AllocsPerRun(5, func() {
			if _, err := Parse(source, Options{}); err != nil {
				t.Fatal(err)
			}
		}); n > 200 {
			t.Errorf("1000 times %s takes %v allocations", escape, n)
		}
	}
}

func TestTemplatesDoNotModifyTheLookup(t *testing.T) {
	const content = `{"a":[3,1,2],"m":{"k":{"x":1}},"s":"text"}`
	lookup := must.Value(ParseLookup([]byte(content), ""))(t)
	before := must.Value(ParseLookup([]byte(content), ""))(t)
	row := mustRow(t, `{"i":1}`)
	for _, source := range []string{
		`{{ lookup.a|sort }}{{ lookup.a|reverse|list }}{{ lookup.a|unique }}{{ lookup.a|map("string")|list }}{{ lookup.a|list }}`,
		`{% set b = lookup.a %}{% set b = b + [1] %}{% set c = lookup.a[:1] %}{% set c = c + [9, 9] %}{{ b }}{{ c }}`,
		`{% set a = lookup.a %}{% set ns = namespace(a=lookup.a, m=lookup.m) %}{% set ns.a = ns.a + [1] %}{% set ns.m = 1 %}{{ ns.a }}`,
		`{% for k, v in lookup.m.items() %}{% set v = 1 %}{% set k = 2 %}{% endfor %}{% for x in lookup.a %}{% set x = 5 %}{% endfor %}`,
		`{% for g in [lookup.a, lookup.a] %}{{ g|sort(reverse=true) }}{{ g|sum }}{{ g|max }}{% endfor %}{{ lookup.m|items|list }}`,
		`{% set lookup = {"a": 1} %}{{ lookup.a }}`, `{% with lookup = 1 %}{{ lookup }}{% endwith %}`,
		`{% set lookup.a = 1 %}`,
	} {
		tpl, err := Parse([]byte(source), Options{Lookup: lookup})
		if err != nil {
			t.Fatalf("%s: %v", source, err)
		}
		if _, err := tpl.Render(row); err != nil && !strings.Contains(err.Error(), "not a namespace") {
			t.Errorf("%s: %v", source, err)
		}
		if !reflect.DeepEqual(lookup.value, before.value) {
			t.Fatalf("%s: the lookup became %v", source, lookup.value)
		}
	}
}

func TestConcurrentRenderingsAreIndependent(t *testing.T) {
	lookup := must.Value(ParseLookup([]byte(`{"names":{"0":"zero","1":"one"},"l":[1,2,3]}`), ""))(t)
	tpl := must.Value(Parse([]byte(`{% set ns = namespace(n=0) %}{% for i in range(20) %}{% set ns.n = ns.n + row.i %}{% endfor %}`+
		`{% set x %}{{ row.i }}{% endset %}{% filter upper %}{{ x }}:{{ ns.n }}:{{ lookup.names[row.i % 2]|default("none") }}{% endfilter %}`+
		`{% for a in lookup.l if a != row.i %}{{ a }}{% else %}-{% endfor %}{{ row.nope|default("") }}{% if row.i == 13 %}{{ row.nope }}{% endif %}`), Options{Lookup: lookup}))(t)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 40 {
				n := i*40 + j
				row, err := row.Parse(fmt.Appendf(nil, `{"i":%d}`, n))
				if err != nil {
					t.Error(err)
					return
				}
				got, err := tpl.Render(row)
				want := fmt.Sprintf("%d:%d:%s", n, 20*n, []string{"ZERO", "ONE"}[n%2])
				if n == 13 {
					if err == nil || !strings.Contains(err.Error(), "row.nope") {
						t.Errorf("%d: %v", n, err)
					}
				} else if err != nil || !strings.HasPrefix(got, want) {
					t.Errorf("%d: got %q, %v, want %q", n, got, err, want)
				}
			}
		})
	}
	all.Wait()
}
