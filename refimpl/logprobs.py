"""Log-probs of given responses, for all tokens of a response in one pass.

This is teacher forcing: each token is predicted from the sampled tokens before it. The
sampler, with its cache, must give the same log-probs, which `check_sampling` tests
before a run.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from refimpl.config import TrainConfig
from refimpl.models import Model, at_least_float32, precision, trained, vocabulary
from refimpl.moe import Drift
from refimpl.rollout import Rollout
from refimpl.sampling import Sampling, sample, sample_ids, without_dropout
from refimpl.validation import Positive, UserError, guarded, one_line, shown


class Reading(NamedTuple):
    """The result of a pass over a rollout: log-probs and entropies, (B, T), nats.

    `routers` compares the routers with the rollout's record, if there is one.
    """

    logp: Float[Tensor, "B T"]
    entropy: Float[Tensor, "B T"]
    routers: Drift | None = None


@guarded
def log_probs(
    model: Model, rollout: Rollout, temperature: Positive = 1.0
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Compute teacher-forced log-probs of the response tokens, and entropies, in nats.

    Both are differentiable, and 0 outside the mask. The entropy is the exact one of the
    whole next-token distribution at the sampling temperature. (For long prompts and
    large vocabularies, `refimpl.pretrained.logprobs` needs less memory.)
    """
    logits = response_logits(model, rollout)
    logp, entropy = of_logits(logits, rollout.tokens, temperature)
    return logp * rollout.mask, entropy * rollout.mask


def response_logits(model: Model, rollout: Rollout) -> Float[Tensor, "B T V"]:
    """Compute the logits that predict each response token, arbitrary on padding."""
    total = rollout.ids.shape[1]
    # Logits inside the prompts are not needed, except the last ones of the shortest.
    keep = total - int(rollout.prompt_length.min()) + 1
    logits = model(rollout.ids, logits_to_keep=keep, use_cache=False).logits
    first = total - logits.shape[1]  # some models ignore `logits_to_keep`
    # The logits at a position predict the token after it, hence − 1.
    where = (rollout.positions - 1 - first)[:, :, None]
    return logits.gather(1, where.expand(-1, -1, logits.shape[-1]))


def of_logits(logits: Tensor, tokens: Tensor, temperature: float):
    """Compute log-probs of `tokens` (…) and entropies of `logits` (…, V), nats."""
    # In half precision a log-softmax errs by as much as ratios differ from 1.
    logits = at_least_float32(logits)
    if temperature != 1:
        logits = logits / temperature
    distribution = logits.log_softmax(-1)
    logp = distribution.gather(-1, tokens[..., None])[..., 0]
    return logp, -(distribution.exp() * distribution).sum(-1)


@guarded
def values(
    critic: Model, rollout: Rollout, dtype: str = "float32"
) -> Float[Tensor, "B T"]:
    """Compute V(q, o_<t) before each response token, in reward units.

    `critic` is made by `models.make_critic`. Raises `UserError` if it does not give one
    number per token.
    """
    with precision(critic, dtype):
        logits = critic(rollout.ids, use_cache=False).logits
    if (size := logits.shape[-1]) != 1:
        raise UserError(
            f"critic must give one number per token, like one of make_critic; "
            f"{type(critic).__name__} gives {size}"
        )
    outputs = at_least_float32(logits[:, :, 0])
    return outputs.gather(1, rollout.positions - 1) * rollout.mask


@torch.no_grad()
def check_sampling(model: PreTrainedModel) -> None:
    """Raise `UserError` if `sampling` does not work for this architecture.

    Draws sixteen short responses to prompts of two lengths. The model's cache must
    allow copying and selecting rows, and the sampler must agree with teacher forcing.
    """
    kind, size, temperature = type(model).__name__, vocabulary(model), 10.0
    prompts = [[n % size for n in range(1, length)] for length in (3, 6)]
    # A high temperature, with every third token as an end, so that rows finish at
    # different steps.
    sampling = Sampling(group_size=8, max_new_tokens=4, temperature=temperature)
    ends = torch.arange(0, size, 3, device=model.device)
    draws = torch.Generator(model.device).manual_seed(0)
    try:
        with without_dropout(model):
            rollout = sample_ids(model, prompts, ends, sampling, draws)
            again, _ = log_probs(model, rollout, temperature)
    except UserError as error:
        raise UserError(f"{kind} cannot be sampled from: {error}") from error
    except Exception as error:  # other kinds of models raise many kinds of errors
        raise UserError(
            f"{kind} cannot be sampled from here: the sampler needs a causal "
            "transformer with a key-value cache whose rows can be copied and "
            f"selected ({one_line(error, 120)})"
        ) from error
    gap = temperature * (again - rollout.logp).abs().max().item()
    spread = temperature * rollout.logp[rollout.mask.bool()].std().item()
    # A hundredth of the log-probs' spread. Rounding errors are far smaller than that.
    allowed = 1e-4 + 1e-2 * min(1.0, spread) + 100 * torch.finfo(model.dtype).eps
    if not gap < allowed:
        raise UserError(
            f"{kind} gives a sampled token other log-probs with a cache than without "
            f"one (they differ by {gap:.2g} nats): its state is not a key-value cache, "
            "or it does not accept left-padded prompts"
        )


LARGEST_GAP = {"bfloat16": 0.05, "float32": 0.005, "float64": 0.005}
"""Nats per token. Rounding stays below this; a wrong sign, a shift by one token or a
forgotten temperature exceeds it."""


def check_reader(
    read: Callable, model: Model, tokenizer, prompts: list[str], config: TrainConfig
) -> None:
    """Raise `UserError` unless the log-probs of `read` are those of `log_probs`.

    Otherwise a run would train to its end on meaningless ratios. They are compared on
    two short responses to each of the `prompts`.
    """
    temperature, limit = config.temperature, min(8, config.max_new_tokens)
    few = config.sampling | {"max_new_tokens": limit, "group_size": 2}
    # Two contexts: weights that autocast cached for sampling have no gradient.
    with precision(model, config.dtype):
        rollout = sample(model, tokenizer, prompts, **few)
    with precision(model, config.dtype), torch.enable_grad():
        expected, _ = log_probs(model, rollout, temperature)
        result: Any = read(model, rollout, temperature)
    pair = result if isinstance(result, tuple) else ()
    if [getattr(x, "shape", None) for x in pair] != [expected.shape] * 2:
        raise UserError(
            f"log_probs must return (logp, entropy), each {tuple(expected.shape)}, got "
            f"{shown(result)}"
        )
    logp = result[0]
    # The sum of all gaps is small only if logp is 0 outside the mask, too.
    gap = ((logp - expected).abs().sum() / rollout.mask.sum()).item()
    if not gap < LARGEST_GAP[config.dtype]:
        raise UserError(
            f"log_probs are not those of the policy: they differ by {gap:.2g} nats per "
            f"token from logprobs.log_probs at temperature {temperature:g}. Look at "
            "the sign, the shift by one token, the temperature, and the order "
            "(logp, entropy)"
        )
    if logp.requires_grad:
        logp.sum().backward()
    moved = any(p.grad is not None and p.grad.any() for p in trained(model))
    model.zero_grad()
    if not moved:
        raise UserError(
            "log_probs must return logp with its gradient, not detached, and from the "
            "model that it is given"
        )
