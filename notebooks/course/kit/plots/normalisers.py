"""The normalisers as a ragged grid: two prompts, four responses, a cell per token.

No weight is typed here: each comes from `refimpl.normalisers`.
"""

from collections.abc import Sequence
from fractions import Fraction

import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from course.kit.plots import primitives as draw
from course.kit.plots import style
from refimpl import normalisers

LENGTHS = (6, 2, 3, 9)
"""Tokens of the four responses."""
GROUP = (0, 0, 1, 1)
"""The prompt that each of them answers."""
LIMIT = 12
"""L_max of the constant, in tokens."""

PANELS = {  # whose it is, the weight, what is equal, and where that is seen
    "seq_mean_token_mean": ("GRPO", r"$1/(B\,|o_i|)$", "response", "rows"),
    "constant": ("Dr. GRPO", r"$1/(B\,L_{\max})$", "token, in any batch", "tokens"),
    "group_token_mean": (
        "DAPO, Eq. 8",
        r"$1/(\#\mathrm{prompts}\cdot\Sigma_{j\in\mathrm{group}}|o_j|)$",
        "prompt",
        "groups",
    ),
    "token_mean": (
        "DAPO, frameworks",
        r"$1/\Sigma_{j\in\mathrm{batch}}|o_j|$",
        "token of the batch",
        "tokens",
    ),
}
SHADES = LinearSegmentedColormap.from_list("w", ("#EDF1F4", "#3F5B73"))

# Inches. The figure is one axis, as large as it.
WIDE, HIGH, LEFT, CELL, ROW, GAP = 3.95, 2.3, 0.62, 0.16, 0.27, 0.12
BARS, BAR, SUMS = LEFT + 9 * CELL + 0.12, 0.5, 3.42


def batch() -> tuple[Float[Tensor, "B T"], Tensor]:
    """The mask of the four responses and their prompts."""
    lengths = torch.tensor(LENGTHS)
    mask = (torch.arange(max(LENGTHS)) < lengths[:, None]).double()
    return mask, torch.tensor(GROUP)


def weights(name: str) -> Float[Tensor, "B T"]:
    """w of every token of the batch, 0 on padding."""
    mask, group = batch()
    normaliser = normalisers.NORMALISERS[name]
    return normalisers.apply(normaliser, mask, group=group, max_length=LIMIT)


def grid(names: Sequence[str] = tuple(PANELS), *, title: str) -> Figure:
    """A panel per normaliser; at its right the sums over a response and a prompt.

    What is equal in a panel is set in bold. Every panel has the same shades.
    """
    rows = -(-len(names) // 2)
    head = 0.12 + 0.27 * (title.count("\n") + 1)
    height = rows * HIGH + head
    figure, axis = draw.canvas(2 * WIDE, height)
    place = {"x": 0.1 / (2 * WIDE), "y": 1 - 0.1 / height, "ha": "left", "va": "top"}
    figure.suptitle(title, **place)
    axis.set_ylabel(f"weights in {', '.join(PANELS[name][0] for name in names)}")
    for i, name in enumerate(names):
        left, top = (i % 2) * WIDE, height - head - (i // 2) * HIGH
        _panel(axis, left, top, name)
    return figure


def _panel(axis: Axes, left: float, top: float, name: str) -> None:
    method, formula, equal, where = PANELS[name]
    weight, mask = weights(name), batch()[0]
    look = {"va": "center", "fontsize": 12}
    axis.add_patch(
        Rectangle((left + 0.1, top - 0.52), 0.07, 0.46, color=style.colour(method))
    )
    line = f"{method}: $w$ = {formula}"
    axis.text(left + 0.26, top - 0.16, line, **look)
    axis.text(left + 0.26, top - 0.42, f"equal: every {equal}", **look)
    small = {"va": "center", "fontsize": 10.5, "color": "#555555"}
    y = top - 0.72
    axis.text(left + LEFT - 0.08, y, "$w$", ha="right", **small)
    axis.text(left + BARS, y, "response", ha="left", **small)
    axis.text(left + SUMS, y, "prompt", ha="center", **small)
    y -= 0.14
    largest = max(weights(other).max() for other in PANELS).item()
    for i, n in enumerate(LENGTHS):
        if i and GROUP[i] != GROUP[i - 1]:
            y -= GAP
        w, whole = weight[i, 0].item(), weight[i].sum().item()
        middle = y - ROW / 2
        number = str(Fraction(w).limit_denominator(999))
        bold = {"weight": "bold" if where == "tokens" else "normal"}
        at = left + LEFT
        axis.text(at - 0.08, middle, number, ha="right", **look, **bold)
        for t in range(n):
            corner = at + t * CELL, y - ROW + 0.03
            shade = {"facecolor": SHADES(w / largest), "linewidth": 0}
            axis.add_patch(Rectangle(corner, CELL - 0.02, ROW - 0.05, **shade))
        bar = left + BARS, y - ROW + 0.06
        size = BAR * whole / 0.45, ROW - 0.11
        axis.add_patch(Rectangle(bar, *size, color=style.GREY))
        bold = {"weight": "bold" if where == "rows" else "normal"}
        end = bar[0] + size[0] + 0.05
        axis.text(end, middle, _short(whole), **look, **bold)
        if i + 1 == len(GROUP) or GROUP[i] != GROUP[i + 1]:
            mates = [j for j, g in enumerate(GROUP) if g == GROUP[i]]
            total = weight[mates].sum().item()
            middle = y - ROW + ROW * len(mates) / 2
            bold = {"weight": "bold" if where == "groups" else "normal"}
            axis.text(left + SUMS, middle, _short(total), ha="center", **look, **bold)
            side = [y - ROW + 0.03, y - ROW + ROW * len(mates) - 0.02]
            axis.plot([left + SUMS - 0.27] * 2, side, color="#999999", linewidth=1)
        y -= ROW
    whole = (weight * mask).sum().item()
    note = f"batch: {_short(whole)}"
    axis.text(left + SUMS + 0.27, y - 0.13, note, ha="right", **small)


def _short(x: float) -> str:
    """Two digits after the point, or three where two would round: .25, .125."""
    x = round(x, 6)
    text = f"{x:.2f}" if x == round(x, 2) else f"{x + 1e-6:.3f}"
    return text.removeprefix("0") if x < 1 else f"{x:.0f}"
