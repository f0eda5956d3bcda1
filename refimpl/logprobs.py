"""The log-probs of responses that are there: a whole response at once.

Teacher forcing: every token is read with those before it as they were sampled. The
sampler, with its cache, must say the same; `check_sampling` tries that before a run.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from refimpl.models import Model, vocabulary, wide
from refimpl.moe import Drift
from refimpl.rollout import Rollout
from refimpl.sampling import Sampling, sample_ids, without_dropout
from refimpl.validation import Positive, UserError, guarded, one_line


class Reading(NamedTuple):
    """The result of a pass over a rollout: log-probs and entropies of its tokens,
    (B, T), nats; and how far its routers have drifted, where they are on record."""

    logp: Float[Tensor, "B T"]
    entropy: Float[Tensor, "B T"]
    routers: Drift | None = None


@guarded
def log_probs(
    model: Model, rollout: Rollout, temperature: Positive = 1.0
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Teacher-forced log-probs of the response tokens, and entropies, in nats.

    Differentiable. Both are 0 outside the mask. The entropy is that of the whole
    next-token distribution, exact, at the sampling temperature. (For long prompts and
    large vocabularies `refimpl.pretrained.logprobs` has the same with less memory.)
    """
    total = rollout.ids.shape[1]
    keep = total - int(rollout.prompt_length.min()) + 1  # the earliest that is needed
    logits = model(rollout.ids, logits_to_keep=keep, use_cache=False).logits
    first = total - logits.shape[1]  # some models keep all, whatever they are told
    where = (rollout.positions - 1 - first)[:, :, None]
    logits = logits.gather(1, where.expand(-1, -1, logits.shape[-1]))
    logp, entropy = of_logits(logits, rollout.tokens, temperature)
    return logp * rollout.mask, entropy * rollout.mask


def of_logits(logits: Tensor, tokens: Tensor, temperature: float):
    """Log-probs of `tokens` (…) and entropies of `logits` (…, V), nats."""
    logits = wide(logits)
    if temperature != 1:
        logits = logits / temperature
    distribution = logits.log_softmax(-1)
    logp = distribution.gather(-1, tokens[..., None])[..., 0]
    return logp, -(distribution.exp() * distribution).sum(-1)


@guarded
def values(critic: Model, rollout: Rollout) -> Float[Tensor, "B T"]:
    """V(q, o_<t) before each response token, from a critic of `models.make_critic`."""
    logits = critic(rollout.ids, use_cache=False).logits
    if logits.shape[-1] != 1:
        raise UserError(
            f"critic must give one number per token, as make_critic's does; "
            f"{type(critic).__name__} gives {logits.shape[-1]}"
        )
    every = wide(logits[:, :, 0])
    return every.gather(1, rollout.positions - 1) * rollout.mask


@torch.no_grad()
def check_sampling(model: PreTrainedModel) -> None:
    """Raise `UserError` if this architecture cannot be sampled from as we do it.

    Sixteen short responses to prompts of two lengths: the cache must be one whose rows
    can be copied and selected, and the sampler must agree with teacher forcing.
    """
    kind, known, temperature = type(model).__name__, vocabulary(model), 10.0
    prompts = [[n % known for n in range(1, length)] for length in (3, 6)]
    # Hot, and with every third token an end, so that rows leave at different times.
    sampling = Sampling(group_size=8, max_new_tokens=4, temperature=temperature)
    ends = torch.arange(0, known, 3, device=model.device)
    draws = torch.Generator(model.device).manual_seed(0)
    try:
        with without_dropout(model):
            rollout = sample_ids(model, prompts, ends, sampling, draws)
            again, _ = log_probs(model, rollout, temperature)
    except UserError as error:
        raise UserError(f"{kind} cannot be sampled from: {error}") from error
    except Exception as error:  # whatever a model raises that is no such transformer
        raise UserError(
            f"{kind} cannot be sampled from here: the sampler needs a causal "
            "transformer with a key-value cache whose rows can be copied and "
            f"selected ({one_line(error, 120)})"
        ) from error
    gap = temperature * (again - rollout.logp).abs().max().item()
    spread = temperature * rollout.logp[rollout.mask.bool()].std().item()
    # A hundredth of what log-probs differ by; rounding is a thousandth of that.
    allowed = 1e-4 + 1e-2 * min(1.0, spread) + 100 * torch.finfo(model.dtype).eps
    if not gap < allowed:
        raise UserError(
            f"{kind} gives a sampled token other log-probs with a cache than without "
            f"one (they differ by {gap:.2g} nats): its state is no key-value cache, "
            "or it does not take left-padded prompts"
        )
