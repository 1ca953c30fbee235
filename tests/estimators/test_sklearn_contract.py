"""Promise 15: the scikit-learn contract, with one exemption.

One shallow and one deep estimator and an ensemble pass every check but one, which cannot hold. The others differ from
them in their settings alone, so they pass the checks in which a model could matter: what is fitted, predicted, pickled
and left unchanged.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from sklearn.utils.estimator_checks import (
    check_sample_weight_equivalence_on_dense_data,
    estimator_checks_generator,
    parametrize_with_checks,
)

from dspp import DSPPRegressor
from dspp.estimators import ESTIMATORS
from dspp.members import plan, trees
from dspp.presets import PRESETS
from dspp.trees import cross_fit

QUICK = {"members": 1, "inducing": 10, "epochs": 30, "restarts": 1, "sites": 3, "width": 2, "learning_rate": 0.1}
WHOLE = ("dspp", "ppgpr")
MODEL_CHECKS = (
    "check_dict_unchanged",
    "check_estimators_overwrite_params",
    "check_estimator_cloneable",
    "check_estimators_dtypes",
    "check_estimators_pickle",
    "check_fit2d_1sample",
    "check_fit_idempotent",
    "check_methods_sample_order_invariance",
    "check_methods_subset_invariance",
    "check_n_features_in",
    "check_parameters_default_constructible",
    "check_readonly_memmap_input",
    "check_regressors_train",
)


EQUIVALENCE = "check_sample_weight_equivalence_on_dense_data"
EXEMPTION = {
    EQUIVALENCE: "repeated rows have other batches, k-means centres and folds, and the KL term counts them: "
    "docs/decisions.md, Weights and splits"
}


def made(name: str) -> Any:
    return ESTIMATORS[name](**QUICK, validation_fraction=0.0)


@pytest.fixture(autouse=True)
def _small_ensembles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two folds of both kinds, and few trees: the contract does not depend on how many there are."""
    monkeypatch.setattr(plan, "FOLDS", 2)
    monkeypatch.setattr(trees, "cross_fit", partial(cross_fit, max_rounds=5))


def check_name(check: Any) -> str:
    return (check.func if isinstance(check, partial) else check).__name__


def model_checks() -> Iterator[Any]:
    for name in ESTIMATORS:
        if name not in WHOLE:
            for estimator, check in estimator_checks_generator(made(name)):
                if check_name(check) in MODEL_CHECKS:
                    yield pytest.param(estimator, check, id=f"{name}-{check_name(check)}")


def test_every_preset_has_an_estimator() -> None:
    assert set(ESTIMATORS) == set(PRESETS)


@pytest.mark.filterwarnings("ignore:X does not have valid feature names:UserWarning")
@pytest.mark.filterwarnings("ignore:.*not compatible with array_api:UserWarning")
@parametrize_with_checks(
    [*(made(name) for name in WHOLE), DSPPRegressor(**QUICK | {"members": "auto"})],
    expected_failed_checks=lambda _: EXEMPTION,
)
def test_contract(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.filterwarnings("ignore:X does not have valid feature names:UserWarning")
@pytest.mark.parametrize(("estimator", "check"), list(model_checks()))
def test_the_checks_in_which_a_model_matters(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("name", ["ppgpr", "svgp"])
def test_a_weight_is_a_repetition_where_nothing_is_drawn(name: str) -> None:
    """The check of the exemption, with one batch of rows, an inducing point for each, and without the KL term."""
    settings = QUICK | {"inducing": 20, "beta": 0.0, "model_settings": {"dtype": "float64"}, "validation_fraction": 0.0}
    check_sample_weight_equivalence_on_dense_data(name, ESTIMATORS[name](**settings))


def test_the_checks_above_are_all_there() -> None:
    known = {check_name(check) for _, check in estimator_checks_generator(made("svgp"))}
    assert set(MODEL_CHECKS) <= known
