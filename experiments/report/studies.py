"""The section on questions that the protocols leave open: small studies, whose records are in `results/studies`."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from dspp.config import ModelConfig, ObjectiveConfig, TrainConfig
from experiments.catalogue import ENSEMBLE
from experiments.report.blocks import DASH, Block, Entry, Part, Section, Table, fixed, plural
from experiments.report.layout import HEADLINE, METRICS
from experiments.report.records import Record, read_file, short_commit, summary
from experiments.report.tables import plain

FOLDER = "studies"  # in the folder of results
NETWORK = f"NN+{HEADLINE}"
QUESTION = (
    "What the protocols leave open, each examined with a handful of fits on one split. Read differences of a few "
    "hundredths of a nat as noise."
)
SCORES = {metric.key: metric.name for metric in METRICS if metric.key in ("nll", "crps", "rmse", "coverage90")}
SYMBOLS = {"inducing": "M", "width": "W", "beta": "β", "batch_size": "batch", "learning_rate": "rate"}
SYMBOLS |= {"weight_decay": "weight decay", "hidden_mean": "hidden mean", "restart_epochs": "epochs of a start"}
SYMBOLS |= {"restarts": "starts", "freeze_statistics": "statistics frozen at"}
DEFAULTS = {f.name: f.default for config in (ModelConfig, ObjectiveConfig, TrainConfig) for f in fields(config)}


@dataclass(frozen=True)
class Study:
    """A question, what was found, and where the records are.

    Attributes:
        name: Of the file of records.
        title: What was found, in a few words.
        findings: Sentences; the figures in them are checked against the records by a test.
        settings: What was varied: the columns of the table.
        commands: What made the records, after `python -m`.
        beside: (experiment, protocol, data sets, methods) of selected records of a protocol to show beside.
    """

    name: str
    title: str
    findings: tuple[str, ...]
    settings: tuple[str, ...]
    commands: tuple[str, ...]
    beside: tuple[str, str, tuple[str, ...], tuple[str, ...]] | None = None

    def keeps(self, record: Record) -> bool:
        """Whether a record of a protocol is shown beside those of the study."""
        if self.beside is None or not record.selected:
            return False
        experiment, protocol, datasets, methods = self.beside
        mine = (record.experiment, record.protocol) == (experiment, protocol) and record.split == 0
        return mine and record.dataset in datasets and record.method in methods


RUN = "experiments run {} --protocol {} --splits 1 --datasets {} --methods {}"
SHORT = "--epochs 100 --grid beta=0.05"
TRAJECTORIES = ("mujoco_reacher", "mujoco_swimmer", "mujoco_halfcheetah", "baxter_rhythmic_ugr")
STUDIES = (
    Study(
        "starts",
        "kin40k with three hidden GPs depends on its start",
        (
            "The paper's settings for 100 epochs, a single start, five seeds: with W = 3 the NLL spans 0.7 nat "
            "(−1.772 to −1.061), with W = 5 0.2 nat. Two runs of 400 epochs that were not explained (−1.87 and "
            "−1.37) differ by less.",
            "Most of it comes from the directions along which the linear mean of the hidden layer starts, three random "
            "ones of eight inputs. Fits of seeds 0, 1 and 2 that start along those of the best seed (`like-seed-3`) "
            "have −1.756 on average, 0.49 nat better than along their own. A fit of the best seed that starts along "
            "those of the worst (`like-seed-2`) has −1.400, 0.37 nat worse than along its own.",
            "The best of six starts after six epochs each, as judged by training NLL, reaches −1.790 on average, "
            "for 36 % more epochs; it does not reach W = 5.",
            "One epoch per start, as in our `paper` protocol, is too short to tell starts apart here: among the "
            "five seeds of W = 3, validation NLL after one epoch would have picked the worst.",
            "It does not help to start along the three directions in which a fitted PPGPR varies most, which carry "
            "84 % of its variation: −1.299 on average. Principal directions of the inputs are arbitrary here, since "
            "all have nearly the same variance (0.98 to 1.03).",
            "Longer trials of starts were not run on other sets. The default is unchanged: it has W = 5, where the "
            "start matters little.",
        ),
        ("width", "restarts", "restart_epochs", "hidden_mean"),
        (
            f"{RUN.format('univariate', 'paper', 'kin40k', HEADLINE)} {SHORT} --grid width=3,5 --grid restarts=1 "
            "--grid seed=0,1,2,3,4",
            f"{RUN.format('univariate', 'paper', 'kin40k', HEADLINE)} {SHORT} --grid width=3 --grid restarts=6 "
            "--grid restart_epochs=6 --grid seed=0,1,2",
            "experiments.starts kin40k",
            "experiments.starts kin40k --like 3 --seeds 3",
            "experiments.starts kin40k --like 2 --seeds 1 --first 3",
        ),
    ),
    Study(
        "dkl",
        "A network in front of a DSPP: batch normalisation and short training are to blame",
        (
            "On kin40k batch normalisation is to blame (the paper has −1.458). Training normalises by the statistics "
            "of each batch, predictions by running ones. The model takes the difference for noise: without freezing, "
            "90 % intervals contain 99.8 % of the test rows after 50 epochs, and the NLL is −1.114. If the statistics "
            "are frozen at half of the steps, 12 epochs give −1.411 instead of −0.854, and 50 epochs −2.135, better "
            "than the paper's figure and than a DSPP without a network (−1.987 after 50 epochs).",
            "On protein the short schedule is to blame. 10 epochs give 0.476 (the paper has 0.278), and 0.481 with "
            "frozen statistics. More inducing points, larger batches or a larger β, one at a time, change nothing "
            "(0.470, 0.484 and 0.487). 50 epochs give 0.148 (frozen 0.171).",
            "100 epochs of the paper's settings with a weight decay of 1e-4 give 0.116 on protein. Weight decay "
            "matters: 1e-3 gives 0.273.",
            "Freezing needs a small rate. At 0.05 the networks collapse after it, and the epochs kept are early ones "
            "(protein 0.803, keggdirected 0.714). So it is not the default; in `quick` validation rows choose. "
            "One half was chosen on kin40k, whose test rows were seen.",
            "After 50 epochs a network helps on protein too (a DSPP without one has 0.268), and not on keggdirected "
            "(−2.949 without, −1.893 with a network that is not frozen), as in the paper.",
        ),
        ("epochs", "inducing", "batch_size", "beta", "learning_rate", "weight_decay", "freeze_statistics"),
        (
            f"{RUN.format('dkl', 'paper', 'protein', NETWORK)} --epochs 100 --grid beta=0.2 "
            "--grid weight_decay=1e-4,1e-3 --grid restarts=1",
            f"{RUN.format('dkl', 'quick', 'protein', NETWORK)} --grid learning_rate=0.01 --grid freeze_statistics=1.0 "
            "--grid beta=0.2 (or inducing=300, batch_size=1000)",
            f"{RUN.format('dkl', 'quick', 'kin40k,protein,keggdirected', f'{NETWORK},{HEADLINE}')} --epochs 50 "
            "--grid learning_rate=0.01 (0.05 without a network; also 10 epochs with freeze_statistics=0.75)",
        ),
        ("dkl", "quick", ("protein", "kin40k", "keggdirected"), (NETWORK, HEADLINE)),
    ),
    Study(
        "robots",
        "sarcos_testset: one DSPP overfits, an ensemble does not",
        (
            "PPGPR beats a single DSPP by 0.1 nat with β = 0.05 (−0.910 and −0.812); a larger β closes part of the "
            "gap (−0.853). The 90 % intervals of the DSPP contain too few test rows, which points to overfitting: "
            "there are only 3,337 training rows.",
            "The default ensemble is better than both in NLL (−0.957) and CRPS, and its 90 % intervals contain 89 % "
            "of the test rows. It is also trained on the 445 validation rows.",
        ),
        ("beta",),
        (f"{RUN.format('multivariate', 'quick', 'sarcos_testset', f'{HEADLINE},PPGPR')} --grid beta=0.2,1.0",),
        ("multivariate", "quick", ("sarcos_testset",), ("PPGPR", HEADLINE, ENSEMBLE)),
    ),
    Study(
        "groups",
        "Whole trajectories held out",
        (
            "With whole trajectories held out DSPP stays first in NLL on three of the four sets that have them. On "
            "baxter_rhythmic_ugr PPGPR is (−0.451 and −0.383), after fits that hardly trained: their validation NLL "
            "was lowest after the first epoch.",
        ),
        (),
        (f"{RUN.format('multivariate', 'quick', ','.join(TRAJECTORIES), f'PPGPR,{HEADLINE}')} --grid split_by=groups",),
        ("multivariate", "quick", TRAJECTORIES, ("PPGPR", HEADLINE)),
    ),
)


def studies_section(results: Path, records: Sequence[Record]) -> Section | None:
    """Return the section on the studies in a folder of results; None if there are none.

    Args:
        results: The folder of results, with the studies in a folder of its own.
        records: The records of the protocols, some of which are shown beside those of a study.
    """
    blocks, rows = [], []
    for study in STUDIES:
        path = results / FOLDER / f"{study.name}.jsonl"
        if path.is_file() and (mine := read_file(path)[0]):
            beside = (record for record in records if study.keeps(record))
            shown = list({(_key(study, r), r.metric("nll")): r for r in (*beside, *mine)}.values())  # each fit once
            commands = ", ".join(f"`python -m {command}`" for command in study.commands)
            blocks.append(Block(study.title, study.findings, (_table(study, shown, commands),)))
            rows += list(_csv(study, shown))
    if not blocks:
        return None
    return Section(FOLDER, "Questions examined further", QUESTION, (), (Part("", (), tuple(blocks)),), tuple(rows))


def groups(study: Study, records: Iterable[Record]) -> dict[tuple[str, ...], list[Record]]:
    """Return the records by data set, method and varied settings; fits that differ in the seed only are one group."""
    found: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        found.setdefault(_key(study, record), []).append(record)
    return dict(sorted(found.items(), key=lambda item: [_number_first(text) for text in item[0]]))


def _key(study: Study, record: Record) -> tuple[str, ...]:
    """Return the data set, the method and the varied settings, as text."""
    return (record.dataset, record.method, *(_show(record, name) for name in study.settings))


def _number_first(text: str) -> tuple[float, str]:
    """Return a key that sorts numbers by size, before words."""
    try:
        return float(text), ""
    except ValueError:
        return math.inf, text


def _show(record: Record, name: str) -> str:
    """Return a setting as text: a dash if the method has no such setting, the default of dspp if none was given."""
    has_none = record.method == ENSEMBLE or (name == "width" and name not in record.setting)
    value = DASH if has_none else record.setting.get(name, DEFAULTS[name])
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _table(study: Study, records: Sequence[Record], commands: str) -> Table:
    rows = []
    for key, those in groups(study, records).items():
        scores = {name: [v for r in those if (v := r.metric(name)) is not None] for name in SCORES}
        means = {name: cell.mean if (cell := summary(values)) else None for name, values in scores.items()}
        nll = fixed(means["nll"])
        if len(those) > 1:
            nll += f" ({fixed(min(scores['nll']))} to {fixed(max(scores['nll']))})"
        others = (fixed(means[name]) for name in SCORES if name != "nll")
        rows.append(tuple(map(Entry, (*key, str(len(those)), nll, *others))))
    header = ("data set", "method", *(SYMBOLS.get(name, name) for name in study.settings), "fits", *SCORES.values())
    commits = sorted({short_commit(record.commit) for record in records})
    caption = (
        "Test rows of split 0, standardised units; several fits differ in the seed: their mean, and the range of the "
        f"NLL. Made by {commands}. {plural(len(records), 'record')}; {'commits' if len(commits) > 1 else 'commit'} "
        f"{', '.join(commits)}."
    )
    return Table("The fits", header, tuple(rows), caption, words=frozenset({1}))


def _csv(study: Study, records: Sequence[Record]) -> Iterable[tuple[str, ...]]:
    for (dataset, method, *settings), those in groups(study, records).items():
        varied = ", ".join(f"{name}={value}" for name, value in zip(study.settings, settings, strict=True))
        for name in SCORES:
            if cell := summary(v for r in those if (v := r.metric(name)) is not None):
                ours = (plain(cell.mean), plain(cell.error), str(cell.splits))
                yield (study.name, name, dataset, f"{method}, {varied}", *ours, "", "", "")
