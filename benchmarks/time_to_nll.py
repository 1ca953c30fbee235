"""Seconds of training until the validation NLL reaches the paper's test NLL plus 0.1 nat: ours against GPyTorch's DSPP.

    python -m benchmarks.time_to_nll bike protein kin40k [--recipe default] [--threads 2] [--limit 1200] [--times 12]
    python -m benchmarks.time_to_nll kin40k --set width=8 --set epochs=20

Ours is the recipe of the protocol `quick` for each data set (experiments/protocols/quick.toml), with the changes of
`--set`; `--recipe default` uses the library's defaults instead, which are meant for longer training: `preset("dspp")`
with `TrainConfig()`, trial starts included. If a schedule ends without reaching the target, one with twice the epochs
follows, and the time of both counts. GPyTorch's is the recipe of its own notebook,
examples/05_Deep_Gaussian_Processes/Deep_Sigma_Point_Processes.ipynb (read at commit 2080e738): batches of 1000, Adam at
0.01, reduced to a tenth at each of epochs 20, 150 and 300, 400 epochs, 300 inducing points (in the hidden layer from
SciPy's k-means with 0.01 of noise for each GP, in the top layer Normal), 3 hidden GPs with a linear mean, 8 sites, beta
0.05, Matern-5/2, noise floor 1e-4. The notebook maps inputs to [-1, 1] by the range of all rows; here both see the same
rows, standardised by the training part.

The clock starts with the first k-means and is paused while validation rows are scored at the end of each epoch. Our
trial starts are scored too, but this cannot be separated from outside and stays on our clock. A run that has not
reached the target at `--limit` seconds or at the end of its schedule counts as "more than", and its ratio as "at
least". To find out only whether ours is ten times faster, use `--times` to save time.

Prints a table and, as its last line, JSON, which `--out` writes to a file (results/time_to_nll.json is one).
"""

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gpytorch
import torch
from linear_operator.utils.errors import NanError, NotPSDError
from scipy.cluster.vq import kmeans2
from torch import Tensor

from benchmarks.peers import PeerDSPP
from dspp.config import TrainConfig
from dspp.errors import InputError, TrainingInterrupted
from dspp.presets import Spec, preset
from dspp.training import Epoch, Rows, fit
from experiments import data
from experiments.fitting import model_spec, train_config
from experiments.parts import Parts, cut
from experiments.protocol import read_protocol
from experiments.report.paper import read_paper
from experiments.units import Unit

PAPER_NLL = {"bike": -1.763, "protein": 0.382, "kin40k": -2.016}  # DSPP-QR3-2L, used if results.csv is not available
HEADLINE = "DSPP-QR3-2L"
MARGIN = 0.1
PEER_ROWS = 1000  # per batch of scoring, as in the notebook


@dataclass(frozen=True)
class Notebook:
    """The settings of GPyTorch's notebook."""

    batch_size: int = 1000
    learning_rate: float = 0.01
    milestones: tuple[int, ...] = (20, 150, 300)
    decay: float = 0.1
    epochs: int = 400
    inducing: int = 300
    width: int = 3
    sites: int = 8
    beta: float = 0.05


@dataclass(frozen=True)
class Timing:
    seconds: float  # of training
    reached: bool
    best: float | None  # validation NLL; None: never scored
    note: str = ""


class Stopwatch:
    """Counts the seconds since its creation, without pauses."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock, self._begin, self._left_out = clock, clock(), 0.0

    @property
    def seconds(self) -> float:
        return self.clock() - self._begin - self._left_out

    def leave_out(self, since: float) -> None:
        self._left_out += self.clock() - since

    @contextmanager
    def pause(self) -> Iterator[None]:
        since = self.clock()
        try:
            yield
        finally:
            self.leave_out(since)


class _Reached(Exception):  # noqa: N818 - no error
    """Raised to leave training once the target is reached."""


def time_ours(
    rows: Parts,
    target: float,
    limit: float,
    *,
    config: TrainConfig | None = None,
    spec: Spec | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Timing:
    """Train until the target or the limit is reached."""
    config, spec = config or TrainConfig(), spec or preset("dspp")
    watch, best, last_step = Stopwatch(clock), math.inf, 0.0

    def after_step() -> bool:
        nonlocal last_step
        last_step = clock()
        return watch.seconds >= limit

    def after_epoch(epoch: Epoch) -> None:
        nonlocal best
        watch.leave_out(last_step)  # since the last step, validation rows were scored
        best = min(best, epoch.val_nll)
        if best <= target:
            raise _Reached

    while True:
        try:
            train, validation = Rows.of(rows.X, rows.y), Rows.of(rows.X_val, rows.y_val)
            hooks = {"on_epoch": after_epoch, "should_stop": after_step}
            fit(spec, train, validation, config=config, progress=False, **hooks)
        except _Reached:
            return Timing(watch.seconds, True, best)
        except TrainingInterrupted:
            return Timing(watch.seconds, False, best if math.isfinite(best) else None, "cut off")
        config = config.change(epochs=2 * config.epochs)


def time_gpytorch(
    rows: Parts,
    target: float,
    limit: float,
    *,
    recipe: Notebook | None = None,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> Timing:
    recipe = recipe or Notebook()
    X, y, X_val, y_val = (torch.as_tensor(part).float() for part in (rows.X, rows.y, rows.X_val, rows.y_val))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        watch = Stopwatch(clock)
        return _train_peer(notebook_model(X, recipe), recipe, (X, y), (X_val, y_val), watch, target, limit)


def notebook_model(X: Tensor, recipe: Notebook) -> PeerDSPP:
    """Return the notebook's model with its initial parameters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an empty cluster keeps its initial point
        start = X[torch.randperm(len(X))[: recipe.inducing]].numpy()
        points = torch.from_numpy(kmeans2(X.numpy(), start, minit="matrix")[0]).float()
    model = PeerDSPP([points, torch.randn(recipe.inducing, recipe.width)], recipe.width, recipe.sites, "matern52")
    hidden = model.stack[0].variational_strategy.inducing_points
    hidden.data.add_(0.01 * torch.randn_like(hidden))
    return model


def _train_peer(
    model: PeerDSPP,
    recipe: Notebook,
    train: tuple[Tensor, Tensor],
    val: tuple[Tensor, Tensor],
    watch: Stopwatch,
    target: float,
    limit: float,
) -> Timing:
    step, end_epoch = _peer_training(model, recipe, len(train[0]))
    best: float | None = None
    for _ in range(recipe.epochs):
        for batch in torch.randperm(len(train[0])).split(recipe.batch_size):
            try:
                step(train[0][batch], train[1][batch])
            except (NanError, NotPSDError) as problem:
                return Timing(watch.seconds, False, best, f"failed: {problem!s:.80}")
            if watch.seconds >= limit:
                return Timing(watch.seconds, False, best, "cut off")
        end_epoch()
        with watch.pause():
            score = peer_nll(model, *val)
        if math.isfinite(score) and (best is None or score < best):
            best = score
        if score <= target:
            return Timing(watch.seconds, True, best)
    return Timing(watch.seconds, False, best, f"its {recipe.epochs} epochs are over")


def _peer_training(
    model: PeerDSPP, recipe: Notebook, num_rows: int
) -> tuple[Callable[[Tensor, Tensor], None], Callable[[], None]]:
    """Return a function for a step on one batch, and one for the end of an epoch."""
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.learning_rate)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, list(recipe.milestones), gamma=recipe.decay)
    objective = gpytorch.mlls.DeepPredictiveLogLikelihood(model.likelihood, model, num_data=num_rows, beta=recipe.beta)
    model.train()

    def step(x: Tensor, y: Tensor) -> None:
        optimizer.zero_grad()
        (-objective(model(x), y)).backward()
        optimizer.step()

    return step, schedule.step


@torch.no_grad()
def peer_nll(model: PeerDSPP, X: Tensor, y: Tensor) -> float:
    """Return the NLL of the mixture, the mean of -log Σ_s ω_s N(y | μ_s, v_s + σ²); `quad_weights` are logarithms."""
    model.eval()
    total = 0.0
    for x, target in zip(X.split(PEER_ROWS), y.split(PEER_ROWS), strict=True):
        components = model.likelihood.log_marginal(target, model(x))  # (S, N)
        total -= torch.logsumexp(model.quad_weights.unsqueeze(-1) + components, dim=0).double().sum().item()
    model.train()
    return total / len(y)


def target_of(name: str, folder: Path) -> float:
    """Return the paper's NLL on a data set plus the margin."""
    cells, paper = read_paper(folder.parent / "paper").cells, PAPER_NLL.get(name)
    if cell := cells.get(("uci", "NLL", name, HEADLINE)):
        paper = cell.mean
    if paper is None:
        raise InputError(f"the paper has no NLL of DSPP-QR3-2L on {name!r}; choose from: {', '.join(PAPER_NLL)}")
    return paper + MARGIN


def quick_recipe(name: str, changes: Mapping[str, Any]) -> tuple[TrainConfig, Spec]:
    """Return the settings of `quick` for a DSPP on this data set, with some of them changed."""
    (setting,) = read_protocol("quick").settings("univariate", name, HEADLINE)
    for unknown in sorted(changes.keys() - setting.keys()):
        raise InputError(f"the protocol 'quick' has no setting {unknown!r}; choose from: {', '.join(sorted(setting))}")
    unit = Unit("univariate", name, 0, HEADLINE, "quick", (15, 3, 2), {**setting, **changes})
    return train_config(unit).change(threads=None), model_spec(unit)


def measure(
    name: str,
    folder: Path,
    limit: float,
    times: float = math.inf,
    recipe: str = "quick",
    changes: Mapping[str, Any] | None = None,
) -> dict[str, object]:
    target, rows = target_of(name, folder), cut(data.load(name, folder), 0, (15, 3, 2))
    config, spec = quick_recipe(name, changes or {}) if recipe == "quick" else (None, None)
    ours = time_ours(rows, target, limit, config=config, spec=spec)
    theirs = time_gpytorch(rows, target, min(limit, times * ours.seconds))
    return as_row(name, target, ours, theirs)


def as_row(name: str, target: float, ours: Timing, theirs: Timing) -> dict[str, object]:
    """Return one row of the JSON; there is no ratio if ours did not reach the target."""
    return {
        "dataset": name,
        "target": round(target, 4),
        "dspp_s": round(ours.seconds, 2),
        "dspp_reached": ours.reached,
        "dspp_best": ours.best,
        "gpytorch_s": round(theirs.seconds, 2),
        "gpytorch_reached": theirs.reached,
        "gpytorch_best": theirs.best,
        "gpytorch_note": theirs.note,
        "ratio": round(theirs.seconds / ours.seconds, 2) if ours.reached else None,
    }


def _line(row: dict[str, object]) -> str:
    def shown(who: str) -> str:
        return f"{'' if row[f'{who}_reached'] else '>'}{row[f'{who}_s']:.1f}"

    def best(who: str) -> str:
        return "-" if row[f"{who}_best"] is None else f"{row[f'{who}_best']:+.3f}"

    ratio = "-" if row["ratio"] is None else f"{'' if row['gpytorch_reached'] else '>'}{row['ratio']:.1f}"
    return (
        f"{row['dataset']:16} {row['target']:+7.3f} {shown('dspp'):>9} {best('dspp'):>8} {shown('gpytorch'):>11} "
        f"{best('gpytorch'):>8} {ratio:>7}  {row['gpytorch_note']}"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--recipe", choices=["quick", "default"], default="quick", help="our recipe")
    parser.add_argument(
        "--set",
        type=_change,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="change a setting of the quick recipe",
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--limit", type=float, default=1200.0, help="seconds of training for each")
    parser.add_argument("--times", type=float, default=math.inf, help="stop GPyTorch at this multiple of our time")
    parser.add_argument("--json", action="store_true", help="print only the JSON")
    parser.add_argument("--out", type=Path, help="write the JSON to this file, too")
    options = parser.parse_args(arguments)
    if options.set and options.recipe != "quick":
        parser.error("--set applies only to --recipe quick; remove one of them")
    before = torch.get_num_threads()
    torch.set_num_threads(options.threads)
    try:
        rows = list(_measure_all(options))
    finally:
        torch.set_num_threads(before)
    ratios = [row["ratio"] for row in rows if row["ratio"] is not None]
    how = {"recipe": options.recipe, "set": dict(options.set), "threads": options.threads}
    found = {"rows": rows, "min_ratio": min(ratios, default=None), **how}
    print(json.dumps(found))
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _change(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE, with the value as JSON."""
    name, _, value = text.partition("=")
    return name, json.loads(value)


def _measure_all(options: argparse.Namespace) -> Iterator[dict[str, object]]:
    if not options.json:
        print(f"{'':16} {'target':>7} {'dspp s':>9} {'best':>8} {'gpytorch s':>11} {'best':>8} {'ratio':>7}")
    for name in options.datasets:
        row = measure(name, options.data, options.limit, options.times, options.recipe, dict(options.set))
        if not options.json:
            print(_line(row), flush=True)
        yield row


if __name__ == "__main__":
    main()
