"""Log-probs of large models, for `train(log_probs=…)`: the same numbers as
`refimpl.log_probs` up to rounding, with less memory and less work.

    log_probs     reads each group's prompt once, computes logits in slices
    recomputed    stores no activations, computes them again for the gradient
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from refimpl import logprobs
from refimpl.logprobs import of_logits
from refimpl.models import Model, vocabulary
from refimpl.moe import is_moe
from refimpl.pretrained import sharing
from refimpl.rollout import Rollout
from refimpl.validation import UserError, guarded

_SHARES: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


@guarded
def log_probs(
    model: Model, rollout: Rollout, temperature: float = 1.0
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Like `refimpl.log_probs`, but reads each group's prompt once if that saves time.

    It does if packed rows are much shorter (`sharing.pays`) and the model supports them
    (tested once): a dense model with PyTorch's attention, full in every layer.
    """
    if sharing.pays(rollout) and shares(model):
        return _by_slices(model, sharing.states(model, rollout), rollout, temperature)
    large = rollout.mask.numel() * vocabulary(model) > SLICE
    if not (large and sharing.has_plain_head(model)):
        return logprobs.log_probs(model, rollout, temperature)
    decoder = model.get_decoder()
    states = decoder(rollout.ids, use_cache=False).last_hidden_state
    where = (rollout.positions - 1)[:, :, None].expand(-1, -1, states.shape[-1])
    return _by_slices(model, states.gather(1, where), rollout, temperature)


log_probs.by_group = True  # type: ignore[attr-defined] # keeps groups whole


def shares(model: Model) -> bool:
    """True if the model can read packed rows; tested once per model."""
    if model not in _SHARES:
        _SHARES[model] = sharing.possible(model) and sharing.agrees(model)
    return _SHARES[model]


SLICE = 2**25
"""The most logits in memory at once: 128 MiB in float32, plus the copies of them."""
AGAIN: Any = {"use_reentrant": False, "preserve_rng_state": False}
"""To compute again: nothing draws random numbers, as there is no dropout."""


def _by_slices(model, states: Tensor, rollout: Rollout, temperature: float):
    """`log_probs` from the last hidden states (B, T, H), one slice of tokens at a time.

    With a large vocabulary the logits (B, T, V) are the largest tensor of an update.
    Each slice of them is computed again in the backward pass instead of being stored.
    """
    head, mask = model.get_output_embeddings(), rollout.mask
    real = mask.flatten().nonzero()[:, 0]
    states, tokens = states.flatten(0, 1)[real], rollout.tokens.flatten()[real]
    size = max(1, SLICE // vocabulary(model))

    def score(states, tokens):
        return of_logits(head(states), tokens, temperature)

    if len(tokens) > size and torch.is_grad_enabled():
        score = functools.partial(checkpoint, score, **AGAIN)
    parts = [score(*slices) for slices in zip(states.split(size), tokens.split(size))]
    whole = [torch.cat(part) for part in zip(*parts, strict=True)]
    padded = (x.new_zeros(mask.numel()).scatter(0, real, x) for x in whole)
    return tuple(x.view_as(mask) for x in padded)


@contextlib.contextmanager
def checkpointed(model: Model) -> Iterator[None]:
    """Inside the block, layers store no activations; `backward` computes them again.

    Only the input of each layer is stored, (B, L, d), at the cost of one more forward
    pass. Unlike the switch in `transformers`, it also works in eval mode.
    """
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    if not layers:
        raise UserError(
            f"recomputed: {type(model).__name__} has no layers that can be computed "
            "again (transformers' GradientCheckpointingLayer); leave it off"
        )
    forwards = [vars(layer).get("forward") for layer in layers]
    for layer in layers:
        layer.forward = functools.partial(checkpoint, layer.forward, **AGAIN)
    try:
        yield
    finally:
        for layer, before in zip(layers, forwards):
            del layer.forward
            if before is not None:
                layer.forward = before


def recomputed(read: Callable = log_probs) -> Callable:
    """Return `read` with its layers computed again, for `train(log_probs=…)`."""

    @functools.wraps(read)
    def again(model: Model, rollout: Rollout, temperature: float = 1.0):
        if is_moe(model):
            raise UserError(
                f"recomputed: the experts of {type(model).__name__} that are recorded "
                "or replayed in the forward pass would be chosen again when its layers "
                "are computed again; make micro_batch_size smaller instead"
            )
        with checkpointed(model):
            return read(model, rollout, temperature)

    return again
