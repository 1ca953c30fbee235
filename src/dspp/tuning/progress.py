"""What a person sees of a search: the trial, the best NLL so far, the time left."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn


class SearchLine:
    """A line on standard error; silent when `show` is False or, by default, when nobody looks (not a terminal).

    Args:
        done: trials that are done already.
        total: trials altogether.
        show: whether to show it; None: only on a terminal.
    """

    def __init__(self, done: int, total: int, show: bool | None) -> None:
        self._show = sys.stderr.isatty() if show is None else show
        self._done, self._total, self._begin = done, total, time.perf_counter()
        columns = ("{task.description}", BarColumn(), "{task.fields[best]}", "{task.fields[left]}")
        self._bar = Progress(
            *(TextColumn(column) if isinstance(column, str) else column for column in columns),
            console=Console(stderr=True, force_terminal=self._show or None),
            disable=not self._show,
        )
        self._task = self._bar.add_task("starting", total=total, completed=done, best="", left="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def update(self, trial: int, share: float, best: float | None, seconds_left: float | None) -> None:
        """Show that `share` of trial number `trial` is done; `seconds_left` is for the whole search."""
        if not self._show:
            return
        completed = trial + share
        pace = (time.perf_counter() - self._begin) / max(completed - self._done, 1e-9)
        left = pace * (self._total - completed)
        left = max(0.0, left if seconds_left is None else min(left, seconds_left))
        self._bar.update(
            self._task,
            completed=completed,
            description=f"trial {min(trial + 1, self._total)} of {self._total}",
            best="" if best is None else f"best NLL {best:+.3f}",
            left=f"{int(left) // 60}:{int(left) % 60:02d} left",
        )
