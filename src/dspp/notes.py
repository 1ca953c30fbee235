"""Notes to the user: what was found on the way that is no error."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dspp.errors import InputError


@dataclass(frozen=True)
class Note:
    """Something that the user should know.

    Attributes:
        subject: What it is about, such as "column 'id' is left out"; empty where the text says it all. Two notes on
            one subject say the same of different rows.
        text: What there is to say about it.
    """

    subject: str
    text: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.text}" if self.subject else self.text


def note_missing_targets(count: int) -> list[Note]:
    """A note on rows that have no target, if there are any."""
    return [Note("", f"{count:,} row{'s' if count > 1 else ''} without a target left out")] if count else []


def notes_to_json(notes: Sequence[Note]) -> list[dict[str, str]]:
    """Notes as plain JSON values."""
    return [asdict(note) for note in notes]


def notes_from_json(values: Sequence[Any]) -> tuple[Note, ...]:
    """The way back; model files of version 1 hold plain text.

    Raises:
        InputError: There is something else; nothing in it is trusted.
    """
    return tuple(_note_from_json(value) for value in values)


def _note_from_json(value: Any) -> Note:
    if isinstance(value, str):
        return Note("", value)
    if not isinstance(value, dict) or set(value) != {"subject", "text"}:
        raise InputError(f"a note must be text, or an object of subject and text, got {value!r:.60}; it is damaged")
    if not all(isinstance(part, str) for part in value.values()):
        raise InputError(f"a note must be made of text, got {value!r:.60}; it is damaged")
    return Note(**value)
