"""What a report says about the columns of the user's table."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from dspp.evaluate import Evaluation
from dspp.report.data import TargetData
from dspp.report.effects import measure_effects, measure_groups
from dspp.report.importance import permutation_importance
from dspp.report.probe import Values, column_values

TOP_COLUMNS, TOP_OUTPUTS = 3, 2  # of which effects are shown


def describe_columns(
    evaluation: Evaluation,
    relevance: Sequence[tuple[str, float]],
    targets: Sequence[TargetData],
    shown: Int[np.ndarray, " n"],
) -> dict[str, Any]:
    """Return importance and effects of columns, and the coverage in groups of rows, as `ReportData` takes them.

    Args:
        evaluation: The evaluation.
        relevance: Relevance of the encoded columns.
        targets: The outputs.
        shown: The rows of the evaluation that these are of.
    """
    fitted, importance = evaluation.fitted, permutation_importance(evaluation, relevance)
    if importance is None:
        return {}
    first = importance.matter[:TOP_COLUMNS]
    outputs = [fitted.target_names.index(target.name) for target in targets[:TOP_OUTPUTS]]
    table = evaluation.table.take(shown)
    values = [(name, column_values(fitted, table, name)) for name in first]
    groups = {}
    for target in targets:
        rows = slice(None) if target.rows is None else target.rows
        own = [(name, Values(one.kind, one.array[rows])) for name, one in values]
        groups[target.name] = measure_groups(own, target.pit)
    return {"importance": importance, "effects": measure_effects(evaluation, first, outputs), "groups": groups}
