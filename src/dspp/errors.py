"""The exceptions of `dspp`. Messages follow one template: "expected X, got Y; do Z"."""


class DsppError(Exception):
    """Base class of all exceptions of `dspp`."""


class InputError(DsppError, ValueError):
    """An argument is not valid: data, a name, a size."""


class NumericalError(DsppError, ArithmeticError):
    """A computation produced non-finite numbers, or a matrix could not be factorised."""


class TrainingDiverged(DsppError, RuntimeError):  # noqa: N818 - the name says what happened
    """Non-finite losses occurred more often than training may recover from."""


class ModelFileError(DsppError, OSError):
    """A model file cannot be read or written."""


class CheckpointError(DsppError, OSError):
    """A checkpoint cannot be read or written."""


class TrainingInterrupted(DsppError, RuntimeError):  # noqa: N818 - the name says what happened
    """Training was interrupted; the message says how to resume."""
