"""A part of every kind in one module of the user's: used by estimators, model files, searches and the command line."""

import importlib
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import dspp
from dspp import InputError, ModelFileError, PresetRegressor, modelfile
from dspp.gp.kernels import KERNELS
from dspp.gp.means import MEANS
from dspp.likelihoods import LIKELIHOODS
from dspp.metrics import METRICS
from dspp.model import TOPOLOGIES
from dspp.objectives import OBJECTIVES
from dspp.outcomes import OUTCOMES
from dspp.presets import PRESETS
from dspp.quadrature import RULES
from dspp.registry import Registry, extension_modules, part_names
from dspp.training.schedules import SCHEDULES

REGISTRIES: dict[str, Registry[Any]] = {
    "RULES": RULES,
    "KERNELS": KERNELS,
    "MEANS": MEANS,
    "TOPOLOGIES": TOPOLOGIES,
    "LIKELIHOODS": LIKELIHOODS,
    "OBJECTIVES": OBJECTIVES,
    "PRESETS": PRESETS,
    "METRICS": METRICS,
    "SCHEDULES": SCHEDULES,
}
MODULE = '''
import torch
from torch import nn

from dspp import ObjectiveConfig
from dspp.gp.kernels import KERNELS, KernelKind
from dspp.gp.means import MEANS, Mean
from dspp.likelihoods import LIKELIHOODS, Likelihood
from dspp.metrics import METRICS, Metric
from dspp.model import TOPOLOGIES, Topology
from dspp.objectives import OBJECTIVES
from dspp.predictive import NormalMixture
from dspp.presets import PRESETS
from dspp.quadrature import RULES, Rule
from dspp.training.schedules import SCHEDULES


@RULES.register("my-rule")
class Pair(Rule):
    """Two sites of equal weight."""

    def start(self, generator):
        self.register_buffer("signs", torch.tensor([-1.0, 1.0]))

    def sites(self, layer):
        return self.signs[:, None].expand(2, self.widths[layer])

    def log_weights(self, sampling=False):
        return torch.log_softmax(0 * self.signs, 0)


@KERNELS.register("my-kernel")
class Cauchy(KernelKind):
    """k = 1/(1 + t²), t = r;  dk/dt² = -k²."""

    factor, slope_factor, horizon = 1.0, -1.0, 1e26

    @staticmethod
    def value(t2):
        return 1 / (1 + t2)

    @staticmethod
    def fill(t2, k, slope):
        torch.add(t2, 1.0, out=k).reciprocal_()
        torch.mul(k, k, out=slope)


@MEANS.register("my-mean")
class SumMean(Mean):
    """The sum of the inputs times a learned number."""

    def __init__(self, num_inputs, width):
        super().__init__(num_inputs, width)
        self.slope = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x.sum(-1, keepdim=True) * self.slope


def inputs(h, x):
    return x


def both(h, x):
    return torch.cat([h, x.expand(len(h), -1, -1)], dim=-1)


TOPOLOGIES.register("my-topology")(Topology(mean=both, kernel=inputs))


@LIKELIHOODS.register("my-likelihood")
class Noise(Likelihood):
    """Gaussian noise of a learned variance."""

    def __init__(self, num_outputs, config, num_components=None, generator=None):
        super().__init__(num_outputs, config, num_components, generator)
        self.log_var = nn.Parameter(torch.zeros(()))

    def forward(self, latent):
        return NormalMixture(latent.log_weights, latent.mean[..., 0], latent.var[..., 0], self.log_var.exp() + 1e-4)


@OBJECTIVES.register("my-objective")
def objective(likelihood, latent, y, kl, num_data, *, beta=1.0, gamma=1.03):
    return likelihood.log_prob(latent, y).mean() - 2 * beta * kl / num_data


@PRESETS.register("my-preset")
def my_preset(config):
    model = config.change(layers=3, width=2, inducing=5, rule="my-rule", kernel="my-kernel", hidden_mean="my-mean")
    model = model.change(topology="my-topology", likelihood="my-likelihood")
    return model, ObjectiveConfig("my-objective", beta=0.1)


METRICS.register("my-metric")(Metric("MAE", lambda rows: (rows.mean - rows.y).abs().mean().item(), "A plain error."))


@SCHEDULES.register("my-schedule")
def schedule(done, config):
    return 1.0 - done
'''
QUICK = {
    "members": 1,
    "epochs": 2,
    "batch_size": 20,
    "restarts": 1,
    "progress": False,
    "train_settings": {"schedule": "my-schedule"},
}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
Y = X[:, 0] + 0.1 * RNG.normal(size=60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("user")
    (folder / "my_parts.py").write_text(MODULE)
    for name, rows in (("train.csv", slice(60)), ("test.csv", slice(20))):
        np.savetxt(folder / name, np.column_stack([X, Y])[rows], delimiter=",", header="a,b,y", comments="")
    return folder


@pytest.fixture(scope="module")
def parts(folder: Path) -> Iterator[ModuleType]:
    """The module, imported as a user does; other tests of this process do not see its parts."""
    before = {name: dict(registry._parts) for name, registry in REGISTRIES.items()}
    sys.path.insert(0, str(folder))
    yield importlib.import_module("my_parts")
    sys.path.remove(str(folder))
    del sys.modules["my_parts"]
    for name, registry in REGISTRIES.items():
        registry._parts.clear()
        registry._parts.update(before[name])


@pytest.fixture(scope="module")
def fitted(parts: ModuleType) -> PresetRegressor:
    return PresetRegressor(preset="my-preset", **QUICK).fit(X, Y)


def test_the_module_has_a_part_of_every_kind(parts: ModuleType) -> None:
    assert "my_parts" in extension_modules()
    for registry in REGISTRIES.values():
        assert sum(name.startswith("my-") for name in registry) == 1, registry.kind


def test_a_preset_of_ones_own_is_an_estimator(fitted: PresetRegressor) -> None:
    spec = fitted.fitted_.members[0].spec
    assert spec.name == "my-preset"
    assert spec.model == dspp.preset("my-preset").model
    assert (spec.model.likelihood, spec.model.width, spec.objective.name) == ("my-likelihood", 2, "my-objective")
    assert fitted.spec(2).model.width == 2  # several outputs do not widen what the preset chose
    assert fitted.fitted_.members[0].train.schedule == "my-schedule"
    assert np.isfinite(fitted.evaluate(X, Y)["my-metric"])
    assert fitted.get_params()["preset"] == "my-preset"
    copy = clone(fitted)
    assert (type(copy), copy.get_params()) == (PresetRegressor, fitted.get_params())
    np.testing.assert_array_equal(copy.fit(X, Y).predict(X), fitted.predict(X))
    assert "preset='my-preset'" in repr(fitted)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(X), fitted.predict(X))
    with pytest.raises(InputError, match=r"unknown preset 'nonsense'; choose one of: .*, or import the module"):
        PresetRegressor(preset="nonsense").fit(X, Y)


def test_it_is_saved_and_loaded(fitted: PresetRegressor, tmp_path: Path) -> None:
    fitted.save(tmp_path / "m.dspp")
    loaded = dspp.load(tmp_path / "m.dspp")
    assert isinstance(loaded, PresetRegressor)
    assert loaded.preset == "my-preset"
    assert loaded.get_params() == fitted.get_params() | {"progress": None}
    np.testing.assert_array_equal(loaded.predict_interval(X), fitted.predict_interval(X))


@pytest.mark.parametrize("name", ["dspp", "nn+dspp"])
def test_presets_of_the_package_by_name(name: str, tmp_path: Path) -> None:
    sizes = {"inducing": 4, "width": 2, "features": (3,) if name == "nn+dspp" else None}
    how = {**QUICK, "train_settings": None}
    model = PresetRegressor(preset=name, **sizes, **how).fit(X, Y)
    model.save(tmp_path / "m.dspp")
    loaded = dspp.load(tmp_path / "m.dspp")
    np.testing.assert_array_equal(clone(loaded).set_params(progress=False).fit(X, Y).predict(X), model.predict(X))


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.long)])  # workers import the module themselves
def test_a_search_takes_it(jobs: int, parts: ModuleType) -> None:
    result = dspp.tune(X, Y, models=["my-preset"], space={"beta": [0.1, 0.2]}, base=QUICK | {"jobs": jobs})
    assert {trial.state for trial in result.trials} <= {"finished", "pruned"}, result.trials
    assert isinstance(result.best_estimator, PresetRegressor)
    with pytest.raises(InputError, match="expected models with the same likelihood, got gaussian, my-likelihood"):
        dspp.tune(X, Y, models=["my-preset", "dspp"])


@pytest.mark.parametrize("registry", ["RULES", "KERNELS", "MEANS", "TOPOLOGIES", "LIKELIHOODS"])
def test_load_names_the_part_that_is_missing(registry: str, fitted: PresetRegressor, tmp_path: Path) -> None:
    fitted.save(tmp_path / "m.dspp")
    kind, names = REGISTRIES[registry].kind, REGISTRIES[registry]._parts
    name = f"my-{kind}"
    part = names.pop(name)
    try:
        with pytest.raises(ModelFileError, match=rf"m\.dspp: unknown {kind} '{name}'; import the module .*--import"):
            dspp.load(tmp_path / "m.dspp")
    finally:
        names[name] = part


def test_what_only_training_needs_may_be_missing(fitted: PresetRegressor, tmp_path: Path) -> None:
    fitted.save(tmp_path / "m.dspp")
    removed = {key: REGISTRIES[key]._parts.pop(f"my-{REGISTRIES[key].kind}") for key in ("PRESETS", "OBJECTIVES")}
    try:
        loaded = modelfile.load(tmp_path / "m.dspp")  # as the command line does to predict
        assert loaded.members[0].spec == fitted.fitted_.members[0].spec
        with pytest.raises(ModelFileError, match=r"m\.dspp: unknown preset 'my-preset'; import the module"):
            dspp.load(tmp_path / "m.dspp")  # an estimator, which one may want to fit again
    finally:
        for key, part in removed.items():
            REGISTRIES[key]._parts[f"my-{REGISTRIES[key].kind}"] = part


COMMANDS = """
import contextlib, io, json, sys
import dspp.cli
from dspp.cli import app
done = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            app(words)
        except SystemExit as end:
            done.append([end.code, out.getvalue(), err.getvalue()])
print(json.dumps(done))
"""


def test_the_command_line_imports_it(folder: Path) -> None:
    fit = ["fit", "train.csv", "--target", "y", "--out", "m.dspp", "--model", "my-preset", "--schedule", "my-schedule"]
    fit += ["--epochs", "1", "--restarts", "1", "--quiet"]
    (folder / "broken.py").write_text("1 / 0")
    (folder / "needy.py").write_text("import nothing_of_this_name")
    refused = [
        (fit, "unknown preset 'my-preset'; choose one of: "),
        ([*fit, "--import", "other_parts"], "--import other_parts: the module 'other_parts' is neither in "),
        ([*fit, "--import", "my_parts.py"], "expected the name of a module such as mymodule, without .py"),
        (
            [*fit, "--import", "broken"],
            "--import broken: the import failed with ZeroDivisionError: division by zero; ",
        ),
        ([*fit, "--import=needy"], "--import needy: the module imports 'nothing_of_this_name', which is not installed"),
        ([*fit, "--import"], "'--import' requires an argument"),
    ]
    works = [
        [*fit, "--import", "my_parts"],
        ["--import=my_parts", "evaluate", "m.dspp", "test.csv", "--json"],
        ["predict", "--import", "my_parts", "m.dspp", "test.csv", "--out", "p.csv"],
        ["info", "m.dspp", "--json", "--import", "my_parts"],
        ["tune", *fit[1:-1], "--overwrite", "--trials", "1", "--import", "my_parts", "--quiet"],
    ]
    commands = json.dumps([words for words, _ in refused] + works)
    run = subprocess.run([sys.executable, "-c", COMMANDS, commands], capture_output=True, text=True, cwd=folder)
    assert run.returncode == 0, run.stderr
    done = json.loads(run.stdout)
    for (words, complaint), (code, _, errors) in zip(refused, done, strict=False):
        assert (code, errors.count("\n")) == (2, 1), (words, errors)
        assert complaint in errors
    for words, (code, _, errors) in zip(works, done[len(refused) :], strict=True):
        assert code == 0, (words, errors)
    assert np.isfinite(json.loads(done[-4][1])["my-metric"])
    assert json.loads(done[-2][1])["settings"]["training"]["schedule"] == "my-schedule"
    assert len((folder / "p.csv").read_text().splitlines()) == 21


NAMES = """
from dspp.registry import part_names
import json, sys
kinds = ("preset", "kernel", "rule", "topology", "likelihood", "outcome", "schedule")
print(json.dumps({kind: part_names(kind) for kind in kinds}))
assert "torch" not in sys.modules
"""


def test_names_are_known_without_importing_the_parts(parts: ModuleType) -> None:
    found = json.loads(subprocess.run([sys.executable, "-c", NAMES], capture_output=True, text=True, check=True).stdout)
    for registry in (PRESETS, KERNELS, RULES, TOPOLOGIES, LIKELIHOODS, OUTCOMES, SCHEDULES):
        assert sorted(found[registry.kind]) == sorted(name for name in registry if not name.startswith("my-"))
        assert set(part_names(registry.kind)) == set(registry), "those of the user's modules, too"
