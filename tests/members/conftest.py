"""What the tests of ensembles share: few folds and few trees, so that a fit of both kinds of members takes a moment."""

from collections.abc import Iterator
from functools import partial

import pytest

from dspp.members import plan, trees
from dspp.trees import cross_fit


@pytest.fixture(scope="module")
def two_folds() -> Iterator[None]:
    """Four members by default: both kinds in each of two folds, with trees of three rounds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "FOLDS", 2)
        patch.setattr(trees, "cross_fit", partial(cross_fit, max_rounds=3))
        yield
