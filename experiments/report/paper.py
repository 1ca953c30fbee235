"""The paper's own figures: cells of its tables and its average ranks; dashes where they are missing."""

import csv
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dspp.errors import InputError
from experiments.report.layout import Layout, Metric

VARIABLE = "DSPP_PAPER"
BESIDE = Path(__file__).resolve().parents[3] / "shared" / "paper"


@dataclass(frozen=True)
class PaperCell:
    """A mean of the paper's and its standard error."""

    mean: float
    error: float


@dataclass(frozen=True)
class Paper:
    """Cells by (experiment, metric, data set, method) and average ranks by (table, metric, method)."""

    cells: Mapping[tuple[str, str, str, str], PaperCell] = field(default_factory=dict)
    ranks: Mapping[tuple[str, str, str], float] = field(default_factory=dict)

    def cell(self, layout: Layout, metric: Metric, dataset: str, method: str) -> PaperCell | None:
        """Return the cell that is comparable with ours, or None."""
        return self.cells.get((layout.paper_cells or "", metric.name, dataset, method))

    def rank(self, layout: Layout, metric: Metric, method: str) -> float | None:
        """Return the average rank given in the paper, or None."""
        return self.ranks.get((layout.paper_ranks or "", metric.name, method))


def find_paper(given: Path | None = None) -> Path | None:
    """Return the folder of the paper's figures: the given one, `$DSPP_PAPER`, the one next to the repository, or None.

    Raises:
        InputError: A folder was given that has no results.csv.
    """
    named = given or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    if named is None:
        return BESIDE if (BESIDE / "results.csv").is_file() else None
    if not (named / "results.csv").is_file():
        raise InputError(f"paper: expected a folder with results.csv, got {named}; check the path, or give no folder")
    return named


def read_paper(folder: Path | None) -> Paper:
    """Read results.csv and summary.csv; missing files give dashes.

    Raises:
        InputError: A file exists but is not the paper's table.
    """
    if folder is None:
        return Paper()
    cells = {
        (row["experiment"], row["metric"], row["dataset"], row["method"]): PaperCell(
            _number(row["mean"]), _number(row["standard_error"])
        )
        for row in _rows(
            folder / "results.csv", ("experiment", "metric", "dataset", "method", "mean", "standard_error")
        )
    }
    ranks = {
        (row["table"], row["metric"], row["method"]): _number(row["value"])
        for row in _rows(folder / "summary.csv", ("table", "metric", "method", "value"))
        if row["table"].startswith("average_rank_")
    }
    return Paper(cells, ranks)


def _rows(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    missing = [name for name in columns if name not in (reader.fieldnames or ())]
    if missing or any(row[name] is None for row in rows for name in columns):
        raise InputError(f"{path}: expected the columns {', '.join(columns)} in every row; restore the file")
    return rows


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"the paper's tables: expected a number, got {text!r}; restore the file")
    return value
