"""Each misreading parts from its correction, and the package sides with the latter."""

import math
from pathlib import Path

import pytest
import torch
from torch import tensor
from torch.autograd import grad
from torch.testing import assert_close

from course.misreadings import MISREADINGS
from refimpl import kl, normalisers
from refimpl.advantages import group_centred, group_relative
from refimpl.algorithms import ALGORITHMS
from refimpl.models import build
from refimpl.rollout import sample
from refimpl.tasks import make_tokenizer

pytestmark = pytest.mark.usefixtures("float64")
PPO, GRPO = ALGORITHMS["ppo"], ALGORITHMS["grpo"]
TESTS = "".join(
    path.read_text(encoding="utf-8")
    for path in sorted(Path(__file__).parent.glob("test_misreadings*.py"))
)


def both(name):
    return MISREADINGS[name].wrong, MISREADINGS[name].right


def slopes_in_r(objective, r, advantage):
    r = tensor(r, requires_grad=True)
    return grad(objective(r, tensor(advantage)).sum(), r)[0].tolist()


def ppo_objective(r, advantage):
    """The package's, token by token, as a function of the ratio."""
    one = torch.ones(len(r), 1)
    logp = r.log()[:, None]
    return -PPO.policy_loss(logp, 0 * one, advantage, one, weight=one).loss


def policies():
    logits = tensor([0.5, -1.0, 0.2, 1.3], requires_grad=True)
    return logits, tensor([0.0, 0.4, -0.9, 0.8]).log_softmax(-1)


def test_every_entry_is_named_and_tested():
    for name, entry in MISREADINGS.items():
        assert entry.name == name
        assert entry.claim != entry.correction
        assert f"def test_{name}" in TESTS, name


def test_clip_on_wrong_sides():
    """A = −1: the wrong one stops correcting at r = 1.5 and pushes on at r = 0.5."""
    wrong, right = both("clip_on_wrong_sides")
    r, a = [0.5, 1.5, 0.5, 1.5], [1.0, 1.0, -1.0, -1.0]
    assert slopes_in_r(right, r, a) == [1, 0, 0, -1]
    assert slopes_in_r(wrong, r, a) == [1, 0, -1, 0]
    assert_close(tensor(slopes_in_r(ppo_objective, r, a)), tensor([1.0, 0, 0, -1]))


def test_clip_without_min():
    """The corrections, A > 0 at r = 0.5 and A < 0 at r = 1.5, lose their gradient."""
    wrong, right = both("clip_without_min")
    r, a = [0.5, 1.1, 1.5, 0.5, 1.1, 1.5], [1.0, 1.0, 1.0, -1.0, -1.0, -1.0]
    assert slopes_in_r(right, r, a) == [1, 1, 0, 0, -1, -1]
    assert slopes_in_r(wrong, r, a) == [0, 1, 0, 0, -1, 0]
    real = tensor(slopes_in_r(ppo_objective, r, a))
    assert_close(real, tensor([1.0, 1, 0, 0, -1, -1]))


def ppo_updates(advantages, steps, learning_rate, momentum):
    """The ratios after each update of the package's PPO, and the gradients before."""
    logits = torch.zeros_like(advantages, requires_grad=True)
    old_logp = logits.detach().log_softmax(-1)[:, None]
    mask = torch.ones_like(old_logp)
    optimizer = torch.optim.SGD([logits], lr=learning_rate, momentum=momentum)
    ratios, slopes = [], []
    for _ in range(steps):
        optimizer.zero_grad()
        logp = logits.log_softmax(-1)[:, None]
        logp.retain_grad()
        PPO.policy_loss(logp, old_logp, advantages, mask).loss.backward()
        slopes.append(logp.grad[:, 0])
        optimizer.step()
        ratios.append((logits.detach().log_softmax(-1)[:, None] - old_logp).exp()[:, 0])
    return torch.stack(ratios), torch.stack(slopes)


def test_ratio_is_bounded():
    """Three tokens, A = 1, −½, −½. The first stops at r = 1.2; the others push on.

    They stop at r = 0.8 each, which leaves the first 3 − 2 · 0.8 = 1.4. Momentum
    carries all three further still.
    """
    wrong, right = both("ratio_is_bounded")
    advantages = tensor([1.0, -0.5, -0.5])
    assert wrong(advantages).max() <= 1.2
    settings = {"steps": 400, "learning_rate": 0.02, "momentum": 0.0}
    ratios, slopes = ppo_updates(advantages, **settings)
    assert_close(ratios[-1], right(advantages, **settings), rtol=0, atol=1e-12)
    assert_close(ratios[-1], tensor([1.4, 0.8, 0.8]), rtol=0, atol=0.01)
    silent = slopes[:, 0] == 0  # no gradient of its own …
    left = int(silent.nonzero()[0])
    assert silent[left:].all()
    assert ratios[left - 1, 0] < 1.21
    assert ratios[-1, 0] - ratios[left - 1, 0] > 0.19  # … for all of this way
    assert right(advantages, momentum=0.9)[0] > right(advantages)[0] + 0.02


def test_recomputed_old_logp():
    """Ratios 1.5 and 0.5 with A = 1 and −1: both clipped. Recomputed, none ever is."""
    wrong, right = both("recomputed_old_logp")
    old_logp, mask = torch.zeros(2, 1), torch.ones(2, 1)
    logp = tensor([[1.5], [0.5]]).log().requires_grad_()
    batch = (logp, old_logp, tensor([1.0, -1.0]), mask)
    real = GRPO.policy_loss(*batch)
    for loss, expected in [(right(*batch), [0.0, 0.0]), (wrong(*batch), [-0.5, 0.5])]:
        assert grad(loss, logp)[0].flatten().tolist() == expected
    assert_close(real.loss, right(*batch))
    assert grad(real.loss, logp)[0].flatten().tolist() == [0.0, 0.0]
    # the trace it leaves in the logs: no clipping, no deviation, at any staleness
    inert = GRPO.policy_loss(logp, logp.detach(), *batch[2:])
    assert_close(inert.loss, wrong(*batch))
    assert set(inert.metrics.values()) == {0.0}
    assert real.metrics["clip_ratio/region_mean"] == 1


def test_summed_log_ratio():
    """Ten tokens at 1.05: 1.05¹⁰ = 1.63 is clipped; none of the ten is."""
    wrong, right = both("summed_log_ratio")
    logp = torch.full((1, 10), math.log(1.05), requires_grad=True)
    batch = (logp, torch.zeros(1, 10), tensor([1.0]), torch.ones(1, 10))
    assert right(*batch).item() == pytest.approx(-1.05)
    assert wrong(*batch).item() == pytest.approx(-1.2)
    assert grad(wrong(*batch), logp)[0].abs().sum() == 0
    real = GRPO.policy_loss(*batch)
    assert_close(real.loss, right(*batch))
    assert_close(grad(real.loss, logp)[0], torch.full((1, 10), -0.105))


def test_summed_log_ratio_agrees_for_one_token():
    """Why a test on one token can not find it."""
    wrong, right = both("summed_log_ratio")
    batch = (tensor([[0.1]]), torch.zeros(1, 1), tensor([1.0]), torch.ones(1, 1))
    assert wrong(*batch) == right(*batch)


def test_swapped_kl():
    """Under π_θ: k3's mean is the KL, the swapped one's is χ² − KL."""
    wrong, right = both("swapped_kl")
    logits, ref_logp = policies()
    logp = logits.detach().log_softmax(-1)
    p, q = logp.exp(), ref_logp.exp()
    exact, chi2 = p @ (logp - ref_logp), (p**2 / q).sum() - 1
    assert_close(p @ right(logp, ref_logp), exact)
    assert_close(p @ wrong(logp, ref_logp), chi2 - exact)
    assert abs(chi2 - 2 * exact) > 0.01
    assert_close(kl.k3(logp, ref_logp), right(logp, ref_logp))
    assert (kl.k3(logp, ref_logp) - wrong(logp, ref_logp)).abs().max() > 0.1


def test_mean_of_means():
    """Tokens 1, 1, 1 | 5: the mean is 2, the mean of means (1 + 5)/2 = 3."""
    wrong, right = both("mean_of_means")
    per_token = tensor([[1.0, 1.0, 1.0], [5.0, 0.0, 0.0]])
    mask = tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    assert right(per_token, mask, 1) == 2
    assert wrong(per_token, mask, 1) == 3
    weight = normalisers.token_mean(mask)  # of the whole batch, then sliced
    parts = zip(per_token.split(1), weight.split(1), strict=True)
    assert sum((x * w).sum() for x, w in parts) == 2


def test_grpo_as_kl():
    """Its gradient is the same for rewards 1, 0 and 0, 1: every token goes up."""
    wrong, right = both("grpo_as_kl")
    logp = tensor([[-1.0, -2.0], [-1.5, -0.5]], requires_grad=True)
    old_logp, mask = logp.detach() - 0.1, torch.ones(2, 2)

    def slope(loss, rewards):
        return grad(loss(logp, old_logp, tensor(rewards), mask), logp)[0]

    for rewards in ([1.0, 0.0], [0.0, 1.0], [5.0, -5.0]):
        assert_close(slope(wrong, rewards), torch.full((2, 2), -0.25))
    assert (slope(right, [1.0, 0.0]).sign() == tensor([[-1.0], [1.0]])).all()
    assert_close(slope(right, [0.0, 1.0]), -slope(right, [1.0, 0.0]))

    def real(logp, old_logp, rewards, mask):
        a = group_relative(rewards, torch.zeros(2, dtype=torch.long))
        return GRPO.policy_loss(logp, old_logp, a, mask).loss

    rewards = [1.0, 0.0]
    assert_close(slope(real, rewards), slope(right, rewards))
    assert (slope(real, rewards) - slope(wrong, rewards)).abs().max() > 0.1


def test_std_upweights_extremes():
    """G = 8: Σ|Â| is 0, 4.95, …, 7.48, …, 4.95, 0; only the *boost* is U-shaped."""
    wrong, right = both("std_upweights_extremes")
    size, group = 8, torch.zeros(8, dtype=torch.long)
    weights, boosts = [], []
    for k in range(size + 1):
        rewards = (torch.arange(size) < k).double()
        weights.append(group_relative(rewards, group, eps=1e-12).abs().sum().item())
        plain = group_centred(rewards, group).abs().sum().item()
        boosts.append(weights[-1] / plain if plain else None)
    assert weights == pytest.approx([right(k, size) for k in range(9)], abs=1e-9)
    assert weights[0] == weights[8] == 0
    assert weights[0] < weights[1] < weights[2] < weights[3] < weights[4]
    assert [wrong(k, size) for k in (0, 8)] == [math.inf, math.inf]
    assert wrong(1, size) > wrong(4, size)  # the order it predicts: the reverse
    # against no std, a mixed group gains by 1/√(p(1−p)), up to one constant
    for k in range(1, 8):
        relative = boosts[k] / boosts[4]
        assert relative == pytest.approx(wrong(k, size) / wrong(4, size))


def test_k1_as_a_loss():
    """Expected gradient 0, where k2 pulls along ∇KL(π_θ‖π_ref)."""
    wrong, right = both("k1_as_a_loss")
    logits, ref_logp = policies()
    logp = logits.log_softmax(-1)
    exact = (logp.exp() * (logp - ref_logp)).sum()
    pull = grad(exact, logits, retain_graph=True)[0]
    assert pull.abs().max() > 0.1
    for loss, estimate, expected in [
        (wrong, kl.k1, torch.zeros(4)),
        (right, kl.k2, pull),
    ]:
        slope = grad(loss(logp, ref_logp), logits, retain_graph=True)[0]
        assert_close(slope, expected, rtol=0, atol=1e-14)
        real = logp.exp().detach() @ estimate(logp, ref_logp)
        slope = grad(real, logits, retain_graph=True)[0]
        assert_close(slope, expected, rtol=0, atol=1e-14)


def test_mask_without_eos():
    """Tokens 5, 6, EOS, padding, and one response that was cut off."""
    wrong, right = both("mask_without_eos")
    tokens = tensor([[5, 6, 0, 0], [5, 6, 5, 6]])
    assert right(tokens, 0).tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert wrong(tokens, 0).tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    logp = torch.full((2, 4), -1.0, requires_grad=True)
    for mask, learned in [(wrong, False), (right, True)]:
        a = tensor([1.0, -1.0])
        loss = PPO.policy_loss(logp, logp.detach(), a, mask(tokens, 0)).loss
        assert bool(grad(loss, logp)[0][0, 2]) == learned  # the gradient on EOS


def test_mask_without_eos_is_not_what_a_rollout_has():
    """32 responses of an untrained model; some end, some are cut off at 24 tokens."""
    wrong, right = both("mask_without_eos")
    torch.set_default_dtype(torch.float32)
    tokenizer = make_tokenizer()
    rollout = sample(
        build("tiny", tokenizer), tokenizer, ["1+2="] * 32, max_new_tokens=24
    )
    torch.set_default_dtype(torch.float64)
    ended, eos = ~rollout.truncated, tokenizer.eos_token_id
    assert 0 < ended.sum() < len(rollout)
    tokens = torch.where(rollout.mask.bool(), rollout.tokens, eos)
    assert torch.equal(right(tokens, eos), rollout.mask)
    missing = rollout.length - wrong(tokens, eos).sum(-1)
    assert torch.equal(missing, ended.float())
