"""The options of `dspp fit` and `dspp tune`, and the settings they stand for."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from dspp.cli.options import (
    Decimal,
    Encoding,
    Separator,
    duration,
    flag,
    member_count,
    number,
    option,
    part,
    share,
    sizes,
    whole,
)
from dspp.config import PAPER_SIZES
from dspp.engines import ENGINES
from dspp.settings import Parameters, Settings, descriptions

DATA, MODEL, TRAINING, SEARCH, RESULT = "Data", "Model", "Training", "Search for settings", "Result"


def setting(name: str, metavar: str, panel: str, parser: Callable[[str], Any] | None = None) -> Any:
    """Return an option that is a parameter of estimators, as `Parameters` describes it."""
    return option(descriptions().get(name, ""), metavar, panel, parser)


def named(kind: str, *others: str) -> Any:
    """Return an option that is a parameter of estimators: the name of a registered part."""
    what, _, _ = descriptions().get(kind, kind).rstrip(".").partition(":")
    return part(kind, what, MODEL, *others)


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """The options of `dspp fit`. None means the default of the model."""

    train: Annotated[
        Path,
        typer.Argument(
            help="The training table: .csv, .tsv, .parquet, .feather or .arrow; - reads CSV from standard input. A "
            "folder of Parquet files or a quoted pattern such as 'part-*.parquet' is one table, too.",
            metavar="TABLE",
        ),
    ]
    target: Annotated[list[str], option("The column to predict; repeatable.", "COLUMN", DATA)]
    out: Annotated[Path, option("Output file of the model, such as model.dspp.", "FILE", RESULT)]
    report: Annotated[Path | None, option("Write an HTML report, such as report.html.", "FILE", RESULT)] = None
    overwrite: Annotated[bool, flag("--overwrite", "Replace existing files and an unfinished run.", RESULT)] = False

    drop: Annotated[list[str] | None, option("A column to leave out; repeatable.", "COLUMN", DATA)] = None
    weight: Annotated[
        str | None, option("A column that says how much each row counts; not an input.", "COLUMN", DATA)
    ] = None
    group: Annotated[
        str | None, option("A column whose rows of equal value are held out together; not an input.", "COLUMN", DATA)
    ] = None
    time: Annotated[
        str | None,
        option("A column of dates or numbers: the latest rows are held out. It stays an input.", "COLUMN", DATA),
    ] = None
    validation: Annotated[
        Path | None, option("Rows to hold out: they set the weights of members, or the best epoch.", "TABLE", DATA)
    ] = None
    validation_fraction: Annotated[
        float, setting("validation_fraction", "SHARE", DATA, share("--validation-fraction", "0.1", zero=True))
    ] = 0.1
    memory: Annotated[str | None, setting("memory", "SIZE", DATA)] = None
    sep: Separator = None
    decimal: Decimal = "."
    encoding: Encoding = "utf-8"

    model: Annotated[
        str, part("preset", "Model; nn+NAME puts a neural network in front of it", MODEL, prefix="nn+")
    ] = "dspp"
    members: Annotated[Any, setting("members", "N", MODEL, member_count)] = "auto"
    layers: Annotated[int | None, setting("layers", "N", MODEL, whole(1))] = None
    width: Annotated[int | None, setting("width", "N", MODEL, whole(1))] = None
    inducing: Annotated[int | None, setting("inducing", "N", MODEL, whole(1))] = None
    kernel: Annotated[str | None, named("kernel")] = None
    rule: Annotated[str | None, named("rule")] = None
    sites: Annotated[int | None, setting("sites", "N", MODEL, whole(1))] = None
    topology: Annotated[str | None, named("topology")] = None
    likelihood: Annotated[str, named("likelihood", "auto")] = "auto"
    outcome: Annotated[str, named("outcome", "auto")] = "auto"
    features: Annotated[
        Any, option("Layer sizes of a neural network in front, such as 100,50.", "SIZES", MODEL, sizes)
    ] = None
    beta: Annotated[float | None, setting("beta", "NUMBER", MODEL, number)] = None
    conformal: Annotated[bool, flag("--conformal", descriptions().get("conformal", ""), MODEL)] = False

    epochs: Annotated[int | None, setting("epochs", "N", TRAINING, whole(1))] = None
    batch_size: Annotated[int | None, setting("batch_size", "N", TRAINING, whole(1))] = None
    learning_rate: Annotated[float | None, setting("learning_rate", "NUMBER", TRAINING, number)] = None
    schedule: Annotated[str | None, part("schedule", "Learning rate schedule", TRAINING)] = None
    restarts: Annotated[int | None, setting("restarts", "N", TRAINING, whole(1))] = None
    patience: Annotated[int | None, setting("patience", "N", TRAINING, whole(1))] = None
    time_budget: Annotated[
        float | None, option("Time limit such as 90s, 5m or 2h; fewer epochs if needed.", "TIME", TRAINING, duration)
    ] = None
    seed: Annotated[int, setting("random_state", "N", TRAINING, whole(0))] = 0
    threads: Annotated[int | None, option("Threads for training; all cores by default.", "N", TRAINING, whole(1))] = (
        None
    )
    device: Annotated[str, setting("device", "NAME", TRAINING)] = "cpu"
    jobs: Annotated[
        int | None,
        option(
            "Processes: for members one per core by default, for the trials of a search 1.", "N", TRAINING, whole(1)
        ),
    ] = None
    engine: Annotated[
        str,
        option(
            "Where members and trials run: local, or ray (pip install 'dspp[ray]').", "NAME", TRAINING, choices=ENGINES
        ),
    ] = "local"
    address: Annotated[str | None, setting("address", "HOST:PORT", TRAINING)] = None
    resume: Annotated[bool, flag("--resume", "Resume an interrupted run of this command.", TRAINING)] = False

    tune: Annotated[bool, flag("--tune", "Search for the settings not given as options.", SEARCH)] = False
    trials: Annotated[
        int | None, option("Maximum number of settings to try; 30 by default.", "N", SEARCH, whole(1))
    ] = None
    study: Annotated[
        Path | None, option("Journal of the trials, from which the same command resumes.", "FILE", SEARCH)
    ] = None

    @property
    def not_inputs(self) -> tuple[str, ...]:
        """The columns that are not inputs."""
        return (*self.target, *(self.drop or []), *filter(None, (self.weight, self.group)))

    @property
    def resume_file(self) -> Path:
        """The file from which an interrupted run resumes."""
        if self.tune:
            return self.study or self.out.with_name(f"{self.out.name}.study")
        return self.out.with_name(f"{self.out.name}.checkpoint")

    @property
    def resume_files(self) -> dict[str, Path]:
        """The files that an unfinished run leaves, by their role."""
        if not self.tune:
            return {"the checkpoint": self.resume_file}
        best = self.resume_file.with_name(f"{self.resume_file.name}.best.dspp")
        return {"--study" if self.study else "the study": self.resume_file, "the best model of the study": best}

    @property
    def has_unfinished_run(self) -> bool:
        """Whether an earlier run of this command did not finish; a journal of the user's own is always resumed."""
        return self.study is None and self.resume_file.exists()

    @property
    def preset(self) -> str:
        """The name of the model without the prefix nn+."""
        return self.model.removeprefix("nn+")

    def params(self) -> dict[str, Any]:
        """Return the parameters of estimators that are given or have a default here."""
        names = {field.name for field in fields(Parameters)} & {field.name for field in fields(FitOptions)}
        given = {name: getattr(self, name) for name in names}
        if self.features is None and self.model != self.preset:
            given["features"] = PAPER_SIZES
        further = {"threads": self.threads, "schedule": self.schedule}
        given["train_settings"] = {name: value for name, value in further.items() if value is not None} or None
        if self.tune:  # a search trains one member at a time
            given["members"] = 1
        return {name: value for name, value in given.items() if value is not None}

    def settings(self, **run: Any) -> Settings:
        """Return the checked settings; `run` are settings of this run.

        Raises:
            InputError: A number is out of range.
        """
        from dspp.encoding.sampling import parse_size

        settings = Settings(preset=self.preset, **self.params(), random_state=self.seed, **run)
        settings.spec()
        settings.train_config(1)
        settings.shares(1_000, self.validation is not None)
        parse_size(settings.memory, "--memory")
        return settings
