"""The sampler's corrections and advantages beside verl's and TRL's own functions."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from refimpl.advantages import Scored, gdpo, opo
from refimpl.corrections import factor
from refimpl.interop.conformance.cases import typical

WHERE = "TRL, verl, Liger: tests/bridges/requirements.txt"
BAND = "0.8_1.25"  # its own inverse: verl's k1 has bounds on 1/w
IS = {
    "token_truncate": ("token", 1.3, 1.3),
    "token_mask": ("token", "0.8_1.3", (0.8, 1.3)),
    "sequence_truncate": ("sequence", 1.3, 1.3),
    "sequence_mask": ("sequence", "0.5_1.3", (0.5, 1.3)),
}
RS = {
    "token_reject": ("token_k1", BAND, (0.8, 1.25)),
    "sequence_reject": ("seq_sum_k1", BAND, (0.8, 1.25)),
    "mean_reject": ("seq_mean_k1", BAND, (0.8, 1.25)),
    "token_k3": ("token_k3", 0.05, 0.05),
    "sequence_k3": ("seq_sum_k3", 0.2, 0.2),
    "mean_k3": ("seq_mean_k3", 0.04, 0.04),
    "max_k3": ("seq_max_k3", 0.1, 0.1),
}


def seen(seed):
    inputs = typical(seed)
    return inputs, (inputs["old_logp"], inputs["rollout_logp"], inputs["mask"])


def test_verls_weights_and_rejections():
    verl = pytest.importorskip("verl.trainer.ppo.rollout_corr_helper", reason=WHERE)
    cut: dict[str, list[float]] = {name: [] for name in RS}
    for seed in range(4):
        inputs, (old, mu, mask) = seen(seed)
        paid = inputs["advantages"]
        for name, (level, theirs, ours) in IS.items():
            asked = {"rollout_is": level, "rollout_is_threshold": theirs}
            weight, _ = verl.compute_rollout_correction_weights(old - mu, mask, **asked)
            found = factor({name: ours}, old, mu, mask, paid) * mask
            assert_close(found, weight * mask, rtol=1e-5, atol=1e-6)
        for name, (mode, theirs, ours) in RS.items():
            kept, told = verl.compute_rollout_rejection_mask(
                old - mu, mask, mode, theirs
            )
            found = factor({name: ours}, old, mu, mask, paid) * mask
            assert torch.equal(found, kept)
            dropped = (found == 0) & mask.bool()
            cut[name].append((dropped.sum() / mask.sum()).item())
            rows = dropped.any(-1).float().mean().item()
            assert told["rollout_rs_masked_fraction"] == pytest.approx(cut[name][-1])
            assert told["rollout_rs_seq_masked_fraction"] == pytest.approx(rows)
    assert all(0 < sum(shares) < len(shares) for shares in cut.values()), cut


def test_trls_off_policy_mask():
    trl = pytest.importorskip("trl", reason=WHERE).GRPOTrainer
    every = []
    for seed in range(4):
        inputs, (old, mu, mask) = seen(seed)
        logp, paid = inputs["logp"], inputs["advantages"]
        kept = trl.get_off_policy_mask(paid[:, None], logp, mu, mask, 0.02)
        found = factor({"opsm": 0.02}, old, mu, mask, paid, now=logp)
        assert torch.equal(found * mask, kept * mask)
        every.append(kept)
    assert 0 < torch.cat(every).mean() < 1


def test_verls_opo_and_gdpo():
    """GDPO of responses that are equally long: verl's std is over tokens, with ddof 1,
    so that √((B − 1) / (B − 1/T)) is between them."""
    verl = pytest.importorskip("verl.trainer.ppo.core_algos", reason=WHERE)
    dice = torch.Generator().manual_seed(0)
    rewards, group = torch.rand(12, 2, generator=dice), torch.arange(12) // 4
    mask = (torch.arange(9) < torch.randint(1, 9, (12, 1), generator=dice)).float()
    first = torch.zeros_like(mask)
    first[:, 0] = rewards[:, 0]
    theirs, _ = verl.compute_opo_outcome_advantage(first, mask, group.numpy())
    assert_close(opo(Scored(rewards[:, 0], group, mask))[:, None] * mask, theirs)
    config = {"gdpo_reward_keys": ["a", "b"], "gdpo_reward_weights": [1.0, 0.5]}
    whole = torch.ones(12, 3)
    theirs, _ = verl.compute_gdpo_outcome_advantage(
        torch.zeros(12, 3),
        whole,
        group.numpy(),
        config=config,
        non_tensor_batch={n: np.array(rewards[:, i]) for i, n in enumerate("ab")},
        batch={
            "prompts": torch.zeros(12, 1),
            "attention_mask": torch.ones(12, 4).long(),
        },
    )
    known = {"components": rewards, "weights": (1.0, 0.5)}
    ours = gdpo(Scored(rewards.sum(-1), group, **known))
    assert_close(ours * ((12 - 1 / 3) / 11) ** 0.5, theirs[:, 0], rtol=1e-5, atol=1e-5)
