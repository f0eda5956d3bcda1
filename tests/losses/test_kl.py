"""Every KL estimator as a value and as a loss, by enumeration; KL in the reward."""

import math

import pytest
import torch
from torch import tensor
from torch.autograd import grad
from torch.testing import assert_close

from refimpl.advantages import token_rewards
from refimpl.kl import ESTIMATORS, binary, divergence, k3
from tests.losses.batches import EXACT, NAN

pytestmark = pytest.mark.usefixtures("float64")
# d = log π_θ − log π_ref, r = π_θ/π_old: value and gradient of every estimator
BY_HAND = {
    "k1": (lambda d, r: d, lambda d, r: 1),
    "k2": (lambda d, r: d**2 / 2, lambda d, r: d),
    "k3": (lambda d, r: math.exp(-d) - 1 + d, lambda d, r: 1 - math.exp(-d)),
    "k3+": (lambda d, r: math.exp(-d) - 1 + d, lambda d, r: d),
    "unbiased_k3": (
        lambda d, r: r * (math.exp(-d) - 1 + d),
        lambda d, r: r * (math.exp(-d) - 1 + d) + r * (1 - math.exp(-d)),
    ),
}


FAR = [sign * d for d in (1e-4, 20.0, 60.0, 200.0) for sign in (1, -1)]


@pytest.mark.parametrize("d", [math.log(2), -math.log(2), 0.0, -3.0, *FAR])
@pytest.mark.parametrize("name", BY_HAND)
def test_an_estimator_by_hand(name, d):
    """π_old is a constant, and π_θ/π_old = 4. Every k3 is ≥ 0, but for rounding."""
    logp, old = tensor(-1.0, requires_grad=True), tensor(-1.0 - math.log(4))
    old.requires_grad_()
    estimate = ESTIMATORS[name](logp, tensor(-1.0 - d), old)
    slopes = grad(estimate, (logp, old), allow_unused=True)
    value, slope = (of(d, 4) for of in BY_HAND[name])
    assert estimate.item() == pytest.approx(value, rel=1e-8, abs=1e-13)
    assert slopes[0].item() == pytest.approx(slope, rel=1e-8, abs=1e-13)
    assert slopes[1] is None
    assert "k3" not in name or estimate >= -1e-15


@pytest.mark.parametrize("d", [1e-3, -1e-3, 1e-4, -1e-4, 1e-5])
def test_k3_keeps_its_digits_in_float32(d):
    """Close to π_ref, k3 ≈ d²/2; e^−d − 1 + d in this order would lose it all."""
    value = k3(tensor(d, dtype=torch.float32), tensor(0.0, dtype=torch.float32))
    assert value.item() == pytest.approx(d**2 / 2, rel=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_binary_kl_keeps_its_digits_near_certainty(dtype):
    """½ and ¼: ½ log 2 + ½ log ⅔. μ = e^−0.002 against a π that is nearly certain:
    0.998 · (−0.002 + 1e-7) + 0.001998 · log(0.001998 / 1e-7)."""
    for p, q, value in (
        (math.log(0.5), math.log(0.25), 0.5 * math.log(2) + 0.5 * math.log(2 / 3)),
        (-0.002, -1e-7, 0.0177890),
        (-1e-7, -0.002, 0.0019989),
        (0.0, 0.0, 0.0),
    ):
        found = binary(tensor(p, dtype=dtype), tensor(q, dtype=dtype)).item()
        assert found == pytest.approx(value, rel=1e-4, abs=1e-12)


log = math.log
OWN, TAUGHT = [1 / 2, 1 / 4, 1 / 4], [1 / 8, 1 / 8, 3 / 4]  # their mean: 5, 3, 8 / 16
MIXED = (log(8 / 5) / 2 + log(4 / 3) / 4, log(2 / 5) / 8 + log(2 / 3) / 8)
LAST = log(1 / 2) / 4 + log(3 / 2) * 3 / 4  # of the last token, in both
IN_FULL = {
    ("reverse", None, True): log(4) / 2 + log(2) / 4 - log(3) / 4,
    ("reverse", 1, True): log(4) / 2 + log(4 / 7) / 2,  # all others: ½ and ⅞
    ("reverse", 1, False): log(4) / 2,
    ("forward", None, True): log(1 / 4) / 8 + log(1 / 2) / 8 + log(3) * 3 / 4,
    ("forward", 1, True): log(3) * 3 / 4 - log(3) / 4,  # all others: ¼ and ¾
    ("forward", 1, False): log(3) * 3 / 4,
    ("js", None, True): (sum(MIXED) + LAST) / 2,
    ("js", 1, True): LAST,  # all others: ¾ and ¼, their mean ½
    ("js", 1, False): LAST / 2,
}


@pytest.mark.parametrize(("kind", "top_k", "tail"), IN_FULL)
def test_a_divergence_in_full_by_hand(kind, top_k, tail):
    """Also next to another token's distribution; a list of all tokens cuts nothing."""
    pair = tensor([OWN, [0.2, 0.2, 0.6]]).log(), tensor([TAUGHT, [0.3, 0.6, 0.1]]).log()
    found = divergence(*pair, kind, top_k, tail)[0].item()
    assert found == pytest.approx(IN_FULL[kind, top_k, tail], abs=1e-14)
    whole, three = (divergence(*pair, kind, k, tail) for k in (None, 3))
    assert_close(three, whole, rtol=0, atol=0)


def test_gradients_of_divergences_in_the_logits():
    """π (log π/π_T − KL), π − π_T and ½ π (log π/m − KL(π ‖ m)); none for π_T."""
    logits = tensor(OWN).log().requires_grad_()
    own, other = tensor(OWN), tensor(TAUGHT)
    mean = (own + other) / 2

    def centred(q):
        return own * ((own / q).log() - (own * (own / q).log()).sum())

    expected = {"reverse": centred(other), "forward": own - other}
    for kind, slope in (expected | {"js": centred(mean) / 2}).items():
        loss = divergence(logits.log_softmax(-1), other.log(), kind)
        assert_close(grad(loss, logits)[0], slope)


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("d", [50.0, -50.0, 200.0, -200.0])
def test_no_estimator_overflows(name, d, dtype):
    """Finite at any distance from π_ref and π_old; k3 is held where e^−d is not."""
    logp = tensor([d], dtype=dtype, requires_grad=True)
    for old in (-d, 0.0, d):
        zero, old_logp = torch.zeros(1, dtype=dtype), tensor([old], dtype=dtype)
        value = ESTIMATORS[name](logp, zero, old_logp)
        (slope,) = grad(value.sum(), logp)
        assert value.isfinite().all() and slope.isfinite().all()
        assert name != "unbiased_k3" or value.dtype == torch.float32  # as its ratio
    if name == "k3" and d > 0:
        assert (value.item(), slope.item()) == (pytest.approx(d - 1, rel=0.01), 1)
    if name == "k3" and d == -200:
        assert math.log(value.item()) == pytest.approx(66.5, abs=0.5)
        assert slope.item() == 0


@pytest.mark.parametrize("name", ["k3", "k3+", "unbiased_k3"])
def test_a_token_that_the_reference_never_gives_costs_what_the_limit_says(name):
    """log π_ref = −∞: e^−20 − 1 + 20, not ∞ − ∞, and no gradient. NaN stays NaN."""
    logp = tensor([-1.0, -1.0], requires_grad=True)
    value = ESTIMATORS[name](logp, tensor([-math.inf, math.nan]), logp.detach())
    (slope,) = grad(value[0], logp)
    assert value[0].item() == pytest.approx(19, abs=1e-6) and value[1].isnan()
    assert slope[0].item() == (0 if name != "unbiased_k3" else value[0].item())


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bool])
def test_token_rewards_by_hand(dtype):
    """β = 0.1; NaN on padding, and holes that are stepped over: a score is paid at
    the last response token, also where the response ends in a hole; an empty row gets
    nothing."""
    logp = tensor([[-1, -2, NAN, -0.5], [-3, NAN, 0, 7], [-1, 9, -1, 9], [NAN] * 4])
    ref_logp = tensor([[-1.5, -1.8, 7, -1.5], [-4, 0, 0, 0], [-1, 9, 0.5, 9], [0] * 4])
    mask = tensor([[1, 1, 0, 1], [1, 0, 0, 0], [1, 0, 1, 0], [0] * 4]).to(dtype)
    scores = tensor([1.0, -1.0, 2.0, 5.0], requires_grad=True)
    rewards = token_rewards(scores, mask, 0.1 * (logp.requires_grad_() - ref_logp))
    expected = [
        [-0.05, 0.02, 0, -0.1 + 1],  # −β · 0.5, −β · (−0.2), −β · 1.0 + score
        [-0.1 - 1, 0, 0, 0],
        [0, 0, 0.15 + 2, 0],
        [0, 0, 0, 0],
    ]
    assert_close(rewards, tensor(expected), **EXACT)
    assert not rewards.requires_grad
