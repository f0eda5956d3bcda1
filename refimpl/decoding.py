"""How a sampler reads: the prompts at once, then one token a row, with a cache.

`Decoder` is transformers' own forward pass and cache, for any model that it knows. What
reads some models faster comes in through the door `FASTER`.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

from refimpl.models import Model, cache_name
from refimpl.moe import is_moe

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
        self.cached = cache_name(model)
        self.begin = 0 if self.recorded else self.common(prompts)
        rest = [torch.tensor(row[self.begin :]) for row in prompts]
        length = torch.tensor([len(row) for row in rest], device=model.device)
        self.rest = pad_sequence(rest, True, padding_side="left").to(model.device)
        self.first = torch.tensor([prompts[0][: self.begin]], device=model.device)
        width = self.begin + self.rest.shape[1]
        self.column = torch.arange(width + room, device=model.device)
        self.attention = self.column >= width - length[:, None]
        self.attention |= self.column < self.begin
        self.position = (self.attention.cumsum(-1) - 1).clamp(min=0)

    def common(self, prompts: list[list[int]]) -> int:
        """How many tokens that all prompts begin with are read once for all of them."""
        return 0

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
            use_cache=True,
            logits_to_keep=1,
            **{self.cached: self.cache},
        ).logits[:, -1]

    def next(self, tokens: Int[Tensor, "B 1"]) -> Float[Tensor, "B V"]:
        """The logits after one more token in each row."""
        return self.forward(tokens, len(tokens))

    def keep(self, rows: Int[Tensor, " b"]) -> None:
        """Go on with these rows alone."""
        self.attention, self.position = self.attention[rows], self.position[rows]
        self.cache.batch_select_indices(rows)


FASTER: list[Callable[[Model], type[Decoder] | None]] = []
"""A door: each says what it reads a model with, or None; the first answer counts."""


def decoder(model: Model) -> type[Decoder]:
    """What reads this model."""
    return next(filter(None, (ask(model) for ask in FASTER)), Decoder)


def full_attention(model: Model) -> bool:
    """Whether every layer reads all that stands before a token."""
    config = model.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None)
    return kinds == {"full_attention"} and not window
