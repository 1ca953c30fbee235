"""The errors a user of `dspp` can meet: a small tree, each saying what was got, what was expected, what to do."""


class DsppError(Exception):
    """Anything `dspp` raises on purpose."""


class InputError(DsppError, ValueError):
    """The caller gave something that cannot be used: data, a name, a size."""


class NumericalError(DsppError, ArithmeticError):
    """A computation left the finite numbers, or a matrix could not be factorised."""


class TrainingDiverged(DsppError, RuntimeError):  # noqa: N818 - the name says what happened
    """Training met non-finite losses more often than it was allowed to recover from."""


class ModelFileError(DsppError, OSError):
    """A model file cannot be read or written."""


class CheckpointError(DsppError, OSError):
    """A checkpoint cannot be read or written."""


class TrainingInterrupted(DsppError, RuntimeError):  # noqa: N818 - the name says what happened
    """Training was asked to stop before its end; the message says where it can go on from."""
