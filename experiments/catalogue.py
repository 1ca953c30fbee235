"""Every experiment of the paper by name, with its methods and data sets; and every method with its model."""

from dataclasses import dataclass, field
from typing import Any

from dspp.errors import InputError
from dspp.presets import Spec, preset
from experiments.data import QUADRATURE, ROBOTICS, UNIVARIATE
from experiments.data.sources import SOURCES
from experiments.peers import PEERS

ENSEMBLE = "DSPP ensemble (default)"  # `DSPPRegressor()`, as a user would call it
OTHERS = (*PEERS, ENSEMBLE)  # methods that are not the paper's, and take no part in comparisons with it
ROWS = {name: source.rows for name, source in SOURCES.items() if source.rows}  # known before a data set is loaded
DEEP_FOUR = ("kin40k", "protein", "keggdirected", "slice")


@dataclass(frozen=True)
class Method:
    """A model of the paper: a preset of `dspp` and its fixed settings."""

    preset: str
    settings: dict[str, Any] = field(default_factory=dict)

    def spec(self, setting: dict[str, Any]) -> Spec:
        """Return the model and its objective at one setting."""
        return preset(self.preset, **{**self.settings, **setting})


METHODS: dict[str, Method] = {
    "SVGP": Method("svgp"),
    "OD-SVGP": Method("od-svgp"),
    "PPGPR": Method("ppgpr"),
    "DGP-2L": Method("dgp"),
    "DGP-3L": Method("dgp", {"layers": 3}),
    "gamma-DGP-2L": Method("gamma-dgp"),
    "BPDGP-2L": Method("bpdgp"),
    "DSPP-GH-2L": Method("dspp", {"rule": "gauss-hermite", "sites": 3}),
    "DSPP-QR1-2L": Method("dspp", {"rule": "qr1", "sites": 3}),
    "DSPP-QR2-2L": Method("dspp", {"rule": "qr2", "sites": 3}),
    "DSPP-QR3-2L": Method("dspp"),
    "DSPP-QR3-3L": Method("dspp", {"layers": 3}),
    "NN+SVGP": Method("nn+svgp"),
    "NN+PPGPR": Method("nn+ppgpr"),
    "NN+DGP-2L": Method("nn+dgp"),
    "NN+DSPP-QR3-2L": Method("nn+dspp"),
}


@dataclass(frozen=True)
class Experiment:
    """One experiment of the paper."""

    name: str
    title: str
    section: str  # of the paper
    datasets: tuple[str, ...]
    methods: tuple[str, ...]


def _all(*experiments: Experiment) -> dict[str, Experiment]:
    return {e.name: e for e in experiments}


EXPERIMENTS = _all(
    Experiment(
        "quadrature",
        "Quadrature rules",
        "5.1, A.1",
        QUADRATURE,
        ("DSPP-QR1-2L", "DSPP-QR2-2L", "DSPP-QR3-2L", "DSPP-GH-2L"),
    ),
    Experiment(
        "univariate",
        "Univariate regression",
        "5.2, A.2",
        UNIVARIATE,
        ("OD-SVGP", "PPGPR", "DGP-2L", "gamma-DGP-2L", "DSPP-QR3-2L", *OTHERS),
    ),
    Experiment(
        "multivariate",
        "Multivariate regression",
        "5.3, A.3",
        ROBOTICS,
        ("SVGP", "PPGPR", "DGP-2L", "gamma-DGP-2L", "DSPP-QR3-2L", ENSEMBLE),
    ),
    Experiment(
        "multilayer",
        "Deeper models",
        "5.4, A.4",
        DEEP_FOUR,
        ("PPGPR", "DGP-2L", "DGP-3L", "DSPP-QR3-2L", "DSPP-QR3-3L"),
    ),
    Experiment(
        "dkl",
        "Deep kernel learning",
        "5.5, A.5",
        DEEP_FOUR,
        (
            *("SVGP", "PPGPR", "DGP-2L", "DSPP-QR3-2L"),
            *("NN+SVGP", "NN+PPGPR", "NN+DGP-2L", "NN+DSPP-QR3-2L"),
        ),
    ),
    Experiment(
        "biased",
        "Biased Monte Carlo instead of quadrature",
        "C",
        QUADRATURE,
        ("BPDGP-2L", "DSPP-QR3-2L", "SVGP", "PPGPR"),
    ),
    Experiment("weights", "Leading quadrature weights", "C", QUADRATURE, ("DSPP-QR3-2L",)),
    Experiment("complexity", "Time and memory", "B", ("simulated",), ("DSPP-QR3-2L", "DGP-2L")),
)


def experiment(name: str) -> Experiment:
    """Return the experiment `name`, or raise an error that lists them all."""
    if name not in EXPERIMENTS:
        raise InputError(f"no experiment {name!r}; choose from: {', '.join(EXPERIMENTS)}")
    return EXPERIMENTS[name]
