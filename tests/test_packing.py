"""Dataclasses to tensors and JSON and back: a new field is one line, and an old file may lack it."""

import json
import math
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from dspp.packing import pack, unpack


@dataclass
class Inner:
    number: float
    name: str = "none"


@dataclass
class Outer:
    count: int
    flag: bool
    inner: Inner
    weights: dict[str, Tensor] = field(default_factory=dict)
    moments: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    best: dict[str, Tensor] | None = None
    maybe: Inner | None = None
    several: tuple[Inner, ...] = ()
    numbers: tuple[float, ...] = ()
    values: dict[int, float] = field(default_factory=dict)
    limit: float | None = None


WHOLE = Outer(
    count=3,
    flag=True,
    inner=Inner(-math.inf, "a.b"),
    weights={"layers.0.mean": torch.ones(2), "noise": torch.zeros(())},
    moments={0: {"step": torch.ones(1), "exp.avg": torch.zeros(3)}, 12: {"step": torch.ones(1)}},
    best={"noise": torch.ones(())},
    maybe=Inner(2.0),
    several=(Inner(1.0), Inner(math.inf)),
    numbers=(1.0, math.inf),
    values={7: 0.5, 8: -math.inf},
    limit=1.5,
)


def there_and_back(value: Outer) -> Outer:
    tensors, plain = pack(value)
    return unpack(Outer, tensors, json.loads(json.dumps(plain, allow_nan=False)))


def test_everything_comes_back() -> None:
    back = there_and_back(WHOLE)
    for name in ("count", "flag", "inner", "maybe", "several", "numbers", "values", "limit"):
        assert getattr(back, name) == getattr(WHOLE, name), name
    torch.testing.assert_close(back.weights, WHOLE.weights)
    torch.testing.assert_close(back.moments, WHOLE.moments)
    torch.testing.assert_close(back.best, WHOLE.best)
    nothing = there_and_back(Outer(1, False, Inner(math.nan)))
    assert math.isnan(nothing.inner.number)
    assert (nothing.weights, nothing.moments, nothing.best, nothing.maybe, nothing.limit) == ({}, {}, None, None, None)


def test_tensors_have_dotted_names_and_the_rest_reads_well() -> None:
    tensors, plain = pack(WHOLE)
    assert set(tensors) == {
        "weights.layers.0.mean",
        "weights.noise",
        "moments.0.step",
        "moments.0.exp.avg",
        "moments.12.step",
        "best.noise",
    }
    assert plain["inner"] == {"number": "-inf", "name": "a.b"}
    assert plain["values"] == [[7, 0.5], [8, "-inf"]]


def test_a_field_that_an_older_file_lacks_has_its_default() -> None:
    tensors, plain = pack(WHOLE)
    del plain["several"], plain["inner"]["name"]
    back = unpack(Outer, {name: value for name, value in tensors.items() if "moments" not in name}, plain)
    assert (back.several, back.inner.name, back.moments) == ((), "none", {})


@pytest.mark.parametrize(
    "change", [{"count": "3"}, {"count": True}, {"other": 1}, {"inner": None}, {"values": 3}, {"numbers": ["x"]}]
)
def test_anything_else_is_refused(change: dict[str, object]) -> None:
    tensors, plain = pack(WHOLE)
    with pytest.raises((TypeError, ValueError, AttributeError)):
        unpack(Outer, tensors, plain | change)


def test_a_field_without_a_default_has_to_be_there() -> None:
    tensors, plain = pack(WHOLE)
    del plain["count"]
    with pytest.raises(TypeError, match="count"):
        unpack(Outer, tensors, plain)
