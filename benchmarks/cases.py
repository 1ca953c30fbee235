"""The measured sizes, one step or prediction at each, ours and GPyTorch's, and how their times are compared."""

import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import gpytorch
import torch
from torch import Tensor

from benchmarks.peers import PeerDGP, peer_of
from dspp.model import Model, build
from dspp.presets import Spec, preset
from experiments.complexity import training_step

warnings.filterwarnings("ignore", module="gpytorch|linear_operator")
NUM_DATA = 4000
PEER_ROWS = 2000  # per batch of GPyTorch's predictions: of 500, 1000, 2000 and 4000 the fastest for the DSPP


@dataclass(frozen=True)
class Case:
    """A model at one size."""

    model: str
    depth: int
    D: int
    W: int
    N: int = 1000
    M: int = 300
    S: int = 10

    @property
    def spec(self) -> Spec:
        return preset(self.model, layers=self.depth, width=self.W, inducing=self.M, sites=self.S)

    def rows(self) -> tuple[Tensor, Tensor]:
        X = torch.randn(max(NUM_DATA, self.N), self.D, generator=torch.Generator().manual_seed(0))
        return X, torch.sin(X).sum(-1) / self.D**0.5

    def ours(self) -> Model:
        return build(self.spec.model, self.rows()[0])

    def peer(self) -> torch.nn.Module:
        """Return GPyTorch's model with our parameters and its own default jitter."""
        return peer_of(self.ours(), self.spec.model, mirror_jitter=False)


CASES = [
    Case("dspp", 2, 8, 3),
    Case("dspp", 2, 8, 5),
    Case("dspp", 2, 26, 3),
    Case("dspp", 3, 8, 3),
    Case("svgp", 1, 8, 1),
    Case("ppgpr", 1, 8, 1),
    Case("dgp", 2, 8, 3),
]


def alternate(first: Callable[[], object], second: Callable[[], object], repeats: int, warm_up: int = 2) -> float:
    """Return the median ratio second / first of the times of two functions called alternately.

    The machine has slow spells of seconds that affect both calls of a turn, so the ratio is computed per turn.
    """
    turns = [(seconds(first), seconds(second)) for _ in range(warm_up + repeats)]
    return statistics.median(other / one for one, other in turns[warm_up:])


def seconds(function: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return how long a call takes."""
    begin = clock()
    function()
    return clock() - begin


def our_step(case: Case) -> Callable[[], object]:
    torch.set_num_threads(2)
    return training_step(case.spec, case.rows()[0], case.N)


def peer_step(case: Case) -> Callable[[], object]:
    torch.set_num_threads(2)
    model, (X, y), beta = case.peer(), case.rows(), case.spec.objective.beta
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    kind = {
        "dspp": gpytorch.mlls.DeepPredictiveLogLikelihood,
        "ppgpr": gpytorch.mlls.PredictiveLogLikelihood,
    }.get(case.model, gpytorch.mlls.VariationalELBO)
    score = kind(model.likelihood, model, num_data=NUM_DATA, beta=beta)
    if isinstance(model, PeerDGP):
        score = gpytorch.mlls.DeepApproximateMLL(score)
    x, y = X[: case.N], y[: case.N]

    def step() -> float:
        optimizer.zero_grad()
        with gpytorch.settings.num_likelihood_samples(case.S):
            value = score(model(x), y).sum()
        (-value).backward()
        optimizer.step()
        return value.item()

    model.train()
    return step


def our_prediction(case: Case) -> Callable[[], object]:
    torch.set_num_threads(2)
    predict, x = case.ours().predictor(), case.rows()[0][: case.N]

    def call() -> tuple[Tensor, Tensor]:
        mixture = predict(x)
        return mixture.mean, mixture.var

    return call


def peer_prediction(case: Case) -> Callable[[], object]:
    torch.set_num_threads(2)
    model, x = case.peer().eval(), case.rows()[0][: case.N]

    @torch.no_grad()
    def call() -> list[tuple[Tensor, Tensor]]:
        with gpytorch.settings.num_likelihood_samples(32 if isinstance(model, PeerDGP) else case.S):
            parts = (model.likelihood(model(part)) for part in x.split(PEER_ROWS))
            return [(out.mean, out.variance) for out in parts]

    return call
