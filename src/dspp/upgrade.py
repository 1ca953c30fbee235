"""Names that files of earlier versions of dspp use, as they are called now; new names are left alone."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def with_likelihood(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by name, where a model's likelihood was once called its head."""
    return {_renamed(name): tensor for name, tensor in tensors.items()}


def _renamed(name: str) -> str:
    before, found, after = name.rpartition("head.")
    of_model = before in ("", "model.") or before.endswith("weights.")
    return f"{before}likelihood.{after}" if found and of_model and after in ("raw_noise", "mixing") else name


def with_likelihood_setting(model: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a `ModelConfig`, once with a head instead of a likelihood; all heads were Gaussian."""
    settings = dict(model)
    if settings.pop("head", None) is not None:
        settings.setdefault("likelihood", "gaussian")
    return settings
