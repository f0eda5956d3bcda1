"""Read a prompt only once for all its responses, in one packed row per group.

    repeated   q o₁ · · | q o₂ o₂ · | q o₃ o₃ o₃        G rows, G times the prompt
    packed     q o₁ o₂ o₂ o₃ o₃ o₃                      one row

In the packed row every token keeps the position that it has in its own response. A
token of oᵢ attends only to the prompt and to earlier tokens of oᵢ. Its state and its
gradient are therefore the same as in a separate row, up to the order of summation. With
prompts of 50 tokens and 8 answers of 12, this takes 138 tokens instead of 496.
"""

from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from refimpl.models import Model, vocabulary
from refimpl.moe import is_moe
from refimpl.pretrained.fast import full_attention
from refimpl.rollout import Rollout

PAYS = 0.75
"""Prompts are shared if packed rows have at most this fraction of the tokens."""

_PLAIN: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()


def pack(rollout: Rollout) -> tuple[Tensor, Tensor, Tensor, Int[Tensor, "B T"]]:
    """Pack N groups into rows: returns ids, positions, owners (N, L), and `source`.

    A token's owner is 0 in the prompt, i in the group's i-th response, −1 in the
    padding. `source[i, t]` is the index, in the flattened rows, of the state that
    predicts token t of response i. The last token of a response predicts nothing and is
    left out.
    """
    device, width = rollout.ids.device, rollout.ids.shape[1]
    groups, length = packed_size(rollout)
    start, group = rollout.prompt_length[:, None], rollout.group
    row = torch.arange(len(group), device=device)
    same = group[:, None] == group
    leads = same.int().argmax(1) == row  # the prompt is taken from the first of a group
    base = (leads & (group < group[:, None])).sum(1, keepdim=True) * length
    earlier = same & (row < row[:, None])  # responses in the same packed row
    answer = rollout.span.clamp(min=1) - 1
    first = start + (earlier * answer).sum(1, keepdim=True)
    # The target of each token; tokens that are not read go behind the last packed row.
    column = torch.arange(width, device=device).expand(len(group), -1)
    in_prompt, in_answer = column < start, column < start + answer[:, None]
    place = base + torch.where(in_prompt, column, first + column - start)
    read = torch.where(in_prompt, leads[:, None], in_answer)
    place = torch.where(read, place, groups * length).flatten()
    owner = torch.where(in_prompt, 0, earlier.sum(1, keepdim=True) + 1)
    about = torch.stack([rollout.ids, column, owner + 1]).flatten(1)
    packed = about.new_zeros(3, groups * length + 1)
    packed.scatter_(1, place.expand(3, -1), about)
    ids, position, owner = packed[:, :-1].unflatten(1, (groups, length))
    steps = torch.arange(rollout.mask.shape[1], device=device)
    before = torch.where(steps == 0, start, first + steps) - 1
    return ids, position, owner - 1, base + before.clamp(max=length - 1)


def packed_size(rollout: Rollout) -> tuple[int, int]:
    """Return the number of packed rows and their length, padding included."""
    start, answer = rollout.prompt_length, rollout.span.clamp(min=1) - 1
    groups, of_row = rollout.group.unique(return_inverse=True)
    tokens = torch.zeros_like(groups).scatter_reduce(0, of_row, start, "amax")
    tokens = tokens.scatter_add(0, of_row, answer)
    return len(groups), int(tokens.max())


def states(model: Model, rollout: Rollout) -> Float[Tensor, "B T H"]:
    """Compute the last hidden states that predict response tokens, in packed rows."""
    *rows, source = pack(rollout)
    return _read(model, *rows).flatten(0, 1)[source]


def _read(model: Model, ids: Tensor, positions: Tensor, owner: Tensor) -> Tensor:
    """Compute the last hidden states (N, L, H) of packed rows."""
    allowed = attends(owner)[:, None]  # for all heads
    return model.get_decoder()(
        ids, attention_mask=allowed, position_ids=positions, use_cache=False
    ).last_hidden_state


def attends(owner: Int[Tensor, "N L"]) -> Bool[Tensor, "N L L"]:
    """Return the attention mask: earlier tokens of the prompt or the same response."""
    same = owner[:, :, None] == owner[:, None]
    return (same | (owner[:, None] == 0)).tril()


def pays(rollout: Rollout) -> bool:
    """True if packed rows are much shorter than the repeated, padded rows."""
    groups, length = packed_size(rollout)
    return groups * length <= PAYS * len(rollout) * int(rollout.end.max())


def possible(model: Model) -> bool:
    """True if the model accepts our mask: dense, with full attention in all layers."""
    return full_attention(model) and has_plain_head(model)


@torch.no_grad()
def has_plain_head(model: Model) -> bool:
    """True if the logits are the output embedding of the last hidden state, unchanged.

    Some models scale or cap their logits, so this is tested once per model, on two
    tokens. A mixture of experts gets False without a test, because a recorder may be
    recording its routing.
    """
    if is_moe(model) or not hasattr(model, "get_decoder"):
        return False
    if model not in _PLAIN:
        ids = torch.tensor([[0, 1]], device=model.device)
        try:
            logits = model(ids, use_cache=False).logits
            body = model.get_decoder()(ids, use_cache=False).last_hidden_state
            again = model.get_output_embeddings()(body)
            _PLAIN[model] = torch.allclose(logits, again, rtol=1e-3, atol=1e-4)
        except Exception:  # models with other parts raise many kinds of errors
            _PLAIN[model] = False
    return _PLAIN[model]


@torch.no_grad()
def agrees(model: Model) -> bool:
    """True if a packed row gives the same states as separate rows; tests 8 tokens."""
    size, positions = vocabulary(model), [0, 1, 2, 3, 4, 5, 3, 4]
    ids = [n % size for n in (3, 1, 4, 1, 5, 9, 2, 6)]
    prompt, answers = ids[:3], [ids[3:6], ids[6:]]
    owner = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2], device=model.device)
    row = torch.tensor([ids, positions], device=model.device)
    packed = _read(model, row[:1], row[1:], owner[None])
    for i, answer in enumerate(answers, start=1):
        alone = torch.tensor([prompt + answer], device=model.device)
        states = model.get_decoder()(alone, use_cache=False).last_hidden_state
        gap = (states[0, 3:] - packed[0, owner == i]).abs().max()
        if not gap < 1e-3 * (1 + states.abs().max()):
            return False
    return True
