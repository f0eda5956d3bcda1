"""Sampling responses: token by token, with a KV cache.

`scoring.log_probs` reads the same responses at once, and the two must agree. Both
divide the logits by the temperature, so π_old is the policy that really sampled.
"""

import contextlib
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from refimpl import dice, moe
from refimpl.arguments import guarded
from refimpl.models import Model, vocabulary
from refimpl.settings import Count, Positive, Seed, Share


@dataclass(frozen=True)
class Rollout:
    """B responses and what was known when they were sampled.

    `ids` holds prompt and response without a gap, right-padded: every real token then
    sits at its true position, and causal attention needs no mask. `logp` is the
    sampler's, `entropy` that of the distribution each token was drawn from (after
    top_k, top_p and min_p, where one of them is on), nats; `mask` is 1 through EOS,
    and may have holes (tokens that the policy did not write). `group` numbers the
    prompts.

    Of a mixture of experts, if recorded: `experts`, the ones that each token of `ids`
    visited (FREE where it was never read), and the router's log-probs of them, nats.
    """

    ids: Int[Tensor, "B L"]
    prompt_length: Int[Tensor, " B"]
    mask: Float[Tensor, "B T"]
    logp: Float[Tensor, "B T"]
    entropy: Float[Tensor, "B T"]
    truncated: Bool[Tensor, " B"]
    group: Int[Tensor, " B"]
    experts: Int[Tensor, "B L layers k"] | None = None
    router_logp: Float[Tensor, "B L layers k"] | None = None

    @property
    def positions(self) -> Int[Tensor, "B T"]:
        """Where in `ids` each response token stands (clamped past the end)."""
        steps = torch.arange(self.mask.shape[1], device=self.ids.device)
        return (self.prompt_length[:, None] + steps).clamp(max=self.ids.shape[1] - 1)

    @property
    def tokens(self) -> Int[Tensor, "B T"]:
        return self.ids.gather(1, self.positions)

    @property
    def length(self) -> Float[Tensor, " B"]:
        """Response lengths in tokens, EOS included, holes in the mask not."""
        return self.mask.sum(-1)

    @property
    def span(self) -> Int[Tensor, " B"]:
        """Tokens from the first of a response to its last, holes included."""
        steps = torch.arange(1, self.mask.shape[1] + 1, device=self.mask.device)
        return (steps * self.mask.bool()).amax(-1)

    @property
    def end(self) -> Int[Tensor, " B"]:
        """Where in `ids` a row's padding begins."""
        return self.prompt_length + self.span

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, index: Int[Tensor, " b"]) -> "Rollout":
        """The rows of `index`, with the padding that they no longer need cut off."""
        part = {
            f.name: getattr(self, f.name)[index]
            for f in fields(self)
            if getattr(self, f.name) is not None
        }
        span = self.span[index].clamp(min=1)  # one token even of a row that is all hole
        longest = int(span.max())
        total = int((self.prompt_length[index] + span).max())
        for name, values in part.items():
            if name in TO_THE_END:
                part[name] = values[:, :total]
            elif name in PER_TOKEN:
                part[name] = values[:, :longest]
        return replace(self, **part)

    @classmethod
    def join(cls, parts: Sequence["Rollout"]) -> "Rollout":
        """One rollout out of several, groups numbered on."""
        longest = max(part.mask.shape[1] for part in parts)
        total = max(part.ids.shape[1] for part in parts)
        width = dict.fromkeys(TO_THE_END, total) | dict.fromkeys(PER_TOKEN, longest)
        joined: dict[str, Tensor] = {}
        groups: list[Tensor] = []
        for part in parts:
            first = groups[-1].max() + 1 if groups else 0
            groups.append(part.group + first)
        for field in fields(cls):
            tensors = [getattr(part, field.name) for part in parts]
            if tensors[0] is None:
                continue
            if field.name in width:
                to, fill = width[field.name], FILL.get(field.name, 0)
                tensors = [_widen(x, to, fill) for x in tensors]
            joined[field.name] = torch.cat(tensors)
        return cls(**{**joined, "group": torch.cat(groups)})

    def texts(self, tokenizer: PreTrainedTokenizerBase) -> list[str]:
        """The responses as text, without the token that ended them.

        Any other special token is shown: a verifier must see what was written, and
        `#1<unk>2` is not `#12`.
        """
        last = self.span - (~self.truncated).long()
        steps = torch.arange(self.mask.shape[1], device=last.device)
        kept = self.mask.bool() & (steps < last[:, None])
        written = self.tokens[kept].split(kept.sum(-1).tolist())
        return tokenizer.batch_decode(written, skip_special_tokens=False)


TO_THE_END = ("ids", "experts", "router_logp")  # (B, L, …): prompt and response
PER_TOKEN = ("mask", "logp", "entropy")  # (B, T): response alone
FILL = {"experts": moe.FREE}


def _widen(x: Tensor, to: int, fill: int | float) -> Tensor:
    """`x` (B, n, …) with its second dimension padded to `to`."""
    return F.pad(x, (0, 0) * (x.ndim - 2) + (0, to - x.shape[1]), value=fill)


Nucleus = Annotated[float, Field(gt=0, le=1)]
"""top_p: a nucleus holds at least one token, so 0 is no share of it."""


class Truncation(NamedTuple):
    """Which tokens may be drawn. None, top_p = 1 and min_p = 0 remove none."""

    top_k: Count | None = None
    top_p: Nucleus | None = None
    min_p: Share | None = None

    @property
    def on(self) -> bool:
        own_p = self.top_p not in (None, 1)
        return self.top_k is not None or own_p or self.min_p not in (None, 0)


WHOLE = Truncation()


def truncated(
    logits: Float[Tensor, "... V"], keep: Truncation
) -> Float[Tensor, "... V"]:
    """Log-probs, nats, of the distribution that is left; −∞ for what is removed.

    In this order, as in transformers, each on what the one before it left:

        top_k   the k most likely, and all that tie with the k-th
        top_p   the fewest of the most likely with Σ p ≥ top_p (Holtzman et al. 2019,
                1904.09751)
        min_p   those with p ≥ min_p · max p (Nguyen et al. 2024, 2407.01082)

    The most likely token always stays. Σ p = 1 over those that are kept.
    """
    if keep.top_k is not None:
        kth = logits.topk(min(keep.top_k, logits.shape[-1])).values[..., -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    if keep.top_p not in (None, 1):
        prob, order = logits.softmax(-1).sort(stable=True, dim=-1, descending=True)
        enough = prob.cumsum(-1) - prob >= keep.top_p  # without the token itself
        logits = logits.masked_fill(enough.scatter(-1, order, enough), -torch.inf)
    if keep.min_p not in (None, 0):
        least = logits.amax(-1, keepdim=True) + math.log(keep.min_p)
        logits = logits.masked_fill(logits < least, -torch.inf)
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


@torch.inference_mode()
def _decode(
    model,
    ids,
    attention,
    group_size,
    limit,
    temperature,
    generator,
    eos,
    routing,
    truncation=WHOLE,
):
    """Sample up to `limit` tokens a row; rows leave the batch when they end.

    A prompt is read once; then its cache is copied for its `group_size` responses.
    With `routing`, what the routers did stands beside every token that was read.
    """
    batch, width = len(ids) * group_size, ids.shape[1]
    tokens = ids.new_zeros(batch, limit)
    logp = moe.wide(torch.zeros(batch, limit, dtype=model.dtype, device=ids.device))
    entropy = torch.zeros_like(logp)
    done = torch.zeros(batch, dtype=torch.bool, device=ids.device)
    attention = torch.cat([attention, attention.new_ones(len(ids), limit)], 1)
    position = (attention.cumsum(-1) - 1).clamp(min=0)
    cache = DynamicCache(config=model.config)
    passes = []  # what the routers did: one `Routing` a pass
    rows = []  # and the rows that were in it
    row = torch.arange(batch, device=ids.device)  # rows still being written
    step, start = ids, 0
    for t in range(limit):
        end = width + t
        logits = model(
            step,
            attention_mask=attention[:, :end],
            position_ids=position[:, start:end],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        if routing is not None:
            passes.append(routing.copy())
            rows.append(row)
        if t == 0:
            cache.batch_repeat_interleave(group_size)
            logits, attention, position = (
                x.repeat_interleave(group_size, 0)
                for x in (logits, attention, position)
            )
        logits = moe.wide(logits) / temperature
        cut = truncation.on
        log_prob = truncated(logits, truncation) if cut else logits.log_softmax(-1)
        prob = log_prob.exp()
        step = draw(prob, generator)
        tokens[row, t] = step[:, 0]
        logp[row, t] = log_prob.gather(1, step)[:, 0]
        if cut:  # 0 · log 0 = 0
            log_prob = log_prob.masked_fill(prob == 0, 0.0)
        entropy[row, t] = -(prob * log_prob).sum(-1)
        start = end
        ended = (step == eos).any(-1)
        if ended.any():
            done[row[ended]] = True
            keep = (~ended).nonzero()[:, 0]
            if not len(keep):
                break
            row, step = row[keep], step[keep]
            attention, position = attention[keep], position[keep]
            cache.batch_select_indices(keep)
    made = (tokens[:, : t + 1], logp[:, : t + 1], entropy[:, : t + 1], done)
    if routing is None:
        return *made, None
    return *made, _lay_out(passes, rows, width, group_size)


def _lay_out(passes, rows, width: int, group_size: int) -> tuple[Tensor, Tensor]:
    """Experts and their log-probs beside the tokens that were read, FREE elsewhere."""
    batch, length = len(rows[0]), width + len(passes)
    prompt = passes[0].visited(batch // group_size)
    of_prompt = passes[0].log_probs(prompt)
    experts = prompt.new_full((batch, length, *prompt.shape[2:]), moe.FREE)
    logp = of_prompt.new_zeros(experts.shape)
    experts[:, :width] = prompt.repeat_interleave(group_size, 0)
    logp[:, :width] = of_prompt.repeat_interleave(group_size, 0)
    if len(passes) > 1:  # the later passes read one token a row: all at once
        steps = moe.Routing.join(passes[1:])
        row = torch.cat(rows[1:])
        column = torch.cat(
            [r.new_full(r.shape, width + t) for t, r in enumerate(rows[1:])]
        )
        chosen = steps.visited(len(row))
        experts[row, column] = chosen[:, 0]
        logp[row, column] = steps.log_probs(chosen)[:, 0]
    return experts, logp


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
    min_p: Share | None = None,
    seed: Seed = 0,
    routing: moe.Routing | None = None,
) -> Rollout:
    """`group_size` responses to each prompt; rows of one prompt stand together.

    The same seed gives the same responses; the global generator is not touched. Inside
    `with moe.routed(model) as routing`, the `routing` makes the rollout keep the
    experts that were visited.

    `top_k`, `top_p` and `min_p` draw from a part of the vocabulary, after the
    temperature (see `truncated`; None: all of it). `logp` and `entropy` are then those
    of the distribution drawn from, no longer the policy's: `log_probs` gives less.

    Raises `ValueError` if a prompt is empty, or a prompt and `max_new_tokens` together
    are longer than the model allows. There is no temperature 0, for it leaves no
    distribution to take a log-prob of; 0.01 is close to it.
    """
    prompts = list(prompts)
    check_prompts(model, tokenizer, prompts, max_new_tokens)
    with without_dropout(model):
        return sample_ids(
            model,
            encode(tokenizer, prompts),
            end_tokens(model, tokenizer),
            pad_token(tokenizer),
            group_size,
            max_new_tokens,
            temperature,
            dice.generator(seed, model.device),
            routing,
            Truncation(top_k, top_p, min_p),
        )


def sample_ids(
    model,
    encoded,
    eos,
    pad,
    group_size,
    limit,
    temperature,
    generator,
    routing,
    truncation=WHOLE,
) -> Rollout:
    """`sample` on prompts that are token ids already."""
    device, longest = model.device, max(map(len, encoded))
    padding = [longest - len(row) for row in encoded]
    ids = torch.tensor(
        [[pad] * n + row for n, row in zip(padding, encoded)], device=device
    )
    attention = torch.tensor(
        [[0] * n + [1] * len(row) for n, row in zip(padding, encoded)], device=device
    )
    *decoded, visited = _decode(
        model,
        ids,
        attention,
        group_size,
        limit,
        temperature,
        generator,
        eos,
        routing,
        truncation,
    )
    # Tensors born in inference mode cannot enter a graph; ordinary copies can.
    tokens, logp, entropy, done = (x.clone() for x in decoded)
    visited = None if visited is None else [x.clone() for x in visited]
    ids, attention = (x.repeat_interleave(group_size, 0) for x in (ids, attention))
    rollout = _pack(ids, attention, tokens, logp, entropy, done, eos, pad, visited)
    return replace(rollout, group=rollout.group // group_size)


@contextlib.contextmanager
def without_dropout(model) -> Iterator[None]:
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
    own = getattr(config, "eos_token_id", None)
    own = own if isinstance(own, list | tuple) else [own]
    found = {tokenizer.eos_token_id, *own} - {None}
    return torch.tensor(sorted(found), device=model.device)


def _pack(ids, attention, tokens, logp, entropy, done, eos, pad, visited) -> Rollout:
    """Close the gap: from left-padded prompts to right-padded rows."""
    length = attention.sum(-1)
    batch, width = ids.shape
    steps = torch.arange(tokens.shape[1], device=ids.device)
    end = (tokens[:, :, None] == eos).any(-1)
    first_end = torch.where(end.any(-1), end.int().argmax(-1), tokens.shape[1])
    mask = steps <= first_end[:, None]
    joined = torch.cat([ids, torch.where(mask, tokens, pad)], 1)
    columns = torch.arange(joined.shape[1], device=ids.device)
    shift = (width - length)[:, None]
    source = (columns + shift).clamp(max=joined.shape[1] - 1)
    packed = joined.gather(1, source)
    total = length + mask.sum(-1)
    real = columns < total[:, None]
    group = torch.arange(batch, device=ids.device)
    recorded = {}
    if visited is not None:  # FREE past a row's end: nothing was read there
        names = ("experts", "router_logp")
        recorded = {n: x[group[:, None], source] for n, x in zip(names, visited)}
    rollout = Rollout(
        ids=torch.where(real, packed, pad),
        prompt_length=length,
        mask=mask.float(),
        logp=torch.where(mask, logp, 0.0),
        entropy=torch.where(mask, entropy, 0.0),
        truncated=~done,
        group=group,
        **recorded,
    )
    return rollout.rows(group)


def pad_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """Padding is never read, so where a tokenizer has no token for it, EOS will do."""
    pad = tokenizer.pad_token_id
    return tokenizer.eos_token_id if pad is None else pad


def encode(
    tokenizer: PreTrainedTokenizerBase, prompts: Collection[str]
) -> list[list[int]]:
    """The prompts as token ids, with one BOS token where both would write one.

    Many chat templates begin with it, and many tokenizers add it: a model that finds
    two was never trained on that.
    """
    rows = tokenizer(list(prompts))["input_ids"]
    bos = [tokenizer.bos_token_id]
    if bos == [None] or tokenizer("")["input_ids"][:1] != bos:
        return rows  # the tokenizer adds none
    return [row[1:] if row[:2] == 2 * bos else row for row in rows]


def check_prompts(model, tokenizer, prompts, max_new_tokens: int) -> None:
    """Raise `ValueError` if a prompt is no text, empty, or leaves too little room."""
    if not len(prompts):
        raise ValueError("there must be at least one prompt")
    for prompt in prompts:
        if not isinstance(prompt, str) or not prompt:
            raise ValueError(f"a prompt must be a non-empty string, got {prompt!r}")
    known, encoded = vocabulary(model), encode(tokenizer, prompts)
    limit = getattr(model.config, "max_position_embeddings", None)
    lengths = [len(ids) for ids in encoded]
    if min(lengths) == 0:
        empty = prompts[lengths.index(0)]
        raise ValueError(
            f"the tokenizer makes no token of the prompt {empty!r}: a response needs "
            "something to follow"
        )
    if (largest := max(map(max, encoded))) >= known:
        raise ValueError(
            f"the tokenizer gives the token {largest}, the model has only {known}: "
            "load both from the same place"
        )
    longest = max(lengths)
    if limit is not None and longest + max_new_tokens > limit:
        raise ValueError(
            f"the longest prompt has {longest} tokens and max_new_tokens is "
            f"{max_new_tokens}, together more than the {limit} positions of the model; "
            "shorten one of them"
        )
