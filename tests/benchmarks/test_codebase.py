"""The size of the package is measured as it is."""

import json
from pathlib import Path

import pytest

from benchmarks.codebase import PACKAGE, ROOT, Codebase, Function, extract, measure, report

SOURCE = '''"""Two functions and a class."""


class Rows:
    """Rows."""

    X: Float[np.ndarray, "N D"]

    def first(self, *, most, least):
        def inner():
            return 0

        return self.X[inner()]


class Other:
    def __init__(self, y: list["Rows"]):
        self.y = y


class Last:
    y: Float[Tensor, "S N"]
    others: int = 0


MOST, least, _LOW = 1, 2, 3
if True:
    def conditional(): return 1
'''


def small(folder: Path) -> Codebase:
    package = folder / "dspp"
    (package / "data").mkdir(parents=True)
    (package / "data" / "rows.py").write_text(SOURCE)
    (package / "data" / "page.css").write_text("body {}\n")
    (package / "errors.py").write_text("NAME = 1\n")
    return measure(package, commands=False)


def test_lines_functions_and_types_that_hold_rows(tmp_path: Path) -> None:
    found = small(tmp_path)
    assert found.lines == {"data/": 28, "errors.py": 1}
    assert found.functions == [
        Function("Rows.first", "data/rows.py:9", 5, 2),  # the inner one counts with it
        Function("Other.__init__", "data/rows.py:17", 2, 1),
        Function("conditional", "data/rows.py:28", 1),
    ]
    assert found.row_types == ["Other (data/rows.py:16)", "Rows (data/rows.py:4)"]
    assert found.counts == {
        "lines": 29,
        "classes": 3,
        "module constants": 3,
        "types that hold rows": 2,
        "longest signature": 2,
    }


def test_two_trees_stand_side_by_side(tmp_path: Path) -> None:
    before = small(tmp_path)
    after = Codebase({"data/": 1_200}, [], {"fit": ["dspp", "dspp.cli"]}, [])
    lines = report({"before": before, "now": after}).splitlines()
    assert lines[0].split() == ["before", "now"]
    assert lines[1].split() == ["lines", "29", "1,200"]
    assert ["modules", "imported", "by", "fit", "0", "2"] in [line.split() for line in lines]
    assert ["errors.py", "1", "–"] in [line.split() for line in lines]
    assert len({len(line) for line in lines[:5]}) == 1  # columns line up


def test_the_package_does_not_grow() -> None:
    """A number that rises is changed in tests/codebase.json, with the reason in the commit; one that falls, too."""
    most = json.loads((ROOT / "tests" / "codebase.json").read_text())
    counts = measure(PACKAGE, commands=False).counts
    assert counts.keys() == most.keys()
    assert {name: count for name, count in counts.items() if count > most[name]} == {}


def test_the_package_itself_and_what_its_commands_import() -> None:
    found = measure(PACKAGE)
    assert found.total > 5_000
    assert {"dspp.model", "dspp.cli.fit", "dspp.training.run"} <= set(found.imports["fit"])
    assert {"dspp.model", "dspp.cli.predict"} <= set(found.imports["predict"])
    assert len(found.imports["predict"]) < len(found.imports["fit"])


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the repository")
def test_an_earlier_revision_is_taken_from_the_repository(tmp_path: Path) -> None:
    assert (extract("HEAD", tmp_path) / "errors.py").is_file()
