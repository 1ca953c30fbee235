"""The models of the paper by name, each with the objective that trains it."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from dspp.config import PAPER_SIZES, ModelConfig, ObjectiveConfig
from dspp.errors import InputError
from dspp.registry import Registry


@dataclass(frozen=True)
class Spec:
    """A model and the objective that trains it.

    Example:
        >>> from dspp import preset
        >>> spec = preset("svgp", inducing=100)
        >>> spec.name, spec.model.layers, spec.objective.name
        ('svgp', 1, 'elbo')
    """

    name: str
    model: ModelConfig
    objective: ObjectiveConfig
    outputs: int | None = None  # T, for training; None: as many as there are encoded columns


Preset = Callable[[ModelConfig], tuple[ModelConfig, ObjectiveConfig]]
PRESETS: Registry[Preset] = Registry("preset")
"""The presets by name: functions that turn a `ModelConfig` into that of the model, and its `ObjectiveConfig`.

Example:
    >>> from dspp import PRESETS
    >>> sorted(PRESETS)
    ['bpdgp', 'dgp', 'dspp', 'gamma-dgp', 'od-svgp', 'ppgpr', 'svgp']
"""


@PRESETS.register("svgp")
def svgp(config: ModelConfig) -> tuple[ModelConfig, ObjectiveConfig]:
    """Sparse variational GP (Hensman et al. 2013)."""
    return config.change(layers=1, covariance="full"), ObjectiveConfig("elbo", beta=1.0)


@PRESETS.register("od-svgp")
def od_svgp(config: ModelConfig) -> tuple[ModelConfig, ObjectiveConfig]:
    """Orthogonally decoupled SVGP: a mean basis three times as large as the covariance basis."""
    model, objective = svgp(config)
    return model.change(mean_inducing=3 * config.inducing), objective


@PRESETS.register("ppgpr")
def ppgpr(config: ModelConfig) -> tuple[ModelConfig, ObjectiveConfig]:
    """Parametric predictive GP regression (Jankowiak et al. 2019), mean field."""
    return config.change(layers=1, covariance="diagonal"), ObjectiveConfig("predictive")


@PRESETS.register("dgp")
def dgp(config: ModelConfig) -> tuple[ModelConfig, ObjectiveConfig]:
    """Doubly stochastic variational deep GP (Salimbeni & Deisenroth 2017)."""
    model = config.change(covariance="full", rule="monte-carlo", sites=10, test_sites=32)
    return model, ObjectiveConfig("elbo", beta=1.0)


@PRESETS.register("gamma-dgp")
def gamma_dgp(config: ModelConfig) -> tuple[ModelConfig, ObjectiveConfig]:
    """The robust deep GP of Knoblauch (2019)."""
    return dgp(config)[0], ObjectiveConfig("gamma-elbo", beta=1.0)


@PRESETS.register("bpdgp")
def bpdgp(config: ModelConfig) -> tuple[ModelConfig, ObjectiveConfig]:
    """A deep GP trained on a biased Monte Carlo estimate of its predictive density (appendix C)."""
    model = config.change(covariance="diagonal", rule="monte-carlo", sites=32, test_sites=32)
    return model, ObjectiveConfig("predictive")


@PRESETS.register("dspp")
def dspp(config: ModelConfig) -> tuple[ModelConfig, ObjectiveConfig]:
    """Deep sigma point process, with QR3 by default."""
    return config.change(covariance="diagonal"), ObjectiveConfig("predictive")


def preset(name: str, **changes: Any) -> Spec:
    """Return the preset `name` with some settings changed.

    Args:
        name: one of `PRESETS`, with the prefix "nn+" for a feature network in front.
        **changes: fields of ModelConfig, or `beta` and `gamma` of ObjectiveConfig.

    Example:
        >>> from dspp import preset
        >>> preset("nn+dspp", width=5).model.features
        (1000, 1000, 500, 50, 20)
    """
    objective_changes = {k: changes.pop(k) for k in ("beta", "gamma") if k in changes}
    known = {f.name for f in fields(ModelConfig)}
    for unknown in sorted(changes.keys() - known):
        raise InputError(f"no setting {unknown!r}; choose from: beta, gamma, {', '.join(sorted(known))}")
    plain_name = name.removeprefix("nn+")
    sizes = {k: changes[k] for k in ("inducing",) if k in changes}  # presets derive other sizes from it
    model, objective = PRESETS[plain_name](ModelConfig().change(**sizes))
    if name != plain_name:
        model = model.change(features=PAPER_SIZES)
    return Spec(name, model.change(**changes), objective.change(**objective_changes))
