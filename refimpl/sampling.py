"""Sampling responses: token by token, with a key-value cache.

`logprobs.log_probs` reads the same responses at once, and the two must agree. Both
divide the logits by the temperature, so π_old is the policy that really sampled.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from refimpl import seeds
from refimpl.models import Model, cache_name, cast_once, check_pair, precision, wide
from refimpl.moe import recorded, routed
from refimpl.rollout import Rollout
from refimpl.validation import (
    Count,
    Nucleus,
    Positive,
    Seed,
    UserError,
    guarded,
    one_line,
)


class Sampling(NamedTuple):
    """Settings of the sampler: G responses per prompt, lengths in tokens.

    Which tokens may be drawn: top_k and top_p; None, and top_p = 1, remove none.
    """

    group_size: int = 1
    max_new_tokens: int = 48
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None


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
    logits = wide(logits)
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    if sampling.top_k is not None:
        kth = logits.topk(min(sampling.top_k, logits.shape[-1])).values[..., -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    if sampling.top_p not in (None, 1):
        prob, order = logits.softmax(-1).sort(stable=True, dim=-1, descending=True)
        enough = prob.cumsum(-1) - prob >= sampling.top_p  # without the token itself
        logits = logits.masked_fill(enough.scatter(-1, order, enough), -torch.inf)
    return logits.log_softmax(-1)


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
    encoded = encode(model, tokenizer, prompts, max_new_tokens)
    sampling = Sampling(group_size, max_new_tokens, temperature, top_k, top_p)
    generator = seeds.generator(seed, model.device)
    ends = end_tokens(model, tokenizer)
    with without_dropout(model), cast_once(model):
        rollout = sample_ids(model, encoded, ends, sampling, generator)
    # Tensors born in inference mode cannot enter a graph; copies of their rows can.
    return rollout.rows(torch.arange(len(rollout), device=model.device))


@torch.inference_mode()
def sample_ids(
    model: Model,
    encoded: list[list[int]],
    ends: Int[Tensor, " n"],
    sampling: Sampling,
    generator: torch.Generator,
) -> Rollout:
    """`sample` on token ids. Rows leave when they end; padding, never read, is 0."""
    G, limit, device = sampling.group_size, sampling.max_new_tokens, model.device
    row = torch.arange(len(encoded) * G, device=device)  # that are still being written
    drawn: list[tuple[Tensor, ...]] = []
    # 1. Read the prompts, each once for its G responses.
    reader = decoder(model)(model, encoded, limit)
    logits = reader.prompts(G)
    for t in range(limit):
        # 2. Draw a token for every row, and keep what was known of it.
        log_prob = log_distribution(logits, sampling)
        prob = log_prob.exp()
        step = draw_token(prob, generator)
        entropy = -prob.mul_(log_prob).nansum(-1)  # 0 · log 0 is 0
        drawn.append((row, step, log_prob.gather(1, step), entropy))
        # 3. Drop the rows that have ended.
        going = (step != ends).all(-1).nonzero()[:, 0]
        row, step = row[going], step[going]
        # 4. Read what was drawn, if anything follows.
        if not len(row) or t == limit - 1:
            break
        reader.keep(going)
        logits = reader.next(step)
    rollout = written(encoded, drawn, ends, sampling)
    if not rollout.logp.isfinite().all():
        raise UserError(
            "the policy's log-probs are no longer finite: it has diverged, or its "
            "weights are damaged; lower the learning rate, or give other weights"
        )
    return rollout


def written(
    encoded: list[list[int]],
    drawn: list[tuple[Tensor, ...]],
    ends: Int[Tensor, " n"],
    sampling: Sampling,
) -> Rollout:
    """The rollout of prompts and of what was drawn: of each step the rows, with their
    tokens, log-probs and entropies."""
    row, token, logp, entropy = (torch.cat(column) for column in zip(*drawn))
    G, limit, device = sampling.group_size, sampling.max_new_tokens, row.device
    count = torch.tensor([len(rows) for rows, *_ in drawn])
    step = torch.arange(len(drawn)).repeat_interleave(count).to(device)

    def laid(values: Tensor) -> Shaped[Tensor, "B T"]:
        table = values.new_zeros(len(encoded) * G, limit)
        table[row, step] = values
        return table

    ids = pad_sequence([torch.tensor(prompt) for prompt in encoded], True)
    group = torch.arange(len(encoded)).repeat_interleave(G).to(device)
    length = torch.tensor([len(prompt) for prompt in encoded], device=device)[group]
    ids = F.pad(ids.to(device), (0, limit))[group]
    ids[row, length[row] + step] = token[:, 0]
    ended = laid((token == ends).any(-1))
    mask = laid(torch.ones_like(row, dtype=torch.float32))
    logp, entropy = laid(logp[:, 0]), laid(entropy)
    return Rollout(ids, length, mask, logp, entropy, ~ended.any(-1), group)


def draw_token(
    prob: Float[Tensor, "B V"], generator: torch.Generator | None = None
) -> Int[Tensor, "B 1"]:
    """One token per row, token v with probability `prob[:, v]`; never one of 0.

    The largest p / Exp(1) wins, as in `torch.multinomial`. That function also checks
    the sum of every row, for which a GPU has to wait.
    """
    clocks = torch.empty_like(prob).exponential_(generator=generator)
    return torch.div(prob, clocks, out=clocks).argmax(-1, keepdim=True)


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


def unknown(tokenizer: PreTrainedTokenizerBase, character: str) -> bool:
    ids = tokenizer(character, add_special_tokens=False)["input_ids"]
    return tokenizer.unk_token_id in ids


def encode(
    model: Model,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Collection[str],
    max_new_tokens: int,
) -> list[list[int]]:
    """Prompts as token ids, with one BOS token where both would write one.

    Many chat templates begin with it, and many tokenizers add it: a model that finds
    two was never trained on that.

    Raises `UserError` if the tokenizer has tokens that the model does not know, and if
    a prompt has no token, has characters that the tokenizer does not know, is ended,
    or leaves too little room for a response.
    """
    check_pair(model, tokenizer)
    if tokenizer.eos_token.isdigit():
        raise UserError(
            f"the tokenizer's eos_token is {tokenizer.eos_token!r}: every answer would "
            "end at its first such digit"
        )
    if not (prompts := list(prompts)):
        raise UserError("prompts must be at least one text, got none")
    try:
        rows, bos = tokenizer(prompts)["input_ids"], tokenizer.bos_token_id
    except Exception as error:  # half a surrogate pair is no Unicode
        raise UserError(
            f"the tokenizer cannot read the prompts ({one_line(error)}): each must be "
            "a text of whole characters"
        ) from error
    if bos is not None and tokenizer("")["input_ids"][:1] == [bos]:
        rows = [row[1:] if row[:2] == [bos, bos] else row for row in rows]
    for prompt, row in zip(prompts, rows, strict=True):
        if not row:
            raise UserError(
                f"the tokenizer makes no token of the prompt {prompt!r}: a response "
                "needs something to follow"
            )
        strange = []
        if tokenizer.unk_token_id in row and tokenizer.unk_token not in prompt:
            strange = [c for c in dict.fromkeys(prompt) if unknown(tokenizer, c)]
        if strange:  # else the unknown token is the tokenizer's own, as a BOS
            raise UserError(
                f"the tokenizer does not know {', '.join(map(repr, strange))} of the "
                f"prompt {prompt!r}: the model would read an unknown token there"
            )
        end = len(row) > 1 and row[-1] == tokenizer.eos_token_id
        if end and not prompt.endswith(tokenizer.eos_token):
            raise UserError(
                f"the tokenizer ends the prompt {prompt!r} with its eos_token, which "
                "nothing can follow: load it with add_eos_token=False"
            )
    limit = getattr(model.config, "max_position_embeddings", None)
    longest = max(map(len, rows))
    if limit is not None and longest + max_new_tokens > limit:
        raise UserError(
            f"the longest prompt has {longest} tokens and max_new_tokens is "
            f"{max_new_tokens}, together more than the {limit} positions of the model; "
            "shorten one of them"
        )
    return rows


# Decoding: one pass over the prompts, then one token per row and step, with a cache


class Decoder:
    """P prompts, then `copies` of each; `room` for so many tokens more.

    Its columns: padding, prompt, response. `attention` says which of them a row reads.
    """

    def __init__(self, model: Model, prompts: list[list[int]], room: int):
        self.model, self.end = model, 0
        self.cache, self.cached = DynamicCache(config=model.config), cache_name(model)
        rows = [torch.tensor(prompt) for prompt in prompts]
        self.ids = pad_sequence(rows, True, padding_side="left").to(model.device)
        length = torch.tensor([len(row) for row in rows], device=model.device)
        width = self.ids.shape[1]
        column = torch.arange(width + room, device=model.device)
        self.attention = column >= width - length[:, None]
        self.position = (self.attention.cumsum(-1) - 1).clamp(min=0)

    def prompts(self, copies: int) -> Float[Tensor, "B V"]:
        """Logits after each prompt, `copies` times."""
        logits = self.forward(self.ids)
        self.cache.batch_repeat_interleave(copies)
        for name in ("attention", "position"):
            setattr(self, name, getattr(self, name).repeat_interleave(copies, 0))
        return logits.repeat_interleave(copies, 0)

    def forward(self, ids: Int[Tensor, "b L"]) -> Float[Tensor, "b V"]:
        """The logits after `ids`, which the rows have next."""
        start, self.end = self.end, self.end + ids.shape[1]
        return self.model(
            ids,
            attention_mask=self.attention[:, : self.end].long(),
            position_ids=self.position[:, start : self.end],
            use_cache=True,
            logits_to_keep=1,
            **{self.cached: self.cache},
        ).logits[:, -1]

    def next(self, tokens: Int[Tensor, "B 1"]) -> Float[Tensor, "B V"]:
        """The logits after one more token in each row."""
        return self.forward(tokens)

    def keep(self, rows: Int[Tensor, " b"]) -> None:
        """Go on with these rows alone."""
        if len(rows) < len(self.attention):  # what is kept is copied
            self.attention, self.position = self.attention[rows], self.position[rows]
            self.cache.batch_select_indices(rows)


decoder_factories: list[Callable[[Model], type[Decoder] | None]] = []
"""Each maps a model to a faster `Decoder`, or to None; the first match is used."""


def decoder(model: Model) -> type[Decoder]:
    """The fastest decoder that there is for this model."""
    return next(filter(None, (make(model) for make in decoder_factories)), Decoder)


# The sampler of a run; `refimpl.samplers` has others


@dataclass(eq=False, repr=False)
class Policy:
    """The sampler is the policy, but for its precision and the `noise` on its routers.

    `records`: of a mixture of experts, a rollout keeps the experts that were visited.
    `past`: weights on their way to a sampler that lags, oldest first.
    """

    model: Model
    dtype: str = "float32"
    noise: float = 0.0
    records: bool = False
    past: list[Float[Tensor, " P"]] = field(default_factory=list)

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
        watched: Any = contextlib.nullcontext()
        if self.records:
            generator = seeds.generator(noise_seed, self.model.device)
            watched = routed(self.model, noise=self.noise, generator=generator)
        with precision(self.model, self.dtype), watched as routing:
            rollout = sample(self.model, tokenizer, prompts, seed=seed, **settings)
        return recorded(rollout, routing) if self.records else rollout
