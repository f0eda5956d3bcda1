"""The data of training: a `Rollout` as it was sampled, a `Batch` as it is learned
from. Both have `rows(index)`, which also cuts unneeded padding off.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import compress

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedTokenizerBase

FREE = -1
"""Stands for an expert that was not recorded: there the router chooses itself."""


@dataclass(frozen=True)
class Rollout:
    """B responses and what was known when they were sampled.

    `ids` holds prompt and response without a gap, right-padded: every real token then
    sits at its true position, and causal attention needs no mask. `logp` is the
    sampler's, `entropy` that of the distribution each token was drawn from (after
    top_k and top_p, where one of them is on), nats; `mask` is 1 through EOS, and may
    have holes (tokens that the policy did not write). `group` numbers the prompts.

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
    def end(self) -> Int[Tensor, " B"]:
        """The index in `ids` at which each row's padding begins."""
        return self.prompt_length + self.span

    def __len__(self) -> int:
        return len(self.ids)

    def rows(self, index: Int[Tensor, " b"]) -> "Rollout":
        """The rows of `index`, with the padding that they no longer need cut off."""
        part = {name: x[index] for name, x in tensor_fields(self).items()}
        whole = replace(self, **part)
        span = whole.span.clamp(min=1)  # also if all is hole
        width = widths(int(span.max()), int((whole.prompt_length + span).max()))
        return replace(whole, **{n: part[n][:, : width[n]] for n in width if n in part})

    @torch.no_grad()
    def in_parts(self, read: Callable, size: int) -> dict[str, Tensor]:
        """Call `read(part)`, which returns tensors by name, on micro-batches of so many
        rows, and put the results together."""
        every = torch.arange(len(self), device=self.ids.device)
        found = [read(self.rows(index)) for index in every.split(size)]
        width = {2: self.mask.shape[1], 4: self.ids.shape[1]}
        return {
            name: torch.cat([pad_columns(part[name], width[x.ndim]) for part in found])
            for name, x in found[0].items()
        }

    @classmethod
    def join(cls, parts: Sequence["Rollout"]) -> "Rollout":
        """One rollout out of several, groups numbered on."""
        longest = max(part.mask.shape[1] for part in parts)
        width = widths(longest, max(part.ids.shape[1] for part in parts))
        joined, groups, first = {}, [], 0
        for part in parts:
            groups.append(part.group + first)
            first = int(groups[-1].max()) + 1
        for name in tensor_fields(parts[0]):
            columns = [getattr(part, name) for part in parts]
            if name in width:
                fill = FREE if name == "experts" else 0
                columns = [pad_columns(x, width[name], fill) for x in columns]
            joined[name] = torch.cat(columns)
        return cls(**joined | {"group": torch.cat(groups)})

    def texts(self, tokenizer: PreTrainedTokenizerBase) -> list[str]:
        """The responses as text, without the token that ended them.

        Any other special token is shown: a verifier must see what was written, and
        `#1<unk>2` is not `#12`.
        """
        rows = zip(self.completion_ids(), self.truncated.tolist())
        written = [ids if cut else ids[:-1] for ids, cut in rows]
        return tokenizer.batch_decode(written, skip_special_tokens=False)

    def completion_ids(self) -> list[list[int]]:
        """The tokens of each response, with the one that ended it."""
        rows = zip(self.tokens.tolist(), self.mask.bool().tolist())
        return [list(compress(tokens, keep)) for tokens, keep in rows]


def tensor_fields(flow: "Rollout | Batch") -> dict[str, Tensor]:
    """The fields that hold a tensor, by name."""
    given = {field.name: getattr(flow, field.name) for field in fields(flow)}
    return {name: x for name, x in given.items() if isinstance(x, Tensor)}


def widths(response: int, whole: int) -> dict[str, int]:
    """The number of tokens along the second dimension of each field that has one."""
    per_token = dict.fromkeys(("mask", "logp", "entropy"), response)
    return per_token | dict.fromkeys(("ids", "experts", "router_logp"), whole)


def pad_columns(x: Tensor, to: int, fill: int | float = 0) -> Tensor:
    """`x` (B, n, …) with its second dimension padded to `to`."""
    return F.pad(x, (0, 0) * (x.ndim - 2) + (0, to - x.shape[1]), value=fill)


@dataclass(frozen=True)
class Batch:
    """A rollout with everything that stays constant during its K updates.

    `mask` says which tokens have a loss: the rollout's, less what is filtered out.
    `old_logp` is π_old's; `rollout.logp` the sampler's, the same unless they differ by
    intent (`TrainConfig.mismatch`). `rollout.experts` are those that π_old visited.
    `old_values` and `targets` are a critic's, in reward units. `tokens` (by `mask`) and
    `responses` are how many the mini-batch has of which this is a part.
    """

    rollout: Rollout
    mask: Float[Tensor, "B T"]
    old_logp: Float[Tensor, "B T"]
    advantages: Float[Tensor, "B T"]
    ref_logp: Float[Tensor, "B T"] | None = None
    old_values: Float[Tensor, "B T"] | None = None
    targets: Float[Tensor, "B T"] | None = None
    tokens: Float[Tensor, ""] | None = None
    responses: Float[Tensor, ""] | None = None

    def __len__(self) -> int:
        return len(self.rollout)

    def rows(self, index: Int[Tensor, " b"]) -> "Batch":
        """The rows of `index`, with the padding that they no longer need cut off."""
        part = self.rollout.rows(index)
        own = {name: x for name, x in tensor_fields(self).items() if x.ndim}
        own = {name: x[index, : part.mask.shape[1]] for name, x in own.items()}
        return replace(self, rollout=part, **own)

    def minibatches(
        self, n: int, epochs: int, generator: torch.Generator
    ) -> Iterator["Batch"]:
        """n shuffled mini-batches of whole groups, in each of so many epochs."""
        group = self.rollout.group
        groups = group.unique()
        for _ in range(epochs):
            order = groups[torch.randperm(len(groups), generator=generator)]
            for chosen in order.tensor_split(min(n, len(order))):
                mini = self.rows(torch.isin(group, chosen).nonzero()[:, 0])
                count = mini.mask.sum().clamp(min=1)
                responses = count.new_full((), len(mini))
                yield replace(mini, tokens=count, responses=responses)

    def informative_rows(self, keep_all: bool) -> Int[Tensor, " b"]:
        """The rows of groups with some advantage that is not 0; at least one row.

        The others have no gradient, because Â is 0 where rewards are equal. Once a
        policy is good, that is most of a rollout. `keep_all`: all rows, if a term such
        as a KL also acts on those without an advantage.
        """
        group = self.rollout.group
        if keep_all:
            return torch.arange(len(group), device=group.device)
        learns = (self.advantages * self.mask != 0).any(-1)
        kept = ((group[:, None] == group) & learns).any(-1).nonzero()[:, 0]
        return kept if len(kept) else kept.new_zeros(1)

    def micro_batches(
        self,
        weight: Float[Tensor, "B T"],
        rows: Int[Tensor, " b"],
        size: int,
        by_group: bool = False,
    ) -> Iterator[tuple["Batch", Float[Tensor, "b t"]]]:
        """Slices of `rows` with their weights, sorted by length so that little of each
        is padding; `by_group`: by the longest of a group, which stays together."""
        length = self.rollout.end
        if by_group:
            same = self.rollout.group[:, None] == self.rollout.group
            longest = torch.where(same, length, 0).amax(1)
            length = longest * len(self) + same.int().argmax(1)
        for chosen in rows[length[rows].argsort(stable=True)].split(size):
            part = self.rows(chosen)
            yield part, weight[chosen, : part.mask.shape[1]]
