"""The newer methods of chapter 14 against TRL and verl."""

import pytest
import torch
from torch.testing import assert_close

from course import newer
from refimpl import Scored
from refimpl.interop.conformance.cases import typical

DPPO = {"name": "dppo_tv", "clip_ratio_c": 20.0}
WIDE = DPPO | {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2}
NARROW = DPPO | {"clip_ratio_low": 0.05, "clip_ratio_high": 0.1}
LEVEL = {"importance_sampling_level": "sequence"}
LUSPO = {"loss_type": "luspo", "epsilon_low": 3e-4, "epsilon_high": 4e-4} | LEVEL


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("method", "engine", "given"),
    [
        (newer.dppo(), "verl", WIDE),
        (newer.dppo(0.05, 0.1), "verl", NARROW),
        (newer.luspo(), "trl", LUSPO),
        (newer.vespo(), "trl", {"loss_type": "vespo"}),
    ],
)
def test_loss_and_gradient_are_those_of_an_engine(method, engine, given, seed):
    adapter = pytest.importorskip(f"adapters_{engine}", reason="it is not installed")
    if method.name == "vespo":
        given = given | {"get_gamma_weights": adapter.GRPOTrainer.get_gamma_weights}
    inputs = typical(seed, spread=1.0 if engine == "verl" else 0.3)
    logp = inputs["logp"].requires_grad_()
    names = ("logp", "old_logp", "advantages", "mask")
    ours = method.policy_loss(*(inputs[name] for name in names)).loss
    settings = {"max_length": 12.0, "normaliser": "token_mean"}
    right = adapter.asked(inputs=inputs, settings=settings, **given)
    (g,), (h,) = (torch.autograd.grad(loss, logp) for loss in (ours, right))
    assert_close((ours, g), (right, h), rtol=0, atol=1e-6)
    assert h.norm() > 1e-3
    if method.name == "dppo":  # something was dropped
        assert bool(((g == 0) & (inputs["mask"] == 1)).any())


def test_minirl_weighs_every_token_alike():
    mask, method = typical()["mask"], newer.minirl()
    assert_close(method.normaliser(mask), mask / len(mask))
    scored = Scored(torch.tensor([1.0, 0, 0, 0]), torch.zeros(4).long())
    assert method.advantages(scored).tolist() == [0.75, -0.25, -0.25, -0.25]
