"""The docstrings of the public names, for the build of the site and for the tests of its examples."""

import ast
import importlib
import inspect
import itertools


def public_docstring(name: str) -> str:
    """Return the docstring of a public name; that of data is the string after its assignment."""
    dspp = importlib.import_module("dspp")
    value = getattr(dspp, name)
    if inspect.isclass(value):
        return vars(value).get("__doc__") or ""  # its own, not an inherited one
    if inspect.isfunction(value):
        return value.__doc__ or ""
    module = importlib.import_module(f"dspp.{dspp._HOME[name]}")
    body = ast.parse(inspect.getsource(module)).body
    for statement, after in itertools.pairwise(body):
        target = statement.target if isinstance(statement, ast.AnnAssign) else None
        named = isinstance(target, ast.Name) and target.id == name
        if named and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            return str(after.value.value)
    return ""
