"""The weight and the advantages that chapter 14 adds."""

import torch
from torch.testing import assert_close

from course import newer
from refimpl import Scored


def test_icepops_weight_is_the_ratio_inside_its_band_and_0_outside():
    old = torch.tensor([[0.0, -1.0, -1.0, 0.0]])
    rollout = torch.tensor([[-0.6, -0.2, -1.0, -3.0]])
    weight = newer.icepop(old, rollout)
    assert_close(weight, torch.tensor([[torch.e**0.6, 0.0, 1.0, 0.0]]))


def test_maxrl_divides_by_the_groups_mean_and_leaves_out_what_was_never_paid():
    rewards = torch.tensor([1.0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0])
    advantages = newer.maxrl(Scored(rewards, torch.arange(12) // 4))
    assert_close(advantages, torch.tensor([3.0, -1, -1, -1, 1, 1, -1, -1, 0, 0, 0, 0]))
