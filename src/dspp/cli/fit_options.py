"""The options of `dspp fit` and `dspp tune`, and the settings they stand for."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dspp.cli.names import read_registered_names
from dspp.cli.options import DECIMAL, ENCODING, SEPARATOR, at_least, flag, fraction, option, sizes
from dspp.engines import ENGINES
from dspp.errors import InputError
from dspp.registry import Registry, extension_modules, unknown_part

if TYPE_CHECKING:
    from dspp.settings import Settings

DATA, MODEL, TRAINING, SEARCH, RESULT = "Data", "Model", "Training", "Search for settings", "Result"
MODEL_SETTINGS = ("layers", "width", "inducing", "kernel", "rule", "sites", "topology", "beta", "likelihood", "outcome")
MODELS, KERNELS, RULES, TOPOLOGIES, LIKELIHOODS, OUTCOMES, SCHEDULES = map(
    read_registered_names, ("PRESETS", "KERNELS", "RULES", "TOPOLOGIES", "LIKELIHOODS", "OUTCOMES", "SCHEDULES")
)

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


@dataclass(frozen=True)
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
        float, option("Fraction of rows that a single model holds out.", "SHARE", DATA), fraction
    ] = 0.1
    sep: Annotated[str | None, option(SEPARATOR, "CHAR", DATA)] = None
    decimal: Annotated[str, option(DECIMAL, "CHAR", DATA)] = "."
    encoding: Annotated[str, option(ENCODING, "NAME", DATA)] = "utf-8"
    memory: Annotated[
        str | None,
        option("Limit for all processes, such as 4GB, beyond which a table is sampled.", "SIZE", DATA),
    ] = None
    model: Annotated[
        str,
        option(f"One of {', '.join(MODELS)}; nn+NAME adds a neural network in front.", "NAME", MODEL, choices=MODELS),
    ] = "dspp"
    members: Annotated[str, option("Models to mix: auto, or a number; 1 is the paper's single model.", "N", MODEL)] = (
        "auto"
    )
    layers: Annotated[int | None, option("GP layers, including the top one.", "N", MODEL), at_least(1)] = None
    width: Annotated[
        int | None, option("GPs per hidden layer: 5, or 20 for several targets.", "N", MODEL), at_least(1)
    ] = None
    inducing: Annotated[
        int | None, option("Inducing points per GP; more are slower and finer.", "N", MODEL), at_least(1)
    ] = None
    kernel: Annotated[str | None, option(f"One of {', '.join(KERNELS)}.", "NAME", MODEL, choices=KERNELS)] = None
    rule: Annotated[
        str | None, option(f"Quadrature rule of hidden layers: {', '.join(RULES)}.", "NAME", MODEL, choices=RULES)
    ] = None
    sites: Annotated[
        int | None, option("Sites of the rule, i.e. components of the mixture.", "N", MODEL), at_least(1)
    ] = None
    topology: Annotated[
        str | None,
        option(f"Inputs of later hidden layers: {', '.join(TOPOLOGIES)}.", "NAME", MODEL, choices=TOPOLOGIES),
    ] = None
    likelihood: Annotated[
        str,
        option(
            f"Distribution of the noise: auto, {', '.join(LIKELIHOODS)}.", "NAME", MODEL, choices=("auto", *LIKELIHOODS)
        ),
    ] = "auto"
    outcome: Annotated[
        str,
        option(f"What the target is: auto, {', '.join(OUTCOMES)}.", "NAME", MODEL, choices=("auto", *OUTCOMES)),
    ] = "auto"
    features: Annotated[
        str | None, option("Layer sizes of a neural network in front, such as 100,50.", "SIZES", MODEL)
    ] = None
    beta: Annotated[float | None, option("Weight of the KL term; larger is smoother.", "NUMBER", MODEL)] = None
    conformal: Annotated[
        bool, flag("--conformal", "Recalibrate intervals on held-out rows, with a guarantee.", MODEL)
    ] = False
    epochs: Annotated[
        int | None, option("Passes over the rows: 40, or more on small tables.", "N", TRAINING), at_least(1)
    ] = None
    batch_size: Annotated[int | None, option("Rows per step.", "N", TRAINING), at_least(1)] = None
    learning_rate: Annotated[float | None, option("Initial learning rate of Adam.", "NUMBER", TRAINING)] = None
    schedule: Annotated[
        str | None,
        option(f"Learning rate schedule: {', '.join(SCHEDULES)}.", "NAME", TRAINING, choices=SCHEDULES),
    ] = None
    restarts: Annotated[
        int | None, option("Short runs from different starts; the best one continues.", "N", TRAINING), at_least(1)
    ] = None
    patience: Annotated[
        int | None,
        option("Of a single model: stop after N epochs without a better validation NLL.", "N", TRAINING),
        at_least(1),
    ] = None
    time_budget: Annotated[
        str | None, option("Time limit such as 90s, 5m or 2h; fewer epochs if needed.", "TIME", TRAINING)
    ] = None
    seed: Annotated[int, option("The same seed gives the same model.", "N", TRAINING), at_least(0)] = 0
    threads: Annotated[
        int | None, option("Threads for training; all cores by default.", "N", TRAINING), at_least(1)
    ] = None
    device: Annotated[str, option("cpu or cuda.", "NAME", TRAINING)] = "cpu"
    resume: Annotated[bool, flag("--resume", "Resume an interrupted run of this command.", TRAINING)] = False
    tune: Annotated[bool, flag("--tune", "Search for the settings not given as options.", SEARCH)] = False
    trials: Annotated[
        int | None, option("Maximum number of settings to try; 30 by default.", "N", SEARCH), at_least(1)
    ] = None
    study: Annotated[
        Path | None, option("Journal of the trials, from which the same command resumes.", "FILE", SEARCH)
    ] = None
    jobs: Annotated[
        int | None,
        option("Processes: for members one per core by default, for the trials of a search 1.", "N", TRAINING),
        at_least(1),
    ] = None
    engine: Annotated[
        str,
        option(
            "Where members and trials run: local, or ray (pip install 'dspp[ray]').", "NAME", TRAINING, choices=ENGINES
        ),
    ] = "local"
    address: Annotated[str | None, option("Ray cluster, or auto; this machine by default.", "HOST:PORT", TRAINING)] = (
        None
    )
    report: Annotated[Path | None, option("Write an HTML report, such as report.html.", "FILE", RESULT)] = None
    overwrite: Annotated[bool, flag("--overwrite", "Replace existing files and an unfinished run.", RESULT)] = False

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

    def check_search(self) -> None:
        """Raise `InputError` if a search option is given without --tune."""
        given = [f"--{name}" for name in ("trials", "study") if getattr(self, name) is not None]
        if given and not self.tune:
            raise InputError(f"{given[0]} is an option of --tune; add --tune, or leave it out")

    @property
    def preset(self) -> str:
        """The name of the model without the prefix nn+."""
        return self.model.removeprefix("nn+")

    def params(self) -> dict[str, Any]:
        """Return the parameters that are given or have a default here."""
        names = (*MODEL_SETTINGS, "epochs", "patience", "jobs", "engine", "address")
        usual = ("batch_size", "learning_rate", "restarts", "validation_fraction", "conformal", "device", "memory")
        given = {name: getattr(self, name) for name in (*names, *usual)}
        further = {name: getattr(self, name) for name in ("threads", "schedule") if getattr(self, name) is not None}
        given |= {"members": self._members(), "features": self._network(), "train_settings": further or None}
        return {name: value for name, value in given.items() if value is not None}

    def _members(self) -> int | str:
        """Return the number of members; a search trains one at a time."""
        if self.tune or self.members == "auto":
            return 1 if self.tune else "auto"
        if not self.members.isdecimal() or int(self.members) < 1:
            raise InputError(f"--members: expected auto or a number >= 1, got {self.members!r}")
        return int(self.members)

    def _network(self) -> tuple[int, ...] | None:
        network = sizes(self.features, "--features")
        if network is None and self.model != self.preset:
            from dspp.config import PAPER_SIZES

            return PAPER_SIZES
        return network

    def check_names(self) -> None:
        """Raise `UnknownPartError` for a name that is not registered.

        Without parts of the user, the names in this package are all there are, and torch is not imported.
        """
        given = {
            "preset": (MODELS, self.preset),
            "kernel": (KERNELS, self.kernel),
            "rule": (RULES, self.rule),
            "topology": (TOPOLOGIES, self.topology),
            "likelihood": (("auto", *LIKELIHOODS), self.likelihood),
            "outcome": (("auto", *OUTCOMES), self.outcome),
            "schedule": (SCHEDULES, self.schedule),
        }
        for kind, (known, name) in given.items():
            if name is None or name in known:
                continue
            if "torch" not in sys.modules and not extension_modules():
                raise unknown_part(kind, name, known)
            _registries()[kind][name]

    def settings(self, **run: Any) -> "Settings":
        """Return the checked settings; `run` are settings of this run.

        Raises:
            InputError: A number is out of range, or the preset is unknown.
        """
        from dspp.encoding.sampling import parse_size
        from dspp.settings import Settings

        settings = Settings(preset=self.preset, **self.params(), random_state=self.seed, **run)
        settings.spec()
        settings.train_config(1)
        settings.shares(1_000, self.validation is not None)
        parse_size(settings.memory, "--memory")
        return settings


def _registries() -> dict[str, Registry[Any]]:
    """Return the registries of the parts that options name, by kind."""
    from dspp.gp.kernels import KERNELS
    from dspp.likelihoods import LIKELIHOODS
    from dspp.model import TOPOLOGIES
    from dspp.outcomes import OUTCOMES
    from dspp.presets import PRESETS
    from dspp.quadrature import RULES
    from dspp.training.schedules import SCHEDULES

    registries = (PRESETS, KERNELS, RULES, TOPOLOGIES, LIKELIHOODS, OUTCOMES, SCHEDULES)
    return {registry.kind: registry for registry in registries}
