"""Samplers that differ from the policy as an inference engine does.

    train("grpo", sampler=Delayed(4))

`Delayed`, `InFlight` and `Rounded` are functions of the policy's sampler. The sampler
that they return has a model of its own, and `sync` updates it from the policy, before
the first rollout and after the updates of each rollout. (Change that copy alone: the
policy's own weights are those that are trained.)
"""

import itertools
from dataclasses import field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from refimpl.models import Model, frozen_copy, weights
from refimpl.moe import routers
from refimpl.rollout import Rollout
from refimpl.sampling import Decoder, Sampler, decoder
from refimpl.validation import Count, UserError, checked


@checked
class Delayed:
    """Sample with the weights of `rollouts` rollouts ago; before, with the first."""

    rollouts: Count

    def __call__(self, policy: Sampler) -> Sampler:
        return DelayedSampler(policy, self.rollouts)


@checked
class InFlight:
    """Take newer weights while responses are being written, every so many tokens.

    The first `tokens` tokens of all responses have the weights of `rollouts` rollouts
    ago, the next ones those of the rollout after it, and so on up to the policy's own.
    So a response is written by several policies, and `Rollout.logp` has each token's
    own. Keys and values of earlier tokens stay in the cache, as in engines that update
    weights in flight.

    Raises `UserError` on a sampler that keeps weights of its own while it samples: one
    in bfloat16, or with the decoder of `refimpl.pretrained.fast`.
    """

    rollouts: Count
    tokens: Count = field(kw_only=True)

    def __call__(self, policy: Sampler) -> Sampler:
        return InFlightSampler(policy, self.rollouts, self.tokens)


@checked
class Rounded:
    """Sample with the policy's weights rounded to int8.

        w ← s · round(w / s)    s = max |w| of the row / 127

    for each row of each matrix, except embeddings, output layer, routers and LoRA,
    which engines do not round. Activations are not rounded ("weight-only").
    """

    def __call__(self, policy: Sampler) -> Sampler:
        return RoundedSampler(policy)


class CopiedSampler(Sampler):
    """A sampler with a copy of another sampler's model."""

    def __init__(self, sampler: Sampler):
        model, records = frozen_copy(sampler.model), sampler.records
        super().__init__(model, sampler.dtype, sampler.noise, records, sampler.past)
        self.sampler = sampler


class DelayedSampler(CopiedSampler):
    """The sampler of `Delayed`; `past` holds the weights that it has yet to use."""

    def __init__(self, policy: Sampler, rollouts: int):
        super().__init__(policy)
        self.rollouts = rollouts
        pairs = zip(policy.model.parameters(), self.model.parameters(), strict=True)
        self.copies = [copy for p, copy in pairs if p.requires_grad]
        if not self.copies:
            raise UserError(
                "a delay wraps the policy itself, and not another delay (as that of "
                "sampler_delay) or rounded weights: Rounded()(Delayed(2)(policy))"
            )

    def sync(self) -> None:
        """Store the policy's current weights, and load the oldest stored ones."""
        self.past.append(weights(self.sampler.model))
        del self.past[: -self.rollouts - 1]
        self.load(0)

    def load(self, i: int) -> None:
        """Sample with the stored weights number `i` from now on, 0 for the oldest."""
        nn.utils.vector_to_parameters(self.past[i], self.copies)


class InFlightSampler(DelayedSampler):
    """The sampler of `InFlight`."""

    def __init__(self, policy: Sampler, rollouts: int, tokens: int):
        super().__init__(policy, rollouts)
        self.tokens = tokens
        if self.dtype == "bfloat16" or decoder(self.model) is not Decoder:
            raise UserError(
                "InFlight cannot change weights that the sampler has copied: sample in "
                "float32, without refimpl.pretrained.fast"
            )

    def respond(self, *arguments, **keywords) -> Rollout:
        """Sample, and load the next weights after every `tokens` tokens."""
        passes = itertools.count()  # pass t computes the distribution of token t

        def renew(*_) -> None:
            newer, token = divmod(next(passes), self.tokens)
            if token == 0:
                self.load(min(newer, len(self.past) - 1))

        with self.model.register_forward_pre_hook(renew):
            return super().respond(*arguments, **keywords)


class RoundedSampler(CopiedSampler):
    """The sampler of `Rounded`."""

    def __init__(self, sampler: Sampler):
        super().__init__(sampler)
        if isinstance(sampler, RoundedSampler):
            raise UserError("rollout_dtype='int8' and Rounded are the same: give one")

    def sync(self) -> None:
        """Synchronise the other sampler, and round its weights."""
        self.sampler.sync()
        exact = self.sampler.model
        for p, copy in zip(exact.parameters(), self.model.parameters(), strict=True):
            copy.data = p.detach()
        for p in matrices(self.model):
            p.data = rounded(p.data)


def matrices(model: Model) -> list[nn.Parameter]:
    """Return the weights that an engine rounds."""
    spared: list[Any] = [model.get_input_embeddings(), model.get_output_embeddings()]
    spared += routers(model)
    kept = {id(p) for layer in spared if layer is not None for p in layer.parameters()}
    return [
        p
        for name, p in model.named_parameters()
        if p.ndim > 1 and p.is_floating_point() and "lora_" not in name
        if id(p) not in kept
    ]


def rounded(w: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows d"]:
    """Round each row of `w` to multiples of max |w| / 127."""
    rows = w.flatten(0, -2)
    scale = (rows.abs().amax(-1) / 127).clamp(min=torch.finfo(w.dtype).tiny)
    zero = torch.zeros_like(scale, dtype=torch.int32)
    steps = torch.fake_quantize_per_channel_affine(rows, scale, zero, 0, -127, 127)
    return steps.view_as(w)
