"""The default ensemble on a real Ray of two nodes: the same bits as here, also if one of them is killed."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dspp import DSPPRegressor, TrainingInterrupted
from dspp.members import run
from tests.members.ensembles import TINY, X, Y, bits, weights_of

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


def same(one: DSPPRegressor, other: DSPPRegressor) -> bool:
    return (
        weights_of(one) == weights_of(other)
        and bits(one.fitted_.distribution(X)) == bits(other.fitted_.distribution(X))
        and one.fitted_.metrics == other.fitted_.metrics
    )


def test_members_are_the_same_anywhere_and_a_killed_node_costs_their_time(
    cluster: Any, second: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 38."""
    settings = TINY | {"epochs": 100}
    here = DSPPRegressor(**settings, jobs=1).fit(X, Y)
    there = DSPPRegressor(**settings, engine="ray", address=cluster.address).fit(X, Y)
    assert same(here, there)
    reports: list[Any] = []
    run_all = run.run_all

    def kill(number: int, value: Any) -> None:
        reports.append(value)
        if len(reports) == 3:
            cluster.remove_node(second, allow_graceful=False)

    monkeypatch.setattr(run, "run_all", lambda *given, on_report, **more: run_all(*given, on_report=kill, **more))
    survivor = DSPPRegressor(**settings, engine="ray", address=cluster.address).fit(X, Y)
    assert len(reports) >= 3, "it was killed while members were trained"
    assert second not in cluster.worker_nodes
    assert same(here, survivor)


def test_a_fit_on_a_cluster_is_told_to_stop_and_resumed(cluster: Any, tmp_path: Path) -> None:
    settings = TINY | {"epochs": 20_000, "members": 3, "checkpoint": tmp_path / "run"}
    begun = tmp_path / "run" / "member-01.checkpoint"
    with pytest.raises(TrainingInterrupted, match="resume"):
        DSPPRegressor(**settings, engine="ray", address=cluster.address).fit(X, Y, should_stop=begun.exists)
    assert begun.exists()
    short = settings | {"epochs": 2, "checkpoint": tmp_path / "short"}
    models = [DSPPRegressor(**short, engine="ray", address=cluster.address).fit(X, Y) for _ in range(2)]
    assert np.array_equal(models[0].predict(X), models[1].predict(X))
    assert same(models[0], DSPPRegressor(**TINY, members=3, jobs=1).fit(X, Y))
