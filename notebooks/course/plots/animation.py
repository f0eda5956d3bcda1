"""The clip that turns into the soft gate, while real tokens drift: a GIF and a still.

    python -c "from course.plots import animation; animation.clip_to_gate()"

(from `notebooks/`) writes `figures/clip_to_gate.gif` and `.png`. Every dot is a token
of the stored rollout (`course.stale`), at its ratio r after k updates and at the height
of its gate g; the dot's area is its part of the gradient, r |Â| / |o|.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from course import plots, stale
from course.plots import style

EDGE, NARROW, PAPER = 0.2, 8.8, 1.0
"""The clip's ε, the τ whose gate is half closed there, the paper's τ_pos."""

LIMIT = 3.0  # ratios beyond are drawn at the edge
CUT, INK = "#C9CDD1", "#22303C"
SIZE, DPI = (7.6, 4.5), 100


def gate(soft: float, tau: float) -> Callable[[Tensor, Tensor], Tensor]:
    """GRPO's clip at `soft` = 0, SAPO's sech²(τ (r − 1) / 2) at 1, between them at p.

    Where a token moves on, g = sech²(a d^p), d = τ |r − 1| / 2a, p = 1 / soft: half
    closed at d = 1 for every p, the steeper the larger p is. Where it comes back, the
    clip is open, and g is (1 − soft) + soft · sech²(a d^p).
    """
    half = math.acosh(math.sqrt(2))

    def g(r: Tensor, advantages: Tensor) -> Tensor:
        on = (r - 1) * advantages.sign()
        if soft == 0:
            return (on <= EDGE).to(r)
        far = tau * (r - 1).abs() / (2 * half)
        bell = 1 / torch.cosh((half * far ** (1 / soft)).clamp(max=40)) ** 2
        return torch.where(on > 0, bell, 1 - soft + soft * bell)

    return g


class Frame(NamedTuple):
    """`k` updates (a fraction between two), the gate, and how long it is shown."""

    k: float
    soft: float
    tau: float
    milliseconds: int
    caption: str


def story() -> Iterator[Frame]:
    """Drift under the clip, the clip softens, τ widens, and back."""
    clip = "GRPO's clip: all or nothing, on one side"
    melt = "The edge of the clip softens …"
    wide = "… and widens, as τ falls …"
    yield Frame(0, 0, NARROW, 1300, "Fresh tokens: every ratio is 1")
    for n in range(1, 3 * 16):
        yield Frame(n / 3, 0, NARROW, 80, clip)
    yield Frame(16, 0, NARROW, 1700, clip)
    for n in range(1, 15):
        yield Frame(16, n / 15, NARROW, 80, melt)
    yield Frame(16, 1, NARROW, 2000, f"SAPO fades out, on both sides (τ = {NARROW})")
    for n in range(1, 15):
        tau = NARROW * (PAPER / NARROW) ** (n / 15)
        yield Frame(16, 1, tau, 80, wide)
    yield Frame(16, 1, PAPER, 2000, f"As published, τ = {PAPER:.1f}: it hardly closes")
    for n in range(1, 9):
        tau = PAPER * (NARROW / PAPER) ** (n / 9)
        yield Frame(16 - 2 * n, 1 - n / 9, tau, 80, "Once more")


def tokens_with_gradient() -> dict[str, Tensor]:
    """All stored tokens: `z` (17, N), their log-ratios after k updates, and `A` (N,).

    `push` (17, N) is the gradient's size before any gate, r |Â| / |o|; `jitter` (2, N)
    spreads what would lie on one spot.
    """
    rollout = stale.load()
    here = rollout.mask.bool()
    A = rollout.advantages[:, None].expand_as(rollout.mask)
    z = rollout.z.double()
    push = z.exp() * (A.abs() * rollout.mask / rollout.mask.sum(-1, keepdim=True))
    generator = torch.Generator().manual_seed(0)
    jitter = torch.rand(2, int(here.sum()), generator=generator).double() - 0.5
    return {
        "z": z[:, here],
        "A": A[here].double(),
        "push": push[:, here],
        "jitter": jitter,
    }


def passes(g: Tensor, push: Tensor) -> float:
    """The part of the gradient that a gate leaves: Σ g r |Â| / |o| over Σ r |Â| / |o|.

    Sizes are added, so pushes of opposite sign do not cancel.
    """
    return ((g * push).sum() / push.sum()).item()


def between(values: Tensor, k: float) -> Tensor:
    """Row k of `values`, or what lies between two rows."""
    low = min(int(k), len(values) - 2)
    return torch.lerp(values[low], values[low + 1], k - low)


def draw(frame: Frame) -> Figure:
    """One picture: a panel for each sign of Â, and a gauge of what passes."""
    known, two = tokens_with_gradient(), stale.example()
    g = gate(frame.soft, frame.tau)
    r, push = between(known["z"], frame.k).exp(), between(known["push"], frame.k)
    figure = plt.figure(figsize=SIZE, dpi=DPI, layout="none")
    figure.text(0.03, 0.925, frame.caption, fontsize=17, weight="bold", color=INK)
    shade = _between(style.COLOURS["grpo"], style.COLOURS["sapo"], frame.soft)
    for sign, left in ((1, 0.085), (-1, 0.55)):
        axis = figure.add_axes((left, 0.285, 0.425, 0.52))
        chosen = known["A"].sign() == sign
        _panel(axis, sign, g, shade, frame)
        _dots(axis, sign, g, r[chosen], push[chosen], known["jitter"][:, chosen])
        places = ((0, 0),) if sign > 0 else ((1, 0), (1, 17))
        for i, t in places:
            ratio = between(two.z[:, i, t].double(), frame.k).exp()
            _follow(axis, sign, g, ratio, two.tokens[i][t])
    _gauge(figure, passes(g(r, known["A"]), push), frame.k, shade)
    return figure


def _panel(axis, sign: int, g, shade: str, frame: Frame) -> None:
    """The gate against the ratio."""
    grid = torch.cat([torch.linspace(0, LIMIT, 601), torch.tensor([0.7999, 1.2001])])
    grid = grid.sort().values.double()
    height = g(grid, torch.full_like(grid, sign))
    axis.fill_between(grid, 0, height, color=shade, alpha=0.1, linewidth=0)
    axis.plot(grid, height, color=shade, linewidth=2.5, zorder=2)
    axis.set(xlim=(-0.06, LIMIT + 0.08), ylim=(-0.16, 1.2))
    axis.set_xticks([0, 1, 2, 3], [*"0123"], fontsize=12)
    axis.set_yticks([0, 1], ["0", "1"], fontsize=12)
    axis.grid(False)
    axis.tick_params(length=3)
    title = "good tokens: pushed up →" if sign > 0 else "bad tokens: ← pushed down"
    axis.set_title(title, fontsize=13, color=style.GOOD if sign > 0 else style.BAD)
    below = {"transform": axis.transAxes, "ha": "center", "va": "top", "fontsize": 12}
    axis.text(0.5, -0.1, "ratio r", **below)
    if sign > 0:
        axis.set_ylabel("gate g", fontsize=12, labelpad=0)


def _dots(axis, sign: int, g, r: Tensor, push: Tensor, jitter: Tensor) -> None:
    """Tokens on their gates, in colour as far as their gradient passes."""
    height = g(r, torch.full_like(r, sign))
    x = (r + 0.08 * jitter[0]).clamp(max=LIMIT)
    order = height.argsort(descending=True)
    colours = _passing(sign)(
        height.mul(8).round().div(8).numpy()
    )  # few colours: a small file
    area = (600 * push).clamp(max=250)
    axis.scatter(
        x[order],
        (height + 0.2 * jitter[1])[order],
        s=area[order],
        color=colours[order.numpy()],
        linewidths=0,
        zorder=3,
    )


def _follow(axis, sign: int, g, ratio: Tensor, token: str) -> None:
    """A token of the example: its character in a ring."""
    height = g(ratio, torch.tensor(float(sign))).item()
    edge = to_hex(_passing(sign)(round(8 * height) / 8))
    ring = {"boxstyle": "circle,pad=0.22", "facecolor": "white", "linewidth": 2}
    ring["edgecolor"] = edge
    look = {"family": "monospace", "weight": "bold", "ha": "center", "va": "center"}
    look["color"] = INK if height > 0.05 else "#8B9299"
    at = min(ratio.item(), LIMIT), height
    axis.text(*at, token, fontsize=13, bbox=ring, zorder=5, **look)


def _gauge(figure: Figure, passing: float, k: float, shade: str) -> None:
    """A bar as long as the whole gradient, filled as far as it passes."""
    axis = figure.add_axes((0.085, 0.055, 0.89, 0.075), xlim=(0, 1), ylim=(0, 1))
    axis.axis("off")
    axis.barh(0.5, 1, 0.9, color="#E6E8EA")
    axis.barh(0.5, passing, 0.9, color=shade)
    look = {"va": "center", "fontsize": 13, "weight": "bold"}
    text = f"{100 * passing:.0f} % of the gradient passes"
    if passing < 0.995:
        text += f", {100 - round(100 * passing)} % is cut"
    axis.text(0.012, 0.47, text, color="white", **look)
    dot = "a dot is a token, its area is its gradient; "
    dot += "ringed: the first token 9 and the wrong digit 4"
    figure.text(0.085, 0.155, dot, fontsize=11, color="#6B747C")
    text = f"after {round(k)} update{'' if round(k) == 1 else 's'}"
    figure.text(0.975, 0.93, text, fontsize=14, color="#6B747C", ha="right")


def _passing(sign: int) -> LinearSegmentedColormap:
    """From grey, nothing passes, to the colour of a good or a bad token."""
    shade = style.GOOD if sign > 0 else style.BAD
    return LinearSegmentedColormap.from_list("passing", (CUT, shade))


def _between(one: str, other: str, t: float) -> str:
    steps = LinearSegmentedColormap.from_list("between", (one, other))
    return to_hex(steps(round(t * 8) / 8))


def clip_to_gate(path: str | Path | None = None, colours: int = 64) -> Path:
    """Draw every frame; save the GIF and, beside it, the most telling still.

    One palette serves all frames, so that only what moves is stored again, and a still
    frame is stored once, with its duration. (matplotlib's writer does neither.)
    """
    path = plots.folder() / "clip_to_gate.gif" if path is None else Path(path)
    frames = list(story())
    pictures = []
    for frame in frames:
        figure = draw(frame)
        figure.canvas.draw()
        pictures.append(Image.fromarray(_pixels(figure)))
        if (frame.k, frame.soft) == (16, 0):
            figure.savefig(
                path.with_suffix(".png"), dpi=DPI, metadata={"Software": None}
            )
        plt.close(figure)
    telling = [i for i, frame in enumerate(frames) if frame.milliseconds > 1000]
    sheet = Image.new("RGB", (pictures[0].width, pictures[0].height * len(telling)))
    for n, i in enumerate(telling):
        sheet.paste(pictures[i], (0, n * pictures[0].height))
    palette = _with_white(sheet.quantize(colours, dither=Image.Dither.NONE))
    first, *rest = (p.quantize(palette=palette, dither=0) for p in pictures)
    durations = [frame.milliseconds for frame in frames]
    settings = {"save_all": True, "append_images": rest, "loop": 0, "disposal": 1}
    first.save(path, duration=durations, optimize=False, **settings)
    return path


def _with_white(picture: Image.Image) -> Image.Image:
    """The picture's palette, what is nearly white in it made white, as the page is."""
    palette = np.array(picture.getpalette()).reshape(-1, 3)
    palette[palette.min(1) >= 248] = 255
    holder = Image.new("P", (1, 1))
    holder.putpalette(palette.flatten().tolist())
    return holder


def _pixels(figure: Figure) -> np.ndarray:
    return np.asarray(figure.canvas.buffer_rgba())[..., :3].copy()
