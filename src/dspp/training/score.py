"""The score that training compares models by: the negative log-likelihood (NLL) of rows."""

import math

import torch

from dspp.batches import derive_seed
from dspp.errors import NumericalError
from dspp.model import Model
from dspp.objectives import average
from dspp.training.rows import Rows

MAX_TRIAL_ROWS = 5_000  # training rows on which starts are compared
TRIAL_ROWS = 3  # derives the seed of these rows


def nll(model: Model, rows: Rows) -> float:
    """Return the NLL per row of the predictive distribution."""
    log_density = model.predictor()(rows.x).log_prob(rows.y).double()
    return -float(average(log_density, None if rows.weights is None else rows.weights.double()))


def finite_nll(model: Model, rows: Rows) -> float:
    """Return the NLL per row.

    Raises:
        NumericalError: it is not finite.
    """
    value = nll(model, rows)
    if not math.isfinite(value):
        raise NumericalError(f"the NLL of {len(rows)} rows is {value}")
    return value


def trial_rows(rows: Rows, seed: int) -> Rows:
    """Draw the rows on which starts are compared, at random because the table may be sorted."""
    if len(rows) <= MAX_TRIAL_ROWS:
        return rows
    generator = torch.Generator().manual_seed(derive_seed(seed, TRIAL_ROWS))
    return rows[torch.randperm(len(rows), generator=generator)[:MAX_TRIAL_ROWS].to(rows.x.device)]


def start_seed(seed: int, trial: int) -> int:
    """Return the seed of start number `trial`."""
    return derive_seed(seed, trial if trial < TRIAL_ROWS else trial + 1)
