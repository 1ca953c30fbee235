"""Dataclasses to tensors and JSON and back: a new field is one line, an old file may lack it, nothing is trusted."""

import json
import math
from abc import ABC
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
import pytest
import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from dspp.codec import AnyFloat, Range, pack, unpack
from dspp.errors import InputError


@dataclass
class Inner:
    number: AnyFloat
    name: str = "none"


@dataclass
class Outer:
    count: int
    flag: bool
    inner: Inner
    weights: dict[str, Tensor] = field(default_factory=dict)
    moments: dict[str, Tensor] = field(default_factory=dict)
    best: dict[str, Tensor] | None = None
    maybe: Inner | None = None
    several: tuple[Inner, ...] = ()
    numbers: tuple[AnyFloat, ...] = ()
    values: dict[str, AnyFloat] = field(default_factory=dict)
    limit: float | None = None


WHOLE = Outer(
    count=3,
    flag=True,
    inner=Inner(-math.inf, "a.b"),
    weights={"layers.0.mean": torch.ones(2), "noise": torch.zeros(())},
    moments={"0.step": torch.ones(1), "0.exp.avg": torch.zeros(3), "12.step": torch.ones(1)},
    best={"noise": torch.ones(())},
    maybe=Inner(2.0),
    several=(Inner(1.0), Inner(math.inf)),
    numbers=(1.0, math.inf),
    values={"7": 0.5, "8": -math.inf},
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
    assert plain["values"] == {"7": 0.5, "8": "-inf"}


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
    with pytest.raises(InputError, match="damaged"):
        unpack(Outer, tensors, plain | change)


def test_a_field_without_a_default_has_to_be_there() -> None:
    tensors, plain = pack(WHOLE)
    del plain["count"]
    with pytest.raises(InputError, match="count"):
        unpack(Outer, tensors, plain)


# ---------------------------------------------------------------- arrays, ranges and kinds


@dataclass(frozen=True, eq=False)
class Table:
    x: Float[np.ndarray, "N D"]
    y: Float[Tensor, " N"]
    levels: Int[np.ndarray, " *L"] | None = None
    small: Float32[np.ndarray, "2 D"] | None = None
    scale: Annotated[Float[np.ndarray, " D"], Range(1e-3, 1e3)] | None = None
    share: Annotated[float, Range(0.0, 1.0)] = 0.5
    note: str = field(default="", metadata={"stored": False})

    def __post_init__(self) -> None:
        if self.share == 0.25:
            raise InputError("share: expected anything but a quarter, got one")


TABLE = Table(np.ones((3, 2)), torch.zeros(3, dtype=torch.float64), np.zeros((2, 1), np.int64), note="gone")


def test_arrays_come_back_with_their_types_and_what_is_not_stored_does_not() -> None:
    tensors, plain = pack(TABLE)
    assert (set(tensors), plain) == ({"x", "y", "levels"}, {"share": 0.5})
    back = unpack(Table, tensors, plain)
    assert isinstance(back.x, np.ndarray)
    assert isinstance(back.y, Tensor)
    assert back.levels is not None
    assert (back.x.shape, back.levels.shape, back.small, back.note) == ((3, 2), (2, 1), None, "")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.ones(3, 2)}, r"x: expected float64 of shape \(N, D\).*float32"),
        ({"x": torch.ones(3, dtype=torch.float64)}, r"x: expected float64 of shape"),
        ({"y": torch.ones(4, dtype=torch.float64)}, r"y: expected float64 of shape \(N\), N = 3"),
        ({"x": torch.full((3, 2), math.nan, dtype=torch.float64)}, "x: expected finite numbers"),
        ({"levels": torch.ones(2)}, "levels: expected int64"),
        ({"small": torch.ones(2, 3)}, "small: expected float32"),
        ({"small": torch.ones(3, 2)}, "small: expected float32"),
        ({"scale": torch.zeros(2, dtype=torch.float64)}, "scale: expected finite numbers from 0.001 to 1000, got 0 to"),
        ({"extra": torch.ones(1)}, "extra: not a tensor of this file"),
        ({"x": None}, "x: the tensor is missing"),
    ],
)
def test_wrong_arrays_are_refused(change: dict[str, Tensor | None], message: str) -> None:
    tensors, plain = pack(TABLE)
    given = {name: tensor for name, tensor in ({**tensors, **change}).items() if tensor is not None}
    with pytest.raises(InputError, match=message):
        unpack(Table, given, plain)


@pytest.mark.parametrize("share", [1.5, math.nan, math.inf, "nan", "0.5", True, None, 10**400, -(10**400), [0.5], 0.25])
def test_numbers_are_bounded(share: object) -> None:
    tensors, _ = pack(TABLE)
    with pytest.raises(InputError, match="share"):
        unpack(Table, tensors, {"share": share})


@dataclass(frozen=True)
class Shape(ABC):
    KINDS: ClassVar[dict[str, type["Shape"]]] = {}
    kind: ClassVar[str]
    name: str


@dataclass(frozen=True)
class Circle(Shape):
    kind = "circle"
    radius: float


@dataclass(frozen=True)
class Square(Shape):
    kind = "square"
    side: float


Shape.KINDS.update(circle=Circle, square=Square)


@dataclass(frozen=True)
class Drawing:
    shapes: tuple[Shape, ...]


def test_objects_of_several_kinds_come_back_as_they_were() -> None:
    drawing = Drawing((Circle("a", 1.0), Square("b", 2.0)))
    _, plain = pack(drawing)
    assert plain["shapes"][0] == {"kind": "circle", "name": "a", "radius": 1.0}
    assert unpack(Drawing, {}, plain) == drawing
    for kind, message in (
        ("star", "expected a kind from circle, square, got 'star'"),
        (1, "expected a kind"),
        (None, "expected a kind"),
    ):
        plain["shapes"][0]["kind"] = kind
        with pytest.raises(InputError, match=message):
            unpack(Drawing, {}, plain)
    for wrong in ([], [1], "x", None, {"a": 1}):
        if wrong != []:
            with pytest.raises(InputError):
                unpack(Drawing, {}, {"shapes": wrong})
