"""Hooks that measure how far the K updates moved from the policy that sampled.

train("grpo", config=config, model=model, ..., hooks=[Drift(model)])
train("sapo", ..., hooks=[Drift(model), Pace(another_history["drift/step"])])
"""

from collections.abc import Sequence
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from refimpl.history import mean_over
from refimpl.models import Model, weights
from refimpl.rollout import Batch, Rollout
from refimpl.run import Run


class Drift:
    """Add `drift` to every row of a history, at the cost of one more pass per rollout.

    `model` is the model that training starts from. After a resume the first
    `drift/step` is None, since the hook has not seen the weights before it.
    """

    def __init__(self, model: Model):
        self.before, self.step = weights(model), 0

    def __call__(self, run: Run, step: int) -> None:
        row, now = run.history.rows[-1], weights(run.model)
        row |= drift(run, run.batch)
        moved = (now - self.before.to(now.device)).norm().item()
        row["drift/step"] = moved if step == self.step else None
        self.before, self.step = now, step + 1


class Pace:
    """Set the learning rate so that the next rollout moves as far as another run's.

    `steps` are ‖Δθ‖ per rollout of the other run. lr ← lr · steps[t] / ‖Δθ_t‖ assumes
    that the ratio of both step lengths stays the same for one more rollout. The hook
    must follow `Drift`, which measures ‖Δθ‖. The rate stays the same if nothing moved,
    or if the other run had ended.
    """

    def __init__(self, steps: Sequence[float]):
        self.steps = steps

    def __call__(self, run: Run, step: int) -> None:
        moved = run.history.rows[-1]["drift/step"]
        if moved and step < len(self.steps):
            for group in run.optimizer.param_groups:
                group["lr"] *= self.steps[step] / moved


def drift(run: Run, batch: Batch) -> dict[str, float | None]:
    """Measure z = log π_θ − log π_old on the rollout's tokens after its K updates.

    drift/kl            mean over tokens of −z, nats: estimates KL(π_old ‖ π_θ)
    drift/step          ‖θ − θ_old‖₂ (which `Drift` adds)
    drift/within_small  share of responses whose z has a variance below 0.02 (SAPO's
                        assumption A2)
    drift/good          mean z of the tokens with Â > 0; `drift/bad`: with Â < 0
    drift/shared        mean z of tokens with Â < 0 that a good response of the group
                        also begins with: both change the same log-prob

    The last three are None if there is no such token.
    """
    rollout, mask = batch.rollout, batch.rollout.mask
    replay, size = run.config.replay is not None, run.config.micro_batch_size
    read = partial(run.read, run.model, replay=replay)
    (logp,) = rollout.in_parts(lambda part: [read(part).logp], size)
    z = (logp - batch.old_logp) * mask
    length = mask.sum(-1).clamp(min=1)
    of_response = z.sum(-1) / length
    within = (((z - of_response[:, None]) ** 2) * mask).sum(-1) / length
    return {
        "drift/kl": -mean_over(z, mask),
        "drift/within_small": (within < 0.02).float().mean().item(),
        "drift/good": _mean_over(z, mask.bool() & (batch.advantages > 0)),
        "drift/bad": _mean_over(z, mask.bool() & (batch.advantages < 0)),
        "drift/shared": _mean_over(z, shared(rollout, batch.advantages)),
    }


def _mean_over(z: Float[Tensor, "B T"], chosen: Bool[Tensor, "B T"]) -> float | None:
    return z[chosen].mean().item() if chosen.any() else None


def shared(rollout: Rollout, advantages: Float[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """Mark the tokens of bad responses with which a good one of the group also begins.

    A response is good or bad by its first advantage. Such a token has the same context
    as the good response's token, so both share one log-prob and its gradient.
    """
    first, tokens = advantages[:, 0], rollout.tokens
    common = torch.zeros_like(rollout.mask).bool()
    for group in rollout.group.unique():
        bad, good = (
            ((rollout.group == group) & side).nonzero()[:, 0]
            for side in (first < 0, first > 0)
        )
        same = tokens[bad][:, None] == tokens[good]
        both = rollout.mask[bad][:, None] * rollout.mask[good]
        alike = (same & both.bool()).long().cumprod(-1).bool()
        common[bad] = alike.any(1)
    return common
