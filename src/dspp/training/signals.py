"""Signals that ask a run to stop, as a flag that the training loop checks after each step."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopFlag:
    """The signal received, if any; pass it to `fit` as `should_stop`."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __call__(self) -> bool:
        """Return whether to stop."""
        return self.signal is not None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Record the first signal; a later Ctrl-C raises KeyboardInterrupt."""
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = self.signal or signal.Signals(number)


@contextmanager
def stop_on_signals() -> Iterator[StopFlag]:
    """Let SIGTERM and SIGINT (Ctrl-C) set a flag instead of ending the process; a second Ctrl-C ends it at once.

    The previous handlers are restored at the end. A signal that was ignored (as SIGINT is in a background job) stays
    ignored. Python delivers signals to the main thread only; in another thread the flag is never set.

    Example:
        >>> with stop_on_signals() as stop:
        ...     stop()
        False
    """
    flag = StopFlag()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, flag.handle)
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(
                number, signal.SIG_DFL if handler is None else handler
            )  # None: set by C code, which cannot be restored
