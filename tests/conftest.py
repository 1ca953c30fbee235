"""What all tests share: one thread, so that runs side by side do not fight for cores and sums come out alike."""

import math
from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def no_lines_of_progress() -> Iterator[None]:
    """On a slow machine, a command may take so long that it says how far it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dspp.progress.SECONDS_BETWEEN_LINES", math.inf)
        yield
