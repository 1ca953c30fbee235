"""The page: its sections in order, without those that have no content."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dspp import storage
from dspp.errors import ModelFileError
from dspp.extras import require
from dspp.metrics import have_several_outputs
from dspp.numbers import tidy
from dspp.report import column_figures, figures, tables
from dspp.report.data import ReportData, TargetData
from dspp.report.figures import Picture
from dspp.report.tables import Score, TextTable

if TYPE_CHECKING:  # imported on first use, since it is optional
    import jinja2

FOLDER = Path(__file__).parent
MAX_OUTPUTS = 6  # outputs shown in full


@dataclass(frozen=True)
class Block:
    """A part of a section; with several outputs, one per output, headed by its name."""

    heading: str = ""
    text: str = ""
    cards: Sequence[Score] = ()
    pictures: Sequence[Picture] = ()
    table: TextTable | None = None
    caption: str = ""  # of the table
    lists: dict[str, dict[str, str]] = field(default_factory=dict)  # titles, each with names and values
    points: Sequence[str] = ()


@dataclass(frozen=True)
class Section:
    """A heading, an introductory sentence and blocks of content."""

    name: str
    title: str
    intro: str
    blocks: Sequence[Block]


def render(data: ReportData) -> str:
    """Return the report as one self-contained HTML page; the same data give the same text."""
    environment = templates(FOLDER)
    from markupsafe import Markup  # which jinja2 installs

    environment.filters["tidy"] = tidy
    style = Markup((FOLDER / "page.css").read_text(encoding="utf-8"))
    sections = [section for section in _sections(data) if section.blocks]
    page = environment.get_template("page.html")
    return page.render(data=data, lead=_lead(data), sections=sections, style=style)


def templates(folder: Path) -> "jinja2.Environment":
    """Return the templates of a folder; values are escaped, and undefined names are errors."""
    require("report", "a report")
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def write_report(data: ReportData, path: str | Path) -> None:
    """Write the report to `path`, atomically.

    Raises:
        ModelFileError: It could not be written; the previous file is unchanged.
    """
    storage.write_bytes(Path(path), render(data).encode("utf-8", errors="replace"), ModelFileError)


def _lead(data: ReportData) -> str:
    """Return a sentence on what the model predicts and on which rows."""
    names = [target.name for target in data.targets]
    if not names:
        return ""
    what = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    what = what if len(names) <= MAX_OUTPUTS else f"{len(names):,} outputs"
    rows = f"{data.num_rows:,} row{'s' if data.num_rows != 1 else ''}"
    return f"The model predicts the distribution of {what}. This page compares it with the observed values of {rows}."


def _sections(data: ReportData) -> list[Section]:
    return [
        _scores(data),
        _calibration(data),
        _accuracy(data),
        _columns(data),
        _rows(data),
        _surprises(data),
        _ensemble(data),
        _inside(data),
        _provenance(data),
    ]


def _scores(data: ReportData) -> Section:
    several = have_several_outputs(data.scores)
    cards = tables.score_cards(data.scores, several, data.baselines, data.discrete)
    blocks = [Block(cards=cards)] if cards else []
    if len(data.targets) > 1:
        more = f"The first {MAX_OUTPUTS} outputs are shown in full below." if len(data.targets) > MAX_OUTPUTS else ""
        blocks.append(Block("Each output", more, table=tables.outputs_table(data.targets)))
    blocks += [Block(one.title, one.sentence, table=TextTable(one.header, one.rows)) for one in data.panels]
    intro = f"How close the predictions are to the observed values. {data.scored}".rstrip()
    return Section("scores", "Scores", intro, blocks)


def _calibration(data: ReportData) -> Section:
    blocks = [
        Block(head, pictures=[figures.reliability(t, key), figures.pit(t, key)], table=tables.coverage_table(t))
        for t, head, key in _outputs(data)
    ]
    if data.conformal:
        blocks.insert(0, Block(text=data.conformal))
    return Section(
        "calibration", "Calibration", "Whether the predicted probabilities match the observed frequencies.", blocks
    )


def _accuracy(data: ReportData) -> Section:
    num = len(data.targets)
    blocks = [
        Block(head, pictures=[figures.predicted_observed(t, key, num), figures.crps_by_spread(t, key)])
        for t, head, key in _outputs(data)
    ]
    return Section("accuracy", "Accuracy", "How large the errors are, and whether the model anticipates them.", blocks)


def _columns(data: ReportData) -> Section:
    blocks = [Block(pictures=[column_figures.importance(data.importance)])] if data.importance else []
    for target, head, key in _outputs(data):
        effects = [effect for effect in data.effects if effect.target == target.name]
        groups = data.groups.get(target.name, ())
        pictures = [column_figures.coverage_by_group(groups, key)] if groups else []
        pictures += [column_figures.effects(effects, key)] if effects else []
        if pictures:
            blocks.append(Block(head, pictures=pictures))
    intro = "Which columns of the table matter, what they do, and whether intervals hold for all of their values."
    return Section("columns", "Columns", intro, _merge(blocks))


def _merge(blocks: list[Block]) -> list[Block]:
    """Return one block of figures if none has a heading."""
    if any(block.heading for block in blocks) or not blocks:
        return blocks
    return [Block(pictures=[picture for block in blocks for picture in block.pictures])]


def _ensemble(data: ReportData) -> Section:
    blocks = []
    if data.ensemble is not None:
        alone = f"Scores are of {data.ensemble.num_rows:,} rows, if only members of that kind predicted them."
        text = " ".join(data.ensemble.sentences)
        blocks.append(Block(text=text, table=tables.kinds_table(data.ensemble), caption=alone))
    if data.members:
        trained = any(member.history for member in data.members)
        pictures = [figures.members(data, len(data.targets))] if trained else []
        blocks.append(Block("Members", pictures=pictures, table=tables.members_table(data.members)))
    return Section("ensemble", "Ensemble", "The models whose predictions are mixed, and how.", blocks)


def _rows(data: ReportData) -> Section:
    blocks = [Block(head, pictures=[figures.densities(t, data, key)]) for t, head, key in _outputs(data)]
    return Section("rows", "Three typical rows", "Each prediction is a distribution, not a number.", blocks)


def _surprises(data: ReportData) -> Section:
    blocks = [Block(head, table=tables.surprises(t, data)) for t, head, _ in _outputs(data)]
    most = (
        f" The table shows {tables.MAX_INPUTS} of {len(data.rows):,} inputs."
        if len(data.rows) > tables.MAX_INPUTS
        else ""
    )
    intro = (
        "The rows whose observed value has the lowest predicted density, worst first: errors in the data, or cases "
        f"that the model has not learned.{most}{'' if len(data.row_labels) else ' Rows are numbered from 0.'}"
    )
    return Section("surprises", "Most surprising rows", intro, blocks)


def _inside(data: ReportData) -> Section:
    num = len(data.targets)
    pictures = [figures.training(data, num)] if data.history else []
    pictures += figures.sites(data) if data.sites else []
    pictures += [figures.relevance(data)] if data.relevance and data.importance is None else []
    blocks = [Block(pictures=pictures)] if pictures else []
    return Section("inside", "Inside the model", "How the model was trained, and what it learned.", blocks)


def _provenance(data: ReportData) -> Section:
    blocks = [Block("Notes", points=data.notes)] if data.notes else []
    if data.encoding:
        header = list(dict.fromkeys(key for column in data.encoding for key in column))
        rows = [[column.get(key, "") for key in header] for column in data.encoding]
        blocks.append(Block("Columns", table=TextTable(header, rows)))
    if data.members:
        blocks.append(Block("Settings", table=tables.settings_table(data.members)))
    lists = {title: dict(values) for title, values in data.settings.items() if values}
    if lists:
        blocks.append(Block("Settings", lists=lists))
    if data.versions:
        blocks.append(Block("Versions", lists={"": dict(data.versions)}))
    return Section("made", "How the model was made", "Everything needed to fit the same model again.", blocks)


def _outputs(data: ReportData) -> list[tuple[TargetData, str, str]]:
    """Return the outputs shown in full, each with its heading ("" for a single output) and the suffix of its ids."""
    several = len(data.targets) > 1
    return [(t, t.name if several else "", str(i)) for i, t in enumerate(data.targets[:MAX_OUTPUTS])]
