"""Runs Jinja's own tests and prints, as one JSON object a line, every template that they compile or render.

    python3 test/jinja/record.py jinja-3.1.6

The argument is a source tree of Jinja with its tests. Jinja's own requirement markupsafe is the only one: what the tests use
of pytest is below. The first line has Jinja's version. Each further line has the test and the template; then "context" and
either "want", what Jinja renders, or "fails", its error. Both are of a second rendering: with default options but
StrictUndefined, and with a context that went through JSON. A template that this cannot be done with has the reason in "why".
"""
import collections
import contextlib
import importlib
import inspect
import json
import math
import os
import pathlib
import random
import re
import sys
import tempfile
import types

root = pathlib.Path(sys.argv[1]).resolve()
sys.path[:0] = [str(root / "src"), str(root / "tests")]

# Files of which no template is comparable: they are about event loops, Python's values and loaders.
LEFT_OUT = {"async", "async_filters", "bytecode_cache", "loader", "nativetypes"}


class raises:
    """pytest.raises"""

    def __new__(kind, expected, *args, match=None, **kwargs):
        info = object.__new__(kind)
        info.expected, info.pattern = expected, match
        if args:
            with info:
                args[0](*args[1:], **kwargs)
        return info

    def __enter__(self):
        return self

    def __exit__(self, kind, value, tb):
        assert kind is not None, "nothing was raised"
        self.type, self.value, self.tb = kind, value, tb
        return issubclass(kind, self.expected) and (self.pattern is None or self.match(self.pattern))

    def match(self, pattern):
        return bool(re.search(pattern, str(self.value)))


def fixture(f):
    f.fixture = True
    return f


class Mark:
    """pytest.mark"""

    def parametrize(self, names, values):
        names = re.findall(r"\w+", names) if isinstance(names, str) else names
        sets = [dict(zip(names, v if len(names) > 1 else [v])) for v in values]

        def mark(f):
            f.sets = [{**a, **b} for a in getattr(f, "sets", [{}]) for b in sets]
            return f

        return mark

    def xfail(self, f):
        f.sets = []
        return f


sys.modules["pytest"] = types.SimpleNamespace(raises=raises, fixture=fixture, mark=Mark())

import jinja2
from jinja2 import meta, nodes

strict = jinja2.Environment(undefined=jinja2.StrictUndefined)
from_string = jinja2.Environment.from_string
new_context = jinja2.Template.new_context
recording = None  # the records of the test that runs
compiled = {}  # by id: a template, its source and environment


def recorded_from_string(env, source, *args, **kwargs):
    if not isinstance(source, str):
        return from_string(env, source, *args, **kwargs)
    try:
        template = from_string(env, source, *args, **kwargs)
    except jinja2.TemplateSyntaxError:
        record(env, source, {})
        raise
    compiled[id(template)] = template, source, env
    return template


def recorded_new_context(template, vars=None, shared=False, locals=None):
    if id(template) in compiled:
        _, source, env = compiled[id(template)]
        record(env, source, vars or {}, template.globals)
    elif recording is not None:
        recording.append({"template": str(template.name), "why": "loader"})
    return new_context(template, vars, shared, locals)


jinja2.Environment.from_string = recorded_from_string
jinja2.Template.new_context = recorded_new_context


class NoData(Exception):
    pass


def data(value):
    """value as JSON has it. An object that only has attributes is a mapping."""
    if value is None or type(value) in (bool, int, str) or type(value) is float and math.isfinite(value):
        return value
    if type(value) in (list, tuple, range):
        return [data(v) for v in value]
    if type(value) is dict and all(type(k) is str for k in value):
        return {k: data(v) for k, v in value.items()}
    if hasattr(value, "_asdict"):
        return data(value._asdict())
    if type(value).__bases__ == (object,) and getattr(value, "__dict__", None) and not callable(value):
        return data(vars(value))
    raise NoData


def why_not(env, names):
    """Why templates of env cannot be compared, or None."""
    if env.is_async:
        return "async"
    if set(env.extensions) - set(strict.extensions):
        return "extensions"
    for end in "start", "end":
        for tag in "block", "variable", "comment":
            if getattr(env, f"{tag}_{end}_string") != getattr(strict, f"{tag}_{end}_string"):
                return "syntax"
    if env.line_statement_prefix or env.line_comment_prefix:
        return "syntax"
    if type(env) is not jinja2.Environment or env.finalize or env.policies != strict.policies:
        return "environment"
    if env.filters != strict.filters or env.tests != strict.tests or dict(names or env.globals) != strict.globals:
        return "environment"
    return None


def compare(env, source, context, names):
    """What there is to say of a template beside its source."""
    if why := why_not(env, names):
        return {"why": why}
    entry = {"context": {}}
    try:
        tree = strict.parse(source)
        if tree.find((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)):
            return {"why": "loader"}
        read = meta.find_undeclared_variables(tree)
        entry["context"] = data({k: v for k, v in dict(context).items() if k in read})
        entry["want"] = from_string(strict, source).render(json.loads(json.dumps(entry["context"])))
    except NoData:
        return {"why": "objects"}
    except Exception as e:
        entry["fails"] = f"{type(e).__name__}: {e}"
    return entry


def record(env, source, context, names=None):
    global recording
    if recording is None:
        return
    records, recording = recording, None
    state = random.getstate()
    records.append({"template": source, **compare(env, source, context, names)})
    random.setstate(state)
    recording = records


def arguments(f, given, known, stack, instance=()):
    """What a test or fixture wants, by its arguments' names."""
    for name in list(inspect.signature(f).parameters)[len(instance):]:
        if name in given:
            continue
        if name == "tmp_path":
            given[name] = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        elif name == "request":
            given[name] = types.SimpleNamespace(addfinalizer=stack.callback)
        else:
            wanted = known[name]
            of = instance if list(inspect.signature(wanted).parameters)[:1] == ["self"] else ()
            given[name] = wanted(*of, **arguments(wanted, given, known, stack, of))
    return {n: given[n] for n in list(inspect.signature(f).parameters)[len(instance):]}


def run(f, cls, module, given):
    """Runs one test and returns what it recorded."""
    global recording
    recording = records = []
    instance = (cls(),) if cls else ()
    known = {n: x for scope in (importlib.import_module("conftest"), module, cls) if scope for n, x in vars(scope).items()}
    with contextlib.ExitStack() as stack:
        if hasattr(cls, "teardown_method"):
            stack.callback(instance[0].teardown_method)
        try:
            f(*instance, **arguments(f, dict(given), known, stack, instance))
        except Exception as e:
            print(f"{module.__name__}.{f.__qualname__}: {type(e).__name__}: {e}", file=sys.stderr)
    recording = None
    return records


def tests(module):
    """The tests of a file, in its order."""
    for scope in [None, *(x for n, x in vars(module).items() if n.startswith("Test") and inspect.isclass(x))]:
        for name, f in vars(scope or module).items():
            if name.startswith("test") and inspect.isfunction(f):
                yield scope, f


def main():
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # for what the tests print
    version = re.search(r'^version = "(.*)"|^__version__ = "(.*)"', "\n".join(
        p.read_text() for p in (root / "pyproject.toml", root / "src/jinja2/__init__.py") if p.exists()), re.M)
    print(json.dumps({"jinja": version and (version[1] or version[2])}), file=out)
    for path in sorted((root / "tests").glob("test_*.py")):
        area = path.stem.removeprefix("test_")
        if area in LEFT_OUT:
            continue
        module = importlib.import_module(path.stem)
        for cls, f in tests(module):
            seen = 0
            for given in getattr(f, "sets", [{}]):
                for entry in run(f, cls, module, given):
                    seen += 1
                    print(json.dumps({"area": area, "test": f"{area}.{f.__qualname__}.{seen}", **entry}), file=out)


main()
