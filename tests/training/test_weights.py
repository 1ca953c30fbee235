"""Promise 30: weights mean what they say. Weight 2 is the row twice, weight 0 the row left out, and ratios are all.

The KL term counts rows, whatever their weights: docs/decisions.md says why. A table with the rows repeated has the same
data term, and the same objective if β is multiplied by the mean weight.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from runs import fit
from torch import Tensor
from typer.testing import CliRunner

import dspp
from dspp import TrainConfig, preset
from dspp.batches import batch_indices
from dspp.calibration import calibration_of
from dspp.cli.app import app
from dspp.encoding.scaling import Standardizer
from dspp.errors import CheckpointError, InputError
from dspp.guard import WIDE, Guard
from dspp.members.blend import HeldOutRows, stack
from dspp.metrics import METRICS, Comparison
from dspp.model import build
from dspp.objectives import OBJECTIVES
from dspp.outcomes import Real
from dspp.predictive import MultivariateNormalMixture, NormalMixture, Predictive
from dspp.prepare import prepare
from dspp.settings import Settings
from dspp.table.checks import check_weights
from dspp.table.memory import attach_roles, attach_targets, to_table
from dspp.table.messages import Place
from dspp.training.rows import Rows, place_rows
from dspp.training.run import nll

N, TOLERANCE = 40, 1e-10
RANDOM = np.random.default_rng(30)
X = RANDOM.normal(size=(N, 3))
Y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.2 * RANDOM.normal(size=N)
BOTH = np.column_stack([Y, np.where(np.arange(N) % 4 == 1, np.nan, X[:, 1] - Y)])
TARGETS = {"one output": Y, "two outputs": BOTH}
COUNTS = RANDOM.integers(0, 4, N)
SINGLE: dict[str, Any] = {"members": 1, "inducing": 6, "width": 2, "sites": 3, "epochs": 3, "restarts": 1}
CONFIG = TrainConfig(epochs=2, batch_size=16, restarts=2, threads=1)
EXACT = {"dtype": "float64", "inducing": 7}

every_target = pytest.mark.parametrize("y", TARGETS.values(), ids=TARGETS.keys())


def repeat(*parts: np.ndarray) -> list[np.ndarray]:
    return [np.repeat(part, COUNTS, axis=0) for part in parts]


# ---------------------------------------------------------------- the objective


SPECS = {
    "dspp": preset("dspp", **EXACT, width=2, sites=3),
    "ppgpr": preset("ppgpr", **EXACT),
    "svgp": preset("svgp", **EXACT),
    "gamma": preset("svgp", **EXACT),
    "student-t": preset("dspp", **EXACT, width=2, sites=3, likelihood="student-t"),
}
OBJECTIVE_OF = {"dspp": "predictive", "ppgpr": "predictive", "svgp": "elbo", "gamma": "gamma-elbo"}


def rows(name: str, x: np.ndarray, y: np.ndarray, weights: Any = None) -> Rows:
    made, _ = place_rows(Rows.of(x, y, weights), None, SPECS[name], CONFIG)
    assert isinstance(made, Rows)
    return made


def objective(name: str, data: Rows, num_data: int, beta: float = 0.3) -> tuple[float, list[Tensor]]:
    """The objective on all rows of a model that the rows did not initialise, and its gradients."""
    model = build(SPECS[name].model, torch.from_numpy(X), data.y.shape[1], seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():  # away from the prior, where the KL term is zero
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    how: dict[str, Any] = {} if data.weights is None else {"weights": data.weights}
    function = OBJECTIVES[OBJECTIVE_OF.get(name, "predictive")]
    value = function(model.likelihood, model(data.x), data.y, model.kl(), num_data, beta=beta, gamma=1.1, **how)
    value.backward()  # type: ignore[no-untyped-call]
    return value.item(), [p.grad for p in model.parameters() if p.grad is not None]


def assert_same(one: tuple[float, list[Tensor]], other: tuple[float, list[Tensor]]) -> None:
    assert one[0] == pytest.approx(other[0], rel=TOLERANCE, abs=TOLERANCE)
    assert len(one[1]) == len(other[1]) > 3
    for mine, theirs in zip(one[1], other[1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=TOLERANCE, atol=TOLERANCE)


CASES = [(name, y) for name in SPECS for y in TARGETS if (name, y) != ("student-t", "two outputs")]


@pytest.mark.parametrize(("name", "y"), CASES)
def test_weight_two_is_the_row_twice(name: str, y: str) -> None:
    weighted, twice = rows(name, X, TARGETS[y], COUNTS), rows(name, *repeat(X, TARGETS[y]))
    assert len(weighted) == (COUNTS > 0).sum()
    for beta in (0.0, 0.3):
        assert_same(objective(name, weighted, 100, beta), objective(name, twice, 100, beta))
    mean = COUNTS[COUNTS > 0].mean()
    assert_same(objective(name, weighted, len(weighted)), objective(name, twice, len(twice), beta=0.3 * mean))
    with pytest.raises(AssertionError):
        assert_same(objective(name, weighted, 100), objective(name, rows(name, X, TARGETS[y]), 100))


@pytest.mark.parametrize(("name", "y"), CASES)
def test_weight_zero_is_the_row_left_out(name: str, y: str) -> None:
    kept = COUNTS > 0
    weighted = rows(name, X, TARGETS[y], COUNTS)
    without = rows(name, X[kept], TARGETS[y][kept], COUNTS[kept])
    assert_same(objective(name, weighted, len(weighted)), objective(name, without, len(without)))
    only = rows(name, X, TARGETS[y], kept)
    unweighted = rows(name, X[kept], TARGETS[y][kept])
    assert_same(objective(name, only, len(only)), objective(name, unweighted, len(unweighted)))


@pytest.mark.parametrize(("name", "y"), CASES)
@pytest.mark.parametrize("factor", [1e-9, 1 / 3, 1e300])
def test_only_the_ratios_matter(name: str, y: str, factor: float) -> None:
    weights = COUNTS + 0.25
    expected = objective(name, rows(name, X, TARGETS[y], weights), N)
    assert_same(objective(name, rows(name, X, TARGETS[y], factor * weights), N), expected)


@every_target
def test_batches_estimate_the_weighted_sum(y: np.ndarray) -> None:
    whole = rows("dspp", X, y, COUNTS)
    parts = [whole[numbers] for numbers in batch_indices(len(whole), 8, seed=0, epoch=0)]
    values = [objective("dspp", part, len(whole))[0] * len(part) / len(whole) for part in parts]
    assert sum(values) == pytest.approx(objective("dspp", whole, len(whole))[0], rel=1e-9)


@every_target
def test_the_validation_nll_is_weighted(y: np.ndarray) -> None:
    model = build(SPECS["dspp"].model, torch.from_numpy(X), y[:1].size, seed=1)
    expected = nll(model, rows("dspp", *repeat(X, y)))
    assert nll(model, rows("dspp", X, y, COUNTS)) == pytest.approx(expected, rel=TOLERANCE)


def test_an_objective_without_weights_is_refused() -> None:
    def mine(likelihood: Any, latent: Any, y: Any, kl: Any, num_data: int, *, beta: float, gamma: float) -> Tensor:
        value: Tensor = likelihood.log_prob(latent, y).mean() - kl / num_data
        return value

    with OBJECTIVES.temporarily("predictive", mine):  # type: ignore[arg-type]
        fit(SPECS["dspp"], X, Y, config=CONFIG)
        with pytest.raises(InputError, match="'predictive' expected rows without weights"):
            fit(SPECS["dspp"], X, Y, weights=COUNTS, config=CONFIG)


# ---------------------------------------------------------------- a run


def state(result: Any) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in result.model.state_dict().items()}


def test_a_run_with_equal_weights_is_the_run_without_weights() -> None:
    val = {"X_val": X[:9], "y_val": Y[:9]}
    plain = fit(SPECS["dspp"], X, Y, **val, config=CONFIG)
    equal = fit(SPECS["dspp"], X, Y, **val, weights=np.full(N, 8.0), weights_val=np.full(9, 0.5), config=CONFIG)
    assert state(plain) == state(equal)
    assert [e.val_nll for e in plain.history] == [e.val_nll for e in equal.history]
    other = fit(SPECS["dspp"], X, Y, **val, weights=COUNTS, config=CONFIG)
    assert state(plain) != state(other)


def test_weights_of_validation_rows_choose_the_epoch() -> None:
    val: dict[str, Any] = {"X_val": X, "y_val": Y, "config": CONFIG}
    plain, weighted = fit(SPECS["dspp"], X, Y, **val), fit(SPECS["dspp"], X, Y, **val, weights_val=COUNTS)
    repeated = fit(SPECS["dspp"], X, Y, X_val=repeat(X)[0], y_val=repeat(Y)[0], config=CONFIG)
    for mine, same, other in zip(weighted.history, repeated.history, plain.history, strict=True):
        assert mine.val_nll == pytest.approx(same.val_nll, rel=1e-9)
        assert mine.val_nll != pytest.approx(other.val_nll, rel=1e-3)


def test_a_checkpoint_belongs_to_its_weights(tmp_path: Path) -> None:
    path = tmp_path / "run.checkpoint"
    first = fit(SPECS["dspp"], X, Y, weights=COUNTS, config=CONFIG, checkpoint=path)
    again = fit(SPECS["dspp"], X, Y, weights=COUNTS, config=CONFIG, checkpoint=path, resume=True)
    assert state(first) == state(again)
    for other in (None, COUNTS + 1):
        with pytest.raises(CheckpointError):
            fit(SPECS["dspp"], X, Y, weights=other, config=CONFIG, checkpoint=path, resume=True)


# ---------------------------------------------------------------- scales, guard and mixing


@every_target
def test_scales_are_weighted(y: np.ndarray) -> None:
    kept = COUNTS > 0
    for array in (X, y.reshape(N, -1)):
        real = Real(("y",) * array.shape[1], "gaussian")
        one, other = (
            real.fit(array[kept], Place("y"), COUNTS[kept]).scale,
            real.fit(np.repeat(array, COUNTS, axis=0), Place("y")).scale,
        )
        np.testing.assert_allclose([one.mean, one.scale], [other.mean, other.scale], rtol=1e-12)
    far = Standardizer.fit(X[kept] * 1e-3 + 1e8, COUNTS[kept].astype(float))
    near = Standardizer.fit(repeat(X * 1e-3 + 1e8)[0])
    np.testing.assert_allclose([far.mean, far.scale], [near.mean, near.scale], rtol=1e-7)


@every_target
def test_the_guard_is_weighted(y: np.ndarray) -> None:
    y = y.reshape(N, -1)
    kept = COUNTS > 0
    one = Guard.fit(y[kept], 0.01, COUNTS[kept].astype(float))
    twice = Guard.fit(y[kept], 0.01, 3.0 * COUNTS[kept])
    for mine, same in ((one.mean, twice.mean), (one.var, twice.var), (one.log_weights, twice.log_weights)):
        torch.testing.assert_close(mine, same, rtol=TOLERANCE, atol=TOLERANCE)
    repeated = np.repeat(y, COUNTS, axis=0)
    np.testing.assert_allclose(one.mean[0], np.nanmean(repeated, axis=0), rtol=1e-10)
    np.testing.assert_allclose(one.var[0], np.nanvar(repeated, axis=0), rtol=1e-10)


def test_bins_of_the_guard_have_the_weight_of_their_rows() -> None:
    y = np.linspace(-1.0, 1.0, 160)[:, None]
    flat, heavy = Guard.fit(y, 0.01), Guard.fit(y, 0.01, np.where(y[:, 0] > 0, 3.0, 1.0))
    equal = Guard.fit(y, 0.01, np.full(160, 2.0))
    for name in ("mean", "var", "log_weights"):
        torch.testing.assert_close(getattr(flat, name), getattr(equal, name), rtol=1e-12, atol=1e-12)
    assert heavy.log_weights.exp().sum() == pytest.approx(1.0)
    torch.testing.assert_close(
        heavy.log_weights.exp()[:8], (1.0 - WIDE) * torch.tensor([1.0] * 4 + [3.0] * 4, dtype=torch.float64) / 16
    )
    Guard.fit(y, 0.01, np.where(y[:, 0] > 0, 1.0, 1e-300))  # finite


def test_mixing_follows_heavy_rows() -> None:
    """One kind is right for the first half of the rows, the other for the second."""
    half, y = np.repeat([0.0, 1.0], 60), np.zeros((120, 1))

    def kind(wrong: np.ndarray) -> Predictive:
        mean, one = torch.from_numpy(3.0 * wrong)[None], torch.tensor(1.0, dtype=torch.float64)
        return NormalMixture(one.log()[None], mean, torch.zeros_like(mean), 0.3 * one)

    group = HeldOutRows(np.arange(120), y, {"first": [kind(half)], "second": [kind(1.0 - half)]})
    guard, real = Guard.fit(RANDOM.normal(size=(120, 1)), 0.01), Real(("y",), "gaussian")
    shares = {w: stack([group], guard, real, np.where(half > 0, w, 1.0)).weights["second"] for w in (0.25, 1.0, 4.0)}
    assert shares[0.25] < shares[1.0] - 0.1
    assert shares[1.0] == pytest.approx(0.5, abs=1e-6)
    assert shares[4.0] > shares[1.0] + 0.1
    one, scaled = (stack([group], guard, real, c * (1.0 + half)) for c in (1.0, 1e5))
    assert one.weights["first"] == pytest.approx(scaled.weights["first"], rel=1e-9)


# ---------------------------------------------------------------- scores


def predicted(y: np.ndarray) -> Predictive:
    generator = torch.Generator().manual_seed(4)
    count, outputs = len(y), y[:1].size
    log_weights = torch.tensor([0.6, 0.4], dtype=torch.float64).log()
    mean = torch.randn(2, N, outputs, generator=generator, dtype=torch.float64)
    noise = torch.full((outputs,), 0.2, dtype=torch.float64)
    whole: Predictive = (
        NormalMixture(log_weights, mean[..., 0], mean[..., 0].square(), noise[0])
        if outputs == 1
        else MultivariateNormalMixture(log_weights, mean, torch.diag_embed(mean.square()), noise)
    )
    return whole if count == N else whole.rows(torch.from_numpy(np.repeat(np.arange(N), COUNTS)))


@every_target
def test_every_score_is_that_of_the_repeated_rows(y: np.ndarray) -> None:
    kept = torch.from_numpy(COUNTS > 0)
    (repeated,) = repeat(y)
    expected = Comparison(predicted(repeated), repeated).scores()
    weighted = Comparison(predicted(y), y, COUNTS).scores()
    without = Comparison(predicted(y).rows(kept), y[kept.numpy()], 7.0 * COUNTS[COUNTS > 0]).scores()
    assert set(expected) == set(weighted) == {name for name in METRICS if name != "mrmse" or y.ndim == 2}
    for name, value in expected.items():
        if name != "pit_pvalue":  # which knows how many different rows there are
            assert weighted[name] == pytest.approx(value, rel=1e-10), name
        assert without[name] == pytest.approx(weighted[name], rel=1e-10), name
    assert weighted["pit_pvalue"] > expected["pit_pvalue"]
    assert weighted["nll"] != pytest.approx(Comparison(predicted(y), y).scores()["nll"], rel=1e-3)


@every_target
def test_calibration_is_weighted_and_counts_what_rows_tell(y: np.ndarray) -> None:
    (repeated,) = repeat(y)
    one, other = (
        calibration_of(Comparison(predicted(y), y, COUNTS)),
        calibration_of(Comparison(predicted(repeated), repeated)),
    )
    for level in one.coverage:
        assert one.coverage[level] == pytest.approx(other.coverage[level])
        assert one.width[level] == pytest.approx(other.width[level])
    assert one.num_rows == round(COUNTS.sum() ** 2 / np.square(COUNTS).sum())
    assert calibration_of(Comparison(predicted(y), y, np.ones(N))).num_rows == N
    assert isinstance(one.verdict(), str)


# ---------------------------------------------------------------- estimators


def bits(model: Any) -> bytes:
    mixture = model.predict_dist(X)
    return b"".join(part.tobytes() for part in (mixture.mean, mixture.std))


@every_target
@pytest.mark.parametrize("more", [{}, {"conformal": True}], ids=["plain", "conformal"])
def test_a_fit_without_rows_of_weight_zero_is_the_same_fit(y: np.ndarray, more: dict[str, Any]) -> None:
    kept = COUNTS > 0
    one = dspp.DSPPRegressor(**SINGLE, **more).fit(X, y, sample_weight=COUNTS)
    other = dspp.DSPPRegressor(**SINGLE, **more).fit(X[kept], y[kept], sample_weight=8.0 * COUNTS[kept])
    assert bits(one) == bits(other)
    assert one.fitted_.metrics == other.fitted_.metrics
    assert one.fitted_.num_rows == other.fitted_.num_rows
    assert any("of weight 0 are left out" in str(note) for note in one.fitted_.notes)
    plain = dspp.DSPPRegressor(**SINGLE, **more).fit(X[kept], y[kept])
    assert bits(plain) != bits(one)
    equal = dspp.DSPPRegressor(**SINGLE, **more).fit(X[kept], y[kept], sample_weight=np.full(kept.sum(), 2.0))
    assert bits(plain) == bits(equal)


@pytest.mark.parametrize("members", [1, 2, "auto"])
def test_a_model_believes_heavy_rows(members: int | str) -> None:
    """Half of the rows say 1, the other half, which weigh a ninth, say −1; the inputs do not tell them apart."""
    y = np.where(np.arange(80) % 2, 1.0, -1.0)
    settings = SINGLE | {"members": members, "epochs": 40, "jobs": 1}
    model = dspp.DSPPRegressor(**settings).fit(np.repeat(X, 2, axis=0), y, sample_weight=np.where(y > 0, 9.0, 1.0))
    assert model.predict(X).mean() == pytest.approx(0.8, abs=0.15)
    lighter = model.evaluate(X, np.ones(N))["nll"]
    assert lighter < model.evaluate(X, -np.ones(N))["nll"]


def test_an_ensemble_gives_its_weights_to_every_part() -> None:
    settings = Settings(**SINGLE | {"members": 2})
    table = attach_roles(attach_targets(to_table(X), BOTH), COUNTS)
    new = attach_roles(attach_targets(to_table(X[:5]), BOTH[:5]), [1.0, 2.0, 3.0, 0.0, 1.0])
    made = prepare(table, settings, validation=new)
    assert isinstance(made.train, Rows)
    assert made.validation.weights is not None
    both = made.train.join(made.validation)
    assert both.weights is not None
    assert len(both) == (COUNTS > 0).sum() + 4
    np.testing.assert_allclose(both.weights[:-4] / both.weights[0], COUNTS[COUNTS > 0] / COUNTS[COUNTS > 0][0])
    np.testing.assert_allclose(both.weights[-4:], np.array([1.0, 2.0, 3.0, 1.0]) / 1.75)
    plain = made.train.join(Rows(made.validation.x, made.validation.y))
    assert plain.weights is not None
    assert plain.weights[-4:].tolist() == [1.0] * 4
    assert Rows(both.x, both.y).join(Rows(both.x, both.y)).weights is None


@pytest.fixture(scope="module")
def model() -> Any:
    return dspp.DSPPRegressor(**SINGLE).fit(X, Y, sample_weight=COUNTS)


def test_scores_of_an_estimator_take_weights(model: Any) -> None:
    X2, y2 = repeat(X, Y)
    weights = {"sample_weight": COUNTS}
    assert model.score(X, Y, **weights) == pytest.approx(model.score(X2, y2), rel=1e-9)
    assert model.score_nll(X, Y, **weights) == pytest.approx(model.score_nll(X2, y2), rel=1e-9)
    assert model.score_crps(X, Y, **weights) == pytest.approx(model.score_crps(X2, y2), rel=1e-9)
    got, expected = model.evaluate(X, Y, **weights), model.evaluate(X2, y2)
    assert got["coverage80"] == pytest.approx(expected["coverage80"], rel=1e-9)
    assert model.calibration(X, Y, **weights).coverage[0.9] == pytest.approx(expected["coverage90"])
    assert len(model.evaluation(X, Y, **weights).table) == (COUNTS > 0).sum()


def test_validation_rows_have_weights_of_their_own() -> None:
    one = dspp.DSPPRegressor(**SINGLE).fit(X, Y, X[:9], Y[:9], sample_weight_val=np.arange(9.0))
    assert one.fitted_.metrics["nll"] == pytest.approx(one.score_nll(X[:9], Y[:9], np.arange(9.0)))
    with pytest.raises(InputError, match="sample_weight_val: expected X_val and y_val too"):
        dspp.DSPPRegressor(**SINGLE).fit(X, Y, sample_weight_val=np.arange(9.0))


BAD: dict[str, tuple[Any, str]] = {
    "too few": (COUNTS[1:], "sample_weight: expected 40 rows, as many as in X, got 39"),
    "negative": (np.where(np.arange(N) == 5, -1.0, 1.0), "sample_weight: row 5: expected a weight ≥ 0, got -1; use 0"),
    "NaN": (np.where(np.arange(N) == 5, np.nan, 1.0), "sample_weight.*5.*(NaN|nan)"),
    "inf": (np.where(np.arange(N) == 5, np.inf, 1.0), "sample_weight.*5.*inf"),
    "text": (["heavy"] * N, "sample_weight.*heavy"),
    "zeros": (np.zeros(N), "sample_weight: expected some positive weights, got only zeros"),
    "two columns": (X[:, :2] ** 2, r"sample_weight: expected shape \(40,\), got \(40, 2\)"),
}


@pytest.mark.parametrize(("weights", "problem"), BAD.values(), ids=BAD.keys())
def test_what_cannot_be_a_weight_is_refused(model: Any, weights: Any, problem: str) -> None:
    for call in (dspp.DSPPRegressor(**SINGLE).fit, model.score, model.evaluate, model.calibration):
        with pytest.raises(InputError, match=problem):
            call(X, Y, sample_weight=weights)


def test_an_output_needs_rows_with_weight() -> None:
    weights = np.isnan(BOTH[:, 1]).astype(float)
    for members in (1, 2):
        with pytest.raises(InputError, match=r"column 1: expected at least 2 observed values, got 0 \(rows of weight"):
            dspp.DSPPRegressor(**SINGLE | {"members": members}).fit(X, BOTH, sample_weight=weights)


def test_weights_are_normalised() -> None:
    np.testing.assert_allclose(check_weights([0.0, 1.0, 3.0], 3), [0.0, 0.5, 1.5])
    np.testing.assert_allclose(check_weights([0.0, 1e308, 1e308], 3), [0.0, 1.0, 1.0])
    np.testing.assert_allclose(check_weights([[1], [3]], 2), [0.5, 1.5])


# ---------------------------------------------------------------- the command line


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "train.csv"
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": Y, "w": COUNTS / 4}).to_csv(path, index=False)
    return path


def run(*words: str, ok: bool = True) -> str:
    result = CliRunner().invoke(app, words)
    assert (result.exit_code == 0) == ok, result.output
    return result.stdout if ok else result.output


def test_the_command_line_takes_a_column_of_weights(table: Path) -> None:
    out, frame = table.with_name("m.dspp"), pd.read_csv(table)
    words = ["--members", "1", "--inducing", "6", "--width", "2", "--sites", "3", "--epochs", "3", "--restarts", "1"]
    command = ["fit", str(table), "--target", "y", "--out", str(out), *words, "--overwrite"]
    output = run(*command, "--weight", "w")
    assert f"{(COUNTS == 0).sum()} rows of weight 0 are left out" in " ".join(output.split())
    saved, inputs = dspp.load(out), frame[["a", "b"]]
    assert list(saved.feature_names_in_) == ["a", "b"]
    made = dspp.DSPPRegressor(**SINGLE).fit(inputs, frame["y"], sample_weight=frame["w"])
    assert np.array_equal(saved.predict(inputs), made.predict(inputs))
    scores = json.loads(run("evaluate", str(out), str(table), "--weight", "w", "--json"))
    for name, value in made.evaluate(inputs, frame["y"], sample_weight=frame["w"]).items():
        assert scores[name] == value, name
    assert scores["rows"] == (COUNTS > 0).sum()
    run(*command, "--weight", "w", "--validation", str(table))
    given = dspp.DSPPRegressor(**SINGLE).fit(
        inputs, frame["y"], inputs, frame["y"], sample_weight=frame["w"], sample_weight_val=frame["w"]
    )
    assert np.array_equal(dspp.load(out).predict(inputs), given.predict(inputs))


def test_the_command_line_says_what_is_wrong(table: Path, model: Any) -> None:
    frame = pd.read_csv(table)
    bad = table.with_name("bad.csv")
    frame.assign(w=[*frame["w"][:-1], -2.0], t=["x"] * N, e=[*frame["w"][:-1], None], z=0.0).to_csv(bad, index=False)
    command = ["fit", str(bad), "--target", "y", "--out", str(table.with_name("n.dspp"))]
    for column, problem in {
        "w": f"column 'w', row {N - 1} (line {N + 1}): expected a weight ≥ 0, got -2",
        "t": "expected a number, got 'x'",
        "e": "expected a weight ≥ 0, got no value",
        "z": "expected some positive weights, got only zeros",
        "ww": "expected a column 'ww' (--weight)",
        "y": "column 'y' is both --target and --weight",
    }.items():
        assert problem in " ".join(run(*command, "--weight", column, ok=False).split())
    without = table.with_name("without.csv")
    frame.drop(columns="w").to_csv(without, index=False)
    command[1] = str(table)
    problem = run(*command, "--weight", "w", "--validation", str(without), ok=False)
    assert "expected a column 'w' (--weight)" in " ".join(problem.split())
