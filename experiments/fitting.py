"""One unit, run: cut the data, train, score the test rows, make the record."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from dspp.config import TrainConfig
from dspp.likelihoods import Gaussian
from dspp.metrics import evaluate
from dspp.model import Model
from dspp.predictive import Predictive
from dspp.presets import Spec
from dspp.training import FitResult, fit
from experiments import data as datasets
from experiments.catalogue import METHODS
from experiments.complexity import measure
from experiments.parts import Parts, cut
from experiments.peers import PEERS, fit_peer
from experiments.protocol import MODEL, OBJECTIVE, TRAIN, Setting
from experiments.units import Unit

Record = dict[str, Any]
# Of the test rows, of the validation rows; seconds; details.
Fitted = tuple[Predictive, Predictive, float, dict[str, Any]]


def run_unit(unit: Unit, data_folder: Path | None, work: Path, provenance: Mapping[str, Any], parent: int) -> Record:
    """Run one unit to the end, or go on with it from its checkpoint in `work`.

    Args:
        unit: what to run.
        data_folder: where data sets are looked for first.
        work: the folder of checkpoints.
        provenance: the versions and the commit to note in the record.
        parent: the process that waits for the record. A unit is given up when that process is gone.
    """
    if unit.experiment == "complexity":
        begin = time.monotonic()
        return _record(unit, provenance, measure(unit.method, unit.setting), time.monotonic() - begin, {})
    data = datasets.load(unit.dataset, data_folder)
    parts = cut(data, unit.split, unit.parts, unit.setting.get("split_by", "rows"))
    if unit.method in PEERS:
        test, val, seconds, details = _fit_trees(unit, parts)
    else:
        test, val, seconds, details = _fit_model(unit, parts, work, _orphaned(parent))
    facts = {
        "validation_nll": evaluate(val, parts.y_val)["nll"],
        "rows": len(parts.X),
        "test_rows": len(parts.X_test),
        "inputs": parts.X.shape[1],
        "outputs": 1 if parts.y.ndim == 1 else parts.y.shape[1],
        "data": data.sha256[:12],
    }
    return _record(unit, provenance, scores(test, parts), seconds, {**facts, **details})


def _record(
    unit: Unit,
    provenance: Mapping[str, Any],
    metrics: Mapping[str, float | None],
    seconds: float,
    details: Mapping[str, Any],
) -> Record:
    return {
        "experiment": unit.experiment,
        "dataset": unit.dataset,
        "split": unit.split,
        "method": unit.method,
        "protocol": unit.protocol,
        "selected": True,
        "setting": unit.setting,
        "metrics": dict(metrics),
        "seconds": round(seconds, 1),
        **provenance,
        "details": dict(details),
    }


def scores(test: Predictive, parts: Parts) -> dict[str, float | None]:
    """Every score of the test rows, and the NLL of those whose inputs were not among the training rows."""
    new = np.flatnonzero(~parts.seen).tolist()
    nll_new = evaluate(test.rows(new), parts.y_test[new])["nll"] if len(new) else None
    return {**evaluate(test, parts.y_test), "seen_share": float(parts.seen.mean()), "nll_new": nll_new}


def _fit_model(unit: Unit, parts: Parts, work: Path, stop: Callable[[], bool]) -> Fitted:
    result = fit(
        model_spec(unit),
        parts.X,
        parts.y,
        X_val=parts.X_val,
        y_val=parts.y_val,
        config=train_config(unit),
        progress=False,
        checkpoint=work / f"{unit.fit_key}.checkpoint",
        resume=True,
        should_stop=stop,
    )
    predict = result.model.predictor()
    return predict(parts.X_test), predict(parts.X_val), result.seconds, _details(result)


def model_spec(unit: Unit) -> Spec:
    """The model and the objective of a unit."""
    return METHODS[unit.method].spec(_pick(unit.setting, MODEL | OBJECTIVE))


def train_config(unit: Unit) -> TrainConfig:
    """How a unit is trained: its split is its seed too."""
    return TrainConfig(**_pick(unit.setting, TRAIN), seed=unit.split, threads=1)


def _details(result: FitResult) -> dict[str, Any]:
    return {
        "train_nll": result.history[-1].train_nll,
        "epochs": len(result.history),
        "best_epoch": result.best_epoch,
        "weights": _weights(result.model),
        "noise_var": cast(Gaussian, result.model.likelihood).noise_var.detach().flatten().tolist(),
        "jitter_climbs": result.jitter_climbs,
        "recoveries": len(result.recoveries),
    }


def _weights(model: Model) -> list[float] | None:
    """The quadrature weights, largest first; none where the rule has none to learn."""
    if model.rule is None or not any("log_weights" in name for name, _ in model.rule.named_parameters()):
        return None
    weights = model.rule.log_weights().detach().exp().sort(descending=True).values
    return [round(float(w), 6) for w in weights]


def _fit_trees(unit: Unit, parts: Parts) -> Fitted:
    begin = time.perf_counter()
    floor = unit.setting.get("noise_floor", 1e-4)
    peer = fit_peer(
        unit.method, parts.X, parts.y, parts.X_val, parts.y_val, floor=floor, seed=unit.split, setting=unit.setting
    )
    seconds = time.perf_counter() - begin
    return peer.predict(parts.X_test), peer.predict(parts.X_val), seconds, peer.details


def _pick(setting: Setting, names: set[str]) -> Setting:
    """The settings among `names`; lists become the tuples that a configuration has in their place."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in setting.items() if k in names}


def _orphaned(parent: int) -> Callable[[], bool]:
    """Whether the process that waits for the record has gone; never true where it was not this one's parent."""
    child = os.getppid() == parent
    return lambda: child and os.getppid() != parent
