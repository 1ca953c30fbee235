"""The command line: `dspp fit`, `predict`, `evaluate`, `info`, `tune` and `demo`.

Modules here import what needs torch inside the functions that use it, so that help and completion come at once.
"""

import signal
import sys
import warnings
from types import FrameType
from typing import NoReturn

from dspp.cli.app import app
from dspp.cli.session import Stopped

__all__ = ["app", "main"]


def main() -> NoReturn:
    """Run the command that was typed and end the process with its exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    if "--debug" not in sys.argv:
        warnings.simplefilter("ignore")  # of other libraries, to their developers; ours are notes and errors
    app()
    sys.exit(0)  # not reached: `app` ends the process


def _terminate(number: int, frame: FrameType | None) -> None:
    """End like an error, so that unfinished files are cleared away."""
    raise Stopped(128 + number)
