"""From a table to a fitted model: encode, scale, train, score. Only training rows teach the encoding and the scales."""

import platform
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dspp.calibration import Conformal, all_scores
from dspp.config import TrainConfig
from dspp.data.encoding import TableEncoder
from dspp.data.inputs import Inputs
from dspp.data.scaling import Standardizer
from dspp.fitted import Fitted
from dspp.presets import Spec
from dspp.training import fit

Array = NDArray[np.float64]
VERSIONS = ("dspp", "torch", "numpy", "scikit-learn")


@dataclass(frozen=True)
class Part:
    """Rows and their targets; possibly none."""

    rows: Inputs
    y: Array

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Learned:
    """What the training rows have taught before training."""

    encoder: TableEncoder | None
    scale_X: Standardizer  # noqa: N815 - X is a matrix
    scale_y: Standardizer
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
    encoder = train.rows.learn(val.rows, held.rows)
    encoded = train.rows.encode(encoder)
    learned = Learned(encoder, Standardizer.fit(encoded), _scale_of(train.y), names, len(train))
    rows = learned.scale_X.transform(encoded), learned.scale_y.transform(train.y)
    return fit_rows(spec, config, learned, rows, val, held, **how)


def fit_rows(
    spec: Spec, config: TrainConfig, learned: Learned, rows: tuple[Any, Any], val: Part, held: Part, **how: Any
) -> Fitted:
    """Train on rows that are encoded and scaled: X and y, or a `Source` of both and None; see `fit_table`."""
    encoder, scale_X, scale_y = learned.encoder, learned.scale_X, learned.scale_y
    if len(val):
        how |= {"X_val": scale_X.transform(val.rows.encode(encoder)), "y_val": scale_y.transform(val.y)}
    result = fit(spec, *rows, config=config, **how)
    fitted = Fitted(
        spec=spec,
        train=config,
        model=result.model,
        scale_X=scale_X,
        scale_y=scale_y,
        encoder=encoder,
        feature_names=None if encoder is None else encoder.feature_names,
        target_names=learned.target_names,
        one_output=scale_y.mean.ndim == 0,
        history=result.history,
        best_epoch=result.best_epoch,
        metrics={},
        notes=(*result.notes, *(() if encoder is None else encoder.notes)),
        seconds=result.seconds,
        versions={"python": platform.python_version()} | {name: version(name) for name in VERSIONS},
        conformal=None,
        num_rows=learned.num_rows,
    )
    scores = all_scores(fitted.distribution(val.rows.encode(encoder)), val.y) if len(val) else {}
    return replace(fitted, metrics=scores, conformal=_conformal(fitted, held))


def _scale_of(y: Array) -> Standardizer:
    """The scale of each output, from the rows where it was observed."""
    if y.ndim == 1:
        return Standardizer.fit(y)
    parts = [Standardizer.fit(column[~np.isnan(column)]) for column in y.T]
    return Standardizer(np.array([p.mean for p in parts]), np.array([p.scale for p in parts]))


def _conformal(fitted: Fitted, held: Part) -> torch.Tensor | None:
    if not len(held):
        return None
    return Conformal.fit(fitted.distribution(held.rows.encode(fitted.encoder)), held.y).scores
