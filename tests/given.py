"""Adapters between models, mixtures and objectives for tests."""

from torch import Tensor, nn

from dspp.likelihoods import Likelihood
from dspp.likelihoods.gaussian import AnyNormal, gamma_score
from dspp.predictive import LatentMixture


def predicted(model, x, *args, **kwargs):
    """The predictive distribution of the rows, straight from the model."""
    return model.likelihood(model(x, *args, **kwargs))


class Given(Likelihood):
    """A Gaussian likelihood whose predictive distribution is given; targets have the shape that it takes."""

    def __init__(self, mixture: AnyNormal) -> None:
        nn.Module.__init__(self)
        self.mixture = mixture

    def forward(self, latent: LatentMixture) -> AnyNormal:
        return self.mixture

    def log_prob(self, latent: LatentMixture, y: Tensor) -> Tensor:
        return self.mixture.log_prob(y)

    def expected_log_prob(self, latent: LatentMixture, y: Tensor) -> Tensor:
        return self.mixture.expected_log_lik(y)

    def gamma_score(self, latent: LatentMixture, y: Tensor, gamma: float, integral_power: float) -> Tensor:
        return gamma_score(self.mixture, y, gamma, integral_power)


def given(mixture: AnyNormal) -> tuple[Given, LatentMixture]:
    """The first two arguments of an objective, from a mixture of Normals."""
    return Given(mixture), LatentMixture(mixture.log_weights, mixture.component_mean, mixture.latent_var)
