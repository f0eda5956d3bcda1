"""Losses and gradients worked out by hand, each in the comment beside it.

Unless said: π_old = 1, so log π = log r; rows of two tokens and one.
"""

import math
from dataclasses import replace

import pytest
import torch
from torch import tensor
from torch.autograd import grad
from torch.testing import assert_close

from refimpl.algorithms import ALGORITHMS, Objective, value_loss
from refimpl.gate import from_gate
from refimpl.kl import binary
from refimpl.normalisers import constant, seq_mean_token_mean
from tests.losses.batches import (
    EXACT,
    FLOAT64,
    NAN,
    WIDE,
    at_ratios,
    loss_and_slope,
    mask_of,
    one_token,
)

pytestmark = FLOAT64
REINFORCE, PPO, GRPO = (ALGORITHMS[n] for n in ("reinforce", "ppo", "grpo"))
GSPO, CISPO, GMPO = (ALGORITHMS[name] for name in ("gspo", "cispo", "gmpo"))


def sigma(x):
    return 1 / (1 + math.exp(-x))


TEN = constant(mask_of([2, 1]), 10)
UP = [1.0, -1.0]
MIXED = [[1.0, -1.0], [0.0, 0.0]]  # within a response
FAR, NEAR = [[2.0, 0.5], [4.0, 1.0]], [[1.5, 0.9], [1.3, 1.0]]
SLIGHT, LOW = [[1.004, 1.002 / 1.004], [1.0, 1.0]], [[1.25, 0.5], [0.5, 1.0]]
HELD = math.exp((0.4 - math.log(2)) / 2)
WEIGHED = 2 * math.log(2) + 0.5 * math.log(0.5) - 3 * math.log(4)
SOFT = (2 * sigma(2) + 2 * sigma(-1)) / 2 - sigma(12)
SLOPES = (
    -2 * sigma(2) * sigma(-2),
    -sigma(-1) * sigma(1) / 2,
    8 * sigma(12) * sigma(-12),
)
WHOLE = [  # method, settings, weight, ratios, Â, −objective, gradient
    # log 2, log ½ and log 4: −½ [0 − log 4]; −Â/(B |o|)
    ("reinforce", {}, None, FAR, [2.0, -1.0], math.log(2), (-1 / 2, -1 / 2, 1 / 2)),
    # with `correct`: −½ [(2·2 + 2·½)/2 − 1·4] and −r Â/(B |o|)
    ("reinforce", {"correct": True}, None, FAR, [2.0, -1.0], 0.75, (-1, -1 / 4, 2)),
    # min(1.5, 1.2), min(.9, .9) and min(−1.3, −1.2), over all tokens
    ("ppo", {}, None, NEAR, UP, -0.8 / 3, (0, -0.9 / 3, 1.3 / 3)),
    # the same, the mean of the rows' means
    ("grpo", {}, None, NEAR, UP, 0.125, (0, -0.9 / 4, 1.3 / 2)),
    # min(2, 1.2) + ½ = 1.7 and −4: −(1.7 − 4)/(2·10)
    ("dr_grpo", {}, TEN, FAR, UP, 0.115, (0, -0.5 / 20, 4 / 20)),
    # s = √(2·½) = 1, and 4, which is free to rise: −(1 − 4)/2
    ("gspo", {}, None, FAR, UP, 1.5, (-1 / 4, -1 / 4, 2)),
    # s = √1.002 > 1.0004: the token that fell is dropped with the other
    ("gspo", {}, None, SLIGHT, UP, -0.0004 / 2, (0, 0, 1 / 2)),
    ("gspo_token", {}, None, SLIGHT, UP, -0.0004 / 2, (0, 0, 1 / 2)),
    # s = 1 and Â = 1, −1: each token has its own; in GSPO they cancel
    ("gspo_token", WIDE, None, FAR, MIXED, 0, (-1 / 4, 1 / 4, 0)),
    ("gspo", WIDE, None, FAR, MIXED, 0, (0, 0, 0)),
    # min(1.25, 1.28) + ½ and max(½, .8): −(1.25 + .5 − .8)/3
    ("dapo", {}, None, LOW, UP, -0.95 / 3, (-1.25 / 3, -0.5 / 3, 0)),
    # weights min(r, 3) = 2, ½, 3 on log π
    ("cispo", {"max_ratio": 3.0}, None, FAR, UP, -WEIGHED / 3, (-2 / 3, -0.5 / 3, 1)),
    # log 2 is held at .4: out of the gradient, in the mean; r = 4 with Â < 0 is free
    ("gmpo", {}, None, FAR, UP, -(HELD - 4) / 2, (0, -HELD / 4, 2)),
    # where Â is 0 neither log ½ nor log 2 is held
    ("gmpo", {}, None, FAR, [[1.0, 0.0], [0.0, 0.0]], -HELD / 4, (0, -HELD / 8, 0)),
    ("gmpo", {}, None, FAR, [[0.0, 1.0], [0.0, 0.0]], -1 / 4, (-1 / 8, -1 / 8, 0)),
    # (4/τ) σ(τ (r − 1)) with τ = 2, 2 and 4; its slope is 4 σ (1 − σ) r
    ("sapo", {"tau_pos": 2.0, "tau_neg": 4.0}, None, FAR, UP, -SOFT / 2, SLOPES),
]


@pytest.mark.parametrize("case", WHOLE, ids=lambda case: case[0])
def test_a_loss_by_hand(case):
    name, settings, weight, ratios, advantages, loss, slope = case
    batch = (ALGORITHMS[name], ratios, advantages, [2, 1], weight)
    value, gradient = at_ratios(*batch, **settings)
    assert value.item() == pytest.approx(loss, abs=1e-12)
    assert_close(gradient, tensor([[*slope[:2]], [slope[2], 0]]) * 1.0, **EXACT)


# Where the probabilities count: μ is ½ and ½, 0.1, π_θ is 0.8 and 0.4, 0.3, Â is 1, −1

PI = [math.log(p) for p in (0.8, 0.4, 0.3)]
Z = [math.log(r) for r in (1.6, 0.8, 3.0)]
LEASH = sum(z**2 for z in Z)
ALL = 1.6 * PI[0] + 0.8 * PI[1] - 3 * PI[2]
UP_BY, DOWN_BY = 1.28**2 * math.exp(3 * (1 - 1.28)), 27 * math.exp(-4)  # W = 1.28, 3
BAND = {"low": 0.1, "high": 0.5, "tau": 1.0}
FREED, LEASHED = (1 - 2 * Z[0], 1 - 2 * Z[1]), (1.6 - 2 * Z[0], -2 * Z[1])
HELD_AT = math.exp(-0.1) - math.exp(0.5)
AFTER_SAPO = [  # method, settings, objective of the sum over tokens, c Â of each token
    # 0.3 up is too much, 0.1 down on the way back is not; 0.2 up where Â < 0 comes back
    ("dppo_tv", {}, 0.8 * PI[1] - 3 * PI[2], (0, 0.8, -3)),
    ("dppo_tv", {"delta_high": 0.31}, ALL, (1.6, 0.8, -3)),
    # ½ log(½/0.8) + ½ log(½/0.2) = 0.2231; what comes back may be anywhere
    ("dppo_kl", {"delta_low": 0.0}, 0.8 * PI[1] - 3 * PI[2], (0, 0.8, -3)),
    ("dppo_kl", {"delta_high": 0.224}, ALL, (1.6, 0.8, -3)),
    # whatever the sign: the third, too, has moved by more than 0.19
    ("ipo", {"delta": 0.25}, 0.8 - 3, (0, 0.8, -3)),
    ("ipo", {"delta": 0.19, "tau": 0.5}, 0.8 - LEASH / 2, (-Z[0], 0.8 - Z[1], -Z[2])),
    # π = 0.8, 0.4, 0.3 all stay within 0.31; of the third's 3 the cap leaves 2
    ("ipo", {"delta": 0.31, "max_ratio": 2.0}, 1.6 + 0.8 - 2, (1.6, 0.8, -2)),
    ("glm5", {"epsilon": 0.5}, 0.8 * PI[1], (0, 0.8, 0)),  # 1.6 and 3 are outside
    ("vespo", {}, UP_BY * (PI[0] + PI[1]) - DOWN_BY * PI[2], (UP_BY, UP_BY, -DOWN_BY)),
    # 2 √1.28 − 3, each token with the whole ratio
    ("luspo", WIDE, 2 * 1.28**0.5 - 3, (1.28**0.5, 1.28**0.5, -3)),
    ("minirl", {"epsilon_low": 0.25}, 1.27 + 0.8 - 3, (0, 0.8, -3)),
    ("dro", {"tau": 2.0}, PI[0] + PI[1] - PI[2] - LEASH, (*FREED, -1 - 2 * Z[2])),
    # log 0.8 is held at −0.1 and log 3 at ½, and both are pulled back
    ("kimi", BAND, 1.6 + HELD_AT - LEASH, (*LEASHED, -2 * Z[2])),
]


@pytest.mark.parametrize(("name", "settings", "objective", "slope"), AFTER_SAPO)
def test_a_loss_after_sapo_by_hand(name, settings, objective, slope):
    """Under token_mean a token weighs ⅓, under seq_mean_token_sum ½."""
    logp = tensor([[PI[0], PI[1]], [PI[2], 0.0]]).requires_grad_()
    old_logp = tensor([[0.5, 0.5], [0.1, 1.0]]).log()
    batch = logp, old_logp, tensor(UP), mask_of([2, 1])
    loss, gradient = loss_and_slope(ALGORITHMS[name], *batch, **settings)
    share = 2 if name in ("luspo", "minirl") else 3
    assert loss.item() == pytest.approx(-objective / share, abs=1e-9)
    expected = -tensor([[slope[0], slope[1]], [slope[2], 0.0]]) / share
    assert_close(gradient, expected, rtol=0, atol=1e-9)


def test_sao_by_hand_and_with_a_stop_gradient():
    """0.7 is outside; at π = 1/e every gradient is 0 without the stop-gradient."""
    logp = torch.full((1, 6), -1.0).requires_grad_()
    old = -1 - tensor([[0.15, 0.5, 0.7, 1.0, 4.0, 6.5]]).log()
    paid, one = tensor([[1.0, 1, -1, 1, 1, 1]]), torch.ones(1, 6)
    _, gradient = loss_and_slope(ALGORITHMS["sao"], logp, old, paid, one)
    assert_close(gradient, -tensor([[0, 0, 0, 1.0, 4, 0]]) / 6, **EXACT)


def test_flash_reinforce_by_hand():
    """μ is ½ throughout, π 0.55 and ½, 0.6, ½; Â = ⅓, ⅓, −⅔.

    D = ½ log(½/π) + ½ log(½/(1 − π)) is 0.00503 and 0, whose mean is within 0.003, and
    0.0204, which is not. So −⅓ [⅓ (1.1 log 0.55 + log ½)/2 − ⅔ log ½].
    """
    method = ALGORITHMS["flash_reinforce"]
    logp = tensor([[0.55, 0.5], [0.6, 1.0], [0.5, 1.0]]).log().requires_grad_()
    old, paid = tensor([[0.5] * 2] * 3).log(), tensor([1.0, 1.0, -2.0]) / 3
    batch = logp, old, paid, mask_of([2, 1, 1])
    loss, gradient = loss_and_slope(method, *batch)
    assert loss.item() == pytest.approx(-0.0789900467, abs=1e-10)
    wanted = tensor([[-1.1 / 18, -1 / 18], [0.0, 0.0], [2 / 9, 0.0]])
    assert_close(gradient, wanted, **EXACT)
    at_the_edge = binary(batch[1], logp.detach())[1, 0].item()  # D = δ is kept
    for delta in (0.021, at_the_edge):
        _, gradient = loss_and_slope(method, *batch, delta=delta)
        assert_close(gradient[1], tensor([-1.2 / 9, 0.0]), **EXACT)


TWO = {"epsilon_low": 0.2, "epsilon_high": 0.3}
SIX = [  # A, r, objective, gradient in log π_θ
    (+1.0, 0.5, 0.5, 0.5),  # a good token fell: let it rise again
    (+1.0, 1.25, 1.25, 1.25),
    (+1.0, 1.5, 1.3, 0.0),  # it rose enough: no reward for more
    (-1.0, 0.5, -0.8, 0.0),  # a bad token fell enough
    (-1.0, 1.25, -1.25, -1.25),
    (-1.0, 1.5, -1.5, -1.5),  # a bad token rose: push it down, with all of r
]
FLOORED = [  # with dual_clip = 3
    (-1.0, 2.9, -2.9, -2.9),  # below c: as before
    (-1.0, 5.0, -3.0, 0.0),  # max(min(−5, −.8), −3)
    (-2.0, 5.0, -6.0, 0.0),
    (+1.0, 5.0, 1.3, 0.0),  # A > 0 is left alone
]
ONE_SIDED = ("ppo", "grpo", "dr_grpo", "dapo", "gspo", "gspo_token")


@pytest.mark.parametrize("name", ONE_SIDED)
def test_the_one_sided_clip_in_each_of_the_six_cases(name):
    """And floored at c·Â with a dual clip, which is off by default."""
    for a, r, *expected in SIX:
        assert one_token(ALGORITHMS[name], a, r, **TWO) == pytest.approx(expected)
    for a, r, *expected in FLOORED:
        found = one_token(ALGORITHMS[name], a, r, **TWO, dual_clip=3.0)
        assert found == pytest.approx(expected)
    assert one_token(ALGORITHMS[name], -1.0, 5.0) == pytest.approx((-5, -5))


def test_a_gate_may_be_anything_on_padding():
    gate = from_gate(lambda r, a: torch.where(a == 0, NAN, 1.0))
    _, slope = at_ratios(gate, FAR, UP, [2, 1])
    assert_close(slope, tensor([[-2 / 4, -0.5 / 4], [4 / 2, 0]]), **EXACT)


@pytest.mark.parametrize(
    ("value", "target", "settings", "expected", "slope"),
    [  # V_old = 1
        (1.1, 2, {}, 0.81 / 2, -0.9),  # within ±0.2: ½ (1.1 − 2)²
        (1.5, 2, {}, 0.64 / 2, 0.0),  # max(.25, (1.2 − 2)²): it moved far enough
        (0.5, 2, {}, 2.25 / 2, -1.5),  # max(2.25, 1.44): the wrong way, come back
        (0.9, 0, {}, 0.81 / 2, 0.9),  # the mirror image
        (0.5, 0, {}, 0.64 / 2, 0.0),
        (1.5, 0, {}, 2.25 / 2, 1.5),
        (1.5, 2, {"epsilon": None}, 0.25 / 2, -0.5),
        (1.5, 2, {"epsilon": 0.4}, 0.36 / 2, 0.0),
    ],
)
def test_value_loss_by_hand(value, target, settings, expected, slope):
    """Beside padding of NaN."""
    values = tensor([[value, NAN]], requires_grad=True)
    old, targets = tensor([[1.0, NAN]]), tensor([[target, NAN]])
    loss = value_loss(values, old, targets, mask_of([1], width=2), **settings)
    assert loss.item() == pytest.approx(expected)
    assert grad(loss, values)[0][0].tolist() == pytest.approx([slope, 0])


def test_value_loss_is_a_token_mean_unless_a_weight_is_given():
    values, zero = tensor([[1.0, 2.0], [3.0, 9.0]]), torch.zeros(2, 2)
    mask = mask_of([2, 1])
    for dtype in (torch.float64, torch.int64, torch.bool):  # ½ (1 + 4 + 9)/3
        found = value_loss(values, zero, zero, mask.to(dtype)).item()
        assert found == pytest.approx(14 / 6)
    # ½ ((1 + 4)/4 + 9/2)
    found = value_loss(values, zero, zero, mask, seq_mean_token_mean(mask)).item()
    assert found == pytest.approx(23 / 8)


# Metrics: A = 1, 1, −1, −1, 1, 0, 0 at ratios 1.5, ½, ½, 1.5, 1, 3, 0.65, and padding

UPPER = replace(
    GRPO, objective=lambda t: Objective(t.z * t.advantages, high=t.z.exp() > 1.2)
)
OUTER = {"mask_epsilon_low": 0.2, "mask_epsilon_high": 0.2}


@pytest.mark.parametrize(
    ("algorithm", "settings", "low", "high"),
    [
        # Only clips that stop a gradient: up at A > 0, down at A < 0
        *((ALGORITHMS[name], {}, 1, 1) for name in ("ppo", "grpo", "dr_grpo", "dapo")),
        (PPO, {"epsilon_high": 0.5}, 1, 0),  # 1.5 itself is not above
        (PPO, {"epsilon_low": 0.5}, 0, 1),
        (GMPO, {}, 1, 1),
        (GMPO, {"epsilon": 0.5}, 1, 0),  # log 1.5 = 0.41, log ½ = −0.69
        # Capped weights of either sign, and masked ones of one
        (CISPO, {"max_ratio": 1.5}, 0, 1),
        (CISPO, {"max_ratio": 1.2, **OUTER}, 1, 1),
        # s = (1.5 · ½ · ½ · 1.5 · 3 · 0.65)^⅐ = 1.013 at all, three of them good
        (GSPO, {"epsilon": 0.01}, 0, 3),
        (ALGORITHMS["gspo_token"], {"epsilon": 0.01}, 0, 3),
        # Dropped tokens that move on, and those of either sign; 1 is π_old
        (ALGORITHMS["dppo_tv"], {}, 1, 1),
        (ALGORITHMS["ipo"], {}, 3, 3),
        (ALGORITHMS["ipo"], {"delta": 0.5}, 0, 1),  # ½ and 1.5 are as far, not further
        (ALGORITHMS["glm5"], {"epsilon": 0.5}, 2, 3),  # ½ and 1.5 are outside
        (ALGORITHMS["sao"], {"epsilon_high": 0.4}, 3, 3),
        (ALGORITHMS["kimi"], {"low": 0.4, "high": 0.5}, 3, 1),
        (ALGORITHMS["kimi"], {"low": math.log(2), "high": math.log(3)}, 0, 0),
        # KL(1‖r) = log 1/r at ½, ½ and 0.65, over seven tokens: 0.2596
        (ALGORITHMS["flash_reinforce"], {"delta": 0.259}, 0, 7),
        (ALGORITHMS["flash_reinforce"], {"delta": 0.26}, 0, 0),
        (UPPER, {}, 0, 3),
        (REINFORCE, {}, None, None),
    ],
    ids=lambda x: getattr(x, "name", None),
)
def test_metrics_by_hand(algorithm, settings, low, high):
    """max |r − 1| is 2; TRL's names."""
    logp = tensor([[1.5, 0.5, 0.5, 1.5, 1.0, 3.0, 0.65, 9.0]]).log()
    a = tensor([[1.0, 1.0, -1.0, -1.0, 1.0, 0.0, 0.0, 1.0]])
    batch = (logp, torch.zeros(1, 8), a, mask_of([7], width=8), torch.ones(1, 8))
    expected = {"ratio/max_deviation": 2}
    if low is not None:
        hits = {"low": low, "high": high, "region": low + high}
        expected |= {f"clip_ratio/{side}_mean": n / 7 for side, n in hits.items()}
    assert algorithm.policy_loss(*batch, **settings).metrics == pytest.approx(expected)
