"""Checks that the tests can fail (promise 9): they must detect small faults in the numerical core.

    python -m benchmarks.mutants [--sample 200] [--seed 0] [--jobs 2]

A mutant is a copy of the package with one expression changed: an operator or comparison swapped, a summand or a minus
sign dropped, a constant changed, a result negated. It is killed if a test fails or the tests do not end. Prints the
survivors and the percentage killed, and exits with code 1 if that is below 95 %.
"""

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "dspp"
CORE = ("gp", "quadrature.py", "mixture", "predictive", "objectives.py", "heads.py", "likelihoods")
TESTS = (  # fast ones, and the frozen numbers last
    "tests/test_objectives.py",
    "tests/predictive",
    "tests/test_rules.py",
    "tests/gp",
    "tests/likelihoods",
    "tests/test_calibration.py",
    "tests/test_limits.py",
    "tests/test_gpytorch_parity.py",
    "tests/frozen",
)
FIRST = {"gp": "tests/gp", "quadrature.py": "tests/test_rules.py"}  # which tests are the likeliest to notice
AIM = 0.95
TIMEOUT = 900.0  # seconds for the tests of one mutant; all of them take a minute or two
# Mutants that compute the same, by `Mutant.name`, each with the reason.
EQUIVALENT = {
    "gp/linalg.py: JITTER_LADDER = (1.0, 10.0, 100.0, 1000.0, 10_000.0): 1.0 -> 1.5": "rung 0, the configured jitter, "
    "is not read",
    "gp/kernels.py: return x * self.rate: return x * self.rate -> return -(x * self.rate)": "both sides of every "
    "distance change their sign",
}

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.Pow: ast.Mult,
    ast.Lt: ast.Gt,
    ast.LtE: ast.Gt,
    ast.Gt: ast.Lt,
    ast.GtE: ast.Lt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    file: str  # inside the package
    line: int
    text: str  # of that line
    before: str
    after: str
    source: str  # the whole file, changed

    @property
    def name(self) -> str:
        """A name that identifies the change even if lines have moved."""
        return f"{self.file}: {self.text}: {self.before} -> {self.after}"


def mutants_of(source: str, file: str) -> Iterator[Mutant]:
    """Yield every mutant of a file, in the order of its lines."""
    lines = source.splitlines()
    for node, replacement in _changes(ast.parse(source)):
        before, after = ast.unparse(node), ast.unparse(replacement)
        text = after if isinstance(node, ast.stmt) else f"({after})"
        line = lines[node.lineno - 1].strip()
        yield Mutant(file, node.lineno, line, before, after, _splice(source, node, text))


def _changes(node: ast.AST, returns_number: bool = False) -> Iterator[tuple[ast.expr | ast.stmt, ast.AST]]:
    """Yield nodes with their replacements; messages, types, imports, indices and plots are not changed."""
    if isinstance(node, ast.FunctionDef):
        if node.name.startswith("plot_"):
            return
        returns = "" if node.returns is None else ast.unparse(node.returns)
        returns_number = returns.startswith(("Float[Tensor", "Tensor", "float"))
        parts: list[ast.AST] = [*node.args.defaults, *node.args.kw_defaults, *node.body]  # type: ignore[list-item]
    elif isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    elif isinstance(node, ast.AnnAssign):
        parts = [] if node.value is None else [node.value]
    elif isinstance(node, ast.Subscript):
        parts = [node.value]
    elif isinstance(node, ast.keyword) and node.arg is not None and node.arg.startswith("dim"):
        return
    elif isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant) and type(node.operand.value) is int:
        return  # -1, an axis
    else:
        parts = list(ast.iter_child_nodes(node))
    for replacement in _replacements(node, returns_number):
        assert isinstance(node, ast.expr | ast.stmt)
        yield node, replacement
    for part in parts:
        if part is not None:
            yield from _changes(part, returns_number)


def _replacements(node: ast.AST, returns_number: bool) -> Iterator[ast.AST]:
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in SWAPS:
        yield _change(node, op=SWAPS[type(node.op)]())
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield node.left  # drops the jitter, for example
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        yield _change(node, ops=[SWAPS[type(node.ops[0])](), *node.ops[1:]])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield node.operand
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        yield ast.Constant(_other(node.value))
    if isinstance(node, ast.Return) and node.value is not None and returns_number:
        yield _change(node, value=ast.UnaryOp(ast.USub(), node.value))


def _other(value: bool | int | float) -> bool | int | float:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) or value == 0.0 else 1.5 * value


def _change(node: ast.AST, **fields: object) -> ast.AST:
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def _splice(source: str, node: ast.expr | ast.stmt, text: str) -> str:
    """Return the source with `text` in place of the node; column offsets of syntax trees count bytes."""
    lines = source.encode().splitlines(keepends=True)
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    begin = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    data = source.encode()
    return (data[:begin] + text.encode() + data[end:]).decode()


def core_mutants(package: Path = PACKAGE) -> list[Mutant]:
    """Return every mutant of the numerical core."""
    found = []
    for part in CORE:
        path = package / part
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.exists() else []:
            found += mutants_of(file.read_text(encoding="utf-8"), str(file.relative_to(package)))
    return found


# ---------------------------------------------------------------- running tests


def passes(changed: dict[str, str], tests: Sequence[str]) -> bool:
    """Whether the tests pass with these files changed; False also if they do not end."""
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "dspp"
        shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
        for file, source in changed.items():
            (package / file).write_text(source, encoding="utf-8")
        environment = os.environ | {
            "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "not long", "-p", "no:cacheprovider", *tests]
        try:
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=TIMEOUT, check=False)
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0


def order_tests(file: str) -> list[str]:
    """Return the tests, starting with those most likely to detect a change in this file."""
    first = FIRST.get(Path(file).parts[0], "tests/predictive")
    existing = [test for test in TESTS if (ROOT / test).exists()]
    return sorted(existing, key=lambda test: test != first)


def check_setup() -> None:
    """Check that the tests pass without a mutant, and that they import the copy: a broken copy must fail."""
    if not passes({}, order_tests("gp")):
        raise SystemExit("the tests fail without a mutant; fix them first")
    if passes({"errors.py": "raise RuntimeError\n"}, ["tests/test_objectives.py"]):
        raise SystemExit(
            "the tests do not import the copy of the package; remove an installation that comes first on the path"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=200, help="number of mutants to try, chosen at random")
    parser.add_argument("--seed", type=int, default=0, help="seed of that choice")
    parser.add_argument("--jobs", type=int, default=2, help="mutants to try at the same time")
    options = parser.parse_args(arguments)
    known = core_mutants()
    mutants = [mutant for mutant in known if mutant.name not in EQUIVALENT]
    print(f"{len(known)} mutants of the core, {len(known) - len(mutants)} known to be equivalent", flush=True)
    check_setup()
    chosen = random.Random(options.seed).sample(mutants, min(options.sample, len(mutants)))
    survivors = []
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = pool.map(lambda mutant: passes({mutant.file: mutant.source}, order_tests(mutant.file)), chosen)
        for count, (mutant, survived) in enumerate(zip(chosen, outcomes, strict=True), start=1):
            if survived:
                survivors.append(mutant)
                print(f"survived: {mutant.file}:{mutant.line}: {mutant.before} -> {mutant.after}", flush=True)
            if count % 10 == 0:
                print(f"{count} of {len(chosen)} tried, {len(survivors)} survived", flush=True)
    share = 1.0 - len(survivors) / len(chosen)
    print(f"killed {len(chosen) - len(survivors)} of {len(chosen)}: {100 * share:.1f} %, expected {100 * AIM:.0f} %")
    raise SystemExit(share < AIM)


if __name__ == "__main__":
    main()
