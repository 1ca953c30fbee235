"""What a person sees while a model trains: a bar with epochs, rows/s, NLL and time left."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

SMOOTHING = 0.9  # of the NLL shown


class ProgressBar:
    """A bar on standard error; silent when `show` is False or, by default, when nobody looks (not a terminal).

    Args:
        total_steps: optimiser steps altogether.
        show: whether to show it; None: only on a terminal.
    """

    def __init__(self, total_steps: int, show: bool | None = None) -> None:
        self._show = sys.stderr.isatty() if show is None else show
        self._nll: float | None = None
        self._rows = 0
        self._since = time.perf_counter()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            _FieldColumn("rate"),
            _FieldColumn("nll"),
            TimeRemainingColumn(compact=True),
            console=Console(stderr=True, force_terminal=self._show or None),
            disable=not self._show,
        )
        self._task = self._bar.add_task("starting", total=total_steps, rate="", nll="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def update(self, step: int, label: str, rows: int, nll: float | None = None) -> None:
        """Show that `step` steps are done; `rows` more rows have been seen."""
        if not self._show:
            return
        self._rows += rows
        if nll is not None:
            self._nll = nll if self._nll is None else SMOOTHING * self._nll + (1 - SMOOTHING) * nll
        rate = self._rows / max(time.perf_counter() - self._since, 1e-9)
        shown = "" if self._nll is None else f"NLL {self._nll:+.3f}"
        self._bar.update(self._task, completed=step, description=label, rate=f"{rate:,.0f} rows/s", nll=shown)

    def expect(self, total_steps: int) -> None:
        """Show that there will be so many steps, after a change of plan."""
        self._bar.update(self._task, total=total_steps)


class _FieldColumn(ProgressColumn):
    """A field of the task as text."""

    def __init__(self, field: str) -> None:
        super().__init__()
        self._field = field

    def render(self, task: Task) -> Text:
        """The field."""
        return Text(str(task.fields.get(self._field, "")))
