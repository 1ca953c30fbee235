"""Deep sigma point processes, or whatever model the user asks for, trained by steps on the columns alone."""

from typing import TYPE_CHECKING, Any, ClassVar

from dspp.config import ModelConfig
from dspp.members.base import MEMBERS, Member, Order, Run

if TYPE_CHECKING:  # predicting does not need it
    from dspp.training.result import FitResult
    from dspp.training.rows import Rows


@MEMBERS.register("plain")
class Dspp(Member):
    """A model of the user's preset, trained by steps."""

    kind: ClassVar[str] = "plain"
    title: ClassVar[str] = "columns alone"

    @classmethod
    def applies(cls, model: ModelConfig, has_trees: bool) -> bool:
        """Return True."""
        return True

    @classmethod
    def fit(cls, rows: "Rows", order: Order, run: Run) -> "FitResult":
        """Train the model by steps."""
        from dspp import training
        from dspp.training.rows import to_arguments

        more: dict[str, Any] = dict(run.options)
        if (held_out := order.validation) is not None:
            more |= {"X_val": held_out.x, "y_val": held_out.y, "weights_val": held_out.weights}
        return training.fit(
            order.spec,
            **to_arguments(rows),
            config=order.config,
            features=order.features,
            progress=run.bar or False,
            checkpoint=order.checkpoint,
            resume=run.resume and order.checkpoint is not None,
            time_budget=run.seconds,
            on_epoch=run.on_epoch,
            should_stop=run.should_stop,
            **more,
        )
