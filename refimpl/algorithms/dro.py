"""DRO: Direct Reward Optimisation (2405.19107), token by token.

    J = (1/Σ_i|o_i|) Σ_i Σ_t { Â_i log π_θ(o_{i,t}) − (τ/2) z² },     z = log π_θ/π_old

**Changed against REINFORCE:** a penalty on z², which also acts where Â = 0.

**Bounds.** τ is in reward units per nat². The pull of the penalty has no bound: at
z = 60 it is 6 per token, as in the engines.

**Departures.** The paper regresses τ z of a whole answer, with respect to π_ref, on
R − V; Kimi k1.5 (2501.12599, Eq. 3) replaces V by R̄, and π_ref by the policy of the
last iteration. We square the z of each token, as do `dro` in verl 0.9.1 and Tinker and
`kimi15` in ROLL. The value of τ is ROLL's `dro_beta`.
"""

from refimpl.advantages import group_centred
from refimpl.algorithms.base import Objective, Tokens
from refimpl.algorithms.reinforce import REINFORCE
from refimpl.normalisers import token_mean
from refimpl.validation import Positive


def objective(t: Tokens, *, tau: Positive = 0.1) -> Objective:
    """Â log π_θ − (τ/2) z²"""
    return Objective(t.advantages * t.logp - tau / 2 * t.z**2)


DRO = REINFORCE.child(
    name="dro",
    title="DRO",
    paper="Richemond et al. 2024, 2405.19107",
    changed="a penalty on the squared log-ratio holds the policy back",
    penalty="tau",
    objective=objective,
    advantages=group_centred,
    normaliser=token_mean,
)
