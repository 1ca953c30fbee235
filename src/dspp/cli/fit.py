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
from dspp.cli.session import INTERRUPTED, Session, Stopped
from dspp.engines import check_engine
from dspp.errors import CheckpointError, InputError, TrainingInterrupted
from dspp.extras import require

if TYPE_CHECKING:
    from dspp.evaluate import Evaluation
    from dspp.fitted import Fitted
    from dspp.prepare import Prepared
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
        self._check_outputs()
        for name in ("trials", "study"):
            if getattr(self, name) is not None and not self.tune:
                raise InputError(f"--{name} is an option of --tune; add --tune, or leave it out")
        if self.tune:
            require("tune", "a search for settings")
        check_engine(self.engine, self.jobs, self.address)
        if self.engine == "ray":
            require("ray", "--engine ray")
        settings = self.settings(checkpoint=None if self.tune else self.resume_file, progress=session.bars)
        with stdin_as_file(self.train) as train, stdin_as_file(self.validation) as validation:
            opened = sources.open_sources(self, train, validation)
            with session.working(f"reading {opened.name}"):
                opened = opened.read(self, settings)
            self._fit(session, settings, opened)

    def _check_outputs(self) -> None:
        for path in filter(None, (self.train, self.validation)):
            check_distinct({"an input": path, "--out": self.out, "--report": self.report, **self.resume_files})
        check_output(self.out, self.overwrite, self.train, self.validation)
        check_report(self.report, self.overwrite, self.train, self.validation)
        for path in self.resume_files.values():
            if not path.is_dir():  # as for an ensemble
                check_regular(path)
        if self.has_unfinished_run and not self.resume and not self.overwrite:
            raise CheckpointError(
                f"{self.resume_file} already exists, from an unfinished run; pass --resume to resume it, or "
                "--overwrite to discard it"
            )

    def _fit(self, session: Session, settings: "Settings", opened: sources.Sources) -> None:
        from dspp import modelfile
        from dspp.fitting import LATER, train
        from dspp.progress import ProgressBar
        from dspp.training.run import SMOOTHING

        with session.working(f"preparing {opened.name}"):
            prepared = sources.prepare_rows(self, settings, opened)
        source = f"held out of {opened.name}" if self.validation is None else source_name(self.validation)
        later = LATER + (REPORT_SHARE if self.report else 0.0)
        with ExitStack() as closing:
            with self._stop_on_signal(session) as stop:
                session.say(*self._describe_start(opened, prepared, settings))
                if self.overwrite and not self.resume and self.has_unfinished_run:
                    discard_run(self.resume_files.values())
                    session.say(f"note: discarded the unfinished run in {self.resume_file}")
                if self.tune:
                    fitted, evaluation = self._search(session, prepared, stop)
                bar = ProgressBar(1 if self.tune else None, session.bars, smoothing=SMOOTHING, later=later)
                closing.enter_context(bar)
                if not self.tune:
                    spent = time.monotonic() - session.begin + (REPORT_SECONDS if self.report else 0.0)
                    fitted, evaluation = train(
                        prepared, settings, should_stop=stop, resume=self.resume, spent=spent, bar=bar
                    )
            bar.step(f"writing {self.out}", SAVING)
            modelfile.save(fitted, self.out)
            if self.study is None:
                with suppress(CheckpointError):  # another process has resumed the run and will remove them
                    discard_run(self.resume_files.values())
            if self.report is not None:
                bar.step(f"writing {self.report}", REPORT)
                _report(fitted, evaluation, prepared, source, self.report)
        session.say(*self._describe_result(fitted, evaluation, prepared, source))

    def _describe_start(self, opened: sources.Sources, prepared: "Prepared", settings: "Settings") -> list[str]:
        """Return a description of the data and the model, printed before training."""
        assert prepared.encoder is not None
        several = f" in {opened.files} files" if opened.files > 1 else ""
        held_out = ""
        if len(prepared.validation):
            held_out = f", {len(prepared.validation):,} for choosing the best epoch"
        elif prepared.split.num_folds:
            held_out = f", of which each member holds out {prepared.split.held_out(0).sum():,}"
        plan = prepared.plan(settings)
        model, quick = show.settings_line(plan.spec, plan.config.epochs), len(plan.slots) - plan.num_in_steps
        if self.tune:
            model = f"{self.model}, with settings to be searched"
        elif not plan.is_single:
            others = f"; and {quick} single GP{'s' if quick > 1 else ''}" if quick else ""
            model = f"{plan.num_in_steps} members; each {model}{others}"
        return [
            f"{opened.name}: {prepared.table_rows:,} rows{several}, {opened.columns} columns",
            f"  predicting  {', '.join(self.target)}",
            f"  from        {show.kinds_line(prepared.encoder.describe())}",
            f"  rows        {prepared.num_rows:,} for training{held_out}",
            f"  model       {model}",
            *(f"note: {note}" for note in prepared.notes),
        ]

    @contextmanager
    def _stop_on_signal(self, session: Session) -> Iterator[Callable[[], bool]]:
        """Yield a callable that returns whether a signal has arrived; after one, exit and say how to resume."""
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
            if not self.resume_file.exists():
                raise
            code = stopped.code if isinstance(stopped, Stopped) else INTERRUPTED
            how = f"stopped; the state is in {self.resume_file}. To resume: {session.command('--resume')}"
            raise Stopped(code, how) from None

    def _search(self, session: Session, prepared: "Prepared", stop: Callable[[], bool]) -> Trained:
        """Train models with many settings and return the one with the best validation NLL."""
        from dspp.fitting import CHOSE_SETTINGS, evaluate_validation
        from dspp.tuning.result import TRIALS
        from dspp.tuning.search import search
        from dspp.tuning.space import Space

        params = self.params()
        time_budget = params.pop("time_budget", None)
        result = search(
            prepared,
            Space((self.preset,), None, params | {"random_state": self.seed, "progress": session.bars}),
            trials=self.trials or TRIALS,
            time_budget=time_budget,
            study=self.resume_file,
            should_stop=stop,
        )
        best = {name: f"{v:.3g}" if isinstance(v, float) else v for name, v in result.best_params.items()}
        found = ", ".join(f"{name} {value}" for name, value in best.items())
        session.say(f"Best of {len(result.trials)} settings: {found}")
        fitted = result.best_estimator.fitted_
        evaluation = evaluate_validation(fitted, prepared)
        return fitted, evaluation if evaluation is None else replace(evaluation, caveat=CHOSE_SETTINGS)

    def _describe_result(
        self, fitted: "Fitted", evaluation: "Evaluation | None", prepared: "Prepared", source: str
    ) -> list[Any]:
        lines: list[Any] = []
        if evaluation is not None:
            kind = "Out-of-fold scores" if len(evaluation.parts) > 1 else "Scores"
            title = f"{kind} on {len(evaluation.table):,} rows ({source})"
            lines += ["", *show.score_table(title, evaluation.scores, "fit"), evaluation.calibration.verdict()]
        report = [] if self.report is None else [f"Report: {self.report}"]
        return [
            *lines,
            show.training_lines(fitted),
            *(f"note: {note}" for note in fitted.notes if note not in prepared.notes),
            f"Model:  {self.out} ({file_size(self.out)})",
            *report,
            f"Next:   dspp predict {shlex.quote(str(self.out))} new.csv --out predictions.csv",
        ]


def _report(fitted: "Fitted", evaluation: "Evaluation | None", prepared: "Prepared", source: str, path: Path) -> None:
    from dspp.report import write_evaluation_report

    if evaluation is None:
        from dspp.evaluate import evaluate
        from dspp.fitting import TRAINED_ON

        evaluation, source = evaluate(fitted, prepared.table), "the table it was trained on"
        evaluation = replace(evaluation, caveat=TRAINED_ON)
    write_evaluation_report(evaluation, path, source)


@dataclass(frozen=True, kw_only=True)
class Tune(Fit):
    """Search for good settings and save the best model; the same as `fit --tune`."""

    tune: bool = field(default=True, init=False)  # not an option
