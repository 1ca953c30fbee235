"""The exceptions and warnings of `dspp`. Messages of errors follow one template: "expected X, got Y; do Z"."""


class DsppError(Exception):
    """Base class of all exceptions of `dspp`.

    Example:
        >>> import dspp
        >>> try:
        ...     dspp.load("missing.dspp")
        ... except dspp.DsppError as error:
        ...     print(type(error).__name__)
        ModelFileError
    """


class InputError(DsppError, ValueError):
    """An argument is not valid: data, a name, a size.

    Example:
        >>> import dspp
        >>> dspp.DSPPRegressor().fit([[1.0], [float("nan")]], [0.0, 1.0])
        Traceback (most recent call last):
        dspp.errors.InputError: ...
    """


class NumericalError(DsppError, ArithmeticError):
    """A computation produced non-finite numbers, or a matrix could not be factorised.

    Example:
        >>> import torch
        >>> from dspp import NormalMixture, NumericalError
        >>> try:
        ...     NormalMixture(torch.zeros(1), torch.zeros(1, 2), -torch.ones(1, 2), torch.tensor(0.1))
        ... except NumericalError as error:
        ...     print(str(error).split(";")[0])
        expected a positive variance, got -0.9 for component 0 in row 0
    """

    @property
    def finding(self) -> str:
        """The message without the advice after its semicolon, which is for training."""
        return str(self).partition(";")[0]


class TrainingDiverged(DsppError, RuntimeError):  # noqa: N818 - the name says what happened
    """Non-finite losses occurred more often than training may recover from.

    Example:
        >>> import numpy as np
        >>> from dspp import Rows, TrainConfig, TrainingDiverged, fit, preset
        >>> X = np.linspace(-1.0, 1.0, 20)[:, None]
        >>> config = TrainConfig(epochs=1, restarts=1, learning_rate=1e30, max_recoveries=0)
        >>> try:
        ...     fit(preset("ppgpr", inducing=4), Rows.of(X, X[:, 0]), config=config)
        ... except TrainingDiverged:
        ...     print("lower the learning rate")
        lower the learning rate
    """


class ModelFileError(DsppError, OSError):
    """A model file cannot be read or written.

    Example:
        >>> import dspp
        >>> try:
        ...     dspp.load("missing.dspp")
        ... except dspp.ModelFileError as error:
        ...     print("missing.dspp" in str(error))
        True
    """


class CheckpointError(DsppError, OSError):
    """A checkpoint cannot be read or written.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from dspp import CheckpointError, Rows, fit, preset
        >>> X = np.linspace(-1.0, 1.0, 20)[:, None]
        >>> with tempfile.NamedTemporaryFile() as file:  # not a checkpoint
        ...     try:
        ...         fit(preset("ppgpr"), Rows.of(X, X[:, 0]), checkpoint=file.name)
        ...     except CheckpointError:
        ...         print("choose another file")
        choose another file
    """


class TrainingInterrupted(DsppError, RuntimeError):  # noqa: N818 - the name says what happened
    """Training was interrupted; the message says how to resume.

    Example:
        >>> import numpy as np
        >>> from dspp import Rows, TrainingInterrupted, fit, preset
        >>> X = np.linspace(-1.0, 1.0, 20)[:, None]
        >>> try:
        ...     fit(preset("ppgpr", inducing=4), Rows.of(X, X[:, 0]), should_stop=lambda: True)
        ... except TrainingInterrupted as error:
        ...     print(str(error).split(";")[0])
        training was stopped at step 1
    """


class DsppWarning(UserWarning):
    """A finding that is not an error, such as the notes on a fit, which `fitted_.notes` keeps.

    `warnings.simplefilter("ignore", dspp.DsppWarning)` silences all of them.

    Example:
        >>> import warnings
        >>> import numpy as np
        >>> from dspp import DsppWarning, PPGPRRegressor
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> with warnings.catch_warnings(record=True) as found:
        ...     warnings.simplefilter("always", DsppWarning)
        ...     model = PPGPRRegressor(epochs=2, inducing=8).fit(X, np.ones(60))
        >>> print(found[0].message)
        this fit has 1 note:
          target 'y' is 1 in every row: the model can only repeat it
    """
