"""The bars of `make bench`: what counts as met, and that each group can be asked for."""

from pathlib import Path

import pytest

pytest.importorskip("gpytorch", reason="gpytorch is absent: `make test` installs it")

from benchmarks import bars
from benchmarks.bars import Bar


@pytest.mark.parametrize(
    ("bar", "runs", "met"),
    [
        (Bar("g", "n", lambda: 0.0, at_least=2.0), [1.0, 2.0, 9.0], True),
        (Bar("g", "n", lambda: 0.0, at_least=2.0), [1.0, 1.9, 9.0], False),
        (Bar("g", "n", lambda: 0.0, at_most=0.15), [0.2, 0.15, 0.1], True),
        (Bar("g", "n", lambda: 0.0, at_most=0.15), [0.2, 0.16, 0.1], False),
    ],
)
def test_the_median_counts(bar: Bar, runs: list[float], met: bool) -> None:
    line = bar.line(runs)
    assert line["met"] is met
    assert line["runs"] == runs
    assert ("at_least" in line) != ("at_most" in line)


def test_every_case_has_its_bars() -> None:
    found = list(bars.bars(Path("nowhere")))
    groups = [bar.group for bar in found]
    assert groups.count("step") == groups.count("prediction") == len(bars.CASES) == 7
    assert len({(bar.group, bar.name) for bar in found}) == len(found)


def test_a_group_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bars.jsonl"
    path.write_text(
        '{"what": "step: old", "found": 1, "at_least": 2, "met": false, "runs": [1, 3], "commit": "0123456789"}\n'
    )
    monkeypatch.setattr(bars, "quantile_share", lambda: 0.1)
    monkeypatch.setattr("sys.argv", ["bars", "--only", "quantiles", "--runs", "3", "--results", str(path)])
    assert bars.main() == 0
    assert len(path.read_text().splitlines()) == 2
    bars.main()
    assert len(path.read_text().splitlines()) == 2  # the new line takes the place of the old one
    page = path.with_suffix(".md").read_text()
    assert "| step: old | ≥ 2 | 1 | 1 to 3 | **no** | 0123456 |" in page
    assert "1 of 2 bars are met." in page
    first, last = capsys.readouterr().out.splitlines()[:2]
    assert '"met": true, "runs": [0.1, 0.1, 0.1]' in first
    assert last == '{"bars": 1, "met": 1}'


def test_a_group_that_does_not_exist(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["bars", "--only", "luck"])
    with pytest.raises(SystemExit):
        bars.main()
    assert "no group luck; choose from: step, prediction" in capsys.readouterr().err
