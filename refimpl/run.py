"""What every part of a training run shares: `Run`, `Batch`, and small helpers."""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from refimpl import moe
from refimpl.algorithms import Algorithm
from refimpl.config import TrainConfig
from refimpl.history import History
from refimpl.models import checkpointed, in_int8, weights, with_weights
from refimpl.real import sharing
from refimpl.rollout import Rollout
from refimpl.scoring import log_probs


@dataclass
class Run:
    """What `train` carries from rollout to rollout."""

    algorithm: Algorithm
    config: TrainConfig
    tokenizer: PreTrainedTokenizerBase
    task: Any  # see `refimpl.tasks`
    reward: Callable
    model: PreTrainedModel
    critic: PreTrainedModel | None
    reference: PreTrainedModel | None  # also None if it is the policy, its adapter off
    optimizer: torch.optim.Optimizer
    history: History
    routers_known: bool = False  # a mixture of experts whose routing can be recorded
    share_prompts: bool = False  # where it pays
    past: list[Tensor] = field(default_factory=list)  # weights, the sampler's first

    @cached_property
    def acts_on_every_token(self) -> bool:
        """Whether a KL, an entropy bonus, a critic or the objective itself has a
        gradient also where the advantage is 0."""
        config = self.config
        kl = config.beta > 0 and config.kl_in == "loss"
        if kl or config.entropy_bonus or self.critic is not None:
            return True
        return self.algorithm.acts_without_advantage(**config.hyperparameters)

    def precision(self, dtype: str | None = None):
        """Autocast for bfloat16, nothing otherwise."""
        if (dtype or self.config.dtype) != "bfloat16":
            return contextlib.nullcontext()
        return torch.autocast(self.model.device.type, torch.bfloat16)

    def remember(self) -> None:
        """Keep the policy's weights for a sampler that lags behind it."""
        if self.config.sampler_delay:
            self.past = [*self.past, weights(self.model)]
            self.past = self.past[-self.config.sampler_delay - 1 :]

    @contextlib.contextmanager
    def as_sampler(self) -> Iterator[None]:
        """In here the model computes what the sampler does: in its dtype, and with its
        weights, those of `sampler_delay` rollouts ago or of the start."""
        with contextlib.ExitStack() as held:
            if self.past:
                held.enter_context(with_weights(self.model, self.past[0]))
            dtype = self.config.rollout_dtype
            if dtype == "int8":
                held.enter_context(in_int8(self.model))
                dtype = None  # activations stay as they are
            held.enter_context(self.precision(dtype))
            yield

    def score_reference(self, rollout: Rollout) -> Float[Tensor, "B T"]:
        """log π_ref: the frozen copy's, or the policy's with its adapter off."""
        if self.reference is not None:
            return score_with(self, self.reference, rollout)[0]
        with self.model.disable_adapter():
            return score_with(self, self.model, rollout)[0]

    @contextlib.contextmanager
    def recomputed(self) -> Iterator[None]:
        """`models.checkpointed`, policy and critic, where it is asked for."""
        with contextlib.ExitStack() as held:
            if self.config.gradient_checkpointing:
                for model in filter(None, (self.model, self.critic)):
                    held.enter_context(checkpointed(model))
            yield

    def routed(self, experts: Tensor | None = None, **disturbance):
        """`moe.routed` where routing can be recorded, nothing (None) elsewhere."""
        if not self.routers_known:
            return contextlib.nullcontext()
        return moe.routed(self.model, experts=experts, **disturbance)


@dataclass
class Batch:
    """A rollout with everything that stays constant during its K updates.

    `mask` says which tokens have a loss: the rollout's, less what is filtered out.
    `old_logp` is π_old's; `rollout.logp` the sampler's, the same unless they differ by
    intent (`TrainConfig.mismatch`). `rollout.experts` are those that π_old visited.
    `weight` and `value_weight` are the normalisers of a mini-batch, made for each.
    """

    rollout: Rollout
    mask: Float[Tensor, "B T"]
    old_logp: Float[Tensor, "B T"]
    advantages: Float[Tensor, "B T"]
    ref_logp: Float[Tensor, "B T"] | None = None
    weight: Float[Tensor, "B T"] | None = None
    old_values: Float[Tensor, "B T"] | None = None
    targets: Float[Tensor, "B T"] | None = None
    value_weight: Float[Tensor, "B T"] | None = None


def score_with(run: Run, model: PreTrainedModel, rollout: Rollout):
    shared = run.share_prompts and sharing.pays(rollout)
    with run.precision():
        return log_probs(model, rollout, run.config.temperature, shared)


@torch.no_grad()
def without_gradient(
    run: Run, score_part: Callable, rollout: Rollout
) -> Float[Tensor, "B T"]:
    """`score_part` over micro-batches, put together again."""
    result = torch.zeros_like(rollout.logp)
    for rows in torch.arange(len(rollout)).split(run.config.micro_batch_size):
        rows = rows.to(result.device)
        part = score_part(rollout.rows(rows))
        result[rows, : part.shape[1]] = part
    return result


def token_mean(x: Tensor, mask: Tensor) -> float:
    return (x.detach().sum() / mask.sum()).item()


def at_tokens(x: Tensor, rollout: Rollout) -> float:
    """The mean of `x` (B, L) over the positions where the tokens' log-probs arise."""
    return token_mean(x.gather(1, rollout.positions - 1) * rollout.mask, rollout.mask)


def mean(numbers: list[float]) -> float | None:
    return math.fsum(numbers) / len(numbers) if numbers else None
