"""CISPO: Clipped IS-weight Policy Optimization (MiniMax-M1, 2506.13585, Eq. 4–7).

    J = (1/Σ_i|o_i|) Σ_i Σ_t sg[ min(r, max_ratio) ] Â_i log π_θ(o_{i,t}) · M_{i,t}

**Changed against DAPO:** the ratio is a *weight*, capped and held constant, on the
plain policy gradient. A capped token keeps its gradient; PPO's clip would drop it.

M is 1 by default. The *unified form* (Eq. 6–7) masks as PPO does: M = 0 where Â > 0 and
r > 1+ε_high, or Â < 0 and r < 1−ε_low. `mask_epsilon_low` and `mask_epsilon_high` turn
it on.

**Bounds.** `max_ratio` is an absolute ratio: 5.0 caps r at 5. (verl, NeMo and slime
cap at 1 + ε_high; TRL, as here, at the number given.) The paper has no lower bound
and does not publish the upper one; ScaleRL found no difference between 4, 5 and 8.

**Departures.** The printed 1/Σ|o_i| is per group (`group_token_mean`); our default, and
that of every framework, is per batch. The paper keeps DAPO's dynamic sampling and
length penalty. These are switches of the trainer, and are off here so that losses can
be compared on their own.

**ScaleRL** (2510.13786) is CISPO with `advantage="std_of_advantages"`,
`normaliser="group_token_mean"`, `trust_sampler=True` (the ratio is to the generator's
policy), and `dynamic_sampling=True` with `max_sampling_rounds=1`, which drops groups of
equal rewards without replacing them. Its logits are float32, as here, and it has a
`sampler_delay` of up to 8. Two of its parts are missing here: prompts that are solved
90 % of the time are removed for good (No-Positive-Resampling), and long answers are
interrupted.
"""

from typing import Annotated

from pydantic import Field

from refimpl.algorithms.base import Objective, Tokens
from refimpl.algorithms.dapo import DAPO
from refimpl.importance import ratio
from refimpl.validation import Positive

MaxRatio = Annotated[float, Field(ge=1)]


def objective(
    t: Tokens,
    *,
    max_ratio: MaxRatio = 5.0,
    mask_epsilon_low: Positive | None = None,
    mask_epsilon_high: Positive | None = None,
) -> Objective:
    """sg[min(r, max_ratio)] Â log π_θ, times the mask of the unified form.

    Without the mask, `high` marks every token at the cap, whatever the sign of Â; such
    a token still has a gradient.
    """
    r = ratio(t.z).detach()
    c, low, high = r.clamp(max=max_ratio), None, r > max_ratio
    if mask_epsilon_low is not None:
        low = (t.advantages < 0) & (r < 1 - mask_epsilon_low)
        c = c.masked_fill(low, 0)
    if mask_epsilon_high is not None:
        high = (t.advantages > 0) & (r > 1 + mask_epsilon_high)
        c = c.masked_fill(high, 0)
    return Objective(c * t.advantages * t.logp, low, high)


CISPO = DAPO.child(
    name="cispo",
    title="CISPO",
    paper="MiniMax 2025, 2506.13585",
    changed="the ratio becomes a capped constant; no token is dropped",
    objective=objective,
    training={},
)
