"""REINFORCE (Williams, 1992), with a leave-one-out baseline (RLOO, 2402.14740).

    ∇J = E[ Σ_t ∇log π_θ(o_t | q, o_<t) (R − b) ],     Â = R − b

**Parent:** none. Every later method changes how Â is computed, how far π_θ may move
from the policy that sampled, or how tokens are averaged.

**Departures.** Σ_t becomes the normaliser's weighted sum (default: mean over tokens,
then over responses), so that losses compare across methods. `correct=True` adds the
token's importance ratio: −Σ weight · r Â, unclipped. This corrects each token's own
choice, but neither the prefix before it nor the outcome after it, so it is exact only
for one-token responses, and its variance grows quickly on stale data. Without it, stale
data bias the gradient silently.
"""

from refimpl.advantages import leave_one_out
from refimpl.algorithms.base import Algorithm, Objective, Tokens
from refimpl.importance import ratio
from refimpl.normalisers import seq_mean_token_mean


def objective(t: Tokens, *, correct: bool = False) -> Objective:
    """Â log π_θ, or r Â with `correct`: the same gradient where r = 1."""
    return Objective((ratio(t.z) if correct else t.logp) * t.advantages)


REINFORCE = Algorithm(
    name="reinforce",
    title="REINFORCE",
    paper="Williams 1992; RLOO 2402.14740",
    parent=None,
    changed="raise the log-probability of answers that beat a baseline, lower the "
    "others'",
    objective=objective,
    advantages=leave_one_out,
    normaliser=seq_mean_token_mean,
)
