"""The same seed gives the same model, whatever torch's default dtype is."""

import pytest
import torch

from dspp.likelihoods import LIKELIHOODS
from dspp.model import build
from dspp.presets import preset
from dspp.quadrature import RULES

ROWS = torch.randn(60, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
CASES = [
    *(("dspp", {"rule": rule, "width": 2, "sites": 3}) for rule in RULES),
    *(("dspp", {"likelihood": name}) for name in LIKELIHOODS),
    ("ppgpr", {"likelihood": "student-t"}),
    ("nn+dspp", {"features": (8, 4)}),
    ("od-svgp", {}),
    ("dgp", {"hidden_mean": "zero", "top_mean": "linear", "layers": 3}),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "changes"), CASES, ids=str)
def test_the_default_dtype_changes_nothing(name: str, changes: dict, dtype: str) -> None:
    spec = preset(name, **{"inducing": 10, "dtype": dtype, **changes})
    states = []
    before = torch.get_default_dtype()
    for default in (torch.float32, torch.float64):
        torch.set_default_dtype(default)
        try:
            states.append(build(spec.model, ROWS, seed=3).state_dict())
        finally:
            torch.set_default_dtype(before)
    first, second = states
    assert first.keys() == second.keys()
    for key, value in first.items():
        assert value.dtype == second[key].dtype, key
        assert torch.equal(value, second[key]), key
