"""Whether intervals hold what they promise: measured rightly, and mended with a guarantee that trusts no model."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from reference import assert_close
from scipy import stats
from sklearn.metrics import r2_score
from torch import Tensor

from dspp import metrics
from dspp.calibration import Calibration, Conformal, check_calibration
from dspp.errors import InputError, NumericalError
from dspp.metrics import LEVELS, Comparison, evaluate, r_squared
from dspp.predictive import MultivariateNormalMixture, NormalMixture
from dspp.report.outputs import coverage_table

F64, NAN = torch.float64, math.nan


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def one_output(rows: int, spread: float = 1.0, seed: int = 0) -> NormalMixture:
    """Two components; `spread` multiplies their standard deviations."""
    g = seeded(seed)
    mean = torch.randn(2, rows, generator=g, dtype=F64)
    var = 0.2 + torch.rand(2, rows, generator=g, dtype=F64)
    return NormalMixture(
        torch.tensor([0.3, 0.7], dtype=F64).log(), mean, spread**2 * var, torch.tensor(0.0, dtype=F64)
    )  # fmt: skip


def several_outputs(rows: int, scales: tuple[float, ...] = (1.0, 1.0, 1.0)) -> MultivariateNormalMixture:
    """One component of correlated outputs whose standard deviations are `scales`; their means differ between rows."""
    scale = torch.tensor(scales, dtype=F64)
    cov = (0.5 + 0.4 * torch.eye(len(scales), dtype=F64)) * torch.outer(scale, scale)
    return MultivariateNormalMixture(
        torch.zeros(1, dtype=F64),
        30.0 * torch.randn(1, rows, 1, generator=seeded(5), dtype=F64).expand(-1, -1, len(scales)),
        cov.expand(1, rows, -1, -1),
        0.1 * scale.square(),
    )


def drawn(mixture: NormalMixture | MultivariateNormalMixture, seed: int = 1) -> Tensor:
    return mixture.sample(1, seeded(seed))[0]


# ------------------------------------------------------------ check_calibration


def test_what_is_measured_is_what_the_intervals_and_the_pit_say() -> None:
    mixture = one_output(400)
    y = drawn(one_output(400, spread=1.3))
    found = check_calibration(mixture, y)
    assert (found.num_rows, found.num_values, found.per_output) == (400, 400, ())
    assert tuple(found.coverage) == tuple(found.width) == LEVELS == (0.5, 0.8, 0.9, 0.95)
    for level in LEVELS:
        lower, upper = mixture.interval(level)
        assert found.coverage[level] == ((y >= lower) & (y <= upper)).double().mean().item()
        assert found.width[level] == pytest.approx((upper - lower).mean().item(), rel=1e-9)
    u = np.sort(mixture.pit(y).numpy())
    steps = np.arange(401) / 400
    assert found.ks == pytest.approx(max((steps[1:] - u).max(), (u - steps[:-1]).max()), abs=1e-12)
    assert found.p_value == pytest.approx(stats.kstwo.sf(found.ks, 400), rel=1e-9)
    with pytest.raises(FrozenInstanceError):
        found.ks = 0.0  # type: ignore[misc]


def test_the_units_of_y_scale_the_widths_and_nothing_else() -> None:
    mixture = one_output(200)
    y = drawn(mixture)
    plain, moved = check_calibration(mixture, y), check_calibration(mixture.affine(5.0, 100.0), 5.0 + 100.0 * y)
    assert moved.coverage == plain.coverage
    assert moved.ks == pytest.approx(plain.ks, abs=1e-9)
    for level in LEVELS:
        assert moved.width[level] == pytest.approx(100.0 * plain.width[level], rel=1e-8)


@pytest.mark.parametrize(("spread", "complaint"), [(0.7, "too narrow"), (1.5, "too wide"), (1.0, "calibrated")])
def test_the_verdict_names_the_fault(spread: float, complaint: str) -> None:
    y = drawn(one_output(1500))
    found = check_calibration(one_output(1500, spread), y)
    held = f"{100 * found.coverage[0.9]:.1f}".removesuffix(".0")
    assert found.verdict() == f"Intervals are {complaint}: the 90 % interval contains {held} % of 1,500 rows."
    assert (found.p_value > 0.01) == (complaint == "calibrated")


def with_coverage(coverage: float, rows: int, p_value: float = 0.5) -> Calibration:
    levels = dict.fromkeys(LEVELS, coverage)
    return Calibration(rows, rows, levels, levels, 0.1, p_value)


@pytest.mark.parametrize(
    ("coverage", "rows", "sentence"),
    [
        (0.81, 1500, "Intervals are too narrow: the 90 % interval contains 81 % of 1,500 rows."),
        (0.88, 1500, "Intervals are slightly too narrow: the 90 % interval contains 88 % of 1,500 rows."),
        (
            0.84,
            100,
            "Too few rows to tell whether intervals are calibrated: the 90 % interval contains 84 % of 100 rows.",
        ),
        (0.87, 100, "Intervals are calibrated: the 90 % interval contains 87 % of 100 rows."),  # 5 % of 80 % models
        (
            0.86,
            100,
            "Too few rows to tell whether intervals are calibrated: the 90 % interval contains 86 % of 100 rows.",
        ),
        (
            68 / 82,
            82,
            "Too few rows to tell whether intervals are calibrated: the 90 % interval contains 82.9 % of 82 rows.",
        ),
        (
            1.0,
            35,
            "Too few rows to tell whether intervals are calibrated: the 90 % interval contains 100 % of 35 rows.",
        ),
        (0.892, 100_000, "Intervals are slightly too narrow: the 90 % interval contains 89.2 % of 100,000 rows."),
        (0.83, 100, "Intervals are too narrow: the 90 % interval contains 83 % of 100 rows."),
        (0.96, 100, "Intervals are too wide: the 90 % interval contains 96 % of 100 rows."),
        (1.0, 1, "Too few rows to tell whether intervals are calibrated: the 90 % interval contains 100 % of 1 row."),
        (0.0, 1, "Too few rows to tell whether intervals are calibrated: the 90 % interval contains 0 % of 1 row."),
        (0.7, 10, "Too few rows to tell whether intervals are calibrated: the 90 % interval contains 70 % of 10 rows."),
        (0.5, 10, "Intervals are too narrow: the 90 % interval contains 50 % of 10 rows."),
    ],
)
def test_the_tolerance_is_that_of_the_binomial_distribution(coverage: float, rows: int, sentence: str) -> None:
    assert with_coverage(coverage, rows).verdict() == sentence


def verdicts(rows: int, **changes: bool) -> list[str]:
    """What is said of each possible number of rows inside."""
    found = (dataclasses.replace(with_coverage(k / rows, rows), **changes) for k in range(rows + 1))
    return [one.verdict().split(":")[0] for one in found]


@pytest.mark.parametrize("rows", [1, 5, 10, 30, 36, 50, 82, 100, 300, 1000])
def test_promise_34_verdicts_are_earned(rows: int) -> None:
    """Exact probabilities, by summing over all possible counts: neither error in more than 5 % of tables."""
    said = np.array(verdicts(rows))
    right, bad = (stats.binom.pmf(range(rows + 1), rows, level) for level in (0.9, 0.8))
    flagged = np.array([verdict.endswith(("too narrow", "too wide")) for verdict in said])
    praised = said == "Intervals are calibrated"
    assert right[flagged].sum() < 0.05
    assert bad[praised].sum() <= 0.05
    assert set(said[~flagged & ~praised]) <= {"Too few rows to tell whether intervals are calibrated"}
    assert praised.any() == (rows >= 36)
    assert right[praised].sum() > {100: 0.8, 300: 0.95, 1000: 0.95}.get(rows, -1.0), "and it can be said of a right one"


def counts(rows: int, factor: float = 1.0, seed: int = 0) -> tuple[NormalMixture, Tensor]:
    """A target rounded to whole numbers, of which a density gives each its probability, and its prediction."""
    mean, noise = torch.randn(2, rows, generator=seeded(seed), dtype=F64)
    zero, var = torch.zeros(1, dtype=F64), torch.full((1, rows), (0.5 * factor) ** 2, dtype=F64)
    return NormalMixture(zero, 2.0 * mean[None], var, zero[0]), (2.0 * mean + 0.5 * noise).round()


@pytest.mark.parametrize(("factor", "said"), [(1.0, "calibrated"), (0.6, "too narrow"), (1.8, "too wide")])
def test_few_distinct_values_are_judged_by_their_probabilities(factor: float, said: str) -> None:
    mixture, y = counts(2_000, factor)
    found = check_calibration(mixture, y)
    assert found.verdict().startswith(f"Intervals are {said}: ")
    inside = ((mixture.cdf(y) - 0.5).abs() <= 0.45).double().mean().item()
    if factor == 1.0:
        assert abs(inside - 0.9) > 0.03, "an interval contains all or nothing of a value's rows"
        assert found.p_value > 0.01
    assert coverage_table(found).rows[LEVELS.index(0.9)][-1] == said, "the table says what the verdict says"
    assert evaluate(mixture, y)["coverage90"] == found.coverage[0.9]
    torch.testing.assert_close(metrics.pit(mixture, y), mixture.cdf(y))


def test_an_output_of_few_distinct_values_is_placed_by_the_number_of_the_row() -> None:
    mixture, y = counts(500)
    levels = [y.unique().numpy()]
    whole = Comparison(mixture, y).pit
    parts = [
        Comparison(mixture.rows(slice(k, k + 90)), y[k : k + 90], first_row=k, levels=levels).pit
        for k in range(0, 500, 90)
    ]
    assert torch.equal(torch.cat(parts), whole)
    low, high = mixture.cdf(torch.stack([y - 0.5, y + 0.5]))
    assert ((low <= whole) & (whole <= high)).all()


def test_what_the_rows_were_used_for_is_said() -> None:
    found = dataclasses.replace(with_coverage(0.9, 500), caveat="These rows also chose the epoch.", recalibrated=0.91)
    assert found.verdict() == (
        "Intervals are calibrated: the 90 % interval contains 90 % of 500 rows. This is the model itself; recalibrated "
        "90 % intervals contain 91 %. These rows also chose the epoch."
    )


@pytest.mark.parametrize(("coverage", "narrow"), [(0.7, True), (0.89, True), (0.9, False), (0.95, False)])
def test_too_narrow_is_known_to_programs_too(coverage: float, narrow: bool) -> None:
    assert with_coverage(coverage, 100_000).is_too_narrow == narrow


def simulated_verdicts(
    rows: int,
    tables: int,
    seed: int,
    predict: Callable[[Tensor, Tensor], tuple[Tensor, float]],
    signal: float = 1.0,
) -> list[str]:
    """Verdicts on tables of y = s + e, with e standard Normal and s `signal` times so.

    Args:
        rows: Of each table.
        tables: How many.
        seed: Of the tables.
        predict: Returns means and standard deviation of a Normal prediction, from s and numbers unrelated to y.
        signal: The standard deviation of s.
    """
    found = []
    for s, e, z in torch.randn(tables, 3, rows, generator=seeded(seed), dtype=F64):
        mean, std = predict(signal * s, z)
        zero = torch.zeros(1, dtype=F64)
        model = NormalMixture(zero, mean[None], torch.full((1, rows), std**2, dtype=F64), zero[0])
        found.append(check_calibration(model, signal * s + e).verdict())
    return found


def assert_at_most(share: float, said: Sequence[bool]) -> None:
    """Assert that so many are true, give or take three standard errors."""
    assert sum(said) <= (share + 3 * math.sqrt(share * (1.0 - share) / len(said))) * len(said)


def assert_earned(rows: int, tables: int) -> None:
    """At most 5 % of verdicts are wrong, of models with and without each fault."""
    narrow = float(stats.norm.ppf(0.9) / stats.norm.ppf(0.95))  # the 90 % interval then contains 80 %
    found = simulated_verdicts(rows, tables, 1, lambda s, z: (s, narrow))
    assert_at_most(0.05, ["Intervals are calibrated" in verdict for verdict in found])
    right = simulated_verdicts(rows, tables, 2, lambda s, z: (s, 1.0))
    for fault, share in (("too narrow", 0.05), ("are shifted", 0.01), ("no better than a constant", 0.05)):
        assert_at_most(share, [fault in verdict for verdict in right])
    weak = simulated_verdicts(rows, tables, 3, lambda s, z: (s, 1.0), signal=0.5)  # R² is 0.2
    assert_at_most(0.05, ["no better than a constant" in verdict for verdict in weak])
    for bias in (1.0, -1.0, *((0.5,) if rows >= 100 else ())):  # in standard deviations of the errors
        found = simulated_verdicts(rows, tables, 4, lambda s, z, bias=bias: (s + bias, 1.0), signal=3.0)
        name = f"too {'high' if bias > 0.0 else 'low'} (standard error"
        assert_at_most(0.05, [name not in verdict for verdict in found])
        assert_at_most(0.05, ["no better than a constant" in verdict for verdict in found])
    useless = [lambda s, z: (0.0 * s, math.sqrt(2.0)), lambda s, z: (0.0 * s + 0.3, 2.0)]  # constants, right or off
    if rows >= 100:
        useless.append(lambda s, z: (0.7 * z, math.sqrt(2.0)))  # a model that has learned noise
    for predict in useless:
        found = simulated_verdicts(rows, tables, 5, predict)
        assert_at_most(0.05, [not verdict.startswith("Predictions are no better than a constant") for verdict in found])


@pytest.mark.parametrize("rows", [30, 82, 300])
def test_promise_34_on_simulated_tables(rows: int) -> None:
    assert_earned(rows, tables=100)


@pytest.mark.long
@pytest.mark.parametrize("rows", [30, 36, 50, 100, 300, 1000, 3000])
def test_promise_34_on_many_simulated_tables(rows: int) -> None:
    assert_earned(rows, tables=1000)


def test_faults_are_named_in_order_with_numbers() -> None:
    """Like a forecast beyond the training rows: worse than a constant, shifted, and yet wide enough."""
    s, e = torch.randn(2, 1_000, generator=seeded(), dtype=F64)
    zero, y = torch.zeros(1, dtype=F64), 10.0 + s + e
    model = NormalMixture(zero, (y - 5.0 - 4.0 * e)[None], torch.full((1, 1_000), 50.0, dtype=F64), zero[0])
    found = check_calibration(model, y)
    assert found.bias == pytest.approx(-5.0, abs=0.5)
    assert found.bias_error == pytest.approx(4.0 / math.sqrt(1_000), rel=0.1)
    assert found.constant_crps == pytest.approx(metrics.constant_crps(y.numpy()).mean())
    assert found.verdict() == (
        f"Predictions are no better than a constant: their CRPS is {found.crps:.4g}, and {found.constant_crps:.4g} if "
        f"all rows have the distribution of the observed values. Predictions are shifted: on average "
        f"{-found.bias:.4g} too low (standard error {found.bias_error:.2g}). Intervals are too wide: "
        f"the 90 % interval contains {100 * found.coverage[0.9]:.1f} % of 1,000 rows."
    )
    fine = check_calibration(model.affine(5.0, 1.0), y)
    assert "shifted" not in fine.verdict()


def test_a_small_bias_of_many_rows_does_not_matter() -> None:
    found = simulated_verdicts(20_000, 1, 0, lambda s, z: (s + 0.05, 1.0))
    assert "on average" not in found[0]


def test_one_shifted_output_is_named() -> None:
    mixture = several_outputs(400)
    y = drawn(mixture)
    y[:, 1] += 2.0
    verdict = check_calibration(mixture, y, ["a", "b", "c"]).verdict()
    assert verdict.startswith("Predictions of b are shifted: on average ")
    assert " too low (standard error" in verdict


def test_the_best_constant_is_that_of_the_observed_values() -> None:
    g = np.random.default_rng(0)
    y, weights = g.exponential(size=40).round(1), g.uniform(0.5, 2.0, size=40)
    for w in (None, weights):
        share = np.full(40, 1 / 40) if w is None else w / w.sum()
        distance = np.abs(y[:, None] - y)
        slow = distance @ share - 0.5 * share @ distance @ share
        np.testing.assert_allclose(metrics.constant_crps(y, w), slow, atol=1e-14)
    ecdf = NormalMixture(
        torch.full((40,), -math.log(40), dtype=F64),
        torch.from_numpy(y)[:, None].expand(-1, 40),
        torch.full((40, 40), 1e-14, dtype=F64),
        torch.tensor(0.0, dtype=F64),
    )
    np.testing.assert_allclose(metrics.constant_crps(y), ecdf.crps(torch.from_numpy(y)), atol=1e-6)


def test_a_distribution_that_is_off_elsewhere_is_not_called_right() -> None:
    """F(y) always ≤ ½, spread evenly there: every central interval holds its share, but the median is no median."""
    mixture = one_output(2000)
    u = (torch.arange(2000, dtype=F64) + 0.5) / 4000
    y = torch.cat([mixture.rows([n]).quantile(p) for n, p in enumerate(u[::10].tolist())])
    found = check_calibration(mixture.rows(slice(0, 200)), y)
    assert found.coverage[0.9] == pytest.approx(0.9, abs=0.01)
    assert found.p_value < 1e-10
    assert found.verdict() == (
        f"Predictions are shifted: on average {found.bias:.4g} too high (standard error {found.bias_error:.2g}). "
        "Even so, the 90 % interval contains 90 % of 200 rows."
    )


def test_a_distribution_of_the_wrong_shape_is_not_called_right() -> None:
    """Errors are exponential with mean 0 and variance 1, and a Normal is predicted."""
    mean, zero = 3.0 * torch.randn(300, generator=seeded(), dtype=F64), torch.zeros(1, dtype=F64)
    errors = torch.empty(300, dtype=F64).exponential_(generator=seeded(1)) - 1.0
    model = NormalMixture(zero, mean[None], torch.ones(1, 300, dtype=F64), zero[0])
    found = check_calibration(model, mean + errors)
    held = f"{100 * found.coverage[0.9]:.1f}".removesuffix(".0")
    assert found.verdict() == (
        "Intervals are calibrated at 90 %, but the distribution is shifted or has the wrong shape: "
        f"the 90 % interval contains {held} % of 300 rows, yet the PIT is not uniform (p = {found.p_value:.1g})."
    )


def test_several_outputs_are_pooled_and_told_apart() -> None:
    mixture = several_outputs(300, (1.0, 10.0, 0.1))
    y = drawn(several_outputs(300, (1.0, 20.0, 0.1)))
    y[:200, 2] = NAN
    y[5, 0] = NAN
    found = check_calibration(mixture, y)
    assert (found.num_rows, found.num_values) == (300, 699)
    assert [(part.num_rows, part.num_values) for part in found.per_output] == [(299, 299), (300, 300), (100, 100)]
    for t, part in enumerate(found.per_output):
        seen = ~y[:, t].isnan()
        alone = check_calibration(mixture.marginal(t).rows(seen), y[seen, t])
        assert part == dataclasses.replace(alone, name=f"output {t}")
    for level in LEVELS:
        for name in ("coverage", "width"):
            pooled = sum(getattr(part, name)[level] * part.num_values for part in found.per_output) / 699
            assert getattr(found, name)[level] == pytest.approx(pooled, rel=1e-12)
    worst = found.per_output[1]
    assert (found.ks, found.p_value) == (worst.ks, 3 * worst.p_value), "outputs may move together: they are not pooled"
    assert found.verdict().startswith("Intervals are too narrow: the 90 % interval contains ")
    assert found.verdict().endswith(" % of 699 values.")


def test_one_bad_output_does_not_hide_behind_the_others() -> None:
    mixture, y = several_outputs(1000, (1.0, 0.8, 1.35)), drawn(several_outputs(1000))
    found = check_calibration(mixture, y)
    assert abs(found.coverage[0.9] - 0.9) < 2 * math.sqrt(0.09 / 1000)
    part = found.per_output[1]
    held = f"{100 * part.coverage[0.9]:.1f}".removesuffix(".0")
    assert found.verdict() == (
        "Intervals are calibrated overall, but those of output 1 are too narrow: "
        f"the 90 % interval contains {held} % of 1,000 rows."
    )


def test_the_worst_output_is_named_also_where_others_were_not_observed() -> None:
    mixture, y = several_outputs(1000, (1.14, 0.8, 1.35)), drawn(several_outputs(1000))
    assert "those of b are too narrow" in check_calibration(mixture, y, ["a", "b", "c"]).verdict()
    y[:, 0] = NAN
    found = check_calibration(mixture, y)
    assert [part.name for part in found.per_output] == ["output 1", "output 2"]
    assert found.num_values == 2000


def test_a_good_model_of_many_outputs_is_seldom_blamed() -> None:
    mixture = several_outputs(200, (1.0,) * 6)
    verdicts = [check_calibration(mixture, drawn(mixture, seed)).verdict() for seed in range(40)]
    good = [verdict.startswith("Intervals are calibrated: ") for verdict in verdicts]
    assert sum(good) >= 34  # about 5 % of coverages and 1 % of PITs are flagged by accident


def test_calibration_needs_targets_and_finite_predictions() -> None:
    mixture = one_output(5)
    y = drawn(mixture)
    with pytest.raises(InputError, match="got NaN at row 1"):
        check_calibration(mixture, y.index_fill(0, torch.tensor([1]), NAN))
    with pytest.raises(InputError, match="expected 5 rows"):
        check_calibration(mixture, y[:4])
    sick = several_outputs(5).component_mean.clone()
    sick[0, 3, 1] = NAN
    many = several_outputs(5)
    broken = MultivariateNormalMixture(many.log_weights, sick, many.latent_cov, many.noise_var)
    for measure in (check_calibration, Conformal.fit):
        with pytest.raises(NumericalError, match="row 3 is not finite"):
            measure(broken, drawn(many))


# ------------------------------------------------------------ Conformal


def test_scores_and_thresholds_by_hand() -> None:
    mixture = one_output(9)
    y = drawn(mixture)
    conformal = Conformal.fit(mixture, y.numpy())
    by_hand = sorted(abs(u - 0.5) for u in mixture.pit(y).tolist())
    assert conformal.scores.dtype == F64
    assert conformal.scores.tolist() == pytest.approx(by_hand, abs=1e-15)
    for coverage, rank in ((0.05, 1), (0.1, 1), (0.11, 2), (0.5, 5), (0.7, 7), (0.9, 9)):  # ⌈10 c⌉
        assert conformal.threshold(coverage).item() == conformal.scores[rank - 1].item()
    for coverage in (0.90001, 0.95):  # (n + 1) c > n
        assert conformal.threshold(coverage).item() == 0.5
        lower, upper = conformal.interval(mixture, coverage)
        assert (lower == -math.inf).all()
        assert (upper == math.inf).all()
        assert lower.shape == upper.shape == (9,)


@pytest.mark.parametrize("percent", range(1, 100))
def test_ranks_are_not_moved_by_rounding(percent: int) -> None:
    """With 99 scores the rank of p % is p, though 100 · 0.07 is 7.000000000000001."""
    conformal = Conformal(torch.arange(1, 100, dtype=F64) / 200)
    assert conformal.threshold(percent / 100).item() == percent / 200


def test_an_interval_is_quantiles_at_a_half_plus_minus_q() -> None:
    mixture, new = one_output(50), one_output(7, seed=3)
    conformal = Conformal.fit(mixture, drawn(mixture))
    for coverage in (0.2, 0.9):
        q = conformal.threshold(coverage).item()
        lower, upper = conformal.interval(new, coverage)
        assert_close(lower, new.quantile(0.5 - q), 1e-8)
        assert_close(upper, new.quantile(0.5 + q), 1e-8)
        assert (new.cdf(lower) <= 0.5 - q).all()
        assert (new.cdf(upper) >= 0.5 + q).all()


def test_a_threshold_of_a_half_to_rounding_is_an_infinite_interval() -> None:
    for score, finite in ((0.5, False), (math.nextafter(0.5, 0.0), False), (0.5 - 1e-13, True)):
        lower, upper = Conformal(torch.full((30,), score, dtype=F64)).interval(one_output(4), 0.9)
        assert lower.isfinite().all().item() == upper.isfinite().all().item() == finite
        assert (lower < upper).all()


@pytest.mark.parametrize("coverage", [0.3, 0.8, 0.95])
@pytest.mark.parametrize("kind", ["continuous", "ties", "gap", "spike"])
def test_at_least_the_promised_rank_of_the_calibration_rows_lies_inside(kind: str, coverage: float) -> None:
    """Targets that tie with the threshold must not fall out of the closed interval by rounding."""
    mixture, g = one_output(60), seeded(2)
    y = drawn(one_output(60, spread=2.0))
    if kind != "continuous":
        mixture, y = mixture.rows([0] * 60), torch.randint(-3, 4, (60,), generator=g).double()
    if kind in ("gap", "spike"):
        width = {"gap": 1.0, "spike": 1e-24}[kind]
        mean = torch.tensor([[-3.0], [3.0]], dtype=F64).expand(2, 60) * (1.0 if kind == "spike" else 1e3)
        y = y if kind == "spike" else y * 1e3 / 3
        mixture = NormalMixture(
            mixture.log_weights, mean, torch.full((2, 60), width, dtype=F64), torch.zeros(()).double()
        )
    conformal = Conformal.fit(mixture, y)
    lower, upper = conformal.interval(mixture, coverage)
    inside = int(((y >= lower) & (y <= upper)).sum())
    q = conformal.threshold(coverage)
    assert inside >= math.ceil(61 * coverage)
    if q < 0.5 and kind in ("continuous", "ties"):
        assert inside == int((conformal.scores <= q).sum())  # and nothing else is let in


def observed_coverage(conformals: list[Conformal], mixture: NormalMixture, y: Tensor, c: float) -> tuple[float, float]:
    """Mean over repetitions, and its standard error, of the share of new rows inside."""
    shares = []
    for conformal, rows in zip(conformals, y, strict=True):
        lower, upper = conformal.interval(mixture, c)
        shares.append(((rows >= lower) & (rows <= upper)).double().mean())
    share = torch.stack(shares)
    return share.mean().item(), share.std().item() / math.sqrt(len(share))


def test_the_finite_sample_guarantee_holds_for_a_wrong_model() -> None:
    """Calibration sets of 19 rows, a model biased and three times too narrow: coverage in [c, c + 1/20] on average."""
    repetitions, n, new = 600, 19, 40
    generator = np.random.default_rng(0)
    truth = torch.from_numpy(generator.standard_t(3, size=(repetitions, n + new)) + 0.4)
    model = NormalMixture(
        torch.tensor([0.5, 0.5], dtype=F64).log(),
        torch.tensor([[-0.3], [0.3]], dtype=F64).expand(2, n + new),
        torch.full((2, n + new), 0.1, dtype=F64),
        torch.tensor(0.01, dtype=F64),
    )
    assert metrics.coverage(model, truth[0], 0.9) < 0.6  # the model alone breaks its promise
    calibration, test = model.rows(slice(0, n)), model.rows(slice(n, n + new))
    conformals = [Conformal.fit(calibration, y) for y in truth[:, :n]]
    for c in (0.5, 0.63, 0.8):
        mean, error = observed_coverage(conformals, test, truth[:, n:], c)
        assert c - 3 * error <= mean <= c + 1 / (n + 1) + 3 * error, c
        assert error < 0.01


def test_each_output_has_its_own_scores() -> None:
    mixture = several_outputs(40, (1.0, 2.0, 3.0))
    y = drawn(several_outputs(40, (2.0, 2.0, 1.0)))
    conformal, new = Conformal.fit(mixture, y), several_outputs(6, (1.0, 2.0, 3.0))
    assert conformal.scores.shape == (40, 3)
    lower, upper = conformal.interval(new, 0.8)
    assert lower.shape == upper.shape == (6, 3)
    for t in range(3):
        alone = Conformal.fit(mixture.marginal(t), y[:, t])
        assert torch.equal(alone.scores, conformal.scores[:, t])
        for end, both in zip(alone.interval(new.marginal(t), 0.8), (lower, upper), strict=True):
            assert torch.equal(end, both[:, t])


def test_outputs_that_were_not_observed_do_not_count() -> None:
    mixture = several_outputs(40)
    y = drawn(mixture)
    y[:31, 1] = NAN
    conformal = Conformal.fit(mixture, y)
    assert torch.equal(Conformal(conformal.scores).threshold(0.9), conformal.threshold(0.9))  # as read from a file
    for t in range(3):
        seen = ~y[:, t].isnan()
        alone = Conformal.fit(mixture.marginal(t).rows(seen), y[seen, t])
        for coverage in (0.1, 0.5, 0.9, 0.95, 0.99):
            assert conformal.threshold(coverage)[t] == alone.threshold(coverage)
    lower, upper = conformal.interval(mixture, 0.95)  # 9 rows are too few for 95 %, 40 are enough
    assert lower.isinf().all(0).tolist() == upper.isinf().all(0).tolist() == [False, True, False]


def test_an_output_that_no_row_observed_has_an_infinite_interval_and_spoils_no_other() -> None:
    mixture = several_outputs(40)
    y = drawn(mixture)
    whole = Conformal.fit(mixture, y)
    y[:, 1] = NAN
    conformal = Conformal.fit(mixture, y)
    assert conformal.counts == [40, 0, 40]
    assert torch.equal(conformal.scores[:, [0, 2]], whole.scores[:, [0, 2]])
    assert Conformal(conformal.scores).threshold(0.5)[1] == 0.5  # as read from a file


@pytest.mark.parametrize(
    ("scores", "complaint"),
    [
        (torch.tensor([0.2, 0.1], dtype=F64), "out of order"),
        (torch.tensor([[0.1, 0.3], [0.2, 0.2]], dtype=F64), "out of order"),
        (torch.tensor([-0.1, 0.1], dtype=F64), r"outside \[0, 0.5\]"),
        (torch.tensor([0.1, 0.6], dtype=F64), r"outside \[0, 0.5\]"),
        (torch.tensor([0.1, NAN], dtype=F64), r"outside \[0, 0.5\]"),
        (torch.tensor([0.1, math.inf], dtype=F64), r"outside \[0, 0.5\]"),
        (torch.tensor([[1.0, 1.0]], dtype=F64), r"outside \[0, 0.5\]"),  # not one score
        (torch.tensor([], dtype=F64), r"got \(0,\)"),
        (torch.zeros(2, 0, dtype=F64), r"got \(2, 0\)"),
        (torch.zeros(2, 1, 1, dtype=F64), r"got \(2, 1, 1\)"),
        (torch.tensor([0.1, 0.2]), "torch.float32"),
    ],
)
def test_scores_that_are_none_are_refused(scores: Tensor, complaint: str) -> None:
    with pytest.raises(InputError, match=rf"{complaint}.*use Conformal.fit"):
        Conformal(scores)


def test_bad_calls_say_what_was_wrong() -> None:
    mixture = one_output(10)
    conformal = Conformal.fit(mixture, drawn(mixture))
    for coverage in (0.0, 1.0, -0.5, NAN):
        with pytest.raises(InputError, match=r"coverage: expected .* such as 0\.9"):
            conformal.interval(mixture, coverage)
    with pytest.raises(InputError, match=r"expected outputs of shape \(\), .*got \(3,\)"):
        conformal.interval(several_outputs(4), 0.9)
    with pytest.raises(InputError, match=r"expected outputs of shape \(3,\), .*got \(2,\)"):
        Conformal.fit(several_outputs(4), drawn(several_outputs(4))).interval(several_outputs(4, (1.0, 1.0)), 0.9)
    with pytest.raises(InputError, match="expected 10 rows"):
        Conformal.fit(mixture, [1.0, 2.0])


def test_a_float32_model_is_recalibrated_in_float64() -> None:
    mixture = one_output(30).to(torch.float32)
    conformal = Conformal.fit(mixture, drawn(mixture))
    lower, upper = conformal.interval(mixture, 0.8)
    assert conformal.scores.dtype == lower.dtype == upper.dtype == F64


def test_a_value_far_out_has_a_score_though_rounded_weights_sum_to_more_than_one() -> None:
    g, over = seeded(3), 0
    for _ in range(100):
        logs = torch.randn(10, generator=g, dtype=F64).log_softmax(0)
        mixture = NormalMixture(logs, torch.zeros(10, 20, dtype=F64), torch.ones(10, 20, dtype=F64), torch.tensor(0.0))
        over += float(mixture.weights.sum()) > 1.0
        scores = Conformal.fit(mixture, torch.full((20,), 1e3, dtype=F64)).scores
        assert scores.max() <= 0.5
        assert mixture.cdf(torch.full((20,), 1e3, dtype=F64)).max() <= 1.0
    assert over > 5, "the case that matters has come up"


def test_the_interval_is_infinite_where_one_minus_its_tail_is_one() -> None:
    mixture = one_output(3)
    for k in range(60):
        conformal = Conformal(torch.full((20,), 0.5 - k * 2.0**-54, dtype=F64))
        lower, upper = conformal.interval(mixture, 0.9)
        assert bool(lower.isinf().all()) == bool(conformal.why_infinite(0.9))
        assert bool((lower < upper).all())


def test_it_is_said_why_intervals_are_infinite() -> None:
    few = torch.full((90, 2), 1.0, dtype=F64)
    few[:, 0] = torch.linspace(0, 0.4, 90)
    few[:8, 1] = torch.linspace(0, 0.4, 8)
    assert Conformal(few).why_infinite(0.9, ["a", "b"]) == "got 8 calibration rows, need at least 9 (b)"
    assert Conformal(few).why_infinite(0.5) == ""
    off = torch.full((90,), 0.5, dtype=F64)
    off[:70] = 0.1
    assert Conformal(off).why_infinite(0.9).startswith("the model gives too many calibration rows zero prob")
    assert Conformal(torch.full((1,), 0.2, dtype=F64)).why_infinite(0.99) == "got 1 calibration row, need at least 99"


def test_recalibrated_intervals_are_measured_beside_the_models_own() -> None:
    mixture, wide = one_output(2000), one_output(2000, 3.0)
    conformal = Conformal.fit(wide, drawn(mixture))
    y = drawn(mixture, 7)
    found = check_calibration(wide, y, conformal=conformal)
    lower, upper = conformal.interval(wide, 0.9)
    assert found.recalibrated == ((y >= lower) & (y <= upper)).double().mean().item()
    assert found.recalibrated == pytest.approx(0.9, abs=0.03)
    assert "Intervals are too wide: " in found.verdict()
    held = f"{100 * found.recalibrated:.1f}".removesuffix(".0")
    assert found.verdict().endswith(f" This is the model itself; recalibrated 90 % intervals contain {held} %.")


# ------------------------------------------------------------ R²


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("wrong", [0.0, 3.0])
def test_r2_is_nan_where_y_does_not_vary(rows: int, wrong: float) -> None:
    mixture = one_output(rows)
    y = torch.full((rows,), 0.1, dtype=F64)  # whose mean is not 0.1 to the last digit
    assert math.isnan(r_squared((y + wrong).numpy(), y.numpy()))
    assert math.isnan(Comparison(mixture, y).scores()["r2"])


def test_r2_of_several_outputs_is_the_mean_over_those_that_vary() -> None:
    rng = np.random.default_rng(0)
    y, mean, weights = rng.normal(size=(30, 3)), rng.normal(size=(30, 3)), rng.random(30)
    assert r_squared(mean, y) == pytest.approx(r2_score(y, mean))
    assert r_squared(mean, y, weights) == pytest.approx(r2_score(y, mean, sample_weight=weights))
    y[:, 1] = 2.0
    y[:7, 2] = NAN
    expected = (r2_score(y[:, 0], mean[:, 0]) + r2_score(y[7:, 2], mean[7:, 2])) / 2
    assert r_squared(mean, y) == pytest.approx(expected)
