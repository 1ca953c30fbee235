"""Notes to the user: findings that are not errors."""

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from traceback import walk_stack

from dspp.errors import DsppWarning

MAX_LISTED = 10
_BETWEEN = ("dspp", "joblib", "mlflow", "sklearn", "skpro")  # packages that call us on behalf of the user
_LOOPS = ("sklearn.utils.parallel", "sklearn.model_selection")
_warned: set[tuple[str, str, int]] = set()  # from these loops: text, file and line


@dataclass(frozen=True)
class Note:
    """A note to the user.

    Attributes:
        subject: The subject, such as "column 'id' is left out"; empty if the text is complete. Two notes with the same
            subject say the same of different rows.
        text: The text about the subject.
    """

    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.text}" if self.subject else self.text


def note_missing_targets(count: int) -> list[Note]:
    """Return a note on rows without a target, if there are any."""
    return [Note("", f"{count:,} row{'s' if count > 1 else ''} without a target left out")] if count else []


def list_notes(notes: Sequence[Note]) -> str:
    """Return the notes, each on a line of its own that begins with a line break; of many, the first ones."""
    rest = f"\n  and {len(notes) - MAX_LISTED:,} more in fitted_.notes" if len(notes) > MAX_LISTED else ""
    return "".join(f"\n  {note}" for note in notes[:MAX_LISTED]) + rest


def warn_of_notes(notes: Sequence[Note]) -> None:
    """Warn of the notes on a fit, if there are any, all at once."""
    if notes:
        warn(f"this fit has {len(notes):,} note{'s' if len(notes) > 1 else ''}:{list_notes(notes)}")


def warn(text: str, in_loops: bool = True) -> None:
    """Issue a `DsppWarning` that points at the user's line, also if it led here through scikit-learn.

    From its loops over folds, settings and bags a line issues the same text once, or never unless `in_loops`: they make
    Python forget which warnings it has shown.
    """
    frames = list(walk_stack(sys._getframe()))
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in frames]
    level = next((k for k, name in enumerate(modules) if name.partition(".")[0] not in _BETWEEN), len(frames) - 1)
    frame, line = frames[level]
    issued = (text, frame.f_code.co_filename, line)
    in_loop = any(name.startswith(_LOOPS) for name in modules)
    if not in_loop or (in_loops and issued not in _warned):
        warnings.warn(text, DsppWarning, stacklevel=level + 1)
    if in_loop:
        _warned.add(issued)
