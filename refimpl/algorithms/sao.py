"""SAO: one answer per prompt, and a critic again (2607.07508, §3.1–4.1).

    J = E_t[ sg[f(r)] Â log π_θ(o_t) ],     r = π_θ(o_t) / μ(o_t)
    f(r) = r where 1 − ε_low < r < 1 + ε_high,     0 elsewhere

**Changed against GLM-5:** Â is GAE's with a critic, so a prompt needs no group. The
advantages have λ = 1 − 1/(1.5 l) for a response of l tokens, the critic's targets λ = 1
(they are the returns). The critic makes two steps per step of the policy, with its
attention frozen. A mask with holes gives the paper's GAE that skips observations.

**Bounds.** ε is a distance from 1: 0.3 and 5.0 keep ratios from 0.7 to 6 (mathematics,
the default here); `epsilon_low=0.8, epsilon_high=3.0` keep 0.2 to 4 (code).

**Settings that are yours.** The paper has `group_size=1` with 128 prompts, and a critic
that was trained before, with 5 times the policy's learning rate. Here
`critic_warmup=10` trains it while the policy waits.

**Not stated, or disputed.** We could not read the paper itself, only notes that quote
it and agree with each other. They do not settle

- the stop-gradient (as in GLM-5 here; without it every sign is turned where π < 1/e),
  the denominator (all tokens here, not those that are kept), γ (1 here);
- α: 1.5 here; VAPO, which the length rule is from, has 0.05; and if l counts
  observations (not here: a response's length is what the policy wrote);
- whitening (on here, as in a public script), the value loss and its clip (PPO's here);
- if "10-step warm-up" is of the learning rate or of the critic alone (off here);
- what is frozen in a dense model (attention alone here, norms and embeddings learn),
  and if attention is frozen before RL as well (here it always is).
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
    paper="2026, 2607.07508",
    changed="one answer per prompt: a critic with two λ in place of the group",
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
