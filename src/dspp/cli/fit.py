"""`dspp fit` and `dspp tune`: from a table to a model file."""

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspp.cli import fit_disk, show
from dspp.cli.files import (
    Labelled,
    check_apart,
    check_columns,
    check_output,
    columns_of,
    file_size,
    located,
    read_labelled,
)
from dspp.cli.fit_options import FitOptions
from dspp.cli.options import duration
from dspp.cli.session import Session, Stopped
from dspp.errors import CheckpointError, InputError, TrainingInterrupted

if TYPE_CHECKING:
    import pyarrow as pa

    from dspp.estimators.regressor import Regressor

# What a note is about: that of the training rows alone may give other numbers than that of the whole table.
_SUBJECT = re.compile(r"""column (?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")( is left out)?: """)


@dataclass(frozen=True)
class Task:
    """The rows to learn from, and those that judge."""

    X: "pa.Table"
    y: "pa.Table"
    X_val: "pa.Table"  # the rows of --validation, or those that `fit` will hold out; possibly none
    y_val: "pa.Table"
    judges: str  # what to call them
    given: bool  # whether they were given in a file
    num_train: int  # rows of X that are not held out
    labels: Sequence[object] = ()  # what a report calls the rows of X; empty: their numbers
    labels_val: Sequence[object] = ()
    said: Iterable[str] = ()  # notes that the user has read before training


def run(options: FitOptions, session: Session) -> None:
    """Learn, save, and say how good the model is; under torchrun, with the other processes it has started."""
    from dspp.training.processes import join_launched

    with join_launched(options.device) as group:
        session.quiet |= group.rank > 0
        if group.size > 1 and options.tune:
            raise InputError("--tune trains many models: run it without torchrun, with --jobs for several processes")
        _run(options, session, first=group.rank == 0)


def _run(options: FitOptions, session: Session, first: bool) -> None:
    budget = duration(options.time_budget, "--time-budget")
    options.check_search()
    _check_outputs(options)
    estimator = options.estimator()
    if fit_disk.is_wanted(options):
        fitted, task = _from_disk(options, session, estimator, budget)
    else:
        with session.working(f"reading {options.train}"):
            task, lines = _read(options, estimator)
        session.say(*lines)
        with _resumable(options, session):
            fitted = (_searched if options.tune else _trained)(options, session, estimator, task, budget)
    if not first:  # the first process of a group writes and speaks for all
        return
    fitted.save(options.out)
    _tidy(options)
    if options.report is not None:
        with session.working(f"writing {options.report}"):
            _report(fitted, task, options.report)
    session.say(*_summary(fitted, task, options))


def _check_outputs(options: FitOptions) -> None:
    inputs = (options.train, *([options.validation] if options.validation else []))
    written = {"--out": options.out, "--report": options.report, **options.state}
    for path in inputs:
        check_apart({"what is read from": path, **written})
    check_output(options.out, options.overwrite, *inputs)
    if options.report is not None:
        check_output(options.report, options.overwrite, *inputs)
    if options.kept.exists() and not options.resume and options.study is None:
        raise CheckpointError(
            f"{options.kept} is there, from a run that did not finish: pass --resume to go on from it, or delete it"
        )


# ---------------------------------------------------------------- before


def _read(options: FitOptions, estimator: "Regressor") -> tuple[Task, list[str]]:
    """The rows, and what to say about them before training."""
    from dspp.data.encoding import TableEncoder

    data = read_labelled(options.train, options.target)
    names, drop = data.table.column_names, options.drop or []
    check_columns(options.train, names, drop, "--drop")
    left = [name for name in names if name not in (*options.target, *drop)]
    if not left:
        raise InputError(f"{options.train}: no column is left to learn from")
    with located(data.file):  # on all rows, so that errors name those of the file
        encoder = TableEncoder.fit(data.table.select(left), str(options.train))
    task = _task(options, estimator, data, left, encoder)
    held = f", {task.X_val.num_rows:,} to choose the best epoch" if task.X_val.num_rows else ""
    model = f"{options.model}, its settings searched" if options.tune else _model_line(task, estimator)
    lines = [
        f"{options.train}: {data.table.num_rows:,} rows, {len(names)} columns",
        f"  predicting  {', '.join(options.target)}",
        f"  from        {show.kinds_line(encoder.describe())}",
        f"  rows        {task.num_train:,} to train on{held}",
        f"  model       {model}",
    ]
    notes = [note for note in (*data.file.notes, data.left_out, *encoder.notes) if note]
    return replace(task, said=notes), lines + [f"note: {note}" for note in notes]


def _task(options: FitOptions, estimator: "Regressor", data: Labelled, names: list[str], encoder: Any) -> Task:
    from dspp.data.encoding import reading_types

    X, y = data.table.select(names).filter(data.observed), _targets(options.target, data)
    outputs = data.y[data.observed] if len(options.target) > 1 else None
    train, held, _ = estimator.parts(X.num_rows, options.seed, options.validation is not None, outputs)
    labels = data.numbers.tolist()
    if options.validation is None:
        judges, held_labels = f"{options.train}, held out", data.numbers[held].tolist()
        return Task(X, y, X.take(held), y.take(held), judges, False, len(train), labels, held_labels)
    val = read_labelled(options.validation, options.target, reading_types(X.schema))
    check_columns(options.validation, val.table.column_names, names, "which training has")
    with located(val.file):
        encoder.marking(val.table, str(options.validation))
    X_val, y_val = val.table.select(names).filter(val.observed), _targets(options.target, val)
    return Task(X, y, X_val, y_val, str(options.validation), True, len(train), labels, val.numbers.tolist())


def _targets(names: list[str], data: Labelled) -> "pa.Table":
    """The targets of the rows that have any."""
    import pyarrow as pa

    y = data.y[data.observed]
    return pa.table({name: pa.array(column, from_pandas=True) for name, column in zip(names, y.T, strict=True)})


def _model_line(task: Task, estimator: "Regressor") -> str:
    config = estimator.train_config(task.num_train, estimator.random_state)
    return show.settings_line(estimator.spec(task.y.num_columns), config.epochs)


# ---------------------------------------------------------------- training


@contextmanager
def _until_signalled() -> Iterator[Callable[[], bool]]:
    """Yield a question for training to ask after each step; a signal then ends the work with its state kept."""
    from dspp.training.signals import stop_on_signals

    with stop_on_signals() as stop:
        try:
            yield stop
        except TrainingInterrupted:
            if stop.signal is None:  # another process of the group was stopped or lost
                raise
    if stop.signal is not None:
        raise Stopped(128 + stop.signal)


def _trained(
    options: FitOptions, session: Session, estimator: "Regressor", task: Task, budget: float | None
) -> "Regressor":
    """Train one model."""
    estimator.set_params(checkpoint=options.kept, time_budget=budget, progress=session.bars)
    given = {"X_val": task.X_val, "y_val": task.y_val} if task.given else {}
    with _until_signalled() as stop:
        estimator.fit(task.X, task.y, **given, should_stop=stop, resume=options.resume)
    return estimator


def _from_disk(
    options: FitOptions, session: Session, estimator: "Regressor", budget: float | None
) -> tuple["Regressor", Task]:
    """Train one model on a table larger than memory; of the rows, only those that judge are given back."""
    import pyarrow as pa

    with _resumable(options, session), _until_signalled() as stop:
        table = fit_disk.train(options, session, estimator, budget, stop)
    y = table.val.y.reshape(len(table.val), -1)
    targets = pa.table({name: pa.array(part, from_pandas=True) for name, part in zip(options.target, y.T, strict=True)})
    judges = f"{options.train}, held out" if options.validation is None else str(options.validation)
    X = table.val.rows.table
    given = options.validation is not None
    labels = table.val.labels
    return estimator, Task(X, targets, X, targets, judges, given, len(table), labels, labels, table.notes)


def _searched(
    options: FitOptions, session: Session, estimator: "Regressor", task: Task, budget: float | None
) -> "Regressor":
    """Train models of many settings, and take the one that did best on the validation rows."""
    from dspp.tuning import tune

    with _until_signalled() as stop:
        result = tune(
            task.X,
            task.y,
            X_val=task.X_val if task.given else None,
            y_val=task.y_val if task.given else None,
            models=(options.preset,),
            trials=options.trials,
            time_budget=budget,
            study=options.kept,
            base=options.settings(),
            seed=options.seed,
            progress=session.bars,
            should_stop=stop,
            jobs=options.jobs,
            engine=options.engine,
            address=options.address,
        )
    session.say(f"Best of {len(result.trials)} settings: {_words(result.best_params)}")
    return result.best_estimator


def _words(params: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in params.items()
    )


@contextmanager
def _resumable(options: FitOptions, session: Session) -> Iterator[None]:
    """Say how to go on, whatever ends the work before its time."""
    try:
        yield
    except (Stopped, KeyboardInterrupt) as stopped:
        if not options.kept.exists():
            raise
        code = stopped.code if isinstance(stopped, Stopped) else 130
        how = f"stopped; what was done is in {options.kept}. To go on: {session.command('--resume')}"
        raise Stopped(code, how) from None
    except TrainingInterrupted as problem:  # of a group: this process had no signal
        if not options.kept.exists():
            raise Stopped(1, str(problem)) from None
        how = f"what was done is in {options.kept}. To go on: {session.command('--resume')}"
        raise Stopped(1, f"another process was stopped or lost; {how}") from None


def _tidy(options: FitOptions) -> None:
    """Remove what only an unfinished run needs; a journal that was asked for stays."""
    if options.study is None:
        for path in options.state.values():
            path.unlink(missing_ok=True)


# ---------------------------------------------------------------- after


def _summary(fitted: "Regressor", task: Task, options: FitOptions) -> list[Any]:
    lines: list[Any] = []
    done = fitted.fitted_
    if done.metrics:
        calibration = fitted.calibration(columns_of(task.X_val, fitted.feature_names_in_), task.y_val)
        title = f"Scores on {task.X_val.num_rows:,} rows ({task.judges})"
        lines += ["", *show.score_table(title, done.metrics, "fit"), calibration.verdict()]
    best = "" if done.best_epoch is None else f"; the state of epoch {done.best_epoch} was kept"
    lines.append(f"Trained {len(done.history)} epochs in {show.seconds(done.seconds)}{best}.")
    said = {_subject(note) for note in task.said}
    for note in done.notes:
        if _subject(note) not in said:
            lines.append(f"note: {'in the rows trained on, ' if _SUBJECT.match(note) else ''}{note}")
    lines.append(f"Model:  {options.out} ({file_size(options.out)})")
    if options.report is not None:
        lines.append(f"Report: {options.report}")
    return [*lines, f"Next:   dspp predict {shlex.quote(str(options.out))} new.csv --out predictions.csv"]


def _subject(note: str) -> str:
    found = _SUBJECT.match(note)
    return note if found is None else found[0]


def _report(fitted: "Regressor", task: Task, path: Path) -> None:
    from dspp.report import write_model_report

    X, y, rows, labels = task.X_val, task.y_val, task.judges, task.labels_val
    if not X.num_rows:
        X, y, rows, labels = task.X, task.y, "the table it was trained on", task.labels
    X = columns_of(X, fitted.feature_names_in_)
    write_model_report(fitted, X, y, path, title="", rows=rows, row_labels=labels or None)
