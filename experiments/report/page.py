"""Writes the report: one page, Markdown, CSV and figures; the same records give the same bytes."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from markupsafe import Markup, escape

import dspp.report
from dspp import storage
from dspp.errors import InputError, ModelFileError
from dspp.report.page import templates
from experiments.report import markdown
from experiments.report.blocks import Section, Table, join_names, plural
from experiments.report.everyday import everyday_section
from experiments.report.layout import EXPERIMENTS
from experiments.report.paper import Paper, read_paper
from experiments.report.records import SUITE_FILE, Loaded, read_records
from experiments.report.sections import headline, sections
from experiments.report.studies import studies_section
from experiments.report.suite import read_suite
from experiments.report.tables import CSV_HEADER

FOLDER = Path(__file__).parent
HOUSE_STYLE = Path(dspp.report.__file__).parent / "page.css"
MADE = "files.txt"  # lists what the last report wrote, so that the next one can remove stale files


def write_report(results: Path, paper: Path | None, out: Path | None = None) -> Path:
    """Write the report on all records of a folder, and return the path of its page.

    Args:
        results: The folder with the *.jsonl of the experiments and of the everyday tables.
        paper: The folder with the paper's results.csv and summary.csv; None shows dashes instead.
        out: Where to write; by default the folder `report` in `results`.

    Raises:
        InputError: A folder does not exist, or a file of the paper's is not as expected.
    """
    loaded, figures_of_paper = read_records(results), read_paper(paper)
    others = studies_section(results, loaded.records), everyday_section(read_suite(results / SUITE_FILE))
    files = report_files(loaded, figures_of_paper, [section for section in others if section])
    out = results / "report" if out is None else out
    try:
        _write(files, out)
    except OSError as problem:  # ModelFileError is one too
        raise InputError(f"cannot write the report to {out}: {problem}; choose another folder with --out") from None
    return out / "index.html"


def report_files(loaded: Loaded, paper: Paper, others: Sequence[Section] = ()) -> dict[str, bytes]:
    """Return the content of all files of the report by their path in its folder; `others` are no experiments."""
    found, table = sections(loaded.records, paper), headline(loaded.records, paper)
    notes = _notes(loaded, paper, found)
    found += others
    files = {
        "index.html": render(found, table, notes),
        "index.md": markdown.index_text(found, table, notes),
        "headline.md": markdown.headline_text(table),
    }
    for section in found:
        files[f"{section.name}.md"] = markdown.section_text(section)
        files[f"{section.name}.csv"] = _csv(section)
    content = {name: text.encode("utf-8") for name, text in files.items()}
    for section in found:
        for picture in (p for part in section.parts for block in part.blocks for p in block.pictures):
            content[f"figures/{picture.name}.png"] = picture.png
            content[f"figures/{picture.name}.svg"] = picture.svg
    return content


def render(found: Sequence[Section], table: Table, notes: Sequence[str]) -> str:
    """Return the page: one HTML file that needs nothing else."""
    environment = templates(FOLDER)
    environment.filters["code"] = _code
    style = Markup(HOUSE_STYLE.read_text(encoding="utf-8") + (FOLDER / "page.css").read_text(encoding="utf-8"))
    template = environment.get_template("page.html.jinja")
    return template.render(sections=found, headline=table, notes=notes, style=style)


def _code(text: str) -> Markup:
    """Escape text and turn what is between backticks into code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _notes(loaded: Loaded, paper: Paper, found: Sequence[Section]) -> list[str]:
    """Return what a reader must know before the numbers."""
    notes = [
        "`paper` is the paper's protocol and `quick` a short one for a small machine; no table mixes the two. Only "
        "runs selected on the validation rows count, and each fit keeps the epoch with the lowest validation NLL (the "
        "paper does not say whether it did). All scores are on the test rows, in standardised units."
    ]
    if not paper.cells:
        notes.append("The paper's figures were not available, so dashes are shown instead.")
    if not loaded.records:
        notes.append("There are no records yet; `python -m experiments run NAME` creates them.")
    missing = [layout.name for layout in EXPERIMENTS if layout.name not in {section.name for section in found}]
    if missing and loaded.records:
        notes.append(f"Not run: {join_names(missing)}.")
    if loaded.left_out:
        files = [f"{name} ({num})" for name, num in loaded.left_out.items()]
        total = plural(sum(loaded.left_out.values()), "line")
        notes.append(f"Left out: {total} that could not be read as records: {join_names(files)}.")
    return notes


def _csv(section: Section) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_HEADER)
    writer.writerows(section.csv)
    return file.getvalue()


def _write(files: Mapping[str, bytes], out: Path) -> None:
    """Write the files that changed, and remove those that only an earlier report wrote."""
    listing = out / MADE
    before = listing.read_text(encoding="utf-8").splitlines() if listing.is_file() else []
    (out / "figures").mkdir(parents=True, exist_ok=True)
    files = {**files, MADE: "".join(f"{name}\n" for name in sorted(files)).encode("utf-8")}
    for name, content in files.items():
        path = out / name
        if not path.is_file() or path.read_bytes() != content:
            storage.write_bytes(path, content, ModelFileError)
    for name in set(before) - set(files):
        path = out / name
        if _is_ours(name) and path.is_file():
            path.unlink()


def _is_ours(name: str) -> bool:
    """Whether a line of the listing names a file that a report may have written: nothing outside its folder."""
    path = Path(name)
    folders = path.parent in (Path(), Path("figures"))
    return folders and not path.is_absolute() and path.suffix in (".md", ".csv", ".png", ".svg")
