"""What a member is: a trained model that predicts alone, and the class of its kind that says how to train one."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jaxtyping import Float
from torch import Tensor, nn

from dspp.config import ModelConfig, TrainConfig
from dspp.history import Epoch
from dspp.model import Model, Predictor
from dspp.predictive import Predictive
from dspp.presets import Spec
from dspp.registry import Registry

if TYPE_CHECKING:  # predicting does not need it
    from dspp.progress import ProgressBar
    from dspp.training.budget import Budget
    from dspp.training.checkpoint import Checkpoint
    from dspp.training.result import FitResult
    from dspp.training.rows import Rows

HIDDEN_LAYER_SETTINGS = ("width", "hidden_mean", "topology", "rule", "sites", "test_sites")

Inputs = Float[np.ndarray, "N D"] | Float[Tensor, "N D"]


@dataclass(frozen=True, eq=False)
class Task:
    """A member to train."""

    number: int  # from 0
    kind: str  # its name in `MEMBERS`
    fold: int  # that it holds out
    spec: Spec
    config: TrainConfig  # with the seed and the epochs of this member
    columns: Float[np.ndarray, "N C"] | None = None  # the predictions of boosted trees, if it reads them
    is_pilot: bool = False  # it only tells how many epochs members should have, and has no checkpoint
    is_single: bool = False  # a model alone, whose held-out rows choose the epoch
    seconds: float | None = None  # time limit, from when the task is drawn; None: none
    features: nn.Module | None = None  # a custom module in front of the first layer
    checkpoint: "Path | Checkpoint | None" = None  # from which an interrupted training resumes

    def __str__(self) -> str:
        return f"member {self.number + 1}"


@dataclass(frozen=True)
class Control:
    """How long a fit may take, what it shows, and the callbacks of the user."""

    budget: "Budget"
    bar: "ProgressBar | None" = None
    on_epoch: Callable[[Epoch], None] | None = None  # of several members, called once each is trained
    should_stop: Callable[[], bool] | None = None  # called regularly; True interrupts, keeping the checkpoints
    resume: bool = True  # from existing checkpoints


@dataclass(frozen=True, eq=False)
class Member(ABC):
    """One trained model, in standardised units, and how it was trained. Each kind is a registered class.

    Example:
        >>> import numpy as np
        >>> from dspp import PPGPRRegressor
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> model = PPGPRRegressor(epochs=2, inducing=8).fit(X, X[:, 0])
        >>> member = model.fitted_.members[0]
        >>> member.spec.name, member.kind, len(member.history)
        ('ppgpr', 'plain', 2)
    """

    KINDS: ClassVar[Registry[Any]]
    NEEDS_ALL: ClassVar[bool] = True

    kind: ClassVar[str]  # its name, under which it is registered
    title: ClassVar[str]  # what members of this kind read, for the user
    reads_trees: ClassVar[bool] = False  # whether the last inputs are predictions of boosted trees
    in_steps: ClassVar[bool] = True  # takes nearly all of the time; kinds without steps take seconds and are extra
    share_in_folds: ClassVar[float] = 1.0  # of the weight of single members, which those of several folds keep

    spec: Spec  # the model and its objective
    train: TrainConfig  # training settings
    model: Model
    history: tuple[Epoch, ...]
    best_epoch: int | None  # the epoch that was kept; None without validation rows
    seconds: float  # training time
    fold: int | None = None  # the fold it was not trained on; None for a single model

    @classmethod
    def applies(cls, kinds: Sequence[str], model: ModelConfig, has_trees: bool) -> bool:
        """Return whether an ensemble has members of this kind.

        Args:
            kinds: Those of this package that can predict the outcome; a kind of one's own decides for itself.
            model: Settings of the model.
            has_trees: Whether boosted trees can be fitted to these rows.
        """
        return cls.kind in kinds

    @classmethod
    def spec_from(cls, spec: Spec, num_folds: int, num_columns: int = 1) -> Spec:
        """Return the model and the objective of this kind, given those of a DSPP and the number of trees' columns."""
        return spec

    @classmethod
    @abstractmethod
    def fit(cls, task: Task, rows: "Rows", validation: "Rows | None", control: Control) -> "FitResult":
        """Train the model; with validation rows, which choose the best epoch, not necessarily to the end.

        Raises:
            NumericalError: A matrix could not be factorised.
            TrainingDiverged: Training did not recover from non-finite numbers.
            TrainingInterrupted: `control.should_stop` returned True.
        """

    @classmethod
    def inputs(cls, X: Inputs, columns: Float[np.ndarray, "N C"] | None) -> Inputs:
        """Return what the model reads of encoded rows and the predictions of boosted trees for them."""
        if not cls.reads_trees:
            return X
        assert columns is not None
        return np.column_stack([np.asarray(X, dtype=np.float64), columns])

    def predict(self, X: Inputs, columns: Float[np.ndarray, "N C"] | None = None) -> Predictive:
        """Return the predictive distribution of each row; see `inputs`."""
        return self.predictor.predict(self.inputs(X, columns))

    @property
    def settings(self) -> dict[str, dict[str, Any]]:
        """The settings of the model, the objective and training, without those that have no meaning for this member.

        A single layer has no settings of hidden layers, and a member without epochs, such as a GP in closed form, none
        of training but the seed.
        """
        model, train = asdict(self.spec.model), asdict(self.train)
        if self.spec.model.layers == 1:
            model = {name: value for name, value in model.items() if name not in HIDDEN_LAYER_SETTINGS}
        if not self.history:
            train = {"seed": self.train.seed}
        return {"model": model, "objective": asdict(self.spec.objective), "training": train}

    @cached_property
    def predictor(self) -> Predictor:
        """The model frozen for predictions, created on first use; later changes of the model have no effect.

        Raises:
            NumericalError: the kernel matrix of the inducing points cannot be factorised.
        """
        return self.model.predictor()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the predictor out, which is made again where it is needed."""
        return {name: value for name, value in vars(self).items() if name != "predictor"}


@dataclass(frozen=True, eq=False)
class Trained:
    """A member after training, and its prediction for the rows it held out; `problem` says why there is none."""

    number: int
    kind: str
    fold: int
    member: Member | None = None
    result: "FitResult | None" = None
    held_out: Predictive | None = None
    problem: str = ""
    is_pilot: bool = False


MEMBERS: Registry[type[Member]] = Registry("kind of member")
Member.KINDS = MEMBERS
