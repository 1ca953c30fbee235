"""Every experiment, through every method, on small simulated data: killed in the middle, resumed, nothing lost."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from motion import robot_arm_motion
from scipy import stats

from dspp.errors import InputError
from dspp.estimators import DSPPRegressor
from dspp.predictive import NormalMixture
from dspp.simulation import RobotArm
from experiments import fitting, results
from experiments.catalogue import ENSEMBLE, EXPERIMENTS, METHODS, experiment
from experiments.cli import _result, merge_command
from experiments.data import DataSet, load
from experiments.fitting import model_spec, scores, train_config
from experiments.parts import cut, part_rows
from experiments.peers import PEERS
from experiments.protocol import Protocol, Rule, read_protocol
from experiments.run import Outcome, _missing, attempt, plan
from experiments.units import Unit, fit_key, list_units

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests" / "experiments" / "tiny.toml"
SETS = ("kin40k", "ur10_pickplace", "simulated")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "DSPP_CACHE": os.devnull}


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One set of each kind, under names of the paper."""
    folder = tmp_path_factory.mktemp("data")
    arm, motion = RobotArm(120), robot_arm_motion(120)
    np.savez(folder / "kin40k.npz", X=arm.X, y=arm.y)
    np.savez(folder / "ur10_pickplace.npz", X=np.column_stack([motion.X, arm.X[:, :2]]), Y=motion.y)
    sums = [f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}\n" for p in sorted(folder.glob("*.npz"))]
    (folder / "SHA256SUMS").write_text("".join(sums))
    return folder


def command(results_folder: Path, data: Path, *more: str) -> list[str]:
    fixed = ["--protocol", str(TINY), "--data", str(data), "--results", str(results_folder), "--no-download"]
    return [sys.executable, "-m", "experiments", "run", "all", *fixed, "--datasets", ",".join(SETS), *more]


def lines(folder: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in folder.glob("*.jsonl"))


def expected_units() -> list[Unit]:
    protocol = read_protocol(str(TINY))
    return [u for e in EXPERIMENTS.values() for u in list_units(e, protocol, SETS)]


def test_all_experiments_survive_kills_and_do_nothing_twice(data_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    begun = time.monotonic()
    for target in (3, 12):  # kill the whole group without warning, twice
        process = subprocess.Popen(
            command(folder, data_folder, "--jobs", "2"),
            cwd=tmp_path,
            env=ENVIRONMENT,
            start_new_session=True,
            stderr=subprocess.DEVNULL,
        )
        while lines(folder) < target and process.poll() is None and time.monotonic() < begun + 300:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    before = {path.name: {fit_key(r): r["metrics"] for r in results.read(path)} for path in folder.glob("*.jsonl")}
    assert sum(map(len, before.values())) >= 12
    done = subprocess.run(
        command(folder, data_folder, "--jobs", "2"), cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]

    units = expected_units()
    found = [r for name in EXPERIMENTS for r in results.read(folder / f"{name}.jsonl")]
    assert Counter((r["experiment"], fit_key(r)) for r in found) == Counter((u.experiment, u.fit_key) for u in units)
    assert {r["method"] for r in found} == {*METHODS, *PEERS}
    for name, kept in before.items():  # what was there before the kill was not run again
        after = {fit_key(r): r["metrics"] for r in results.read(folder / name)}
        assert {key: after[key] for key in kept} == kept
    check_records(found)
    assert not [p for p in (folder / ".work").iterdir() if p.suffix == ".checkpoint"]

    again = subprocess.run(
        command(folder, data_folder), cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert f"{len(units)} already done, 0 fits to run" in again.stderr


def check_records(found: list[dict]) -> None:
    for record in found:
        assert tuple(record) == results.KEYS
        if record["experiment"] == "complexity":
            assert record["metrics"]["step_ms"] > 0
            continue
        names = {"nll", "rmse", "crps", "coverage90", "seen_share", "nll_new"}
        assert record["metrics"].keys() == (names | {"mrmse"} if record["details"]["outputs"] > 1 else names)
        assert np.isfinite([record["metrics"]["nll"], record["details"]["validation_nll"]]).all()
    grids = [r for r in found if r["method"] == "DSPP-QR3-2L" and r["experiment"] == "univariate"]
    assert len(grids) == 2
    chosen = min(grids, key=lambda r: r["details"]["validation_nll"])
    assert [r["selected"] for r in grids] == [r is chosen for r in grids]
    shared = {r["experiment"]: r["metrics"] for r in found if r["method"] == "PPGPR" and r["dataset"] == "kin40k"}
    assert shared.keys() >= {"univariate", "multilayer", "dkl", "biased"}
    assert len({json.dumps(m) for m in shared.values()}) == 1  # one fit answers all of them


def test_a_worker_stops_when_the_command_is_killed(data_folder: Path, tmp_path: Path) -> None:
    """Only the parent is killed: its workers notice, and leave a checkpoint that the next command goes on from."""
    folder = tmp_path / "results"
    long = ("--epochs", "100000", "--methods", "PPGPR", "--jobs", "2")
    words = [{"all": "biased", ",".join(SETS): "kin40k"}.get(w, w) for w in command(folder, data_folder, *long)]
    process = subprocess.Popen(words, env=ENVIRONMENT, cwd=tmp_path, start_new_session=True, stderr=subprocess.DEVNULL)
    wait_for(lambda: any(folder.glob(".work/*.checkpoint")))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_for(lambda: not group_alive(process.pid))
    assert any(folder.glob(".work/*.checkpoint"))


def test_being_told_to_stop_is_one_line(data_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    long = ("--epochs", "100000", "--methods", "PPGPR", "--jobs", "2")
    words = [{"all": "biased", ",".join(SETS): "kin40k"}.get(w, w) for w in command(folder, data_folder, *long)]
    process = subprocess.Popen(words, env=ENVIRONMENT, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: any(folder.glob(".work/*.checkpoint")))
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "stopped; finished fits are kept, and the same command resumes" in errors
    assert "Traceback" not in errors
    assert "leaked" not in errors


def wait_for(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.1)


def group_alive(group: int) -> bool:
    """Whether a process of that group is still running (a zombie is not)."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, pgrp = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(pgrp) == group and state != "Z":
            return True
    return False


def test_scores_are_what_an_independent_computation_gives() -> None:
    rng = np.random.default_rng(0)
    mean, var, y = rng.normal(size=(3, 50)), rng.uniform(0.1, 1, (3, 50)), rng.normal(size=50)
    weights = np.array([0.5, 0.3, 0.2])
    seen = rng.uniform(size=50) < 0.4
    mixture = NormalMixture(*map(torch.tensor, (np.log(weights), mean, var)), torch.tensor(0.01, dtype=torch.float64))
    parts = cut(table(200), 0, (15, 3, 2))
    got = scores(mixture, parts.__class__(**{**vars(parts), "y_test": y, "seen": seen}))

    std = np.sqrt(var + 0.01)
    density = weights @ stats.norm.pdf(y, mean, std)
    grid = np.linspace(-12, 12, 200_001)
    cdf = np.stack([weights @ stats.norm.cdf(grid, mean[:, [i]], std[:, [i]]) for i in range(50)])
    crps = np.trapezoid((cdf - (grid >= y[:, None])) ** 2, grid).mean()
    inside = np.abs(weights @ stats.norm.cdf(y, mean, std) - 0.5) <= 0.45
    assert got["nll"] == pytest.approx(-np.log(density).mean(), rel=1e-12)
    assert got["nll_new"] == pytest.approx(-np.log(density[~seen]).mean(), rel=1e-12)
    assert got["rmse"] == pytest.approx(np.sqrt(((weights @ mean - y) ** 2).mean()), rel=1e-12)
    assert got["crps"] == pytest.approx(crps, abs=2e-4)
    assert got["coverage90"] == inside.mean()
    assert got["seen_share"] == seen.mean()


def table(rows: int, groups: np.ndarray | None = None) -> DataSet:
    rng = np.random.default_rng(1)
    X = np.column_stack([rng.normal(3, 5, rows), np.full(rows, 7.0), rng.integers(0, 3, rows)])
    return DataSet("made", X, rng.normal(-2, 9, rows), groups, "0" * 64, "made here")


def test_parts_are_disjoint_standardised_and_know_what_was_seen() -> None:
    data = table(400)
    data.X[:40] = data.X[40:80]
    parts = cut(data, 0, (15, 3, 2))
    assert [len(parts.X), len(parts.X_test), len(parts.X_val)] == [300, 60, 40]
    assert parts.X.shape[1] == 2  # the constant column is gone
    np.testing.assert_allclose(parts.X.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose([parts.X.std(), parts.y.std()], 1, atol=1e-3)
    by_hand = [any(np.array_equal(row, other) for other in parts.X) for row in parts.X_test]
    assert parts.seen.tolist() == by_hand
    assert 0 < parts.seen.mean() < 1
    assert not np.array_equal(parts.y, cut(data, 1, (15, 3, 2)).y)
    assert np.array_equal(parts.y, cut(data, 0, (15, 3, 2)).y)


def test_a_split_by_groups_keeps_trajectories_together() -> None:
    groups = np.repeat(np.arange(40), 10)
    data = table(400, groups)
    data = DataSet(data.name, np.column_stack([data.X, groups]), data.y, groups, data.sha256, data.origin)
    parts = cut(data, 3, (15, 3, 2), by="groups")
    names = [set(part[:, -1].round(9)) for part in (parts.X, parts.X_test, parts.X_val)]
    assert [len(n) for n in names] == [30, 6, 4]
    assert not names[0] & names[1]
    assert not (names[0] | names[1]) & names[2]
    with pytest.raises(InputError, match="cannot split by 'groups'"):
        cut(table(400), 0, (15, 3, 2), by="groups")


@pytest.mark.parametrize(
    ("name", "dataset", "method", "splits", "count", "some"),
    [
        ("univariate", "kin40k", "DSPP-QR3-2L", 10, 8, {"epochs": 400, "batch_size": 1000, "sites": 10}),
        ("univariate", "kin40k", "gamma-DGP-2L", 10, 8, {"beta": 1.0, "test_sites": 32}),
        ("univariate", "kin40k", "PPGPR", 10, 8, {"epochs": 400}),  # two numbers of inducing points
        ("univariate", "kin40k", "OD-SVGP", 10, 2, {"epochs": 400}),
        ("univariate", "houseelectric", "DGP-2L", 10, 8, {"epochs": 150, "batch_size": 2000}),
        ("univariate", "song", "DGP-2L", 10, 8, {"epochs": 250, "batch_size": 2000}),
        ("quadrature", "bike", "DSPP-QR1-2L", 10, 8, {"sites": 3}),
        ("multivariate", "sarcos_testset", "DSPP-QR3-2L", 5, 8, {"sites": 8, "inducing": 150, "epochs": 300}),
        ("multivariate", "sarcos_testset", "DGP-2L", 5, 8, {"test_sites": 16, "batch_size": 400}),
        ("multivariate", "sarcos_testset", "SVGP", 5, 1, {"inducing": 300}),
        ("multivariate", "sarcos_testset", "PPGPR", 5, 4, {"inducing": 300}),
        ("multilayer", "protein", "DSPP-QR3-3L", 5, 32, {"inducing": 300}),
        ("dkl", "protein", "NN+DSPP-QR3-2L", 10, 8, {"width": 5}),
        ("biased", "pol", "BPDGP-2L", 5, 8, {"sites": 32}),
        ("weights", "pol", "DSPP-QR3-2L", 3, 4, {"width": 3}),
    ],
)
def test_the_papers_protocol(name: str, dataset: str, method: str, splits: int, count: int, some: dict) -> None:
    protocol = read_protocol("paper")
    settings = protocol.settings(name, dataset, method)
    assert protocol.splits(name, dataset, method) == splits
    assert len(settings) == count
    assert all(setting.items() >= some.items() for setting in settings)


def test_the_histogram_of_weights_is_over_96_models() -> None:
    assert len(list_units(experiment("weights"), read_protocol("paper"))) == 96


def test_the_default_ensemble_is_run_as_users_call_it_and_scored_like_the_others(tmp_path: Path, monkeypatch) -> None:
    """On a positive target in other units; its log-normal predictions are scored in standardised units."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (100, 2))
    y = np.exp(2 + X[:, 0] + 0.1 * rng.standard_normal(100))
    np.savez(tmp_path / "mine.npz", X=X, y=y)
    digest = hashlib.sha256((tmp_path / "mine.npz").read_bytes()).hexdigest()
    (tmp_path / "SHA256SUMS").write_text(f"{digest}  mine.npz\n")
    made = []

    def small(**given: Any) -> DSPPRegressor:
        made.append(DSPPRegressor(**given, members=2, inducing=8, epochs=20, batch_size=20, likelihood="log-normal"))
        return made[-1]

    monkeypatch.setattr(fitting, "DSPPRegressor", small)
    unit = Unit("univariate", "mine", 1, ENSEMBLE, "quick", (15, 3, 2), {"noise_floor": 1e-4})
    record = fitting.run_unit(unit, tmp_path, tmp_path, {"versions": {}, "commit": None}, os.getpid())
    train, test, _ = part_rows(load("mine", tmp_path), 1, (15, 3, 2))
    assert (record["details"]["training_rows"], record["details"]["test_rows"]) == (85, 15)
    assert record["details"]["validation_nll"] is None
    assert made[0].random_state == 1
    unit_of_y, predicted = y[train].std(), made[0].predict_dist(X[test])
    expected = {
        "nll": -np.mean(predicted.log_prob(y[test])) - np.log(unit_of_y),
        "crps": np.mean(predicted.crps(y[test])) / unit_of_y,
        "rmse": np.sqrt(np.mean((predicted.mean - y[test]) ** 2)) / unit_of_y,
    }
    assert {name: record["metrics"][name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert record["metrics"]["nll_new"] == record["metrics"]["nll"]  # no test row occurs in training
    assert 0.5 <= record["metrics"]["coverage90"] <= 1
    assert record["metrics"]["nll"] < 1.0  # a Normal that ignores the inputs has 1.42
    results.add(tmp_path / "univariate.jsonl", record)
    assert results.read(tmp_path / "univariate.jsonl")[0]["selected"]


def test_the_default_ensemble_of_several_outputs_is_scored_on_standardised_targets(tmp_path: Path, monkeypatch) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (100, 2))
    Y = np.column_stack([100 * X[:, 0], 5 + X.sum(1)]) + [10, 0.1] * rng.standard_normal((100, 2))
    np.savez(tmp_path / "two.npz", X=X, Y=Y)
    digest = hashlib.sha256((tmp_path / "two.npz").read_bytes()).hexdigest()
    (tmp_path / "SHA256SUMS").write_text(f"{digest}  two.npz\n")
    made = []

    def small(**given: Any) -> DSPPRegressor:
        made.append(DSPPRegressor(**given, members=2, inducing=8, epochs=20, batch_size=20))
        return made[-1]

    monkeypatch.setattr(fitting, "DSPPRegressor", small)
    unit = Unit("multivariate", "two", 0, ENSEMBLE, "quick", (15, 3, 2), {"noise_floor": 1e-4})
    record = fitting.run_unit(unit, tmp_path, tmp_path, {"versions": {}, "commit": None}, os.getpid())
    train, test, _ = part_rows(load("two", tmp_path), 0, (15, 3, 2))
    X_test, Y_test = ((A[test] - A[train].mean(0)) / A[train].std(0) for A in (X, Y))
    predicted = made[0].predict_dist(X_test)
    outputs = predicted.outputs()
    expected = {
        "nll": -np.mean(predicted.log_prob(Y_test)) / 2,  # per output
        "rmse": np.sqrt(np.mean((predicted.mean - Y_test) ** 2)),
        "coverage90": np.mean([np.abs(one.cdf(y) - 0.5) <= 0.45 for one, y in zip(outputs, Y_test.T, strict=True)]),
    }
    assert {name: record["metrics"][name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert record["details"]["training_rows"] == 85
    assert record["metrics"]["nll"] < 1.0  # a Normal that ignores the inputs has 1.42


def test_the_default_ensemble_is_run_in_quick_only_with_nothing_to_tune() -> None:
    one = experiment("univariate")
    assert list_units(one, read_protocol("paper"), ["pol"], [ENSEMBLE], splits=2) == []
    units = list_units(one, read_protocol("quick"), ["pol", "kin40k"], [ENSEMBLE])
    assert [(u.dataset, u.split) for u in units] == [("pol", 0), ("kin40k", 0), ("pol", 1), ("pol", 2)]
    assert all(unit.setting == {"noise_floor": 1e-4} for unit in units)
    assert len(list_units(one, read_protocol("quick"), ["kin40k"], [ENSEMBLE], splits=2)) == 2


@pytest.mark.parametrize("name", ["paper", "quick"])
def test_every_setting_of_a_protocol_makes_a_model(name: str) -> None:
    protocol = read_protocol(name)
    for one in EXPERIMENTS.values():
        for unit in list_units(one, protocol, splits=1):
            if unit.method in METHODS and one.name != "complexity":
                spec, config = model_spec(unit), train_config(unit)
                assert (spec.model.noise_floor, config.epochs) == (1e-4, unit.setting["epochs"])


def test_the_split_is_the_seed_unless_a_setting_says_otherwise() -> None:
    one, protocol = experiment("univariate"), read_protocol("quick")
    units = list_units(one, protocol, ["pol"], ["PPGPR"], splits=2)
    assert [train_config(unit).seed for unit in units] == [unit.split for unit in units] == [0, 1]
    seeded = list_units(one, protocol.with_rule(Rule(grid={"seed": [5, 6]})), ["pol"], ["PPGPR"], splits=1)
    assert [(unit.split, train_config(unit).seed) for unit in seeded] == [(0, 5), (0, 6)]
    assert len({unit.fit_key for unit in (*units, *seeded)}) == 4


def test_later_rules_win_and_a_grid_of_one_is_a_setting() -> None:
    protocol = Protocol("p", (Rule(set={"epochs": 5}, grid={"beta": [1, 2], "width": [3, 5]}),))
    assert len(protocol.settings("e", "d", "m")) == 4
    narrowed = protocol.with_rule(Rule(methods=("m*",), grid={"beta": [7]})).with_rule(Rule(set={"width": 4}))
    assert narrowed.settings("e", "d", "m") == [{"epochs": 5, "beta": 7, "width": 4}]
    assert len(narrowed.settings("e", "d", "other")) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[rules]]\nset = { epoch = 3 }", "unknown entry 'epoch'"),
        ("[[rules]]\nmethod = ['x']", "unknown entry 'method'"),
        ("splits = 3", "unknown entry 'splits'"),
        ("parts = [", "Invalid"),
        ("parts = [15, 3]", r"expected parts to be three whole numbers .*, got \[15, 3\]"),
        ("[[rules]]\nmethods = 'DSPP-*'", r"expected methods to be a list of patterns.*, got 'DSPP-\*'"),
        ("[[rules]]\nsplits = '3'", "expected splits to be 0 or more, got '3'"),
        ("[[rules]]\ngrid = { beta = 1 }", "expected beta to be a list, got 1"),
        ("[[rules]]\nset = 3", "expected set to be a table, got 3"),
    ],
)
def test_a_wrong_protocol_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(InputError, match=message):
        read_protocol(str(tmp_path / "mine.toml"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "univariat"], "no experiment 'univariat'; choose from: quadrature"),
        (["run", "univariate", "--methods", "DSPP"], "univariate has no 'DSPP'; choose from: OD-SVGP"),
        (["run", "univariate", "--datasets", "boston"], "univariate has no 'boston'"),
        (["run", "univariate", "--protocol", "long"], "no protocol 'long'; choose from: paper, quick"),
        (["run", "univariate", "--grid", "betta=1"], "expected NAME=V1,V2"),
    ],
)
def test_a_wrong_command_is_one_line(words: list[str], message: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "experiments", *words], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def record(**changes: object) -> dict:
    plain = {"experiment": "e", "dataset": "d", "split": 0, "method": "m", "protocol": "p", "selected": True}
    facts = {"setting": {}, "metrics": {"nll": 1.0}, "seconds": 1, "versions": {}, "commit": None}
    return {**plain, **facts, "details": {"validation_nll": 1.0}, **changes}


def test_a_results_file_mends_a_torn_line_and_keeps_each_fit_once(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    results.add(path, record())
    with path.open("a") as file:
        file.write('{"experiment": "e", "data')  # another program died here
    better = record(setting={"beta": 2}, details={"validation_nll": 0.5})
    results.add(path, better)
    results.add(path, {**better, "metrics": {"nll": 9.0}})
    kept = results.read(path)
    assert [r["selected"] for r in kept] == [False, True]
    assert kept[1]["metrics"] == {"nll": 1.0}
    assert path.read_text().count("\n") == 2


def test_a_kill_after_the_result_leaves_nothing_behind(tmp_path: Path) -> None:
    """A command killed between keeping a result and removing its checkpoint: the next one removes it."""
    units = [Unit(e, "d", s, "m", "p", (15, 3, 2), {}) for e, s in [("e", 0), ("other", 0), ("e", 1)]]
    results.add(tmp_path / "e.jsonl", record())
    done, unfinished = (tmp_path / ".work" / f"{u.fit_key}.checkpoint" for u in (units[0], units[2]))
    done.parent.mkdir()
    done.touch()
    unfinished.touch()
    assert plan(units, tmp_path, settle=False).fits == [units[2]]
    assert done.exists()
    assert not (tmp_path / "other.jsonl").exists()
    assert plan(units, tmp_path).fits == [units[2]]
    assert not done.exists()
    assert unfinished.exists()
    assert results.read(tmp_path / "other.jsonl") == [{**record(), "experiment": "other"}]


def test_a_number_is_the_same_fit_however_it_is_written() -> None:
    whole, point = (Unit("e", "d", 0, "m", "p", (15, 3, 2), {"beta": b, "milestones": [b]}) for b in (1, 1.0))
    assert whole.fit_key == point.fit_key
    assert fit_key(record(setting={"beta": 1})) != fit_key(record(setting={"beta": 1.5}))
    assert len(Protocol("p", (Rule(grid={"beta": [1, 1.0, 2]}),)).settings("e", "d", "m")) == 2


def test_runs_on_other_rows_are_no_rivals(tmp_path: Path) -> None:
    """Whole trajectories held out, or any rows: each has a best setting of its own. And NaN is no score at all."""
    for beta, by, score in [(1, "rows", float("nan")), (2, "rows", -2.0), (1, "groups", 5.0), (2, "groups", 4.0)]:
        one = record(setting={"beta": beta, "split_by": by}, details={"validation_nll": score})
        results.add(tmp_path / "e.jsonl", one)
    assert [r["selected"] for r in results.read(tmp_path / "e.jsonl")] == [False, True, False, True]


def test_what_another_command_makes_meanwhile_is_taken_over(tmp_path: Path) -> None:
    units = [Unit("e", "d", s, "m", "p", (15, 3, 2), {}) for s in (0, 1)]
    todo, told = plan(units, tmp_path), []
    results.add(tmp_path / "other.jsonl", record(experiment="other", split=1))
    for unit in _missing(todo, tmp_path, told.append):
        assert unit == units[0]
    assert [(o.task, o.record["split"]) for o in told] == [(units[1], 1)]
    assert [r["experiment"] for r in results.read(tmp_path / "e.jsonl")] == ["e"]


def test_an_error_of_another_library_is_the_problem_of_one_unit() -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("depth should be less than 16")

    unit = Unit("e", "d", 0, "m", "p", (15, 3, 2), {})
    assert attempt(unit, fail) == Outcome(unit, None, "RuntimeError: depth should be less than 16")


def test_a_folder_without_results_is_not_merged_in_silence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no results"):
        merge_command([tmp_path / "mistyped"], tmp_path)


def test_the_network_does_not_change_the_number_of_points() -> None:
    """Else `dkl` would compare two things at once."""
    protocol = read_protocol("quick")
    for method in ("SVGP", "PPGPR", "DGP-2L", "DSPP-QR3-2L"):
        plain, behind = (protocol.settings("dkl", "protein", name)[0]["inducing"] for name in (method, f"NN+{method}"))
        assert plain == behind


def test_results_of_two_machines_are_merged(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    results.add(here / "univariate.jsonl", record(details={"validation_nll": 1.0}))
    results.add(there / "univariate.jsonl", record(details={"validation_nll": 1.0}))
    results.add(there / "univariate.jsonl", record(setting={"beta": 2}, details={"validation_nll": 0.5}))
    merge_command([there], here)
    assert [r["selected"] for r in results.read(here / "univariate.jsonl")] == [False, True]
    assert len(results.read(there / "univariate.jsonl")) == 2


def test_a_line_of_the_bar_says_what_came_of_a_unit():
    sizes = {"batch_size": 500, "inducing": 100, "sites": 8, "width": 4}
    unit = Unit("complexity", "simulated", 0, "DGP-2L", "quick", (15, 3, 2), sizes)
    step = {"metrics": {"step_ms": 12.34, "peak_mb": 5.6}}
    wanted = "12 ms, 6 MB per step at batch_size 500, inducing 100, sites 8, width 4"
    assert _result(Outcome(unit, step)) == wanted
    assert _result(Outcome(unit, {"metrics": {"nll": -1.2345}})) == "NLL -1.234"
    assert _result(Outcome(unit, None)) == "failed"


def test_help_shows_brackets():
    words = [sys.executable, "-m", "experiments", "run", "--help"]
    shown = subprocess.run(words, env={**ENVIRONMENT, "COLUMNS": "200"}, capture_output=True, text=True, check=True)
    assert "pip install 'dspp[ray]'" in shown.stdout
