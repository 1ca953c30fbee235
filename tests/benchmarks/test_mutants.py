"""The tool that tests the tests: which faults it makes, and where."""

from benchmarks.mutants import CORE, EQUIVALENT, PACKAGE, core_mutants, mutants_of, order_tests

SOURCE = '''"""A file with 1 number in its docstring."""
from torch import Tensor

LIMIT: float = 2.0


def scaled(x: "Float[Tensor, \'N 2\']", jitter: float = 0.0) -> Tensor:
    """ξ: two bytes that columns count."""
    if x.shape[0] < 3:
        raise ValueError(f"got {x.shape[0] + 1}, expected {1 + 2}")
    ξ = -x.sum(dim=1) * 2 + jitter; y = x[1] ** 2
    return ξ - y


def plot_it(x):
    return x + 1
'''
CHANGES = [
    "2.0 -> 3.0",
    "0.0 -> 1.0",
    "x.shape[0] < 3 -> x.shape[0] > 3",
    "3 -> 4",
    "-x.sum(dim=1) * 2 + jitter -> -x.sum(dim=1) * 2 - jitter",
    "-x.sum(dim=1) * 2 + jitter -> -x.sum(dim=1) * 2",
    "-x.sum(dim=1) * 2 -> -x.sum(dim=1) / 2",
    "-x.sum(dim=1) -> x.sum(dim=1)",
    "2 -> 3",
    "x[1] ** 2 -> x[1] * 2",
    "2 -> 3",
    "return ξ - y -> return -(ξ - y)",
    "ξ - y -> ξ + y",
]


def test_every_fault_is_one_change_in_place() -> None:
    found = list(mutants_of(SOURCE, "gp/some.py"))
    assert [f"{mutant.before} -> {mutant.after}" for mutant in found] == CHANGES
    for mutant in found:
        compile(mutant.source, mutant.file, "exec")
        changed = [(a, b) for a, b in zip(SOURCE.splitlines(), mutant.source.splitlines(), strict=True) if a != b]
        assert [line.strip() for line, _ in changed] == [mutant.text]
    power = next(mutant for mutant in found if mutant.after == "x[1] * 2")
    assert "; y = (x[1] * 2)\n" in power.source
    assert power.name == f"gp/some.py: {power.text}: x[1] ** 2 -> x[1] * 2"


def test_the_core_is_there() -> None:
    files = {mutant.file for mutant in core_mutants()}
    assert {"quadrature.py", "objectives.py", "gp/conditional.py"} <= files
    assert len({file.split("/")[0] for file in files}) == sum((PACKAGE / part).exists() for part in CORE)


def test_mutants_that_compute_the_same_are_still_there() -> None:
    assert EQUIVALENT.keys() <= {mutant.name for mutant in core_mutants()}


def test_the_likeliest_tests_come_first() -> None:
    assert order_tests("gp/layer.py")[0] == "tests/gp"
    assert order_tests("quadrature.py")[0] == "tests/test_rules.py"
    assert order_tests("mixture/maths.py")[0] == "tests/predictive"
    assert sorted(order_tests("gp/layer.py")) == sorted(order_tests("quadrature.py"))
