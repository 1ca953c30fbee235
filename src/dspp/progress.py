"""Progress: a bar on a terminal, or a line every few seconds, with the share done, a score and the time left."""

import math
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

SECONDS_BETWEEN_LINES = 5.0  # at least, where there is no terminal


class ProgressBar:
    """A progress bar on standard error; lines of text where that is no terminal, such as in a log file.

    Args:
        total: amount of work, in any unit; None if unknown.
        show: whether to show progress; None: only on a terminal.
        done: amount done before.
        score: name of the score.
        smoothing: weight of earlier scores in the score shown, from 0 to 1.
        later: share of the whole work that later steps take: see `step`.
    """

    def __init__(
        self,
        total: float | None,
        show: bool | None = None,
        *,
        done: int = 0,
        score: str = "NLL",
        smoothing: float = 0.0,
        later: float = 0.0,
    ) -> None:
        terminal = sys.stderr.isatty()
        self._show = terminal if show is None else show
        self._total, self._first, self._begin = total, done, time.perf_counter()
        self._lines, self._last_line = self._show and not terminal, self._begin
        self._name, self._smoothing = score, smoothing
        self._mean: float | None = None
        self._rows = 0
        self._later = later
        self._bar = Progress(
            SpinnerColumn(),  # shows that a long step is alive
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[facts]}", markup=False),
            console=Console(stderr=True),
            disable=not self._show or self._lines,
        )
        self._task = self._bar.add_task("starting", total=total, completed=done, facts="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None and self._later:
            self.step("finished", 1.0)
        self._bar.stop()

    def update(
        self,
        done: float,
        description: str,
        *,
        rows: int = 0,
        score: float | None = None,
        seconds_left: float | None = None,
    ) -> None:
        """Update the bar, or print a line if the last one is old enough.

        Args:
            done: amount done so far.
            description: the current activity.
            rows: rows processed since the last call.
            score: the latest score; None keeps the one shown.
            seconds_left: upper bound on the time left.
        """
        if not self._show:
            return
        seconds = max(time.perf_counter() - self._begin, 1e-9)
        self._rows += rows
        if score is not None:
            self._mean = score if self._mean is None else self._smoothing * self._mean + (1 - self._smoothing) * score
        total = None if self._total is None else self._total / (1.0 - self._later)
        percent = left = ""
        if total:
            percent = f"{100 * done / total:3.0f} %"
            estimate = seconds * (total - done) / max(done - self._first, 1e-9)
            if done > self._first:
                left = _clock(estimate if seconds_left is None else min(estimate, seconds_left))
        shown = "" if self._mean is None else f"{self._name} {self._mean:+.3f}"
        if self._lines:
            share = f"{percent.strip()} done" if percent else f"{self._rows:,} rows"
            self._print_line(f"{description}: {', '.join(filter(None, (share, shown, left)))}")
            return
        rate = f"{self._rows / seconds:,.0f} rows/s" if self._rows else ""
        facts = " ".join(filter(None, (percent, rate, shown, left)))
        self._bar.update(self._task, completed=done, description=description, facts=facts)

    def _print_line(self, text: str) -> None:
        now = time.perf_counter()
        if now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            print(text, file=sys.stderr, flush=True)

    def expect(self, total: float) -> None:
        """Change the total amount of work, without that of later steps."""
        self._total = total
        self._bar.update(self._task, total=total / (1.0 - self._later))

    def step(self, description: str, share: float = 0.0) -> None:
        """Show the beginning of a later step at once, since it may take long; in a log if there are lines already.

        Args:
            description: the step.
            share: share of the later work that is done by now.
        """
        total = self._total or 1.0
        if self._last_line > self._begin:
            self._last_line = -math.inf
        self.update(total * (1.0 + share * self._later / (1.0 - self._later)), description)


def open_bar(progress: bool | ProgressBar | None, total: float, **more: Any) -> AbstractContextManager[ProgressBar]:
    """Return the bar that was passed, which the caller closes, or a new one."""
    if isinstance(progress, ProgressBar):
        progress.expect(total)
        return nullcontext(progress)
    return ProgressBar(total, progress, **more)


def _clock(seconds: float) -> str:
    """Return a text such as `1:02:03 left` or `2:03 left`."""
    minutes, second = divmod(int(max(0.0, seconds)), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02d}:{second:02d} left" if hour else f"{minute}:{second:02d} left"
