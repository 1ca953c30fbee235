"""A kind of member of one's own: one class, through fit, predict, save, load, report and the command line's words."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dspp import DSPPRegressor, ModelFileError
from dspp.cli.show import training_lines
from dspp.estimators import load
from dspp.members import MEMBERS, Gp
from dspp.presets import Spec
from dspp.report import render, report
from tests.members.ensembles import TINY, X, Y, bits


class SmallGp(Gp):
    """A GP with few inducing points."""

    kind: ClassVar[str] = "my-gp"
    title: ClassVar[str] = "columns alone (small GPs)"

    @classmethod
    def applies(cls, kinds: Any, model: Any, has_trees: bool) -> bool:
        return True

    @classmethod
    def spec_from(cls, spec: Spec, num_folds: int, num_columns: int = 1) -> Spec:
        return Spec("svgp", super().spec_from(spec, num_folds).model.change(inducing=5), spec.objective)


class Forgotten(SmallGp):
    """Another name."""

    kind: ClassVar[str] = "forgotten"


@pytest.fixture(scope="module")
def model(two_folds: None) -> Iterator[DSPPRegressor]:
    with MEMBERS.temporarily("my-gp", SmallGp):
        yield DSPPRegressor(**TINY, jobs=1).fit(X, Y)


def test_it_is_fitted_in_every_fold_and_weighed_like_the_others(model: DSPPRegressor) -> None:
    own = [member for member in model.fitted_.members if isinstance(member, SmallGp)]
    assert [member.fold for member in own] == [0, 1]
    assert {member.model.gp_layers[0].inducing_points.shape[1] for member in own} == {5}
    assert "columns alone (small GPs) " in training_lines(model.fitted_)


def test_it_is_stored_under_its_name(model: DSPPRegressor, tmp_path: Path) -> None:
    model.save(tmp_path / "m.dspp")
    again = load(tmp_path / "m.dspp")
    assert [type(member) for member in again.fitted_.members] == [type(member) for member in model.fitted_.members]
    assert bits(again.fitted_.distribution(X)) == bits(model.fitted_.distribution(X))


def test_the_report_names_it(model: DSPPRegressor) -> None:
    assert "columns alone (small GPs)" in render(report(model.evaluation(X, Y)))


def test_a_kind_that_is_not_registered_is_named(tmp_path: Path) -> None:
    with MEMBERS.temporarily("forgotten", Forgotten):
        DSPPRegressor(**TINY, jobs=1).fit(X, Y).save(tmp_path / "m.dspp")
    with pytest.raises(ModelFileError, match="unknown kind of member 'forgotten'; import the module that registers it"):
        load(tmp_path / "m.dspp")
