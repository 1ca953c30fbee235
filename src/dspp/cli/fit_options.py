"""What `dspp fit` and `dspp tune` can be told, and the settings that it means."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dspp.cli.names import registered
from dspp.cli.options import flag, option, sizes
from dspp.errors import InputError

if TYPE_CHECKING:
    from dspp.settings import Settings

DATA, MODEL, TRAINING, SEARCH, RESULT = "Data", "Model", "Training", "Search for settings", "Result"
MODEL_SETTINGS = ("layers", "width", "inducing", "kernel", "rule", "sites", "topology", "beta", "likelihood")
MODELS, KERNELS, RULES, TOPOLOGIES, LIKELIHOODS, SCHEDULES = map(
    registered, ("PRESETS", "KERNELS", "RULES", "TOPOLOGIES", "LIKELIHOODS", "SCHEDULES")
)

EXAMPLES = """Examples:

dspp fit train.csv --target price --out model.dspp

dspp fit train.parquet --target x --target y --out model.dspp --time-budget 5m --report report.html

dspp fit folder_of_parquet_files --target price --out model.dspp --cache /big/disk

dspp fit train.csv --target price --drop id --model nn+dspp --features 100,20 --out model.dspp

dspp fit train.csv --target price --out model.dspp --tune --time-budget 1h"""
TUNE_EXAMPLES = """Examples:

dspp tune train.csv --target price --out model.dspp --time-budget 10m

dspp tune train.csv --target price --out model.dspp --trials 50 --study price.study

dspp tune train.csv --target price --out model.dspp --jobs 8 --engine ray --address 10.0.0.1:6379

What is given is kept, the rest is searched: with --width 5 only models of that width are tried."""


@dataclass(frozen=True)
class FitOptions:
    """The options. Settings left at None are the model's own."""

    train: Annotated[
        Path,
        typer.Argument(
            help="The table to learn from: .csv, .tsv, .parquet, .feather or .arrow; or a folder of Parquet files or "
            "a quoted pattern such as 'part-*.parquet', which may be larger than memory.",
            metavar="TABLE",
        ),
    ]
    target: Annotated[list[str], option("The column to predict; repeat it for several.", "COLUMN", DATA)]
    out: Annotated[Path, option("Where the model goes, such as model.dspp.", "FILE", RESULT)]
    drop: Annotated[list[str] | None, option("A column not to learn from; repeatable.", "COLUMN", DATA)] = None
    validation: Annotated[
        Path | None, option("Rows to choose the best epoch by (or some are held out).", "TABLE", DATA)
    ] = None
    validation_fraction: Annotated[float, option("The share of rows held out for that; 0 is none.", "SHARE", DATA)] = (
        0.1
    )
    on_disk: Annotated[
        bool, flag("--on-disk", "Train from the disk, as if the table were too large for memory.", DATA)
    ] = False
    cache: Annotated[Path | None, option("The folder for rows that are read from the disk.", "DIR", DATA)] = None
    keep_cache: Annotated[bool, flag("--keep-cache", "Keep them there; the next fit begins at once.", DATA)] = False
    model: Annotated[
        str,
        option(f"One of {', '.join(MODELS)}; nn+NAME has a neural network in front.", "NAME", MODEL, choices=MODELS),
    ] = "dspp"
    layers: Annotated[int | None, option("GP layers, the top one included.", "N", MODEL)] = None
    width: Annotated[int | None, option("GPs in each hidden layer: 5, or 20 for several targets.", "N", MODEL)] = None
    inducing: Annotated[int | None, option("Inducing points of each GP; more are slower and finer.", "N", MODEL)] = None
    kernel: Annotated[str | None, option(f"One of {', '.join(KERNELS)}.", "NAME", MODEL, choices=KERNELS)] = None
    rule: Annotated[
        str | None, option(f"How uncertainty crosses a layer: {', '.join(RULES)}.", "NAME", MODEL, choices=RULES)
    ] = None
    sites: Annotated[int | None, option("Sites of the rule, hence components of the mixture.", "N", MODEL)] = None
    topology: Annotated[
        str | None,
        option(f"What later hidden layers read: {', '.join(TOPOLOGIES)}.", "NAME", MODEL, choices=TOPOLOGIES),
    ] = None
    likelihood: Annotated[
        str | None, option(f"How targets scatter: {', '.join(LIKELIHOODS)}.", "NAME", MODEL, choices=LIKELIHOODS)
    ] = None
    features: Annotated[str | None, option("Sizes of a neural network in front, such as 100,50.", "SIZES", MODEL)] = (
        None
    )
    beta: Annotated[float | None, option("Weight of the KL term; larger is smoother.", "NUMBER", MODEL)] = None
    conformal: Annotated[
        bool, flag("--conformal", "Recalibrate intervals, with a guarantee, on a tenth of the rows.", MODEL)
    ] = False
    epochs: Annotated[int | None, option("Passes over the rows: 40, or more on small tables.", "N", TRAINING)] = None
    batch_size: Annotated[int, option("Rows a step.", "N", TRAINING)] = 500
    learning_rate: Annotated[float, option("Of Adam, at the start.", "NUMBER", TRAINING)] = 0.05
    schedule: Annotated[
        str | None,
        option(f"How the rate changes: {', '.join(SCHEDULES)}.", "NAME", TRAINING, choices=SCHEDULES),
    ] = None
    restarts: Annotated[int, option("Short trials from different starts; the best is trained on.", "N", TRAINING)] = 3
    patience: Annotated[
        int | None, option("Stop after so many epochs without a better validation NLL.", "N", TRAINING)
    ] = None
    time_budget: Annotated[
        str | None, option("Be ready in 90s, 5m or 2h; epochs are left out if need be.", "TIME", TRAINING)
    ] = None
    seed: Annotated[int, option("The same seed gives the same model.", "N", TRAINING)] = 0
    threads: Annotated[int | None, option("Threads to train with; all cores unless given.", "N", TRAINING, min=1)] = (
        None
    )
    device: Annotated[str, option("cpu or cuda.", "NAME", TRAINING)] = "cpu"
    resume: Annotated[bool, flag("--resume", "Go on where this command was interrupted.", TRAINING)] = False
    tune: Annotated[bool, flag("--tune", "Search for settings that are not given here.", SEARCH)] = False
    trials: Annotated[int | None, option("Settings to try at most; 30 unless given.", "N", SEARCH)] = None
    study: Annotated[
        Path | None, option("Keep the trials in this journal; the same command goes on from it.", "FILE", SEARCH)
    ] = None
    jobs: Annotated[
        int, option("Settings to try at once, each with one thread; which are tried then varies.", "N", SEARCH)
    ] = 1
    engine: Annotated[
        str,
        option("Where they run: local, or ray (pip install 'dspp[ray]').", "NAME", SEARCH, choices=("local", "ray")),
    ] = "local"
    address: Annotated[
        str | None, option("A Ray cluster, or auto; else Ray runs on this machine.", "HOST:PORT", SEARCH)
    ] = None
    report: Annotated[Path | None, option("Write a page about the model, such as report.html.", "FILE", RESULT)] = None
    overwrite: Annotated[bool, flag("--overwrite", "Replace files that are there already.", RESULT)] = False

    @property
    def kept(self) -> Path:
        """The file from which an interrupted run goes on."""
        if self.tune:
            return self.study or self.out.with_name(f"{self.out.name}.study")
        return self.out.with_name(f"{self.out.name}.checkpoint")

    @property
    def state(self) -> dict[str, Path]:
        """The files that an unfinished run leaves, each by what it is to the user."""
        if not self.tune:
            return {"the checkpoint": self.kept}
        best = self.kept.with_name(f"{self.kept.name}.best.dspp")
        return {"--study" if self.study else "the study": self.kept, "the best model of the study": best}

    def check_search(self) -> None:
        """Raise `InputError` for an option of the search without a search."""
        usual = {"trials": None, "study": None, "jobs": 1, "engine": "local", "address": None}
        given = [f"--{name}" for name, value in usual.items() if getattr(self, name) != value]
        if given and not self.tune:
            raise InputError(f"{given[0]} is for a search for settings; add --tune, or leave it out")

    @property
    def preset(self) -> str:
        """The name of the model without its network."""
        return self.model.removeprefix("nn+")

    def params(self) -> dict[str, Any]:
        """The parameters that were given, or have a default here."""
        names = (*MODEL_SETTINGS, "epochs", "patience")
        usual = ("batch_size", "learning_rate", "restarts", "validation_fraction", "conformal", "device")
        given = {name: getattr(self, name) for name in (*names, *usual)}
        further = {name: getattr(self, name) for name in ("threads", "schedule") if getattr(self, name) is not None}
        given |= {"features": self._network(), "train_settings": further or None}
        return {name: value for name, value in given.items() if value is not None}

    def _network(self) -> tuple[int, ...] | None:
        network = sizes(self.features, "--features")
        if network is None and self.model != self.preset:
            from dspp.features import PAPER_SIZES

            return PAPER_SIZES
        return network

    def settings(self, **run: Any) -> "Settings":
        """The settings that these options mean, checked; `run` are those of this run.

        Raises:
            InputError: A name is unknown, or a number out of range.
        """
        from dspp.gp.kernels import KERNELS
        from dspp.likelihoods import LIKELIHOODS
        from dspp.model import TOPOLOGIES
        from dspp.presets import PRESETS
        from dspp.quadrature import RULES
        from dspp.settings import Settings
        from dspp.training.schedules import SCHEDULES

        named = (
            (PRESETS, self.preset),
            (KERNELS, self.kernel),
            (RULES, self.rule),
            (TOPOLOGIES, self.topology),
            (LIKELIHOODS, self.likelihood),
            (SCHEDULES, self.schedule),
        )
        for registry, name in named:
            if name is not None:
                registry[name]
        settings = Settings(preset=self.preset, **self.params(), random_state=self.seed, **run)
        settings.spec()
        settings.train_config(1)
        settings.shares(1_000, self.validation is not None)
        return settings
