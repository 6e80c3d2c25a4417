"""Fills in "want" in jinja2.json with what Jinja2 makes of each template.

    python3 llm/template/testdata/generate.py

The tests compare our templates with the file and need neither Python nor Jinja2.
"""
import json
import pathlib

import jinja2

path = pathlib.Path(__file__).with_name("jinja2.json")
data = json.loads(path.read_text())
env = jinja2.Environment(undefined=jinja2.StrictUndefined)
for case in data["cases"]:
    try:
        case["want"] = env.from_string(case["template"]).render(row=data["row"], lookup=data["lookup"])
        case.pop("fails", None)
    except Exception as e:
        case.pop("want", None)
        case["fails"] = f"{type(e).__name__}: {e}".split("\n")[0]
data["jinja2"] = jinja2.__version__
path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
