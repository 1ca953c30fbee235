"""Tasks on threads: results in order, settings of threads as before, and predictions that do not notice."""

import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest
import torch

from dspp.gp.threads import run
from dspp.model import Model, Predictor, build
from dspp.presets import preset

X = torch.randn(333, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def two_threads() -> Iterator[None]:
    torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.fixture(params=["compiled", "torch"])
def code(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "torch":
        monkeypatch.setattr("dspp.gp.conditional.available", lambda *_: False)


def model(name: str = "dspp", **settings: object) -> Model:
    return build(preset(name, width=3, inducing=40, sites=4, **settings).model, X)


def moments(predict: Predictor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mixture = predict(rows)
    return mixture.component_mean, mixture.component_var


def pool_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("dspp")]


def test_results_come_in_the_order_of_the_tasks(two_threads: None) -> None:
    def late(i: int) -> int:
        time.sleep(0.001 * (5 - i % 5))
        return i

    assert run([partial(late, i) for i in range(20)]) == list(range(20))
    assert run([]) == []


def test_one_thread_starts_no_other() -> None:
    before = threading.active_count()
    assert set(run([threading.get_ident] * 5)) == {threading.get_ident()}
    assert threading.active_count() == before


def test_threads_compute_with_one_thread_each_and_without_gradients(two_threads: None) -> None:
    seen = run([lambda: (torch.get_num_threads(), torch.is_grad_enabled(), threading.get_ident())] * 8)
    assert {(count, grad) for count, grad, _ in seen} == {(1, False)}
    assert threading.get_ident() not in {thread for *_, thread in seen}
    assert torch.get_num_threads() == 2
    assert torch.is_grad_enabled()
    later: list[int] = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [2]  # a new thread of the user's has torch's setting, not the pool's
    with torch.inference_mode():
        assert all(run([torch.is_inference_mode_enabled] * 4))


def test_tasks_may_run_tasks(two_threads: None) -> None:
    assert run([partial(run, [threading.get_ident] * 3)] * 3)


def test_an_error_is_raised_after_the_last_task_has_ended(two_threads: None) -> None:
    running: list[int] = []

    def fail() -> None:
        raise IndexError("no such thing")

    def work() -> None:
        running.append(1)
        time.sleep(0.05)
        running.pop()

    with pytest.raises(IndexError, match="no such thing"):
        run([work, fail, *[work] * 50])
    assert not running


def test_another_number_of_threads_replaces_the_pool(two_threads: None) -> None:
    run([time.time] * 4)
    torch.set_num_threads(3)
    gate = threading.Barrier(3)
    run([gate.wait] * 3)  # passes only if three tasks run at a time
    torch.set_num_threads(2)
    run([time.time] * 4)
    until = time.monotonic() + 10
    while len(pool_threads()) > 2 and time.monotonic() < until:
        time.sleep(0.01)
    assert len(pool_threads()) == 2


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["dspp", "svgp", "dgp"])
def test_a_row_has_the_same_bits_on_any_number_of_threads_and_in_any_parts(
    name: str, dtype: str, code: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    predict = model(name, dtype=dtype).predictor()
    expected = moments(predict, X)
    for threads in (1, 2, 3):
        torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            for size in (1, 100, 500, 20_000):
                monkeypatch.setattr(Predictor, "BATCH_ROWS", size)
                for got, want in zip(moments(predict, X), expected, strict=True):
                    assert torch.equal(got, want), (threads, size)
                for got, want in zip(moments(predict, X[100:117]), expected, strict=True):
                    assert torch.equal(got, want[:, 100:117]), (threads, size)
        finally:
            torch.set_num_threads(1)


def test_a_model_with_a_predictor_is_pickled_and_used_in_a_forked_process(two_threads: None, code: None) -> None:
    predict = model().predictor()
    mean, var = moments(predict, X)
    for got, want in zip(moments(pickle.loads(pickle.dumps(predict)), X), (mean, var), strict=True):
        assert torch.equal(got, want)
    with multiprocessing.get_context("fork").Pool(1) as pool:  # the pool's threads do not exist there
        assert pool.apply_async(_predict_here, (predict, X, mean)).get(30)


def _predict_here(predict: Predictor, rows: torch.Tensor, mean: torch.Tensor) -> bool:
    assert torch.get_num_threads() == 1
    return torch.equal(moments(predict, rows)[0], mean)


FORK = """
import os, sys, time
import numpy as np, torch
from dspp import DSPPRegressor, InputError, Rows, TrainConfig, fit, preset
from dspp.members import plan, trees
from dspp.trees import cross_fit
from functools import partial

plan.FOLDS, trees.cross_fit = 2, partial(cross_fit, max_rounds=3)  # as in tests/members
torch.set_num_threads(2)
X = np.random.default_rng(0).normal(size=(1000, 2))
settings = dict(inducing=6, width=2, sites=3, epochs=2, likelihood="gaussian", jobs=1, progress=False)
models = [DSPPRegressor(members=members, **settings).fit(X[:64], X[:64, 0]) for members in (1, 4)]
assert [bool(model.fitted_.trees) for model in models] == [False, True]

def predict():
    return [part for model in models for part in (model.predict(X), *model.predict_interval(X))]

expected = predict()
child = os.fork()
if child == 0:
    assert all(map(np.array_equal, predict(), expected))
    again = DSPPRegressor(members=4, **settings).fit(X[:64], X[:64, 0])
    assert np.array_equal(again.predict(X), models[1].predict(X))
    torch.set_num_threads(2)
    for call in (predict, lambda: fit(preset("svgp"), Rows.of(X, X[:, 0]), config=TrainConfig(epochs=1))):
        try:
            call()
        except InputError as error:
            assert "call torch.set_num_threads(1)" in str(error)
        else:
            raise AssertionError("it used threads of the parent")
    os._exit(0)
until = time.monotonic() + 120
while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < until:
    time.sleep(0.01)
if ended == (0, 0):
    os.kill(child, 9)
assert ended == (child, 0), ended
assert torch.get_num_threads() == 2
assert all(map(np.array_equal, predict(), expected))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("compiled", ["1", "0"])
def test_models_predict_and_train_in_a_forked_process_as_in_its_parent(compiled: str) -> None:
    environment = os.environ | {"DSPP_COMPILE": compiled, "PYTHONWARNINGS": "ignore", "OMP_WAIT_POLICY": "PASSIVE"}
    environment.pop("OMP_NUM_THREADS", None)
    done = subprocess.run([sys.executable, "-c", FORK], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
