"""Writing and reading model files: checks before anything is parsed, and restoring a `Fitted`."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from dspp import storage
from dspp.config import TrainConfig
from dspp.errors import InputError, ModelFileError, NumericalError
from dspp.fitted import Fitted
from dspp.members import MEMBERS, Member
from dspp.modelfile.header import (
    FORMAT,
    VERSION,
    get,
    one_of,
    or_nan,
    read_config,
    read_encoder,
    read_epoch,
    read_names,
    read_number,
    read_spec,
    write_header,
)
from dspp.modelfile.weights import (
    MAX_MEMBERS,
    Tensors,
    cheap_to_factorise,
    check_tensors,
    has_own_features,
    read_guard,
    read_input_range,
    read_model,
    read_scale,
    read_scores,
    read_seen_rows,
    read_trees,
    read_warp,
    split_members,
    write_tensors,
)
from dspp.notes import notes_from_json
from dspp.outcomes import find_outcome
from dspp.registry import UnknownPartError

MAX_HEADER_BYTES = 8_000_000  # JSON takes up to 30 times its size in memory,
MAX_HEADER_VALUES = 400_000  # but no more than this many lists, objects and members of them


def save(fitted: Fitted, path: str | Path) -> None:
    """Write `fitted` to one file, atomically.

    Of a custom features module only the weights are stored: `load` needs the module again, one for all members.

    Raises:
        ModelFileError: It could not be written, or could not be loaded again; the previous file is unchanged.
    """
    own = [has_own_features(member, fitted.num_inputs + member.reads_trees) for member in fitted.members]
    module = fitted.members[own.index(True)].model.features if any(own) else None
    try:
        tensors, header = write_tensors(fitted), write_header(fitted, own)
        header["digest"] = storage.digest(tensors, header)
        text = json.dumps(header, allow_nan=False)
        length = len(json.dumps(text)) + sum(len(name) + 200 for name in tensors)
        _check_header_size(length, _count_values(text.encode()) + 20 * len(tensors))
        _restore(tensors, json.loads(text), module)
    except (InputError, ArithmeticError, RuntimeError, ValueError, TypeError) as problem:
        raise ModelFileError(f"cannot save the model to {path}: {problem}; nothing was written") from problem
    storage.write(path, tensors, header, ModelFileError)


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
        if path.is_file():  # otherwise `storage.read` raises
            length, values = _measure_header(path)
            if length > path.stat().st_size:  # text whose first characters are read as a number
                raise ModelFileError(f"{path} was not written by dspp, or it is truncated; check the path")
            _check_header_size(length, values)
        tensors, header = storage.read(path, ModelFileError)
        _check_format(path, header)
        _check_digest(path, tensors, header)
        members = get(header, "members", list[dict[str, Any]])
        _check_features(path, any(member.get("features") == "custom" for member in members), features)
        return replace(_restore(tensors, header, features), source=str(path))
    except UnknownPartError as problem:
        raise ModelFileError(
            f"{path}: unknown {problem.part}; import the module that registers it before loading (on the command line: "
            "--import MODULE)"
        ) from None
    except (
        InputError,
        ArithmeticError,
        RuntimeError,
    ) as problem:  # RuntimeError: from torch, or JSON nested too deeply
        reason = problem.finding if isinstance(problem, NumericalError) else f"{problem!s:.500}"
        raise ModelFileError(
            f"{path} is not a model that this version of dspp can read, or it is damaged: {reason}"
        ) from None


def _measure_header(path: Path) -> tuple[int, int]:
    """Return the claimed length of the header in bytes, and a bound on the number of its values."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            return length, _count_values(file.read(min(length, MAX_HEADER_BYTES)))
    except OSError as problem:
        raise ModelFileError(f"cannot read {path}: {problem.strerror or problem}") from None


def _count_values(text: bytes) -> int:
    """Return an upper bound on the number of JSON values, including brackets hidden by escapes in nested text."""
    lower = text.lower()
    return sum(lower.count(mark) for mark in (b"[", b"{", b",", rb"\u005b", rb"\u007b", rb"\u002c"))


def _check_header_size(length: int, values: int) -> None:
    if length > MAX_HEADER_BYTES or values > MAX_HEADER_VALUES:
        raise InputError(
            f"expected a header of at most {MAX_HEADER_BYTES} bytes and {MAX_HEADER_VALUES} values, got {length} and "
            f"{values}; use fewer columns or categories"
        )


def _check_format(path: Path, header: Mapping[str, Any]) -> None:
    found, version = header.get("format"), header.get("version")
    if found != FORMAT:
        raise ModelFileError(
            f"{path} is not a model file of dspp: expected the format {FORMAT!r}, got {str(found)[:50]!r}"
        )
    if type(version) is not int:
        raise InputError(f"expected format version {VERSION}, got {str(version)[:20]!r}")
    if version != VERSION:
        which, remedy = ("a later", "upgrade dspp") if version > VERSION else ("an earlier", "fit the model again")
        raise ModelFileError(
            f"{path} was written by {which} dspp (format {str(version)[:20]}, this reads {VERSION}); {remedy}"
        )


def _check_digest(path: Path, tensors: Tensors, header: dict[str, Any]) -> None:
    """Check that the content is what was saved: with a flipped bit a model may work, but be wrong."""
    digest = header.pop("digest", None)
    if digest != storage.digest(tensors, header):
        what = "is missing" if digest is None else "does not match"
        raise ModelFileError(f"{path} is damaged: its hash {what}; use another copy of it")


def _check_features(path: Path, own: bool, features: nn.Module | None) -> None:
    if own and features is None:
        raise ModelFileError(
            f"{path}: this model has a custom features module. A file holds its weights but not its code; create the "
            "module as for training, and pass it as load(path, features=module)"
        )
    if features is not None and not own:
        raise ModelFileError(f"{path}: this model has no custom features module; load it without `features`")


def _restore(tensors: Tensors, header: Mapping[str, Any], features: nn.Module | None) -> Fitted:
    """Return the fitted model, or raise an InputError, ArithmeticError or RuntimeError."""
    check_tensors(tensors)
    D, T = get(header, "num_inputs", int), get(header, "num_outputs", int)
    described = get(header, "members", list[dict[str, Any]])
    parts = list(zip(described, split_members(tensors, len(described)), strict=True))
    bare_X, scale_y = (
        read_scale(tensors, "scale_X", (D,)),
        read_scale(tensors, "scale_y", (T,)),
    )  # before models are built from D and T
    scale_X = replace(bare_X, warp=read_warp(tensors, D))
    members = tuple(_restore_member(values, weights, (D, T), features) for values, weights in parts)
    conformal, conformal_folds = read_scores(tensors, T)
    names = read_names(header, "target_names", T) or ()
    kind, likelihood = find_outcome("auto", members[0].spec.model.likelihood, is_named=True)
    fitted = Fitted(
        members=members,
        weights=tuple(map(float, get(header, "weights", list[float]))),
        scale_X=scale_X,
        outcome=kind(names, likelihood, scale_y),
        encoder=read_encoder(get(header, "encoder", dict[str, Any] | None), D),
        feature_names=read_names(header, "feature_names", D),
        target_names=names,
        metrics={name: or_nan(value) for name, value in get(header, "metrics", dict[str, float | None]).items()},
        notes=notes_from_json(get(header, "notes", list[Any])),
        versions=get(header, "versions", dict[str, str]),
        conformal=conformal,
        num_rows=get(header, "num_rows", int),
        params=get(header, "params", dict[str, Any] | None) if "params" in header else None,
        spread=read_number(header, "spread"),
        guard=read_guard(tensors, get(header, "guard", float | None), T),
        trees=read_trees(tensors, get(header, "trees", bool), D),
        scored=get(header, "scored", str),
        conformal_folds=conformal_folds,
        judged=get(header, "judged", int | None),
        input_range=read_input_range(tensors, scale_X),
        seen_rows=read_seen_rows(tensors),
    )
    if cheap_to_factorise([member.model for member in members]):
        for member in members:
            _ = member.predictor  # may raise NumericalError; cached for the first prediction
    return fitted


def _restore_member(
    values: dict[str, Any], weights: Tensors, size: tuple[int, int], features: nn.Module | None
) -> Member:
    spec = read_spec(get(values, "spec", dict[str, Any]))
    kind = MEMBERS[get(values, "kind", str)]
    D, T = size
    history = tuple(read_epoch(epoch) for epoch in get(values, "history", list[dict[str, Any]]))
    return kind(
        spec=spec,
        train=read_config(TrainConfig, get(values, "train", dict[str, Any])),
        model=read_model(spec.model, weights, values, (D + kind.reads_trees, T), features),
        history=history,
        best_epoch=one_of(get(values, "best_epoch", int | None), [None, *(epoch.number for epoch in history)]),
        seconds=float(get(values, "seconds", float)),
        fold=one_of(get(values, "fold", int | None), [None, *range(MAX_MEMBERS)]),
    )
