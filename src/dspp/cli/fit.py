"""`dspp fit` and `dspp tune`: from a table to a model file."""

import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspp.cli import show, sources
from dspp.cli.files import (
    check_distinct,
    check_inputs,
    check_output,
    check_regular,
    check_report,
    discard_run,
    file_size,
    source_name,
    stdin_as_file,
)
from dspp.cli.fit_options import FitOptions
from dspp.cli.options import csv_format
from dspp.cli.session import INTERRUPTED, Session, Stopped
from dspp.engines import check_engine
from dspp.errors import CheckpointError, TrainingInterrupted
from dspp.extras import require

if TYPE_CHECKING:
    from dspp.evaluate import Evaluation
    from dspp.fitted import Fitted
    from dspp.prepare import Prepared
    from dspp.progress import ProgressBar
    from dspp.settings import Settings

REPORT_SECONDS = 5.0  # kept of a time budget for the report
REPORT_SHARE = 0.15  # of the progress bar
SAVING, REPORT = 0.5, 0.6  # shares of the work after training that are done before the model file, and the report

Trained = tuple["Fitted", "Evaluation | None"]

EXAMPLES = """Examples:

dspp fit train.csv --target price --out model.dspp

dspp fit train.parquet --target x --target y --out model.dspp --time-budget 5m --report report.html

dspp fit folder_of_parquet_files --target price --out model.dspp --memory 4GB

dspp fit train.csv --target price --drop id --model nn+dspp --features 100,20 --out model.dspp

dspp fit train.csv --target price --out model.dspp --tune --time-budget 1h"""
TUNE_EXAMPLES = """Examples:

dspp tune train.csv --target price --out model.dspp --time-budget 10m

dspp tune train.csv --target price --out model.dspp --trials 50 --study price.study

dspp tune train.csv --target price --out model.dspp --jobs 8 --engine ray --address 10.0.0.1:6379

Settings given as options are fixed, the rest is searched: with --width 5, only models of that width are tried."""


@dataclass(frozen=True, kw_only=True)
class Fit(FitOptions):
    """Train a model on a table.

    The table may contain text, dates and missing values. Some rows are held out to score the model and to correct it.
    After Ctrl-C, --resume continues.
    """

    def run(self, session: Session) -> None:
        """Train, save and score a model.

        Whatever can be checked without torch, which takes seconds to import, is checked before.
        """
        check_inputs(self.train, self.validation)
        _check_outputs(self)
        self.check_search()
        if self.tune:
            require("tune", "a search for settings")
        check_engine(self.engine, self.jobs, self.address)
        if self.engine == "ray":
            require("ray", "--engine ray")
        csv_format(self.sep, self.decimal, self.encoding)  # raises if they are not valid
        settings = self.settings(checkpoint=None if self.tune else self.resume_file, progress=session.bars)
        with stdin_as_file(self.train) as train, stdin_as_file(self.validation) as validation:
            opened = sources.open_sources(self, train, validation)
            with session.working(f"reading {opened.name}"):
                opened = opened.read(self, settings)
            _fit(self, session, settings, opened)


@dataclass(frozen=True, kw_only=True)
class Tune(Fit):
    """Search for good settings and save the best model; the same as `fit --tune`."""

    tune: bool = field(default=True, init=False)  # not an option


def _fit(options: FitOptions, session: Session, settings: "Settings", opened: sources.Sources) -> None:
    from dspp import modelfile
    from dspp.fitting import train

    with session.working(f"preparing {opened.name}"):
        prepared = sources.prepare_rows(options, settings, opened)
    source = f"held out of {opened.name}" if options.validation is None else source_name(options.validation)
    with ExitStack() as closing:
        with _stop_on_signal(options, session) as stop:
            session.say(*_describe_start(options, opened, prepared, settings))
            if options.overwrite and not options.resume and options.has_unfinished_run:
                discard_run(options.resume_files.values())
                session.say(f"note: discarded the unfinished run in {options.resume_file}")
            if options.tune:
                fitted, evaluation = _search(options, session, prepared, stop)
            bar = closing.enter_context(_open_bar(options, session))
            if not options.tune:
                spent = time.monotonic() - session.begin + (REPORT_SECONDS if options.report else 0.0)
                fitted, evaluation = train(
                    prepared, settings, should_stop=stop, resume=options.resume, spent=spent, bar=bar
                )
        bar.step(f"writing {options.out}", SAVING)
        modelfile.save(fitted, options.out)
        if options.study is None:
            with suppress(CheckpointError):  # another process has resumed the run and will remove them
                discard_run(options.resume_files.values())
        if options.report is not None:
            bar.step(f"writing {options.report}", REPORT)
            _report(fitted, evaluation, prepared, source, options.report)
    session.say(*_describe_result(fitted, evaluation, prepared, source, options))


def _check_outputs(options: FitOptions) -> None:
    inputs = (options.train, *([options.validation] if options.validation else []))
    written = {"--out": options.out, "--report": options.report, **options.resume_files}
    for path in inputs:
        check_distinct({"an input": path, **written})
    check_output(options.out, options.overwrite, *inputs)
    if options.report is not None:
        require("report", "--report")
        check_report(options.report, options.overwrite, *inputs)
    for path in options.resume_files.values():
        if not path.is_dir():  # as for an ensemble
            check_regular(path)
    if options.has_unfinished_run and not options.resume and not options.overwrite:
        raise CheckpointError(
            f"{options.resume_file} already exists, from an unfinished run; pass --resume to resume it, or --overwrite "
            "to discard it"
        )


# ---------------------------------------------------------------- training


def _describe_start(
    options: FitOptions, opened: sources.Sources, prepared: "Prepared", settings: "Settings"
) -> list[str]:
    """Return a description of the data and the model, printed before training."""
    assert prepared.encoder is not None
    several = f" in {opened.files} files" if opened.files > 1 else ""
    held_out = f", {len(prepared.validation):,} for choosing the best epoch" if len(prepared.validation) else ""
    model = _describe_model(prepared, settings)
    if prepared.split.num_folds and not len(prepared.validation):
        held_out = f", of which each member holds out {prepared.split.held_out(0).sum():,}"
    lines = [
        f"{opened.name}: {prepared.table_rows:,} rows{several}, {opened.columns} columns",
        f"  predicting  {', '.join(options.target)}",
        f"  from        {show.kinds_line(prepared.encoder.describe())}",
        f"  rows        {prepared.num_rows:,} for training{held_out}",
    ]
    lines.append(f"  model       {f'{options.model}, with settings to be searched' if options.tune else model}")
    return lines + [f"note: {note}" for note in prepared.notes]


def _describe_model(prepared: "Prepared", settings: "Settings") -> str:
    plan = prepared.plan(settings)
    each = show.settings_line(plan.spec, plan.config.epochs)
    if plan.is_single:
        return each
    quick = len(plan.slots) - plan.in_steps
    others = f"; and {quick} single GP{'s' if quick > 1 else ''}" if quick else ""
    return f"{plan.in_steps} members; each {each}{others}"


@contextmanager
def _stop_on_signal(options: FitOptions, session: Session) -> Iterator[Callable[[], bool]]:
    """Yield a callable that returns whether a signal has arrived; after one, exit and tell the user how to resume."""
    from dspp.training.signals import stop_on_signals

    try:
        with stop_on_signals() as stop:
            try:
                yield stop
            except TrainingInterrupted:
                if stop.signal is None:
                    raise
        if stop.signal is not None:
            raise Stopped(128 + stop.signal)
    except (Stopped, KeyboardInterrupt) as stopped:
        if not options.resume_file.exists():
            raise
        code = stopped.code if isinstance(stopped, Stopped) else INTERRUPTED
        how = f"stopped; the state is in {options.resume_file}. To resume: {session.command('--resume')}"
        raise Stopped(code, how) from None


def _open_bar(options: FitOptions, session: Session) -> "ProgressBar":
    """Return the progress bar of training, scores, model file and report."""
    from dspp.fitting import LATER
    from dspp.progress import ProgressBar
    from dspp.training.run import SMOOTHING

    later = LATER + (REPORT_SHARE if options.report else 0.0)
    return ProgressBar(1 if options.tune else None, session.bars, smoothing=SMOOTHING, later=later)


def _search(options: FitOptions, session: Session, prepared: "Prepared", stop: Callable[[], bool]) -> Trained:
    """Train models with many settings and return the one with the best validation NLL."""
    from dspp.fitting import CHOSE_SETTINGS, evaluate_validation
    from dspp.tuning.result import TRIALS
    from dspp.tuning.search import search
    from dspp.tuning.space import Space

    params = options.params()
    time_budget = params.pop("time_budget", None)
    result = search(
        prepared,
        Space((options.preset,), None, params | {"random_state": options.seed, "progress": session.bars}),
        trials=options.trials or TRIALS,
        time_budget=time_budget,
        study=options.resume_file,
        should_stop=stop,
    )
    session.say(f"Best of {len(result.trials)} settings: {_format_params(result.best_params)}")
    fitted = result.best_estimator.fitted_
    evaluation = evaluate_validation(fitted, prepared)
    return fitted, evaluation if evaluation is None else replace(evaluation, caveat=CHOSE_SETTINGS)


def _format_params(params: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in params.items()
    )


# ---------------------------------------------------------------- results


def _describe_result(
    fitted: "Fitted", evaluation: "Evaluation | None", prepared: "Prepared", source: str, options: FitOptions
) -> list[Any]:
    lines: list[Any] = []
    if evaluation is not None:
        kind = "Out-of-fold scores" if len(evaluation.parts) > 1 else "Scores"
        title = f"{kind} on {len(evaluation.table):,} rows ({source})"
        lines += ["", *show.score_table(title, evaluation.scores, "fit"), evaluation.calibration.verdict()]
    lines += [show.training_lines(fitted)]
    lines += [f"note: {note}" for note in fitted.notes if note not in prepared.notes]
    lines.append(f"Model:  {options.out} ({file_size(options.out)})")
    if options.report is not None:
        lines.append(f"Report: {options.report}")
    return [*lines, f"Next:   dspp predict {shlex.quote(str(options.out))} new.csv --out predictions.csv"]


def _report(fitted: "Fitted", evaluation: "Evaluation | None", prepared: "Prepared", source: str, path: Path) -> None:
    from dspp.report import write_evaluation_report

    if evaluation is None:
        from dspp.evaluate import evaluate
        from dspp.fitting import TRAINED_ON

        evaluation, source = evaluate(fitted, prepared.table), "the table it was trained on"
        evaluation = replace(evaluation, caveat=TRAINED_ON)
    write_evaluation_report(evaluation, path, source)
