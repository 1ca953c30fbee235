"""Deep sigma point processes, or whatever model the user asks for, trained by steps on the columns alone."""

from typing import TYPE_CHECKING, ClassVar

from dspp.members.base import MEMBERS, Control, Member, Task

if TYPE_CHECKING:  # predicting does not need it
    from dspp.training.result import FitResult
    from dspp.training.rows import Rows


@MEMBERS.register("plain")
class Dspp(Member):
    """A model of the user's preset, trained by steps."""

    kind: ClassVar[str] = "plain"
    title: ClassVar[str] = "columns alone"

    @classmethod
    def fit(cls, task: Task, rows: "Rows", validation: "Rows | None", control: Control) -> "FitResult":
        """Train the model by steps."""
        from dspp import training

        return training.fit(
            task.spec,
            rows,
            validation,
            config=task.config,
            features=task.features,
            budget=control.budget,
            checkpoint=task.checkpoint,
            progress=control.bar or False,
            on_epoch=control.on_epoch,
            should_stop=control.should_stop,
        )
