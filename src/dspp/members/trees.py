"""Members that read predictions of boosted trees, and the trees, which grow in a thread while others are trained."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from dspp.config import ModelConfig, ObjectiveConfig
from dspp.encoding.means import Without
from dspp.engines import BEAT
from dspp.errors import TrainingInterrupted
from dspp.folds import Split
from dspp.gp.kernels import inverse_softplus
from dspp.gp.means import LastInputMean
from dspp.members.base import MEMBERS, Control, Member, Task
from dspp.members.dspp import Dspp
from dspp.members.gp import EXACT, closed_form, set_parameter
from dspp.model import compose, plain_layer
from dspp.outcomes import Outcome
from dspp.presets import Spec
from dspp.trees import CrossFitted, cross_fit

if TYPE_CHECKING:  # predicting does not need it
    from dspp.training.result import FitResult
    from dspp.training.rows import Rows

TREES_SHARE = 0.25  # of the time for training that trees may take, while the first members are trained
NO_VARIANCE = 1e-8  # of a GP that is not in use


@MEMBERS.register("trees")
class DsppWithTrees(Dspp):
    """A model that describes what boosted trees get wrong: their one prediction is its last input and its mean.

    An outcome may give several columns for trees to predict; all predictions are then inputs.
    """

    kind: ClassVar[str] = "trees"
    title: ClassVar[str] = "columns and boosted trees"
    reads_trees: ClassVar[bool] = True

    @classmethod
    def applies(cls, kinds: Sequence[str], model: ModelConfig, has_trees: bool) -> bool:
        """Return whether there are trees."""
        return has_trees and cls.kind in kinds

    @classmethod
    def spec_from(cls, spec: Spec, num_folds: int, num_columns: int = 1) -> Spec:
        """Return the model with the trees' one prediction as its mean, unless the user chose a mean."""
        chosen = spec.model.top_mean != ModelConfig.top_mean
        return spec if chosen or num_columns > 1 else replace(spec, model=spec.model.change(top_mean="last-input"))


@MEMBERS.register("boosted")
class BoostedTrees(Member):
    """Boosted trees and a Normal around them, which stand in where the time was too short for other members."""

    kind: ClassVar[str] = "boosted"
    title: ClassVar[str] = "boosted trees alone"
    reads_trees: ClassVar[bool] = True
    in_steps: ClassVar[bool] = False

    @classmethod
    def applies(cls, kinds: Sequence[str], model: ModelConfig, has_trees: bool) -> bool:
        """Return False: they are no part of the plan."""
        return False

    @classmethod
    def spec_from(cls, spec: Spec, num_folds: int, num_columns: int = 1) -> Spec:
        """Return a model of one layer that has next to no variance."""
        model = spec.model.change(layers=1, inducing=1, mean_inducing=0, features=(), top_mean="last-input")
        return Spec("svgp", model, ObjectiveConfig("elbo"))

    @classmethod
    def fit(cls, task: Task, rows: "Rows", validation: "Rows | None", control: Control) -> "FitResult":
        """Fit a straight line to the trees' prediction."""
        return fit_around_last_input(task.spec.model, rows)


@contextmanager
def growing_trees(
    rows: "Rows", split: Split, means: Without | None, outcome: Outcome, seed: int, control: Control
) -> Iterator[Callable[[], Sequence[CrossFitted]]]:
    """Grow trees in a thread while a block runs; whatever ends it also ends the fits, before their next tree.

    Yields:
        A function that returns the trees of each column of `Outcome.tree_target` once they are fitted, or raises
        `TrainingInterrupted` if it is told to stop.
    """
    X, targets = rows.x.numpy(), outcome.tree_target(rows.y.numpy())
    weights = np.ones(len(X)) if rows.weights is None else rows.weights.double().numpy().copy()
    weights[split.num_train :] = 0.0
    left, ended, count = control.budget.left, threading.Event(), len(targets.T)
    end = time.perf_counter() + TREES_SHARE * (left or 0.0)

    def grow_column(c: int) -> CrossFitted:
        """Fit the trees of one column in its share of the time that is left for all."""

        def seconds_left() -> float:
            return (end - time.perf_counter()) / (count - c)

        return cross_fit(
            X,
            targets[:, c],
            split.fold,
            weights=weights,
            seed=seed,
            inner=split.inner,
            X_without=None if means is None else lambda left_out: means(X, left_out)[0],
            seconds_left=None if left is None else seconds_left,
            should_stop=ended.is_set,
        )

    helper = ThreadPoolExecutor(1)
    trees = helper.submit(lambda: [grow_column(c) for c in range(count)])
    helper.shutdown(wait=False)

    def result() -> list[CrossFitted]:
        while not wait([trees], timeout=BEAT).done:
            if control.should_stop is not None and control.should_stop():
                raise TrainingInterrupted(
                    "training was stopped while trees were fitted; repeat the same call to resume"
                )
        return trees.result()

    try:
        yield result
    finally:
        ended.set()


def fit_around_last_input(config: ModelConfig, rows: "Rows") -> "FitResult":
    """Fit y = b + a x_D + noise by least squares, for a last input that is itself a prediction of y.

    The result is a model of one layer whose GP has next to no variance.
    """
    began = time.perf_counter()
    x, y = rows.x[:, -1].to(EXACT), rows.y[:, 0].to(EXACT)
    weights = torch.ones_like(y) if rows.weights is None else rows.weights.to(EXACT)
    (x_var, covariance), (_, y_var) = np.cov(x, y, aweights=weights, ddof=0)
    slope = covariance / x_var if x_var > 0.0 else 0.0
    constant = np.average(y, weights=weights) - slope * np.average(x, weights=weights)
    noise = y_var - slope * covariance  # the variance of what is left
    D = rows.x.shape[1]
    layer = plain_layer(config, 0, 1, D, rows.x[:1], None).to(getattr(torch, config.dtype))
    assert isinstance(layer.mean, LastInputMean)
    set_parameter(layer.mean.slope, [slope])
    set_parameter(layer.mean.constant, [constant])
    set_parameter(layer.kernel.raw_outputscale, [inverse_softplus(NO_VARIANCE)])
    model = compose(config, [layer], 1, D, torch.Generator()).to(layer.inducing_points.dtype)
    model.likelihood.set_noise(max(noise - config.noise_floor, NO_VARIANCE))
    return closed_form(model, began)
