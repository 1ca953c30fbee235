"""The race to the paper's NLL: what its clock counts, when it ends, and what it prints."""

import json
import math
import warnings

import numpy as np
import pytest
import torch
from scipy.stats import norm

pytest.importorskip("gpytorch", reason="gpytorch is absent: `make test` installs it")

from benchmarks import time_to_nll as race
from dspp.config import TrainConfig
from dspp.errors import InputError
from dspp.presets import preset
from experiments.data.files import store
from experiments.parts import Parts

pytestmark = pytest.mark.filterwarnings("ignore:::gpytorch|linear_operator")
OURS = TrainConfig(epochs=3, batch_size=100, restarts=1)
SMALL = preset("dspp", inducing=8, sites=3, width=2)
NOTEBOOK = race.Notebook(batch_size=100, epochs=3, inducing=8, sites=3, width=2)
NEVER, AT_ONCE = -100.0, 100.0


def table(num: int = 300) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (num, 2))
    return X, np.sin(3 * X[:, 0]) + 0.1 * rng.standard_normal(num)


@pytest.fixture
def rows() -> Parts:
    X, y = table()
    return Parts(X[:200], y[:200], X[200:], y[200:], X[200:], y[200:], np.zeros(100, bool))


@pytest.fixture
def folder(tmp_path):
    """A data folder with one small set, and the paper's figures beside it."""
    X, y = table()
    (tmp_path / "data").mkdir()
    store(tmp_path / "data" / "tiny.npz", {"X": np.column_stack([X, np.ones(len(X))]), "y": y})
    (tmp_path / "paper").mkdir()
    lines = ["experiment,metric,dataset,method,mean,standard_error,best", "uci,NLL,tiny,DSPP-QR3-2L,1.5,0.01,1"]
    (tmp_path / "paper" / "results.csv").write_text("\n".join([*lines, "uci,NLL,tiny,PPGPR,9.0,0.01,0"]))
    return tmp_path / "data"


def contestant(name: str, rows: Parts, target: float, limit: float, **how) -> race.Timing:
    if name == "ours":
        return race.time_ours(rows, target, limit, config=OURS, spec=SMALL, **how)
    return race.time_gpytorch(rows, target, limit, recipe=NOTEBOOK, **how)


both = pytest.mark.parametrize("name", ["ours", "gpytorch"])


class Clock:
    """The time as tests tell it: a millisecond for every look at it, and what is said to have passed."""

    def __init__(self) -> None:
        self.now = 0.0

    def look(self) -> float:
        self.now += 1e-3
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@both
def test_the_clock_stands_still_while_validation_rows_are_scored(name, rows, monkeypatch, clock):
    calls: list[float] = []

    def slow(*_) -> float:
        clock.now += 100.0
        calls.append(clock.now)
        return 3.0 - len(calls)

    how = {"clock": clock.look}
    if name == "ours":
        monkeypatch.setattr("dspp.training.run.nll", slow)
    else:
        monkeypatch.setattr(race, "peer_nll", slow)
    timing = contestant(name, rows, 0.0, 60.0, **how)
    assert (timing.reached, timing.best, len(calls)) == (True, 0.0, 3)
    assert clock.now > 300
    assert 0 < timing.seconds < 1  # all of the scoring is left out


@both
def test_ends_at_the_first_epoch_that_is_good_enough(name, rows):
    timing = contestant(name, rows, AT_ONCE, 60.0)
    assert timing.reached
    assert timing.note == ""
    assert NEVER < timing.best <= AT_ONCE


@both
def test_a_cut_off_is_marked(name, rows, clock):
    timing = contestant(name, rows, NEVER, 0.004, clock=clock.look)
    assert (timing.reached, timing.note) == (False, "cut off")
    assert 0.004 <= timing.seconds < 0.02  # a few looks at the clock a step


def test_gpytorch_that_ends_without_getting_there_is_marked(rows):
    timing = race.time_gpytorch(rows, NEVER, 60.0, recipe=NOTEBOOK)
    assert (timing.reached, timing.note) == (False, "its 3 epochs are over")
    assert math.isfinite(timing.best)


def test_ours_that_ends_without_getting_there_begins_again_with_twice_the_epochs(rows, monkeypatch, clock):
    epochs = []

    def fake(spec, X, y, *, config, on_epoch, should_stop, **_):
        epochs.append(config.epochs)
        clock.now += 10.0
        should_stop()
        on_epoch(race.Epoch(1, 0.0, 0.0, 1.0 / config.epochs, 0.01, 0.05))

    monkeypatch.setattr(race, "fit", fake)
    timing = race.time_ours(rows, 0.1, 60.0, config=OURS, spec=SMALL, clock=clock.look)  # 1/12 is the first below 0.1
    assert epochs == [3, 6, 12]
    assert timing.reached
    assert timing.best == pytest.approx(1 / 12)
    assert 30 <= timing.seconds < 31  # the time of all three


def test_the_default_of_the_library_is_what_runs(rows, monkeypatch):
    seen = {}

    def fake(spec, X, y, **options):
        seen.update(options, spec=spec)
        options["should_stop"]()
        options["on_epoch"](race.Epoch(1, 0.0, 0.0, -1.0, 0.01, 0.1))

    monkeypatch.setattr(race, "fit", fake)
    race.time_ours(rows, 0.0, 1.0)
    assert (seen["config"], seen["spec"]) == (TrainConfig(), preset("dspp"))


def test_nll_of_gpytorchs_mixture_is_that_of_the_mixture(rows):
    """Against SciPy's densities, one component at a time."""
    torch.manual_seed(0)
    X, y = torch.from_numpy(rows.X).float(), torch.from_numpy(rows.y).float()
    model = race.notebook_model(X, NOTEBOOK)
    score = race.peer_nll(model, X, y)
    assert model.training
    model.eval()
    with torch.no_grad():
        out = model(X)
        std = (out.variance + model.likelihood.noise).sqrt().numpy()
        weights = torch.softmax(model.raw_quad_weights, 0).numpy()
        density = sum(w * norm.pdf(rows.y, m, s) for w, m, s in zip(weights, out.mean.numpy(), std, strict=True))
    assert score == pytest.approx(-np.log(density).mean(), abs=1e-5)
    assert weights.sum() == pytest.approx(1)


def test_the_notebooks_model_and_schedule():
    torch.manual_seed(0)
    recipe = race.Notebook()
    X = torch.randn(400, 5)
    model = race.notebook_model(X, recipe)
    hidden, top = (layer.variational_strategy.inducing_points for layer in model.stack)
    assert (tuple(hidden.shape), tuple(top.shape)) == ((3, 300, 5), (300, 3))
    spread = (hidden - hidden.mean(0)).detach()
    assert spread.std().item() == pytest.approx(0.01 * math.sqrt(2 / 3), rel=0.1)
    assert model.num_quad_sites == 8
    assert model.likelihood.noise_covar.raw_noise_constraint.lower_bound.item() == pytest.approx(1e-4)
    _, end_epoch = race._peer_training(model, recipe, 400)
    rates = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no step was made: only the schedule is looked at
        for _ in range(recipe.epochs):
            rates.append(end_epoch.__self__.get_last_lr()[0])
            end_epoch()
    assert [rates[i] for i in (0, 19, 20, 149, 150, 299, 300)] == pytest.approx(
        [1e-2] * 2 + [1e-3] * 2 + [1e-4] * 2 + [1e-5]
    )


def test_the_target_is_the_papers_test_nll_and_a_tenth(folder, tmp_path):
    assert race.target_of("tiny", folder) == pytest.approx(1.6)
    assert race.target_of("bike", tmp_path / "elsewhere" / "data") == pytest.approx(-1.663)
    with pytest.raises(InputError, match=r"no NLL.*'unknown'"):
        race.target_of("unknown", folder)


def test_prints_a_table_and_json_as_the_last_line(folder, capsys, monkeypatch):
    """With the whole recipes, a target that both reach soon, and then one that neither can."""
    threads = torch.get_num_threads()
    race.main(["tiny", "--data", str(folder), "--limit", "20", "--threads", "1"])
    lines = capsys.readouterr().out.splitlines()
    found = json.loads(lines[-1])
    (row,) = found["rows"]
    assert len(lines) == 3
    assert lines[1].startswith("tiny")
    assert {"dataset", "target", "dspp_s", "gpytorch_s", "gpytorch_reached", "gpytorch_best", "dspp_best"} < row.keys()
    assert (row["dataset"], row["target"], row["gpytorch_reached"]) == ("tiny", 1.6, True)
    assert row["dspp_best"] <= 1.6
    rounding = 0.006 / row["dspp_s"] + 0.006 / row["gpytorch_s"]  # the seconds have two decimals
    assert row["ratio"] == pytest.approx(row["gpytorch_s"] / row["dspp_s"], rel=rounding, abs=0.01)
    assert found["min_ratio"] == row["ratio"]
    assert torch.get_num_threads() == threads

    monkeypatch.setattr(race, "MARGIN", -100.0)
    race.main(["tiny", "--data", str(folder), "--limit", "0.5", "--threads", "1", "--json"])
    (only,) = capsys.readouterr().out.splitlines()
    (row,) = json.loads(only)["rows"]
    assert (row["dspp_reached"], row["gpytorch_reached"], row["ratio"]) == (False, False, None)
    assert row["gpytorch_s"] >= 0.5
    assert json.loads(only)["min_ratio"] is None


def test_our_recipe_is_that_of_quick_and_the_default_on_request(folder, monkeypatch):
    seen = []

    def ours(rows, target, limit, **recipe):
        seen.append(recipe)
        return race.Timing(2.0, True, target)

    def theirs(rows, target, limit):
        seen.append(limit)
        return race.Timing(limit, False, None, "cut off")

    monkeypatch.setattr(race, "time_ours", ours)
    monkeypatch.setattr(race, "time_gpytorch", theirs)
    race.measure("tiny", folder, 100.0)
    race.measure("tiny", folder, 100.0, times=12, recipe="default")
    race.measure("tiny", folder, 100.0, changes={"width": 8, "epochs": 3})
    quick, whole, default, cut, changed, _ = seen
    assert (quick["config"].epochs, quick["config"].threads, quick["config"].restarts) == (10, None, 1)
    assert (quick["spec"].model.inducing, quick["spec"].model.width) == (150, 5)
    assert (whole, cut) == (100.0, 24.0)
    assert default == {"config": None, "spec": None}
    assert (changed["config"].epochs, changed["config"].batch_size, changed["spec"].model.width) == (3, 500, 8)


def test_what_cannot_be_changed_is_refused(folder, capsys):
    with pytest.raises(InputError, match="no setting 'widht'; choose from: batch_size, beta"):
        race.measure("tiny", folder, 100.0, changes={"widht": 8})
    for words in (["--set", "width=8", "--recipe", "default"], ["--set", "width"]):
        with pytest.raises(SystemExit):
            race.main(["tiny", "--data", str(folder), *words])
        assert "--set" in capsys.readouterr().err


def test_the_ratio_is_of_the_seconds_before_they_are_rounded():
    row = race.as_row("tiny", 1.6, race.Timing(0.1349, True, 1.5), race.Timing(0.2901, True, 1.5))
    assert (row["dspp_s"], row["gpytorch_s"], row["ratio"]) == (0.13, 0.29, 2.15)


def test_a_cut_off_of_gpytorch_gives_a_lower_bound():
    row = race.as_row("bike", -1.663, race.Timing(60.0, True, -1.7), race.Timing(1200.0, False, -1.2, "cut off"))
    assert (row["ratio"], row["gpytorch_reached"]) == (20.0, False)
    assert ">1200.0" in race._line(row)
    assert ">20.0" in race._line(row)
