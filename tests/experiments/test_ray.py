"""A real Ray of two nodes, one killed in the middle: every task, unit and trial is done, and counted once."""

import importlib.util
import os
import socket
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_experiments import ENVIRONMENT, TINY, command, data_folder, wait_for  # noqa: F401 - data_folder is a fixture

from dspp.engines import TasksLost, run_all
from dspp.errors import InputError, NumericalError
from experiments import results
from experiments.catalogue import experiment
from experiments.protocol import Rule, read_protocol
from experiments.units import fit_key, list_units

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore"),  # Ray's own
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'dspp[ray]'"),
]
QUICK_TO_NOTICE = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 3,
}
METHODS = ("OD-SVGP", "PPGPR", "DSPP-QR3-2L")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """The node that stays, with one CPU."""
    from ray.cluster_utils import Cluster

    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "include_dashboard": False, "_system_config": QUICK_TO_NOTICE},
    )
    yield made
    made.shutdown()


@pytest.fixture
def second(cluster: Any) -> Iterator[Any]:
    """The node to kill, with one CPU."""
    node = cluster.add_node(num_cpus=1)
    yield node
    if node in cluster.worker_nodes:
        cluster.remove_node(node, allow_graceful=False)


def slow(task: int, folder: Path) -> int:
    """Leave a file with the name of the node at the beginning, another at the end; not done before both nodes work."""
    import ray

    name = f"{task}.{ray.get_runtime_context().get_node_id()}.{uuid.uuid4().hex}"
    (folder / f"{name}.begun").touch()
    end = time.monotonic() + 60
    while len({p.name.split(".")[1] for p in folder.glob("*.begun")}) < 2 and time.monotonic() < end:
        time.sleep(0.1)
    time.sleep(1.0)
    (folder / f"{name}.done").touch()
    return task * task


def refuse(task: int) -> None:
    raise NumericalError(f"not {task}")


def die(task: int) -> int:
    if task == 1:
        os._exit(7)
    return task


def begun_on(folder: Path, node: str) -> set[str]:
    return {p.name.partition(".")[0] for p in folder.glob(f"*.{node}.*.begun")}


def when_first(condition: Callable[[], bool], action: Callable[[], object]) -> Callable[[], None]:
    """Do something once, as soon as a condition holds."""
    done = []

    def look() -> None:
        if not done and condition():
            done.append(action())

    return look


def test_tasks_of_a_killed_node_are_done_again(cluster: Any, second: Any, tmp_path: Path) -> None:
    kill = when_first(
        lambda: bool(begun_on(tmp_path, second.node_id)), lambda: cluster.remove_node(second, allow_graceful=False)
    )
    found = list(
        run_all(slow, range(8), shared=(tmp_path,), engine="ray", jobs=2, address=cluster.address, while_waiting=kill)
    )
    assert sorted(found) == [(k, k * k) for k in range(8)]
    lost = begun_on(tmp_path, second.node_id)
    assert lost  # it was in the middle
    tries = Counter(p.name.partition(".")[0] for p in tmp_path.glob("*.begun"))
    assert all(count <= (2 if task in lost else 1) for task, count in tries.items())
    assert sum(tries.values()) > 8


def test_what_the_function_raises_comes_as_it_is_and_what_always_dies_is_named(cluster: Any) -> None:
    with pytest.raises(NumericalError, match=r"^not 3$") as raised:
        list(run_all(refuse, [3], engine="ray", address=cluster.address))
    assert type(raised.value) is NumericalError
    found: list[tuple[int, int]] = []
    with pytest.raises(TasksLost, match=r"lost the worker 3 times, gave up task 1 \(1\)"):
        found.extend(run_all(die, range(3), engine="ray", address=cluster.address))
    assert sorted(found) == [(0, 0), (2, 2)]


def test_units_of_a_killed_node_are_in_the_results_once(
    cluster: Any,
    second: Any,
    data_folder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    folder = tmp_path / "results"
    how = ("--datasets", "kin40k", "--methods", ",".join(METHODS), "--splits", "3", "--epochs", "60")
    where = ("--engine", "ray", "--address", cluster.address, "--jobs", "2")
    words = ["univariate" if word == "all" else word for word in command(folder, data_folder, *how, *where)]
    process = subprocess.Popen(words, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: len(list(folder.glob(".work/*.lock"))) == 2 or process.poll() is not None, 180)
    assert process.poll() is None, process.communicate()  # a unit is running on each node
    cluster.remove_node(second, allow_graceful=False)
    _, errors = process.communicate(timeout=400)
    assert process.returncode == 0, errors[-2000:]

    protocol = read_protocol(str(TINY)).with_rule(Rule(set={"epochs": 60}))
    units = list_units(experiment("univariate"), protocol, ["kin40k"], METHODS, 3)
    assert len(units) == 12
    found = Counter(fit_key(r) for r in results.read(folder / "univariate.jsonl"))
    assert found == Counter(u.fit_key for u in units)
    assert not list(folder.glob(".work/*.checkpoint"))


def test_a_search_on_a_ray_of_its_own_finds_what_one_process_finds(tmp_path: Path) -> None:
    import ray

    from dspp.tuning import tune

    generator = np.random.default_rng(11)
    X = generator.normal(size=(20_000, 2))  # more than Ray sends with a task
    y = 50 + 7 * np.sin(2 * X[:, 0]) + generator.normal(size=len(X))
    base = {"inducing": 8, "batch_size": 1000, "restarts": 1, "epochs": 4}
    how = {"models": ("ppgpr",), "space": {"learning_rate": [1e-6, 0.05]}}
    here = tune(X, y, **how, base=base)
    there = tune(X, y, **how, base=base | {"engine": "ray", "jobs": 2}, study=tmp_path / "s")
    assert not ray.is_initialized()
    assert there.best_params == here.best_params
    assert there.best_nll == here.best_nll
    np.testing.assert_array_equal(there.best_estimator.predict(X), here.best_estimator.predict(X))
    assert tune(X, y, **how, base=base, study=tmp_path / "s").trials == there.trials


@pytest.mark.parametrize("address", ["auto?", "127.0.0.1:PORT", "ray://127.0.0.1:PORT"])
def test_an_address_where_nobody_answers_is_refused_at_once(address: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    begun = time.monotonic()
    with pytest.raises(InputError, match=r"address: .*expected HOST:PORT of a cluster"):
        list(run_all(refuse, [1], engine="ray", address=address.replace("PORT", str(port))))
    assert time.monotonic() < begun + 20
