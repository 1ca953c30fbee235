"""CONTRIBUTING.md shows how to add a rule: its code runs as it stands there."""

import re
from pathlib import Path

import pytest
import torch

from dspp import quadrature
from dspp.quadrature import RULES
from dspp.registry import Registry

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.fixture
def registered(monkeypatch):
    scratch = Registry("rule")  # the example registers itself, once and for all: here, for a test
    with monkeypatch.context() as patch:
        patch.setattr(quadrature, "RULES", scratch)
        exec(BLOCKS[0], {"__name__": "example"})
    with RULES.temporarily("unscented", scratch["unscented"]) as rule:
        yield rule


def test_the_example_is_the_unscented_transform(registered):
    rule = registered([4], num_sites=1)
    sites, weights = rule.sites(0), rule.log_weights().exp()
    assert sites.shape == (9, 4)
    torch.testing.assert_close(weights.sum(), torch.tensor(1.0))
    torch.testing.assert_close(weights @ sites, torch.zeros(4))
    torch.testing.assert_close(sites.T @ (weights[:, None] * sites), torch.eye(4))


def test_the_example_trains_by_its_name(registered):
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(300, 2, generator=generator)
    y = torch.sin(2 * X[:, 0]) + 0.1 * torch.randn(300, generator=generator)
    names = {"X": X, "y": y}
    exec(BLOCKS[1].replace("epochs=5", "epochs=5, batch_size=50, restarts=1"), names)
    mixture = names["mixture"]
    assert mixture.num_components == 5
    independent = torch.distributions.Normal(y.mean(), y.std()).log_prob(y).mean()
    assert mixture.log_prob(y).mean() > independent + 0.1
