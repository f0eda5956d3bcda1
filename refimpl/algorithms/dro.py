"""DRO: Direct Reward Optimisation (2405.19107), token by token.

    J = (1/Σ_i|o_i|) Σ_i Σ_t { Â_i log π_θ(o_{i,t}) − (τ/2) z² },     z = log π_θ/π_old

**Changed against REINFORCE:** a penalty on z², which acts without an advantage, too.

**Bounds.** τ in reward units per nat². Nothing bounds the pull: at z = 60 it is 6 per
token, as in the engines.

**Departures.** The paper regresses τ z of a whole answer on R − V, against π_ref; Kimi
k1.5 (2501.12599, Eq. 3) takes R̄ for V and the last policy. verl 0.9.1's and Tinker's
`dro` and ROLL's `kimi15` square each token's z, as we do. τ (`dro_beta`) is ROLL's.
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
    objective=objective,
    advantages=group_centred,
    normaliser=token_mean,
)
