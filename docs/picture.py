"""Makes docs/robot_arm.png: what the demo's model predicts for some held-out rows, beside the truth.

python docs/picture.py
"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import numpy as np
import torch
from matplotlib import pyplot as plt

from dspp import DSPPRegressor
from dspp.data import EchoNoise, robot_arm, split

BLUE, GREY = "#2563eb", "#6b7280"


def main() -> None:
    """Train as the demo does, then draw three densities and the PIT histogram."""
    data = robot_arm()
    train, test, val = split(len(data.X), (15, 3, 2))
    arm = DSPPRegressor(width=8, inducing=60, beta=3.0, epochs=60)
    arm.fit(data.X[train], data.y[train], data.X[val], data.y[val])
    order = np.argsort(data.noise.late_logit[test])  # from rows that rarely hear the echo to rows that mostly do
    rows = test[order[[100, len(order) // 2, -100]]]
    figure, axes = plt.subplots(1, 4, figsize=(12, 2.9), constrained_layout=True)
    for axis, row in zip(axes, rows, strict=False):
        _density(axis, data, arm, row)
    axes[0].legend(frameon=False, fontsize=8)
    axes[0].set_ylabel("density")
    _pit(axes[3], arm.predict_dist(data.X[test]).pit(torch.tensor(data.y[test])))
    figure.savefig(Path(__file__).with_name("robot_arm.png"), dpi=110)


def _density(axis, data, arm, row: int) -> None:
    """The predicted and the true density of one row."""
    y = np.linspace(data.clean[row] - 0.15, data.clean[row] + 0.3, 400)
    repeated = arm.predict_dist(np.repeat(data.X[row : row + 1], len(y), axis=0))
    truth = EchoNoise.at(data.X[row : row + 1]).log_density(y[:, None] - data.clean[row]).squeeze(-1)
    axis.fill_between(y, np.exp(truth), color=GREY, alpha=0.25, lw=0, label="truth")
    axis.plot(y, repeated.log_prob(torch.tensor(y)).exp(), color=BLUE, lw=1.8, label="2-layer DSPP")
    axis.axvline(data.y[row], color="k", lw=0.8, ls=":", label="what happened")
    axis.set(title=f"held-out row {row}", xlabel="distance, m", ylim=(0, None))
    axis.spines[["top", "right"]].set_visible(False)


def _pit(axis, values: torch.Tensor) -> None:
    """Where the truth falls in its predicted distribution: flat when calibrated."""
    axis.hist(values.numpy(), bins=20, range=(0, 1), density=True, color=BLUE, alpha=0.7)
    axis.axhline(1, color="k", lw=0.8, ls=":")
    axis.set(title=f"calibration, {len(values):,} held-out rows", xlabel="predicted probability of y or less")
    axis.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    main()
