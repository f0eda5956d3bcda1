"""Gradients against their closed forms, in float64; curves come out of the real losses.

Every gradient is −weight · c · Â ∇log π_θ; a form says what c is.
"""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import tensor
from torch.testing import assert_close

from refimpl import normalisers
from refimpl.algorithms import ALGORITHMS, Objective
from refimpl.curves import GRID, curve
from refimpl.gate import from_gate
from tests.losses.batches import FLOAT64, loss_and_slope, random_batch

pytestmark = FLOAT64
LENGTHS = [7, 30, 1, 20]
WEIGHT = {  # of a token, by lengths
    normalisers.seq_mean_token_mean: 1 / (4 * tensor(LENGTHS).double()[:, None]),
    normalisers.token_mean: 1 / 58,
    normalisers.constant: 1 / (4 * 50),
    normalisers.seq_mean_token_sum: 1 / 4,
}


def a_batch(per_token=True):
    """(logp, old_logp, Â, mask), ratios from 0.2 to 5."""
    logp, old, a, mask = random_batch(LENGTHS, spread=0.6)
    return logp, old, a if per_token else a[:, :1].expand_as(a), mask


def mean(x, mask):
    return (x * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True)


def clip(ratio, a, low=0.2, high=0.2):
    """The ratio, and 0 where the one-sided clip has taken the gradient."""
    return ratio * torch.where(a > 0, ratio <= 1 + high, ratio >= 1 - low)


def dual(t):
    return clip(t.r, t.a) * ((t.a > 0) | (t.r < 1.5))


def capped_and_masked(t, low=0.2, high=0.28):
    """The mask looks at the ratio, not at the capped one."""
    return t.r.clamp(max=1.1) * clip(t.r, t.a, low, high) / t.r


def soft(t):
    return t.r / torch.cosh(torch.where(t.a > 0, 3, 5) * (t.r - 1) / 2) ** 2


def geometric(t, low=0.4, high=0.4):
    """The mean with the held tokens in it; these have no gradient."""
    held = torch.where(t.a > 0, t.z.clamp(max=high), t.z.clamp(min=-low))
    return mean(held, t.mask).exp() * (held == t.z)


def within(t, low, high):
    """The ratio, up to 1.5, where the probability has not moved on by more."""
    moved = t.pi - t.mu
    return t.r.clamp(max=1.5) * torch.where(t.a > 0, moved <= high, moved >= -low)


def within_kl(t, low, high):
    others = (1 - t.mu) * ((1 - t.mu) / (1 - t.pi).clamp(min=1e-8)).log()
    far = others - t.mu * t.z > torch.where(t.a > 0, high, low)
    return t.r * ~(far & (t.z * t.a > 0))


def capped_within(t):
    return t.r.clamp(max=1.1) * ((t.pi - t.mu).abs() <= 0.1)


def within_row(t, delta):
    """The ratio, unless the row's mean binary KL(μ‖π) is above δ."""
    each = t.mu * (t.mu / t.pi).log() + (1 - t.mu) * ((1 - t.mu) / (1 - t.pi)).log()
    return t.r * (mean(torch.where(t.mask.bool(), each, 0.0), t.mask) <= delta)


def kernel(t):
    k, rate = (torch.where(t.a >= 0, x, y) for x, y in ((2, 3), (3, 2)))
    w = t.z.sum(-1, keepdim=True).exp()
    return w**k * (rate * (1 - w)).exp()


TWO = {"epsilon_low": 0.2, "epsilon_high": 0.3}
SEQUENCE = {"epsilon_low": 0.02, "epsilon_high": 0.03}
MASKED = {"mask_epsilon_low": 0.2, "mask_epsilon_high": 0.28}
LOWER, UPPER = ({"max_ratio": 1.1, f"mask_epsilon_{x}": 0.2} for x in ("low", "high"))
TAUS = {"tau_pos": 3.0, "tau_neg": 5.0}
DELTAS = {"delta_low": 0.1, "delta_high": 0.05}
BAND = {"low": 0.3, "high": 0.4, "tau": 0.0}
FORMS = [  # name, settings, whether Â may differ within a response, c
    ("reinforce", {}, True, lambda t: torch.ones_like(t.r)),
    ("reinforce", {"correct": True}, True, lambda t: t.r),
    ("ppo", TWO, True, lambda t: clip(t.r, t.a, 0.2, 0.3)),
    ("ppo", {"dual_clip": 1.5}, True, dual),
    ("grpo", {}, True, lambda t: clip(t.r, t.a)),
    ("dr_grpo", {}, True, lambda t: clip(t.r, t.a)),
    ("dapo", {}, True, lambda t: clip(t.r, t.a, 0.2, 0.28)),
    ("gspo", SEQUENCE, False, lambda t: clip(t.s, t.a, 0.02, 0.03)),
    ("gspo_token", SEQUENCE, False, lambda t: clip(t.s, t.a, 0.02, 0.03)),
    ("gspo_token", SEQUENCE, True, lambda t: clip(t.s, t.a, 0.02, 0.03)),
    ("cispo", {"max_ratio": 1.3}, True, lambda t: t.r.clamp(max=1.3)),
    ("cispo", {"max_ratio": 1.1, **MASKED}, True, capped_and_masked),
    # each side by itself
    ("cispo", LOWER, True, lambda t: capped_and_masked(t, 0.2, math.inf)),
    ("cispo", UPPER, True, lambda t: capped_and_masked(t, math.inf, 0.2)),
    ("gmpo", {}, False, geometric),
    ("gmpo", TWO, False, lambda t: geometric(t, 0.2, 0.3)),
    ("rspo", TWO, False, lambda t: geometric(t, 0.2, 0.3)),
    ("sapo", TAUS, True, soft),
    ("dppo_tv", DELTAS | {"max_ratio": 1.5}, True, lambda t: within(t, 0.1, 0.05)),
    ("dppo_kl", DELTAS, True, lambda t: within_kl(t, 0.1, 0.05)),
    ("ipo", {"delta": 0.1}, True, lambda t: t.r * ((t.pi - t.mu).abs() <= 0.1)),
    ("ipo", {"delta": 0.1, "max_ratio": 1.1}, True, capped_within),
    ("glm5", TWO, True, lambda t: t.r * ((t.r > 0.8) & (t.r < 1.3))),
    ("sao", TWO, True, lambda t: t.r * ((t.r > 0.8) & (t.r < 1.3))),
    ("vespo", {}, True, kernel),
    ("luspo", SEQUENCE, False, lambda t: clip(t.s, t.a, 0.02, 0.03)),
    ("minirl", {}, True, lambda t: clip(t.r, t.a, 0.2, 0.27)),
    ("dro", {"tau": 0.5}, True, lambda t: 1 - 0.5 * t.z / t.a),
    ("flash_reinforce", {"delta": 0.2}, True, lambda t: within_row(t, 0.2)),
    ("kimi", BAND, True, lambda t: t.r * ((t.z >= -0.3) & (t.z <= 0.4))),
]


@pytest.mark.parametrize(("name", "settings", "per_token", "form"), FORMS)
def test_a_gradient_is_its_closed_form(name, settings, per_token, form):
    algorithm, (logp, old, a, mask) = ALGORITHMS[name], a_batch(per_token)
    z = (logp.detach() - old) * mask
    t = SimpleNamespace(r=z.exp(), z=z, s=mean(z, mask).exp(), a=a, mask=mask)
    t.pi, t.mu = logp.detach().exp(), old.exp()
    coefficient = form(t).expand_as(mask)
    _, slope = loss_and_slope(algorithm, logp, old, a, mask, **settings)
    expected = -WEIGHT[algorithm.normaliser] * coefficient * a * mask
    assert_close(slope, expected, rtol=0, atol=1e-10)
    stopped = coefficient[mask.bool()] == 0
    bounds = {"epsilon", "delta", "delta_low", "low"} & algorithm.annotations.keys()
    bounded = bounds or "mask_epsilon" in str(settings)
    assert 0 < stopped.sum() < len(stopped) if bounded else not stopped.any()


RATIOS = torch.tensor([0.1, 0.5, 0.79, 0.81, 1.0, 1.19, 1.21, 2.0, 5.0]).double()


def test_a_curve_on_probabilities_is_that_of_the_token_that_is_asked_for():
    """δ = 0.2: π_old = 0.1 may reach 0.3, r = 3, and 0.4 may reach 0.6, r = 1.5; with
    δ = 0.25 the bounds are 3.5 and 1.625."""
    for old, bound in ((0.1, 3), (0.4, 1.5)):
        found = curve("dppo_tv", 1.0, RATIOS, old)
        assert_close(found.coefficient, torch.where(bound > RATIOS, RATIOS, 0.0))
    assert curve("dppo_tv", old=0.5).ratio.max() <= 2  # a probability of 1
    wide = curve("dppo_tv", 1.0, tensor([3.4, 3.6]).double(), 0.1, delta_high=0.25)
    assert_close(wide.coefficient, tensor([3.4, 0.0]).double())


def test_a_curve_follows_an_objective_of_ones_own():
    """Of a method with another objective, or of a gate: no closed form."""

    def cubed(t):
        return Objective(t.z.exp() ** 3 * t.advantages)

    for a in (1.0, -2.0):
        found = curve(replace(ALGORITHMS["grpo"], objective=cubed), a)
        assert_close(found.ratio, GRID)
        assert_close(found.objective, a * GRID**3)
        assert_close(found.coefficient, 3 * GRID**3)
        assert_close(found.gate, 3 * GRID**2)
    half = curve(from_gate(lambda r, a: 0.5 * torch.ones_like(r)), 1.0, RATIOS)
    assert_close(half.gate, torch.full_like(RATIOS, 0.5))
