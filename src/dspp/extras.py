"""Optional libraries, each part of an extra of this package, such as `pip install 'dspp[plot]'`."""

from importlib.util import find_spec
from typing import Final

from dspp.errors import InputError

EXTRAS: Final = {  # the modules that an extra provides; a test compares them with pyproject.toml
    "plot": ("matplotlib",),
    "report": ("jinja2", "matplotlib"),
    "tune": ("optuna",),
    "ray": ("ray",),
    "mlflow": ("mlflow",),
    "skpro": ("skpro",),
}


class MissingExtraError(InputError, ImportError):
    """An optional library is not installed; the message names the extra that provides it."""


def is_installed(extra: str) -> bool:
    """Return whether the libraries of an extra are installed; they are not imported."""
    return not _missing(extra)


def require(extra: str, what: str) -> None:
    """Check that the libraries of an extra are installed, without importing them.

    Raises:
        MissingExtraError: One of them is not installed; the subject of the message is `what`, such as "a figure".
    """
    if missing := _missing(extra):
        verb = "is" if len(missing) == 1 else "are"
        raise MissingExtraError(
            f"{what} needs {' and '.join(missing)}, which {verb} not installed; {how_to_install(extra)}"
        )


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra, as the end of a sentence."""
    return f"run pip install 'dspp[{extra}]'"


def _missing(extra: str) -> list[str]:
    return [name for name in EXTRAS[extra] if find_spec(name) is None]
