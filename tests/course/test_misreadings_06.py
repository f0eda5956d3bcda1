"""The misreadings of chapter 06, each against its correction and the package."""

import pytest
import torch
from torch import tensor
from torch.autograd import grad
from torch.testing import assert_close

from course.misreadings import MISREADINGS
from refimpl.algorithms import ALGORITHMS
from refimpl.rewards import overlong_punishment

pytestmark = pytest.mark.usefixtures("float64")
DAPO = ALGORITHMS["dapo"]


def both(name):
    return MISREADINGS[name].wrong, MISREADINGS[name].right


def test_dapo_per_response_mean():
    """Lengths 3 and 1, A = 1 and −1: 1/4 a token, not 1/6 and 1/2. And it clips."""
    wrong, right = both("dapo_per_response_mean")
    mask = tensor([[1.0, 1, 1], [1, 0, 0]])
    a = tensor([1.0, -1.0])
    logp = torch.zeros(2, 3, requires_grad=True)
    slope = grad(right(logp, 0 * mask, a, mask), logp)[0]
    assert_close(slope, tensor([[-0.25] * 3, [0.25, 0, 0]]))
    assert_close(grad(wrong(logp, 0 * mask, a, mask), logp)[0][0, 0], tensor(-1 / 6))
    for r in (0.5, 1.1, 1.27, 1.29, 2.0):
        logp = torch.full((2, 3), r).log().requires_grad_()
        real = DAPO.policy_loss(logp, 0 * mask, a, mask).loss
        assert_close(real, right(logp, 0 * mask, a, mask))
        push = grad(real, logp)[0][0, 0]
        assert (push == 0) == (r > 1.28)
        assert grad(wrong(logp, 0 * mask, a, mask), logp)[0][0, 0] == -1 / 6


def test_overlong_beyond_the_limit():
    """L_max 20480, L_cache 4096: the wrong one is 0 at every length that can occur."""
    wrong, right = both("overlong_beyond_the_limit")
    length = tensor([0.0, 16384, 18432, 20480])
    assert right(length, 20480, 4096).tolist() == [0, 0, -0.5, -1]
    assert not wrong(length, 20480, 4096).any()
    beyond = tensor([30720.0])
    assert right(beyond, 20480, 4096).item() == -1
    assert wrong(beyond, 20480, 4096).item() == -2.5
    every = torch.arange(0.0, 30000, 7)
    real = overlong_punishment(every, 20480, 4096)
    assert_close(real, right(every, 20480, 4096))


def test_dapo_drops_samples():
    """Three groups of 0/1 rewards: one is mixed, and is kept whole."""
    wrong, right = both("dapo_drops_samples")
    correct = tensor([[0.0, 0, 0], [1, 0, 1], [1, 1, 1]])
    assert right(correct).tolist() == [[False] * 3, [True] * 3, [False] * 3]
    assert not wrong(correct).any()


def test_collapse_from_common_tokens():
    """0.01 can be clipped, 0.9 can not; the package's loss says the same."""
    wrong, right = both("collapse_from_common_tokens")
    p = tensor([0.01, 0.5, 0.83, 0.84, 0.9])
    assert right(p, 0.2).tolist() == [1, 1, 1, 0, 0]
    assert wrong(p, 0.2).tolist() == [0, 0, 0, 1, 1]
    one = torch.ones(5, 1)
    certain = torch.full((5, 1), 1 - 1e-9).log()  # as far as a token can rise
    metrics = [
        DAPO.policy_loss(
            certain[i : i + 1],
            p.log()[i : i + 1, None],
            one[i],
            one[i : i + 1],
            epsilon_high=0.2,
        ).metrics["clip_ratio/high_mean"]
        for i in range(5)
    ]
    assert metrics == right(p, 0.2).tolist()
