"""Misreadings of chapter 05, each parted from its correction and from the package."""

import pytest
import torch
from torch import tensor
from torch.autograd import grad
from torch.testing import assert_close

from course.misreadings import MISREADINGS
from refimpl.algorithms import ALGORITHMS

pytestmark = pytest.mark.usefixtures("float64")
GSPO, GSPO_TOKEN = ALGORITHMS["gspo"], ALGORITHMS["gspo_token"]


def both(name):
    return MISREADINGS[name].wrong, MISREADINGS[name].right


def ragged(scale):
    """Four responses of 1 to 6 tokens whose log-ratios are of size `scale`."""
    generator = torch.Generator().manual_seed(5)
    z = torch.randn(4, 6, generator=generator) * scale
    mask = (torch.arange(6) < tensor([[6], [1], [4], [3]])).double()
    old_logp = -torch.rand(4, 6, generator=generator) - 0.1
    logp = (old_logp + z * mask).requires_grad_()
    return logp, old_logp, tensor([1.0, -1.0, 0.7, -0.4]), mask


def slope(loss, batch):
    return grad(loss(*batch), batch[0])[0]


def test_gspo_without_root():
    """Ten tokens, each up by 1e-4: s = 1 + 1e-4 is inside, the product is outside."""
    wrong, right = both("gspo_without_root")
    logp = torch.full((1, 10), 1e-4, requires_grad=True)
    batch = (logp, torch.zeros(1, 10), tensor([1.0]), torch.ones(1, 10))
    real = GSPO.policy_loss(*batch)
    assert_close(right(*batch), real.loss)
    assert_close(slope(right, batch), grad(real.loss, logp)[0])
    assert_close(slope(right, batch), torch.full((1, 10), -0.1 * (1 + 1e-4)))
    assert slope(wrong, batch).abs().sum() == 0
    assert real.metrics["clip_ratio/region_mean"] == 0


@pytest.mark.parametrize("scale", [1e-5, 3e-4, 0.1])
def test_gspo_without_root_is_gspo_for_one_token_only(scale):
    wrong, right = both("gspo_without_root")
    batch = ragged(scale)
    real = grad(GSPO.policy_loss(*batch).loss, batch[0])[0]
    assert_close(slope(right, batch), real)
    assert_close(slope(wrong, batch)[1], real[1])  # the response of one token
    assert (slope(wrong, batch) - real).abs().max() > 0.01


def test_gspo_token_of_whole_ratio():
    """Credit on the last token only: the wrong form spreads it over all six."""
    wrong, right = both("gspo_token_of_whole_ratio")
    logp = torch.full((1, 6), -1.0, requires_grad=True)
    credit = tensor([[0.0, 0, 0, 0, 0, 6.0]])
    batch = (logp, logp.detach(), credit, torch.ones(1, 6))
    assert_close(slope(right, batch), tensor([[0.0, 0, 0, 0, 0, -1.0]]))
    assert_close(slope(wrong, batch), torch.full((1, 6), -1 / 6))
    real = grad(GSPO_TOKEN.policy_loss(*batch).loss, logp)[0]
    assert_close(slope(right, batch), real)
    plain = grad(GSPO.policy_loss(*batch).loss, logp)[0]
    assert_close(slope(wrong, batch), plain)  # the wrong form is GSPO


def test_gspo_token_of_whole_ratio_hides_while_advantages_are_equal():
    """Why comparing the two with GRPO's advantages cannot find it."""
    wrong, right = both("gspo_token_of_whole_ratio")
    logp, old_logp, advantages, mask = ragged(1e-4)
    batch = (logp, old_logp, advantages[:, None] * mask, mask)
    assert_close(wrong(*batch), right(*batch))
    assert_close(slope(wrong, batch), slope(right, batch))
    steps = torch.arange(6.0)
    batch = (logp, old_logp, advantages[:, None] * mask * steps, mask)
    assert_close(wrong(*batch), right(*batch))  # the value hides it for ever
    assert (slope(wrong, batch) - slope(right, batch)).abs().max() > 0.1
    real = grad(GSPO_TOKEN.policy_loss(*batch).loss, logp)[0]
    assert_close(slope(right, batch), real)


def test_gspo_at_token_epsilon():
    """s = 1.001 with A = 1: clipped by the paper's bounds, free at 0.2; a warning."""
    wrong, right = both("gspo_at_token_epsilon")
    logp = torch.full((2, 5), 1e-3, requires_grad=True)
    batch = (logp, torch.zeros(2, 5), tensor([1.0, -1.0]), torch.ones(2, 5))
    free = torch.exp(tensor(1e-3)) / 10
    assert_close(slope(right, batch)[:, 0], torch.stack([0 * free, free]))
    assert_close(slope(wrong, batch)[:, 0], torch.stack([-free, free]))
    assert_close(slope(right, batch), grad(GSPO.policy_loss(*batch).loss, logp)[0])
    with pytest.warns(UserWarning, match="3e-4 and 4e-4"):
        real = GSPO.policy_loss(*batch, epsilon_low=0.2, epsilon_high=0.2)
    assert_close(slope(wrong, batch), grad(real.loss, logp)[0])
