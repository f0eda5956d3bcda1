"""Engines whose losses cannot be installed here, typed from their source.

verl's, TRL's and Liger's are asked themselves, by `tests/bridges/report.py`.
"""

import pytest
import torch
from torch.autograd import grad
from torch.testing import assert_close

from refimpl.algorithms import ALGORITHMS
from tests.losses.batches import EXACT, random_batch

pytestmark = pytest.mark.usefixtures("float64")


def prime_rl(logp, mu, a, eps=0.3, kl_tau=0.0):
    """prime-rl after #3586 (2026-09-18), `IPOLoss` of trainer/rl/loss.py."""
    kept = (logp.exp() - mu.exp()).abs() <= eps
    log_ratio = logp - mu
    return -(kept * a * log_ratio.exp()) + kl_tau * log_ratio**2


def skyrl_rollout_is(logp, mu, a, low=0.2, high=0.2):
    """SkyRL at ec60959518, `rollout_is_policy_loss` of utils/ppo_utils.py (#1314)."""
    ratio = (logp - mu).clamp(-20, 20).exp()
    inside = (ratio > 1 - low) & (ratio < 1 + high)
    return -(torch.where(inside, ratio, 0 * ratio).detach() * a * logp)


def roll_kimi15(logp, old, a, tau=0.1):
    """ROLL (2026), `_compute_kimi15_loss` of rlvr/actor_pg_worker.py."""
    return -a * logp + tau * 0.5 * (logp - old).pow(2)


def report_of_kimi(logp, mu, a, band=1.609, tau=1e-3):
    """2602.02276, Eq. 1, with its sentence on which tokens lose their gradient."""
    z = logp - mu
    inside = (z >= -band) & (z <= band)
    held = torch.where(inside, z, z.detach().clamp(-band, band)).exp()
    return -(held * a - tau * z**2)


def openrlhf_flash(logp, mu, a, mask, delta=3e-3):
    """OpenRLHF 0.11.2, `PolicyLoss` at one step per batch with level seq, mode mask and
    gating binary_kl, averaged by seq-mean-token-mean."""
    old = logp.detach()
    p, q = (x.exp().clamp(1e-6, 1 - 1e-6) for x in (mu, old))
    stat = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
    stat = (stat * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)
    coef = torch.where(stat <= delta, (old - mu).exp(), 0.0)
    each = coef * -(logp - old).exp() * a
    return ((each * mask).sum(-1) / mask.sum(-1)).mean()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_flash_reinforces_gradient_is_openrlhfs(seed):
    """Its scalar is not: there the ratio, and no logarithm, is averaged."""
    logp, mu, a, mask = random_batch([5, 9, 2, 7], seed, spread=0.08)
    mine = ALGORITHMS["flash_reinforce"].policy_loss(logp, mu, a, mask).loss
    slopes = [grad(x, logp)[0] for x in (mine, openrlhf_flash(logp, mu, a, mask))]
    assert_close(*slopes, **EXACT)
    kept = slopes[0].abs().sum(-1) > 0
    assert 0 < kept.sum() < 4


ENGINES = [
    ("ipo", {}, prime_rl, {}),
    ("ipo", {"delta": 0.1, "tau": 1e-3}, prime_rl, {"eps": 0.1, "kl_tau": 1e-3}),
    ("glm5", {}, skyrl_rollout_is, {}),
    ("glm5", {"epsilon_high": 0.28}, skyrl_rollout_is, {"high": 0.28}),
    ("dro", {}, roll_kimi15, {}),
    ("kimi", {}, report_of_kimi, {}),
    ("kimi", {"low": 0.2, "high": 0.2}, report_of_kimi, {"band": 0.2}),
]


@pytest.mark.parametrize(("name", "ours", "theirs", "settings"), ENGINES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_loss_and_gradient_are_the_engines(name, ours, theirs, settings, seed):
    logp, old, a, mask = random_batch([5, 9, 2, 7], seed, spread=0.8)
    mine = ALGORITHMS[name].policy_loss(logp, old, a, mask, **ours).loss
    right = (theirs(logp, old, a, **settings) * mask).sum() / mask.sum()
    assert_close(mine, right, **EXACT)
    slopes = [grad(loss, logp)[0] for loss in (mine, right)]
    assert_close(*slopes, **EXACT)
