"""Conformal intervals of ensembles, whose calibration scores are those of rows that some members held out."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from reference import assert_close
from torch import Tensor
from typer.testing import CliRunner

import dspp
from dspp import modelfile
from dspp.calibration import Conformal
from dspp.cli.app import app
from dspp.errors import InputError, ModelFileError
from dspp.fitted import Fitted
from dspp.fitting import CHOSE_EPOCH, OUT_OF_FOLD
from dspp.predictive import MultivariateNormalMixture, NormalMixture
from dspp.report import report
from dspp.table.discrete import is_discrete
from dspp.table.memory import attach_targets, to_table
from dspp.table.messages import Place
from tests.members.ensembles import of_kind
from tests.modelfile.test_modelfile import apart, with_header, with_tensors

F64, NAN = torch.float64, math.nan


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(mean: Tensor, std: float) -> NormalMixture:
    """One component per row."""
    var = torch.full((1, len(mean)), std**2, dtype=F64)
    return NormalMixture(torch.zeros(1, dtype=F64), mean.reshape(1, -1), var, torch.tensor(0.0, dtype=F64))


def folds_of(rows: int, J: int, shift: float = 0.7, seed: int = 0) -> dict[int, NormalMixture]:
    """Predictions that differ between folds, of two components each."""
    g, found = seeded(seed), {}
    for j in range(J):
        mean = shift * torch.randn(2, rows, generator=g, dtype=F64) + torch.tensor([[-1.0], [1.0]], dtype=F64)
        var = 0.1 + torch.rand(2, rows, generator=g, dtype=F64)
        found[j] = NormalMixture(torch.tensor([0.4, 0.6], dtype=F64).log(), mean, var, torch.tensor(0.0, dtype=F64))
    return found


def grouped(folds: dict[int, NormalMixture], fold: Tensor) -> NormalMixture:
    index = [(fold == j).nonzero().flatten() for j in folds]
    parts = [folds[j].rows(i) for j, i in zip(folds, index, strict=True)]
    return NormalMixture.concat(parts).rows(torch.cat(index).argsort())


def calibrated(n: int, J: int, seed: int = 1) -> tuple[Conformal, Tensor, Tensor]:
    """Scores of n rows, and by hand: the score of each row and its fold."""
    fold = torch.randperm(n, generator=seeded(seed)) % J
    mixture = grouped(folds_of(n, J, seed=seed), fold)
    y = 1.5 * torch.randn(n, generator=seeded(seed + 1), dtype=F64)
    return Conformal.fit(mixture, y, fold), (mixture.cdf(y) - 0.5).abs(), fold


# ---------------------------------------------------------------- the set


def test_scores_are_sorted_within_folds_and_nowhere_else() -> None:
    found, scores, fold = calibrated(23, 4)
    assert found.fold.tolist() == sorted(fold.tolist())
    for j in range(4):
        assert torch.equal(found.scores[found.fold == j], scores[fold == j].sort().values)
    assert torch.equal(found.threshold(0.7), Conformal(scores.sort().values).threshold(0.7))
    assert (found.folds, found.counts) == ([0, 1, 2, 3], [23])


@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.95])
@pytest.mark.parametrize("J", [2, 5])
def test_the_interval_is_the_hull_of_the_set(J: int, coverage: float) -> None:
    """Against the definition, y by y: #{i : s_i >= |F_j(i)(y) − ½|} + 1 > (1 − c)(n + 1)."""
    found, scores, fold = calibrated(40, J)
    new = folds_of(6, J, seed=9)
    lower, upper = found.interval(new, coverage)
    grid = torch.linspace(-8, 8, 40_001, dtype=F64)
    step = (grid[1] - grid[0]).item()
    for row in range(6):
        count = torch.zeros(len(grid), dtype=torch.int64)
        for j in range(J):
            out = (new[j].rows([row]).cdf(grid[:, None])[:, 0] - 0.5).abs()
            count += (scores[fold == j][None] >= out[:, None]).sum(1)
        inside = grid[count + 1 > (1 - coverage) * 41]
        assert inside.min() - step <= lower[row] <= inside.min()
        assert inside.max() <= upper[row] <= inside.max() + step


def test_one_fold_is_plain_split_conformal() -> None:
    mixture = folds_of(50, 1)[0]
    y = torch.randn(50, generator=seeded(), dtype=F64)
    plain, cross = Conformal.fit(mixture, y), Conformal.fit(mixture, y, torch.zeros(50, dtype=torch.int64))
    new = folds_of(9, 1, seed=3)
    for coverage in (0.1, 0.5, 0.9):
        for one, other in zip(plain.interval(new[0], coverage), cross.interval(new, coverage), strict=True):
            assert_close(one, other, 1e-9)
    for coverage in (0.99, 0.999):  # (n + 1) c > n
        assert all(end.isinf().all() for end in cross.interval(new, coverage))
        assert plain.why_infinite(coverage) == cross.why_infinite(coverage) != ""


def test_a_target_that_ties_with_a_score_is_inside() -> None:
    """Equal predictions in all folds and for all rows, as of a model that ignores x: the ends are calibration rows."""
    same = normal(torch.zeros(19, dtype=F64), 1.0)
    y = torch.randn(19, generator=seeded(4), dtype=F64)
    found = Conformal.fit(same, y, torch.arange(19) % 3)
    lower, upper = found.interval(dict.fromkeys(range(3), same), 0.8)
    inside = (y >= lower) & (y <= upper)
    assert int(inside.sum()) == 16  # ⌈20 · 0.8⌉
    assert_close(upper[0], y[inside].abs().max(), 1e-9)


def test_intervals_do_not_depend_on_batches() -> None:
    found, *_ = calibrated(60, 5)
    new = folds_of(8, 5, seed=9)
    lower, upper = found.interval(new, 0.9)
    for row in range(8):
        alone = found.interval({j: one.rows([row]) for j, one in new.items()}, 0.9)
        assert_close(alone[0][0], lower[row], 1e-10)
        assert_close(alone[1][0], upper[row], 1e-10)


def test_the_guarantee_holds_for_members_that_are_wrong() -> None:
    """Members predict the mean of the rows they saw, three times too narrow; tables of 30 rows in 5 folds.

    The guarantee is 1 − 2α − √(2/n), but coverage is usually close to 1 − α.
    """
    tables, n, J, new, coverage = 100, 30, 5, 100, 0.8
    rng, fold = np.random.default_rng(0), torch.arange(n) % J
    shares, plain = [], []
    for _ in range(tables):
        y = torch.from_numpy(rng.standard_t(3, size=n + new) + 5.0)
        mean = torch.stack([y[:n][fold != j].mean() for j in range(J)])
        found = Conformal.fit(normal(mean[fold], 0.4), y[:n], fold)
        lower, upper = found.interval({j: normal(mean[j].reshape(1), 0.4) for j in range(J)}, coverage)
        shares.append(((y[n:] >= lower) & (y[n:] <= upper)).double().mean().item())
        lower, upper = normal(mean[:1], 0.4).interval(coverage)
        plain.append(((y[n:] >= lower) & (y[n:] <= upper)).double().mean().item())
    error = np.std(shares) / math.sqrt(tables)
    assert error < 0.01
    assert np.mean(plain) < coverage - 0.2, "or there would be nothing to mend"
    assert coverage - 3 * error <= np.mean(shares) <= coverage + 0.06 + 3 * error


def test_each_output_has_its_own_scores_and_missing_ones_do_not_count() -> None:
    def several(rows: int, scale: float) -> MultivariateNormalMixture:
        cov = (scale * torch.eye(2, dtype=F64)).expand(1, rows, 2, 2)
        noise = torch.full((2,), 0.1, dtype=F64)
        return MultivariateNormalMixture(torch.zeros(1, dtype=F64), torch.zeros(1, rows, 2, dtype=F64), cov, noise)

    fold = torch.arange(40) % 2
    both = MultivariateNormalMixture.concat([several(20, 1.0), several(20, 2.0)])
    mixture = both.rows(fold.argsort(stable=True).argsort())
    y = torch.randn(40, 2, generator=seeded(), dtype=F64)
    y[:30, 1] = NAN
    y[31:40:2, 1] = NAN  # fold 1 never observed the second output
    found, new = Conformal.fit(mixture, y, fold), {0: several(3, 1.0), 1: several(3, 2.0)}
    assert found.counts == [40, 5]
    lower, upper = found.interval(new, 0.8)
    assert lower.shape == upper.shape == (3, 2)
    for t, seen in enumerate((fold >= 0, ~y[:, 1].isnan())):
        part = grouped({j: new[j].rows([0] * 40).outputs()[t] for j in (0, 1)}, fold).rows(seen.nonzero().flatten())
        alone = Conformal.fit(part, y[seen, t], fold[seen])
        ends = alone.interval({j: one.outputs()[t] for j, one in new.items()}, 0.8)
        assert torch.equal(ends[0], lower[:, t])
        assert torch.equal(ends[1], upper[:, t])
    assert found.interval(new, 0.9)[0].isinf().all(0).tolist() == [False, True]
    assert found.why_infinite(0.9, ["a", "b"]) == "got 5 calibration rows, need at least 9 (b)"


@pytest.mark.parametrize(
    ("scores", "fold", "complaint"),
    [
        ([0.2, 0.1], [0, 0], "out of order"),
        ([0.1, 0.6], [0, 0], r"outside \[0, 0.5\]"),
        ([0.1, NAN], [0, 1], r"outside \[0, 0.5\]"),
        ([1.0, 1.0], [0, 1], r"outside \[0, 0.5\]"),
        ([0.1, 0.2], [-1, 0], r"outside \[0, 0.5\]"),
        ([0.1, 0.2], [1, 0], "folds in ascending order"),
        ([0.1, 0.2], [0], "folds in ascending order"),
        ([0.1, 0.2], [0.0, 1.0], "folds in ascending order"),
        ([], [], r"got \(0,\)"),
    ],
)
def test_scores_that_are_none_are_refused(scores: list[float], fold: list[float], complaint: str) -> None:
    with pytest.raises(InputError, match=rf"{complaint}.*use Conformal.fit"):
        Conformal(torch.tensor(scores, dtype=F64), torch.tensor(fold) if fold else torch.empty(0).long())


def test_predictions_of_other_folds_are_refused() -> None:
    found, *_ = calibrated(20, 3)
    for folds in ({}, folds_of(4, 2)):
        with pytest.raises(InputError, match=r"expected predictions for folds \[0, 1, 2\]"):
            found.interval(folds, 0.9)
    with pytest.raises(InputError, match="coverage"):
        found.interval(folds_of(4, 3), 1.0)


# ---------------------------------------------------------------- fitted ensembles

RNG = np.random.default_rng(3)
X = RNG.normal(size=(90, 2))
Y = X[:, 0] + 0.3 * RNG.standard_t(3, size=90)
BOTH = np.column_stack([Y, X[:, 1] + RNG.normal(size=90)])
TINY = {"members": 4, "inducing": 6, "width": 2, "sites": 3, "epochs": 2, "jobs": 1, "progress": False}


@pytest.fixture(scope="module")
def ensemble() -> dspp.DSPPRegressor:
    return dspp.DSPPRegressor(**TINY, conformal=True).fit(X, Y)


def test_every_row_is_scored_by_the_members_that_held_it_out(ensemble: dspp.DSPPRegressor) -> None:
    fitted = ensemble.fitted_
    assert [member.fold for member in fitted.members] == [0, 1, 2, 3]
    assert fitted.conformal is not None
    assert fitted.conformal_folds is not None
    assert fitted.conformal.shape == (90, 1)
    folds = fitted.predict_folds(X, Place("X"))[1]
    pit = torch.stack([folds[j].cdf(torch.from_numpy(Y)) for j in range(4)])  # of all rows, by all folds
    scores = (pit - 0.5).abs()
    for j in range(4):
        own = fitted.conformal[fitted.conformal_folds == j, 0]
        distance = (scores[j][None] - own[:, None]).abs().amin(1)
        assert len(own) in (22, 23)
        assert distance.max() < 1e-9
    assert fitted.scored == "90 rows out of fold, each predicted by the members that did not see it"
    assert repr(fitted).startswith("<Fitted: y by 4 members, 90 rows; nll ")


def test_recalibrated_intervals_of_an_ensemble(ensemble: dspp.DSPPRegressor) -> None:
    fitted = ensemble.fitted_
    new = np.random.default_rng(4).normal(size=(5, 2))
    ends = ensemble.predict_interval(new, 0.8)
    folds = fitted.predict_folds(new, Place("X"))[1]
    assert fitted.recalibration is not None
    assert fitted.recalibration.fold is not None
    expected = fitted.recalibration.interval(folds, 0.8)
    np.testing.assert_array_equal(ends, torch.stack(expected, dim=1).numpy())
    assert ensemble.calibration(X, Y).recalibrated is not None
    (calibration,) = [one for one in report(ensemble.evaluation(X, Y)).sections if one.name == "calibration"]
    text = calibration.panels[0].text
    assert "recalibrated on 90 rows, each predicted by the members that did not see it" in text
    with pytest.warns(UserWarning, match="0.999 intervals are infinite: got 90 calibration rows, need at least 999"):
        assert np.isinf(ensemble.predict_interval(new, 0.999)).all()


def test_a_model_is_not_changed_by_its_recalibration(ensemble: dspp.DSPPRegressor) -> None:
    plain = dspp.DSPPRegressor(**TINY).fit(X, Y)
    assert plain.fitted_.conformal is None
    np.testing.assert_array_equal(plain.predict(X), ensemble.predict(X))
    assert plain.fitted_.metrics == ensemble.fitted_.metrics


def test_several_outputs_are_recalibrated() -> None:
    y = BOTH.copy()
    y[:80, 1] = NAN
    model = dspp.DSPPRegressor(**TINY, conformal=True).fit(X, y)
    assert model.fitted_.recalibration is not None
    assert model.fitted_.recalibration.counts == [90, 10]
    ends = model.predict_interval(X, 0.9)
    assert ends.shape == (90, 2, 2)
    assert np.isfinite(ends).all()
    assert (ends[:, 0] < ends[:, 1]).all()


def test_rows_given_for_validation_calibrate_as_one_part() -> None:
    model = dspp.DSPPRegressor(**TINY | {"members": 2}, conformal=True).fit(X[:60], Y[:60], X[60:], Y[60:])
    fitted = model.fitted_
    assert [member.fold for member in fitted.members] == [0, 0]
    assert fitted.conformal_folds is None
    assert isinstance(fitted.recalibration, Conformal)
    assert fitted.recalibration.counts == [30]
    assert fitted.scored == "30 rows that no member was trained on"
    assert np.isfinite(model.predict_interval(X)).all()


# ---------------------------------------------------------------- the file


@pytest.fixture
def saved(ensemble: dspp.DSPPRegressor, tmp_path: Path) -> bytes:
    ensemble.save(tmp_path / "saved.dspp")
    return (tmp_path / "saved.dspp").read_bytes()


def test_folds_come_back_to_the_last_bit(ensemble: dspp.DSPPRegressor, saved: bytes, tmp_path: Path) -> None:
    loaded = dspp.load(tmp_path / "saved.dspp")
    assert [member.fold for member in loaded.fitted_.members] == [0, 1, 2, 3]
    assert loaded.fitted_.judged == ensemble.fitted_.judged == 1
    assert loaded.conformal is True
    np.testing.assert_array_equal(loaded.predict_interval(X), ensemble.predict_interval(X))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"conformal": None}, "conformal_folds: expected none"),
        ({"conformal_folds": None}, "out of order"),
        ({"conformal_folds": torch.zeros(90)}, "conformal_folds: expected int64"),
        ({"conformal_folds": torch.zeros(89, dtype=torch.int64)}, "conformal_folds: expected int64"),
        ({"conformal_folds": torch.zeros(0, dtype=torch.int64)}, "conformal_folds: expected int64"),
        ({"conformal_folds": torch.arange(90)}, "fold 4: expected members"),
        ({"conformal_folds": torch.full((90,), 2**62)}, "scores"),
        ({"conformal_folds": torch.full((90,), -1)}, "scores"),
        ({"conformal": torch.zeros(90, 2, dtype=F64)}, "conformal: expected shape"),
    ],
)
def test_folds_that_cannot_be_are_refused(
    tensors: dict[str, Tensor], message: str, saved: bytes, tmp_path: Path
) -> None:
    (tmp_path / "m").write_bytes(with_tensors(saved, tensors))
    with pytest.raises(ModelFileError, match=message):
        modelfile.load(tmp_path / "m")


@pytest.mark.parametrize("fold", [-1, 100, 2**70, "0", 1.5, True, [0]])
def test_a_member_holds_out_one_fold_or_none(fold: object, saved: bytes, tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(with_header(saved, lambda h: h["members"][1].update(fold=fold)))
    with pytest.raises(ModelFileError):
        modelfile.load(tmp_path / "m")


@pytest.mark.parametrize("judged", [0, -1, "1", 1.5, True])
def test_rows_were_judged_by_a_number_of_members(judged: object, saved: bytes, tmp_path: Path) -> None:
    assert apart(saved)[1]["judged"] == 1
    (tmp_path / "m").write_bytes(with_header(saved, lambda h: h.update(judged=judged)))
    with pytest.raises(ModelFileError, match="judged"):
        modelfile.load(tmp_path / "m")


# ---------------------------------------------------------------- what is said


def run(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables") / "t.csv"
    np.savetxt(path, np.column_stack([X, Y]), delimiter=",", header="a,b,y", comments="", fmt="%.17g")
    return path


def test_the_command_line_says_what_scores_are_of(table: Path, tmp_path: Path) -> None:
    fit = ("fit", table, "--target", "y", "--inducing", 6, "--width", 2, "--sites", 3, "--epochs", 2)
    text = run(*fit, "--members", 4, "--conformal", "--out", tmp_path / "m.dspp")
    assert "Out-of-fold scores on 90 rows (held out of " in text
    assert OUT_OF_FOLD in text
    assert "recalibrated 90 % intervals contain" not in text, "these rows gave the calibration scores"
    run("predict", tmp_path / "m.dspp", table, "--interval", 0.8, "--out", tmp_path / "p.csv")
    columns = np.genfromtxt(tmp_path / "p.csv", delimiter=",", names=True)
    model = dspp.load(tmp_path / "m.dspp")
    expected = model.fitted_.predictions(attach_targets(to_table(X), Y), interval=0.8)
    np.testing.assert_allclose(columns["y_lower"], expected["y_lower"], rtol=1e-12)
    known = json.loads(run("evaluate", tmp_path / "m.dspp", table, "--json"))
    assert "recalibrated 90 % intervals contain" in known["verdict"]
    text = run(*fit, "--members", 1, "--out", tmp_path / "one.dspp")
    assert "Scores on 9 rows (held out of " in text
    assert CHOSE_EPOCH in text


def test_too_narrow_intervals_come_with_a_recommendation(monkeypatch: pytest.MonkeyPatch) -> None:
    from dspp.calibration import Calibration

    monkeypatch.setattr(Calibration, "is_too_narrow", True)
    advice = "fit with conformal=True (on the command line, --conformal) for intervals with a coverage guarantee"
    for settings, expected in (({}, 1), ({"members": 1}, 1), ({"conformal": True}, 0)):
        notes = dspp.DSPPRegressor(**TINY | settings).fit(X, Y).fitted_.notes
        assert [str(note) for note in notes].count(f"intervals are too narrow: {advice}") == expected


def test_what_is_discrete() -> None:
    rng = np.random.default_rng(0)
    for y, expected in (
        (rng.integers(3, 9, 500).astype(float), True),
        (rng.integers(3, 9, 40).astype(float), True),
        (rng.normal(size=500), False),
        (rng.normal(size=30), False),
        (np.round(rng.normal(size=300), 1), False),  # 60 values, each in five rows
        (np.round(rng.normal(size=5000), 1), True),
        (np.arange(15.0), False),
        (np.full(30, NAN), False),
    ):
        assert is_discrete(y) == expected


def test_kinds_weigh_in_a_fold_as_in_the_whole(ensemble: dspp.DSPPRegressor) -> None:
    fitted = ensemble.fitted_
    kinds = ("plain", "plain", "gp", "gp")
    folds = (0, 1, 0, 1)
    members = tuple(
        of_kind(member, kind, fold=fold) for member, kind, fold in zip(fitted.members, kinds, folds, strict=True)
    )
    bare: Fitted = replace(fitted, conformal=None, conformal_folds=None)
    mixed = replace(bare, members=members, weights=(0.1, 0.2, 0.3, 0.4))
    assert mixed.without_others(1).members == (members[1], members[3])
    assert mixed.without_others(1).weights == pytest.approx((0.3, 0.7))
    with pytest.raises(InputError, match="fold 2: expected members of every kind"):
        mixed.without_others(2)
