"""The result of `fit`."""

import math
from dataclasses import dataclass

import torch

from dspp.history import Epoch, Recovery
from dspp.model import Model
from dspp.training.rows import Rows
from dspp.training.state import State

# The check of float32: rows checked; the scaled squared distance below which a point matters (k > 0.03 for every
# kernel); the rounding error of t² that is worth a warning (k is then off by up to 1e-3); the share of rows that warns.
PRECISION_ROWS = 256
NEAR = 25.0
TOLERANCE = 2e-3
SHARE = 0.05


@dataclass(frozen=True)
class FitResult:
    """A trained model and how it was trained.

    Example:
        >>> import numpy as np
        >>> from dspp import Rows, TrainConfig, fit, preset
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> config = TrainConfig(epochs=3, restarts=1)
        >>> result = fit(preset("ppgpr", inducing=8), Rows.of(X, X[:, 0]), config=config)
        >>> len(result.history), result.stopped, result.jitter_increases
        (3, 'finished', 0)
    """

    model: Model
    history: tuple[Epoch, ...] = ()
    restart_nll: tuple[float, ...] = ()  # training NLL of each restart; the lowest was trained to the end
    best_epoch: int | None = None  # the epoch whose state was kept; None without validation rows
    recoveries: tuple[Recovery, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0  # including those before a resume
    planned_epochs: int = 0  # length of the schedule; under a time budget the last may be incomplete
    stopped: str = "finished"  # why: "finished", "early" (validation stopped improving) or "time" (budget spent)
    epochs_made: float = 0.0  # passes over the training rows; the last may be incomplete
    time_note: str = ""  # the one of `notes` that says that the time budget ended training, if it did

    @property
    def jitter_increases(self) -> int:
        """Number of times a Cholesky factorisation needed more jitter than configured."""
        return self.model.jitter_increases


def make_result(model: Model, end: State, steps_per_epoch: int, rows: Rows) -> FitResult:
    """Return the result of a finished run, with the weights that validation found best, if any.

    The precision of the model is checked on these training rows.
    """
    assert end.stopped is not None
    if end.best_weights is not None:
        model.load_state_dict(end.best_weights)
    model.eval()
    imprecise = _precision_note(model, rows)
    return FitResult(
        model=model,
        history=end.history,
        restart_nll=end.scores,
        best_epoch=end.best_epoch,
        recoveries=end.recoveries,
        notes=(*model.notes, *end.notes, *([imprecise] if imprecise else [])),
        seconds=end.seconds,
        planned_epochs=math.ceil(end.total_steps / steps_per_epoch),
        stopped=end.stopped,
        epochs_made=end.step / steps_per_epoch,
        time_note=end.notes[-1] if end.stopped == "time" else "",
    )


@torch.no_grad()
def _precision_note(model: Model, rows: Rows) -> str | None:
    """Return a warning if distances to the inducing points cancel in float32, or None.

    The first layer computes t² = |x − z|² as |x|² + |z|² − 2 xᵀz about the centre of its points. Its rounding error,
    ε (|x|² + |z|²), is large where inputs form tight clusters that lie far apart in units of the length scales.
    """
    if rows.x.dtype != torch.float32:
        return None
    layer, x = model.gp_layers[0], rows.x[:PRECISION_ROWS]
    inputs = x if model.features is None else model.features(x)
    x64, z64 = (
        layer.kernel.scale(points).double() for points in (inputs, layer.inducing_points)
    )  # (W, N, D), (W, M, D)
    centre = z64.mean(-2, keepdim=True)
    distance, nearest = torch.cdist(x64, z64).square().min(-1)  # (W, N)
    norms = (x64 - centre).square().sum(-1) + (z64 - centre).square().sum(-1).gather(-1, nearest)
    error = torch.where(distance < NEAR, 0.5 * torch.finfo(torch.float32).eps * norms, 0.0)
    if float((error > TOLERANCE).double().mean()) <= SHARE:
        return None
    return (
        f"distances between inputs lose digits in float32 (t² is off by up to {float(error.max()):.1g}), because they "
        'form tight clusters far apart; use dtype="float64" (for an estimator, model_settings={"dtype": "float64"})'
    )
