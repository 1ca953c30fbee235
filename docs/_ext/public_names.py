"""The public names and their docstrings, for the build of the site and for the tests of its examples."""

import ast
import importlib
import inspect
import itertools
import re
from importlib.util import find_spec
from pathlib import Path

PAGES = Path(__file__).parents[1] / "api"
DIRECTIVE = re.compile(r"^\.\. auto(\w+):: (dspp[\w.]*)\n((?:   .*\n)*)", re.MULTILINE)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
NEEDS = {"dspp.mlflow": "mlflow", "dspp.skpro": "skpro"}  # modules that need an extra


def public_names() -> list[str]:
    """Return every name of the API reference, such as "dspp.tune" and "dspp.metrics.nll"."""
    names = []
    for page in sorted(PAGES.glob("*.md")):
        for kind, name, options in DIRECTIVE.findall(page.read_text()):
            if kind != "module":
                names.append(name)
            elif members := re.search(r"^   :members: (.+)$", options, re.MULTILINE):
                names += [f"{name}.{member.strip()}" for member in members[1].split(",")]
    return names


def missing_library(name: str) -> str | None:
    """Return the library that a name needs and that is not installed; None if there is none."""
    library = NEEDS.get(name.rpartition(".")[0])
    return library if library is not None and find_spec(library) is None else None


def public_docstring(name: str) -> str:
    """Return the docstring of a public name; that of data is the string after its assignment."""
    module_name, _, last = name.rpartition(".")
    value = getattr(importlib.import_module(module_name), last)
    if inspect.isclass(value):
        return vars(value).get("__doc__") or ""  # its own, not an inherited one
    if inspect.isfunction(value):
        return value.__doc__ or ""
    home = importlib.import_module("dspp")._HOME[last] if module_name == "dspp" else module_name.removeprefix("dspp.")
    body = ast.parse(inspect.getsource(importlib.import_module(f"dspp.{home}"))).body
    for statement, after in itertools.pairwise(body):
        target = statement.target if isinstance(statement, ast.AnnAssign) else None
        named = isinstance(target, ast.Name) and target.id == last
        if named and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            return str(after.value.value)
    return ""


def has_example(name: str) -> bool:
    """Return whether a public name has an example in its docstring, or beside it in the API reference."""
    blocks = "\n".join(block for page in PAGES.glob("*.md") for block in BLOCK.findall(page.read_text()))
    return ">>>" in public_docstring(name) or re.search(rf"\b{name.rpartition('.')[2]}\b", blocks) is not None
