"""What the terminal shows of a training."""

from types import SimpleNamespace

import pytest

from dspp.cli.show import training_lines


@pytest.mark.parametrize(("count", "text"), [(1, "1 epoch"), (2, "2 epochs")])
def test_one_epoch_is_singular(count: int, text: str) -> None:
    member = SimpleNamespace(history=[None] * count, best_epoch=None, seconds=2.0, kind="plain")
    assert training_lines(SimpleNamespace(members=[member])) == f"Trained {text} in 2.0 s."
