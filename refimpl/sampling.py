"""Sampling: responses are drawn token by token, with a key-value cache.

A task may answer what the policy writes, as a tool does (`Environment`). Its tokens are
inserted into the response, and are holes in the mask.

`logprobs.log_probs` computes the same log-probs in one pass, and the two must agree.
Both divide the logits by the temperature, so that π_old is the policy that sampled.
"""

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from refimpl import seeds
from refimpl.models import (
    Model,
    at_least_float32,
    cache_name,
    cast_once,
    check_pair,
    precision,
)
from refimpl.moe import recorded, routed
from refimpl.rollout import Rollout
from refimpl.validation import (
    Count,
    Nucleus,
    Positive,
    Seed,
    UserError,
    guarded,
    shown,
)


class Sampling(NamedTuple):
    """Settings of the sampler: G responses per prompt, lengths in tokens.

    top_k and top_p restrict the tokens that may be drawn; None and top_p = 1 do not. A
    response ends with turn `max_turns`, in a task that answers.
    """

    group_size: int = 1
    max_new_tokens: int = 48
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    max_turns: int | None = None


def log_distribution(
    logits: Float[Tensor, "... V"], sampling: Sampling
) -> Float[Tensor, "... V"]:
    """Return log-probs, nats, of the distribution to draw from; −∞ for removed tokens.

    Applied in this order, as in transformers, each to the result of the one before:

        temperature   logits / temperature
        top_k         the k most likely, and all that tie with the k-th
        top_p         the fewest of the most likely with Σ p ≥ top_p (Holtzman et al.
                      2019, 1904.09751)

    The most likely token always stays. Σ p = 1 over the remaining tokens.
    """
    logits = at_least_float32(logits)
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    if sampling.top_k is not None:
        kth = logits.topk(min(sampling.top_k, logits.shape[-1])).values[..., -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    if sampling.top_p not in (None, 1):
        prob, order = logits.softmax(-1).sort(stable=True, dim=-1, descending=True)
        enough = prob.cumsum(-1) - prob >= sampling.top_p  # mass before the token
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
    observe: Callable | None = None,
    max_turns: Count | None = None,
) -> Rollout:
    """Sample `group_size` responses to each prompt; rows of a prompt are adjacent.

    The same seed gives the same responses; the global generator is not touched.
    `max_new_tokens` is in tokens. `top_k` and `top_p` restrict the vocabulary after the
    temperature (see `log_distribution`; None: all of it). `logp` and `entropy`, nats,
    are then those of the restricted distribution: `log_probs`, which reads the policy,
    gives lower log-probs.

    `observe` is the function of a task that answers the policy (see `refimpl.tasks`).
    What it inserts counts towards `max_new_tokens`, but has mask, log-prob and entropy
    0. A response ends with turn `max_turns` even if the environment would answer: such
    a response is `truncated`, like one that reaches `max_new_tokens`.

    Raises `UserError` if a prompt is empty, or a prompt and `max_new_tokens` together
    are longer than the model allows. Temperature 0 is not allowed, because a log-prob
    needs a distribution; 0.01 is close to it.
    """
    sampling = Sampling(
        group_size, max_new_tokens, temperature, top_k, top_p, max_turns
    )
    return sampled(model, tokenizer, prompts, sampling, seed, observe)


def sampled(
    model: Model, tokenizer, prompts, sampling: Sampling, seed: int, observe=None
) -> Rollout:
    """Compute `sample`, whose arguments have been checked."""
    encoded = encode(model, tokenizer, prompts, sampling.max_new_tokens)
    generator = seeds.generator(seed, model.device)
    ends = end_tokens(model, tokenizer)
    answers = Environment(observe, tokenizer, sampling.max_turns) if observe else None
    autocast = torch.is_autocast_enabled(model.device.type)
    casts: Any = cast_once(model) if autocast else contextlib.nullcontext()
    with without_dropout(model), casts:
        rollout = sample_ids(model, encoded, ends, sampling, generator, answers)
    # Tensors made in inference mode cannot enter a graph; copies of their rows can.
    return rollout.rows(torch.arange(len(rollout), device=model.device))


@torch.inference_mode()
def sample_ids(
    model: Model,
    encoded: list[list[int]],
    ends: Int[Tensor, " n"],
    sampling: Sampling,
    generator: torch.Generator,
    environment: "Environment | None" = None,
) -> Rollout:
    """Sample responses to prompts of token ids; padding is 0 and never read."""
    limit = sampling.max_new_tokens
    # 1. Read each prompt once: its G responses share the cache up to there.
    reader = decoder(model)(model, encoded, limit)
    logits = reader.prompts(sampling.group_size)
    rollout = without_responses(encoded, sampling, logits)
    row = torch.arange(len(rollout), device=logits.device)  # of unfinished responses
    for t in range(limit):
        # 2. Draw a token per row. Record its log-prob now: it is log μ, exactly,
        # and log π_old, too, where the sampler is the policy.
        log_prob = log_distribution(logits, sampling)
        prob = log_prob.exp()
        token = draw_token(prob, generator)
        logp = log_prob.gather(1, token)[:, 0]
        entropy = -prob.mul_(log_prob).nansum(-1)  # 0 · log 0 is 0
        own, end = torch.ones_like(row, dtype=torch.bool), (token == ends).any(-1)
        over = end
        if environment is not None:
            own, over = environment.exchange(row, token, end)
            logp, entropy = logp * own, entropy * own
        # A response begins right after its prompt, so no attention mask is needed.
        rollout.ids[row, rollout.prompt_length[row] + t] = token[:, 0]
        rollout.mask[row, t] = own.float()
        rollout.logp[row, t], rollout.entropy[row, t] = logp, entropy
        rollout.truncated[row] = ~(own & end)
        # 3. Drop finished rows, so that a long response does not make all others wait.
        going = (~over).nonzero()[:, 0]
        row, token = row[going], token[going]
        # 4. Read the new tokens. The last ones need no pass, for nothing follows them.
        if not len(row) or t == limit - 1:
            break
        reader.keep(going)
        logits = reader.next(token)
    # A diverged policy ends the run here, before NaN reaches the loss and the history.
    if not rollout.logp.isfinite().all():
        raise UserError(
            "the policy's log-probs are no longer finite: it has diverged, or its "
            "weights are damaged; lower the learning rate, or give other weights"
        )
    return rollout


def without_responses(
    encoded: list[list[int]], sampling: Sampling, logits: Float[Tensor, "B V"]
) -> Rollout:
    """Make a rollout of prompts alone, with room for the responses."""
    G, limit, device = sampling.group_size, sampling.max_new_tokens, logits.device
    group = torch.arange(len(encoded), device=device).repeat_interleave(G)
    length = torch.tensor([len(prompt) for prompt in encoded], device=device)[group]
    ids = pad_sequence([torch.tensor(prompt) for prompt in encoded], True).to(device)
    logp, entropy = at_least_float32(logits.new_zeros(2, len(group), limit))
    mask = torch.zeros_like(logp, dtype=torch.float32)
    ids = F.pad(ids, (0, limit))[group]
    return Rollout(ids, length, mask, logp, entropy, group >= 0, group)


class Environment:
    """The other writer of a response: it answers turns with tokens of its own.

    `observe` is f(text of the turn so far) → an observation, or None. The tokens of an
    observation wait in a queue, and each replaces one that was drawn. So all rows stay
    in lockstep, and the cache reads inserted tokens like any others.
    """

    def __init__(self, observe: Callable, tokenizer, max_turns: int | None = None):
        self.observe, self.tokenizer, self.max_turns = observe, tokenizer, max_turns
        self.queue: dict[int, list[int]] = defaultdict(list)  # by row
        self.said: dict[int, list[int]] = defaultdict(list)  # in this turn
        self.turns: Counter[int] = Counter()  # answered so far

    def exchange(
        self, row: Int[Tensor, " b"], token: Int[Tensor, "b 1"], end: Bool[Tensor, " b"]
    ) -> tuple[Bool[Tensor, " b"], Bool[Tensor, " b"]]:
        """Insert queued tokens in place of drawn ones, and answer turns that are over.

        Returns whether each row's token is the policy's own, and whether the row ends:
        at a drawn token that `end` marks, or with turn `max_turns`.
        """
        forced = [self.queue[i].pop(0) if self.queue[i] else -1 for i in row.tolist()]
        inserted = torch.tensor(forced, device=token.device)[:, None]
        own = (inserted < 0)[:, 0]
        token.copy_(torch.where(inserted < 0, token, inserted))
        over = end & own  # an EOS that a tool wrote ends nothing
        speaking = (own & ~over).nonzero()[:, 0].tolist()
        rows, tokens = row.tolist(), token[:, 0].tolist()
        for at in speaking:
            self.said[rows[at]].append(tokens[at])
        texts = self.tokenizer.batch_decode([self.said[rows[at]] for at in speaking])
        for at, text in zip(speaking, texts):
            if observation := self.observe(text):
                i = rows[at]
                self.turns[i] += 1
                self.said[i] = []
                over[at] = self.turns[i] == self.max_turns
                self.queue[i] = self.read(observation)
        return own, over

    def read(self, observation: str) -> list[int]:
        """Encode an observation. Raises `UserError` on no text, or a strange one."""
        if not isinstance(observation, str):
            raise UserError(f"observe must return a text, got {shown(observation)}")
        ids = self.tokenizer(observation, add_special_tokens=False)["input_ids"]
        refuse_strange(self.tokenizer, observation, ids, "observation")
        return ids


def draw_token(
    prob: Float[Tensor, "B V"], generator: torch.Generator | None = None
) -> Int[Tensor, "B 1"]:
    """Draw one token per row, token v with probability `prob[:, v]`.

    Takes the argmax of p / Exp(1), as `torch.multinomial` does. That function also
    checks the sum of each row, which makes a GPU wait. A token of probability 0 is
    never drawn.
    """
    clocks = torch.empty_like(prob).exponential_(generator=generator)
    return torch.div(prob, clocks, out=clocks).argmax(-1, keepdim=True)


@contextlib.contextmanager
def without_dropout(model: Model) -> Iterator[None]:
    """Put the model into eval mode, and restore its mode after the block."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def end_tokens(model: PreTrainedModel, tokenizer) -> Int[Tensor, " n"]:
    """Return all tokens that end a response, of tokenizer and generation config."""
    config = getattr(model, "generation_config", None)
    more = getattr(config, "eos_token_id", None)
    more = more if isinstance(more, list | tuple) else [more]
    ends = {tokenizer.eos_token_id, *more} - {None}
    return torch.tensor(sorted(ends), device=model.device)


def refuse_strange(tokenizer, text: str, ids: list[int], what: str) -> None:
    """Raise `UserError` if `text` has characters unknown to the tokenizer."""
    unknown = tokenizer.unk_token_id
    if unknown not in ids or tokenizer.unk_token in text:
        return
    each = {c: tokenizer(c, add_special_tokens=False)["input_ids"] for c in text}
    strange = [c for c, own in each.items() if unknown in own]
    if strange:  # else the tokenizer adds the unknown token itself, as a BOS
        raise UserError(
            f"the tokenizer does not know {', '.join(map(repr, strange))} in the "
            f"{what} {text!r}: the model would read an unknown token there"
        )


def encode(
    model: Model, tokenizer, prompts: Collection[str], max_new_tokens: int
) -> list[list[int]]:
    """Encode prompts as token ids. Raises `UserError` on one that cannot be answered.

    Many chat templates begin with a BOS token, and many tokenizers add one. Models are
    not trained on prompts that begin with two, so one of them is dropped.
    """
    check_pair(model, tokenizer)
    rows, bos = tokenizer(list(prompts))["input_ids"], tokenizer.bos_token_id
    if bos is not None and tokenizer("")["input_ids"][:1] == [bos]:
        rows = [row[1:] if row[:2] == [bos, bos] else row for row in rows]
    for prompt, row in zip(prompts, rows, strict=True):
        if not row:
            raise UserError(f"the tokenizer makes no token of the prompt {prompt!r}")
        refuse_strange(tokenizer, prompt, row, "prompt")
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
    """Next-token logits for a batch of prompts, and then for their responses.

    `room` is the largest number of response tokens. The columns are left padding,
    prompt and response; `attention` (rows, columns) is True where a row may attend.
    """

    def __init__(self, model: Model, prompts: list[list[int]], room: int):
        self.model, self.end = model, 0
        self.cache, self.cached = DynamicCache(config=model.config), cache_name(model)
        rows = [torch.tensor(prompt) for prompt in prompts]
        # Padded on the left: then the next token of every row has the same column.
        self.ids = pad_sequence(rows, True, padding_side="left").to(model.device)
        length = torch.tensor([len(row) for row in rows], device=model.device)
        width = self.ids.shape[1]
        column = torch.arange(width + room, device=model.device)
        self.attention = column >= width - length[:, None]
        # Positions count real tokens, so padding does not change what a row computes.
        self.position = (self.attention.cumsum(-1) - 1).clamp(min=0)

    def prompts(self, copies: int) -> Float[Tensor, "B V"]:
        """Compute the logits after each prompt, and repeat them `copies` times."""
        logits = self.forward(self.ids)
        self.cache.batch_repeat_interleave(copies)
        for name in ("attention", "position"):
            setattr(self, name, getattr(self, name).repeat_interleave(copies, 0))
        return logits.repeat_interleave(copies, 0)

    def forward(self, ids: Int[Tensor, "b L"]) -> Float[Tensor, "b V"]:
        """Append `ids` to the rows, and compute the logits after them."""
        start, self.end = self.end, self.end + ids.shape[1]
        return self.model(
            ids,
            attention_mask=self.attention[:, : self.end].long(),
            position_ids=self.position[:, start : self.end],
            use_cache=True,
            logits_to_keep=1,
            **{self.cached: self.cache},
        ).logits[:, -1]

    next = forward  # called with one token per row

    def keep(self, rows: Int[Tensor, " b"]) -> None:
        """Keep only these rows."""
        if len(rows) < len(self.attention):  # selecting copies the cache
            self.attention, self.position = self.attention[rows], self.position[rows]
            self.cache.batch_select_indices(rows)


decoder_factories: list[Callable[[Model], type[Decoder] | None]] = []
"""Each maps a model to a faster `Decoder`, or to None; the first match is used."""


def decoder(model: Model) -> type[Decoder]:
    """Return the fastest decoder for this model."""
    return next(filter(None, (make(model) for make in decoder_factories)), Decoder)


# The sampler of a run; `refimpl.samplers` has others


@dataclass(eq=False, repr=False)
class Sampler:
    """It draws with the policy's own weights, in the precision `dtype`.

    `noise` is the std of normal noise on its router logits. With `records`, a rollout
    of a mixture of experts keeps the experts that were visited. `past` holds weights
    that a delayed sampler has yet to use, oldest first.
    """

    model: Model
    dtype: str = "float32"
    noise: float = 0.0
    records: bool = False
    past: list[Float[Tensor, " P"]] = field(default_factory=list)

    def sync(self) -> None:
        """Copy the policy's weights. Does nothing here: they are shared."""

    def respond(
        self, tokenizer, prompts, sampling: Sampling, seed, noise_seed, observe=None
    ) -> Rollout:
        """Sample with the current weights; the routers' noise has a seed of its own."""
        watched: Any = contextlib.nullcontext()
        if self.records:
            # With and without noise, the same random numbers draw the tokens.
            generator = seeds.generator(noise_seed, self.model.device)
            watched = routed(self.model, noise=self.noise, generator=generator)
        with precision(self.model, self.dtype), watched as routing:
            rollout = sampled(self.model, tokenizer, prompts, sampling, seed, observe)
        return recorded(rollout, routing) if self.records else rollout
