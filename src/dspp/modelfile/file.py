"""Writing and reading model files, and checks of what a file claims."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from dspp import storage
from dspp.calibration import Conformal
from dspp.codec import Tensors, pack, stored_fields, unpack
from dspp.encoding.scaling import standardise
from dspp.errors import InputError, ModelFileError, NumericalError
from dspp.fitted import Fitted
from dspp.model import Model
from dspp.modelfile.weights import cheap_to_factorise, has_own_features, model_converter
from dspp.outcomes import Outcome
from dspp.registry import UnknownPartError
from dspp.seen import MAX_HASHES
from dspp.table.messages import Place

FORMAT, VERSION = "dspp-model", 1
MAX_TENSORS = 5_000  # each may need a module
MAX_MEMBERS = 100
MAX_GUARD = 100  # components of the guard
MAX_SCORES = 10_000_000  # calibration scores


def save(fitted: Fitted, path: str | Path) -> None:
    """Write `fitted` to one file, atomically.

    Of a custom features module only the weights are stored: `load` needs the module again, one for all members.

    Raises:
        ModelFileError: It could not be written, or could not be loaded again; the previous file is unchanged.
    """
    own = [member.model.features for member in fitted.members if has_own_features(member)]
    module = own[0] if own else None
    try:
        tensors, header = pack(fitted, {Model: model_converter(fitted.num_inputs, fitted.num_outputs, module)})
        _restore(tensors, json.loads(json.dumps(header, allow_nan=False)), module)
    except (InputError, ArithmeticError, RuntimeError, ValueError, TypeError) as problem:
        raise ModelFileError(f"cannot save the model to {path}: {problem}; nothing was written") from problem
    storage.write(path, tensors, {"format": FORMAT, "version": VERSION, **header}, ModelFileError)


def load(path: str | Path, features: nn.Module | None = None) -> Fitted:
    """Read a file written by `save`, to the CPU; its predictions are the same to the last bit.

    Custom parts that predictions need (kernel, mean, rule, topology, likelihood) must be registered: import their
    module first. The preset, the objective and the schedule are needed only to fit again.

    Args:
        path: the file.
        features: the custom features module, if the model has one; a copy is taken.

    Raises:
        ModelFileError: The file does not exist, was not written by dspp, was written by a later version, is damaged, or
            names a part that is not registered.
    """
    path = Path(path)
    try:
        tensors, header = storage.read(path, ModelFileError, (FORMAT, VERSION))
        _check_features(path, header.get("members"), features)
        return replace(_restore(tensors, header, features), source=str(path))
    except UnknownPartError as problem:
        raise ModelFileError(
            f"{path}: unknown {problem.part}; import the module that registers it before loading (on the command line: "
            "--import MODULE)"
        ) from None
    except (InputError, ArithmeticError, RuntimeError) as problem:  # RuntimeError: from torch
        reason = problem.finding if isinstance(problem, NumericalError) else f"{problem!s:.500}"
        raise ModelFileError(
            f"{path} is not a model that this version of dspp can read, or it is damaged: {reason}"
        ) from None


def _check_features(path: Path, members: Any, features: nn.Module | None) -> None:
    described = members if isinstance(members, list) else []
    models = [member.get("model") for member in described if isinstance(member, dict)]
    own = any(isinstance(model, dict) and model.get("has_own_features") is True for model in models)
    if own and features is None:
        raise ModelFileError(
            f"{path}: this model has a custom features module. A file holds its weights but not its code; create the "
            "module as for training, and pass it as load(path, features=module)"
        )
    if features is not None and not own:
        raise ModelFileError(f"{path}: this model has no custom features module; load it without `features`")


def _restore(tensors: Tensors, header: Mapping[str, Any], features: nn.Module | None) -> Fitted:
    """Return the fitted model, or raise an InputError, ArithmeticError or RuntimeError."""
    if len(tensors) > MAX_TENSORS:
        raise InputError(f"expected at most {MAX_TENSORS} tensors, got {len(tensors)}")
    fields = stored_fields(Fitted)
    known = {name: value for name, value in header.items() if name in fields}  # a later dspp may add some
    members = known.get("members")
    if not isinstance(members, list) or not 1 <= len(members) <= MAX_MEMBERS:
        got = len(members) if isinstance(members, list) else f"{members!s:.50}"
        raise InputError(f"members: expected 1 to {MAX_MEMBERS}, got {got}")
    outcome = _check_outcome(tensors, known.get("outcome"))
    scale = tensors.get("scale_X.mean")
    if scale is None or scale.ndim != 1 or not len(scale):
        raise InputError("scale_X.mean: expected one number for each of at least one column, got others")
    converter = model_converter(len(scale), outcome.num_outputs, features)
    fitted = unpack(Fitted, tensors, known, {Model: converter})
    _check_columns(fitted)
    _check_members(fitted)
    _check_calibration(fitted)
    if cheap_to_factorise([member.model for member in fitted.members]):
        for member in fitted.members:
            _ = member.predictor  # may raise NumericalError; cached for the first prediction
    return fitted


def _check_outcome(tensors: Tensors, plain: Any) -> Outcome:
    """Return the outcome of a file, whose scale must be that of its columns, within float64."""
    outcome = unpack(Outcome, tensors, plain, prefix="outcome.")  # type: ignore[type-abstract]
    if outcome.scale.mean.shape != (len(outcome.encoded_names),) or not outcome.names:
        raise InputError(f"outcome.scale: expected one mean per encoded target, got shape {outcome.scale.mean.shape}")
    outcome.with_scale(outcome.scale, Place("outcome.scale"))
    return outcome


def _check_columns(fitted: Fitted) -> None:
    """Check that names, ranges and hashes fit the columns."""
    D, encoder, ends, hashes = fitted.num_inputs, fitted.encoder, fitted.input_range, fitted.seen_rows
    given = {"feature_names": fitted.feature_names, "encoder": None if encoder is None else encoder.feature_names}
    for name, names in given.items():
        if names is not None and len(names) != D:
            raise InputError(f"{name}: expected {D}, got {len(names)}")
    if ends is not None:
        if ends.shape[1] != D or bool((ends[0] > ends[1]).any()):
            raise InputError(f"input_range: expected ranges of {D} columns, got others")
        standardise(ends, fitted.scale_X, "float32", None, Place("input_range"))
    if hashes is not None and not (1 <= len(hashes) <= MAX_HASHES and bool((np.diff(hashes) > 0).all())):
        raise InputError(f"seen_rows: expected up to {MAX_HASHES} numbers in ascending order, got others")
    for trees in fitted.trees:
        if trees.num_features != D:
            raise InputError(f"trees: expected {D} columns, got {trees.num_features}")


def _check_members(fitted: Fitted) -> None:
    """Check what is said of each member, and the size of the guard."""
    for member in fitted.members:
        epochs = [None, *(epoch.number for epoch in member.history)]
        if member.best_epoch not in epochs:
            raise InputError(f"best_epoch: expected one of {str(epochs)[:100]}, got {str(member.best_epoch)[:50]}")
        if member.fold is not None and not 0 <= member.fold < MAX_MEMBERS:
            raise InputError(f"fold: expected a number below {MAX_MEMBERS}, got {str(member.fold)[:50]}")
        inputs = fitted.num_inputs + member.reads_trees * len(fitted.trees)
        if member.model.num_inputs != inputs:
            raise InputError(f"num_inputs: expected {inputs} for a member of this kind, got {member.model.num_inputs}")
        if member.spec.model.likelihood != fitted.outcome.likelihood:
            raise InputError(f"likelihood: expected {fitted.outcome.likelihood!r}, as the outcome has, got another")
    guard = fitted.guard
    if guard is None:
        return
    count, outputs = guard.mean.shape
    if outputs != fitted.num_outputs or count > MAX_GUARD or abs(float(guard.log_weights.exp().sum()) - 1.0) > 1e-6:
        raise InputError(
            f"guard: expected 1 to {MAX_GUARD} components of {fitted.num_outputs} outputs whose weights sum to 1"
        )


def _check_calibration(fitted: Fitted) -> None:
    """Check the calibration scores, one column per output, and their folds, if they have any."""
    scores, folds = fitted.conformal, fitted.conformal_folds
    if scores is None:
        if folds is not None:
            raise InputError("conformal_folds: expected none without scores in conformal")
        return
    if tuple(scores.shape[1:]) != (fitted.num_outputs,) or not 1 <= scores.numel() <= MAX_SCORES:
        expected = f"(n, {fitted.num_outputs}) with at most {MAX_SCORES} scores"
        raise InputError(f"conformal: expected shape {expected}, got {tuple(scores.shape)}")
    if folds is None:  # `Fitted` has checked scores by folds
        Conformal(scores)
