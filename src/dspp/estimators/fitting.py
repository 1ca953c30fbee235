"""From a table to a fitted model: encode, scale, train, score. Only training rows teach the encoding and the scales."""

import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dspp.calibration import Conformal
from dspp.config import TrainConfig
from dspp.data.encoding import TableEncoder
from dspp.data.inputs import Inputs
from dspp.data.scaling import Standardizer
from dspp.errors import InputError
from dspp.fitted import Fitted, standardised
from dspp.likelihoods import LIKELIHOODS, Codec
from dspp.metrics import all_scores
from dspp.presets import Spec
from dspp.training import fit

Array = NDArray[np.float64]
VERSIONS = ("dspp", "torch", "numpy", "scikit-learn")
LARGEST_SCALE = 1e150  # of a target: float64 ends at the square of a little more
PROMISED = 0.9  # coverage that the notes on recalibration speak of: the usual one of `predict_interval`


@dataclass(frozen=True)
class Part:
    """Rows and their targets; possibly none."""

    rows: Inputs
    y: Array
    where: str = "X"  # what errors call the rows
    labels: Sequence[object] = ()  # what a report calls each row; empty: nothing is known of them

    def __len__(self) -> int:
        return len(self.y)

    def encode(self, encoder: TableEncoder | None) -> Array:
        """The rows as numbers."""
        return self.rows.encode(encoder, where=self.where)


@dataclass(frozen=True)
class Learned:
    """What the training rows have taught before training."""

    encoder: TableEncoder | None
    scale_X: Standardizer  # noqa: N815 - X is a matrix
    codec: Codec
    target_names: tuple[str, ...]
    num_rows: int


def fit_table(
    spec: Spec, config: TrainConfig, train: Part, val: Part, held: Part, names: tuple[str, ...], **how: Any
) -> Fitted:
    """Learn from `train`; `val` chooses the epoch and is scored, `held` recalibrates intervals.

    Args:
        spec: the model and its objective.
        config: how to train.
        train: training rows.
        val: validation rows, or none.
        held: calibration rows, or none.
        names: of the targets.
        **how: passed on to `dspp.training.fit`.
    """
    encoder = train.rows.learn()
    encoder = None if encoder is None else marked(encoder, val, held)
    encoded = train.encode(encoder)
    kind = LIKELIHOODS[spec.model.likelihood].codec
    real = kind.real(train.y.reshape(len(train), -1), names, train.labels)
    learned = Learned(encoder, Standardizer.fit(encoded), kind.fit(real), names, len(train))
    rows = learned.scale_X.transform(encoded), learned.codec.scale.transform(real)
    return fit_rows(spec, config, learned, rows, val, held, **how)


def marked(encoder: TableEncoder, *parts: Part) -> TableEncoder:
    """The encoder that also takes gaps where these rows have some."""
    for part in parts:
        if len(part) and part.rows.table is not None:
            encoder = encoder.marking(part.rows.table, part.where)
    return encoder


def fit_rows(
    spec: Spec, config: TrainConfig, learned: Learned, rows: tuple[Any, Any], val: Part, held: Part, **how: Any
) -> Fitted:
    """Train on rows that are encoded and scaled: X and y, or a `Source` of both and None; see `fit_table`."""
    encoder, scale_X = learned.encoder, learned.scale_X
    _check_scale(learned.codec.scale, learned.target_names)
    _, (X_val, y_val) = (_checked(spec, learned, part) for part in (held, val))  # before training, not after
    if len(val):
        how |= {"X_val": X_val, "y_val": y_val}
    result = fit(spec, *rows, config=config, **how)
    fitted = Fitted(
        spec=spec,
        train=config,
        model=result.model,
        scale_X=scale_X,
        codec=learned.codec,
        encoder=encoder,
        feature_names=None if encoder is None else encoder.feature_names,
        target_names=learned.target_names,
        history=result.history,
        best_epoch=result.best_epoch,
        metrics={},
        notes=(*result.notes, *(() if encoder is None else encoder.notes)),
        seconds=result.seconds,
        versions={"python": platform.python_version()} | {name: version(name) for name in VERSIONS},
        conformal=None,
        num_rows=learned.num_rows,
    )
    found: dict[str, Any] = {}
    if len(val):
        found["metrics"] = all_scores(fitted.distribution(val.encode(encoder)), val.y)
    if len(held):
        conformal = Conformal.fit(fitted.distribution(held.encode(encoder)), held.y)
        found["conformal"] = conformal.scores.reshape(-1, fitted.num_outputs)
        found["notes"] = (*fitted.notes, *_broken_promises(conformal, learned.target_names))
    return replace(fitted, **found)


def _checked(spec: Spec, learned: Learned, part: Part) -> tuple[Array | None, Array | None]:
    """Rows held out as the model sees them; None where there are none.

    Raises:
        InputError: A number lies too far out.
    """
    if not len(part):
        return None, None
    labels = part.labels if len(part.labels) else range(len(part))
    names = None if learned.encoder is None else learned.encoder.feature_names
    X = standardised(part.encode(learned.encoder), learned.scale_X, spec, names, part.where, labels)
    where = "y_val" if part.where == "X_val" else "y"
    real = learned.codec.real(part.y.reshape(len(part), -1), learned.target_names, labels, where)
    return X, standardised(real, learned.codec.scale, spec, learned.target_names, where, labels)


def _check_scale(scale_y: Standardizer, names: tuple[str, ...]) -> None:
    """Raise `InputError` for a target whose variance leaves float64."""
    for name, mean, scale in zip(names, scale_y.mean, scale_y.scale, strict=True):
        if not (abs(mean) <= LARGEST_SCALE and 1 / LARGEST_SCALE <= scale <= LARGEST_SCALE):
            raise InputError(
                f"y: column {name!r} has the mean {mean:.3g} and the spread {scale:.3g}, expected both below "
                f"{LARGEST_SCALE:g} and a spread above {1 / LARGEST_SCALE:g}; remove stray values, or use other units"
            )


def _broken_promises(conformal: Conformal, names: tuple[str, ...]) -> list[str]:
    """What to tell a user of outputs with too few calibration rows: (n+1)c > n for the usual coverage c."""
    enough, percent = math.ceil(PROMISED / (1 - PROMISED) - 1e-9), f"{100 * PROMISED:.0f} %"
    return [
        f"{count} calibration row{'' if count == 1 else 's'} of {name} cannot promise {percent}, which takes {enough}: "
        "such intervals are infinite; give more rows or raise calibration_fraction"
        for name, count in zip(names, conformal.counts, strict=True)
        if count < enough
    ]
