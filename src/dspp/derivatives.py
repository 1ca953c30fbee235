"""For the backward passes that are written by hand: they know first derivatives only."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch


def first_only(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A backward pass that refuses to be differentiated again; what it saves has no graph, so zeros would come out."""

    @wraps(backward)
    def checked(*arguments: Any) -> Any:
        if torch.is_grad_enabled():  # in a backward pass: create_graph=True
            raise NotImplementedError(
                "second derivatives are not there: leave out create_graph, or take differences of first ones"
            )
        return backward(*arguments)

    return checked
