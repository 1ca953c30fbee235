"""Encoding of durations written as text, such as "61 years 04 months", as a number of years."""

from collections import Counter
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float

from dspp.encoding.columns import Column, Parsed, by_chunk, with_mark, write
from dspp.table import arrays
from dspp.table.messages import Place

PATTERN: Final = r"^(?i)(?:(?P<years>\d{1,6}) *years?)?,? *(?:(?P<months>\d{1,6}) *months?)?$"


def parse_years(text: pa.Array) -> Float[np.ndarray, " n"]:
    """Return years + months / 12 of each string, NaN where it is missing or not a duration."""
    found = pc.extract_regex(text, PATTERN)
    parts = [
        pc.if_else(pc.equal(part, ""), None, part).cast(pa.float64()).to_numpy(zero_copy_only=False)
        for part in (pc.struct_field(found, name) for name in ("years", "months"))
    ]
    known = ~(np.isnan(parts[0]) & np.isnan(parts[1]))
    return np.where(known, np.nan_to_num(parts[0]) + np.nan_to_num(parts[1]) / 12, np.nan)


@dataclass(frozen=True)
class Duration(Column):
    """A column of durations as text; a missing one is replaced by `fill`, the training median, and indicated."""

    kind = "duration"
    missing: bool
    fill: float  # years

    @classmethod
    def fit(cls, name: str, counts: Counter[str], missing: int) -> "Duration | None":
        """Return the encoding for these counts of texts and of missing values, or None if a text is not a duration."""
        years = parse_years(pa.array(counts.keys(), pa.string()))
        if len(years) < 2 or np.isnan(years).any():
            return None
        median = float(np.median(np.repeat(years, list(counts.values()))))
        return cls(name, missing > 0, median)

    @property
    def features(self) -> tuple[str, ...]:
        """The years and, if values may be missing, the indicator."""
        return (f"{self.name} (years)", *with_mark(self.name, self.missing)[1:])

    @property
    def how(self) -> str:
        """A description of the encoding."""
        filled = f"; {self.fill:.6g} years where missing, and a column that marks it" if self.missing else ""
        return f"years and months as a number of years{filled}"

    def parse(self, values: pa.ChunkedArray, place: Place) -> Parsed:
        """Return the years, NaN where missing."""
        return by_chunk(_parse, values, place)

    def encode(self, parsed: Parsed, out: Float[np.ndarray, "n F"], place: Place, impute: bool = False) -> None:
        """Write the years and the indicator."""
        write(parsed, self.fill, self.missing, out, place, impute)


def _parse(array: pa.Array, place: Place) -> Float[np.ndarray, " n"]:
    text = arrays.texts(arrays.decode(array), place)
    years = parse_years(text)
    odd = np.flatnonzero(np.isnan(years) & ~text.is_null().to_numpy(zero_copy_only=False))
    if len(odd):
        got = text[int(odd[0])].as_py()
        raise place.error(f"expected a duration such as '61 years 4 months', got {got!r:.60}", int(odd[0]))
    return years
