"""Neural feature extractors in front of the first layer (deep kernel learning)."""

from collections.abc import Sequence

import torch
from torch import nn

from dspp.config import PAPER_SIZES


def feature_network(num_inputs: int, sizes: Sequence[int] = PAPER_SIZES) -> nn.Sequential:
    """Return the network of the paper's appendix (deep kernel learning regression).

    Linear layers of the given sizes, with batch normalisation and ReLU after all but the last; the last is followed by
    batch normalisation without learned scale and shift, so that the features are z-scored.
    """
    blocks: list[nn.Module] = []
    f32 = torch.float32  # whatever torch's default, so that the same seed draws the same weights
    for size in sizes[:-1]:
        blocks += [nn.Linear(num_inputs, size, dtype=f32), nn.BatchNorm1d(size, dtype=f32), nn.ReLU()]
        num_inputs = size
    last = nn.Linear(num_inputs, sizes[-1], dtype=f32), nn.BatchNorm1d(sizes[-1], affine=False, dtype=f32)
    return nn.Sequential(*blocks, *last)
