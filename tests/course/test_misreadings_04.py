"""Misreadings of chapter 04 part from their corrections, as the package does."""

import pytest
import torch
from torch import tensor
from torch.autograd import grad
from torch.testing import assert_close

from course.misreadings import MISREADINGS
from refimpl.advantages import group_centred, group_relative
from refimpl.algorithms import ALGORITHMS
from refimpl.normalisers import constant, seq_mean_token_mean

pytestmark = pytest.mark.usefixtures("float64")
DR_GRPO = ALGORITHMS["dr_grpo"]
LIMIT = 10


def both(name):
    return MISREADINGS[name].wrong, MISREADINGS[name].right


def batch_of(lengths, seed=0):
    """Log-probs (with gradient), old ones a little off, and the mask."""
    mask = (torch.arange(max(lengths)) < tensor(lengths)[:, None]).double()
    generator = torch.Generator().manual_seed(seed)
    old_logp = -torch.rand(mask.shape, generator=generator) - 0.5
    drift = 0.4 * torch.rand(mask.shape, generator=generator) - 0.2
    return (old_logp + drift).requires_grad_(), old_logp, mask


def test_constant_is_longest():
    """The token of the first response: 1/(2·4) beside a 4, 1/(2·8) beside an 8."""
    wrong, right = both("constant_is_longest")
    slopes = {}
    for beside in (4, 8):
        logp, old_logp, mask = batch_of([2, beside])
        batch = (logp, logp.detach(), tensor([1.0, -1.0]), mask)  # r = 1
        for loss in (wrong, right):
            slopes[loss, beside] = -grad(loss(*batch, LIMIT), logp)[0][0, 0].item()
        drifted = (logp, old_logp, tensor([1.0, -1.0]), mask)
        weight = constant(mask, LIMIT)
        real = DR_GRPO.policy_loss(*drifted, weight).loss
        assert_close(real, right(*drifted, LIMIT))
        assert_close(grad(real, logp)[0], grad(right(*drifted, LIMIT), logp)[0])
        assert (real - wrong(*drifted, LIMIT)).abs() > 1e-3
    assert slopes[wrong, 4] == pytest.approx(1 / 8)
    assert slopes[wrong, 8] == pytest.approx(1 / 16)
    assert slopes[right, 4] == slopes[right, 8] == pytest.approx(1 / 20)


def test_constant_is_longest_agrees_where_one_response_is_full():
    """Why a batch with a truncated response does not show it."""
    wrong, right = both("constant_is_longest")
    logp, old_logp, mask = batch_of([3, LIMIT])
    batch = (logp, old_logp, tensor([1.0, -1.0]), mask, LIMIT)
    assert_close(wrong(*batch), right(*batch))


def test_long_weighs_less():
    """Lengths 2, 4, 10: shares 1/8, 1/4, 5/8, not falling ones."""
    wrong, right = both("long_weighs_less")
    lengths = [2, 4, 10]
    assert right(lengths) == pytest.approx([0.125, 0.25, 0.625])
    assert wrong(lengths) == sorted(wrong(lengths), reverse=True)
    mask = (torch.arange(10) < tensor(lengths)[:, None]).double()
    for weight, expected in [
        (constant(mask, LIMIT), right(lengths)),
        (seq_mean_token_mean(mask), [1 / 3] * 3),
    ]:
        assert_close(weight.sum(-1) / weight.sum(), tensor(expected))


def test_constant_but_std():
    """A right answer, one of four or two of four: Ã is 3/4, 1/2; Â is 3/2, √3/2."""
    wrong, right = both("constant_but_std")
    pushes = {}
    for rewards in ([1.0, 0, 0, 0], [1.0, 1.0, 0, 0]):
        logp, old_logp, mask = batch_of([3, 5, 2, 4])
        batch, one = (old_logp, tensor(rewards), mask), torch.zeros(4).long()
        for loss, advantages in ((wrong, group_relative), (right, group_centred)):
            of_loss = grad(loss(logp, *batch, LIMIT), logp)[0]
            values, weight = advantages(batch[1], one), constant(mask, LIMIT)
            real = DR_GRPO.policy_loss(logp, old_logp, values, mask, weight)
            assert_close(of_loss, grad(real.loss, logp)[0])
            first = loss(logp, logp.detach(), tensor(rewards), mask, LIMIT)
            pushes[loss, sum(rewards)] = -grad(first, logp)[0][0, 0].item()
    unit = 1 / (4 * LIMIT)
    assert pushes[right, 1] == pytest.approx(0.75 * unit)
    assert pushes[right, 2] == pytest.approx(0.5 * unit)
    assert pushes[wrong, 1] == pytest.approx(1.5 * unit, rel=1e-4)
    assert pushes[wrong, 2] == pytest.approx(0.75**0.5 * unit, rel=1e-4)
    assert DR_GRPO.advantages is group_centred
