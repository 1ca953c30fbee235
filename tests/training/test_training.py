"""Training: schedules, restarts, validation, recovery, determinism, and errors that say what to do."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from motion import robot_arm_motion
from runs import fit

import dspp
from dspp.batches import derive_seed
from dspp.codec import pack, unpack
from dspp.config import ModelConfig, TrainConfig
from dspp.encoding.scaling import Standardizer
from dspp.errors import InputError, NumericalError, TrainingDiverged
from dspp.metrics import evaluate
from dspp.model import build
from dspp.objectives import OBJECTIVES
from dspp.presets import Spec, preset
from dspp.training.adam import Adam
from dspp.training.run import TRIAL_ROWS, start_seed
from dspp.training.schedules import SCHEDULES

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(240, 3))
Y = np.sin(2 * X[:, 0]) * X[:, 1] + 0.1 * GENERATOR.normal(size=240)
X_VAL = GENERATOR.normal(size=(80, 3))
Y_VAL = np.sin(2 * X_VAL[:, 0]) * X_VAL[:, 1] + 0.1 * GENERATOR.normal(size=80)
QUICK = TrainConfig(epochs=8, batch_size=40, restarts=1, threads=1)


def small(name="dspp", **changes) -> Spec:
    return preset(name, **{"inducing": 20, "width": 2, "sites": 4, **changes})


@pytest.mark.parametrize("name", ["svgp", "od-svgp", "ppgpr", "dgp", "gamma-dgp", "bpdgp", "dspp"])
def test_every_preset_learns(name):
    """Well below the NLL of one Normal for all rows, which is what the noise-free part is worth."""
    config = QUICK.change(epochs=30)
    model = fit(small(name), X, Y, config=config).model
    nll = -model.predictor()(torch.tensor(X_VAL).float()).log_prob(torch.tensor(Y_VAL).float()).mean()
    ignorant = 0.5 * math.log(2 * math.pi * math.e * Y_VAL.var())
    assert nll < ignorant - 0.3


def test_several_outputs_learn():
    targets = np.stack([Y, -Y + 0.1 * X[:, 2], X[:, 0]], axis=1)
    result = fit(small(), X, targets, config=QUICK.change(epochs=20))
    mixture = result.model.predictor()(torch.tensor(X).float())
    assert mixture.mean.shape == (240, 3)
    residual = (mixture.mean - torch.tensor(targets)).square().mean(0)
    assert (residual < 0.6 * torch.tensor(targets).var(0)).all()


def test_the_arm_in_motion_is_learned_by_the_lmc_head():
    """Six outputs of the embedded data set: far better than a Normal a column, on rows not seen."""
    data = robot_arm_motion(2400)
    scale_x, scale_y = Standardizer.fit(data.X[:2000]), Standardizer.fit(data.y[:2000])
    rows, targets = scale_x.transform(data.X), scale_y.transform(data.y)
    spec = small(inducing=60, width=4)
    result = fit(spec, rows[:2000], targets[:2000], config=QUICK.change(batch_size=200))
    scores = evaluate(result.model.predictor()(rows[2000:]), targets[2000:])
    assert scores["nll"] < 0.5 * math.log(2 * math.pi * math.e) - 0.7
    assert scores["mrmse"] < 0.6


def test_outputs_that_were_not_all_observed_are_learned():
    """With a third of the entries missing, far better than a Normal a column on rows that are whole."""
    targets, whole = (np.stack([y, 0.5 * y + x[:, 2]], axis=1) for x, y in ((X, Y), (X_VAL, Y_VAL)))
    missing = GENERATOR.random(targets.shape) < 0.33
    missing[missing.all(1)] = False
    result = fit(small(), X, np.where(missing, np.nan, targets), config=QUICK.change(epochs=40))
    assert all(math.isfinite(epoch.train_nll) for epoch in result.history)
    residual = (result.model.predictor()(X_VAL).mean - torch.tensor(whole)).square().mean(0)
    assert (residual < 0.6 * torch.tensor(whole).var(0)).all()


def test_on_epoch_is_told_of_each_epoch():
    seen = []
    result = fit(small(), X, Y, X_val=X_VAL, y_val=Y_VAL, config=QUICK, on_epoch=seen.append)
    assert tuple(seen) == result.history
    assert (len(seen), result.planned_epochs, result.stopped) == (8, 8, "finished")
    seen.clear()
    result = fit(small(), X, Y, config=QUICK.change(restarts=2, restart_epochs=3), on_epoch=seen.append)
    assert tuple(seen) == result.history[3:], "those of trial starts are not told"


def test_a_module_of_the_users_in_front():
    features = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh())
    before = features[0].weight.detach().clone()
    result = fit(small(), X, Y, config=QUICK, features=features)
    assert result.model.gp_layers[0].inducing_points.shape[-1] == 5
    assert torch.equal(features[0].weight, before), "what the user gives is not changed"
    assert not torch.equal(result.model.features[0].weight, before), "but a copy is trained"


def test_nn_preset_trains_and_predicts_alone():
    result = fit(small("nn+dspp", features=(16, 8, 4)), X, Y, config=QUICK)
    predict = result.model.predictor()
    rows = torch.tensor(X).float()
    one_by_one = torch.cat([predict(rows[i : i + 1]).mean for i in range(5)])
    torch.testing.assert_close(one_by_one, predict(rows).mean[:5], atol=1e-5, rtol=1e-4)


def test_schedules():
    config = TrainConfig(warmup=0.1, milestones=(0.5, 0.8), decay=0.1)
    assert [SCHEDULES["step"](t, config) for t in (0.0, 0.49, 0.5, 0.79, 0.8)] == pytest.approx([1, 1, 0.1, 0.1, 0.01])
    cosine = SCHEDULES["cosine"]
    assert cosine(0.05, config) == pytest.approx(0.5)
    assert cosine(0.0, config.change(warmup=1e-4)) == 1.0  # never above
    assert cosine(0.1, config) == pytest.approx(1)
    assert cosine(0.55, config) == pytest.approx(0.5)
    assert cosine(1.0, config) == pytest.approx(0)
    assert SCHEDULES["constant"](0.7, config) == 1


def test_the_schedule_is_followed():
    config = QUICK.change(schedule="step", milestones=(0.5,), learning_rate=0.01)
    rates = [epoch.learning_rate for epoch in fit(small(), X, Y, config=config).history]
    assert rates == pytest.approx([0.01] * 4 + [0.001] * 4)


def test_weight_decay_is_for_the_network_only():
    model = build(small("nn+ppgpr", features=(8, 4)).model, torch.tensor(X).float())
    before = {name: value.clone() for name, value in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    Adam(model, weight_decay=1e-3).step(0.1)
    decayed = {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}
    assert decayed == {name for name, value in before.items() if name.startswith("features.") and value.any()}


def normalised_by_the_batch(model) -> list[bool]:
    return [m.training for m in model.features.modules() if isinstance(m, torch.nn.BatchNorm1d)]


@pytest.mark.parametrize(
    ("share", "expected"), [(0.5, [True] * 4 + [False] * 4), (1.0, [True] * 8), (0.0, [False] * 8)]
)
def test_batch_normalisation_uses_its_running_statistics_from_a_share_of_the_steps_on(share, expected):
    seen = []

    def score(model, rows):  # called at the end of each epoch
        seen.append(set(normalised_by_the_batch(model)))
        return 0.0

    spec, config = small("nn+dspp", features=(8, 4)), QUICK.change(freeze_statistics=share)
    fit(spec, X, Y, X_val=X_VAL, y_val=Y_VAL, config=config, score=score)
    assert seen[:8] == [{mode} for mode in expected]


def test_frozen_statistics_keep_the_noise_of_small_batches_out_of_the_intervals():
    """The target has no noise, so whatever a model takes for noise is that of batch normalisation."""
    config, found = QUICK.change(epochs=40, batch_size=12, learning_rate=0.01), {}
    for share in (0.5, 1.0):
        spec = small("nn+ppgpr", features=(32, 16))
        model = fit(spec, X, np.sin(X[:, 0]), config=config.change(freeze_statistics=share)).model
        mixture = model.predictor()(torch.tensor(X_VAL).float())
        found[share] = -mixture.log_prob(torch.sin(torch.tensor(X_VAL[:, 0]).float())).mean().item()
    assert found[0.5] < found[1.0] - 0.3


def test_the_best_of_the_restarts_is_trained_on():
    scores, scored = iter([0.5, -0.25, 0.125, -0.5]), []  # the last is that of the model at its end

    def score(model, rows):
        scored.append(model)
        return next(scores)

    result = fit(small(), X, Y, config=QUICK.change(restarts=3, epochs=3, learning_rate=0.0), score=score)
    assert result.restart_nll == (0.5, -0.25, 0.125)
    points = [model.gp_layers[0].inducing_points for model in scored]
    assert [torch.equal(points[3], one) for one in points[:3]] == [False, True, False], "the second was best"
    assert result.model is scored[3]
    assert len(result.history) == 3, "the epochs of the trial count"


def test_validation_keeps_the_best_state_and_stops_early():
    config = QUICK.change(epochs=200, patience=3, learning_rate=0.05, schedule="constant")
    result = fit(small(beta=0.0), X[:60], Y[:60], X_val=X_VAL, y_val=Y_VAL, config=config)
    values = [epoch.val_nll for epoch in result.history]
    assert len(values) < 200
    assert result.best_epoch == len(values) - 3
    assert (result.stopped, result.planned_epochs) == ("early", 200)
    assert min(values) == values[result.best_epoch - 1]
    mixture = result.model.predictor()(torch.tensor(X_VAL).float())
    nll = -mixture.log_prob(torch.tensor(Y_VAL).float()).mean().item()
    assert nll == pytest.approx(min(values), abs=1e-5)


def _broken_at(steps, how):
    """Make the objective fail at the given calls in the block."""
    original, calls = OBJECTIVES["predictive"], []

    def broken(*given, **options):
        calls.append(None)
        value = original(*given, **options)
        return how(value) if len(calls) in steps else value

    return OBJECTIVES.temporarily("predictive", broken)


class _NaNGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        return value.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * float("nan")


@pytest.mark.parametrize("how", [lambda v: v * float("nan"), _NaNGradient.apply], ids=["loss", "gradient"])
def test_non_finite_numbers_are_recovered_from_and_reported(how):
    with _broken_at({10, 23}, how):
        result = fit(small(), X, Y, config=QUICK)
    assert [r.step for r in result.recoveries] == [9, 18], "calls 10 and 23; the first sent training back to step 6"
    assert [r.back_to for r in result.recoveries] == [6, 12], "no step from 18 had succeeded"
    assert [r.rate_factor for r in result.recoveries] == [0.5, 0.25]
    assert all(torch.isfinite(p).all() for p in result.model.parameters())
    assert len(result.history) == 8


def test_every_epoch_has_a_training_nll():
    """Also where an epoch is a step or two."""
    for batch_size in (len(X), len(X) // 2):
        result = fit(small(), X, Y, config=QUICK.change(batch_size=batch_size))
        assert np.isfinite([e.train_nll for e in result.history]).all()


def test_everything_random_in_a_run_has_a_seed_of_its_own():
    """Starts, the rows on which they are compared, and of each start its batches, samples and dropout."""
    starts = [start_seed(5, trial) for trial in range(10)]
    assert starts[:3] == [derive_seed(5, trial) for trial in range(3)], "as they were, so that results are reproduced"
    seeds = [*starts, derive_seed(5, TRIAL_ROWS)]
    for start in starts:
        seeds += [derive_seed(start, epoch) for epoch in range(20)]
        seeds += [derive_seed(start, step, word) for step in range(20) for word in (1, 2)]
    assert len(set(seeds)) == len(seeds)


def test_starts_are_compared_on_rows_from_everywhere():
    """A table may be sorted: its first rows are not like the others."""
    seen = []

    def score(model, rows):
        seen.append(rows.x)
        return 0.0

    order = np.argsort(X[:, 0])
    fit(small(), X[order], Y[order], config=QUICK.change(restarts=3, epochs=2), trial_rows=30, score=score)
    assert len(seen) == 4  # three starts, and the model at its end
    assert all(torch.equal(rows, seen[0]) for rows in seen)
    assert len(seen[0]) == 30
    assert (seen[0][:, 0] > float(np.median(X[:, 0]))).sum() > 5


def test_a_network_that_normalises_batches_refuses_one_row():
    spec = preset("nn+ppgpr", inducing=4, features=(5, 3))
    with pytest.raises(
        InputError, match=r"expected at least 2 rows, got 1 of a batch of 1; pass more rows, or another"
    ):
        fit(spec, X[:5], Y[:5], config=QUICK.change(batch_size=1))


def test_divergence_is_bounded():
    with (
        _broken_at(set(range(5, 1000)), lambda v: v * float("nan")),
        pytest.raises(TrainingDiverged, match=r"step 0: .*2 returns.*Lower learning_rate"),
    ):
        fit(small(), X, Y, config=QUICK.change(max_recoveries=2))


def test_a_start_that_diverges_is_out_of_the_race():
    with _broken_at({1, 2, 3}, lambda v: v * float("nan")):
        result = fit(small(), X, Y, config=QUICK.change(restarts=2, max_recoveries=2, epochs=2))
    assert math.isnan(result.restart_nll[0])
    assert math.isfinite(result.restart_nll[1])
    with (
        _broken_at(set(range(1, 1000)), lambda v: v * float("nan")),
        pytest.raises(TrainingDiverged, match="all 2 starts diverged"),
    ):
        fit(small(), X, Y, config=QUICK.change(restarts=2, max_recoveries=1))


def test_numerical_errors_in_the_middle_are_recovered_from():
    def fail(value):
        raise NumericalError("layer 1 of 2: no luck")

    with _broken_at({8}, fail):
        result = fit(small(), X, Y, config=QUICK)
    assert [r.reason for r in result.recoveries] == ["layer 1 of 2: no luck"]


def test_fewer_inducing_points_than_asked_for_are_reported(caplog):
    few = np.repeat(X[:7], 20, axis=0)
    with caplog.at_level("INFO", logger="dspp"):
        result = fit(small(), few, np.arange(140.0) / 70 - 1, config=QUICK.change(epochs=1))
    assert result.model.gp_layers[0].inducing_points.shape[1] == 7
    assert "layer 1 of 2: expected 20 inducing points, but there are only 7 distinct rows" in result.notes[0]
    assert result.notes[0] in caplog.text


@pytest.mark.parametrize("mean", ["zero", "constant"])
def test_hidden_layers_without_a_linear_mean_start_with_inducing_points(mean):
    model = build(small(hidden_mean=mean, layers=3).model, torch.tensor(X).float())
    assert [layer.inducing_points.shape[1] for layer in model.gp_layers] == [20, 20, 20]
    assert model.notes == ()


@pytest.mark.parametrize("name", ["dspp", "dgp", "nn+ppgpr"])
def test_same_seed_same_bits_in_two_processes(name):
    """Promise 18."""
    script = (
        "import hashlib, numpy as np, torch\n"
        "from dspp import Rows, TrainConfig, fit, preset\n"
        "g = np.random.default_rng(0); X = g.normal(size=(200, 3)); y = np.sin(X[:, 0])\n"
        f"spec = preset({name!r}, inducing=20, width=2, sites=4)\n"
        "spec = spec if not spec.model.features else preset('nn+ppgpr', inducing=20, features=(8, 4))\n"
        "r = fit(spec, Rows.of(X, y), config=TrainConfig(epochs=3, batch_size=50, restarts=2, threads=1, seed=5))\n"
        "h = hashlib.sha256()\n"
        "[h.update(v.numpy().tobytes()) for v in r.model.state_dict().values()]\n"
        "h.update(r.model.predictor()(torch.tensor(X).float()).log_prob(torch.tensor(y).float()).numpy().tobytes())\n"
        "print(h.hexdigest())\n"
    )
    source = str(Path(dspp.__file__).parents[1])
    runs = [
        subprocess.run([sys.executable, "-c", f"import sys; sys.path.insert(0, {source!r})\n{script}"], **_CAPTURE)
        for _ in range(2)
    ]
    assert runs[0].stdout == runs[1].stdout
    assert len(runs[0].stdout.strip()) == 64


_CAPTURE = {"capture_output": True, "text": True, "check": True}


def test_another_seed_gives_another_model():
    first, second = (fit(small(), X, Y, config=QUICK.change(epochs=1, seed=seed)).model for seed in (0, 1))
    assert not torch.equal(first.gp_layers[0].mean.weight, second.gp_layers[0].mean.weight)


def test_the_bar_shows_what_matters_and_can_be_silent(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    fit(small(), X, Y, config=QUICK.change(epochs=2), progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    for word in ("training, epoch 2", "rows/s", "NLL", "%"):
        assert word in shown.err
    fit(small(), X, Y, config=QUICK.change(epochs=2), progress=False)
    monkeypatch.undo()
    fit(small(), X, Y, config=QUICK.change(epochs=2))  # not a terminal
    assert capsys.readouterr().err == ""


def test_threads_are_put_back():
    before = torch.get_num_threads()
    fit(small(), X, Y, config=QUICK.change(epochs=1, threads=before + 1))
    assert torch.get_num_threads() == before


BAD = {
    "X holds NaN": (lambda: fit(small(), np.where(X > 2, np.nan, X), Y), r"X.*NaN"),
    "y holds inf": (lambda: fit(small(), X, np.where(Y > 1, np.inf, Y)), r"y.*inf"),
    "y holds NaN": (lambda: fit(small(), X, np.where(Y > 1, np.nan, Y)), r"y.*NaN"),
    "a row without targets": (lambda: fit(small(), X, np.where(X > -9, np.nan, X)), r"y.*row 0"),
    "X_val holds NaN": (lambda: fit(small(), X, Y, X_val=np.full((1, 3), np.nan), y_val=[0.0]), r"X.*NaN"),
    "X is 1-D": (lambda: fit(small(), Y, Y), r"X"),
    "lengths differ": (lambda: fit(small(), X, Y[:-1]), r"240.*239|239.*240"),
    "empty": (lambda: fit(small(), X[:0], Y[:0]), r"X"),
    "narrower X_val": (lambda: fit(small(), X, Y, X_val=X_VAL[:, :2], y_val=Y_VAL), r"3"),
    "y_val of other outputs": (
        lambda: fit(small(), X, Y, X_val=X_VAL, y_val=X_VAL),
        r"validation: expected as many outputs as in the training rows, 1, got 3",
    ),
    "M < 1": (lambda: preset("dspp", inducing=0), r"inducing: expected at least 1, got 0"),
    "S < 1": (lambda: preset("dspp", sites=0), r"sites: expected at least 1, got 0"),
    "no layers": (lambda: preset("dspp", layers=0), r"layers: expected at least 1, got 0"),
    "a word for a number": (lambda: preset("dspp", width="3"), r"width: expected int, got '3'"),
    "NaN for a number": (lambda: preset("dspp", jitter=float("nan")), r"jitter: expected float"),
    "misspelt setting": (lambda: preset("dspp", widht=3), r"no setting 'widht'.*width"),
    "misspelt training setting": (lambda: TrainConfig().change(epoch=3), r"unknown setting 'epoch'.*epochs"),
    "unknown preset": (lambda: preset("dsp"), r"unknown preset 'dsp'.*dspp"),
    "unknown kernel": (lambda: fit(small(kernel="matern"), X, Y), r"unknown kernel 'matern'.*matern52"),
    "unknown rule": (lambda: fit(small(rule="qr4"), X, Y), r"unknown rule 'qr4'.*qr3"),
    "unknown topology": (lambda: fit(small(topology="ring"), X, Y), r"unknown topology 'ring'.*feedforward"),
    "unknown likelihood": (lambda: fit(small(likelihood="two"), X, Y), r"unknown likelihood 'two'.*gaussian"),
    "unknown schedule": (
        lambda: fit(small(), X, Y, config=TrainConfig(schedule="up")),
        r"unknown schedule 'up'",
    ),
    "unknown device": (
        lambda: fit(small(), X, Y, config=TrainConfig(device="gpu9")),
        r"device: expected 'cpu' or 'cuda', got 'gpu9'",
    ),
    "unknown covariance": (
        lambda: preset("dspp", covariance="half"),
        r"covariance: expected one of diagonal, full, got 'half'",
    ),
    "unknown dtype": (
        lambda: preset("dspp", dtype="float16"),
        r"dtype: expected one of float32, float64, got 'float16'",
    ),
    "noise below its floor": (lambda: fit(small(noise=1e-5), X, Y), r"noise_floor < noise"),
    "gamma of 1": (lambda: fit(small("gamma-dgp", gamma=1.0), X, Y), r"gamma: expected a number > 1, got 1.0"),
    "a grid too large": (lambda: fit(small(rule="qr1", sites=6, width=5), X, Y), r"got 7776 with.*QR3"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_says_what_to_do(case):
    call, message = BAD[case]
    with pytest.raises(InputError, match=message):
        call()


@pytest.fixture(scope="module")
def predictor():
    return fit(small(), X, Y, config=QUICK.change(epochs=1)).model.predictor()


def test_predictors_take_arrays_tensors_and_lists(predictor):
    expected = predictor(X[:3]).mean
    assert torch.equal(predictor(X[:3].tolist()).mean, expected)
    assert torch.equal(predictor(torch.tensor(X[:3])).mean, expected)


BAD_ROWS = {
    "one dimension": (X[0], "2"),
    "another width": (X[:, :2], "3"),
    "NaN": (np.where(X > 2, np.nan, X), "NaN"),
    "words": (np.array([["a", "b", "c"]]), "a"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_predictors_refuse_what_they_cannot_use(predictor, case):
    rows, message = BAD_ROWS[case]
    with pytest.raises(InputError, match=message):
        predictor(rows)


def test_settings_survive_json():
    for config in (
        ModelConfig(layers=3, features=(10, 5), kernel="rbf"),
        TrainConfig(patience=None, milestones=(0.25, 0.5)),
    ):
        tensors, plain = pack(config)
        assert unpack(type(config), tensors, json.loads(json.dumps(plain))) == config
    with pytest.raises(InputError, match="unknown setting 'colour'"):
        ModelConfig().change(colour=1)
