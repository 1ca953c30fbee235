"""Runs one unit: splits the data, trains, scores the test rows and returns the record."""

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from dspp.config import TrainConfig
from dspp.encoding.scaling import Standardizer
from dspp.estimators import DSPPRegressor
from dspp.likelihoods import Gaussian
from dspp.metrics import evaluate
from dspp.model import Model
from dspp.predictive import Predictive, unwrap
from dspp.presets import Spec
from dspp.training import FitResult, Rows, fit
from experiments import data as datasets
from experiments.catalogue import ENSEMBLE, METHODS
from experiments.complexity import measure
from experiments.parts import Parts, cut, part_rows
from experiments.peers import PEERS, fit_peer
from experiments.protocol import MODEL, OBJECTIVE, TRAIN, Setting
from experiments.units import Unit

Record = dict[str, Any]
# Predictions for the test and for the validation rows; seconds; details.
Fitted = tuple[Predictive, Predictive, float, dict[str, Any]]


def run_unit(unit: Unit, data_folder: Path | None, work: Path, provenance: Mapping[str, Any], parent: int) -> Record:
    """Run one unit to the end, resuming from its checkpoint in `work` if there is one.

    Args:
        unit: What to run.
        data_folder: Folder to search first for data sets.
        work: The folder of checkpoints.
        provenance: The versions and the commit to store in the record.
        parent: The process that waits for the record. The unit is abandoned when that process is gone.
    """
    work.mkdir(parents=True, exist_ok=True)  # may run on another machine
    if unit.experiment == "complexity":
        begin = time.monotonic()
        return _record(unit, provenance, measure(unit.method, unit.setting), time.monotonic() - begin, {})
    data = datasets.load(unit.dataset, data_folder)
    parts = cut(data, unit.split, unit.parts, unit.setting.get("split_by", "rows"))
    if unit.method == ENSEMBLE:
        metrics, seconds, details = _run_ensemble(unit, data, parts, _make_orphan_check(parent))
        validation = None  # these rows are training rows
    else:
        if unit.method in PEERS:
            test, val, seconds, details = _fit_trees(unit, parts)
        else:
            test, val, seconds, details = _fit_model(unit, parts, work, _make_orphan_check(parent))
        metrics, validation = scores(test, parts), evaluate(val, parts.y_val)["nll"]
    facts = {
        "validation_nll": validation,
        "rows": len(parts.X),
        "test_rows": len(parts.X_test),
        "inputs": parts.X.shape[1],
        "outputs": 1 if parts.y.ndim == 1 else parts.y.shape[1],
        "data": data.sha256[:12],
    }
    return _record(unit, provenance, metrics, seconds, {**facts, **details})


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
    """Return every score on the test rows, and the NLL on those whose inputs are not among the training rows."""
    new = np.flatnonzero(~parts.seen).tolist()
    nll_new = evaluate(test.rows(new), parts.y_test[new])["nll"] if len(new) else None
    return {**evaluate(test, parts.y_test), "seen_share": float(parts.seen.mean()), "nll_new": nll_new}


def _fit_model(unit: Unit, parts: Parts, work: Path, stop: Callable[[], bool]) -> Fitted:
    result = fit(
        model_spec(unit),
        Rows.of(parts.X, parts.y),
        Rows.of(parts.X_val, parts.y_val),
        config=train_config(unit),
        progress=False,
        checkpoint=work / f"{unit.fit_key}.checkpoint",
        should_stop=stop,
    )
    predict = result.model.predictor()
    return predict(parts.X_test), predict(parts.X_val), result.seconds, _details(result)


def model_spec(unit: Unit) -> Spec:
    """Return the model and the objective of a unit."""
    return METHODS[unit.method].spec(_pick(unit.setting, MODEL | OBJECTIVE))


def train_config(unit: Unit) -> TrainConfig:
    """Return the training settings of a unit; its split is also its seed, unless a setting says otherwise."""
    settings: dict[str, Any] = {"seed": unit.split, **_pick(unit.setting, TRAIN)}
    return TrainConfig(**settings, threads=1)


def _details(result: FitResult) -> dict[str, Any]:
    return {
        "train_nll": result.history[-1].train_nll,
        "epochs": len(result.history),
        "best_epoch": result.best_epoch,
        "curve": [None if epoch.val_nll is None else round(epoch.val_nll, 4) for epoch in result.history],
        "weights": _weights(result.model),
        "noise_var": cast(Gaussian, result.model.likelihood).noise_var.detach().flatten().tolist(),
        "jitter_climbs": result.jitter_increases,
        "recoveries": len(result.recoveries),
    }


def _weights(model: Model) -> list[float] | None:
    """Return the quadrature weights, largest first; None if the rule learns no weights."""
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


def _run_ensemble(
    unit: Unit, data: datasets.DataSet, parts: Parts, stop: Callable[[], bool]
) -> tuple[dict[str, float | None], float, dict[str, Any]]:
    """Fit the default ensemble, as a user would call it, and return scores in standardised units, seconds and details.

    A single target is as it is in the file, so that the ensemble can choose the likelihood by it; several are
    standardised, like those of the other methods. The validation rows are training rows: an ensemble holds out rows by
    itself.
    """
    if parts.y.ndim == 1:
        train, test, val = part_rows(data, unit.split, unit.parts, unit.setting.get("split_by", "rows"))
        rows = np.concatenate([train, val])
        X, y, X_test, y_test = data.X[rows], data.y[rows], data.X[test], data.y[test]
        scale = float(Standardizer.fit(data.y[train]).scale)
    else:
        X, y = np.concatenate([parts.X, parts.X_val]), np.concatenate([parts.y, parts.y_val])
        X_test, y_test, scale = parts.X_test, parts.y_test, 1.0
    begin = time.perf_counter()
    model = DSPPRegressor(
        model_settings={"noise_floor": unit.setting.get("noise_floor", 1e-4)},
        random_state=unit.split,
        jobs=1,  # units run side by side
        progress=False,
    )
    model.fit(X, y, should_stop=stop)
    seconds = time.perf_counter() - begin
    found = scores(unwrap(model.predict_dist(X_test)), replace(parts, y_test=y_test))
    members = model.fitted_.members
    details = {
        "training_rows": len(X),  # validation rows included
        "members": len(members),
        "jitter_climbs": sum(member.model.jitter_increases for member in members),
    }
    return standardise_scores(found, scale), seconds, details


def standardise_scores(found: Mapping[str, float | None], unit: float) -> dict[str, float | None]:
    """Return scores of y as scores of z = (y - m) / unit, whose density is p(z) = unit · p(y)."""
    in_z: dict[str, Callable[[float], float]] = {
        **dict.fromkeys(("nll", "nll_new"), lambda value: value - math.log(unit)),
        **dict.fromkeys(("crps", "rmse"), lambda value: value / unit),
    }
    return {name: in_z[name](value) if name in in_z and value is not None else value for name, value in found.items()}


def _pick(setting: Setting, names: set[str]) -> Setting:
    """Return the settings among `names`, with lists turned into tuples as in a configuration."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in setting.items() if k in names}


def _make_orphan_check(parent: int) -> Callable[[], bool]:
    """Return a check whether the waiting process has gone; never true if it is not the parent of this process."""
    child = os.getppid() == parent
    return lambda: child and os.getppid() != parent
