"""Control of entropy: which tokens are trained on, and how large a bonus is.

    train("grpo", corrections=[TopEntropy(0.2)], loss_terms=[AdaptiveEntropy()])

`TopEntropy` and `ClipCov` are corrections, `KLCov` and `AdaptiveEntropy` loss terms.
The first three compare the tokens of a whole mini-batch, by numbers of the rollout:
entropies, log π_old and advantages. So the size of a micro-batch changes nothing, and
the numbers are exact at the first update. Engines take the current policy's.
"""

import math
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from torch import Tensor

from refimpl import seeds
from refimpl.algorithms import LossInputs
from refimpl.importance import log_ratio
from refimpl.logprobs import Reading
from refimpl.loss_terms import Added, LossCorrection, LossTerm
from refimpl.rollout import Batch
from refimpl.validation import Positive, Seed, UserError, Weight, checked

Some = Annotated[float, Field(gt=0, le=1)]
"""A share of the tokens: above 0, because at least one is chosen."""


class Keeps(LossCorrection):
    """A correction: weight · 1[kept]. Dropped tokens still count in the average."""

    def kept(self, mini: Batch) -> Bool[Tensor, "B T"]:
        """True at the tokens that are trained on."""
        raise NotImplementedError

    def __call__(self, part: Batch, reading: Reading, inputs: LossInputs) -> LossInputs:
        return inputs._replace(weight=inputs.weight * part.of_whole(self.kept))


@checked
class TopEntropy(Keeps):
    """Train on the `share` of tokens with the highest entropy (2506.01939).

    KL and bonus stay on all tokens. TRL and ms-swift: `top_entropy_quantile`.
    """

    share: Some = 0.2

    def kept(self, mini: Batch) -> Bool[Tensor, "B T"]:
        """True where H is at or above its quantile over tokens with a loss."""
        entropy, mask = mini.rollout.entropy, mini.mask.bool()
        if not mask.any():  # all responses were filtered out
            return mask
        own = entropy[mask]
        # The lowest of the tokens at or above the quantile; less than a rounding error
        # must not move it by one.
        rank = math.ceil((1 - self.share) * (len(own) - 1) - 1e-6)
        return entropy >= own.kthvalue(rank + 1).values


def covariance(mini: Batch) -> Float[Tensor, "B T"]:
    """C = (Â − mean Â)(log π − mean log π), means over tokens with a loss; 0 elsewhere.

    A step lowers the entropy by about the mean of C (2505.22617). C is large for a
    likely good token, and just as large for a rare bad one.
    """
    mask, given = mini.mask.bool(), (mini.advantages, mini.old_logp)
    a, logp = (torch.where(mask, x - x[mask].mean(), 0.0) for x in given)
    return a * logp


def largest(x: Tensor, share: float, mini: Batch) -> Bool[Tensor, "B T"]:
    """Mark the largest numbers: this share of the tokens, and at least one."""
    top = x.flatten().topk(max(int(share * mini.mask.sum()), 1)).indices
    return torch.zeros_like(x).flatten().scatter(0, top, 1.0).view_as(x).bool()


@checked
class ClipCov(Keeps):
    """Drop a few tokens, drawn among those with `low` < C < `high` (2505.22617).

    verl and SkyRL (`clip_cov`) never draw a token that the clip already stops.
    """

    share: Some = 2e-4
    low: float = 1.0
    high: float = 5.0
    seed: Seed = 0

    def __post_init__(self):
        if not self.low < self.high:
            raise UserError(f"low must be below high, got {self.low} and {self.high}")

    def kept(self, mini: Batch) -> Bool[Tensor, "B T"]:
        """False at the tokens that are drawn, the same for every micro-batch."""
        c = covariance(mini)
        able = mini.mask.bool() & (c > self.low) & (c < self.high)
        purpose = seeds.seed_for(self.seed, int(mini.rollout.ids.sum()), "clip-cov")
        order = torch.rand(c.shape, generator=seeds.generator(purpose)).to(c.device)
        return ~(largest(order.masked_fill(~able, -1), self.share, mini) & able)


@checked
class KLCov(LossTerm):
    """+ β Σ weight · |log r|, on the tokens with the largest C (2505.22617).

    The paper's loss has no clip: give GRPO bounds that are never reached. `share` is
    2e-4 in verl (`kl_cov`), 2e-3 in a script of the authors, and 0.2 in SkyRL.
    """

    share: Some = 2e-4
    beta: Positive = 1.0

    def for_run(self, run: Any) -> "KLCov":
        """Raise `UserError` if log r is 0 throughout."""
        if run.config.updates_per_rollout == 1 and not run.config.trust_sampler:
            raise UserError("KLCov does nothing in a rollout's first update: take more")
        return self

    def chosen(self, mini: Batch) -> Bool[Tensor, "B T"]:
        """True at the tokens with the largest C."""
        mask = mini.mask.bool()
        c = covariance(mini).masked_fill(~mask, -torch.inf)
        return largest(c, self.share, mini) & mask

    def __call__(self, part: Batch, reading: Reading, weight: Tensor) -> Added:
        far = log_ratio(reading.logp, part.old_logp, part.mask).abs()
        # If the sampler's log-probs stand for π_old, they differ from ours by rounding.
        far = far.where(far > 1e-4, 0.0)
        return self.beta * (far * part.of_whole(self.chosen) * weight).sum(), {}


@checked
class AdaptiveEntropy(LossTerm):
    """− c Σ weight · H, with a c that grows by `step` while H ≤ `target`, else shrinks.

    Skywork-OR1 (2505.22312), with TRL's defaults. c is that of the update before, and
    the bonus acts only if H was ≤ `target` then. A run begins with c = 0, and c is at
    most `most`.
    """

    setting = "entropy_bonus"
    target: Weight = 0.2
    step: Positive = 0.005
    most: Positive = 1.0

    def for_run(self, run: Any) -> "Adapting":
        """Return a term with a state of its own, so that every run begins anew."""
        return Adapting(self)


class Adapting(LossTerm):
    """The term of a run with `AdaptiveEntropy`: it has the c of that run."""

    def __init__(self, settings: AdaptiveEntropy):
        self.settings = settings
        self.c = 0.0
        self.last = torch.inf  # the mean entropy in the update before
        self.now: Tensor | float = 0.0  # that of this update, so far

    def __call__(self, part: Batch, reading: Reading, weight: Tensor) -> Added:
        self.now += (reading.entropy.detach() * part.mask).sum() / part.token_count
        applied = self.c if self.last <= self.settings.target else 0.0
        bonus = -applied * (reading.entropy * weight).sum()
        return bonus, {"entropy_coefficient": part.share * applied}

    def end_update(self) -> None:
        """Adjust c after the last micro-batch of an update."""
        own, self.last, self.now = self.settings, float(self.now), 0.0
        move = own.step if self.last <= own.target else -own.step
        self.c = min(max(self.c + move, 0.0), own.most)

    def state_dict(self) -> dict[str, float]:
        """Return the state for a checkpoint."""
        return {"c": self.c, "last": self.last}

    def load_state_dict(self, saved: dict[str, float]) -> None:
        """Restore the state from a checkpoint."""
        self.c, self.last = saved["c"], saved["last"]
