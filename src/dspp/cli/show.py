"""Formatting of scores, settings and columns for the terminal."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dspp.metrics import Place
    from dspp.report.page import TextTable


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> list[Any]:
    """Return a title and a table of text; the columns `right` are right-aligned."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD)
    for i, name in enumerate(header):
        made.add_column(name, justify="right" if i in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return [title, made]


def text_table(title: str, made: "TextTable") -> list[Any]:
    """Return a title and a table of the report."""
    return table(title, made.header, made.rows, right=[k for k, is_text in enumerate(made.is_text) if not is_text])


def score_table(title: str, scores: Mapping[str, float], place: "Place") -> list[Any]:
    """Return a table of the scores shown in this place, each with an explanation."""
    from dspp.metrics import describe_scores

    return table(title, ("score", "value", "meaning"), describe_scores(scores, place).values(), right=(1,))


def settings_line(spec: Any, epochs: int | None = None) -> str:
    """Return a one-line description of a model."""
    from dspp.numbers import count_epochs  # imported here so that the command line starts fast

    model = spec.model
    deep = f"{model.layers} layers, width {model.width}, " if model.layers > 1 else "1 layer, "
    network = f"a network {'-'.join(map(str, model.features))} in front, " if model.features else ""
    length = "" if epochs is None else f", {count_epochs(epochs)}"
    return f"{spec.name}: {network}{deep}{model.inducing} inducing points{length}"


def training_line(member: Any) -> str:
    """Return epochs, time and best epoch of the training of a member."""
    from dspp.numbers import count_epochs

    best = "" if member.best_epoch is None else f"; epoch {member.best_epoch} was the best and is kept"
    if not member.history:
        return f"{'' if member.in_steps else 'in closed form '}in {seconds(member.seconds)}"
    return f"{count_epochs(len(member.history))} in {seconds(member.seconds)}{best}"


def training_lines(fitted: Any) -> str:
    """Return one line on the training of a model, or of all members of an ensemble."""
    if len(fitted.members) == 1:
        return f"Trained {training_line(fitted.members[0])}."
    kinds: dict[str, float] = {}
    for member, weight in zip(fitted.members, fitted.weights, strict=True):
        kinds[member.title] = kinds.get(member.title, 0.0) + weight
    shares = ", ".join(f"{title} {100 * share:.0f} %" for title, share in kinds.items())
    return f"Trained {len(fitted.members)} members in {seconds(fitted.seconds)} of one core; weights: {shares}."


def kinds_line(columns: Sequence[Mapping[str, str]]) -> str:
    """Return the number of columns of each kind as text."""
    counts: dict[str, int] = {}
    for column in columns:
        counts[column["kind"]] = counts.get(column["kind"], 0) + 1
    unused = counts.pop("left out", 0)
    plural = {"category": "categories", "category with means": "categories with means"}
    parts = [f"{count} {kind if count == 1 else plural.get(kind, kind + 's')}" for kind, count in counts.items()]
    return ", ".join(parts) + (f"; {unused} left out" if unused else "")


def seconds(value: float) -> str:
    """Return a duration as text."""
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def plain(values: Mapping[str, float]) -> dict[str, float | None]:
    """Return scores for JSON, with None for NaN and inf."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}
