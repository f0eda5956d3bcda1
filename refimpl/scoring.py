"""The log-probs of responses that are there: a whole response at once.

Teacher forcing: every token is read with those before it as they were sampled. What
the sampler said of the same tokens, with its cache, must agree; `check_sampling` tries
that on every model before a run.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from refimpl import moe
from refimpl.arguments import guarded
from refimpl.models import Model, vocabulary
from refimpl.real import sharing
from refimpl.rollout import Rollout, pad_token, sample_ids, without_dropout
from refimpl.settings import Positive


@guarded
def log_probs(
    model: Model,
    rollout: Rollout,
    temperature: Positive = 1.0,
    share_prompts: bool = False,
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Teacher-forced log-probs of the response tokens, and entropies, in nats.

    Differentiable. Both are 0 outside the mask. The entropy is that of the whole
    next-token distribution, exact, at the sampling temperature.

    `share_prompts` reads each group's prompt once (see `sharing.py`): the same numbers
    up to rounding, at a fraction of the work where prompts are long.
    """
    if share_prompts:
        states = sharing.states(model, rollout)
        return _by_slices(model, states, rollout, temperature)
    if rollout.mask.numel() * vocabulary(model) > SLICE and sharing.has_plain_head(
        model
    ):
        states = model.get_decoder()(rollout.ids, use_cache=False).last_hidden_state
        where = (rollout.positions - 1)[:, :, None].expand(-1, -1, states.shape[-1])
        return _by_slices(model, states.gather(1, where), rollout, temperature)
    total = rollout.ids.shape[1]
    keep = total - int(rollout.prompt_length.min()) + 1  # the earliest that is needed
    logits = model(rollout.ids, logits_to_keep=keep, use_cache=False).logits
    first = total - logits.shape[1]  # some models keep all, whatever they are told
    where = (rollout.positions - 1 - first)[:, :, None]
    chosen = logits.gather(1, where.expand(-1, -1, logits.shape[-1]))
    logp, entropy = _of_logits(chosen, rollout.tokens, temperature)
    return logp * rollout.mask, entropy * rollout.mask


SLICE = 2**24
"""Logits that may stand in memory at once: 64 MiB in float32, and its copies."""


def _by_slices(model, states: Tensor, rollout: Rollout, temperature: float):
    """`log_probs` from the last hidden states (B, T, H), a slice of tokens at a time.

    A large vocabulary makes (B, T, V) logits the largest tensor of an update. A slice's
    are made again in the backward pass instead of kept.
    """
    head, real = model.get_output_embeddings(), rollout.mask.bool()
    states, tokens = states[real], rollout.tokens[real]
    size = max(1, SLICE // vocabulary(model))

    def score(states, tokens):
        return _of_logits(head(states), tokens, temperature)

    parts = [
        checkpoint(score, s, t, use_reentrant=False)
        if len(tokens) > size and torch.is_grad_enabled()
        else score(s, t)
        for s, t in zip(states.split(size), tokens.split(size))
    ]
    found = []
    for part in zip(*parts, strict=True):
        values = torch.cat(part)
        found.append(values.new_zeros(real.shape).masked_scatter(real, values))
    return found[0], found[1]


def _of_logits(logits: Tensor, tokens: Tensor, temperature: float):
    """Log-probs of `tokens` (…) and entropies of `logits` (…, V), nats."""
    distribution = (moe.wide(logits) / temperature).log_softmax(-1)
    logp = distribution.gather(-1, tokens[..., None])[..., 0]
    return logp, -(distribution.exp() * distribution).sum(-1)


@guarded
def values(critic: Model, rollout: Rollout) -> Float[Tensor, "B T"]:
    """V(q, o_<t) before each response token, from a critic of `models.make_critic`."""
    logits = critic(rollout.ids, use_cache=False).logits
    if logits.shape[-1] != 1:
        raise ValueError(
            f"critic must give one number per token, as make_critic's does; "
            f"{type(critic).__name__} gives {logits.shape[-1]}"
        )
    every = moe.wide(logits[:, :, 0])
    return every.gather(1, rollout.positions - 1) * rollout.mask


@torch.no_grad()
def check_sampling(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise `ValueError` if this architecture cannot be sampled from as we do it.

    Sixteen short responses to prompts of two lengths: the cache must be one whose rows
    can be copied and selected, and the sampler must agree with teacher forcing.
    """
    kind, hot = type(model).__name__, 10.0
    vocabulary = model.get_input_embeddings().weight.shape[0]
    prompts = [[n % vocabulary for n in row] for row in ([1, 2], [1, 2, 3, 4, 5])]
    # Hot, and with every third token an end, so that rows leave at different times.
    ends = torch.arange(0, vocabulary, 3, device=model.device)
    generator = torch.Generator(model.device).manual_seed(0)
    pad = pad_token(tokenizer)
    try:
        with without_dropout(model):
            rollout = sample_ids(model, prompts, ends, pad, 8, 4, hot, generator, None)
            again, _ = log_probs(model, rollout, hot)
    except Exception as error:  # whatever a model raises that is no such transformer
        said = " ".join(str(error).split())[:100]
        raise ValueError(
            f"{kind} cannot be sampled from here: the sampler needs a causal "
            "transformer with a key-value cache whose rows can be copied and "
            f"selected ({type(error).__name__}: {said})"
        ) from error
    gap = hot * (again - rollout.logp).abs().max().item()
    spread = hot * rollout.logp[rollout.mask.bool()].std().item()
    # A hundredth of what log-probs differ by; rounding is a thousandth of that.
    allowed = 1e-4 + 1e-2 * min(1.0, spread) + 100 * torch.finfo(model.dtype).eps
    if not gap < allowed:
        raise ValueError(
            f"{kind} gives a sampled token other log-probs with a cache than without "
            f"one (they differ by {gap:.2g} nats): its state is no key-value cache, "
            "or it does not take left-padded prompts"
        )
