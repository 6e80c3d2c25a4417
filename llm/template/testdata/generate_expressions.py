"""Writes expressions.json: expressions made at random, by a fixed seed, and what Jinja2 makes of them.

    python3 llm/template/testdata/generate_expressions.py [how many of each area]

An expression that fails in Jinja2 has null. The tests need neither Python nor Jinja2.
"""
import json
import pathlib
import random
import re
import sys

import jinja2

count = int(sys.argv[1]) if len(sys.argv) > 1 else 800
row = {
    "big": 2**64 + 1, "neg": -(2**70), "i": 9223372036854775807, "m": -9223372036854775808, "q": 9007199254740993, "h": 1e308,
    "l": [3, 1, 2], "e": [], "w": ["b", "A", "c", "a", "B"], "n": [1, 2.5, True, 1.0, -0.0, 2**65],
    "o": {"C": 1, "a": 3, "b": 2}, "none": None,  # mappings have their keys in order, as ours are
    "p": [{"k": "b", "n": "x", "v": 2}, {"k": "B", "n": "Y", "v": 1}, {"k": "a", "n": "z", "v": 2}, {"n": "X", "v": 1}],
    "s": ["", "a", "abc", "hello World", " x y  z ", "they're bill's", "a-b (c) [d] <e>", "12", " -0x1F ", "1_000.5", "٣٤", "½²", "Straße ﬁ",
          "ΑΣ Σ ΟΔΟΣ", "ǆ İ ı", "tab\tx\ty", "line\nmore\r\nend\x0b.", "a,b,,c", "é\u0301x", "日本語", "<b>T & 'J'</b> \"q\" <!-- c --> &lt;",
          "nan", "inf", "1e400", "-7", "+5", "0b11", "x" * 20, "Ab Cd", "AB", "ab", "  ", "a%b", "Q/? &=", "{}"],
}
rnd = random.Random(20)
env = jinja2.Environment(undefined=jinja2.StrictUndefined)
pick = rnd.choice

INTS = ["0", "1", "2", "3", "7", "10", "255", "1000000", "(-1)", "(-2)", "(-7)", "(-10)", "row.big", "row.neg", "row.i", "row.m", "row.q"]
FLOATS = ["0.0", "(-0.0)", "0.5", "(-0.5)", "1.5", "2.5", "(-2.5)", "0.1", "0.285", "1e16", "1e-5", "123456.789", "(-7.25)", "row.h", "1e22",
          "(row.s[22]|float)", "(row.s[21]|float)"]  # inf and nan: Jinja2 cannot compile them as constants
OPS = ["+", "-", "*", "/", "//", "%", "==", "!=", "<", "<=", ">", ">="]


def num():
    return pick(INTS) if rnd.random() < 0.6 else pick(FLOATS)


def numbers():
    k = rnd.randrange(10)
    if k < 4:
        return f"{num()} {pick(OPS)} {num()}"
    if k == 4:
        return f"({num()} {pick(OPS[:6])} {num()}) {pick(OPS[:6])} {num()}"
    if k == 5:
        return f"{num()} ** {pick(['0', '1', '2', '3', '5', '(-1)', '(-2)', '0.5', '64', '1000', '40', '2.0'])}"
    if k == 6:
        return f"{num()}|round({pick(['', '0', '1', '2', '-1', '-2', '-5', '20'])}{pick(['', ', method=' + repr('ceil'), ', method=' + repr('floor')])})".replace("(, ", "(")
    if k == 7:
        return f"{num()}|{pick(['int', 'float', 'abs', 'string', 'abs|string', 'int|string|length', 'filesizeformat', 'filesizeformat(true)'])}"
    if k == 8:
        return f"{pick(INTS)} is {pick(['even', 'odd', 'divisibleby(3)', 'divisibleby(7)', 'divisibleby(2.0)', 'integer', 'float', 'number'])}"
    return pick([f"-{num()}", f"+{num()}", f"[{num()}, {num()}]|sum", f"[{num()}, {num()}, {num()}]|max", f"[{num()}, {num()}]|min", f"{num()} in [{num()}, {num()}]",
                 f"{num()} * {pick(['true', 'false', repr('ab'), '[1]', '(1,)'])}", f"true {pick(OPS)} {num()}"])


def text():
    return f"row.s[{rnd.randrange(len(row['s']))}]"


def part():
    return repr(pick(["a", "b", "x", " ", ",", "", "l", "lo", "e", "ß", "Σ", "'", "zz", "1"])) if rnd.random() < 0.8 else text()


def strings():
    k = rnd.randrange(9)
    s = text()
    if k < 2:
        m = pick(["upper", "lower", "title", "capitalize", "swapcase", "casefold", "strip", "lstrip", "rstrip", "split", "rsplit", "splitlines", "isdigit",
                  "isalpha", "isalnum", "isupper", "islower", "isspace", "isnumeric", "isdecimal", "istitle", "isascii", "expandtabs"])
        return f"{s}.{m}()"
    if k == 2:
        return f"{s}.{pick(['find', 'rfind', 'index', 'rindex', 'count', 'startswith', 'endswith'])}({part()}{pick(['', ', 1', ', -3', ', 1, 4', ', 2, -1', ', 50', ', none, 3'])})"
    if k == 3:
        return f"{s}.{pick(['split', 'rsplit'])}({pick([part(), 'none'])}{pick(['', ', 1', ', 0', ', 2', ', -1'])})"
    if k == 4:
        return f"{s}.{pick(['center', 'ljust', 'rjust'])}({rnd.randrange(-1, 16)}{pick(['', ', ' + repr('*'), ', ' + repr('é'), ', ' + repr('ab')])})"
    if k == 5:
        return pick([f"{s}.zfill({rnd.randrange(12)})", f"{s}.partition({part()})", f"{s}.rpartition({part()})", f"{s}.expandtabs({rnd.randrange(9)})",
                     f"{s}.replace({part()}, {part()}{pick(['', ', 1', ', 2'])})", f"{s}.strip({part()})", f"{s}.splitlines(true)",
                     f"{s}.removeprefix({part()})", f"{s}.removesuffix({part()})", f"{part()}.join({s})", f"{s}.startswith(({part()}, {part()}))"])
    if k == 6:
        return f"{s}|{pick(['upper', 'lower', 'title', 'capitalize', 'trim', 'wordcount', 'length', 'e', 'escape', 'forceescape', 'striptags', 'urlencode', 'reverse', 'center', 'center(9)', 'tojson', 'indent', 'indent(2, true)', 'indent(blank=true)', 'truncate(5)', 'truncate(9, true, leeway=0)', 'list', 'first', 'last'])}"
    if k == 7:
        return f"{s}|{pick(['int', 'float', 'int(5)', 'int(base=16)', 'int(9, 16)', 'int(base=0)', 'int(7, 2)', 'int(base=36)', 'int(base=1)', 'float(1.5)', 'int|string'])}"
    return pick([f"[{s}, {text()}]", f"({s},)", f"{s} < {text()}", f"{part()} in {s}", f"{s}[{rnd.randrange(-3, 4)}:{rnd.randrange(-3, 9)}]", f"{s} is {pick(['lower', 'upper', 'string'])}"])


def spec():
    return (pick(["", "", "<", ">", "^", "=", "*<", "*^", "é>"]) + pick(["", "", "+", " ", "-"]) + pick(["", "", "", "#"]) + pick(["", "", "0"])
            + pick(["", "1", "5", "9", "14"]) + pick(["", "", "", ",", "_"]) + pick(["", "", ".0", ".1", ".3", ".12"]) + pick(["", "", "d", "s", "f", "e", "g", "G", "x", "X", "o", "b", "%", "E", "c", "n"]))


def value():
    return pick([num(), num(), num(), text(), "none", "true", "row.l", "(1, 2)", "row.o"])


def formats():
    k = rnd.randrange(8)
    if k < 3:
        return f'"{{:{spec()}}}".format({value()})'
    if k == 3:
        return pick([f'"{{0}} {{1!r}} {{0!s:>6}}".format({value()}, {value()})', f'"{{a}}-{{b!a}}".format(a={value()}, b={text()})', f'"{{{{}}}} {{}}{{}}".format({value()})',
                     f'"{{0[b]}} {{0[C]}}".format(row.o)', f'"{{0[1]:>{{1}}}}|".format(row.l, {rnd.randrange(9)})', f'"{{:{{}}}}".format({text()}, {rnd.randrange(20)})',
                     '"{} {0}".format(1, 2)', '"{".format(1)', '"}".format(1)', '"{x}".format(1)', '"{:>{w}}|".format("a", w=4)', '"{!x}".format(1)', '"{0[0]}{0[n]}".format(row.p)'])
    if k == 4:
        return pick([f'"%(b)s %(C)03d %(a)r" % row.o', f'"%(x)s"|format(x={value()})', f'"%s %s"|format({value()}, {value()})', f'"%s" % {text()}', f'"%s-%s" % ({value()}, {value()})',
                     f'"%s" % ({value()}, {value()})', f'"%s" % row.o', f'"%s" % row.l', '"%d%%" % 5', '"%" % 1', '"%z" % 1', '"a" % ()', '"a" % 1', '"%s%s" % (1,)', '"a" % row.o', '"a" % row.l'])
    return f'"%{pick(["", "-", "0", "+", " ", "#", "-0", "+0", "#0"])}{pick(["", "1", "5", "12"])}{pick(["", "", ".0", ".1", ".3"])}{pick(list("disrafeEgGxXocu"))}" % {pick([num(), num(), text(), "none", "row.l", "true"])}'


def seq():
    return pick(["row.l", "row.e", "row.w", "row.n", "(3, 1, 2)", "(1,)", "()", "range(4)", "range(5, 1, -2)", "row.o.keys()", "row.o.values()", "row.o.items()", "[[2, 1], [1, 2]]",
                 '["a", 1]', "[(1, 2), (1, 2)]", "row.o|dictsort", '"hello"', "row.p|map(attribute='n')|list", "[none, 1]", "[1, [2, (3, {'x': (4,)})]]"])


def lists():
    k = rnd.randrange(9)
    s = seq()
    if k < 3:
        return f"{s}|{pick(['sort', 'sort(true)', 'sort(case_sensitive=true)', 'sort(reverse=true, case_sensitive=true)', 'max', 'min', 'max(true)', 'min(case_sensitive=true)', 'sum', 'unique|list', 'unique(true)|list', 'first', 'last', 'length', 'reverse|list', 'list', 'join', 'batch(2)|list', 'batch(2, 0)|list', 'slice(2)|list', 'slice(3, 9)|list', 'string', 'tojson', 'urlencode', 'batch(9, none)|list'])}"
    if k == 3:
        return pick([f"row.p|sort(attribute='{a}')|map(attribute='n')|join" for a in ["v,n", "v", "n", "n,v", "v,k", "k"]] + [f"row.p|{f}(attribute='{a}')|string" for f in ["max", "min"] for a in ["v", "n"]])
    if k == 4:
        return pick([f"row.p|groupby('{a}'{d}{c})" for a in ["v", "n", "k"] for d in ["", ", default='b'", ", 'c'"] for c in ["", ", case_sensitive=true"]]
                    + ["(row.p|groupby('v'))[0].grouper", "(row.p|groupby('v'))[1].list|length", "(row.p|groupby('v'))[0][1]", "(row.p|groupby('v')|first)|length", "row.p|groupby('v')|map(attribute='grouper')|list"])
    if k == 5:
        return f"row.o|dictsort({pick(['', 'true', 'false, ' + repr('value'), 'by=' + repr('value'), 'by=' + repr('key') + ', reverse=true', 'reverse=true', 'by=' + repr('x'), 'true, ' + repr('value') + ', true'])})"
    if k == 6:
        return f"{s} {pick(['+', '==', '!=', '<', 'in', '*', '~'])} {pick([seq(), seq(), '2', '1'])}".replace("|dictsort ", "|dictsort ")
    if k == 7:
        return f"({s}){pick(['[0]', '[-1]', '[1:]', '[::-1]', '[::2]', '[5:2]', '[9]', '[1:3]', '.grouper', '[:-1]'])}"
    return pick([f"({s}).{pick(['index', 'count'])}({pick(['1', '2', repr('a'), '1.0', '7'])})", f"{s} is {pick(['sequence', 'iterable', 'mapping', 'string'])}",
                 "row.p|map(attribute='k', default='-')|list", "row.p|map(attribute='n')|unique|list", "row.p|unique(attribute='v')|map(attribute='n')|list", "{'a b': 1, 'c': '<', 'd': none}|xmlattr",
                 "{'x': '&'}|xmlattr(false)", "{'a': 'b c', 'd/': 'é'}|urlencode", "row.o|items|list", "row.p|sum(attribute='v')", "[[1], [2]]|sum(start=[])", "row.w|map('upper')|join('-')",
                 "row.l|map('string')|list", "['%s', '%d']|map('format', 3)|list", "row.o|list", "row.p|map(attribute='v')|sort|join", "row.l|join('-', attribute='x')"])


def operand(depth):
    k = rnd.randrange(14)
    if k < 4 or depth == 0:
        return pick(["0", "1", "2", "3", "row.l[1]", "row.o.C", "row['o'].a", "true", "1.5"]) if rnd.random() < 0.9 else pick(["false", "none", "'a'", "row.w[0]", "row.l", "(1,)"])
    if k < 6:
        return f"({grammar(depth - 1)})"
    if k == 6:
        return pick(["-", "+", "- -", "-+"]) + operand(depth - 1)
    if k == 7:
        return f"{operand(depth - 1)}|{pick(['string', 'int', 'abs', 'abs', 'float', 'default(1)', 'int|abs', 'string|length'])}"
    if k == 8:
        return f"[{grammar(depth - 1)}, {grammar(depth - 1)}]|sum"
    if k == 9:
        return f"{{'k': {grammar(depth - 1)}}}.k"
    if k == 10:
        return f"row.l[{grammar(depth - 1)}]"
    return f"{operand(depth - 1)} is {pick(['', 'not '])}{pick(['odd', 'even', 'string', 'number', 'defined', 'none', 'eq 1', 'divisibleby 2', 'in [1, 2]', 'eq(2)', 'sequence', 'lower', 'mapping'])}"


def grammar(depth=2):
    """Operators of all kinds with few brackets: what binds closer, and in which order."""
    text = operand(depth)
    for _ in range(rnd.randrange(4)):
        text += f" {pick(['+', '-', '*', '/', '//', '%', '**', '~', '==', '!=', '<', '<=', '>', '>=', 'and', 'or', 'in', 'not in', 'and', 'or', 'if'])} {operand(depth)}"
        if rnd.random() < 0.1:
            text += f" else {operand(depth)}"
    return pick(["", "", "", "not ", "not not "]) + text


def misread(e):
    """Jinja2 writes the constant -2 without brackets before **, which binds closer in Python, and takes the word behind a test for its argument."""
    return "**" in e and re.search(r"[-+]([^ ]|$)", e) or re.search("(odd|even|string|number|defined|none|sequence|lower|mapping) (in|if|not|is) ", e)


cases = []
for area in (numbers, strings, formats, lists, grammar):
    seen = set()
    for _ in range(20 * count):
        if len(seen) == count:
            break
        e = area()
        if e in seen or " < row.o" in e or area is grammar and misread(e):  # views have an order in Python, as sets
            continue
        seen.add(e)
        try:
            want = env.from_string("{{ " + e + " }}").render(row=row)
        except Exception:
            want = None
        if want is None and area is grammar and rnd.random() < 0.8:  # most are of the wrong types
            continue
        if want is None or len(want) < 300 and " at 0x" not in want and "Markup(" not in want and "j)" not in want:
            cases.append([e, want])
path = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else pathlib.Path(__file__).with_name("expressions.json")
lines = ",\n".join("  " + json.dumps(c, ensure_ascii=False) for c in cases)
path.write_text('{\n "jinja2": %s, "python": %s,\n "row": %s,\n "cases": [\n%s\n ]\n}\n' % (
    json.dumps(jinja2.__version__), json.dumps("%d.%d" % sys.version_info[:2]), json.dumps(row, ensure_ascii=False), lines))
