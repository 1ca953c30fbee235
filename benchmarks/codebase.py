"""The size of the package: lines, longest functions, modules imported by commands, types that hold rows.

    python -m benchmarks.codebase [SOURCE] [--against REVISION]

SOURCE is the package's folder, by default src/dspp. `--against` also shows the numbers of another revision. These
numbers are indicators, not limits.
"""

import argparse
import ast
import io
import json
import os
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

# Types that hold or locate rows of the user's data on the way from a file to a batch. Subclasses that only read another
# format, iterators and protocols do not count. The names are from all revisions, old and new.
ROW_TYPES = {
    "Table": "rows with columns, in memory or on disk",
    "TableFile": "a file of rows, read in batches",
    "Piece": "a file of many, and its rows",
    "Shards": "many files as one table",
    "Inputs": "checked inputs, a table or an array",
    "Labelled": "the rows of a file that have a target",
    "Task": "rows to train on and rows to judge by: of the command line, of tuning",
    "Part": "rows and targets of one part of a split",
    "Stored": "rows on disk for an estimator",
    "_Rows": "rows on disk, encoded as they are read",
    "RowCache": "encoded rows in a file",
    "Rows": "encoded rows in memory",
    "_Picked": "some rows of another source",
    "DiskRows": "encoded rows on disk, read in batches",
    "Prepared": "rows checked, split, encoded and scaled",
}
ROW_FIELDS = {"X", "y", "rows", "table", "X_val", "y_val"}  # a class with such a field may belong to the list

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


@dataclass(frozen=True)
class Codebase:
    """The measurements of one source tree."""

    lines: dict[str, int]  # per folder, and per module outside of folders
    functions: list[Function]  # the longest first
    imports: dict[str, list[str]]  # the package's own modules, per command
    row_types: list[str]  # where they are defined
    candidates: list[str]  # other classes with such fields

    @property
    def total(self) -> int:
        return sum(self.lines.values())


def measure(package: Path, commands: bool = True) -> Codebase:
    """Measure the package in a folder such as src/dspp; with `commands`, also run `dspp fit` and `dspp predict`."""
    lines: Counter[str] = Counter()
    functions: list[Function] = []
    row_types, candidates = [], []
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        inside = path.relative_to(package)
        lines[inside.parts[0] + ("/" if len(inside.parts) > 1 else "")] += len(text.splitlines())
        tree = ast.parse(text, str(path))
        functions += _functions(tree, str(inside))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                place = f"{node.name} ({inside}:{node.lineno})"
                if node.name in ROW_TYPES:
                    row_types.append(place)
                elif _fields(node) & ROW_FIELDS:
                    candidates.append(place)
    functions.sort(key=lambda function: (-function.lines, function.place))
    imports = _list_imports(package) if commands else {}
    return Codebase(dict(sorted(lines.items())), functions, imports, row_types, candidates)


def _functions(tree: ast.AST, file: str, prefix: str = "") -> Iterator[Function]:
    """Yield every function and method; nested functions count as part of the outer one."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, file, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            last = node.end_lineno or node.lineno
            yield Function(prefix + node.name, f"{file}:{node.lineno}", last - node.lineno + 1)
        elif isinstance(node, ast.stmt):
            yield from _functions(node, file, prefix)


def _fields(node: ast.ClassDef) -> set[str]:
    """Return the names of annotated fields and of attributes set on self."""
    annotated = {n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    stored = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)}
    return annotated | stored


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
    rows = [("total lines", *(f"{tree.total:,}" for tree in found))]
    rows += [("types that hold rows", *(str(len(tree.row_types)) for tree in found))]
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
        parts.append(_format_places(f"other classes with such fields, {name}", tree.candidates))
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
