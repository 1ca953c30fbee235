"""A check that float32 is precise enough for the distances of a trained model."""

import torch

from dspp.model import Model
from dspp.training.rows import Rows

ROWS = 256  # rows checked
NEAR = 25.0  # scaled squared distance below which a point matters: k > 0.03 for every kernel
TOLERANCE = 2e-3  # rounding error of t² that is worth a warning: k is then off by up to 1e-3
SHARE = 0.05  # share of rows above which to warn


@torch.no_grad()
def precision_note(model: Model, rows: Rows) -> str | None:
    """Return a warning if distances to the inducing points cancel in float32, or None.

    The first layer computes t² = |x − z|² as |x|² + |z|² − 2 xᵀz about the centre of its points. Its rounding error,
    ε (|x|² + |z|²), is large where inputs form tight clusters that lie far apart in units of the length scales.
    """
    if rows.x.dtype != torch.float32:
        return None
    layer, x = model.gp_layers[0], rows.x[:ROWS]
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
