"""Samplers that differ from the policy as an inference engine does.

    train("grpo", sampler=Delayed(4))

`Delayed` and `Rounded` are functions of the policy's sampler. The sampler that they
return has a model of its own, and `sync` updates it from the policy, before the first
rollout and after the updates of each rollout.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from refimpl.models import Model, frozen_copy, weights
from refimpl.moe import routers
from refimpl.sampling import Sampler
from refimpl.validation import Count, checked


@checked
class Delayed:
    """Sample with the policy's weights of `rollouts` rollouts ago.

    Until there are so many, with the weights at the start of the run.
    """

    rollouts: Count

    def __call__(self, policy: Sampler) -> Sampler:
        return DelayedSampler(policy, self.rollouts)


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
    """A sampler that copies the model of another sampler, and changes the copy."""

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

    def sync(self) -> None:
        """Store the policy's current weights, and load the oldest stored ones."""
        self.past.append(weights(self.sampler.model))
        del self.past[: -self.rollouts - 1]
        nn.utils.vector_to_parameters(self.past[0], self.copies)


class RoundedSampler(CopiedSampler):
    """The sampler of `Rounded`."""

    def __init__(self, sampler: Sampler):
        super().__init__(sampler)
        self.rounds = _matrices(self.model)

    def sync(self) -> None:
        """Synchronise the other sampler, and round its weights."""
        self.sampler.sync()
        exact = self.sampler.model.named_parameters()
        for (name, p), copy in zip(exact, self.model.parameters(), strict=True):
            copy.data = rounded(p.detach()) if name in self.rounds else p.detach()


def _matrices(model: Model) -> set[str]:
    """Return the names of the weights that an engine rounds."""
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    layers: list[nn.Module] = [layer for layer in ends if layer is not None]
    layers += routers(model)
    spared = {id(p) for layer in layers for p in layer.parameters()}
    return {
        name
        for name, p in model.named_parameters()
        if p.ndim > 1 and p.is_floating_point() and "lora_" not in name
        if id(p) not in spared
    }


def rounded(w: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows d"]:
    """Round each row of `w` to multiples of max |w| / 127."""
    rows = w.flatten(0, -2)
    scale = (rows.abs().amax(-1) / 127).clamp(min=torch.finfo(w.dtype).tiny)
    zero = torch.zeros_like(scale, dtype=torch.int32)
    steps = torch.fake_quantize_per_channel_affine(rows, scale, zero, 0, -127, 127)
    return steps.view_as(w)
