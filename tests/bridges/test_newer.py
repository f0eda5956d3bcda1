"""The newer methods of chapter 14 against TRL and verl."""

import pytest
import torch
from torch.testing import assert_close

from course import newer
from refimpl import Scored
from refimpl.interop.conformance.cases import typical


def both(algorithm, theirs, seed, spread=0.3):
    """(loss, gradient) of ours and of a framework on one batch."""

    def ours(inputs, settings):
        names = ("logp", "old_logp", "advantages", "mask")
        return algorithm.policy_loss(*(inputs[name] for name in names)).loss

    answers = []
    for ask in (ours, theirs):
        inputs = typical(seed, spread)
        logp = inputs["logp"].requires_grad_()
        loss = ask(inputs, {"max_length": 12.0, "normaliser": "token_mean"})
        answers.append((loss, torch.autograd.grad(loss, logp)[0]))
    return answers


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("bounds", [(0.2, 0.2), (0.05, 0.1)])
def test_dppo_is_verls(bounds, seed):
    verl = pytest.importorskip("adapters_verl", reason="verl is not installed")
    low, high = bounds
    given = {"clip_ratio_low": low, "clip_ratio_high": high, "clip_ratio_c": 20.0}
    ours, right = both(
        newer.dppo(low, high),
        lambda inputs, settings: verl.asked("dppo_tv", inputs, settings, **given),
        seed,
        spread=1.0,
    )
    assert_close(ours, right, rtol=0, atol=1e-10)
    dense, _ = both(newer.dppo(9.0, 9.0), lambda i, s: i["logp"].sum(), seed, 1.0)
    assert (ours[1] - dense[1]).abs().max() > 1e-3  # something was dropped


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["vespo", "luspo"])
def test_vespo_and_luspo_are_trls(name, seed):
    trl = pytest.importorskip("adapters_trl", reason="TRL is not installed")
    given = {"get_gamma_weights": trl.GRPOTrainer.get_gamma_weights}
    if name == "luspo":
        given = {"importance_sampling_level": "sequence"}
        given |= {"epsilon_low": 3e-4, "epsilon_high": 4e-4}
    ours, right = both(
        getattr(newer, name)(),
        lambda inputs, settings: trl.asked(inputs, settings, loss_type=name, **given),
        seed,
    )
    assert_close(ours, right, rtol=0, atol=1e-6)
    assert right[1].norm() > 1e-3


def test_icepops_weight_is_the_ratio_inside_its_band_and_0_outside():
    old = torch.tensor([[0.0, -1.0, -1.0, 0.0]])
    rollout = torch.tensor([[-0.6, -0.2, -1.0, -3.0]])
    weight = newer.icepop(old, rollout)
    assert_close(weight, torch.tensor([[torch.e**0.6, 0.0, 1.0, 0.0]]))


def test_maxrl_divides_by_the_groups_mean_and_leaves_out_what_was_never_paid():
    rewards = torch.tensor([1.0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0])
    advantages = newer.maxrl(Scored(rewards, torch.arange(12) // 4))
    assert_close(advantages[:4], torch.tensor([3.0, -1, -1, -1]))
    assert_close(advantages[4:8], torch.tensor([1.0, 1, -1, -1]))
    assert advantages[8:].tolist() == [0.0] * 4


def test_minirl_weighs_every_token_alike():
    mask, method = typical()["mask"], newer.minirl()
    assert_close(method.normaliser(mask), mask / len(mask))
    scored = Scored(torch.tensor([1.0, 0, 0, 0]), torch.zeros(4).long())
    assert method.advantages(scored).tolist() == [0.75, -0.25, -0.25, -0.25]
