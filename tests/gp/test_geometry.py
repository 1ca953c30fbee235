"""Promises 10 and 11: finite numbers on bad geometry, or an error that names the layer."""

import itertools

import pytest
import torch
from given import predicted

from dspp.errors import NumericalError
from dspp.gp.kernels import KERNELS
from dspp.model import build
from dspp.objectives import OBJECTIVES
from dspp.presets import preset


def _normal(generator):
    return torch.randn(24, 3, generator=generator, dtype=torch.float64)


GEOMETRIES = {
    "plain": lambda g: _normal(g),
    "duplicate rows": lambda g: _normal(g)[:4].repeat(6, 1),
    "one distinct row": lambda g: _normal(g)[:1].repeat(24, 1),
    "constant column": lambda g: _normal(g) * torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64),
    "nearly equal rows": lambda g: 1 + 1e-7 * _normal(g),
    "one row": lambda g: _normal(g)[:1],
    "offset 1e8": lambda g: _normal(g) + 1e8,
    "scale 1e12": lambda g: _normal(g) * 1e12,
    "scale 1e-12": lambda g: _normal(g) * 1e-12,
}
MODELS = {
    "ppgpr": {"layers": 1},
    "od-svgp": {"layers": 1},
    "dspp": {"layers": 2},
    "dgp": {"layers": 3},
}
LENGTHSCALES = (1e-6, 1.0, 1e6)
CELLS = list(itertools.product(GEOMETRIES, MODELS, LENGTHSCALES, ("float32", "float64")))


@pytest.mark.parametrize("kernel", KERNELS)
def test_finite_or_an_error_that_names_the_layer(kernel):
    assert len(CELLS) * len(KERNELS) >= 500
    for cell in CELLS:
        geometry, name, lengthscale, dtype = cell
        X = GEOMETRIES[geometry](torch.Generator().manual_seed(1)).to(getattr(torch, dtype))
        changes = {
            "inducing": 8,
            "width": 2,
            "sites": 3,
            "kernel": kernel,
            "dtype": dtype,
            "lengthscale": lengthscale,
        }
        spec = preset(name, **changes, **MODELS[name])
        y = torch.linspace(-1, 1, len(X), dtype=X.dtype)
        try:
            model = build(spec.model, X)
            latent = model(X, noise_seed=0)
            value = OBJECTIVES[spec.objective.name](model.likelihood, latent, y[:, None], model.kl(), len(X))
            value.backward()
        except NumericalError as error:
            message = str(error)
        else:
            message = None
        if message is not None:
            assert "layer" in message, cell
            continue
        assert torch.isfinite(model.likelihood.log_prob(latent, y[:, None])).all(), cell
        for parameter, tensor in model.named_parameters():
            assert torch.isfinite(tensor.grad).all(), (cell, parameter)


def test_ordinary_geometry_needs_no_excuse():
    """The escape of the test above is for the impossible, not for duplicate rows or constant columns."""
    for geometry in ("plain", "duplicate rows", "one distinct row", "constant column", "one row"):
        X = GEOMETRIES[geometry](torch.Generator().manual_seed(1)).float()
        model = build(preset("dspp", inducing=8, width=2, sites=3).model, X)
        assert torch.isfinite(predicted(model, X).log_prob(torch.zeros(len(X)))).all()
        assert model.jitter_increases == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("num_outputs", [1, 3])
def test_far_tails_are_safe(dtype, objective, num_outputs):
    """y at a million standard deviations: finite log density and finite gradients."""
    X = torch.randn(12, 3, dtype=dtype, generator=torch.Generator().manual_seed(0))
    spec = preset("dspp", inducing=6, width=2, sites=3, dtype=str(dtype).removeprefix("torch."))
    model = build(spec.model, X, num_outputs)
    y = torch.full((12, num_outputs), 1e6, dtype=dtype)
    latent = model(X)
    value = OBJECTIVES[objective](model.likelihood, latent, y, model.kl(), 12)
    value.backward()
    assert torch.isfinite(model.likelihood.log_prob(latent, y)).all()
    assert torch.isfinite(value)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_an_impossible_matrix_is_an_error_that_names_the_layer():
    X = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    model = build(preset("dspp", inducing=8, sites=3).model, X)
    with torch.no_grad():
        model.gp_layers[1].inducing_points.fill_(float("nan"))
    with pytest.raises(NumericalError, match=r"layer 2 of 2: .*NaN or inf"):
        model(X)


def test_every_climb_of_the_jitter_ladder_is_counted():
    """Coincident inducing points without jitter: not positive definite until jitter comes in."""
    X = torch.randn(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = build(preset("ppgpr", inducing=8, jitter=0.0, dtype="float64", kernel="rbf").model, X)
    with torch.no_grad():
        model.gp_layers[0].inducing_points[:] = X[:1]
    assert model.jitter_increases == 0
    mixture = predicted(model, X)
    assert model.jitter_increases > 0
    assert torch.isfinite(mixture.log_prob(X[:, 0])).all()
