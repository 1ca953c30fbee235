"""Fitted models of several members: their predictions are mixed, and file, report and command line know them all."""

import json
import re
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from dspp import modelfile
from dspp.cli.app import app
from dspp.errors import InputError, ModelFileError
from dspp.estimators import from_fitted, load
from dspp.fitted import Fitted
from dspp.fitting import train
from dspp.modelfile import weights as limits
from dspp.numbers import percent
from dspp.predictive import NormalMixture
from dspp.prepare import prepare
from dspp.report import render, report
from dspp.report.columns import relevance
from dspp.report.members import settings_table
from dspp.settings import Settings
from dspp.table.memory import attach_targets, to_table
from tests.members.ensembles import join, of_kind
from tests.modelfile.test_modelfile import apart, with_header, with_tensors
from tests.outline import Outline

GENERATOR = np.random.default_rng(8)
X = GENERATOR.normal(size=(60, 2)) * [1.0, 40.0] + [300.0, 0.0]
Y = np.exp(0.3 * np.sin(X[:, 0]) + 0.01 * X[:, 1] + 0.1 * GENERATOR.normal(size=60)) * 1e3
BOTH = np.stack([Y, X[:, 1] - Y / 30], axis=1)
TINY = {"members": 1, "inducing": 6, "width": 2, "sites": 3, "epochs": 2, "batch_size": 60, "restarts": 1}
SHALLOW = {"layers": 1, "kernel": "rbf", "inducing": 9, "model_settings": {"dtype": "float64"}}
SHARES = (0.3, 0.7)


def fit(y: np.ndarray = Y, second: dict | None = None, **common) -> list[Fitted]:
    """Two models of the same prepared rows, from different seeds; `second` are further settings of the second."""
    settings = [Settings(**TINY | common), Settings(**TINY | common | {"random_state": 1} | (second or {}))]
    prepared = prepare(attach_targets(to_table(X), y), settings[0])
    return [train(prepared, one)[0] for one in settings]


def bits(predictive) -> dict[str, bytes]:
    return {f.name: getattr(predictive, f.name).numpy().tobytes() for f in fields(predictive)}


@pytest.fixture(scope="module")
def parts() -> list[Fitted]:
    return fit(second=SHALLOW)


@pytest.fixture(scope="module")
def joined(parts) -> Fitted:
    return join(parts, SHARES)


@pytest.fixture
def saved(joined, tmp_path) -> bytes:
    modelfile.save(joined, tmp_path / "saved.dspp")
    return (tmp_path / "saved.dspp").read_bytes()


# ---------------------------------------------------------------- the mixture


CASES = {
    "seeds": {},
    "kernel, layers and dtype": {"second": SHALLOW},
    "outputs": {"y": BOTH},
    "student-t": {"likelihood": "student-t", "second": SHALLOW},
    "log-normal": {"likelihood": "log-normal"},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_density_is_the_weighted_mean_of_the_members_densities(case):
    parts, y = fit(**case), torch.tensor(case.get("y", Y))
    whole, alone = join(parts, SHARES).distribution(X), [part.distribution(X) for part in parts]
    assert not torch.allclose(alone[0].mean, alone[1].mean, rtol=1e-6), "or one member would do"
    log_density = [np.log(share) + one.log_prob(y) for share, one in zip(SHARES, alone, strict=True)]
    torch.testing.assert_close(whole.log_prob(y), torch.logsumexp(torch.stack(log_density), 0), rtol=1e-12, atol=1e-12)
    mean = sum(share * one.mean for share, one in zip(SHARES, alone, strict=True))
    torch.testing.assert_close(whole.mean, mean, rtol=1e-6, atol=1e-6)  # weights of components are float32


@pytest.mark.parametrize("y", [Y, BOTH], ids=["one", "two"])
def test_cdf_quantiles_and_crps_are_those_of_the_mixture(y):
    float64 = {"model_settings": {"dtype": "float64"}}
    parts, y = fit(y, **float64), torch.tensor(y).reshape(len(y), -1)
    whole, alone = join(parts, SHARES).distribution(X), [part.distribution(X) for part in parts]
    levels = torch.tensor([0.05, 0.5, 0.9], dtype=torch.float64)
    for t, (one, *members) in enumerate(
        zip(whole.outputs(), *(part.outputs() for part in alone), strict=True),
    ):

        def mixed(x, members=members):
            return sum(share * member.cdf(x) for share, member in zip(SHARES, members, strict=True))

        torch.testing.assert_close(one.cdf(y[:, t]), mixed(y[:, t]), rtol=1e-10, atol=1e-12)
        places = one.quantile(levels)
        torch.testing.assert_close(mixed(places), levels[:, None].expand(3, len(y)), rtol=0, atol=1e-7)
        ends = one.quantile(torch.tensor([1e-9, 1 - 1e-9], dtype=torch.float64))
        low, high = torch.minimum(ends[0], y[:, t]), torch.maximum(ends[1], y[:, t])
        grid = low + torch.linspace(0, 1, 4001, dtype=torch.float64)[:, None] * (high - low)
        squares = (mixed(grid) - (grid >= y[:, t]).double()).square()  # CRPS = ∫ (F(x) − 1{y <= x})² dx
        numeric = torch.trapezoid(squares, dx=1.0, dim=0) * (high - low) / 4000
        crps = whole.crps(y.squeeze(-1)).reshape(len(y), -1)[:, t]
        torch.testing.assert_close(crps, numeric, rtol=5e-3, atol=0)


def test_one_member_is_the_model_alone(parts):
    alone = parts[0]
    assert alone.weights == (1.0,)
    expected = alone.outcome.decode(alone.members[0].model.predictor()(alone.scale_X.transform(X)))
    assert bits(alone.distribution(X)) == bits(expected)
    for same in (join([alone], [1.0]), join(parts, [1.0, 0.0]), join([alone, alone], [0.5, 0.5])):
        assert all(member is alone.members[0] for member in same.members)
        torch.testing.assert_close(
            same.distribution(X).log_prob(torch.tensor(Y)), alone.distribution(X).log_prob(torch.tensor(Y))
        )
    assert bits(join(parts, [1.0, 0.0]).distribution(X)) == bits(expected)


def test_no_prediction_is_a_negative_zero(parts, monkeypatch):
    zeros = NormalMixture(torch.zeros(1), torch.full((1, 60), -0.0), torch.ones(1, 60), torch.tensor(0.0))
    monkeypatch.setattr(Fitted, "predict", lambda *_: zeros)
    columns = parts[0].predictions(to_table(X), [0.5], components=True, above=1e9)
    assert columns["y_mean_0"].tolist() == columns["y_above_1000000000"].tolist() == [0.0] * 60
    assert not any(np.signbit(column).any() for column in columns.values())


@pytest.mark.parametrize("weights", [(0.3, 0.6), (0.5,), (1.5, -0.5), (float("nan"), 1.0), (0.0, 0.0), ()])
def test_weights_that_are_none_are_refused(joined, weights):
    with pytest.raises(InputError, match="expected"):
        replace(joined, weights=weights)


def test_members_have_the_same_likelihood(parts):
    with pytest.raises(InputError, match="likelihoods gaussian, student-t"):
        join([parts[0], fit(likelihood="student-t")[0]], SHARES)
    with pytest.raises(InputError, match="0 members"):
        replace(parts[0], members=())


# ---------------------------------------------------------------- the file


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_members_come_back_to_the_last_bit(case, tmp_path):
    joined, path = join(fit(**case), SHARES), tmp_path / "m.dspp"
    modelfile.save(joined, path)
    loaded = modelfile.load(path)
    before, after = joined.distribution(X), loaded.distribution(X)
    assert torch.equal(before.log_prob(torch.tensor(case.get("y", Y))), after.log_prob(torch.tensor(case.get("y", Y))))
    assert torch.equal(before.mean, after.mean)
    assert loaded.weights == joined.weights
    for old, new in zip(joined.members, loaded.members, strict=True):
        assert (old.spec, old.train, old.best_epoch, old.seconds) == (new.spec, new.train, new.best_epoch, new.seconds)
        assert (old.history, old.model.notes) == (new.history, new.model.notes)
    modelfile.save(loaded, tmp_path / "again.dspp")
    assert (tmp_path / "again.dspp").read_bytes() == path.read_bytes()
    assert torch.equal(load(path).predict_dist(X).torch.mean, after.mean)


def test_a_module_of_the_users_serves_the_members_that_had_it(tmp_path):
    module = nn.Sequential(nn.Linear(2, 3), nn.Tanh())
    joined, path = join(fit(features=module, second={"features": None}), SHARES), tmp_path / "m.dspp"
    modelfile.save(joined, path)
    assert bits(modelfile.load(path, module).distribution(X)) == bits(joined.distribution(X))
    with pytest.raises(ModelFileError, match="not its code"):
        modelfile.load(path)


def test_every_field_of_a_member_is_needed(saved, tmp_path):
    for name in apart(saved)[1]["members"][1]:
        (tmp_path / "m").write_bytes(with_header(saved, lambda h, name=name: h["members"][1].pop(name)))
        with pytest.raises(ModelFileError):
            modelfile.load(tmp_path / "m")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda h: h.update(members=[]), "members: expected 1 to 100, got 0"),
        (lambda h: h.update(members=h["members"] * 51), "members: expected 1 to 100, got 102"),
        (lambda h: h.update(members=h["members"] * 2), r"2 layers .* in 0 tensors"),
        (lambda h: h.update(members=h["members"][:1]), "1 members and 2 weights"),
        (lambda h: h.update(members=h["members"][:1], weights=[1.0]), "members.1.model.* not a tensor of this file"),
        (lambda h: h["members"].reverse(), "inducing_points"),
        (lambda h: h.update(members={}), "members: expected"),
        (lambda h: h.update(members=[[], []]), r"members\[0\]: expected"),
        (lambda h: h["members"][1]["spec"]["model"].update(likelihood="log-normal"), "likelihoods gaussian, log-norm"),
        (lambda h: h["members"][1]["spec"]["model"].update(likelihood="student-t"), "likelihood"),
        (lambda h: h["members"][1]["spec"]["model"].update(inducing=10**9), "ModelConfig.inducing"),
        (lambda h: h.update(weights=[0.3, 0.8]), "sum to 1"),
        (lambda h: h.update(weights=[1.0]), "2 members and 1 weights"),
        (lambda h: h.update(weights=[1.0, 0.0]), "positive"),
        (lambda h: h.update(weights=["0.3", "0.7"]), r"weights\[0\]: expected"),
        (lambda h: h.update(weights=[10**400, 0.7]), "model"),
    ],
)
def test_members_that_the_tensors_do_not_bear_out(change, message, saved, tmp_path):
    (tmp_path / "m").write_bytes(with_header(saved, change))
    with pytest.raises(ModelFileError, match=message):
        modelfile.load(tmp_path / "m")


@pytest.mark.parametrize(
    "name", ["members.2.model.a", "members.00.model.a", "members.model.a", "members.0.a", "model.a"]
)
def test_tensors_of_no_member_are_refused(name, saved, tmp_path):
    (tmp_path / "m").write_bytes(with_tensors(saved, {name: torch.zeros(1)}))
    with pytest.raises(ModelFileError, match="not a tensor of"):
        modelfile.load(tmp_path / "m")


def test_what_load_tries_is_limited_for_all_members_together(saved, tmp_path, monkeypatch):
    """Each member is small, but a hundred of them would not be."""

    def tried() -> list[bool]:
        return ["predictor" in vars(member) for member in modelfile.load(tmp_path / "m").members]

    (tmp_path / "m").write_bytes(saved)
    assert tried() == [True, True]
    monkeypatch.setattr(limits, "MAX_FACTORISED", 3 * 6**2 + 9**2 - 1)  # Σ W M² of both, less one
    assert tried() == [False, False]


# ---------------------------------------------------------------- what shows them


def test_the_report_shows_each_member(joined):
    shown = report(from_fitted(joined).evaluation(X, Y))
    assert shown.title == "Mixture of 2 models of y"
    page = Outline(render(shown))
    figures = [attributes.get("id") for attributes in page.all("figure")]
    assert {"members", "importance"} <= set(figures)
    assert "training" not in figures
    assert len(figures) == len(set(figures))
    text = " ".join(page.texts)
    assert all(percent(share) in text for share in SHARES)
    table = settings_table(joined)
    assert table.header == ("", "setting", "member 1", "member 2")
    rows = {name: values for _, name, *values in table.rows}
    assert (rows["inducing"], rows["epochs"]) == (["6", "9"], ["2", "2"])
    assert rows["rule"][1] == rows["width"][1] == "–", "a single layer has no hidden ones"
    assert text.count("learning_rate") == 1
    inverse = [m.model.gp_layers[0].kernel.lengthscale.detach().double().reciprocal().mean(0) for m in joined.members]
    expected = 0.3 * inverse[0] + 0.7 * inverse[1]
    np.testing.assert_allclose(relevance(joined), expected, rtol=1e-6)


def test_the_report_of_one_member_has_no_members(parts):
    page = Outline(render(report(from_fitted(parts[0]).evaluation(X, Y))))
    figures = [attributes.get("id") for attributes in page.all("figure")]
    assert "training" in figures
    assert "members" not in figures
    assert "ensemble" not in [section["id"] for section in page.all("section")]
    assert {"Model", "Objective", "Training"} < set(page.texts)


def run(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.output


def test_info_lists_members(joined, parts, tmp_path):
    several, one = tmp_path / "several.dspp", tmp_path / "one.dspp"
    modelfile.save(joined, several)
    modelfile.save(parts[0], one)
    text, known = run("info", several), json.loads(run("info", several, "--json"))
    for part in ("2 members", *map(percent, SHARES), "member 1", "member 2"):
        assert part in text
    assert re.search(r"inducing +6 +9 *\n", text)
    assert text.count("learning_rate") == 1
    assert [member["weight"] for member in known["members"]] == list(SHARES)
    kernels = [member.spec.model.kernel for member in joined.members]
    assert [member["settings"]["model"]["kernel"] for member in known["members"]] == kernels
    assert len(set(kernels)) == 2
    text, known = run("info", one), json.loads(run("info", one, "--json"))
    assert "Members" not in text
    assert "members" not in known
    assert known["settings"]["model"]["inducing"] == 6
    trained, last = joined.members
    closed_form = of_kind(last, "gp", history=(), best_epoch=None)
    modelfile.save(replace(joined, members=(trained, closed_form)), several)
    text, known = run("info", several), json.loads(run("info", several, "--json"))
    assert re.search(r"learning_rate +[0-9.]+ +– *\n", text)
    assert "nan" not in text
    assert [member["epochs"] for member in known["members"]] == [2, None]
    assert known["members"][1]["settings"]["training"] == {"seed": last.train.seed}
    out = tmp_path / "predictions.csv"
    np.savetxt(tmp_path / "new.csv", X, delimiter=",", header="a,b", comments="")
    run("predict", several, tmp_path / "new.csv", "--out", out)
    assert len(Path(out).read_text().splitlines()) == len(X) + 1
