"""Writes blocks.json: templates made at random, by a fixed seed, of blocks, text and the control of space, and what Jinja2 makes of them.

    python3 llm/template/testdata/generate_blocks.py [how many]

The tests need neither Python nor Jinja2.
"""
import json
import pathlib
import random
import sys

import jinja2

count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
row = {"n": 3, "s": "ab", "l": [1, 2, 3], "e": [], "p": [[1, 2], [3, 4]], "o": {"k": "v"}}
rnd = random.Random(7)
env = jinja2.Environment(undefined=jinja2.StrictUndefined)
pick = rnd.choice


def ends(kind):
    return "{" + kind + pick(["", "", "-", "+"]), pick(["", "", "-"] + ["+"] * (kind == "%")) + {"{": "}", "%": "%", "#": "#"}[kind] + "}"


def tag(content):
    start, end = ends("%")
    return start + pick([" ", "", "\n"]) + content + pick([" ", "", "\n "]) + end


def text():
    return pick([" ", "\n", "a", "  b ", "\n\n", "x\ty", "", "{ ", "}}", "%", "#}", "\u00a0", "a\r\nb"])


def value(loop):
    return pick(["row.n", "row.s", "x", "y", "1", "'q'", "row.l", "row.n > 2", "row.e", "y|default('d')", "x is defined", "[1,2]|join('-')", "(1,2)", "row.o.k", "row.l[1:]",
                 "not row.e", "x ~ y"] + ["loop.index", "loop.first", "loop.length"] * loop)


def output(loop):
    start, end = ends("{")
    return f"{start} {value(loop)} {end}"


def body(depth, loop):
    return "".join(pick([text, text, lambda: output(loop), lambda: block(depth, loop)])() for _ in range(rnd.randrange(4)))


def block(depth, loop):
    if depth == 0:
        return text()
    inner = lambda: body(depth - 1, loop)
    k = rnd.randrange(9)
    if k == 0:
        s = tag("if " + value(loop)) + inner()
        for _ in range(rnd.randrange(2)):
            s += tag("elif " + value(loop)) + inner()
        return s + (tag("else") + inner() if rnd.random() < 0.5 else "") + tag("endif")
    if k == 1:
        of = pick(["x in row.l", "y in row.e", "x, y in row.p", "x in 1, 2", "(x, y) in row.p", "x in 'ab'", "x in row.o"])
        s = tag(f"for {of}" + pick(["", " if x != 2", " if " + value(loop)])) + body(depth - 1, True)
        return s + (tag("else") + inner() if rnd.random() < 0.3 else "") + tag("endfor")
    if k == 2:
        return tag(pick(["set x = ", "set y = ", "set z = "]) + value(loop))
    if k == 3:
        return tag("set " + pick("xyz") + pick(["", " | upper", "|length"])) + inner() + tag("endset")
    if k == 4:
        return tag(pick(["with x = 1", "with y = x, x = 5", "with"])) + inner() + tag("endwith")
    if k == 5:
        return tag("filter " + pick(["upper", "replace('a','b')|trim", "length|string"])) + inner() + tag("endfilter")
    if k == 6:
        start, end = ends("%")
        return start + " raw " + end.lstrip("+") + text() + "{{ x }}{% if %}" + text() + tag("endraw")
    if k == 7:
        start, end = ends("#")
        return start + pick(["c", " c\n", "{{ x }}", "-", ""]) + end
    return tag("set x, y = 1, 2")


cases = []
while len(cases) < count:
    template = "{% set x, y = 0, 7 %}" + "".join(pick([text, lambda: block(3, False)])() for _ in range(1 + rnd.randrange(4))) + "{{ x }}{{ y }}{{ z is defined }}"
    try:
        want = {"want": env.from_string(template).render(row=row)}
    except Exception as e:
        if rnd.random() < 0.9:
            continue
        want = {"fails": type(e).__name__}
    if len(template) > 60:
        cases.append({"template": template} | want)
path = pathlib.Path(__file__).with_name("blocks.json")
lines = ",\n".join("  " + json.dumps(c, ensure_ascii=False) for c in cases)
path.write_text('{\n "jinja2": %s,\n "row": %s,\n "cases": [\n%s\n ]\n}\n' % (json.dumps(jinja2.__version__), json.dumps(row), lines))
