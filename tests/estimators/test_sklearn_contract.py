"""Promise 15: the scikit-learn contract, in full, for every estimator; no exemption."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from dspp.estimators import ESTIMATORS
from dspp.presets import PRESETS

QUICK = {"inducing": 10, "epochs": 30, "restarts": 1, "sites": 3, "width": 2, "learning_rate": 0.1}


def test_every_preset_has_an_estimator() -> None:
    assert set(ESTIMATORS) == set(PRESETS)


@pytest.mark.filterwarnings("ignore:X does not have valid feature names:UserWarning")
@pytest.mark.filterwarnings("ignore:.*not compatible with array_api:UserWarning")
@parametrize_with_checks([kind(**QUICK, validation_fraction=0.0) for kind in ESTIMATORS.values()])
def test_contract(estimator, check) -> None:  # type: ignore[no-untyped-def]
    check(estimator)
