"""The report's section on studies: fits that differ in the seed are one row, and sentences state what records say."""

import json
import re
from pathlib import Path

import pytest
from test_experiments_report import run

from experiments.report import studies
from experiments.report.page import write_report
from experiments.report.records import Record, read_records
from experiments.report.studies import STUDIES, Study, studies_section
from experiments.results import REPOSITORY

RESULTS = REPOSITORY / "results"
STARTS = Study("starts", "A title", ("A finding.",), ("width", "hidden_mean"), ("experiments run X",))


def folder_with(tmp_path: Path, *records: dict[str, object]) -> Path:
    (tmp_path / studies.FOLDER).mkdir()
    (tmp_path / studies.FOLDER / "starts.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return tmp_path


def seeded(seed: int, nll: float, **setting: object) -> dict[str, object]:
    metrics = {"nll": nll, "crps": 0.1, "rmse": 0.2, "coverage90": 0.9}
    return run("kin40k", setting={"seed": seed, **setting}, metrics=metrics)


def test_fits_that_differ_in_the_seed_are_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies, "STUDIES", (STARTS,))
    records = [seeded(0, -1.0, width=3), seeded(1, -2.0, width=3), seeded(0, -4.0, width=5, hidden_mean="other")]
    section = studies_section(folder_with(tmp_path, *records), [])
    assert section is not None
    (block,) = section.parts[0].blocks
    assert (block.title, block.lines) == ("A title", ("A finding.",))
    rows = [[entry.text for entry in row] for row in block.tables[0].rows]
    name, method = "kin40k", "DSPP-QR3-2L"
    assert rows == [
        [name, method, "3", "linear", "2", "−1.500 (−2.000 to −1.000)", "0.100", "0.200", "0.900"],
        [name, method, "5", "other", "1", "−4.000", "0.100", "0.200", "0.900"],
    ]
    assert "`python -m experiments run X`. 3 records" in block.tables[0].caption
    assert ("starts", "nll", name, f"{method}, width=3, hidden_mean=linear", "-1.5", "0.5", "2") in [
        row[:7] for row in section.csv
    ]


def test_selected_records_of_a_protocol_stand_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = ("univariate", "quick", ("kin40k",), ("DSPP-QR3-2L",))
    study = Study("starts", "A title", (), ("width",), ("experiments run X",), beside)
    monkeypatch.setattr(studies, "STUDIES", (study,))
    main = tmp_path / "main"
    main.mkdir()
    shown = run("kin40k", setting={"width": 8})
    others = [run("pol"), run("kin40k", "PPGPR"), run("kin40k", split=1), run("kin40k", protocol="paper")]
    others.append(run("kin40k", selected=False, setting={"width": 7}))
    (main / "univariate.jsonl").write_text("".join(json.dumps(record) + "\n" for record in [shown, *others]))
    section = studies_section(folder_with(tmp_path, seeded(0, -1.0, width=3)), read_records(main).records)
    assert section is not None
    assert [row[2].text for row in section.parts[0].blocks[0].tables[0].rows] == ["3", "8"]  # by size


def test_a_fit_in_both_is_shown_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = ("univariate", "quick", ("kin40k",), ("DSPP-QR3-2L",))
    study = Study("starts", "A title", (), ("width",), ("experiments run X",), beside)
    monkeypatch.setattr(studies, "STUDIES", (study,))
    folder, fit = folder_with(tmp_path, seeded(0, -1.5, width=3)), seeded(0, -1.5, width=3)
    (tmp_path / "univariate.jsonl").write_text(json.dumps(fit) + "\n")
    section = studies_section(folder, read_records(folder).records)
    assert section is not None
    (row,) = section.parts[0].blocks[0].tables[0].rows
    assert [entry.text for entry in row[2:5]] == ["3", "1", "−1.500"]  # one fit


def test_without_records_there_is_no_section(tmp_path: Path) -> None:
    assert studies_section(tmp_path, []) is None


def test_the_page_has_the_findings_under_their_title(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studies, "STUDIES", (STARTS,))
    page = write_report(folder_with(tmp_path, seeded(0, -1.0, width=3)), None).read_text(encoding="utf-8")
    assert page.index("<h3>A title</h3>") < page.index("<li>A finding.</li>") < page.index("<h4>The fits</h4>")
    assert '<a href="#studies">Questions examined further</a>' in page


@pytest.fixture(scope="module")
def committed() -> tuple[Record, ...]:
    return read_records(RESULTS).records


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_every_figure_in_a_finding_is_in_the_table(study: Study, committed: tuple[Record, ...]) -> None:
    section = studies_section(RESULTS, committed)
    assert section is not None
    block = next(block for block in section.parts[0].blocks if block.title == study.title)
    assert block.lines, f"{study.name} says nothing"
    cells = " ".join(entry.text for row in block.tables[0].rows for entry in row)
    for line in block.lines:
        for figure in re.findall(r"−?\d\.\d{3}\b", re.sub(r"the paper has −?[\d.]+\d", "", line)):
            assert re.search(rf"(?<![\d.−]){re.escape(figure)}\b", cells), (
                f"{figure} is not in the table of {study.name}"
            )


def test_every_file_of_studies_is_shown() -> None:
    assert {path.stem for path in (RESULTS / studies.FOLDER).glob("*.jsonl")} == {study.name for study in STUDIES}
