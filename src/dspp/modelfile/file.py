"""Writing and reading the file: what is checked before anything is parsed, and the way back to a `Fitted`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from dspp import storage
from dspp.config import TrainConfig
from dspp.errors import InputError, ModelFileError
from dspp.fitted import Fitted, Member
from dspp.likelihoods import LIKELIHOODS
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
    read_spec,
    write_header,
)
from dspp.modelfile.version1 import from_version_1
from dspp.modelfile.weights import (
    Tensors,
    cheap_to_factorise,
    check_tensors,
    has_own_features,
    read_model,
    read_scale,
    read_scores,
    split_members,
    write_tensors,
)
from dspp.notes import notes_from_json
from dspp.registry import UnknownPartError

MAX_HEADER_BYTES = 8_000_000  # JSON takes up to 30 times its size in memory,
MAX_HEADER_VALUES = 400_000  # but no more than this many lists, objects and members of them


def save(fitted: Fitted, path: str | Path) -> None:
    """Write `fitted` to one file, whole or not at all.

    A features module of your own is kept by its weights only: `load` needs the module again, one for all members.

    Raises:
        ModelFileError: It could not be written, or could not be loaded again; what was at `path` is still there.
    """
    own = [has_own_features(member, fitted.num_inputs) for member in fitted.members]
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
    """Read what `save` wrote; its predictions are the same, to the last bit. The model is on the CPU.

    The parts of your own that predictions need (kernel, mean, rule, topology, likelihood) must be registered: import
    their module first. The preset, the objective and the schedule are not needed until the model is fitted again.

    Args:
        path: of the file.
        features: the module that stood in front, if it was one of your own; a copy is taken.

    Raises:
        ModelFileError: There is no such file, or dspp did not write it, or it is damaged, or a later dspp wrote it, or
            a part that it names is not registered.
    """
    path = Path(path)
    try:
        if path.is_file():  # if not, `storage.read` says what it is
            length, values = _measure_header(path)
            if length > path.stat().st_size:  # what the first letters of a text come to, read as a number
                raise ModelFileError(f"{path} is not a model that dspp wrote, or its end is missing; check the path")
            _check_header_size(length, values)
        tensors, header = storage.read(path, ModelFileError)
        _check_format(path, header)
        _check_digest(path, tensors, header)
        if header["version"] == 1:
            tensors, header = from_version_1(tensors, header)
        members = get(header, "members", list[dict[str, Any]])
        _check_features(path, any(member.get("features") == "custom" for member in members), features)
        return _restore(tensors, header, features)
    except UnknownPartError as problem:
        raise ModelFileError(
            f"{path}: unknown {problem.part}; import the module that registers it before loading (on the command line: "
            "--import MODULE)"
        ) from None
    except (InputError, ArithmeticError, RuntimeError) as problem:  # RuntimeError: torch's, and JSON that is too deep
        reason = f"{problem!s:.500}"
        raise ModelFileError(f"{path} is not a model that this dspp can read, or it is damaged: {reason}") from None


def _measure_header(path: Path) -> tuple[int, int]:
    """Bytes of the header, as claimed, and how many values it may hold."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            return length, _count_values(file.read(min(length, MAX_HEADER_BYTES)))
    except OSError as problem:
        raise ModelFileError(f"cannot read {path}: {problem.strerror or problem}") from None


def _count_values(text: bytes) -> int:
    """At least the number of JSON values; escapes are how a text inside a text could hide its brackets."""
    lower = text.lower()
    return sum(lower.count(mark) for mark in (b"[", b"{", b",", rb"\u005b", rb"\u007b", rb"\u002c"))


def _check_header_size(length: int, values: int) -> None:
    if length > MAX_HEADER_BYTES or values > MAX_HEADER_VALUES:
        raise InputError(
            f"got a header of {length} bytes and {values} values, expected at most {MAX_HEADER_BYTES} and "
            f"{MAX_HEADER_VALUES}; a model with fewer columns or categories has a smaller one"
        )


def _check_format(path: Path, header: Mapping[str, Any]) -> None:
    found, version = header.get("format"), header.get("version")
    if found != FORMAT:
        raise ModelFileError(f"{path} is no model of dspp: its format is {str(found)[:50]!r}, expected {FORMAT!r}")
    if type(version) is not int or version < 1:
        raise InputError(f"got format version {str(version)[:20]!r}, expected 1 to {VERSION}")
    if version > VERSION:
        raise ModelFileError(
            f"{path} was written by a later version of dspp (format {str(version)[:20]}, this reads up to {VERSION}); "
            "upgrade dspp"
        )


def _check_digest(path: Path, tensors: Tensors, header: dict[str, Any]) -> None:
    """Refuse what is not what was saved: a flipped bit may make a model that works, and is wrong."""
    digest = header.pop("digest", None)  # files from before it have none
    if digest is not None and digest != storage.digest(tensors, header):
        raise ModelFileError(f"{path} is damaged: its hash does not fit; take another copy of it")


def _check_features(path: Path, own: bool, features: nn.Module | None) -> None:
    if own and features is None:
        raise ModelFileError(
            f"{path}: a features module of the user's own stands in front of this model. A file holds its weights but "
            "not its code: make the module as it was made for training, and pass it as load(path, features=module)"
        )
    if features is not None and not own:
        raise ModelFileError(f"{path}: this model has no features module of the user's own; load it without `features`")


def _restore(tensors: Tensors, header: Mapping[str, Any], features: nn.Module | None) -> Fitted:
    """The fitted model, or an InputError, ArithmeticError or RuntimeError that says what is wrong."""
    check_tensors(tensors)
    D, T = get(header, "num_inputs", int), get(header, "num_outputs", int)
    described = get(header, "members", list[dict[str, Any]])
    parts = list(zip(described, split_members(tensors, len(described)), strict=True))
    scale_X, scale_y = read_scale(tensors, "scale_X", (D,)), read_scale(tensors, "scale_y", (T,))  # models believe D, T
    members = tuple(_restore_member(values, weights, (D, T), features) for values, weights in parts)
    fitted = Fitted(
        members=members,
        weights=tuple(map(float, get(header, "weights", list[float]))),
        scale_X=scale_X,
        codec=LIKELIHOODS[members[0].spec.model.likelihood].codec(scale_y),
        encoder=read_encoder(get(header, "encoder", dict[str, Any] | None), D),
        feature_names=read_names(header, "feature_names", D),
        target_names=read_names(header, "target_names", T) or (),
        metrics={name: or_nan(value) for name, value in get(header, "metrics", dict[str, float | None]).items()},
        notes=notes_from_json(get(header, "notes", list[Any])),
        versions=get(header, "versions", dict[str, str]),
        conformal=read_scores(tensors, T),
        num_rows=get(header, "num_rows", int),
        params=get(header, "params", dict[str, Any] | None) if "params" in header else None,
    )
    if cheap_to_factorise([member.model for member in members]):
        for member in members:
            _ = member.predictor  # or NumericalError; kept for the first prediction
    return fitted


def _restore_member(
    values: dict[str, Any], weights: Tensors, size: tuple[int, int], features: nn.Module | None
) -> Member:
    spec = read_spec(get(values, "spec", dict[str, Any]))
    history = tuple(read_epoch(epoch) for epoch in get(values, "history", list[dict[str, Any]]))
    return Member(
        spec=spec,
        train=read_config(TrainConfig, get(values, "train", dict[str, Any])),
        model=read_model(spec.model, weights, values, size, features),
        history=history,
        best_epoch=one_of(get(values, "best_epoch", int | None), [None, *(epoch.number for epoch in history)]),
        seconds=float(get(values, "seconds", float)),
    )
