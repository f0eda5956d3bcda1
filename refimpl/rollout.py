"""The data of training: a `Rollout` is what was sampled, a `Batch` what is trained on.

Both have `rows(index)`, which also cuts off padding that is no longer needed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import compress
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

FREE = -1
"""Marks an expert that was not recorded. In a replay the router chooses there."""


@dataclass(frozen=True)
class Rollout:
    """B responses, with the numbers recorded when they were sampled.

    `ids` holds prompt and response without a gap, right-padded: every real token then
    sits at its true position, and causal attention needs no mask. `logp` is the
    sampler's, `entropy` that of the distribution each token was drawn from (after
    top_k and top_p, where one of them is on), nats; `mask` is 1 through EOS, and may
    have holes (tokens that the policy did not write); a run of ones is a turn. `group`
    numbers the prompts.

    For a mixture of experts, if recorded: `experts` are those that each token of `ids`
    visited (FREE where it was never read), `router_logp` the router's log-probs of
    them, nats.
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
        """The index in `ids` of each response token (clamped past the end)."""
        steps = torch.arange(self.mask.shape[1], device=self.ids.device)
        return (self.prompt_length[:, None] + steps).clamp(max=self.ids.shape[1] - 1)

    @property
    def tokens(self) -> Int[Tensor, "B T"]:
        """The ids of the response tokens."""
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
    def turns(self) -> Int[Tensor, "B T"]:
        """The turn of each token, 0, 1, …; −1 on holes and padding."""
        return turn_index(self.mask)

    @property
    def end(self) -> Int[Tensor, " B"]:
        """The index in `ids` at which each row's padding begins."""
        return self.prompt_length + self.span

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, index: Int[Tensor, " b"]) -> "Rollout":
        """Select the rows of `index`, and cut off the padding that they do not need."""
        part = {name: x[index] for name, x in tensor_fields(self).items()}
        whole = replace(self, **part)
        span = whole.span.clamp(min=1)  # a column even if all is masked
        width = widths(int(span.max()), int((whole.prompt_length + span).max()))
        return replace(whole, **{n: part[n][:, : width[n]] for n in width if n in part})

    @torch.no_grad()
    def in_parts(self, read: Callable, size: int) -> list[Tensor | None]:
        """Call `read(part)` on micro-batches of `size` rows, and join the results.

        `read` returns several tensors. One that is None stays None.
        """
        rows = torch.arange(len(self), device=self.ids.device)
        results = [read(self.rows(index)) for index in rows.split(size)]
        # A part is as wide as its longest response: pad (B, T) and (B, L, layers, k).
        width = {2: self.mask.shape[1], 4: self.ids.shape[1]}
        columns = zip(*results, strict=True)
        given = [[x for x in parts if x is not None] for parts in columns]
        padded = [[pad_columns(x, width[x.ndim]) for x in parts] for parts in given]
        return [torch.cat(parts) if parts else None for parts in padded]

    @classmethod
    def join(cls, parts: Sequence["Rollout"]) -> "Rollout":
        """Concatenate rollouts, and give the groups of each part new ids."""
        longest = max(part.mask.shape[1] for part in parts)
        width = widths(longest, max(part.ids.shape[1] for part in parts))
        joined, groups, first = {}, [], 0
        for part in parts:
            # Two rounds of sampling both count from 0, but answer different prompts.
            groups.append(part.group + first)
            first = int(groups[-1].max()) + 1
        for name in tensor_fields(parts[0]):
            columns = [getattr(part, name) for part in parts]
            if name in width:
                fill = FREE if name == "experts" else 0
                columns = [pad_columns(x, width[name], fill) for x in columns]
            joined[name] = torch.cat(columns)
        return cls(**joined | {"group": torch.cat(groups)})

    def texts(self, tokenizer: Any) -> list[str]:
        """Decode the responses, without the token that ended them.

        Other special tokens are kept, because `#1<unk>2` is not the answer `#12`.
        """
        rows = zip(self.completion_ids(), self.truncated.tolist())
        completions = [ids if cut else ids[:-1] for ids, cut in rows]
        return tokenizer.batch_decode(completions, skip_special_tokens=False)

    def completion_ids(self) -> list[list[int]]:
        """Return the tokens of each response, including the one that ended it."""
        rows = zip(self.tokens.tolist(), self.mask.bool().tolist())
        return [list(compress(tokens, keep)) for tokens, keep in rows]


def turn_index(mask: Float[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Number the runs of ones in a mask, 0, 1, …; −1 where it is 0."""
    own = mask.bool()
    first = own & ~F.pad(own, (1, 0))[:, :-1]
    return torch.where(own, first.cumsum(-1) - 1, -1)


def tensor_fields(data: "Rollout | Batch") -> dict[str, Tensor]:
    """Return the fields that hold a tensor, by name."""
    values = {field.name: getattr(data, field.name) for field in fields(data)}
    return {name: x for name, x in values.items() if isinstance(x, Tensor)}


def widths(response: int, whole: int) -> dict[str, int]:
    """Return the width in tokens of each field (B, T) or (B, L, …), by its name."""
    per_token = dict.fromkeys(("mask", "logp", "entropy"), response)
    return per_token | dict.fromkeys(("ids", "experts", "router_logp"), whole)


def pad_columns(x: Tensor, to: int, fill: int | float = 0) -> Tensor:
    """Pad the second dimension of `x`, (B, n, …), to `to`."""
    # F.pad takes pairs from the last dimension backwards.
    return F.pad(x, (0, 0) * (x.ndim - 2) + (0, to - x.shape[1]), value=fill)


@dataclass(frozen=True)
class Batch:
    """A rollout with everything that stays constant during its K updates.

    `mask` is 1 on tokens that have a loss: the rollout's mask, without the responses
    that were filtered out. `old_logp` is log π_old, nats. `rollout.logp` is the
    sampler's, and equal to it unless the policy was asked (`Run.old_logp_of`).
    `rollout.experts` are those that π_old visited. `old_values` and `targets` belong to
    a critic, in reward units. `token_count` (by `mask`) and `response_count` are those
    of the whole mini-batch of which this is a part, `passed_count` its tokens in rows
    that get a forward pass; `whole` is that mini-batch, with the indices of these rows.
    """

    rollout: Rollout
    mask: Float[Tensor, "B T"]
    old_logp: Float[Tensor, "B T"]
    advantages: Float[Tensor, "B T"]
    ref_logp: Float[Tensor, "B T"] | None = None
    old_values: Float[Tensor, "B T"] | None = None
    targets: Float[Tensor, "B T"] | None = None
    token_count: Float[Tensor, ""] | None = None
    response_count: Float[Tensor, ""] | None = None
    passed_count: Float[Tensor, ""] | None = None
    whole: "tuple[Batch, Tensor] | None" = None

    def __len__(self) -> int:
        return len(self.rollout)

    @property
    def share(self) -> Float[Tensor, ""]:
        """This part's share of the mini-batch's tokens; shares add up to at most 1."""
        return self.mask.sum().to(self.old_logp) / self.token_count

    def rows(self, index: Int[Tensor, " b"]) -> "Batch":
        """Select the rows of `index`, and cut off the padding that they do not need."""
        part = self.rollout.rows(index)
        # The counts are scalars, and stay those of the mini-batch.
        own: dict[str, Any] = {n: x for n, x in tensor_fields(self).items() if x.ndim}
        own = {name: x[index, : part.mask.shape[1]] for name, x in own.items()}
        return replace(self, rollout=part, **own)

    def of_whole(self, compute: Callable[["Batch"], Tensor]) -> Float[Tensor, "b t"]:
        """Call `compute` on the whole mini-batch; return this part of its (B, T)."""
        mini, rows = self.whole or (self, slice(None))
        return compute(mini)[rows, : self.mask.shape[1]].to(self.mask.dtype)

    def minibatches(
        self, n: int, epochs: int, generator: torch.Generator
    ) -> Iterator["Batch"]:
        """Yield n shuffled mini-batches of whole groups in each of `epochs` epochs."""
        group = self.rollout.group
        # Groups stay whole, because some normalisers average over a group's tokens.
        groups = group.unique()
        for _ in range(epochs):
            order = groups[torch.randperm(len(groups), generator=generator)]
            for chosen in order.tensor_split(min(n, len(order))):
                mini = self.rows(torch.isin(group, chosen).nonzero()[:, 0])
                # If all responses are filtered out, the shares are 0 / 1, not NaN.
                count = mini.mask.sum().clamp(min=1)
                responses = count.new_full((), len(mini))
                yield replace(mini, token_count=count, response_count=responses)

    def informative_rows(self, keep_all: bool) -> Int[Tensor, " b"]:
        """Return the rows of groups with some Â ≠ 0, and at least one row.

        The other groups have equal rewards, Â = 0 and no gradient. Once a policy is
        good, they are most of a rollout. `keep_all` returns all rows, for a loss term
        such as a KL that also acts where Â = 0.
        """
        group = self.rollout.group
        if keep_all:
            return torch.arange(len(group), device=group.device)
        learns = (self.advantages * self.mask != 0).any(-1)
        rows = ((group[:, None] == group) & learns).any(-1).nonzero()[:, 0]
        # Without any row an update would have neither a loss nor metrics.
        return rows if len(rows) else rows.new_zeros(1)

    def micro_batches(
        self,
        weight: Float[Tensor, "B T"],
        rows: Int[Tensor, " b"],
        size: int,
        by_group: bool = False,
    ) -> Iterator[tuple["Batch", Float[Tensor, "b t"]]]:
        """Yield micro-batches of `size` rows, each with its part of `weight`.

        They are sorted by length, to hold little padding. With `by_group`, the rows of
        a group stay together, and groups are sorted by their longest row.
        """
        length, passed = self.rollout.end, self.mask[rows].sum()
        if by_group:
            same = self.rollout.group[:, None] == self.rollout.group
            rows = rows[same.int().argmax(1)[rows].argsort(stable=True)]
            length = torch.where(same, length, 0).amax(1)  # of the group's longest row
        for chosen in rows[length[rows].argsort(stable=True)].split(size):
            part = replace(self.rows(chosen), whole=(self, chosen), passed_count=passed)
            yield part, weight[chosen, : part.mask.shape[1]]
