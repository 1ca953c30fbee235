"""Student-t noise: real targets with outliers."""

import copy
import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import softplus

from dspp.config import ModelConfig
from dspp.errors import InputError
from dspp.gp.kernels import inverse_softplus
from dspp.likelihoods.base import LIKELIHOODS, Likelihood, check_single
from dspp.likelihoods.gaussian import start_noise
from dspp.predictive import LatentMixture, StudentTMixture
from dspp.predictive.student import log_constant, student_log_prob

START_DF = 5.0  # degrees of freedom: heavy tails, yet not so heavy that outliers pass for noise
TOP_SITES = (-math.sqrt(3.0), 0.0, math.sqrt(3.0))  # Gauss–Hermite sites, if the likelihood brings its own
TOP_WEIGHTS = (1 / 6, 2 / 3, 1 / 6)


@LIKELIHOODS.register("student-t")
class StudentT(Likelihood):
    """Sigma points at the top: Σ_s ω_s t(y | μ_s + ξ_s σ_s, c, ν), with learned ξ, scale c and degrees of freedom ν.

    The top layer passes on points as a hidden layer does. If the components are the same in training and prediction,
    each has its own ξ, so their number stays S. A single layer, or a rule that samples anew to predict, has no such
    components; each is then crossed with K = 3 sites with learned weights. The ELBOs integrate over f, so they leave
    the sites at their initial values.

    c² is bounded below by the noise floor, and ν > 2 by construction, so variances are finite.
    """

    def __init__(
        self,
        num_outputs: int,
        config: ModelConfig,
        num_components: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(num_outputs, config, num_components, generator)
        self.noise_floor = config.noise_floor
        self.raw_noise = nn.Parameter(start_noise(config, 1))
        self.raw_df = nn.Parameter(torch.full((1,), inverse_softplus(START_DF - 2.0), dtype=torch.float32))
        self.aligned = num_components is not None
        if num_components is None:
            self.sites = nn.Parameter(torch.tensor(TOP_SITES, dtype=torch.float32))
            self.raw_log_weights = nn.Parameter(torch.tensor(TOP_WEIGHTS, dtype=torch.float32).log())
        else:
            self.sites = nn.Parameter(torch.randn(num_components, generator=generator, dtype=torch.float32))

    @classmethod
    def num_latents(cls, num_outputs: int) -> int:
        """Return 1; more outputs are refused."""
        return check_single("student-t", num_outputs)

    @classmethod
    def from_moments(
        cls, log_weights: Float[Tensor, " S"], mean: Float[Tensor, "S N T"], var: Float[Tensor, "S N T"]
    ) -> StudentTMixture:
        """Return a mixture of Student-t distributions with the initial degrees of freedom."""
        df = var.new_tensor(START_DF)
        return StudentTMixture(log_weights, mean.squeeze(-1), (var.squeeze(-1) * (df - 2.0) / df).sqrt(), df)

    @property
    def scale(self) -> Float[Tensor, ""]:
        """Scale c."""
        return (self.noise_floor + softplus(self.raw_noise)).sqrt().squeeze(0)

    @property
    def df(self) -> Float[Tensor, ""]:
        """Degrees of freedom ν > 2."""
        return 2.0 + softplus(self.raw_df).clamp_min(1e-3).squeeze(0)

    def forward(self, latent: LatentMixture) -> StudentTMixture:
        """Return the predictive distribution, with one component per sigma point."""
        mean, std = latent.mean.squeeze(-1), latent.var.squeeze(-1).sqrt()  # (S, N)
        if not self.aligned:
            f = (mean.unsqueeze(1) + self.sites[:, None] * std.unsqueeze(1)).flatten(0, 1)  # (S·K, N)
            log_weights = latent.log_weights[:, None] + torch.log_softmax(self.raw_log_weights, 0)
            return StudentTMixture(log_weights.flatten(), f, self.scale, self.df)
        if len(mean) != len(self.sites):
            raise InputError(
                f"expected {len(self.sites)} components, one per site of the likelihood 'student-t', got {len(mean)}"
            )
        return StudentTMixture(latent.log_weights, mean + self.sites[:, None] * std, self.scale, self.df)

    def conditional_log_prob(self, f: Float[Tensor, "K S N L"], y: Float[Tensor, "N T"]) -> Float[Tensor, "K S N"]:
        """Return log t(y_n | f, c, ν)."""
        return student_log_prob(y.squeeze(-1), f.squeeze(-1), self.scale, self.df)

    def log_power_integral(self, f: Float[Tensor, "K S N L"], gamma: float) -> Float[Tensor, ""]:
        """Return log ∫ t(y | f, c, ν)^γ dy = (1 − γ) log c + γ log C(ν) + ½ log ν + log B(½, ½(γ(ν + 1) − 1))."""
        nu = self.df
        b = 0.5 * (gamma * (nu + 1.0) - 1.0)
        log_beta = 0.5 * math.log(math.pi) + torch.lgamma(b) - torch.lgamma(b + 0.5)
        return (1.0 - gamma) * self.scale.log() + gamma * log_constant(nu) + 0.5 * nu.log() + log_beta

    def prune(self, keep: Bool[Tensor, " S"]) -> "StudentT":
        """Return the same likelihood with only the sites of the components kept."""
        if not self.aligned:
            return self
        fewer = copy.deepcopy(self)
        fewer.sites = nn.Parameter(self.sites.detach()[keep], requires_grad=self.sites.requires_grad)
        return fewer
