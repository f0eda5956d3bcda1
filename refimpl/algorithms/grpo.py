"""GRPO: Group Relative Policy Optimization (DeepSeekMath, 2402.03300, Eq. 3–4).

    J = (1/G) Σ_i (1/|o_i|) Σ_t { min( r Â_i, clip(r, 1−ε, 1+ε) Â_i ) − β k3 }
    Â_i = (R_i − mean R) / std R

**Changed against PPO:** no critic. G responses to one prompt are each other's
baseline, every token of a response shares its Â, and the KL moves into the loss.

**Departures.** The paper gives no ε; 0.2 is PPO's. It takes one update per rollout,
where r = 1 and the clip is inert; we take K > 1. β = 0.04 there; here the trainer's
`beta`, 0 by default, as in later work. The std is the sample std (`advantages`).
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
