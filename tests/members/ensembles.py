"""A small table, settings that fit it in a moment, and ways to look into a fit."""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from dspp import DSPPRegressor, fitting
from dspp.fitted import Fitted
from dspp.members import MEMBERS, Member
from dspp.members.base import Trained
from dspp.predictive import Predictive

TINY: dict[str, Any] = {
    "inducing": 6,
    "width": 2,
    "sites": 3,
    "epochs": 2,
    "batch_size": 20,
    "likelihood": "gaussian",
    "progress": False,
}
RNG = np.random.default_rng(0)
N = 64
X = RNG.normal(size=(N, 2)) * [1.0, 40.0] + [300.0, 0.0]
HALF = np.clip(np.round(8 * RNG.normal(size=N // 2)), -20, 20)
Y = np.concatenate([HALF, -HALF])  # whole numbers whose sum is 0: no order of summation rounds


def of_kind(member: Member, kind: str, **fields: Any) -> Member:
    """The same trained model as a member of another kind."""
    return MEMBERS[kind](**vars(replace(member)) | fields)


def join(parts: Sequence[Fitted], weights: Sequence[float]) -> Fitted:
    """Models of the same prepared rows as one, without scores; parts of weight 0 are left out."""
    heavy = [(part, weight) for part, weight in zip(parts, weights, strict=True) if weight]
    return replace(
        parts[0],
        members=tuple(member for part, _ in heavy for member in part.members),
        weights=tuple(weight * share for part, weight in heavy for share in part.weights),
        metrics={},
        scored="",
    )


def bits(predictive: Predictive) -> list[bytes]:
    """Everything that a distribution consists of, to the bit."""
    predictive = getattr(predictive, "torch", predictive)
    values = [getattr(predictive, field.name) for field in fields(predictive)]  # type: ignore[arg-type]
    nested = [bits(value) if is_dataclass(value) else [value.numpy().tobytes()] for value in values]
    return [part for parts in nested for part in parts]


def fit_and_look(y: np.ndarray = Y, **settings: Any) -> tuple[DSPPRegressor, list[Trained], Any]:
    """Return a fitted estimator, its members with what they predict for held-out rows, and the cross-fitted trees."""
    seen: list[Any] = []
    fit_members = fitting.fit_members

    def look(*given: Any) -> Any:
        seen.extend(fit_members(*given))
        return tuple(seen)

    with patch.object(fitting, "fit_members", look):
        model = DSPPRegressor(**TINY | settings).fit(X, y)
    return model, *seen


def weights_of(model: DSPPRegressor) -> list[bytes]:
    """The parameters of all members, to the bit."""
    members = model.fitted_.members
    return [value.numpy().tobytes() for member in members for value in member.model.state_dict().values()]


def log_density(predictive: Predictive, y: np.ndarray) -> np.ndarray:
    return np.asarray(predictive.log_prob(torch.from_numpy(y)))
