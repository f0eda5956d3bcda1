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


FASTER: list[Callable[[Model], type[Decoder] | None]] = []
"""A door: each says what it reads a model with, or None; the first answer counts."""


def decoder(model: Model) -> type[Decoder]:
    """What reads this model."""
    return next(filter(None, (ask(model) for ask in FASTER)), Decoder)
