"""Figures are read back: what is drawn must be the numbers it stands for."""

import ast
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.colors import same_color, to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy.integrate import trapezoid
from scipy.stats import binom

from dspp import metrics, plots
from dspp.errors import InputError
from dspp.numbers import SPACE
from dspp.predictive import NormalMixture

RNG = np.random.default_rng(0)
UNIFORM = RNG.uniform(size=4_000)


def mixture(num: int = 7, dtype: torch.dtype = torch.float64) -> NormalMixture:
    g = torch.Generator().manual_seed(3)
    weights = torch.tensor([0.6, 0.3, 0.1], dtype=dtype).log()
    mean = torch.randn(3, num, generator=g, dtype=dtype) * 2
    return NormalMixture(weights, mean, torch.rand(3, num, generator=g, dtype=dtype), torch.tensor(0.05, dtype=dtype))


def line(ax: Axes, label: str) -> Line2D:
    (found,) = [each for each in ax.lines if each.get_label() == label]
    return found


def bands(ax: Axes) -> list[np.ndarray]:
    return [np.asarray(c.get_paths()[0].vertices) for c in ax.collections if isinstance(c, PolyCollection)]


# ---------------------------------------------------------------- one row


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_density_is_one_and_is_the_sum_of_its_components(dtype: torch.dtype) -> None:
    ax = plots.density(mixture(dtype=dtype), 4)
    x, p = line(ax, "density").get_data()
    assert trapezoid(p, x) == pytest.approx(0.999, abs=5e-4)  # drawn from quantile 0.0005 to 0.9995
    thin = [each.get_ydata() for each in ax.lines if same_color(each.get_color(), plots.MUTED)]
    np.testing.assert_allclose(np.sum(thin, axis=0), p, rtol=1e-5)


def test_a_density_marks_interval_mean_median_and_the_observed_value() -> None:
    mix = mixture()
    ax = plots.density(mix, 2, y=9.5)
    low, high = (float(end[2]) for end in mix.interval(0.9))
    (shaded,) = bands(ax)
    x = line(ax, "density").get_xdata()
    step = np.diff(x).max()
    assert low <= shaded[:, 0].min() <= low + step
    assert high - step <= shaded[:, 0].max() <= high
    assert line(ax, "mean").get_xdata() == pytest.approx([float(mix.mean[2])] * 2)
    assert line(ax, "median").get_xdata() == pytest.approx([float(mix.quantile(0.5)[2])] * 2)
    assert line(ax, "observed").get_xdata() == [9.5, 9.5]
    assert x.min() < float(mix.quantile(5e-4)[2]) + step
    assert x.max() > 9.5  # an outlier is inside the figure


def test_no_peak_of_a_density_is_missed() -> None:
    weights = torch.tensor([0.5, 0.5], dtype=torch.float64).log()
    narrow = NormalMixture(
        weights,
        torch.tensor([[0.0], [1e5]]).double(),
        torch.tensor([[1e-6], [1e6]]).double(),
        torch.tensor(0.0).double(),
    )
    peak = np.max(line(plots.density(narrow), "density").get_ydata())
    assert peak == pytest.approx(0.5 / math.sqrt(2 * math.pi * 1e-6), rel=1e-6)


def test_a_single_component_is_not_drawn_twice() -> None:
    one = NormalMixture(torch.zeros(1), torch.zeros(1, 2), torch.ones(1, 2), torch.tensor(0.1))
    assert not [each for each in plots.density(one).lines if same_color(each.get_color(), plots.MUTED)]


# ---------------------------------------------------------------- many rows


def test_a_fan_shows_the_quantiles_of_the_rows_sorted_by_x() -> None:
    mix, x = mixture(), np.array([3.0, 1.0, 2.0, 7.0, 5.0, 4.0, 6.0])
    ax = plots.fan(mix, x, y=x, levels=(0.5, 0.9))
    order = np.argsort(x)
    for drawn, level in zip(bands(ax), (0.9, 0.5), strict=True):  # the widest below
        low, high = (end.numpy()[order] for end in mix.interval(level))
        for at, a, b in zip(x[order], low, high, strict=True):
            heights = drawn[drawn[:, 0] == at, 1]
            assert heights.min() == pytest.approx(a)
            assert heights.max() == pytest.approx(b)
    np.testing.assert_allclose(line(ax, "median").get_ydata(), mix.quantile(0.5).numpy()[order])
    np.testing.assert_array_equal(line(ax, "observed").get_xydata(), np.stack([x, x], axis=1))


def test_pit_bars_average_to_one_and_its_band_holds_95_percent_of_uniform_bars() -> None:
    inside = []
    for seed in range(30):
        ax = plots.pit_histogram(np.random.default_rng(seed).uniform(size=2_000), bins=20)
        (bars,) = ax.containers
        heights = np.array([bar.get_height() for bar in bars])  # type: ignore[union-attr]
        assert heights.mean() == pytest.approx(1.0)
        band = ax.patches[0].get_extents().transformed(ax.transData.inverted())
        assert [band.y0, band.y1] == pytest.approx(binom.ppf([0.025, 0.975], 2_000, 0.05) / 100)
        inside.append((heights >= band.y0 - 1e-9) & (heights <= band.y1 + 1e-9))
    assert np.mean(inside) == pytest.approx(0.955, abs=0.025)  # 3.5 standard errors of 600 bars; steps of a binomial


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_central_coverage_counts(pit: list[float], levels: list[float]) -> None:
    expected = [np.mean([abs(p - 0.5) <= level / 2 for p in pit]) for level in levels]
    np.testing.assert_allclose(plots.central_coverage(pit, levels), expected)


def test_reliability_is_the_coverage_that_metrics_reports() -> None:
    mix = mixture(400)
    y = mix.sample(1, torch.Generator().manual_seed(1))[0]
    nominal, observed = line(plots.reliability(mix.pit(y)), "observed").get_data()
    for level in (0.1, 0.5, 0.9):
        at = np.argmin(np.abs(nominal - level))
        assert observed[at] == pytest.approx(metrics.coverage(mix, y, float(nominal[at])))


def test_the_reliability_band_holds_calibrated_rows_and_not_overconfident_ones() -> None:
    def outside(pit: np.ndarray) -> float:
        ax = plots.reliability(pit)
        (band,) = bands(ax)
        levels, observed = line(ax, "observed").get_data()
        ends = [band[np.isclose(band[:, 0], level), 1] for level in levels]
        return float(np.mean([not e.min() - 1e-9 <= o <= e.max() + 1e-9 for e, o in zip(ends, observed, strict=True)]))

    assert outside(UNIFORM) < 0.1
    too_sure = np.where(UNIFORM < 0.5, UNIFORM**2 * 2, 1 - 2 * (1 - UNIFORM) ** 2)
    assert outside(too_sure) > 0.8


def test_predicted_observed_separates_rows_outside_their_interval() -> None:
    mean, y = np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.1, 3.0, 1.9, -2.0])
    ax = plots.predicted_observed(mean, mean - 1, mean + 1, y)
    np.testing.assert_array_equal(line(ax, "inside its interval").get_xydata(), [[0.0, 0.1], [2.0, 1.9]])
    np.testing.assert_array_equal(line(ax, "outside").get_xydata(), [[1.0, 3.0], [3.0, -2.0]])
    bars = np.asarray(ax.lines[0].get_xydata()).reshape(4, 3, 2)
    np.testing.assert_array_equal(bars[:, :2, 1], np.stack([mean - 1, mean + 1], axis=1))
    assert np.isnan(bars[:, 2, 1]).all()


def test_deciles_of_spread_average_to_the_mean_crps() -> None:
    std, crps = RNG.uniform(1, 2, 200), RNG.uniform(size=200)
    ax = plots.crps_by_spread(std, crps)
    heights = [bar.get_height() for bar in ax.patches]  # type: ignore[attr-defined]
    assert len(heights) == 10
    assert np.mean(heights) == pytest.approx(crps.mean())
    assert heights[0] == pytest.approx(crps[np.argsort(std)[:20]].mean())


def test_the_calibrated_normal_of_the_crps_figure_is_right() -> None:
    num = 20_000
    normal = NormalMixture(torch.zeros(1), torch.zeros(1, num), torch.full((1, num), 3.0), torch.tensor(1.0)).to(
        torch.float64
    )
    y = normal.sample(1, torch.Generator().manual_seed(0))[0]
    ax = plots.crps_by_spread(normal.std, normal.crps(y))
    expected = line(ax, "calibrated Normal").get_ydata()
    np.testing.assert_allclose(expected, 2.0 / math.sqrt(math.pi))
    assert np.mean([bar.get_height() for bar in ax.patches]) == pytest.approx(expected[0], rel=0.02)  # type: ignore[attr-defined]


def test_few_rows_make_few_groups() -> None:
    assert len(plots.crps_by_spread([1.0, 2.0, 3.0], [1.0, 1.0, 1.0]).patches) == 3


# ---------------------------------------------------------------- the model


def test_training_curves_show_what_there_is() -> None:
    history = [SimpleNamespace(number=i, train_nll=-float(i), val_nll=None if i < 3 else 0.5 * i) for i in (1, 2, 3, 4)]
    ax = plots.training_curves(history, best_epoch=3)
    np.testing.assert_array_equal(line(ax, "training").get_xydata(), [[1, -1], [2, -2], [3, -3], [4, -4]])
    np.testing.assert_array_equal(line(ax, "validation").get_xydata(), [[3, 1.5], [4, 2.0]])
    assert line(ax, "kept: 3").get_xdata() == [3, 3]
    assert [each.get_label() for each in plots.training_curves(history[:2]).lines] == ["training"]


def test_sites_stand_in_columns_by_weight() -> None:
    sites, weights = np.arange(8.0).reshape(4, 2), np.array([0.1, 0.6, 0.05, 0.25])
    ax = plots.sites_and_weights(sites, weights)
    (dots,) = [c for c in ax.collections if isinstance(c, PathCollection)]
    order = [1, 3, 0, 2]
    np.testing.assert_array_equal(dots.get_offsets()[:, 1], sites[order].ravel())
    np.testing.assert_array_equal(dots.get_offsets()[:, 0], [0, 0, 1, 1, 2, 2, 3, 3])
    assert (np.diff(dots.get_sizes()[::2]) < 0).all()
    assert [text.get_text() for text in ax.get_xticklabels()] == [f"{p}{SPACE}%" for p in ("60", "25", "10", "5.0")]


def test_bars_are_sorted_cut_and_named_as_written() -> None:
    names = ["a", "US$ to CA$", "x" * 60, "d"]
    ax = plots.ranked_bars(names, [1.0, 2.0, 4.0, 0.1], "1 / length scale", most=3)
    assert [bar.get_width() for bar in ax.patches] == [4.0, 2.0, 1.0]  # type: ignore[attr-defined]
    shown = [text.get_text() for text in ax.get_yticklabels()]
    assert shown == ["x" * 25 + "…", "US$ to CA$", "a"]
    assert not any(text.get_parse_math() for text in ax.get_yticklabels())
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # the largest on top


def test_members_are_coloured_by_kind_and_as_thick_as_they_are_heavy() -> None:
    two = [SimpleNamespace(number=i, train_nll=1.0 / i, val_nll=None) for i in (1, 2)]
    ax = plots.member_curves([two, two, two], ["plain", "trees", "plain"], [0.1, 0.6, 0.3])
    assert [line.get_color() for line in ax.lines] == [plots.MAIN, plots.CONTRAST, plots.MAIN]
    widths = [line.get_linewidth() for line in ax.lines]
    assert widths[0] < widths[2] < widths[1]
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["plain", "trees"]


def test_coverage_of_groups_has_exact_intervals() -> None:
    ax = plots.coverage_dots(["a", "b"], np.array([45, 20]), np.array([50, 20]), [True, False])
    bars = {tuple(path.vertices[:, 0].round(4)) for each in ax.collections for path in each.get_paths()}
    assert bars == {(0.7819, 0.9667), (0.8316, 1.0)}  # scipy.stats.binomtest(45, 50).proportion_ci(), and of 20 of 20
    assert [to_hex(line.get_color()) for line in ax.lines[1:]] == [plots.MAIN, plots.CONTRAST]


def test_numbers_on_axes_have_commas() -> None:
    ax = plots.predicted_observed([1e4, 5e4], [0, 1], [2e4, 6e4], [1e4, 5e4])
    ax.figure.draw_without_rendering()  # type: ignore[union-attr]
    assert "20,000" in [text.get_text() for text in ax.get_xticklabels()]
    log = plots.predicted_observed([10, 5e4], [1, 1], [2e4, 6e4], [10, 5e4], limits=((5, 1e5), (5, 1e5)), log=True)
    assert log.get_xscale() == log.get_yscale() == "log"
    log.figure.draw_without_rendering()  # type: ignore[union-attr]
    assert "10,000" in [text.get_text() for text in log.get_xticklabels()]


def test_small_numbers_on_axes_keep_their_zeros() -> None:
    ax = plots.predicted_observed([0.001, 0.015], [0.0, 0.01], [0.002, 0.02], [0.001, 0.015])
    ax.figure.draw_without_rendering()  # type: ignore[union-attr]
    for tick, text in zip(ax.get_xticks(), ax.get_xticklabels(), strict=True):
        assert float(text.get_text().replace("\N{MINUS SIGN}", "-")) == pytest.approx(tick)


def test_coverage_of_groups_has_ticks_at_whole_percentages() -> None:
    ax = plots.coverage_dots(["a", "b"], np.array([441, 450]), np.array([500, 500]), [True, False])
    for tick in ax.get_xticks():
        assert 100 * tick == pytest.approx(round(100 * tick))


# ---------------------------------------------------------------- what all of them keep

EPOCHS = [SimpleNamespace(number=1, train_nll=0.0, val_nll=None)]
FAN = np.array([[0.0, 1.0], [1.0, 2.0], [2.0, 3.0], [3.0, 4.0], [4.0, 5.0]])
EVERY = {
    "density": lambda ax: plots.density(mixture(), ax=ax),
    "fan": lambda ax: plots.fan(mixture(), np.arange(7), ax=ax),
    "pit_histogram": lambda ax: plots.pit_histogram(UNIFORM, ax=ax),
    "reliability": lambda ax: plots.reliability(UNIFORM, ax=ax),
    "predicted_observed": lambda ax: plots.predicted_observed([1, 2], [0, 1], [2, 3], [1, 2], ax=ax),
    "training_curves": lambda ax: plots.training_curves(EPOCHS, ax=ax),
    "crps_by_spread": lambda ax: plots.crps_by_spread([1, 2], [1, 2], ax=ax),
    "sites_and_weights": lambda ax: plots.sites_and_weights([[0.0, 1.0]], [1.0], ax=ax),
    "ranked_bars": lambda ax: plots.ranked_bars(["a"], [1.0], "value", ends=([0.9], [1.1]), ax=ax),
    "member_curves": lambda ax: plots.member_curves([EPOCHS, EPOCHS], ["a", "b"], [0.3, 0.7], ax=ax),
    "effect": lambda ax: plots.effect(np.arange(2.0), FAN, ax=ax),
    "effect of texts": lambda ax: plots.effect(np.array(["a", "US$"]), FAN, ax=ax),
    "coverage_dots": lambda ax: plots.coverage_dots(
        ["a", "b"], np.array([9, 0]), np.array([10, 3]), [False, True], ax=ax
    ),
}


@pytest.mark.parametrize("name", EVERY)
def test_a_figure_draws_into_the_axes_it_is_given_and_leaves_their_style(name: str) -> None:
    ax = Figure().add_subplot()
    assert EVERY[name](ax) is ax
    assert ax.has_data()
    assert ax.get_xlabel()
    assert same_color(ax.xaxis.label.get_color(), matplotlib.rcParams["axes.labelcolor"])
    assert ax.spines["top"].get_visible()


@pytest.mark.parametrize("name", EVERY)
def test_a_new_figure_uses_the_palette_only(name: str) -> None:
    before = dict(matplotlib.rcParams)
    ax = EVERY[name](None)
    assert dict(matplotlib.rcParams) == before
    drawn = {to_hex(each.get_color()) for each in ax.lines} | {to_hex(each.get_facecolor()) for each in ax.patches}
    drawn |= {to_hex(colour) for each in ax.collections for colour in each.get_facecolor()}
    drawn |= {to_hex(text.get_color()) for text in (*ax.get_xticklabels(), *ax.get_yticklabels(), ax.xaxis.label)}
    assert drawn <= set(plots.PALETTE.values())


def test_what_is_given_is_not_changed() -> None:
    given = [RNG.uniform(size=5) for _ in range(4)]
    copies = [array.copy() for array in given]
    plots.predicted_observed(*given)
    plots.crps_by_spread(given[0], given[1])
    plots.reliability(given[2])
    for array, copy in zip(given, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_matplotlib_is_loaded_late_and_pyplot_never() -> None:
    files = Path(plots.__file__).parent.glob("*.py")
    found = [pair for file in files for pair in imports(ast.parse(file.read_text()))]
    assert "pyplot" not in [part for _, name in found for part in name.split(".")]
    depths = {depth for depth, name in found if name.startswith("matplotlib")}
    assert min(depths) > 0  # inside functions, or for the type checker only


def imports(tree: ast.AST, depth: int = 0) -> Iterator[tuple[int, str]]:
    """Every import with the number of blocks around it; the module's own are at 0."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((depth, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((depth, alias.name) for alias in node.names)
        else:
            yield from imports(node, depth + 1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: plots.fan(mixture(), [1.0, 2.0]), r"x: expected shape \(7,\), got \(2,\)"),
        (lambda: plots.fan(mixture(), np.arange(7), y=np.arange(6)), r"y: expected shape .* got \(6,\)"),
        (lambda: plots.fan(mixture(), np.arange(7), levels=(0.5, 1.0)), r"levels: expected .* got 1.0"),
        (lambda: plots.density(mixture(), 7), "cannot select rows"),
        (lambda: plots.pit_histogram([0.5, 1.5]), r"pit: expected probabilities .* got 1.5"),
        (lambda: plots.pit_histogram([0.5], bins=0), "bins: expected at least 1, got 0"),
        (lambda: plots.reliability([0.5, math.nan]), "pit: expected finite numbers"),
        (lambda: plots.reliability(0.5), "pit"),
        (lambda: plots.crps_by_spread([1.0], [1.0, 2.0]), r"crps: expected shape .* got \(2,\)"),
        (lambda: plots.training_curves([]), "history: expected at least one epoch, got none"),
        (lambda: plots.sites_and_weights([[1.0], [2.0]], [1.0]), r"weights: expected shape .* got \(1,\)"),
        (lambda: plots.ranked_bars(["a", "b"], [1.0], "value"), "values: expected shape"),
        (lambda: plots.member_curves([], [], []), "got 0 histories"),
        (lambda: plots.effect(np.arange(3.0), FAN), r"quantiles: expected shape \(5, 3\), got \(5, 2\)"),
        (lambda: plots.coverage_dots([], np.array([]), np.array([]), []), "got 0 names"),
    ],
)
def test_errors_say_what_was_got(wrong: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        wrong()  # type: ignore[operator]
