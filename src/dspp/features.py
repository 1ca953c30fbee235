"""The neural feature extractor in front of the first layer (deep kernel learning)."""

from collections.abc import Sequence

import torch
from torch import nn

from dspp.config import PAPER_SIZES


class FeatureNetwork(nn.Sequential):
    """The network of the paper's appendix (deep kernel learning regression).

    Linear layers of the given sizes, with batch normalisation and ReLU after all but the last; the last is followed by
    batch normalisation without learned scale and shift, so that the features are z-scored.
    """

    def __init__(self, num_inputs: int, sizes: Sequence[int] = PAPER_SIZES) -> None:
        blocks: list[nn.Module] = []
        f32 = torch.float32  # whatever torch's default, so that the same seed draws the same weights
        for inputs, size in zip([num_inputs, *sizes], sizes, strict=False):
            blocks += [nn.Linear(inputs, size, dtype=f32), nn.BatchNorm1d(size, dtype=f32), nn.ReLU()]
        blocks[-2:] = [nn.BatchNorm1d(sizes[-1], affine=False, dtype=f32)]
        super().__init__(*blocks)
        self.sizes = tuple(sizes)
