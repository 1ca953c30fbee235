"""The report on the experiments: right statistics, the paper's own order, honest gaps, the same bytes every time."""

import csv
import html
import json
import math
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from outline import Outline
from scipy import stats

from dspp.errors import InputError
from experiments.catalogue import ENSEMBLE
from experiments.catalogue import EXPERIMENTS as CATALOGUE
from experiments.data import load
from experiments.protocol import read_protocol
from experiments.report import find_paper, verdicts, write_report
from experiments.report import page as report_page
from experiments.report.complexity import complexity_section, sweep
from experiments.report.layout import EXPERIMENTS, METRICS, NLL, RAW_NATS, Layout, Metric, layout_of
from experiments.report.markdown import escape
from experiments.report.paper import BESIDE, Paper, PaperCell, read_paper
from experiments.report.ranks import Ranking, cliques, exact_pvalue, nemenyi, ranking, signed_rank
from experiments.report.records import Grid, Record, grid_of, latest, read_records, source_of, summary
from experiments.report.sections import comparisons, headline, sections
from experiments.report.tables import (
    CSV_HEADER,
    check_table,
    main_table,
    nats_table,
    our_best,
    rank_table,
    raw_units_table,
)
from experiments.report.verdicts import other_files, what_was_run
from experiments.report.weights import distinct_fits, weights_section
from experiments.units import list_units

UNIVARIATE = layout_of("univariate")
METRIC = {metric.key: metric for metric in METRICS}
DSPP = "DSPP-QR3-2L"
FIVE = ("OD-SVGP", "PPGPR", "DGP-2L", "gamma-DGP-2L", "DSPP-QR3-2L")
NASTY = '<script>alert("1")</script> | $x_1$ `a` *b*'

# Test NLL of the paper's table of the 12 univariate data sets, methods as in FIVE.
PAPER_NLL = {
    "pol": (-0.723, -1.090, -0.855, -1.014, -1.237),
    "elevators": (0.448, 0.368, 0.338, 0.343, 0.354),
    "bike": (-0.824, -1.426, -1.090, -1.339, -1.763),
    "kin40k": (-0.830, -1.284, -1.100, -1.180, -2.016),
    "protein": (0.892, 0.743, 0.875, 0.878, 0.382),
    "keggdirected": (-1.057, -1.575, -1.045, -1.043, -2.503),
    "slice": (-1.673, -1.438, -1.549, -1.461, -2.312),
    "keggundirected": (-0.712, -1.801, -0.712, -0.703, -2.976),
    "3droad": (0.231, -0.297, 0.241, 0.216, -0.488),
    "song": (1.168, 1.103, 1.162, 1.164, 0.670),
    "buzz": (0.044, -0.047, 0.001, 0.002, -0.209),
    "houseelectric": (-1.559, -2.020, -1.671, -1.686, -2.281),
}
SAMPLE_PAPER = Paper(
    {
        ("uci", "NLL", dataset, method): PaperCell(mean, 0.01)
        for dataset, means in PAPER_NLL.items()
        for method, mean in zip(FIVE, means, strict=True)
    },
    {("average_rank_uci_12", "NLL", m): r for m, r in zip(FIVE, (4.38, 2.33, 3.55, 3.60, 1.15), strict=True)},
)
needs_paper = pytest.mark.skipif(not (BESIDE / "results.csv").is_file(), reason="the paper's tables are not here")


def run(dataset: str = "pol", method: str = "DSPP-QR3-2L", split: int = 0, **changes: Any) -> dict[str, Any]:
    """A record as `python -m experiments run` writes it."""
    record = {
        "experiment": "univariate",
        "dataset": dataset,
        "split": split,
        "method": method,
        "protocol": "quick",
        "selected": True,
        "setting": {"beta": 0.05, "inducing": 300, "epochs": 40, "noise_floor": 1e-4},
        "metrics": {"nll": -1.0, "rmse": 0.1, "crps": 0.05, "coverage90": 0.9, "seen_share": 0.0, "nll_new": -1.0},
        "seconds": 61.2,
        "versions": {"dspp": "0.2.0"},
        "commit": "2584cfe0123456789abcdef0123456789abcdef0",
        "details": {"weights": None},
    }
    return record | changes


def nll(dataset: str, method: str, value: float, split: int = 0, **changes: Any) -> dict[str, Any]:
    return run(dataset, method, split, metrics={"nll": value}, **changes)


def write(folder: Path, runs: Iterable[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for record in runs:
        with (folder / f"{record['experiment']}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
    return folder


def records_of(tmp_path: Path, runs: Iterable[dict[str, Any]]) -> tuple[Record, ...]:
    return read_records(write(tmp_path / "in", runs)).records


def grid(tmp_path: Path, runs: Iterable[dict[str, Any]], metric: Metric = NLL, layout: Layout = UNIVARIATE) -> Grid:
    found = grid_of(latest(records_of(tmp_path, runs), layout.name, "quick"), layout, "quick", metric)
    assert found is not None
    return found


def paper_runs() -> list[dict[str, Any]]:
    pairs = ((d, m, v) for d, means in PAPER_NLL.items() for m, v in zip(FIVE, means, strict=True))
    return [nll(dataset, method, value) for dataset, method, value in pairs]


def everything() -> list[dict[str, Any]]:
    """All eight experiments, small: few data sets, few metrics, since every figure costs a second."""
    rng = np.random.default_rng(0)
    runs = []
    small = {"univariate": ("pol", "kin40k"), "quadrature": ("pol",), "multivariate": ("sarcos_testset",)}
    small |= {"multilayer": ("kin40k",), "dkl": ("kin40k",), "biased": ("pol",)}
    for name, datasets in small.items():
        for dataset in datasets:
            for method in layout_of(name).methods:
                for split in range(2 if dataset == "pol" else 1):
                    metrics = {"nll": float(rng.normal())} | ({"mrmse": 0.2} if name == "multivariate" else {})
                    metrics |= {"seen_share": 0.76, "nll_new": 0.5} if name == "univariate" else {}
                    weights = [0.5, 0.3, 0.2] if method.startswith("DSPP-QR3") else None
                    runs.append(
                        run(dataset, method, split, experiment=name, metrics=metrics, details={"weights": weights})
                    )
    runs.append(nll("pol", "DSPP-QR3-2L", -1.3, protocol="paper", commit="abcdef0123+"))
    runs += [run("pol", split=i, experiment="weights", details={"weights": [0.6, 0.3, 0.1]}) for i in range(3)]
    sizes = {"batch_size": 1000, "inducing": 300, "sites": 10, "width": 3, "noise_floor": 1e-4}
    for method in ("DSPP-QR3-2L", "DGP-2L"):
        for n in (250, 1000, 4000):
            metrics = {"step_ms": n / 10, "peak_mb": 2.0 * n}
            setting = sizes | {"batch_size": n}
            runs.append(run("simulated", method, experiment="complexity", metrics=metrics, setting=setting))
    return runs


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a report on all experiments, with the literals above as the paper."""
    folder = write(tmp_path_factory.mktemp("results"), everything())
    with (folder / "univariate.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"experiment": "univariate", "dataset": "pol", "spl')  # the machine stopped here
    paper = tmp_path_factory.mktemp("paper")
    with (paper / "results.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["experiment", "metric", "dataset", "method", "mean", "standard_error", "best"])
        few = {key: cell for key, cell in SAMPLE_PAPER.cells.items() if key[2] in ("pol", "song")}  # a panel a data set
        writer.writerows([*key, cell.mean, cell.error, 0] for key, cell in few.items())
    assert write_report(folder, paper) == folder / "report" / "index.html"
    shutil.copytree(folder / "report", folder / "first")
    write_report(folder, paper)
    return folder / "report"


# ---------------------------------------------------------------- statistics


def test_mean_and_standard_error() -> None:
    values = [0.1, 0.4, 0.35, -0.2]
    cell = summary(values)
    assert cell is not None
    assert cell.mean == pytest.approx(np.mean(values))
    assert cell.error == pytest.approx(stats.sem(values))
    assert cell.splits == 4
    one = summary([0.5])
    assert one is not None
    assert (one.mean, one.error, one.splits) == (0.5, None, 1)
    assert summary([]) is None


def test_ranks_with_ties_and_missing_cells(tmp_path: Path) -> None:
    values = {"pol": {"A": 1.0, "B": 1.0, "C": 3.0}, "bike": {"A": 2.0, "B": 1.0, "C": 0.5}, "song": {"A": 9.0, "B": 1}}
    found = ranking(grid(tmp_path, [nll(d, m, v) for d, row in values.items() for m, v in row.items()]), "ABC")
    assert found.pairs == (("pol", 0), ("bike", 0))  # song has no C
    assert found.ranks == ((1.5 + 3) / 2, (1.5 + 2) / 2, (3 + 1) / 2)
    assert found.order() == ["B", "C", "A"]
    assert found.rank("nobody") is None


def test_ranks_are_those_of_scipy_and_friedman_too(tmp_path: Path) -> None:
    losses = np.random.default_rng(1).normal(size=(3, 4, 5)).round(1)  # data sets, splits, methods; ties among them
    runs = [nll(f"d{i}", f"m{k}", float(losses[i, j, k]), j) for i in range(3) for j in range(4) for k in range(5)]
    found = ranking(grid(tmp_path, runs), [f"m{k}" for k in range(5)])
    flat = losses.reshape(12, 5)
    assert found.ranks == pytest.approx(stats.rankdata(flat, axis=1).mean(axis=0))
    assert found.friedman == pytest.approx(tuple(stats.friedmanchisquare(*flat.T)))
    assert found.critical == pytest.approx(nemenyi(5, 12))
    assert len(found.datasets()) == 3


@pytest.mark.parametrize(("k", "q"), [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (8, 3.031), (10, 3.164)])
def test_nemenyi_has_the_published_critical_values(k: int, q: float) -> None:
    assert nemenyi(k, 12) == pytest.approx(q * math.sqrt(k * (k + 1) / (6 * 12)), rel=3e-4)


def test_no_friedman_without_three_methods_and_two_pairs(tmp_path: Path) -> None:
    two = ranking(grid(tmp_path / "a", [nll(d, m, 1.0) for d in ("pol", "bike") for m in "AB"]), "AB")
    one = ranking(grid(tmp_path / "b", [nll("pol", m, i) for i, m in enumerate("ABC")]), "ABC")
    tied = ranking(grid(tmp_path / "c", [nll(d, m, 1.0) for d in ("pol", "bike") for m in "ABC"]), "ABC")
    assert two.friedman is two.critical is one.friedman is one.critical is tied.friedman is None
    assert tied.ranks == (2.0, 2.0, 2.0)
    assert verdicts.tests(two) == verdicts.tests(tied) == ["Too few methods or pairs for a Friedman test."]


def test_coverage_is_ranked_by_its_distance_from_the_target(tmp_path: Path) -> None:
    values = {"A": 0.99, "B": 0.88, "C": 0.93}
    found = grid(tmp_path, [run(method=m, metrics={"coverage90": v}) for m, v in values.items()], METRIC["coverage90"])
    assert ranking(found, "ABC").order() == ["B", "C", "A"]
    assert our_best(found, "pol") == {"B"}


@pytest.mark.parametrize("seed", range(5))
def test_signed_rank_is_scipys_where_there_are_no_ties(seed: int) -> None:
    differences = np.random.default_rng(seed).normal(0.4, size=6 + 3 * seed)
    assert exact_pvalue(differences) == pytest.approx(stats.wilcoxon(differences, method="exact").pvalue)


def test_signed_rank_with_ties_is_that_of_all_sign_changes() -> None:
    differences = np.array([1.0, -1.0, 2.0, 2.0, 2.0, -0.5, 3.0, 0.0])  # the zero does not count
    ranks = stats.rankdata(np.abs(differences[:-1]))
    signs = 2 * ((np.arange(2**7)[:, None] >> np.arange(7)) & 1) - 1
    sums = ((signs > 0) * ranks).sum(axis=1)
    seen = ranks[differences[:-1] > 0].sum()
    assert exact_pvalue(differences) == pytest.approx(min(1, 2 * min((sums >= seen).mean(), (sums <= seen).mean())))


def test_too_few_pairs_get_no_p_value(tmp_path: Path) -> None:
    for num, text in ((5, "too few pairs"), (6, "p = 0.031")):  # 2 / 2^5 = 0.0625, 2 / 2^6 = 0.03125
        runs = [nll(f"d{i}", m, v + i * 0.1) for i in range(num) for m, v in (("DSPP-QR3-2L", 0.0), ("PPGPR", 1.0 + i))]
        test = signed_rank(grid(tmp_path / str(num), runs), "DSPP-QR3-2L", "PPGPR")
        assert (str(test), test.pairs, test.wins, test.losses) == (text, num, num, 0)
    assert str(signed_rank(grid(tmp_path / "no", [nll("pol", "A", 1.0)]), "A", "B")) == "no pairs"


def test_cliques_are_the_widest_stretches_below_the_critical_difference() -> None:
    found = Ranking(tuple("ABCD"), (("d", 0),), (1.0, 1.8, 2.4, 4.8), None, 1.5)
    assert cliques(found) == [(1.0, 2.4)]
    assert cliques(Ranking(tuple("ABC"), (("d", 0),), (1.0, 2.0, 3.0), None, 1.2)) == [(1.0, 2.0), (2.0, 3.0)]
    assert cliques(Ranking(tuple("AB"), (("d", 0),), (1.0, 2.0), None, None)) == []


# ---------------------------------------------------------------- the paper's own numbers


def test_the_papers_cells_give_the_papers_order(tmp_path: Path) -> None:
    found = ranking(grid(tmp_path, paper_runs()), FIVE)
    assert found.order() == ["DSPP-QR3-2L", "PPGPR", "DGP-2L", "gamma-DGP-2L", "OD-SVGP"]
    assert len(found.pairs) == 12
    assert "The paper's order is the same." in verdicts.rank_order(found, SAMPLE_PAPER, UNIVARIATE, NLL)


def as_runs(folder: Path) -> list[dict[str, Any]]:
    """The whole of results.csv as records with one split, under the experiments that show those cells."""
    cells: dict[tuple[str, str, str], dict[str, float]] = {}
    with (folder / "results.csv").open() as file:
        for row in csv.DictReader(file):
            key = row["experiment"], row["dataset"], row["method"]
            cells.setdefault(key, {})[row["metric"].lower()] = float(row["mean"])
    runs = []
    for layout in EXPERIMENTS:
        source = layout.paper_cells or ("multivariate" if layout.name == "multivariate" else None)
        wanted = layout.datasets if layout.paper_cells else {d for e, d, _ in cells if e == source}
        for (experiment, dataset, method), metrics in cells.items():
            if experiment == source and dataset in wanted and method in layout.methods:
                runs.append(run(dataset, method, experiment=layout.name, metrics=metrics))
    return runs


@needs_paper
def test_every_rank_table_of_the_paper_comes_out_of_its_cells(tmp_path: Path) -> None:
    """The paper ranks on each split, we have its means only: two of its eight orders differ, as said below."""
    paper, records = read_paper(BESIDE), records_of(tmp_path, as_runs(BESIDE))
    orders, differ = 0, {}
    for layout in (layout for layout in EXPERIMENTS if layout.paper_ranks):
        for found in comparisons(records, layout, "quick"):
            theirs = {m: r for m in found.methods if (r := paper.rank(layout, found.metric, m)) is not None}
            if theirs:
                orders += 1
                ours = ranking(found, list(theirs))
                assert ours.ranks == pytest.approx([theirs[m] for m in ours.methods], abs=0.35)
                wrong = {
                    (a, b)
                    for a in theirs
                    for b in theirs
                    if theirs[a] < theirs[b] and (ours.rank(a) or 0) >= (ours.rank(b) or 0) - 1e-9
                }
                if wrong:
                    differ[layout.name, found.metric.name] = wrong
    assert orders == 8
    assert differ == {
        # Means of three decimals tie where splits do not: PPGPR 2.85 and DGP 2.98, OD-SVGP 3.28 and gamma-DGP 3.32.
        ("univariate", "RMSE"): {("PPGPR", "DGP-2L"), ("OD-SVGP", "gamma-DGP-2L")},
        # DGP 2.04 and DSPP 2.12 over 25 splits: by means DSPP is first, 1.8 to 2.2.
        ("multivariate", "MRMSE"): {("DGP-2L", "DSPP-QR3-2L")},
    }


@needs_paper
def test_the_paper_is_found_beside_the_repository_and_agrees_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DSPP_PAPER", raising=False)
    assert find_paper() == BESIDE
    paper = read_paper(BESIDE)
    assert len(paper.cells) > 300
    for key, cell in SAMPLE_PAPER.cells.items():
        assert paper.cells[key].mean == cell.mean
    for rank_key, rank in SAMPLE_PAPER.ranks.items():
        assert paper.ranks[rank_key] == rank


def test_the_paper_can_be_elsewhere_absent_or_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSPP_PAPER", str(tmp_path))
    with pytest.raises(InputError, match=r"expected a folder with results\.csv"):
        find_paper()
    (tmp_path / "results.csv").write_text("a,b\n1,2\n")
    assert find_paper() == tmp_path
    with pytest.raises(InputError, match="expected the columns"):
        read_paper(tmp_path)
    (tmp_path / "results.csv").write_text("experiment,metric,dataset,method,mean,standard_error\nuci,NLL,a,b,x,0\n")
    with pytest.raises(InputError, match="expected a number, got 'x'"):
        read_paper(tmp_path)
    assert read_paper(None) == read_paper(tmp_path / "nowhere") == Paper()


# ---------------------------------------------------------------- records


def test_lines_that_are_no_records_are_left_out_and_counted(tmp_path: Path) -> None:
    good = json.dumps(run() | {"unknown": [1, 2]})
    bad = ['{"torn": ', "[]", "3", json.dumps(run(split="0")), json.dumps(run(experiment="../x")), "\xff"]
    bad += [json.dumps({k: v for k, v in run().items() if k != "metrics"}), json.dumps(run(experiment="index"))]
    (tmp_path / "univariate.jsonl").write_bytes("\n".join([good, *bad]).encode("latin-1"))
    (tmp_path / "notes.txt").write_text("not ours")
    found = read_records(tmp_path)
    assert [record.dataset for record in found.records] == ["pol"]
    assert found.left_out == {"univariate.jsonl": len(bad)}
    with pytest.raises(InputError, match="is not a folder"):
        read_records(tmp_path / "nowhere")


def test_only_selected_runs_of_one_protocol_count_and_the_latest_of_the_same(tmp_path: Path) -> None:
    runs = [nll("pol", "PPGPR", 5.0, selected=False), nll("pol", "PPGPR", 6.0, protocol="paper")]
    runs += [nll("pol", "PPGPR", 1.0), nll("pol", "PPGPR", 2.0), nll("pol", "DGP-2L", math.nan)]
    found = grid(tmp_path, runs)
    assert found.values == {("pol", "PPGPR"): {0: 2.0}}
    assert found.failed == 1
    assert found.source.records == 1


def test_a_caption_says_protocol_splits_commits_floor_and_records(tmp_path: Path) -> None:
    runs = [run(split=i) for i in range(3)] + [run(method="PPGPR", commit="abcdef0123+")]
    assert str(source_of("quick", records_of(tmp_path, runs))) == (
        "protocol quick · 1–3 splits · commits 2584cfe, abcdef0+ · noise floor 0.0001 · 4 records"
    )
    bare = records_of(tmp_path / "bare", [run(commit=None, setting={})])
    assert str(source_of("paper", bare)) == ("protocol paper · 1 split · commit unknown · 1 record")
    mixed = records_of(tmp_path / "mixed", [run(), run(setting={}, split=1)])
    assert "noise floor 0.0001, not stated" in str(source_of("quick", mixed))


def test_a_part_of_a_protocol_is_called_that(tmp_path: Path) -> None:
    """The paper's protocol has 8 settings of the DSPP and 10 splits; flags can change what is run under its name."""
    units = list_units(CATALOGUE["univariate"], read_protocol("paper"), ["pol"], [DSPP])
    of = {"method": DSPP, "protocol": "paper", "experiment": "univariate"}
    three = [run(setting=u.setting, split=u.split, **of) for u in units[:3]]
    said = what_was_run(records_of(tmp_path / "a", three), layout_of("univariate"), "paper")
    assert said == [f"Run in part: {DSPP}, with 3 of 8 settings and 1 of 10 splits."]
    short = [run(setting=units[0].setting | {"epochs": 1}, **of), run(setting=units[0].setting, **of)]
    said = what_was_run(records_of(tmp_path / "b", short), layout_of("univariate"), "paper")
    assert said == [
        f"Run in part: {DSPP}, with 1 of 8 settings (so none was selected) and 1 of 10 splits.",
        "Not part of this protocol: 1 fit with settings or rows changed by options.",
    ]
    whole = [run(setting=u.setting, split=u.split, **of) for u in units]
    assert what_was_run(records_of(tmp_path / "c", whole), layout_of("univariate"), "paper") == []


def test_other_rows_are_another_data_set(tmp_path: Path) -> None:
    runs = [nll("pol", DSPP, 1.0), nll("pol", DSPP, 2.0, setting={"split_by": "groups"})]
    assert grid(tmp_path, runs).values == {("pol", DSPP): {0: 1.0}, ("pol, split by groups", DSPP): {0: 2.0}}


def test_results_from_different_files_of_a_data_set_are_pointed_out(tmp_path: Path) -> None:
    def from_file(dataset: str, method: str, sha256: str) -> dict[str, Any]:
        return run(dataset=dataset, method=method, details={"data": sha256})

    same = [from_file("pol", DSPP, "aaa"), from_file("pol", "PPGPR", "aaa"), from_file("bike", DSPP, "bbb")]
    assert other_files(records_of(tmp_path / "same", same)) == []
    (line,) = other_files(records_of(tmp_path / "other", [*same, from_file("pol", "DGP-2L", "ccc")]))
    assert "Results on pol come from different data files (sha256 aaa and ccc)" in line
    page = write_report(tmp_path / "other" / "in", None)
    assert line in page.with_name("univariate.md").read_text()


def test_the_report_expects_what_is_run() -> None:
    run_there = {e.name: (set(e.datasets), set(e.methods)) for e in CATALOGUE.values()}
    assert {e.name: (set(e.datasets), set(e.methods)) for e in EXPERIMENTS} == run_there


# ---------------------------------------------------------------- tables and verdicts


def texts(row: Sequence[Any]) -> list[str]:
    return [entry.text for entry in row]


def test_the_table_has_ours_and_the_papers_bold_bests_and_dashes(tmp_path: Path) -> None:
    runs = [nll("pol", "PPGPR", v, i) for i, v in enumerate((-1.0, -1.2))]
    runs += [nll("pol", "DGP-2L", -0.5), nll("pol", "CatBoost", -2.0), nll("pol", "NGBoost", -0.1)]
    table = main_table(grid(tmp_path, runs), SAMPLE_PAPER, UNIVARIATE)
    assert table.header == ("data set", *FIVE[:2], "DGP-2L", "gamma-DGP-2L", "DSPP-QR3-2L", "NGBoost", "CatBoost")
    assert table.apart == {6, 7}
    pol, elevators = table.rows[0], table.rows[1]
    assert texts(pol) == ["pol", "–", "−1.100 ± 0.100", "−0.500", "–", "–", "−0.100", "−2.000"]
    assert [entry.bold for entry in pol] == [False, False, True, False, False, False, False, True]
    assert pol[5].second == "−1.237 ± 0.010"
    assert pol[5].second_bold
    assert not pol[2].second_bold
    assert {entry.second for entry in pol[6:]} == {""}  # the paper has no peers
    assert texts(elevators)[1:] == ["–"] * 7
    assert elevators[3].second_bold  # the paper's best on elevators is the DGP
    assert len(table.rows) == 12
    assert "protocol quick · 1–2 splits" in table.caption


def test_without_the_paper_there_are_dashes(tmp_path: Path) -> None:
    table = main_table(grid(tmp_path, [nll("pol", "PPGPR", 1.0)]), Paper(), UNIVARIATE)
    assert {entry.second for entry in table.rows[0][1:]} == {"–"}


def test_rows_seen_in_training_are_told_apart(tmp_path: Path) -> None:
    metrics = {"nll": -3.0, "seen_share": 0.755, "nll_new": -1.25}
    records = records_of(
        tmp_path, [run("keggdirected", metrics=metrics), run("pol", metrics=metrics | {"nll_new": None})]
    )
    found = grid_of(latest(records, "univariate", "quick"), UNIVARIATE, "quick", NLL)
    assert found is not None
    rows = {row[0].text: texts(row) for row in main_table(found, Paper(), UNIVARIATE, records).rows}
    assert rows["keggdirected"][-2:] == ["75.5 %", "−1.250"]
    assert rows["pol"][-2:] == ["75.5 %", "–"]
    assert rows["song"][-2:] == ["–", "–"]


def test_ranks_stand_beside_the_papers_with_and_without_peers(tmp_path: Path) -> None:
    values = {"PPGPR": 2.0, "DSPP-QR3-2L": 1.0, "CatBoost": 0.0}
    found = grid(tmp_path, [nll(f"d{i}", m, v) for i in range(6) for m, v in values.items()])
    own, everyone = ranking(found, ("PPGPR", "DSPP-QR3-2L")), ranking(found, found.methods)
    table = rank_table(found, own, everyone, SAMPLE_PAPER, UNIVARIATE)
    rows = {row[0].text: texts(row)[1:] for row in table.rows}
    assert rows["PPGPR"] == ["2.00", "2.33", "3.00", "6", "6–0", "p = 0.031"]
    assert rows["DSPP-QR3-2L"] == ["1.00", "1.15", "2.00", "–", "–", "–"]
    assert rows["CatBoost"] == ["–", "–", "1.00", "6", "0–6", "p = 0.031"]


def test_the_default_ensemble_stands_beside_and_changes_no_rank_or_verdict(tmp_path: Path) -> None:
    runs = [nll("pol", method, value) for method, value in (("PPGPR", 0.5), (DSPP, 0.0), ("LightGBM", -0.5))]
    runs += [nll("bike", method, value) for method, value in (("PPGPR", 0.5), (DSPP, 0.0), ("LightGBM", 1.0))]
    more = [*runs, nll("pol", ENSEMBLE, -1.0)]  # on one of two data sets
    (old,), (new,) = (
        sections(records_of(tmp_path / name, found), Paper({}, {}))[0].parts
        for name, found in (("before", runs), ("after", more))
    )
    assert old.verdict[1:] == new.verdict[1:]  # the first line says what was run
    tables_before, tables_after = ({t.title: t for b in part.blocks for t in b.tables} for part in (old, new))
    ranks = "Average ranks on NLL"
    assert [texts(row) for row in tables_before[ranks].rows] == [texts(row) for row in tables_after[ranks].rows]
    table = next(t for title, t in tables_after.items() if title.startswith("NLL"))
    column = table.header.index(ENSEMBLE)
    assert column in table.apart
    cells = {row[0].text: (row[column].text, row[column].bold) for row in table.rows}
    assert (cells["pol"], cells["bike"]) == (("−1.000", True), ("–", False))
    assert next(row for row in table.rows if row[0].text == "pol")[table.header.index("LightGBM")].bold
    assert "also trained on the validation rows" in table.caption
    assert ENSEMBLE not in next(t for title, t in tables_before.items() if title.startswith("NLL")).header


def test_nats_gained_are_paired_by_split(tmp_path: Path) -> None:
    runs = [nll("pol", "DSPP-QR3-2L", -1.0), nll("pol", "DSPP-QR3-2L", -2.0, 1), nll("pol", "DSPP-QR3-2L", -9.0, 2)]
    runs += [nll("pol", "PPGPR", -0.5), nll("pol", "PPGPR", -1.0, 1), nll("bike", "DSPP-QR3-2L", 0.0)]
    runs += [nll("bike", "PPGPR", -0.25)]
    table = nats_table(grid(tmp_path, runs), SAMPLE_PAPER, UNIVARIATE)
    assert table is not None
    rows = {row[0].text: texts(row)[1:] for row in table.rows}
    assert table.header == ("data set", "over PPGPR", "paper")
    assert rows["pol"] == ["+0.750", "+0.147"]  # (0.5 + 1.0) / 2: split 2 has no PPGPR
    assert rows["bike"] == ["−0.250", "+0.337"]
    assert rows["song"] == ["–", "+0.433"]
    assert rows["average over data sets run"] == ["+0.250", "+0.242"]
    whole = np.mean([row[1] - row[4] for row in PAPER_NLL.values()])
    assert rows["average over all of the paper's"] == ["–", f"+{whole:.3f}"]


def test_the_check_of_the_papers_row(tmp_path: Path) -> None:
    runs = [nll("pol", "DSPP-QR3-2L", -1.167), nll("bike", "DSPP-QR3-2L", -1.593), nll("bike", "PPGPR", 0.0)]
    found = grid(tmp_path, runs)
    table = check_table(found, SAMPLE_PAPER, UNIVARIATE)
    assert table is not None
    assert texts(table.rows[0]) == ["pol", "1", "−1.167", "−1.237", "0.010", "−1.167", "met"]
    assert texts(table.rows[1])[-2:] == ["−1.693", "missed by 0.100 nat"]
    assert check_table(found, Paper(), UNIVARIATE) is None


def test_the_nll_of_protein_is_also_given_in_raw_units(tmp_path: Path) -> None:
    found = grid(tmp_path, [nll("protein", DSPP, 0.225), nll("protein", "PPGPR", 0.75), nll("pol", "DGP-2L", -1.0)])
    rows = [[entry.text for entry in row] for row in raw_units_table(found, "protein").rows]
    assert rows == [["PPGPR", "0.750", "2.38"], [DSPP, "0.225", "1.86"]]  # not the DGP, which was run on pol only


def test_raw_units_of_protein_are_those_of_its_file() -> None:
    """The smallest distance is 0, whose logarithm of 1 + y is 0: this tells how the file was centred."""
    try:
        t = load("protein", download=False).y.astype(float)
    except InputError:
        pytest.skip("protein is not available")
    assert np.expm1(t - t.min()).max() == pytest.approx(20.999, abs=1e-3)  # as in the description of the public data
    assert RAW_NATS["protein"] == pytest.approx(np.log(t.std()) + np.mean(t - t.min()), abs=5e-4)


def test_verdicts_say_where_the_order_holds_and_where_not(tmp_path: Path) -> None:
    runs = [nll("pol", "DSPP-QR3-2L", -1.0), nll("pol", "PPGPR", -0.9), nll("elevators", "DSPP-QR3-2L", 0.35)]
    runs += [nll("elevators", "PPGPR", 0.32), nll("pol", "CatBoost", -1.5), nll("song", "PPGPR", 1.0)]
    found = grid(tmp_path, runs)
    assert verdicts.first_place(found, SAMPLE_PAPER, UNIVARIATE) == [
        "DSPP has the best NLL on 1 of 2 data sets (paper: 1 of the same 2, 11 of 12 in total); not on elevators "
        "(PPGPR better by 0.030 nat).",
        "Compared with CatBoost only, it is best on 0 of 1; not on pol (CatBoost better by 0.500 nat).",
    ]
    assert verdicts.same_order(found, SAMPLE_PAPER, UNIVARIATE) == [
        "The paper's order in NLL holds for 1 of 2 pairs of methods (2 data sets): all on pol; elevators 0 of 1."
    ]
    only = grid(tmp_path / "only", [nll("pol", "DSPP-QR3-2L", -1.0)])
    assert "nothing to compare" in verdicts.first_place(only, SAMPLE_PAPER, UNIVARIATE)[0]


def test_the_papers_cells_put_dspp_first_on_eleven_of_twelve(tmp_path: Path) -> None:
    (first,) = verdicts.first_place(grid(tmp_path, paper_runs()), SAMPLE_PAPER, UNIVARIATE)
    assert first == (
        "DSPP has the best NLL on 11 of 12 data sets (paper: 11 of 12); not on elevators (DGP-2L better by 0.016 nat)."
    )
    (same,) = verdicts.same_order(grid(tmp_path / "2", paper_runs()), SAMPLE_PAPER, UNIVARIATE)
    assert "holds for 119 of 119 pairs" in same  # 12 sets of 10 pairs, one of them a tie in the paper


def test_a_third_layer_and_a_network_have_verdicts(tmp_path: Path) -> None:
    layout = layout_of("multilayer")
    runs = [nll("kin40k", "DSPP-QR3-2L", -2.0), nll("kin40k", "DSPP-QR3-3L", -2.1)]
    runs += [nll("slice", "DSPP-QR3-2L", -2.0), nll("slice", "DSPP-QR3-3L", -1.9)]
    found = grid(tmp_path, [r | {"experiment": "multilayer"} for r in runs], layout=layout)
    assert verdicts.steps(found, Paper(), layout) == [
        "A third layer of DSPP lowers the NLL on 1 of 2 data sets; not on slice (0.100 nat worse)."
    ]


def test_the_headline_keeps_protocols_in_columns_of_their_own(tmp_path: Path) -> None:
    runs = [nll("pol", "DSPP-QR3-2L", -1.0), nll("pol", "DSPP-QR3-2L", -1.3, protocol="paper")]
    runs += [nll("pol", "CatBoost", -0.8), nll("pol", "NGBoost", -0.9), nll("bike", "CatBoost", -0.1, protocol="paper")]
    table = headline(records_of(tmp_path, runs), SAMPLE_PAPER)
    rows = {row[0].text: texts(row)[1:] for row in table.rows}
    assert rows["pol"][:4] == ["−1.237 ± 0.010", "−1.300", "−1.000", "−0.900 (NGBoost)"]
    assert rows["bike"][:4] == ["−1.763 ± 0.010", "–", "–", "–"]  # CatBoost ran under the other protocol
    assert len(rows) == 12


def test_the_headline_has_crps_beside_nll(tmp_path: Path) -> None:
    runs = [run(dataset="pol", metrics={"nll": -1.0, "crps": 0.25}), nll("pol", "CatBoost", -0.8)]
    runs += [run(dataset="pol", method="NGBoost", metrics={"nll": -0.9, "crps": 0.5})]
    table = headline(records_of(tmp_path, runs), SAMPLE_PAPER)
    (row,) = (texts(row) for row in table.rows if row[0].text == "pol")
    assert table.header[5:] == tuple(f"CRPS: {name}" for name in table.header[1:5])
    assert row[6:] == ["–", "0.250", "0.500 (NGBoost)"]


def test_large_sets_have_a_learning_curve(tmp_path: Path) -> None:
    def find(rows: int) -> list[str]:
        details = {"curve": [-1.0, -1.5], "rows": rows}
        found = sections(records_of(tmp_path, [run(dataset="houseelectric", details=details)]), Paper())
        return [p.name for s in found for part in s.parts for block in part.blocks for p in block.pictures]

    assert "univariate-quick-curves" in find(200_000)
    assert "univariate-quick-curves" not in find(20_000)


# ---------------------------------------------------------------- weights and complexity


def test_the_nll_is_shown_by_beta_where_a_split_has_all(tmp_path: Path) -> None:
    details = {"weights": [0.6, 0.4]}
    runs = [
        run(experiment="weights", details=details, split=split, setting={"beta": beta}, metrics={"nll": beta - split})
        for split, beta in [(0, 0.05), (0, 1.0), (1, 0.05), (1, 1.0), (2, 0.05)]
    ]
    section = weights_section(records_of(tmp_path, runs), layout_of("weights"))
    assert section is not None
    _, table = section.parts[0].blocks[0].tables
    assert table.header[2:] == ("β = 0.05", "β = 1")
    (row,) = table.rows
    assert texts(row)[1:] == ["2", "−0.450", "0.500"]
    assert [entry.bold for entry in row[2:]] == [True, False]


def test_a_fit_that_serves_two_experiments_counts_once(tmp_path: Path) -> None:
    details = {"weights": [0.2, 0.7, 0.1]}
    runs = [run(experiment=e, details=details) for e in ("univariate", "quadrature")]
    runs += [run(details=details, setting={"beta": 0.2}, selected=False), run(method="DGP-2L", details=details)]
    section = weights_section(records_of(tmp_path, runs), layout_of("weights"))
    assert section is not None
    (part,) = section.parts
    assert "2 fits from all experiments" in part.blocks[0].tables[0].caption
    assert texts(part.blocks[0].tables[0].rows[-1]) == ["all", "2", "0.700 ± 0.000", "0.200 ± 0.000", "0.100 ± 0.000"]
    more = records_of(tmp_path / "own", [*runs, run(experiment="weights", split=7, details=details)])
    fits = [(record, (0.7, 0.2, 0.1)) for record in more]
    assert [record.split for record, _ in distinct_fits(fits)] == [7]
    assert weights_section(records_of(tmp_path / "none", [run()]), layout_of("weights")) is None


def test_exponents_of_growth_are_found(tmp_path: Path) -> None:
    base = {"batch_size": 1000, "inducing": 300, "sites": 10, "width": 3}
    runs = []
    for key, values in {"batch_size": (500, 1000, 2000), "inducing": (100, 300, 900), "width": (3, 6)}.items():
        for value in values:
            setting = base | {key: value}
            metrics = {"step_ms": setting["batch_size"] ** 0.5 * setting["inducing"] ** 2.5 * setting["width"]}
            runs.append(run("simulated", experiment="complexity", setting=setting, metrics=metrics))
    records = records_of(tmp_path, runs)
    for symbol, exponent, points in (("N", 0.5, 3), ("M", 2.5, 3), ("W", 1.0, 2)):
        found = sweep(records, "DSPP-QR3-2L", symbol, "step_ms")
        assert len(found.sizes) == points
        assert found.exponent() == pytest.approx(exponent)
    assert found.paper_exponent() == pytest.approx(1.0)  # W M³ + (S + B) W M² is linear in W
    assert sweep(records, "DSPP-QR3-2L", "S", "step_ms").exponent() is None  # one point has no slope
    assert sweep(records, "DSPP-QR3-2L", "M", "peak_mb").sizes == ()
    assert complexity_section((), layout_of("complexity")) is None


# ---------------------------------------------------------------- the files


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_all_experiments_have_their_files(report: Path) -> None:
    names = set(files(report))
    for layout in EXPERIMENTS:
        assert {f"{layout.name}.md", f"{layout.name}.csv"} <= names
        assert any(name.startswith(f"figures/{layout.name}-quick") and name.endswith(".png") for name in names)
    assert {"index.html", "index.md", "headline.md", "figures/univariate-paper-nll.svg"} <= names
    assert {name[:-4] for name in names if name.endswith(".png")} == {
        name[:-4] for name in names if name.endswith(".svg")
    }
    for name in re.findall(r"\]\(([^)#]+)\)", "".join((report / n).read_text() for n in names if n.endswith(".md"))):
        assert name in names, f"a link to {name}, which is not there"


def test_everyday_tables_are_a_section(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    metrics = {"nll": 0.25, "crps": 0.1, "rmse": 0.2, "coverage90": 0.9, "worst_surprise": 4.0}
    fit = {"set": "wine", "fold": 0, "metrics": metrics, "seconds": {"fit": 1.0}, "rows": {"test": 160}}
    lines = [fit | {"method": "dspp", "commit": "2584cfe0123456789"}, fit | {"method": NASTY}]
    (results / "tables.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"set": "wi')
    page = write_report(results, None).read_text()
    assert Outline(page).open == []
    assert "<script" not in page
    assert {"tables", "tables-title"} <= {attrs.get("id") for _, attrs in Outline(page).tags}
    assert "What dspp must reach" in page
    assert "Protocol" not in page
    text = (results / "report" / "tables.md").read_text()
    assert "| wine | 1 | **0.250** | **0.250** |" in text
    assert "Results come from commits 2584cfe, unknown." in text
    assert "## [Everyday tables](tables.md)" in (results / "report" / "index.md").read_text()
    assert ",nll,wine,dspp,0.25,,1,,," in (results / "report" / "tables.csv").read_text()


def test_the_same_records_give_the_same_bytes(report: Path) -> None:
    assert files(report) == files(report.parent / "first")


def test_figures_carry_no_date_and_no_program(report: Path) -> None:
    for name, content in files(report / "figures").items():
        assert content.startswith(b"\x89PNG" if name.endswith(".png") else b"<svg xmlns")
        assert b"tEXt" not in content
        assert b"matplotlib" not in content.lower()
        assert b"var(--" not in content
        assert b"<dc:date>" not in content


def test_protocols_are_never_mixed(report: Path) -> None:
    text = (report / "univariate.md").read_text()
    paper, quick = text.split("## Protocol `quick`")
    assert "protocol quick" not in paper
    assert "protocol paper" not in quick
    assert "abcdef0+" in paper
    assert "abcdef0+" not in quick
    with (report / "univariate.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == CSV_HEADER
    mine = [r for r in rows if (r["dataset"], r["method"], r["metric"]) == ("pol", "DSPP-QR3-2L", "nll")]
    assert [(r["protocol"], r["splits"], r["paper_mean"]) for r in mine] == [
        ("paper", "1", "-1.237"),
        ("quick", "2", "-1.237"),
    ]
    assert mine[0]["mean"] == "-1.3"
    assert mine[0]["standard_error"] == ""
    song = [r for r in rows if r["dataset"] == "song" and r["method"] == "PPGPR"]
    assert {(r["mean"], r["splits"], r["best"], r["paper_mean"]) for r in song} == {("", "0", "", "1.103")}


def test_every_table_and_figure_says_where_it_comes_from(report: Path) -> None:
    for layout in EXPERIMENTS:
        text = (report / f"{layout.name}.md").read_text()
        captions = re.findall(
            r"^\*protocol (?:paper|quick) · .* splits?.* · commits? .* · noise floor .* · \d+ rec", text, re.M
        )
        assert len(captions) == len(re.findall(r"^\|:---", text, re.M)) + text.count("[![") > 0


def test_the_multivariate_section_says_that_cells_are_not_comparable(report: Path) -> None:
    text = (report / "multivariate.md").read_text()
    assert "substitutes" in text
    assert "paper −" not in text
    assert "MRMSE" in text


def test_the_page_is_whole_and_asks_for_nothing(report: Path) -> None:
    text = (report / "index.html").read_text()
    page = Outline(text)
    assert page.open == []
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {layout.name for layout in EXPERIMENTS} <= set(ids)
    for tag, attrs in page.tags:
        assert tag not in ("script", "link", "iframe", "img", "object", "base")
        for key in ("src", "href", "xlink:href", "action"):
            assert (attrs.get(key) or "#").startswith("#")
    assert not re.search(r"url\((?!#)|@import|https?://", text)
    assert "prefers-color-scheme: dark" in text
    assert "overflow-x: auto" in text
    said = "".join(page.texts)
    assert "Left out: 1 line" in said
    assert "univariate.jsonl (1)" in said


def test_hostile_names_do_no_harm(tmp_path: Path) -> None:
    """In the page, in Markdown and in figures, with an experiment of its own."""
    runs = [nll(NASTY, method, value, experiment="mine") for method, value in (("A", 1.0), (NASTY, 2.0))]
    page_path = write_report(write(tmp_path, runs), None)
    text = page_path.read_text()
    assert "<script" not in text
    assert html.escape('<script>alert("1")', quote=False) in text.replace("&#34;", '"')
    assert Outline(text).open == []
    markdown = (page_path.parent / "mine.md").read_text()
    assert "<script" not in markdown
    rows = [line for line in markdown.splitlines() if line.startswith("|")]
    bars = [len(re.findall(r"(?<!\\)\|", line)) for line in rows]
    assert bars[:3] == [4, 4, 4]  # data set and two methods: the bar in the name opens no column
    assert b"<script" not in (page_path.parent / "figures" / "mine-quick-nll.svg").read_bytes()
    assert "The paper's figures were not available" in html.unescape(text)
    assert "Not run: univariate, quadrature" in text


def test_markdown_shows_text_as_it_is() -> None:
    assert escape("a|b <i> *x* _y_ & `code`\n z") == r"a\|b &lt;i&gt; \*x\* \_y\_ &amp; `code` z"
    assert "`" not in escape("`|`").replace("\\`", "")  # a bar in code would still split the row


def test_a_later_report_clears_away_what_it_no_longer_has(tmp_path: Path) -> None:
    def wrote(*names: str) -> None:
        report_page._write(dict.fromkeys(names, b"x"), tmp_path / "out")

    outside, own = tmp_path / "outside.md", tmp_path / "out" / "notes.md"
    outside.write_text("keep")
    wrote("index.md", "old.md", "figures/old.png")
    own.write_text("keep")
    with (tmp_path / "out" / report_page.MADE).open("a") as file:
        file.write("../outside.md\n")
    wrote("index.md")
    assert set(files(tmp_path / "out")) == {"index.md", "notes.md", report_page.MADE}
    assert outside.is_file()


def test_no_records_give_a_page_that_says_so(tmp_path: Path) -> None:
    page = write_report(write(tmp_path, []), None, tmp_path / "elsewhere")
    assert page == tmp_path / "elsewhere" / "index.html"
    assert "There are no records yet" in page.read_text()
    with pytest.raises(InputError, match="cannot write the report"):
        write_report(tmp_path, None, page)  # a file stands where the folder should
