"""Conversion of files of versions 1, which hold one model, and 2, without corrections; both remain readable."""

from collections.abc import Mapping
from typing import Any

from dspp.errors import InputError
from dspp.modelfile.header import get, one_of
from dspp.modelfile.weights import Tensors
from dspp.upgrade import upgrade_settings, upgrade_tensors

WITHOUT_DIGEST = 1  # the last version of which some files, written in its first hours, have no digest
MEMBER_FIELDS = ("spec", "train", "features", "history", "best_epoch", "model_notes", "jitter_climbs", "seconds")


def from_version_1(tensors: Tensors, header: Mapping[str, Any]) -> tuple[Tensors, dict[str, Any]]:
    """Convert the model to a member, its head to a likelihood, and add an axis for a single output."""
    spec = get(header, "spec", dict[str, Any])
    model = get(spec, "model", dict[str, Any])
    one_of(model.get("head", "auto"), ("auto", "single", "lmc"))
    member = {name: header[name] for name in MEMBER_FIELDS if name in header}
    member["spec"] = spec | {"model": upgrade_settings(model)}
    renamed = {
        f"members.0.{name}" if name.startswith("model.") else name: tensor
        for name, tensor in upgrade_tensors(tensors).items()
    }
    upgraded = dict(header) | {"members": [member], "weights": [1.0]}
    if get(header, "num_outputs", int | None) is None:
        return _add_axis(renamed), upgraded | {"num_outputs": 1}
    return renamed, upgraded


def _add_axis(tensors: Tensors) -> Tensors:
    """Add the axis of outputs to the tensors of a single output."""
    columns = {"scale_y.mean": (1,), "scale_y.scale": (1,), "conformal": (-1, 1)}
    for name in tensors.keys() & columns.keys():
        axes = len(columns[name]) - 1
        if tensors[name].ndim != axes:
            raise InputError(f"{name}: expected {axes} axes, got shape {tuple(tensors[name].shape)}")
    return {name: value.reshape(columns.get(name, value.shape)) for name, value in tensors.items()}


def from_version_2(header: dict[str, Any]) -> dict[str, Any]:
    """Return the header of a file of version 2 with the fields that version 3 added, at values that change nothing."""
    plain = {"kind": "plain", "fold": None}
    members = [plain | member for member in get(header, "members", list[dict[str, Any]])]
    added = {"spread": 1.0, "held_out_spread": 1.0, "pull": 0.0, "guard": None, "trees": False, "scored": ""}
    return added | header | {"members": members}
