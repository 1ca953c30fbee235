"""The size of the package: lines, classes, constants, signatures, types that hold rows, modules imported by commands.

    python -m benchmarks.codebase [SOURCE] [--against REVISION]

SOURCE is the package's folder, by default src/dspp. `--against` also shows the numbers of another revision. Those in
tests/codebase.json may only fall: a test compares them.
"""

import argparse
import ast
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "dspp"
LONGEST = 15  # functions listed
CALLED = "estimators/", "cli/"  # by users, who name the arguments: their signatures may be long

# What holds rows of the user's data has a field with one entry per row, a table, or a field of such a type.
BY_ROW = re.compile(r"""\b(Float|Int|Bool|Shaped)\[[^\]]*["']\s*\*?N\b|\bpa\.(Table|RecordBatch)\b""")

FIT = "fit train.csv --target y --out model.dspp --inducing 4 --width 2 --epochs 1 --restarts 1"
PREDICT = "predict model.dspp train.csv --out predictions.csv"
RUN = """
import json, sys
from dspp.cli import main
try:
    main()
except SystemExit as done:
    if done.code:
        raise
names = sorted(name for name in sys.modules if name.split(".")[0] == "dspp")
print("\\nMODULES " + json.dumps(names))
"""


@dataclass(frozen=True)
class Function:
    """A function and its length, including signature and docstring."""

    name: str
    place: str  # file and line, inside the package
    lines: int
    parameters: int = 0  # without self and cls


@dataclass(frozen=True)
class Codebase:
    """The measurements of one source tree."""

    lines: dict[str, int]  # per folder, and per module outside of folders
    functions: list[Function]  # the longest first
    imports: dict[str, list[str]]  # the package's own modules, per command
    row_types: list[str]  # where they are defined
    classes: int = 0
    constants: int = 0  # of modules

    @property
    def total(self) -> int:
        return sum(self.lines.values())

    @property
    def counts(self) -> dict[str, int]:
        """The numbers that may only fall."""
        return {
            "lines": self.total,
            "classes": self.classes,
            "module constants": self.constants,
            "types that hold rows": len(self.row_types),
            "longest signature": max(
                (function.parameters for function in self.functions if not function.place.startswith(CALLED)), default=0
            ),
        }


def measure(package: Path, commands: bool = True) -> Codebase:
    """Measure the package in a folder such as src/dspp; with `commands`, also run `dspp fit` and `dspp predict`."""
    lines: Counter[str] = Counter()
    functions: list[Function] = []
    fields: dict[str, tuple[str, list[ast.expr]]] = {}  # by place, a class and the types of its fields
    constants = 0
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        inside = path.relative_to(package)
        lines[inside.parts[0] + ("/" if len(inside.parts) > 1 else "")] += len(text.splitlines())
        tree = ast.parse(text, str(path))
        functions += _functions(tree, str(inside))
        constants += sum(_count_constants(node) for node in tree.body)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                fields[f"{node.name} ({inside}:{node.lineno})"] = node.name, _field_types(node)
    functions.sort(key=lambda function: (-function.lines, function.place))
    imports = _list_imports(package) if commands else {}
    return Codebase(dict(sorted(lines.items())), functions, imports, _hold_rows(fields), len(fields), constants)


def _count_constants(node: ast.stmt) -> int:
    """Return how many names in capitals a statement of a module assigns."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    names = [n.id.strip("_") for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]
    return sum(name.isupper() for name in names)


def _hold_rows(fields: dict[str, tuple[str, list[ast.expr]]]) -> list[str]:
    """Return the classes with a field of rows, or with a field of such a class."""
    found = {place for place, (_, types) in fields.items() if any(BY_ROW.search(ast.unparse(t)) for t in types)}
    while True:
        names = {fields[place][0] for place in found}
        more = {place for place, (_, types) in fields.items() if names & _names(types)}
        if more <= found:
            return sorted(found)
        found |= more


def _names(types: Sequence[ast.expr]) -> set[str]:
    """Return the names in types, also those in quotes."""
    nodes = [node for each in types for node in ast.walk(each)]
    quoted = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {node.id for node in nodes if isinstance(node, ast.Name)} | quoted


def _functions(tree: ast.AST, file: str, prefix: str = "") -> Iterator[Function]:
    """Yield every function and method; nested functions count as part of the outer one."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, file, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            last = node.end_lineno or node.lineno
            given = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            count = len([name for name in given if name not in ("self", "cls")])
            yield Function(prefix + node.name, f"{file}:{node.lineno}", last - node.lineno + 1, count)
        elif isinstance(node, ast.stmt):
            yield from _functions(node, file, prefix)


def _field_types(node: ast.ClassDef) -> list[ast.expr]:
    """Return the types of the annotated fields and of the parameters of `__init__`."""
    types = [n.annotation for n in node.body if isinstance(n, ast.AnnAssign)]
    for n in node.body:
        if isinstance(n, ast.FunctionDef) and n.name == "__init__":
            types += [a.annotation for a in (*n.args.args, *n.args.kwonlyargs) if a.annotation is not None]
    return types


def _list_imports(package: Path) -> dict[str, list[str]]:
    """Return the modules imported by a tiny `dspp fit`, and by `dspp predict` in its own process."""
    environment = os.environ | {"PYTHONPATH": str(package.parent.resolve()), "OMP_NUM_THREADS": "1"}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        rows = "\n".join(f"{i % 7},{i % 3},{i % 5 + 0.1 * i}" for i in range(40))
        (Path(folder) / "train.csv").write_text(f"a,b,y\n{rows}\n")
        for command in (FIT, PREDICT):
            run = [sys.executable, "-c", RUN, *command.split()]
            done = subprocess.run(run, cwd=folder, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"dspp {command} failed:\n{done.stderr}")
            found[command.split()[0]] = json.loads(done.stdout.rpartition("MODULES ")[2])
    return found


def extract(revision: str, folder: Path) -> Path:
    """Extract the package at a revision into a folder, and return its path."""
    archive = subprocess.run(["git", "archive", revision, "src/dspp"], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    return folder / "src" / "dspp"


# ---------------------------------------------------------------- printing


def report(trees: dict[str, Codebase]) -> str:
    """Format the measurements of one tree, or of several side by side."""
    names = list(trees)
    found = list(trees.values())
    rows = [(name, *(f"{tree.counts[name]:,}" for tree in found)) for name in found[0].counts]
    commands = {command: None for tree in found for command in tree.imports}
    rows += [(f"modules imported by {c}", *(str(len(tree.imports.get(c, ()))) for tree in found)) for c in commands]
    rows += [("functions", *(str(len(tree.functions)) for tree in found))]
    parts = [_table(("", *names), rows)]
    places = sorted({place for tree in found for place in tree.lines}, key=lambda p: (not p.endswith("/"), p))
    lines = [(place, *(f"{tree.lines[place]:,}" if place in tree.lines else "–" for tree in found)) for place in places]
    parts.append(_table(("lines", *names), lines))
    for name, tree in trees.items():
        longest = [(f.name, str(f.lines), f.place) for f in tree.functions[:LONGEST]]
        parts.append(_table((f"longest functions, {name}", "lines", "place"), longest))
    for name, tree in trees.items():
        parts.append(_format_places(f"types that hold rows, {name}", tree.row_types))
    return "\n\n".join(parts)


def _format_places(title: str, places: Sequence[str]) -> str:
    return "\n".join([title, *(f"  {place}" for place in places)])


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table with the first column left-aligned and the others right-aligned."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in (header, *rows)
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", type=Path, default=PACKAGE, help="the package's folder")
    parser.add_argument("--against", metavar="REVISION", help="a revision to compare with")
    parser.add_argument("--no-commands", action="store_true", help="skip running fit and predict to list their imports")
    options = parser.parse_args(arguments)
    trees = {}
    with tempfile.TemporaryDirectory() as folder:
        if options.against:
            trees[options.against] = measure(extract(options.against, Path(folder)), not options.no_commands)
        trees["now"] = measure(options.source, not options.no_commands)
    print(report(trees))


if __name__ == "__main__":
    main()
