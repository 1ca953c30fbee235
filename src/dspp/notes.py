"""Notes to the user: findings that are not errors."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dspp.errors import InputError


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


def notes_to_json(notes: Sequence[Note]) -> list[dict[str, str]]:
    """Return notes as JSON values."""
    return [asdict(note) for note in notes]


def notes_from_json(values: Sequence[Any]) -> tuple[Note, ...]:
    """Return the notes that `notes_to_json` wrote; in model files of version 1 they are plain text.

    Raises:
        InputError: The values are malformed; nothing in them is trusted.
    """
    return tuple(_note_from_json(value) for value in values)


def _note_from_json(value: Any) -> Note:
    if isinstance(value, str):
        return Note("", value)
    if not isinstance(value, dict) or set(value) != {"subject", "text"}:
        raise InputError(f"expected a note with subject and text, got {value!r:.60}; it is damaged")
    if not all(isinstance(part, str) for part in value.values()):
        raise InputError(f"expected a note made of text, got {value!r:.60}; it is damaged")
    return Note(**value)
