"""One column of text classes: in the role of a file of `outcomes/`."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from labels_likelihood import Classes

from dspp.encoding.scaling import Standardizer
from dspp.errors import InputError
from dspp.guard import Guard
from dspp.metrics import METRICS, Comparison, Metric
from dspp.outcomes import OUTCOMES, Outcome, Panel, Wanted


class LabelComparison(Comparison):
    """Probabilities beside the observed classes, numbers from 0."""

    by_row_names: ClassVar[tuple[str, ...]] = ("log_density", "hit", "confidence")

    @staticmethod
    def check_targets(mixture: Any, y: Any) -> torch.Tensor:
        return torch.as_tensor(y, dtype=torch.float64)

    @cached_property
    def hit(self) -> torch.Tensor:
        return (self.mixture.log_probabilities.argmax(1) == self.y).double()

    @cached_property
    def confidence(self) -> torch.Tensor:
        return self.mixture.probabilities.amax(1)


METRICS.register("accuracy")(
    Metric(
        "Accuracy",
        lambda rows: rows.average(rows.hit).item(),
        "Share of rows whose most probable class is the observed one.",
        format="percent",
        targets="labels",
        shown=("fit", "evaluate", "report"),
        target=1.0,
    )
)


@dataclass(frozen=True)
class Confidence:
    """The verdict: whether the most probable class is right as often as it is probable."""

    accuracy: float
    confidence: float
    caveat: str

    def verdict(self) -> str:
        found = f"The likeliest class is right in {self.accuracy:.0%} of the rows and has {self.confidence:.0%}."
        return f"{found} {self.caveat}".rstrip()

    @property
    def is_too_narrow(self) -> bool:
        return self.confidence > self.accuracy + 0.1


@OUTCOMES.register("labels")
@dataclass(frozen=True, eq=False)
class Labels(Outcome):
    """K classes of one text column: C = E = 1, T = K."""

    kind: ClassVar[str] = "labels"
    default_likelihood: ClassVar[str] = "categorical"
    comparison: ClassVar[type[Comparison]] = LabelComparison
    headlines: ClassVar[tuple[str, ...]] = ("nll", "accuracy")
    score: ClassVar[str] = "accuracy"
    metrics = ("nll", "accuracy")
    member_kinds = ("plain", "trees")

    classes: tuple[str, ...] = ()

    @classmethod
    def of_columns(cls, columns: pa.Table, likelihood: str) -> "Labels":
        if columns.num_columns != 1:
            raise InputError(f"expected one column of classes, got {columns.num_columns}")
        found = sorted(pc.unique(columns.column(0)).drop_null().cast(pa.string()).to_pylist())
        return cls(tuple(columns.column_names), likelihood, classes=tuple(found))

    @property
    def num_outputs(self) -> int:
        return len(self.classes)

    def read(self, columns: pa.Table, place: Any) -> np.ndarray:
        texts = columns.column(0).cast(pa.string())
        codes = pc.index_in(texts, pa.array(self.classes, pa.string())).to_numpy().astype(float)
        codes[texts.is_null().to_numpy()] = np.nan
        unknown = np.flatnonzero(np.isnan(codes) & texts.is_valid().to_numpy())
        if len(unknown):
            got = texts[int(unknown[0])].as_py()
            problem = f"expected one of {', '.join(self.classes)}, got {got!r}; fit a model that knows it"
            raise place.of(columns.column_names[0]).error(problem, int(unknown[0]))
        return codes[:, None]

    def strata(self, values: np.ndarray) -> np.ndarray:
        return values[:, 0].astype(int)

    def to_numbers(self, values: np.ndarray, place: Any) -> np.ndarray:
        return values

    def fit(self, values: np.ndarray, place: Any, weights: np.ndarray | None = None) -> "Labels":
        return self.with_scale(Standardizer(np.zeros(1), np.ones(1)), place)

    def mean_target(self, y: np.ndarray) -> np.ndarray:
        return np.eye(len(self.classes))[y[:, 0].astype(int), 1:]

    def tree_target(self, y: np.ndarray) -> np.ndarray:
        return self.mean_target(y)  # one column for each class but the first

    def fit_guard(self, y: np.ndarray, weight: float, row_weights: np.ndarray | None = None) -> Guard:
        counts = np.bincount(y[:, 0].astype(int), row_weights, len(self.classes)) + 1.0
        logs = torch.from_numpy(np.log(counts / counts.sum()))[None]  # (1, K)
        return Guard(weight, torch.zeros(1, dtype=torch.float64), logs, torch.ones_like(logs))

    def marginal(self, guard: Guard, num_rows: int) -> Classes:
        return Classes(guard.mean.expand(num_rows, -1))

    def decode(self, predictive: Classes) -> Classes:
        return predictive.to(torch.float64)

    @property
    def attributes(self) -> dict[str, Any]:
        return {"classes_": np.array(self.classes)}

    @classmethod
    def set_tags(cls, tags: Any) -> Any:
        from sklearn.utils import ClassifierTags

        tags.estimator_type, tags.regressor_tags, tags.classifier_tags = "classifier", None, ClassifierTags()
        return tags

    def point(self, predictive: Classes) -> np.ndarray:
        return np.array(self.classes)[predictive.log_probabilities.argmax(1).numpy()]

    @property
    def point_columns(self) -> dict[str, type]:
        return {self.names[0]: str}

    def columns(self, predictive: Classes, wanted: Wanted, recalibrate: Callable[[float], Any]) -> dict[str, Any]:
        if len(wanted.quantiles) or wanted.levels or wanted.thresholds or wanted.components:
            raise InputError(f"expected predictions of classes, got quantiles or intervals of {self.names[0]!r}")
        name, columns = self.names[0], {}
        if wanted.moments:
            columns[name] = self.point(predictive)
            columns |= {
                f"{name}_p_{c}": p.numpy() for c, p in zip(self.classes, predictive.probabilities.T, strict=True)
            }
        draws = predictive.sample(wanted.samples, wanted.generator) if wanted.samples else ()
        return columns | {f"{name}_sample_{k}": np.array(self.classes)[draw.numpy()] for k, draw in enumerate(draws)}

    def constant(self, num_rows: int) -> None:
        return None

    def calibration(self, rows: LabelComparison, recalibrated: Any = None, caveat: str = "") -> Confidence:
        return Confidence(rows.average(rows.hit).item(), rows.average(rows.confidence).item(), caveat)

    def panels(self, rows: LabelComparison) -> list[Panel]:
        counts = Counter(rows.y.long().tolist())
        cells = [[name, f"{counts[k]:,}"] for k, name in enumerate(self.classes)]
        return [Panel("Classes", "How often each class was observed.", ("class", "rows"), cells)]
