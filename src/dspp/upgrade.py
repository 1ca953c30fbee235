"""Translation of names in files of earlier versions of dspp to current names; current names are unchanged."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def upgrade_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the tensors of a model's head, as the likelihood was once called."""
    return {_rename(name): tensor for name, tensor in tensors.items()}


def _rename(name: str) -> str:
    before, found, after = name.rpartition("head.")
    of_model = before in ("", "model.") or before.endswith("weights.")
    return f"{before}likelihood.{after}" if found and of_model and after in ("raw_noise", "mixing") else name


def upgrade_settings(model: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the setting `head` of a `ModelConfig` by a likelihood; all heads were Gaussian."""
    settings = dict(model)
    if settings.pop("head", None) is not None:
        settings.setdefault("likelihood", "gaussian")
    return settings
