"""The same stale tokens under three gates, and what becomes of the policy: a GIF.

    python -c "from web.pictures import animation; animation.clip_to_gate()"

(from `notebooks/`) writes `figures/clip_to_gate.gif` there and a still, `.png`. Every
dot is a token of the stored rollout (`kit.stale`), at its ratio r after k updates
and at the height of its gate g; the dot's area is its push, r |Â| / |o|. Every gate is
one that a method has: from one to the next the pictures are faded over.
"""

from collections.abc import Iterator
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from course.kit import plots, stale
from course.kit.plots import primitives, style
from course.sapo.explorer import (
    EDGE,
    FAINT,
    GRID,
    LIMIT,
    PARTS,
    QUIET,
    Tokens,
    colours,
    kept,
    percent,
    rewards,
)
from refimpl.curves import curve

INK = "#22303C"
SIZE, DPI = (7.6, 4.5), 100
GATES: dict[str, tuple[str, dict[str, float]]] = {
    "grpo": ("grpo", {}),
    "sapo 8.8": ("sapo", {"tau_pos": 8.8, "tau_neg": 8.8}),
    "sapo": ("sapo", {}),
}
"""The methods by whose look they go: name and hyperparameters."""
RUNS = {"grpo": "GRPO", "sapo 8.8": "SAPO 8.8", "sapo": "SAPO 1.0"}
"""Their arms in the store."""
STILL = "sapo 8.8"
"""The gate of the picture beside the GIF."""


class Frame(NamedTuple):
    """Tokens after `k` updates (a fraction between two) on a gate; "" for the runs."""

    gate: str
    k: float
    milliseconds: int
    caption: str


def story() -> Iterator[Frame | int]:
    """Tokens drift under the clip; then other gates, and the runs.

    A number stands for so many pictures between its neighbours.
    """
    clip = "GRPO's clip stops what moves on …"
    yield Frame("grpo", 0, 1000, "Fresh tokens: every ratio is 1")
    for n in range(1, 2 * 16):
        yield Frame("grpo", n / 2, 90, clip)
    yield Frame("grpo", 16, 2000, clip)
    yield 4
    yield Frame("sapo 8.8", 16, 2600, "SAPO, τ = 8.8: … and the way back closes, too")
    yield 4
    yield Frame("sapo", 16, 2200, "SAPO as published, τ ≈ 1: hardly a gate")
    yield 4
    yield Frame("", 16, 3300, "30 such rollouts: under SAPO the reward falls")


def between(values: Tensor, k: float) -> Tensor:
    """Row k of `values`, or what lies between two rows."""
    low = min(int(k), len(values) - 2)
    return torch.lerp(values[low], values[low + 1], k - low)


def drifting(tokens: Tokens, k: float) -> Tokens:
    """The tokens after k updates, as the only row."""
    moved = Tokens(tokens.sign)
    ratio = between(tokens.ratio.log(), k).exp()
    moved.push = (ratio * tokens.push[0])[None]  # at the start every ratio is 1
    moved.x = (ratio + tokens.x[0] - 1).clamp(max=LIMIT)[None]
    moved.ratio = ratio[None]
    on = (ratio - 1) * tokens.sign
    moved.parts = torch.stack([on > EDGE, on < -EDGE])[:, None]
    return moved


def draw(frame: Frame) -> Figure:
    """One picture: a panel for each sign of Â, and what the gate keeps, in two bars."""
    if not frame.gate:
        return survival(frame)
    figure, (method, settings) = _page(frame), GATES[frame.gate]
    two, every, passed = stale.example(), [], []
    for sign, left in ((1, 0.085), (-1, 0.55)):
        axis = figure.add_axes((left, 0.43, 0.425, 0.37))
        tokens = drifting(Tokens(sign), frame.k)
        line, g = tokens.gates(method, 0, **settings)
        _panel(axis, sign, line, frame.gate)
        _dots(axis, tokens, g)
        for i, t in ((0, 0),) if sign > 0 else ((1, 0), (1, 17)):
            ratio = between(two.z[:, i, t].double(), frame.k).exp()
            gate = curve(method, sign, ratio[None], **settings).gate
            _follow(axis, sign, gate, ratio.item(), two.tokens[i][t])
        every.append(tokens)
        passed.append(g)
    dot = "a dot is a token, its area is its push; ringed: the first token 9, a wrong 4"
    figure.text(0.085, 0.275, dot, fontsize=11, color=QUIET)
    for i, share in enumerate(kept(every, 0, passed)):
        _bar(figure, PARTS[i], share, 0.145 - 0.125 * i, style.LOOKS[frame.gate][0])
    text = f"after {round(frame.k)} update{'' if round(frame.k) == 1 else 's'}"
    figure.text(0.975, 0.87, text, fontsize=13, color=QUIET, ha="right")
    return figure


def survival(frame: Frame) -> Figure:
    """Reward by rollout of stored runs with these gates, at the hard setting."""
    figure = _page(frame)
    axis = figure.add_axes((0.085, 0.16, 0.7, 0.68), xlim=(1, 30), ylim=(-0.03, 1))
    for name, arm in RUNS.items():
        count, (middle, low, high) = rewards(arm, "hard")
        colour, dash = style.LOOKS[name]
        x = primitives.steps(middle)
        axis.fill_between(x, low, high, color=colour, alpha=0.12, linewidth=0)
        primitives.line(axis, x, middle, colour, dash, lw=3)
        label = {"grpo": "GRPO", "sapo 8.8": "τ = 8.8", "sapo": "as published"}[name]
        at = {"sapo 8.8": 0.0, "sapo": 0.11}.get(name, middle[-1])
        look = {"fontsize": 14, "weight": "bold", "va": "center", "color": colour}
        axis.text(30.5, at, label, **look)
    axis.set_xticks([1, 10, 20, 30], ["1", "10", "20", "30"], fontsize=12)
    axis.set_yticks([0, 0.5, 1], ["0", "0.5", "1"], fontsize=12)
    axis.set_ylabel("reward", fontsize=13, labelpad=0)
    axis.set_xlabel(
        f"rollout, hard setting ({count} runs: median and range)", fontsize=12
    )
    axis.grid(False)
    return figure


def _page(frame: Frame) -> Figure:
    figure = plt.figure(figsize=SIZE, dpi=DPI, layout="none")
    figure.text(0.03, 0.93, frame.caption, fontsize=16.5, weight="bold", color=INK)
    return figure


def _panel(axis, sign: int, gate: Tensor, name: str) -> None:
    """The gate against the ratio."""
    colour = style.LOOKS[name][0]
    axis.fill_between(GRID, 0, gate, color=colour, alpha=0.1, linewidth=0)
    axis.plot(GRID, gate, color=colour, linewidth=2.5, zorder=2)
    axis.set(xlim=(-0.06, LIMIT + 0.08), ylim=(-0.18, 1.22))
    axis.set_xticks([0, 1, 2, 3], [*"0123"], fontsize=12)
    axis.set_yticks([0, 1], ["0", "1"], fontsize=12)
    axis.grid(False)
    axis.tick_params(length=3)
    title = "good tokens: pushed up →" if sign > 0 else "bad tokens: ← pushed down"
    axis.set_title(title, fontsize=13, color=style.GOOD if sign > 0 else style.BAD)
    below = {"transform": axis.transAxes, "ha": "center", "va": "top", "fontsize": 12}
    axis.text(0.5, -0.07, "ratio r", **below)
    if sign > 0:
        axis.set_ylabel("gate g", fontsize=12, labelpad=0)


def _dots(axis, tokens: Tokens, g: Tensor) -> None:
    """Tokens on their gates, in colour as far as their push passes."""
    order = g.argsort(descending=True)
    axis.scatter(
        tokens.x[0][order],
        (g + tokens.lift)[order],
        s=(600 * tokens.push[0]).clamp(max=250)[order],
        color=colours(tokens.sign, g)[order].numpy(),
        linewidths=0,
        zorder=3,
    )


def _follow(axis, sign: int, g: Tensor, ratio: float, token: str) -> None:
    """A token of the example: its character in a ring."""
    ring = {"boxstyle": "circle,pad=0.2", "facecolor": "white", "linewidth": 2}
    ring["edgecolor"] = colours(sign, g)[0].tolist()
    look = {"family": "monospace", "weight": "bold", "ha": "center", "va": "center"}
    look["color"] = INK if g > 0.05 else "#8B9299"
    look |= {"fontsize": 13, "bbox": ring, "zorder": 5}
    axis.text(min(ratio, LIMIT), g.item(), token, **look)


def _bar(figure: Figure, part: str, share: float, bottom: float, colour: str) -> None:
    """How much of a part's push the gate keeps."""
    figure.text(0.03, bottom + 0.045, part, fontsize=15, color=INK, va="center")
    axis = figure.add_axes((0.22, bottom, 0.6, 0.09), xlim=(0, 1), ylim=(0, 1))
    axis.axis("off")
    axis.barh(0.5, 1, 1, color=FAINT)
    look = {"fontsize": 25, "weight": "bold", "ha": "right", "va": "center"}
    if share == share:
        axis.barh(0.5, share, 1, color=colour)
    figure.text(0.985, bottom + 0.042, percent(share), color=colour, **look)


def pictures(steps: list[Frame | int]) -> list[Image.Image]:
    """A picture for each frame, and those that fade from one to the next."""
    made: list[Image.Image | int] = []
    for step in steps:
        if isinstance(step, Frame):
            figure = draw(step)
            figure.canvas.draw()
            step = Image.fromarray(_pixels(figure))
            plt.close(figure)
        made.append(step)
    shown = []
    for i, one in enumerate(made):
        if isinstance(one, int):
            parts = ((n + 1) / (one + 1) for n in range(one))
            shown += [Image.blend(made[i - 1], made[i + 1], part) for part in parts]
        else:
            shown.append(one)
    return shown


def durations(steps: list[Frame | int]) -> list[int]:
    """How long each picture is shown, in milliseconds."""
    every = ([90] * s if isinstance(s, int) else [s.milliseconds] for s in steps)
    return [one for few in every for one in few]


def clip_to_gate() -> None:
    """Draw every frame; save the GIF and, beside it, the most telling still.

    One palette serves all frames, so that only what moves is stored again, and a still
    frame is stored once, with its duration. (matplotlib's writer does neither.)
    """
    path = plots.folder(plots.LINKED) / "clip_to_gate.gif"
    steps = list(story())
    shown, lasting = pictures(steps), durations(steps)
    telling = next(f for f in steps if isinstance(f, Frame) and f.gate == STILL)
    still = draw(telling)
    still.savefig(path.with_suffix(".png"), dpi=DPI, metadata={"Software": None})
    plt.close(still)
    chosen = [one for one, ms in zip(shown, lasting) if ms > 500]
    sheet = Image.new("RGB", (chosen[0].width, chosen[0].height * len(chosen)))
    for n, one in enumerate(chosen):
        sheet.paste(one, (0, n * one.height))
    palette = _with_white(sheet.quantize(64, dither=Image.Dither.NONE))
    first, *rest = (p.quantize(palette=palette, dither=0) for p in shown)
    settings = {"save_all": True, "append_images": rest, "loop": 0, "disposal": 1}
    first.save(path, duration=lasting, optimize=False, **settings)


def _with_white(picture: Image.Image) -> Image.Image:
    """The picture's palette, what is nearly white in it made white, as the page is."""
    palette = np.array(picture.getpalette()).reshape(-1, 3)
    palette[palette.min(1) >= 248] = 255
    holder = Image.new("P", (1, 1))
    holder.putpalette(palette.flatten().tolist())
    return holder


def _pixels(figure: Figure) -> np.ndarray:
    return np.asarray(figure.canvas.buffer_rgba())[..., :3].copy()
