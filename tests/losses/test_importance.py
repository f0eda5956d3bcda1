"""Log-ratios, token and sequence ratios, and the truncated sampler weight."""

import math

import pytest
import torch
from torch import tensor
from torch.autograd import grad
from torch.testing import assert_close

from refimpl.importance import largest_deviation, log_ratio, ratio, sequence_log_ratio
from tests.losses.batches import INF, NAN, mask_of

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("garbage", [-3.0, NAN, INF, -INF, 1e300])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64, torch.bool])
def test_log_ratio_by_hand(garbage, dtype):
    """−1 − (−1.5) and −2 − (−2); exactly 0 on padding, whatever it holds. π_old is a
    constant."""
    logp = tensor([[-1.0, -2.0, garbage]], requires_grad=True)
    old_logp = tensor([[-1.5, -2.0, garbage]], requires_grad=True)
    z = log_ratio(logp, old_logp, tensor([[1, 1, 0]]).to(dtype))
    z.sum().backward()
    assert z.tolist() == [[0.5, 0.0, 0.0]]
    assert logp.grad.tolist() == [[1.0, 1.0, 0.0]]
    assert old_logp.grad is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_raised_before_subtracting(dtype):
    """−2048 + 0.0625 = −2047.9375, which half precision would round to −2048."""
    logp = tensor([[-2048.0]], dtype=dtype)
    z = log_ratio(logp, tensor([[-0.0625]], dtype=dtype), tensor([[1.0]]))
    assert z.dtype == torch.float32
    assert z.item() == -2047.9375


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("extreme", [20.1, 50.0, 200.0, -20.1, -50.0, -200.0])
def test_extreme_ratios_are_held_at_the_limit_without_a_gradient(extreme, dtype):
    z = tensor([[extreme]], dtype=dtype, requires_grad=True)
    r = ratio(log_ratio(z, torch.zeros_like(z), torch.ones_like(z)))
    held = math.exp(math.copysign(20, extreme))  # 4.9e8 or 2.1e-9
    assert_close(r.double().item(), held, rtol=1e-6, atol=0)
    assert grad(r.sum(), z)[0].item() == 0


def test_the_largest_deviation_of_a_ratio():
    """max |r − 1|, held at the limit; 0 if there are no tokens."""
    assert largest_deviation(tensor([[0.3, 1.2]]).log()).item() == pytest.approx(0.7)
    assert largest_deviation(tensor([[99.0]])).item() == pytest.approx(math.exp(20) - 1)
    assert largest_deviation(torch.zeros(0, 3)).item() == 0
    tiny = tensor([[1e-12]], requires_grad=True)  # exp(z) − 1 would lose its digits
    assert largest_deviation(tiny).item() == pytest.approx(1e-12, rel=1e-9)
    assert not largest_deviation(tiny).requires_grad


def test_sequence_ratio_is_the_geometric_mean():
    """(2 · ½ · 8)^(1/3) = 2, of no token 1; 1.1 at every token gives 1.1, at 1 token as
    at 50."""
    z = tensor([[2.0, 0.5, 8.0, 1.0], [1.0, 1.0, 1.0, 1.0]]).log()
    s = ratio(sequence_log_ratio(z, mask_of([3, 0], width=4)))
    assert_close(s, tensor([2.0, 1.0]))
    mask = mask_of([1, 50])
    s = ratio(sequence_log_ratio(math.log(1.1) * mask, mask))
    assert_close(s, tensor([1.1, 1.1]))
    half = torch.ones(1, 1003, dtype=torch.bfloat16)  # which counts 1000 of them
    assert_close(sequence_log_ratio(0.01 * half.double(), half), tensor([0.01]))
