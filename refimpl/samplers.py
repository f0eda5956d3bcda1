"""Samplers that differ from the policy as an inference engine does.

    Rounded(Delayed(Policy(model), rollouts=2), "int8")

Each has a `model`, which computes what the sampler does, in the precision `dtype`; and
`sync` delivers the weights of the policy: before the first rollout, and after updates.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from refimpl.models import Model, frozen_copy, weights
from refimpl.moe import routers
from refimpl.sampling import Policy


class CopiedSampler(Policy):
    """Another sampler, with a copy of its weights."""

    def __init__(self, sampler: Policy):
        model, records = frozen_copy(sampler.model), sampler.records
        super().__init__(model, sampler.dtype, sampler.noise, records, sampler.past)
        self.sampler = sampler


class Delayed(CopiedSampler):
    """Its weights are the policy's of so many rollouts ago, or the first ones."""

    def __init__(self, policy: Policy, rollouts: int):
        super().__init__(policy)
        self.rollouts = rollouts
        pairs = zip(policy.model.parameters(), self.model.parameters(), strict=True)
        self.copies = [copy for p, copy in pairs if p.requires_grad]

    def sync(self) -> None:
        """Keep the policy's weights of now, and take over the oldest that are kept."""
        self.past.append(weights(self.sampler.model))
        del self.past[: -self.rollouts - 1]
        nn.utils.vector_to_parameters(self.past[0], self.copies)


class Rounded(CopiedSampler):
    """Its weights are those of another sampler, rounded to int8.

        w ← s · round(w / s)    s = max |w| of the row / 127

    for each row of each matrix, but for the embeddings, the output layer, routers and a
    LoRA, which engines leave alone. Activations stay as they are ("weight-only").
    """

    def __init__(self, sampler: Policy):
        super().__init__(sampler)
        self.rounds = _matrices(self.model)

    def sync(self) -> None:
        """Round the weights as they are now."""
        self.sampler.sync()
        exact = self.sampler.model.named_parameters()
        for (name, p), copy in zip(exact, self.model.parameters(), strict=True):
            copy.data = rounded(p.detach()) if name in self.rounds else p.detach()


def _matrices(model: Model) -> set[str]:
    """The names of what an engine rounds."""
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
    """Each row of `w` as 255 steps of one size."""
    rows = w.flatten(0, -2)
    scale = (rows.abs().amax(-1) / 127).clamp(min=torch.finfo(w.dtype).tiny)
    zero = torch.zeros_like(scale, dtype=torch.int32)
    steps = torch.fake_quantize_per_channel_affine(rows, scale, zero, 0, -127, 127)
    return steps.view_as(w)
