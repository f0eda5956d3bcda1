"""How a sampler reads: the prompts at once, then one token a row, with a cache.

Decoder     transformers' own forward pass and cache: any model it knows
Direct      the same sums for Llamas and Qwens, in a third of the time on a small
            model: rotary tables and room for keys and values are made once, and
            nothing is looked up, checked or copied between two tokens
"""

from itertools import takewhile

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

from refimpl.models import Model
from refimpl.moe import is_moe

WORTH = 8
"""Tokens that all prompts begin with are read once where there are as many as this."""
DIRECT = {"LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model", "Qwen3MoeModel"}
"""Pre-norm decoders that differ in biases, norms of q and k, and experts alone."""


LOOK = 8
"""On CUDA, after how many tokens the host looks who has ended: it waits for the device
to know, and a row that has ended is read at most seven times for nothing."""


class Decoder:
    """P prompts, then `copies` of each; `room` for so many tokens more.

    Columns, of which `attention` says what each row may read: what all prompts begin
    with, padding, the rest of each prompt, the response. Rows that have ended leave,
    asked every `look` tokens, where a share of at most `crowd` would stay.
    """

    crowd = 1.0

    def __init__(self, model: Model, prompts: list[list[int]], room: int):
        self.model, self.end = model, 0
        # Who reads a record of experts takes a pass for all that go on, in their order.
        self.recorded = is_moe(model)
        self.look = LOOK if model.device.type == "cuda" and not self.recorded else 1
        self.cache = DynamicCache(config=model.config)
        split = isinstance(self, Direct) and not self.recorded
        self.begin = common(prompts) if split else 0
        rest = [torch.tensor(row[self.begin :]) for row in prompts]
        length = torch.tensor([len(row) for row in rest], device=model.device)
        self.rest = pad_sequence(rest, True, padding_side="left").to(model.device)
        self.first = torch.tensor([prompts[0][: self.begin]], device=model.device)
        width = self.begin + self.rest.shape[1]
        self.column = torch.arange(width + room, device=model.device)
        self.attention = self.column >= width - length[:, None]
        self.attention |= self.column < self.begin
        self.position = (self.attention.cumsum(-1) - 1).clamp(min=0)

    def prompts(self, copies: int) -> Float[Tensor, "B V"]:
        """Logits after each prompt, `copies` times."""
        if self.begin:
            self.forward(self.first, 1)
            self.cache.batch_repeat_interleave(len(self.rest))
        logits = self.forward(self.rest, len(self.rest))
        self.cache.batch_repeat_interleave(copies)
        for name in ("attention", "position"):
            setattr(self, name, getattr(self, name).repeat_interleave(copies, 0))
        return logits.repeat_interleave(copies, 0)

    def forward(self, ids: Int[Tensor, "b L"], rows: int) -> Float[Tensor, "b V"]:
        """The logits after `ids`, which the first `rows` have next."""
        start, self.end = self.end, self.end + ids.shape[1]
        return self.model(
            ids,
            attention_mask=self.attention[:rows, : self.end].long(),
            position_ids=self.position[:rows, start : self.end],
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]

    def next(self, tokens: Int[Tensor, "B 1"]) -> Float[Tensor, "B V"]:
        """The logits after one more token in each row."""
        return self.forward(tokens, len(tokens))

    def keep(self, rows: Int[Tensor, " b"]) -> None:
        """Go on with these rows alone."""
        self.attention, self.position = self.attention[rows], self.position[rows]
        self.cache.batch_select_indices(rows)


class Direct(Decoder):
    """Keys and values lie where they stay, (B, heads, columns, d) in each layer; those
    of the i-th row in `slot[i]`."""

    def prompts(self, copies: int) -> Float[Tensor, "B V"]:
        """As `Decoder`'s, and then room for all that is to come."""
        logits = super().prompts(copies)
        self.body = self.model.get_decoder()
        self.tables = self.body.rotary_emb(logits, self.position)
        room = self.position.shape[1] - self.end
        self.kept = [
            [F.pad(x, (0, 0, 0, room)) for x in (layer.keys, layer.values)]
            for layer in self.cache.layers
        ]
        del self.cache
        self.slot = torch.arange(len(logits), device=logits.device)
        return logits

    def next(self, tokens: Int[Tensor, "B 1"]) -> Float[Tensor, "B V"]:
        """The logits after one more token in each row."""
        at, self.end = slice(self.end, self.end + 1), self.end + 1
        tokens = torch.empty_like(tokens).index_copy_(0, self.slot, tokens)
        return self.step(tokens, at, self.attention[:, : self.end])[self.slot]

    def step(
        self,
        tokens: Int[Tensor, "B 1"],
        at: slice | Tensor,
        mask: Bool[Tensor, "B t"],
    ) -> Float[Tensor, "B V"]:
        """x ← x + attention(norm(x)), x ← x + mlp(norm(x)) in each layer; logits.

        The tokens stand in column `at`, and read the t first columns.
        """
        angles = [table[:, None, at] for table in self.tables]
        x = self.body.embed_tokens(tokens)  # (B, 1, H)
        for layer, kept in zip(self.body.layers, self.kept):
            read = normed(layer.input_layernorm, x)
            x = x + attended(layer.self_attn, read, angles, mask, kept, at)
            x = x + layer.mlp(normed(layer.post_attention_layernorm, x))
        return self.model.get_output_embeddings()(normed(self.body.norm, x))[:, 0]

    def keep(self, rows: Int[Tensor, " b"]) -> None:
        """Go on with these rows alone: the last move to where others have left."""
        n, self.slot = len(rows), self.slot[rows]
        free = torch.ones_like(self.attention[:, 0]).index_fill_(0, self.slot, 0)
        to = free[:n].nonzero()[:, 0]
        moved = (self.slot >= n).nonzero()[:, 0]
        if self.recorded:
            to = moved = torch.arange(n, device=rows.device)

        def packed(x: Tensor) -> Tensor:
            x[to] = x[self.slot[moved]]
            return x[:n]

        self.attention = packed(self.attention)
        self.tables = [packed(table) for table in self.tables]
        self.kept = [[packed(x) for x in kept] for kept in self.kept]
        self.slot[moved] = to


class Captured(Direct):
    """A graph reads all columns, for its shapes cannot grow; rows leave when half are
    gone, and another graph is made. Not yet tried on a real GPU."""

    crowd, graph = 0.5, None

    def next(self, tokens: Int[Tensor, "B 1"]) -> Float[Tensor, "B V"]:
        """The graph's launches, after its inputs were written where it reads them."""
        at, self.end = self.column[self.end : self.end + 1], self.end + 1
        if self.graph is None:
            self.tokens, self.at = tokens.clone(), at.clone()
            self.capture()
        self.tokens.index_copy_(0, self.slot, tokens)
        self.at.copy_(at)
        self.graph.replay()
        return self.logits[self.slot]

    def capture(self) -> None:
        """One step, once as it is, so that libraries set up, and once recorded."""
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            self.whole_step()
        torch.cuda.current_stream().wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.logits = self.whole_step()

    def whole_step(self) -> Float[Tensor, "B V"]:
        """A step of which nothing depends on the host."""
        mask = self.attention & (self.column <= self.at)
        return self.step(self.tokens, self.at, mask)

    def keep(self, rows: Int[Tensor, " b"]) -> None:
        """Go on with these rows alone, in another graph."""
        super().keep(rows)
        self.graph = None


def normed(norm: nn.Module, x: Tensor) -> Tensor:
    """w · x / √(mean(x²) + ε) over the last dimension, as transformers rounds it."""
    scaled = F.rms_norm(x.float(), x.shape[-1:], eps=norm.variance_epsilon)
    return norm.weight * scaled.to(x.dtype)


def attended(
    layer: nn.Module,
    x: Float[Tensor, "B 1 H"],
    angles: list[Float[Tensor, "B 1 1 d"]],
    mask: Bool[Tensor, "B t"],
    kept: list[Float[Tensor, "B heads T d"]],
    at: slice | Tensor,
) -> Float[Tensor, "B 1 H"]:
    """Attention of one token a row to those before it and itself, which is kept.

    The queries that share a head of keys are rows of one product.
    """
    heads, d = kept[0].shape[1], kept[0].shape[-1]
    shape = (len(x), heads, -1, d)
    q, k, v = (f(x).view(shape) for f in (layer.q_proj, layer.k_proj, layer.v_proj))
    if hasattr(layer, "q_norm"):
        q, k = normed(layer.q_norm, q), normed(layer.k_norm, k)
    cos, sin = angles
    both = torch.cat([q, k], 2)
    half, other = both.chunk(2, -1)
    both = both * cos + torch.cat([-other, half], -1) * sin
    for whole, new in zip(kept, (both[:, :, -1:], v)):
        whole[:, :, at] = new
    keys, values = (whole[:, :, : mask.shape[1]] for whole in kept)
    mixed = F.scaled_dot_product_attention(
        both[:, :, :-1], keys, values, mask[:, None, None], scale=layer.scaling
    )
    return layer.o_proj(mixed.reshape(len(x), 1, -1))


def common(prompts: list[list[int]]) -> int:
    """How many tokens all prompts begin with, all but the last of each; 0 if few."""
    columns = zip(*(row[:-1] for row in prompts))
    same = takewhile(lambda column: len(set(column)) == 1, columns)
    length = len(list(same)) if len(prompts) > 1 else 0
    return length if length >= WORTH else 0


def decoder(model: Model) -> type[Decoder]:
    """The fastest that computes what this model does."""
    body = model.get_decoder() if hasattr(model, "get_decoder") else None
    rope = getattr(model.config, "rope_parameters", None) or {}
    known = (
        type(body).__name__ in DIRECT
        and full_attention(model)
        and model.config._attn_implementation == "sdpa"
        and rope.get("rope_type") in ("default", "linear", "llama3", "yarn")
    )
    if not known:
        return Decoder
    return Captured if model.device.type == "cuda" and not is_moe(model) else Direct


def full_attention(model: Model) -> bool:
    """Whether every layer reads all that stands before a token."""
    config = model.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None)
    return kinds == {"full_attention"} and not window
