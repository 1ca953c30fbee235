"""Deep sigma point processes, or whatever model the user asks for, trained by steps on the columns alone."""

from typing import TYPE_CHECKING, ClassVar

from dspp.members.base import MEMBERS, Member, Run, Task

if TYPE_CHECKING:  # predicting does not need it
    from dspp.training.result import FitResult
    from dspp.training.rows import Rows


@MEMBERS.register("plain")
class Dspp(Member):
    """A model of the user's preset, trained by steps."""

    kind: ClassVar[str] = "plain"
    title: ClassVar[str] = "columns alone"

    @classmethod
    def fit(cls, task: Task, rows: "Rows", validation: "Rows | None", run: Run) -> "FitResult":
        """Train the model by steps."""
        from dspp import training

        return training.fit(
            task.spec,
            rows,
            validation,
            config=task.config,
            features=task.features,
            budget=run.budget,
            checkpoint=task.checkpoint,
            progress=run.bar or False,
            on_epoch=run.on_epoch,
            should_stop=run.should_stop,
        )
