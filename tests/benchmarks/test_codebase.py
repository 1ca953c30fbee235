"""The size of the package is measured as it is."""

from pathlib import Path

import pytest

from benchmarks.codebase import PACKAGE, ROOT, Codebase, Function, extract, measure, report

SOURCE = '''"""Two functions and a class."""


class Rows:
    """Rows."""

    X: list

    def first(self):
        def inner():
            return 0

        return self.X[inner()]


class Other:
    def __init__(self, y):
        self.y = y


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
    assert found.lines == {"data/": 22, "errors.py": 1}
    assert found.total == 23
    assert found.functions == [
        Function("Rows.first", "data/rows.py:9", 5),  # the inner one counts with it
        Function("Other.__init__", "data/rows.py:17", 2),
        Function("conditional", "data/rows.py:22", 1),
    ]
    assert found.row_types == ["Rows (data/rows.py:4)"]
    assert found.candidates == ["Other (data/rows.py:16)"]


def test_two_trees_stand_side_by_side(tmp_path: Path) -> None:
    before = small(tmp_path)
    after = Codebase({"data/": 1_200}, [], {"fit": ["dspp", "dspp.cli"]}, [], [])
    lines = report({"before": before, "now": after}).splitlines()
    assert lines[0].split() == ["before", "now"]
    assert lines[1].split() == ["total", "lines", "23", "1,200"]
    assert ["modules", "imported", "by", "fit", "0", "2"] in [line.split() for line in lines]
    assert ["errors.py", "1", "–"] in [line.split() for line in lines]
    assert len({len(line) for line in lines[:5]}) == 1  # columns line up


def test_the_package_itself_and_what_its_commands_import() -> None:
    found = measure(PACKAGE)
    assert found.total > 5_000
    assert {"dspp.model", "dspp.cli.fit", "dspp.training.run"} <= set(found.imports["fit"])
    assert {"dspp.model", "dspp.cli.predict"} <= set(found.imports["predict"])
    assert len(found.imports["predict"]) < len(found.imports["fit"])


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the repository")
def test_an_earlier_revision_is_taken_from_the_repository(tmp_path: Path) -> None:
    assert (extract("HEAD", tmp_path) / "errors.py").is_file()
