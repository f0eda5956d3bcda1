"""FlashREINFORCE: one answer per prompt, no critic, and late answers dropped whole.

    J = (1/B) Σ_i (1/|o_i|) Σ_t sg[r · 1(D_i ≤ δ)] Â_i log π_θ(o_{i,t}),     r = π_θ/μ
    Â_i = R_i − mean_batch R,     D_i = (1/|o_i|) Σ_t KL(μ‖π_θ) of "this token or not"

(Hu et al. 2026, github.com/yifanzhang-pro/FlashREINFORCE.)

**Changed against REINFORCE:** the baseline is the batch's mean, so a prompt needs no
second answer. The token's ratio to the sampler weighs its gradient, as a constant, and
an answer that is too unlikely to be the policy's own leaves as a whole.

**Bounds.** δ is in nats per token, 3e-3 (Qwen2.5-Math-1.5B, and the default of the
reference code) or 5e-3 (DeepSeek-R1-Distill-Qwen-1.5B). The ratio has no bound. A
dropped answer stays in B, and in the mean of the rewards.

**Settings that are yours.** The paper has `group_size=1`, 128 prompts, and one update
per batch (`minibatches=1`, `allow_on_policy=True`), with a sampler about four updates
late.

**Departures.** `old_logp` is the sampler's, μ. The engines clamp probabilities in D to
[1e-6, 1 − 1e-6]; here only 1 − p has a floor, of 1e-8. We know the method from the
README and the loss of that repository and from OpenRLHF 0.11.2. The paper itself we
could not read. An option of it that drops a failed answer's confident tokens is left
out.
"""

from refimpl.advantages import batch_centred
from refimpl.algorithms.base import Objective, Tokens
from refimpl.algorithms.reinforce import REINFORCE
from refimpl.importance import ratio, sequence_log_ratio
from refimpl.kl import binary
from refimpl.validation import Positive


def objective(t: Tokens, *, delta: Positive = 3e-3) -> Objective:
    """sg[r] Â log π_θ, and 0 for an answer with D > δ."""
    mean = sequence_log_ratio(binary(t.old_logp, t.logp), t.mask)
    far = ~(mean <= delta)[:, None].expand_as(t.z)  # NaN, as where μ = 0, is far
    value = ratio(t.z).detach() * t.advantages * t.logp
    return Objective(value.masked_fill(far, 0), high=far)


FLASH_REINFORCE = REINFORCE.child(
    name="flash_reinforce",
    title="FlashREINFORCE",
    paper="Hu et al. 2026, yifanzhang-pro/FlashREINFORCE",
    changed="the batch's mean as the baseline; the ratio to the sampler as a constant; "
    "answers far from the sampler are dropped",
    objective=objective,
    advantages=batch_centred,
    anchor="sampler",
)
