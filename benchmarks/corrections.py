"""Which corrections of the mixture are worth their code: `python -m benchmarks.corrections`.

The default is fitted once per table and fold. All ways to blend what its members predict for the rows that they held
out are then compared on the test rows, which chose nothing:

- discount: a GP keeps half of the weight that it earns in one fold, since the GPs of all folds are alike;
- shrink: the spread learned for the members of one fold is carried over to all of them as 1 + c/m;
- pull: where all members hold out the same rows, each is moved towards their common mean by a learned share.

Scores are of standardised targets. Writes results/corrections.jsonl and results/corrections.md.
"""

import math
import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from benchmarks import records
from benchmarks.tables.sets import load
from dspp import fitting
from dspp.encoding.encoder import encode
from dspp.errors import DsppWarning
from dspp.estimators import DSPPRegressor
from dspp.folds import Split
from dspp.guard import Guard
from dspp.members import blend
from dspp.members.base import Trained
from dspp.outcomes import Outcome
from dspp.table.memory import to_table
from dspp.training.rows import Rows
from experiments.report.blocks import Entry, text_table
from experiments.report.markdown import table_text
from experiments.results import Record

SMALL = ("concrete", "energy", "airfoil", "wine", "parkinsons", "skillcraft")
LARGE = {"diamonds": 12_000, "protein": 8_000, "airbnb_nyc_2019": 12_000, "kin40k": 8_000}  # rows
FITS = [*((name, fold) for fold in (0, 1) for name in SMALL), *((name, 0) for name in LARGE)]
TEST_ROWS = 6_000

PULLS = 0.0, 0.2, 0.4, 0.6, 0.8, 1.0  # shares of the way to the common mean of the members
NEAR = 0.7  # largest logarithm of the factor by which a pull may change the spread
PULL_PRIOR = 8.0  # rows' worth of evidence, per squared share, that members need no pull


@dataclass(frozen=True)
class Variant:
    """A way to blend: which corrections it has."""

    discount: bool = True
    shrink: bool = True
    pull: bool = True


VARIANTS = {
    "all": Variant(),
    "without pull (kept)": Variant(pull=False),
    "without discount": Variant(discount=False),
    "without shrink": Variant(shrink=False),
    "none": Variant(discount=False, shrink=False, pull=False),
}


def fit(name: str, fold: int, data: Path) -> dict[str, Any]:
    """Fit the default, and return what all of its members predict, in standardised units."""
    rows, seen = load(name, fold, data), []
    count = LARGE.get(name, len(rows.y))
    fit_members = fitting.fit_members

    def look(*given: Any) -> Any:
        seen.append((*given[:2], *fit_members(*given)))
        return seen[0][2:]

    with warnings.catch_warnings(), patch.object(fitting, "fit_members", look):
        warnings.simplefilter("ignore", DsppWarning)
        fitted = DSPPRegressor(progress=False, jobs=1).fit(rows.X[:count], rows.y[:count]).fitted_
    ((own, split, trained, trees),) = seen
    table = to_table(rows.X_test[:TEST_ROWS])
    X = fitted.scale_X.transform(np.asarray(encode(fitted.inputs(table), fitted.encoder), dtype=np.float64))
    columns = np.column_stack([one.all_rows.predict(X) for one in trees]) if trees else None
    members = [
        {"held_out": one.held_out, "test": one.member.predict(X, columns)}
        | {"number": one.number, "kind": one.kind, "fold": one.fold}
        for one in trained
        if one.member is not None
    ]
    return {
        "y": own.y.double().numpy(),
        "fold": split.fold,
        "forward": split.forward,
        "floor": fitted.members[0].spec.model.noise_floor,
        "outcome": fitted.outcome,
        "unknown_test": fitted.shares_unknown(X),
        "y_test": fitted.outcome.encode(rows.y_test[:TEST_ROWS, None], table.place),
        "members": members,
    }


def score(found: dict[str, Any], variant: Variant) -> dict[str, float]:
    """Blend the predictions, and score the blend on the test rows."""
    own = [(Trained(m["number"], m["kind"], m["fold"], held_out=m["held_out"]), m) for m in found["members"]]
    trained, y = [one for one, _ in own], found["y"]
    split = Split(found["fold"], None, len(y), found["forward"])
    rows = Rows(torch.zeros(len(y), 0), torch.from_numpy(y))
    guard = found["outcome"].fit_guard(y, blend.GUARD_WEIGHT)
    groups = blend.hold_out(trained, rows, split, found["floor"])
    mixing, pull = blend.stack(groups, guard, found["outcome"]), 0.0
    if variant.pull and split.num_folds == 1:
        mixing, pull = learn_pull(groups[0], mixing, guard, found["outcome"])
    if variant.discount and split.num_folds > 1:
        mixing = replace(mixing, weights=blend.discount(mixing.weights))
    kept = [(one, m["test"]) for one, m in own if blend.label_of(one, split) in mixing.weights]
    sizes = Counter(blend.label_of(one, split) for one, _ in kept)
    weights = [mixing.weights[blend.label_of(one, split)] / sizes[blend.label_of(one, split)] for one, _ in kept]
    judged = min(sum(len(group.predictions[label]) for label in mixing.weights) for group in groups)
    variance_scale = blend.variance_scale_of(mixing.variance_scale, judged if variant.shrink else None, len(kept))
    parts = pull_together([test.to(torch.float64) for _, test in kept], weights, pull)
    with_weight = replace(guard, weight=mixing.guard_weight)
    unknown = found["unknown_test"]
    mixed: Any = blend.mix(parts, weights, variance_scale, with_weight, found["outcome"], found["floor"], unknown)
    y_test = torch.from_numpy(np.asarray(found["y_test"], dtype=np.float64)[:, 0])
    lower, upper = mixed.interval(0.9)
    return {
        "nll": -float(mixed.log_prob(y_test).mean()),
        "crps": float(mixed.crps(y_test).mean()),
        "coverage90": float(((y_test >= lower) & (y_test <= upper)).double().mean()),
        "spread": variance_scale,
        "pull": pull,
    }


def learn_pull(
    group: blend.HeldOutRows, mixing: blend.Mixing, guard: Guard, outcome: Outcome
) -> tuple[blend.Mixing, float]:
    """Return the share of the way to the common mean that suits the held-out rows, with its spread and guard."""
    parts = [(part.to(torch.float64), w) for label, w in mixing.weights.items() for part in group.predictions[label]]
    weights, near = [w for _, w in parts], np.abs(np.log(blend.VARIANCE_SCALES / mixing.variance_scale)) < NEAR
    best, learned = -math.inf, (mixing, 0.0)
    with patch.object(blend, "VARIANCE_SCALES", blend.VARIANCE_SCALES[near][::2]):
        for pull in PULLS:
            mixed = type(parts[0][0]).mix(pull_together([part for part, _ in parts], weights, pull), weights)
            pulled = replace(group, predictions={"all": [mixed]})
            found = blend.stack([pulled], guard, outcome)
            value = found.evidence - PULL_PRIOR * pull**2
            if value > best + 1e-9:
                best = value
                learned_mixing = replace(mixing, variance_scale=found.variance_scale, guard_weight=found.guard_weight)
                learned = (learned_mixing, pull) if pull else (mixing, 0.0)
    return learned


def pull_together(parts: Sequence[Any], weights: Sequence[float], share: float) -> list[Any]:
    """Move each of some mixtures of the same rows a share of the way to their common mean."""
    centres = torch.stack([part.mean for part in parts])
    common: Tensor = (torch.tensor(weights, dtype=centres.dtype)[:, None] * centres).sum(0)
    return [
        replace(part, component_mean=part.component_mean + share * (common - centre))
        for part, centre in zip(parts, centres, strict=True)
    ]


def describe(found: Sequence[Record]) -> str:
    """Return the table of results/corrections.md."""
    by_key = {(record["set"], record["fold"], record["method"]): record["metrics"] for record in found}
    names, others = list(dict.fromkeys(record["set"] for record in found)), list(VARIANTS)[1:]

    def cost(name: str, variant: str, score: str = "nll") -> float:
        folds = [fold for one, fold, method in by_key if (one, method) == (name, variant)]
        return float(np.mean([by_key[name, f, variant][score] - by_key[name, f, "all"][score] for f in folds]))

    def coverage(name: str, variant: str) -> float:
        here = [m["coverage90"] for (one, _, how), m in by_key.items() if (one, how) == (name, variant)]
        return float(np.mean(here))

    rows: list[list[str | Entry]] = [
        [
            name,
            *(f"{cost(name, variant):+.4f}" for variant in others),
            *(f"{100 * coverage(name, variant):.1f} %" for variant in VARIANTS),
        ]
        for name in names
    ]
    means = [float(np.mean([cost(name, variant) for name in names])) for variant in others]
    rows.append(["mean", *(Entry(f"{mean:+.4f}", bold=True) for mean in means), *([""] * len(VARIANTS))])
    header = ("table", *others, "coverage: all", *others)
    lines = [
        "# Corrections of the mixture",
        "What leaving a correction out costs in NLL (nats per test row; positive: worse), and the 90 % coverage. "
        "Written by `python -m benchmarks.corrections`, which says what the corrections are. Means over the folds of a "
        "table.",
        table_text(text_table(header, rows)),
    ]
    return "\n\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = records.parser("benchmarks.corrections", __doc__)
    parser.add_argument("--sets", type=lambda text: text.split(","), help=f"of {', '.join((*SMALL, *LARGE))}")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)

    @cache
    def fitted(name: str, fold: int) -> dict[str, Any]:
        return fit(name, fold, options.data)

    def measure(name: str, fold: int, variant: str) -> Record:
        found = fitted(name, fold)
        rows = {"train": len(found["y"]), "test": len(found["y_test"])}
        return {"metrics": score(found, VARIANTS[variant]), "rows": rows, "seconds": {}}

    wanted = [(*one, variant) for one in FITS if one[0] in (options.sets or (*SMALL, *LARGE)) for variant in VARIANTS]
    text = describe(records.complete(options.results, wanted, measure))
    options.results.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
