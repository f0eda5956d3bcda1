"""Sampling responses: token by token, with a key-value cache.

`scoring.log_probs` reads the same responses at once, and the two must agree. Both
divide the logits by the temperature, so π_old is the policy that really sampled.
"""

import contextlib
from collections.abc import Collection, Iterator
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from refimpl import seeds
from refimpl.batch import Rollout
from refimpl.checks import Count, Positive, Seed, UserError, guarded
from refimpl.models import Model, vocabulary, wide

Nucleus = Annotated[float, Field(gt=0, le=1)]
"""top_p: a nucleus holds at least one token, so 0 is no share of it."""


class Sampling(NamedTuple):
    """How responses are drawn: G to a prompt, lengths in tokens.

    Which tokens may be drawn: top_k and top_p; None, and top_p = 1, remove none.
    """

    group_size: int = 1
    max_new_tokens: int = 48
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    @property
    def truncates(self) -> bool:
        """Whether some tokens cannot be drawn."""
        return self.top_k is not None or self.top_p not in (None, 1)


def log_distribution(
    logits: Float[Tensor, "... V"], sampling: Sampling
) -> Float[Tensor, "... V"]:
    """Log-probs, nats, of the distribution that is drawn from; −∞ for what is removed.

    In this order, as in transformers, each on what the one before it left:

        temperature   logits / temperature
        top_k         the k most likely, and all that tie with the k-th
        top_p         the fewest of the most likely with Σ p ≥ top_p (Holtzman et al.
                      2019, 1904.09751)

    The most likely token always stays. Σ p = 1 over those that are kept.
    """
    logits = wide(logits) / sampling.temperature
    if sampling.top_k is not None:
        kth = logits.topk(min(sampling.top_k, logits.shape[-1])).values[..., -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    if sampling.top_p not in (None, 1):
        prob, order = logits.softmax(-1).sort(stable=True, dim=-1, descending=True)
        enough = prob.cumsum(-1) - prob >= sampling.top_p  # without the token itself
        logits = logits.masked_fill(enough.scatter(-1, order, enough), -torch.inf)
    return logits.log_softmax(-1)


PART = 256
"""Tokens per part of a large vocabulary, of 16 parts or more; see `draw`."""


def draw(
    prob: Float[Tensor, "B V"], generator: torch.Generator | None = None
) -> Int[Tensor, "B 1"]:
    """One token per row, token v with probability `prob[:, v]`; never one of 0.

    `torch.multinomial` takes a random number for every entry, on a CPU a fifth of a
    step's time with V = 49,152. Of a large vocabulary, first a part of PART tokens is
    drawn by its probability, then a token in it: P(v) = P(part) · P(v | part).
    """
    vocabulary = prob.shape[-1]
    if vocabulary < 16 * PART:
        return torch.multinomial(prob, 1, generator=generator)
    parts = F.pad(prob, (0, -vocabulary % PART)).unflatten(-1, (-1, PART))
    part = torch.multinomial(parts.sum(-1), 1, generator=generator)
    inside = parts.take_along_dim(part[:, :, None], 1)[:, 0]
    return part * PART + torch.multinomial(inside, 1, generator=generator)


@guarded
def sample(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Collection[str],
    *,
    group_size: Count = 1,
    max_new_tokens: Count = 48,
    temperature: Positive = 1.0,
    top_p: Nucleus | None = None,
    top_k: Count | None = None,
    seed: Seed = 0,
) -> Rollout:
    """`group_size` responses to each prompt; rows of one prompt stand together.

    The same seed gives the same responses; the global generator is not touched.
    `top_k` and `top_p` draw from a part of the vocabulary, after the temperature (see
    `log_distribution`; None: all of it). `logp` and `entropy` are then those of the
    distribution drawn from, no longer the policy's: `log_probs` gives less.

    Raises `UserError` if a prompt is empty, or a prompt and `max_new_tokens` together
    are longer than the model allows. There is no temperature 0, for it leaves no
    distribution to take a log-prob of; 0.01 is close to it.
    """
    encoded = encode(tokenizer, prompts)
    check_prompts(model, prompts, encoded, max_new_tokens)
    sampling = Sampling(group_size, max_new_tokens, temperature, top_k, top_p)
    generator = seeds.generator(seed, model.device)
    ends, pad = end_tokens(model, tokenizer), pad_token(tokenizer)
    with without_dropout(model):
        return sample_ids(model, encoded, ends, pad, sampling, generator)


class Decoded(NamedTuple):
    """What was drawn, (B, T); `done`, (B,), whether an end was."""

    tokens: Int[Tensor, "B T"]
    logp: Float[Tensor, "B T"]
    entropy: Float[Tensor, "B T"]
    done: Tensor


def sample_ids(
    model: Model,
    encoded: list[list[int]],
    ends: Int[Tensor, " n"],
    pad: int,
    sampling: Sampling,
    generator: torch.Generator,
) -> Rollout:
    """`sample` on prompts that are token ids already."""
    width = max(map(len, encoded))
    ids = [[pad] * (width - len(row)) + row for row in encoded]  # left-padded
    real = [[0] * (width - len(row)) + [1] * len(row) for row in encoded]
    prompts = torch.tensor(ids, device=model.device)
    attention = torch.tensor(real, device=model.device)
    decoded = _decode(model, prompts, attention, ends, sampling, generator)
    # Tensors born in inference mode cannot enter a graph; ordinary copies can.
    decoded = Decoded(*(x.clone() for x in decoded))
    group = torch.arange(len(encoded), device=model.device)
    group = group.repeat_interleave(sampling.group_size)
    return _pack(prompts[group], attention[group], decoded, group, ends, pad)


@torch.inference_mode()
def _decode(model, prompts, attention, ends, sampling, generator) -> Decoded:
    """Up to `max_new_tokens` tokens a row; rows leave the batch when they end."""
    G, limit = sampling.group_size, sampling.max_new_tokens
    (n, width), device = prompts.shape, prompts.device
    tokens = prompts.new_zeros(n * G, limit)
    logp = wide(torch.zeros(n * G, limit, dtype=model.dtype, device=device))
    entropy = torch.zeros_like(logp)
    done = torch.zeros(n * G, dtype=torch.bool, device=device)
    attention = torch.cat([attention, attention.new_ones(n, limit)], 1)
    position = (attention.cumsum(-1) - 1).clamp(min=0)
    cache = DynamicCache(config=model.config)
    row = torch.arange(n * G, device=device)  # rows that are still being written
    step, start = prompts, 0
    for t in range(limit):
        end = width + t
        # 1. Read the prompts once, then one token a row.
        logits = model(
            step,
            attention_mask=attention[:, :end],
            position_ids=position[:, start:end],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        # 2. After the prompts: copy each one's cache for its G responses.
        if t == 0:
            cache.batch_repeat_interleave(G)
            logits, attention, position = (
                x.repeat_interleave(G, 0) for x in (logits, attention, position)
            )
        # 3. Draw a token for every row, and keep what was known of it.
        log_prob = log_distribution(logits, sampling)
        prob = log_prob.exp()
        step = draw(prob, generator)
        tokens[row, t] = step[:, 0]
        logp[row, t] = log_prob.gather(1, step)[:, 0]
        if sampling.truncates:  # 0 · log 0 = 0
            log_prob = log_prob.masked_fill(prob == 0, 0.0)
        entropy[row, t] = -(prob * log_prob).sum(-1)
        start = end
        # 4. Drop the rows that have ended.
        ended = (step == ends).any(-1)
        if ended.any():
            done[row[ended]] = True
            keep = (~ended).nonzero()[:, 0]
            if not len(keep):
                break
            row, step = row[keep], step[keep]
            attention, position = attention[keep], position[keep]
            cache.batch_select_indices(keep)
    return Decoded(tokens[:, : t + 1], logp[:, : t + 1], entropy[:, : t + 1], done)


def _pack(prompts, attention, decoded: Decoded, group, ends, pad) -> Rollout:
    """Close the gap: from left-padded prompts to right-padded rows."""
    length, (batch, width) = attention.sum(-1), prompts.shape
    tokens, device = decoded.tokens, prompts.device
    steps = torch.arange(tokens.shape[1], device=device)
    end = (tokens[:, :, None] == ends).any(-1)
    first_end = torch.where(end.any(-1), end.int().argmax(-1), tokens.shape[1])
    mask = steps <= first_end[:, None]
    joined = torch.cat([prompts, torch.where(mask, tokens, pad)], 1)
    columns = torch.arange(joined.shape[1], device=device)
    shift = (width - length)[:, None]
    packed = joined.gather(1, (columns + shift).clamp(max=joined.shape[1] - 1))
    real = columns < (length + mask.sum(-1))[:, None]
    rollout = Rollout(
        ids=torch.where(real, packed, pad),
        prompt_length=length,
        mask=mask.float(),
        logp=torch.where(mask, decoded.logp, 0.0),
        entropy=torch.where(mask, decoded.entropy, 0.0),
        truncated=~decoded.done,
        group=group,
    )
    return rollout.rows(torch.arange(batch, device=device))


@contextlib.contextmanager
def without_dropout(model: Model) -> Iterator[None]:
    """In eval mode inside the block, as before after it."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def end_tokens(model: PreTrainedModel, tokenizer) -> Int[Tensor, " n"]:
    """All tokens that end a response: the tokenizer's and the generation config's."""
    config = getattr(model, "generation_config", None)
    more = getattr(config, "eos_token_id", None)
    more = more if isinstance(more, list | tuple) else [more]
    ends = {tokenizer.eos_token_id, *more} - {None}
    return torch.tensor(sorted(ends), device=model.device)


def pad_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """Padding is never read, so where a tokenizer has no token for it, EOS will do."""
    pad = tokenizer.pad_token_id
    return tokenizer.eos_token_id if pad is None else pad


def encode(
    tokenizer: PreTrainedTokenizerBase, prompts: Collection[str]
) -> list[list[int]]:
    """Prompts as token ids, with one BOS token where both would write one.

    Many chat templates begin with it, and many tokenizers add it: a model that finds
    two was never trained on that. Raises `UserError` if a prompt is no text, or empty.
    """
    prompts = list(prompts)
    if not prompts:
        raise UserError("there must be at least one prompt")
    for prompt in prompts:
        if not isinstance(prompt, str) or not prompt:
            raise UserError(f"a prompt must be a non-empty string, got {prompt!r}")
    rows = tokenizer(prompts)["input_ids"]
    bos = [tokenizer.bos_token_id]
    if bos == [None] or tokenizer("")["input_ids"][:1] != bos:
        return rows  # the tokenizer adds none
    return [row[1:] if row[:2] == 2 * bos else row for row in rows]


def check_prompts(
    model: Model,
    prompts: Collection[str],
    encoded: list[list[int]],
    max_new_tokens: int,
) -> None:
    """Raise `UserError` if a prompt has no token, one that the model does not know, or
    leaves too little room for a response."""
    lengths, known = [len(ids) for ids in encoded], vocabulary(model)
    limit = getattr(model.config, "max_position_embeddings", None)
    if min(lengths) == 0:
        empty = list(prompts)[lengths.index(0)]
        raise UserError(
            f"the tokenizer makes no token of the prompt {empty!r}: a response needs "
            "something to follow"
        )
    if (largest := max(map(max, encoded))) >= known:
        raise UserError(
            f"the tokenizer gives the token {largest}, the model has only {known}: "
            "load both from the same place"
        )
    if limit is not None and max(lengths) + max_new_tokens > limit:
        raise UserError(
            f"the longest prompt has {max(lengths)} tokens and max_new_tokens is "
            f"{max_new_tokens}, together more than the {limit} positions of the model; "
            "shorten one of them"
        )
