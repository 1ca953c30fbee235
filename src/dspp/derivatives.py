"""A decorator for hand-written backward passes, which support first derivatives only."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch


def first_only(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Make a backward pass refuse to be differentiated: its saved tensors have no graph, so the result would be 0."""

    @wraps(backward)
    def check_and_run(*arguments: Any) -> Any:
        if torch.is_grad_enabled():  # in a backward pass, only with create_graph=True
            raise NotImplementedError(
                "second derivatives are not supported; remove create_graph, or use differences of first derivatives"
            )
        return backward(*arguments)

    return check_and_run
