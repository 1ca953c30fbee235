"""The command line: `dspp fit`, `predict`, `evaluate`, `info`, `tune` and `demo`.

Modules here import torch only inside the functions that need it, so that help and completion are instant.
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
    """Run the command and exit with its exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    if "--debug" not in sys.argv:
        warnings.simplefilter("ignore")  # from other libraries; dspp prints its own
    app()
    sys.exit(0)  # not reached: `app` exits


def _terminate(number: int, frame: FrameType | None) -> None:
    """Raise, so that unfinished files are removed."""
    raise Stopped(128 + number)
