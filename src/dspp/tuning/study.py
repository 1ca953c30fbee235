"""A search on disk: Optuna's journal, the best model so far beside it, and what the search was made with.

The journal is text, a JSON object a line; its file backend keeps no snapshots, so that nothing is ever unpickled.
"""

import hashlib
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import optuna
import pyarrow as pa
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from dspp.errors import CheckpointError, InputError
from dspp.prepare import Prepared
from dspp.storage import lock
from dspp.table.arrays import decoded

NAME = "dspp"  # of the study in its journal
HEAD = b'{"op_code":'  # how every journal begins
IDENTITY = "made with"  # the attribute that says what a study was made with
DONE = "trials done"  # the attribute that is written after each trial, when all of it has been
# Halving: at a quarter and at a half of its training a trial goes on if it is among the better half. On 16 settings of
# the default space, NLL after 1/8 of the epochs told little of the final one (rank correlation 0.21), after 1/4 0.77,
# after 1/2 0.96.
QUARTERS = 4  # of a trial's training: the steps that the pruner counts in
FACTOR = 2


@contextmanager
def opened(path: Path | None, identity: Mapping[str, str]) -> Iterator[optuna.Study]:
    """The study at `path`, begun or gone on with; in memory without a path.

    Args:
        path: the journal.
        identity: what the search is made with, each under a name that reads well in an error.

    Raises:
        InputError: the study was made with something else.
        CheckpointError: the journal cannot be read or written, or another process is using it.
    """
    with quiet():
        if path is None:
            yield optuna.create_study(pruner=halving())
            return
        with lock(best_file(path)):  # the journal's own ".lock" is Optuna's
            _cut(path)
            study = _journal(path, halving())
            _refuse_another(study, path, identity)
            yield study


def halving() -> optuna.pruners.BasePruner:
    """What ends weak trials."""
    return optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=FACTOR)


def mark(study: optuna.Study, done: int) -> None:
    """Note that so many trials are done; what comes after this line is cut off should the process die."""
    study.set_user_attr(DONE, done)


def best_file(path: Path) -> Path:
    """Where the best model so far is kept."""
    return path.with_name(f"{path.name}.best.dspp")


def digest(prepared: Prepared) -> str:
    """SHA-256 of the rows as they were given."""
    hasher = hashlib.sha256()
    for table in (prepared.table, prepared.validation_table):
        assert table is not None
        hasher.update(str(table.schema.remove_metadata()).encode())
        if table.arrow is not None:
            columns = {name: decoded(table.arrow.column(name).combine_chunks()) for name in table.names}
            for batch in pa.table(columns).to_batches():
                hasher.update(batch.serialize())
        for array in (table.array, table.targets):
            if array is not None:
                hasher.update(str(array.shape).encode())
                hasher.update(np.ascontiguousarray(array).data)
    return hasher.hexdigest()


@contextmanager
def quiet() -> Iterator[None]:
    """Silence Optuna's log and its notes on what is experimental, and leave its settings as they were."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


class _HeldElsewhere:
    """A lock for the journal that does nothing: `opened` holds one for the whole search.

    Optuna's own would be left behind by a process that was killed, and hold up the next one for half a minute.
    """

    def acquire(self) -> bool:
        """Nothing to wait for."""
        return True

    def release(self) -> None:
        """Nothing to let go of."""


def _journal(path: Path, pruner: optuna.pruners.BasePruner) -> optuna.Study:
    try:
        storage = JournalStorage(JournalFileBackend(str(path), lock_obj=_HeldElsewhere()))  # type: ignore[arg-type]
        if NAME in optuna.get_all_study_names(storage):
            return optuna.load_study(study_name=NAME, storage=storage, pruner=pruner)
        return optuna.create_study(study_name=NAME, storage=storage, pruner=pruner)
    except OSError as problem:
        raise CheckpointError(f"cannot use {path}: {problem.strerror or problem}; give another path") from None
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, AssertionError) as problem:
        raise CheckpointError(
            f"{path} is not the journal of a search, or it is damaged ({problem!r:.200}); give another path, or delete "
            "it to start afresh"
        ) from None


def _refuse_another(study: optuna.Study, path: Path, identity: Mapping[str, str]) -> None:
    known = study.user_attrs.get(IDENTITY)
    if known is None and not study.get_trials(deepcopy=False):
        study.set_user_attr(IDENTITY, dict(identity))
        mark(study, 0)
        return
    differs = [name for name, value in identity.items() if (known or {}).get(name) != value]
    if differs:
        raise InputError(
            f"{path} was made with another {', another '.join(differs)}; go on with what it was made with, give "
            "another path, or delete it to start afresh"
        )


def _cut(path: Path) -> None:
    """Drop what a process that died has left of its last trial, so that it is done again as if for the first time.

    Raises:
        CheckpointError: the file cannot be read, or is no journal; it is left alone.
    """
    if not path.exists():
        return
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise CheckpointError(f"cannot use {path}: {problem.strerror}; give another path") from None
    if not content.startswith(HEAD[: len(content)]):
        raise CheckpointError(f"{path} is there already and is not the journal of a search; give another path")
    whole = content[: content.rfind(b"\n") + 1]  # Optuna would write on in a torn line
    last_mark = whole.rfind(f'"{DONE}":'.encode())
    os.truncate(path, len(whole) if last_mark < 0 else whole.find(b"\n", last_mark) + 1)
