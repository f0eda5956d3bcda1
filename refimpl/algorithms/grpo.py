"""GRPO: Group Relative Policy Optimization (DeepSeekMath, 2402.03300, Eq. 3–4).

    J = (1/G) Σ_i (1/|o_i|) Σ_t { min( r Â_i, clip(r, 1−ε, 1+ε) Â_i ) − β k3 }
    Â_i = (R_i − mean R) / std R

**Changed against PPO:** no critic. The G responses to one prompt serve as each other's
baseline, all tokens of a response share its Â, and the KL moves into the loss.

**Departures.** The paper gives no ε; 0.2 is PPO's. It takes one update per rollout,
where r = 1 and the clip has no effect; we take K > 1. The paper has β = 0.04; here β is
the trainer's `beta`, by default 0 as in later work. The std is the sample std
(`advantages`).
"""

from refimpl.advantages import group_relative
from refimpl.algorithms.ppo import PPO
from refimpl.normalisers import seq_mean_token_mean

GRPO = PPO.child(
    name="grpo",
    title="GRPO",
    paper="Shao et al. 2024, 2402.03300",
    changed="group baseline instead of a critic; mean per response",
    advantages=group_relative,
    normaliser=seq_mean_token_mean,
    critic=False,
)
