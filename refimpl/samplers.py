"""A sampler that is not the policy, as an inference engine is not.

    Rounded(Delayed(Policy(model), rollouts=2), "int8")

Each has a `model`, which computes what the sampler does, in the precision `dtype`; and
`sync`, called once per rollout, delivers the policy's weights. What wraps another has a
copy of the weights of its own.
"""

from collections.abc import Collection

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from refimpl import moe, seeds
from refimpl.batch import Rollout
from refimpl.models import Model, frozen_copy, precision, trained, weights
from refimpl.sampling import sample


class Policy:
    """The sampler is the policy, but for its precision and the `noise` on its routers.

    `records`: of a mixture of experts, a rollout keeps the experts that were visited.
    """

    def __init__(
        self,
        model: Model,
        dtype: str = "float32",
        noise: float = 0.0,
        records: bool = False,
    ):
        self.model, self.dtype = model, dtype
        self.noise, self.records = noise, records
        self.past: list[Float[Tensor, " P"]] = []  # weights on their way, oldest first

    def sync(self) -> None:
        """Nothing is to be delivered."""

    def respond(
        self,
        tokenizer: PreTrainedTokenizerBase,
        prompts: Collection[str],
        seed: int,
        noise_seed: int,
        **settings,
    ) -> Rollout:
        """`sample` with the weights that are there; `settings` are those it takes."""

        def drawn() -> Rollout:
            with precision(self.model, self.dtype):
                return sample(self.model, tokenizer, prompts, seed=seed, **settings)

        if not self.records:
            return drawn()
        generator = seeds.generator(noise_seed, self.model.device)
        with moe.routed(self.model, noise=self.noise, generator=generator) as routing:
            return moe.recorded(drawn(), routing)


class Delayed(Policy):
    """Its weights are the policy's of so many rollouts ago, or the first ones."""

    def __init__(self, policy: Policy, rollouts: int):
        super().__init__(
            frozen_copy(policy.model), policy.dtype, policy.noise, policy.records
        )
        self.policy, self.rollouts = policy.model, rollouts
        names = [n for n, p in self.policy.named_parameters() if p.requires_grad]
        copies = dict(self.model.named_parameters())
        self.copies = [copies[name] for name in names]

    def sync(self) -> None:
        """Keep the policy's weights of now, and take over the oldest that are kept."""
        self.past.append(weights(self.policy))
        del self.past[: -self.rollouts - 1]
        parts = self.past[0].split([p.numel() for p in trained(self.policy)])
        for copy, part in zip(self.copies, parts, strict=True):
            copy.data = part.view_as(copy)


class Rounded(Policy):
    """Its weights are those of another sampler, rounded to int8.

        w ← s · round(w / s)    s = max |w| of the row / 127

    for each row of each matrix, but for the embeddings, the output layer, routers and a
    LoRA, which engines leave alone. Activations stay as they are ("weight-only").
    """

    def __init__(self, sampler: Policy):
        super().__init__(
            frozen_copy(sampler.model), sampler.dtype, sampler.noise, sampler.records
        )
        self.sampler, self.rounds = sampler, _matrices(self.model)
        self.past = sampler.past  # the same list

    def sync(self) -> None:
        """Round the weights as they are now."""
        self.sampler.sync()
        exact = self.sampler.model.named_parameters()
        copies = dict(self.model.named_parameters())
        for name, p in exact:
            p = p.detach()
            copies[name].data = rounded(p) if name in self.rounds else p


def _matrices(model: Model) -> set[str]:
    """The names of what an engine rounds."""
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    layers: list[nn.Module] = [layer for layer in ends if layer is not None]
    layers += moe.routers(model)
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
