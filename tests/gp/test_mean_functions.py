"""The mean that reads a prediction of the target, and the way from the model's inputs to it."""

import torch

from dspp.config import ModelConfig
from dspp.gp.means import MEANS, LastInputMean
from dspp.model import build

X = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))


def test_only_the_first_gp_reads_the_last_input() -> None:
    mean = LastInputMean(3, 2)
    with torch.no_grad():
        mean.constant.copy_(torch.tensor([0.5, -1.0]))
        mean.slope.fill_(2.0)
    out = mean(X.unsqueeze(0))
    torch.testing.assert_close(out[0, :, 0], 0.5 + 2.0 * X[:, 2])
    torch.testing.assert_close(out[0, :, 1], torch.full((60,), -1.0))


def test_a_new_model_predicts_what_its_last_input_says() -> None:
    model = build(ModelConfig(inducing=10, top_mean="last-input", likelihood="gaussian"), X)
    torch.testing.assert_close(model.predictor()(X).mean, X[:, 2], atol=1e-5, rtol=0)
    assert build(ModelConfig(inducing=10), X).predictor()(X).mean.abs().max() < 1e-5


def test_the_slope_is_learned() -> None:
    model = build(ModelConfig(inducing=10, top_mean="last-input"), X)
    latent = model(X)
    latent.mean.square().sum().backward()
    gradient = model.layers[-1].mean.slope.grad
    torch.testing.assert_close(gradient, 2 * 10 * X[:, 2].square().sum(), rtol=1e-4, atol=0)  # by each of 10 sites


def test_no_other_mean_reads_the_inputs_of_the_model() -> None:
    assert [name for name in MEANS if MEANS[name].reads_inputs] == ["last-input"]
