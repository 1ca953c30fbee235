"""Where the code under the frozen tests lives. This file follows the code; the tests and their data never change."""

import numpy as np
import pyarrow as pa
import torch

from dspp.batches import batch_indices
from dspp.codec import pack
from dspp.encoding.encoder import TableEncoder
from dspp.model import build
from dspp.prepare import split_rows
from dspp.settings import Settings
from dspp.table.split import split

__all__ = [
    "batch_indices",
    "encode",
    "encoder_json",
    "frozen_name",
    "held_out",
    "predictor_of",
    "split",
]


def held_out(num_rows, seed, validation_given, conformal):
    """Rows to train on, to validate with and to calibrate with, for a table in memory."""
    return split_rows(Settings(conformal=conformal, random_state=seed), num_rows, validation_given)


def encode(train: pa.Table, new: pa.Table):
    """Both tables as numbers, encoded as the first one teaches; and the names of the encoded columns."""
    encoder = TableEncoder.fit(train)
    return encoder.transform(train), encoder.transform(new), encoder.feature_names


def encoder_json(train: pa.Table):
    """What a model file keeps of the encoding; that levels share an input was not noted when it was recorded."""
    encoder = TableEncoder.fit(train)
    return pack(encoder)[1] | {"notes": [str(note) for note in encoder.notes if "share one" not in note.text]}


def predictor_of(spec, x, num_outputs, parameters):
    """A predictor of the model of `spec` with the given parameters, by their frozen names."""
    model = build(spec.model, torch.from_numpy(np.asarray(x)), num_outputs or 1)
    names = {frozen_name(name): name for name in model.state_dict()}
    dtype = getattr(torch, spec.model.dtype)
    model.load_state_dict(
        {names[n]: value.to(dtype) if value.is_floating_point() else value for n, value in parameters.items()}
    )
    return model.eval().predictor()


def frozen_name(name):
    """The name that a parameter had when the oracles were recorded."""
    return f"head.{name.removeprefix('likelihood.')}" if name.startswith("likelihood.") else name
