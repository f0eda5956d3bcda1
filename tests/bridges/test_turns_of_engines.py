"""Tokens that a tool wrote, in verl's own functions: does it skip them?"""

import pytest
import torch
from torch.testing import assert_close

from refimpl.advantages import Scored, gae, token_rewards

WHERE = "TRL, verl, Liger: tests/bridges/requirements.txt"
MASK = torch.tensor([[1.0, 1, 0, 0, 0, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0, 0]])
V = torch.tensor([[0.2, 0.4, 9, 9, 9, 0.5, 0.7, 0.9], [0.0] * 8])
PAID = torch.tensor([1.0, 0.0])
REWARDS = token_rewards(PAID, MASK)


def ours(lam, rewards=REWARDS, values=V, mask=MASK):
    group = torch.arange(len(mask))
    return gae(Scored(rewards, group, mask, values, gamma=1.0, lam=lam))


@pytest.mark.parametrize("lam", [1.0, 0.95, 0.5])
def test_verl_skips_them_in_gae(lam):
    """verl whitens Â, so its returns are compared; in holes it says anything."""
    algos = pytest.importorskip("verl.trainer.ppo.core_algos", reason=WHERE)
    _, returns = algos.compute_gae_advantage_return(REWARDS, V, MASK, 1.0, lam)
    assert_close((returns - V) * MASK, ours(lam), rtol=0, atol=1e-6)


def test_verl_loses_a_reward_on_an_observation_as_we_do():
    """Example B: nobody looks there, so a paid answer is blamed."""
    algos = pytest.importorskip("verl.trainer.ppo.core_algos", reason=WHERE)
    mask, half = torch.tensor([[1.0, 1, 1, 0, 0]]), torch.full((1, 5), 0.5)
    for place, wanted in ((2, [0.45125, 0.475, 0.5]), (4, [-0.45125, -0.475, -0.5])):
        rewards = torch.zeros(1, 5)
        rewards[0, place] = 1.0
        _, returns = algos.compute_gae_advantage_return(rewards, half, mask, 1.0, 0.95)
        assert (returns - half)[0, :3].tolist() == pytest.approx(wanted)
        assert ours(0.95, rewards, half, mask)[0, :3].tolist() == pytest.approx(wanted)
