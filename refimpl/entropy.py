"""Control of entropy: which tokens are trained on, and how large a bonus is.

    train("grpo", corrections=[TopEntropy(0.2)], loss_terms=[AdaptiveEntropy()])

| object | hand in as | elsewhere |
|---|---|---|
| `TopEntropy` | correction | TRL and ms-swift: `top_entropy_quantile` |
| `ClipCov` | correction | verl and SkyRL: `clip_cov` |
| `KLCov` | loss term | verl and SkyRL: `kl_cov` |
| `AdaptiveEntropy` | loss term | TRL: `use_adaptive_entropy` |

The first three compare the tokens of a whole mini-batch, by numbers of the rollout:
entropies, log π_old and advantages. So the size of a micro-batch changes nothing, and
each is exact at the first update. Engines take the current policy's numbers, and some
compare the tokens of a micro-batch.
"""

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from refimpl import seeds
from refimpl.history import Metrics
from refimpl.importance import log_ratio
from refimpl.logprobs import Reading
from refimpl.loss_terms import Added, LossInputs
from refimpl.rollout import Batch
from refimpl.validation import checked

ROUNDING = 1e-4
"""|log r| in nats up to which it is noise."""


@checked
class TopEntropy:
    """Train on the `share` of tokens with the highest entropy (2506.01939).

    The others still count in the average. KL and bonus stay on all tokens.
    """

    share: float = 0.2

    def kept(self, mini: Batch) -> Bool[Tensor, "B T"]:
        """True where H is at or above its quantile over tokens with a loss."""
        entropy = mini.rollout.entropy
        own = entropy.masked_fill(~mini.mask.bool(), torch.nan)
        return entropy >= torch.nanquantile(own, 1 - self.share)

    def __call__(self, part: Batch, reading: Reading, inputs: LossInputs) -> LossInputs:
        return inputs._replace(weight=inputs.weight * part.of_whole(self.kept))


def covariance(mini: Batch) -> Float[Tensor, "B T"]:
    """C = (Â − mean Â)(log π − mean log π), means over tokens with a loss; 0 elsewhere.

    Its mean is the covariance by which a step lowers the entropy (2505.22617, Theorem
    1). It is large for a likely good token, and as large for a rare bad one.
    """
    mask = mini.mask.bool()
    a, logp = (
        torch.where(mask, x - x[mask].mean(), 0.0)
        for x in (mini.advantages, mini.old_logp)
    )
    return a * logp


def count(share: float, mini: Batch) -> int:
    """Return a share of the mini-batch's tokens, at least 1."""
    return max(int(share * mini.mask.sum()), 1)


def largest(x: Tensor, n: int) -> Bool[Tensor, "B T"]:
    """True at the n largest numbers."""
    top = x.flatten().topk(n).indices
    return torch.zeros_like(x).flatten().scatter(0, top, 1.0).view_as(x).bool()


@checked
class ClipCov:
    """Leave out a few tokens, drawn among those with `low` < C < `high` (2505.22617).

    A token that a clip stops has no gradient to lose; engines do not draw it.
    """

    share: float = 2e-4
    low: float = 1.0
    high: float = 5.0
    seed: int = 0

    def kept(self, mini: Batch) -> Bool[Tensor, "B T"]:
        """False at the tokens that are drawn."""
        c = covariance(mini)
        able = (c > self.low) & (c < self.high)
        # The same draw for every micro-batch, and in a resumed run.
        purpose = seeds.seed_for(self.seed, int(mini.rollout.ids.sum()), "clip-cov")
        order = torch.rand(c.shape, generator=seeds.generator(purpose)).to(c.device)
        drawn = largest(order.masked_fill(~able, -1), count(self.share, mini))
        return ~(drawn & able)

    def __call__(self, part: Batch, reading: Reading, inputs: LossInputs) -> LossInputs:
        return inputs._replace(weight=inputs.weight * part.of_whole(self.kept))


@checked
class KLCov:
    """+ β Σ weight · |log r|, on the tokens with the largest C (2505.22617).

    The paper's loss has no clip: give GRPO bounds that are never reached. With one
    update per rollout log r is 0, and so is the term. `share` is 2e-4 in verl, 2e-3 in
    a script of the authors, and 0.2 in SkyRL.
    """

    share: float = 2e-4
    beta: float = 1.0

    def chosen(self, mini: Batch) -> Bool[Tensor, "B T"]:
        """True at the tokens with the largest C."""
        c = covariance(mini).masked_fill(~mini.mask.bool(), -torch.inf)
        return largest(c, count(self.share, mini)) & mini.mask.bool()

    def __call__(self, part: Batch, reading: Reading, weight: Tensor) -> Added:
        far = log_ratio(reading.logp, part.old_logp, part.mask).abs()
        # Where the sampler's log-probs stand for π_old, a rounding error has a sign,
        # and would be pulled on with all of β.
        far = far.where(far > ROUNDING, 0.0)
        return self.beta * (far * part.of_whole(self.chosen) * weight).sum(), {}


@dataclass
class AdaptiveEntropy:
    """− c Σ weight · H, with a c that grows by `step` while H ≤ `target`, else shrinks.

    Skywork-OR1 (2505.22312), with TRL's defaults. Both c and the question if the bonus
    is on (H ≤ `target`) are those of the update before. H is a mean over tokens, nats.
    A run begins with c = 0, and its checkpoints hold c.
    """

    target: float = 0.2
    step: float = 0.005
    most: float = 1.0
    c: float = field(default=0.0, init=False, repr=False)
    last: float = field(default=torch.inf, init=False, repr=False)
    now: Tensor | float = field(default=0.0, init=False, repr=False)

    def __call__(self, part: Batch, reading: Reading, weight: Tensor) -> Added:
        self.now += (reading.entropy.detach() * part.mask).sum() / part.tokens
        applied = self.c if self.last <= self.target else 0.0
        metrics: Metrics = {"entropy_coefficient": weight.new_tensor(applied)}
        return -applied * (reading.entropy * weight).sum(), metrics

    def end_update(self) -> None:
        """Move c once all micro-batches of an update were seen."""
        self.last, self.now = float(self.now), 0.0
        move = self.step if self.last <= self.target else -self.step
        self.c = min(max(self.c + move, 0.0), self.most)

    def state_dict(self) -> dict[str, float]:
        """Return what a checkpoint keeps."""
        return {"c": self.c, "last": self.last}

    def load_state_dict(self, saved: dict[str, float]) -> None:
        """Go on from what a checkpoint kept."""
        self.c, self.last = saved["c"], saved["last"]
