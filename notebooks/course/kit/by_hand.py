"""Three short answers to one prompt, small enough to follow every number by hand.

Chapters 01 to 11 type their method in plain torch, run it on these answers, and compare
value and gradient with the library's.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from course.kit.tables import as_table

TEXTS = ("#7■", "#12■", "?■")
RATIOS = ((1.3, 1.0, 0.7), (0.7, 1.1, 1.0, 1.3), (0.9, 0.6))
"""Every case of the clip for either sign: moving on, staying, coming back."""
OLD_PROBABILITY = 0.5


class Answers(NamedTuple):
    """One group of B = 3 answers to `3+4=`, of at most T = 4 tokens; float64."""

    logp: Float[Tensor, "B T"]  # nats; it asks for its gradient
    old_logp: Float[Tensor, "B T"]  # nats
    rewards: Float[Tensor, " B"]
    mask: Float[Tensor, "B T"]  # 1 on the tokens of an answer, 0 on padding


def answers() -> Answers:
    """The answers as new tensors. Padding has ratio 1, and must not count."""
    mask, ratios = torch.zeros(3, 4).double(), torch.ones(3, 4).double()
    for i, row in enumerate(RATIOS):
        mask[i, : len(row)] = 1
        ratios[i, : len(row)] = torch.tensor(row)
    old_logp = torch.full_like(ratios, OLD_PROBABILITY).log()
    logp = (old_logp + ratios.log()).requires_grad_()
    return Answers(logp, old_logp, torch.tensor([1.0, 0.0, 0.0]).double(), mask)


def show(columns: str = "ratio", **rows: Tensor) -> None:
    """Show (B, T) tensors under the answers' characters, padding left blank.

    Without `rows` it shows every token's ratio.
    """
    one = answers()
    rows = rows or {columns: (one.logp - one.old_logp).exp()}
    lines = []
    for i, text in enumerate(TEXTS):
        lines.append([f"**answer {i + 1}, reward {one.rewards[i]:.0f}**", *text])
        for name, values in rows.items():
            wide = values.detach().expand(3, 4)[i, : len(text)]
            lines.append([name, *(f"{x + 0.0:.3g}" for x in wide.tolist())])
    heads = ["", *(f"token {t + 1}" for t in range(4))]
    as_table(lines, heads, disable_numparse=True, colalign=["left", *["right"] * 4])


def compare(mine: Tensor, library: Tensor, logp: Tensor) -> None:
    """Show two losses and their gradients with respect to `logp`, token by token.

    Raises `AssertionError` if they differ by more than the checker of a typed function
    tolerates: torch.where(A > 0, 1.0, 1.05), for example, is float32.
    """
    (ours,) = torch.autograd.grad(mine, logp, retain_graph=True)
    (theirs,) = torch.autograd.grad(library, logp, retain_graph=True)
    print(f"loss, typed above   {mine.item():+.6f}")
    print(f"loss, refimpl       {library.item():+.6f}")
    print("gradient of the loss with respect to log π:")
    show(typed=ours, refimpl=theirs)
    gap = max((ours - theirs).abs().max().item(), abs((mine - library).item()))
    assert gap < 1e-5, f"the two differ by {gap:.1g}"
