"""SAO: one answer per prompt, and a critic again (2607.07508, §3.1–4.1).

    J = E_t[ sg[f(r)] Â log π_θ(o_t) ],     r = π_θ(o_t) / μ(o_t)
    f(r) = r where 1 − ε_low < r < 1 + ε_high,     0 elsewhere

**Changed against GLM-5:** Â is GAE's with a critic, so a prompt needs no group. The
advantages have λ = 1 − 1/(1.5 l) for a response of l tokens, the critic's targets λ = 1
(the returns). The critic makes two steps per step of the policy, its attention frozen.

**Bounds.** ε 0.3 and 5.0 keep ratios from 0.7 to 6 (mathematics, the default here);
`epsilon_low=0.8, epsilon_high=3.0` keep 0.2 to 4 (code).

**Settings that are yours.** The paper has `group_size=1`, 128 prompts, and a critic
that was trained beforehand, at 5 times the policy's rate; here `critic_warmup` does it.

**Not stated, or disputed.** We know the paper from notes that quote it, which leave
open: the stop-gradient (here as in GLM-5; without it the sign flips where π < 1/e); the
denominator (here all tokens, kept or not) and γ (here 1); α (1.5 here, VAPO's is 0.05)
and if l counts observations (not here); whitening (on here), the value loss and its
clip (PPO's here); if "10-step warm-up" means the learning rate or the critic alone (off
here); what is frozen in a dense model (here attention), and from when (here always).
"""

from refimpl.advantages import gae
from refimpl.algorithms.base import Objective, Tokens
from refimpl.algorithms.glm5 import GLM5
from refimpl.algorithms.glm5 import objective as two_sided
from refimpl.algorithms.ppo import EpsilonHigh, EpsilonLow


def objective(
    t: Tokens, *, epsilon_low: EpsilonLow = 0.3, epsilon_high: EpsilonHigh = 5.0
) -> Objective:
    """sg[f(r)] Â log π_θ, with GLM-5's f and wider bounds."""
    return two_sided(t, epsilon_low=epsilon_low, epsilon_high=epsilon_high)


SAO = GLM5.child(
    name="sao",
    title="SAO",
    paper="Hou et al. 2026, 2607.07508",
    changed="one answer per prompt; a critic with two λ instead of the group",
    objective=objective,
    advantages=gae,
    critic=True,
    training={
        "lam_alpha": 1.5,
        "lam_critic": 1.0,
        "critic_updates": 2,
        "critic_frozen": ("attn",),
    },
)
