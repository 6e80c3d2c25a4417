package template

import "testing"

// What Jinja 3.1.6 renders with StrictUndefined.
func TestSyntaxIsThatOfJinja(t *testing.T) {
	const row = `{"n":3,"s":"ab","l":[1,2,3],"o":{"is":1,"k":"v"}}`
	for source, want := range map[string]string{
		`{{ 1_000 }} {{ 0x_1F }} {{ 0o17 }} {{ 0B101 }} {{ 00 }} {{ 1_0.5 }} {{ 1e3 }} {{ 1.5E-3 }}`:                                                                                                                                                                 `1000 31 15 5 0 10.5 1000.0 0.0015`,
		`{{ 99999999999999999999 }} {{ -9223372036854775808 }} {{ 9_223_372_036_854_775_808 - 1 }} {{ 0xffffffffffffffffff is odd }} {{ [1e20, 18446744073709551616] }}`:                                                                                             `99999999999999999999 -9223372036854775808 9223372036854775807 True [1e+20, 18446744073709551616]`,
		`{{ row.l.0 }} {{ [[1, 2], [3]].0.1 }} {{ row.o.is }} {{ {"not": 1, "if": 2}.not }}`:                                                                                                                                                                         `1 2 1 1`,
		`{{ "a" 'b' "c"|upper }} {{ "\x41\u00e9\101\0\t|\q\\" }} {{ 'it\'s' }} {{ "a\\" ~ "\\b" }} {{ "\U0001F600" }}`:                                                                                                                                               "ABC AéA\x00\t|\\q\\ it's a\\\\b 😀",
		`{{ "\r" == "\x0d" }} {{ "{{ }} %} #}" }} {{ "a\\n" }}`:                                                                                                                                                                                                      `True {{ }} %} #} a\n`,
		`{{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 1 < 2 in [2] }} {{ (1 < 2) == 1 }} {{ 5 in [5] == true }} {{ 1 > 2 > row.nope }} {{ 1 < row.n <= 3 != 4 }}`:                                                                                                              `True False True True False False True`,
		`{{ (1 < 2) < 3 }} {{ 1 < (2 < 3) }} {{ 1 == 1 in [1] }} {{ 1 == (1 in [1]) }}`:                                                                                                                                                                              `True False True True`,
		`{{ not not row.n }} {{ not not not row.n }} {{ not row.n == 3 }} {{ not 1 in [1] }} {{ (not 1) in [false] }}`:                                                                                                                                               `True False False False True`,
		`{{ - -row.n }} {{ -+-row.n }} {{ +-row.n }} {{ 1 - -1 }} {{ 1--1 }} {{ 2 ** - 1 }} {{-row.n}}`:                                                                                                                                                              `3 3 -3 2 2 0.53`,
		`{{ 1 in [1] + [2] }} {{ "b" in "a" ~ "b" }} {{ 2 not in [1] + [2] }} {{ row.s in ["AB"]|map("lower") }} {{ 1 in(1, 2) }} {{ 1 not in(1, 2) }}`:                                                                                                              `True True False True True False`,
		`{{ 1 + 1 is odd }} {{ (1 + 1) is odd }} {{ 1 + 2 * 3 is odd }} {{ "a" ~ 1 is not odd }} {{ row.n > 2 is true }} {{ (row.n > 2) is true }} {{ 2 ** 3 is odd }} {{ -1 is odd }} {{ not 1 + 1 is odd }}`:                                                       `2 False 3 aFalse True True 2 True False`,
		`{{ "a" if row.n == 3 else "b" }} {{ "a" if row.n else "b" if 1 else "c" }} {{ "a" if not row.n else "b" if 0 else "c" }} {{ "a" if(row.n)else "b" }} {{ "a" if 0 }}|`:                                                                                       `a a c a |`,
		`{{ ("a" if row.n else "b")|upper }} {{ "x" ~ ("a" if 0 else "b") }} {{ ["a" if 1 else "b", 2 if 0 else 3] }} {{ {"k": 1 if 0 else 2}.k }} {{ row["s" if 1 else "n"] }} {{ "%s-%s"|format("a" if 1 else 2, 3) }}`:                                            `A xb ['a', 3] 2 ab a-3`,
		`{{ 0 or "a" if 0 or 1 else "b" }} {{ ("a" if 0 else "b") or "c" }} {{ "a" if 1 else "b" or "c" }} {{ (0 or 1) if (0 or 1) else 2 }} {{ "a" if (1 if 0 else 1) else "b" }} {{ ("a" if 0) }}|`:                                                                `a b a 1 a |`,
		`{{ "a" if 1 else row.nope }} {{ row.nope if 0 else "b" }} {{ 1 + (2 if 1 else 3) * 2 }}`:                                                                                                                                                                    `a b 5`,
		`{% if ("a" if 0 else "") %}x{% elif (1 if 1 else 0) %}y{% endif %}{% for i in ([1] if 0 else [2, 3]) if (i > 2 if 1 else 0) %}{{ i }}{% endfor %}`:                                                                                                          `y3`,
		`{% for i in 1, 2, 3 %}{{ i }}{% endfor %} {% for a, (b, c) in [[1, [2, 3]]] %}{{ a }}{{ b }}{{ c }}{% endfor %} {% for (a,) in [[1]] %}{{ a }}{% endfor %}`:                                                                                                 `123 123 1`,
		`{% for i in [1, 1, 2, 2, 1] %}{{ loop.changed(i) }} {% endfor %}{% for i in [1, 1] %}{{ loop.changed() }}{{ loop.changed(i, 2) }} {% endfor %}`:                                                                                                             `True False True False True TrueTrue TrueTrue `,
		`{% set a, (b, c) = 1, (2, 3) %}{{ a }}{{ b }}{{ c }} {% set a | upper | replace("X", "y") %}x{{ 1 }}b{% endset %}{{ a }} {% set a | length %}abc{% endset %}{{ a + 1 }}`:                                                                                    `123 y1B 4`,
		`{% set ns = namespace(row.o, b=2) %}{{ ns.k }}{{ ns.b }} {% set ns = namespace([["a", 1], ("b", 2)]) %}{{ ns.a }}{{ ns.b }} {{ dict(row.o, x=1)|length }}`:                                                                                                  `v2 12 3`,
		`{% set ns = namespace(a=1, b=2) %}{% set ns.a, ns.b = ns.b, ns.a %}{{ ns.a }}{{ ns.b }} {% set ns.c %}{{ ns.a }}!{% endset %}{{ ns.c }} {% set ns.c | upper %}x{% endset %}{{ ns.c }}`:                                                                      `21 2! X`,
		`{% with a = 1 if 0 else 2, (b, c) = [3, 4] %}{{ a }}{{ b }}{{ c }}{% endwith %} {% with %}{% set d = 1 %}{{ d }}{% endwith %}`:                                                                                                                              `234 1`,
		`{{ range(3,)|list }} {{ {"a": 1,} }} {{ [1, 2,] }} {{ dict(a=1,).a }}`:                                                                                                                                                                                      `[0, 1, 2] {'a': 1} [1, 2] 1`,
		`{{ 1 is sameas 1 }} {{ none is sameas none }} {{ 1 is sameas true }} {{ 1 is sameas 1.0 }} {{ 1 is callable }} {{ "a" is escaped }} {{ 2 is greaterthan 1 }} {{ 2 is lessthan 1 }}`:                                                                         `True True False False False False True False`,
		`{{ "upper" is filter }} {{ "map" is filter }} {{ "nope" is filter }} {{ "odd" is test }} {{ "upper" is not test }} {{ [1, 2, 3]|select(">", 1)|list }} {{ row.l|reject("<=", 1)|list }} {{ row.l|select("==", 2)|first }} {{ row.l|select("!=", 2)|list }}`: `True True False True False [2, 3] [2, 3] 2 [1, 3]`,
		`{{ row.n is odd == true }} {{ (row.n is eq 3 in [true]) }} {{ row.n is divisibleby(3) not in [true] }} {{ row.n is divisibleby 3 not in [true] }} {{ row.n is in [1, 2] == true }}`:                                                                         `True True False False False`,
		`{{ [row.n is odd, row.n is odd - 1] }} {{ true and row.n is odd|string }} {{ row.n is divisibleby(1) is true }} {{ row.n is eq row.l[2] }} {{ "a" ~ "b"|upper is upper }}`:                                                                                  `[True, 0] True True True aTrue`,
		`{{ ("a" if row.n) ~ "b" }} {{ ("a" if not row.n) ~ "b" }} {{ ("a" if not row.n)|default("c") }} {{ ("a" if 0) is defined }} {% set x = "a" if 0 %}{{ x }}{{ x|list }} {{ "a" if 1 if 0 else "c" }}`:                                                         `ab b c False [] c`,
		`{{ 1, 2 }} {{ 1, }} {{ () }} {% set x = 1, %}{{ x }} {% if 0, %}t{% endif %} {{ (1, 2)|first }} {{+ "a" }} {% with a, b = [1, 2] %}{{ b }}{% endwith %}`:                                                                                                    `(1, 2) (1,) () (1,) t 1 a 2`,
		`{{ row.l[true] }} {{ row.l[1 > 2] }} {{ "ab"[true] }} {{ 1 ~ 2 * 3 }} {{ 2 ** 3 ** 2 }} {{ -2|abs }} {{ not row.n is odd }} {{ 10 // 3 % 2 }}`:                                                                                                              `2 1 b 16 64 2 False 1`,
		"{{ 'a\\\nb' }}{{ 'a\nb' }}":           "aba\nb",
		"\u00a0{{- 1 -}}\u2003|\v{{- 1 -}}\f|": `1|1|`,
		"{%\n if\n 1\n%}a{%\n endif\n-%}\n":    `a`,
		"{{\u00a01\f}}{{\n1\v}}":               `11`,
		"a\n{%- if 1 +%}\n b{% endif %}\n\n":   "a\n b\n",
		` {#- a -#} b`:                         `b`,
		`{% raw -%} {{ 1 }} {%- endraw %}`:     `{{ 1 }}`,
	} {
		if got, err := render(source, row); got != want || err != nil {
			t.Errorf("%s\n got %q, %v\nwant %q", source, got, err, want)
		}
	}
}
