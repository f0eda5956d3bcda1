"""One response, token by token: Â, ratio, gate, weight and the push they make.

The same template in every chapter, drawn for the two stored answers of
`course.kit.stale.example`. No number is typed from a formula: autograd takes the gate
from the training loss.

    tokens.responses("grpo", title="The clip takes the fork's gradient away")
    tokens.methods({"GRPO": "grpo", "SAPO": ("sapo", {"tau_pos": 8.8})}, title="…")
    tokens.numbers("gspo", k=4)["g"]         # (2, T)
"""

import functools
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from course.kit import stale
from course.kit.plots import primitives as draw
from course.kit.plots import style
from refimpl import normalisers
from refimpl.algorithms import Algorithm, get

CLOSED = 1e-9
"""A gate below this takes the whole gradient."""

CROSS = "×"

WIDTH, LEFT, ROW, BARS, HEAD, FOOT = 8.5, 1.62, 0.34, 0.62, 0.8, 0.5
"""Inches: a figure, where its cells begin, a row, the row of pushes, text around."""

SMALL, NORMAL, LARGE = 12, 12.5, 15
"""Points; readable when the figure is shown 400 pixels wide."""

PALE, INK, FAINT = "#F1F1EF", "#22303C", "#858585"


def _ramp(*colours: str) -> LinearSegmentedColormap:
    return LinearSegmentedColormap.from_list("ramp", colours)


SIGNED = _ramp(style.BAD, PALE, style.GOOD)  # Â
SHIFT = _ramp("#6A3D9A", "#B9A3D0", PALE, "#F0B56B", "#C2570C")  # r below, above 1
AMOUNT = _ramp("#FFFFFF", "#B5D8E3", "#5AA2BC")  # w from 0 to the largest
GATE = _ramp("#FFFFFF", "#B5D8E3", "#5AA2BC", "#1F5E7D", "#0B2A42")  # g: 1 is half-way


def numbers(
    algorithm: str | Algorithm,
    *,
    k: int = 16,
    advantages: Tensor | None = None,
    weight: Tensor | None = None,
    answers: stale.Stale | None = None,
    sampled: float = 1.0,
    **hyperparameters,
) -> dict[str, Tensor]:
    """Compute what each token of the two answers contributes after k updates (float64).

    With c = ∂(−loss)/∂log π / (w Â) from the loss itself:

        push = w · c · Â = w · g · r · Â        g = c / r

    Keys: `A`, `r`, `c`, `g`, `w`, `push` and `mask`; each (2, T), a good answer and a
    bad one, 0 outside the mask (g and c also where Â is 0).

    **Arguments:**

    - `advantages`: (2,) or (2, T); default: the stored, group-relative ones.
    - `weight`: (2, T); default: the paper's normaliser over the two answers.
    - `answers`: other responses than the example's (`stale.load().rows([…])`).
    - `sampled`: what π_old gave each token, for a gate that looks at probabilities.
    """
    method = get(algorithm) if isinstance(algorithm, str) else algorithm
    answers = stale.example(k) if answers is None else answers
    mask, z = answers.mask.double(), answers.z[k].double()
    A = answers.advantages if advantages is None else advantages
    A = (A[:, None] if A.ndim == 1 else A).double() * mask
    if weight is None:
        known = {"group": answers.group}
        weight = normalisers.apply(method.normaliser, mask, **known)
    w, old = weight.double() * mask, torch.full_like(z, math.log(sampled))
    logp = (z + math.log(sampled)).requires_grad_()
    loss = method.policy_loss(logp, old, A, mask, w, **hyperparameters).loss
    (push,) = torch.autograd.grad(-loss, logp)
    scale = w * A
    c = torch.where(scale == 0, 0.0, push / scale)
    r = z.exp() * mask
    g = torch.where(mask.bool(), c / z.exp(), 0.0)
    return {"A": A, "r": r, "c": c, "g": g, "w": w, "push": push, "mask": mask}


def responses(
    algorithm: str | Algorithm,
    *,
    title: str,
    k: int = 16,
    rows: Sequence[str] = ("A", "r", "g", "w", "push"),
    answers: stale.Stale | None = None,
    **settings,
) -> Figure:
    """The two answers, a row for each quantity in `rows` (keys of `numbers`).

    A value that a whole row shares is written once; a ratio or a gate only where it is
    not 1. An outline in the row of pushes is the push without the gate, w r Â. The
    other `settings` are those of `numbers`.
    """
    answers = stale.example(k) if answers is None else answers
    parts = numbers(algorithm, k=k, answers=answers, **settings)
    page = _Page(title, answers, k, sum(BARS if n == "push" else ROW for n in rows))
    for i in range(len(answers.tokens)):
        page.head(i)
        for name in rows:
            page.row(name, parts, i)
    page.key(rows)
    page.say(rows)
    return page.figure


def methods(
    named: Mapping[str, str | Algorithm | tuple[str | Algorithm, dict] | Tensor],
    *,
    title: str,
    k: int = 16,
    answers: stale.Stale | None = None,
) -> Figure:
    """The two answers, their ratios, and a row of gates for each method.

    `named[label]` is an algorithm, an (algorithm, hyperparameters) pair, or the gates
    themselves, (2, T). A label that begins with a method's name gets its colour.
    """
    answers = stale.example(k) if answers is None else answers
    ratios = numbers("reinforce", k=k, answers=answers)
    page = _Page(title, answers, k, ROW * (1 + len(named)))
    every = {label: _gates(method, k, answers) for label, method in named.items()}
    for i, tokens in enumerate(answers.tokens):
        page.head(i)
        page.row("r", ratios, i)
        for label, gates in every.items():
            page.label(label, shade=style.colour(label))
            page.cells(gates[i, : len(tokens)], _gate)
            page.y -= ROW
    page.key(["r", "g"])
    page.say(["r", *(f"gate of {label}" for label in named)])
    return page.figure


def _gates(method, k: int, answers: stale.Stale) -> Tensor:
    if isinstance(method, Tensor):
        return method
    method, given = method if isinstance(method, tuple) else (method, {})
    return numbers(method, k=k, answers=answers, **given)["g"]


class _Cell(NamedTuple):
    """A cell's colour and what is written in it."""

    colour: tuple | str
    text: str = ""


def _ratio(r: float) -> _Cell:
    """The whole ramp from 1/3 to 3, on a log scale."""
    return _Cell(SHIFT(max(_place(r), 0.0)), _unless_one(r))


def _gate(g: float) -> _Cell:
    """Half the ramp from 0 to 1, the other half from 1 to 3: GSPO, GMPO pass 1."""
    if abs(g) < CLOSED:
        return _Cell("white", CROSS)
    return _Cell(GATE(g / 2 if g < 1 else _place(g)), _unless_one(g))


def _weight(share: float) -> _Cell:
    return _Cell(AMOUNT(share), _unless_one(share))


def _place(x: float) -> float:
    """1/3 at 0, 1 at ½, 3 and more at 1."""
    return min(0.5 + 0.5 * math.log(max(x, 1e-9)) / math.log(3), 1.0)


def _unless_one(x: float) -> str:
    return "" if abs(x - 1) < 0.05 else _short(x)


def _short(x: float) -> str:
    """At most three characters: 12, 1.6, .06, 0."""
    if x < 0.095:
        return f"{x:.2f}".lstrip("0") if x >= 0.005 else "0"
    return f"{x:.1f}" if x < 9.95 else f"{x:.0f}"


def _signed(x: float, digits: int = 1) -> str:
    text = f"{x:+.{digits}f}".replace("-", "−")
    return "0" if float(f"{x:.{digits}f}") == 0 else text


ROWS = {  # word, symbol
    "A": ("advantage", r"$\hat{A}$"),
    "r": ("ratio", "$r$"),
    "c": ("coefficient", "$c$"),
    "g": ("gate", "$g$"),
    "w": ("weight", "$w$"),
    "push": ("push", r"$w\,g\,r\,\hat{A}$"),
}


class _Page:
    """A figure with one axis that counts in inches; `y` is the top of the next row."""

    def __init__(self, title: str, answers: stale.Stale, k: int, rows: float):
        title = "\n".join(textwrap.wrap(title, 70))
        top = 0.16 + 0.26 * (title.count("\n") + 1)
        height = top + len(answers.tokens) * (HEAD + rows) + FOOT
        self.answers, self.k, self.y = answers, k, height - top
        self.closed = False  # whether a cell shows a closed gate
        longest = max(map(len, answers.tokens))
        self.width = min(0.45, (WIDTH - LEFT - 0.1) / longest)
        self.figure, self.axis = draw.canvas(WIDTH, height)
        place = {"x": 0.12 / WIDTH, "y": 1 - 0.1 / height, "ha": "left", "va": "top"}
        self.figure.suptitle(title, **place, color=INK, linespacing=1.2)

    def say(self, rows: Sequence[str]) -> None:
        """For the words of the picture: the answers and the rows. It is not drawn."""
        known = [ROWS[row][0] if row in ROWS else row for row in rows]
        answers = "; ".join("".join(tokens) for tokens in self.answers.tokens)
        self.axis.set_ylabel(
            f"the answers {answers} token by token, {', '.join(known)}"
        )

    def text(self, x: float, y: float, text: str, size: float, **look) -> None:
        look = {"color": INK, "va": "center", **look}
        self.axis.text(x, y, text, fontsize=size, **look)

    def rectangle(self, x, y, width, height, colour="none", edge="none") -> None:
        look = {"facecolor": colour, "edgecolor": edge, "linewidth": 0.9}
        self.axis.add_patch(Rectangle((x, y), width, height, **look))

    def head(self, i: int) -> None:
        """Who answers what, and the characters: those that moved in black."""
        answers, kind = self.answers, ("wrong", "right")
        line = f"{kind[int(answers.rewards[i] > 0.5)]} answer to {answers.prompts[i]}"
        self.text(LEFT, self.y - 0.25, line, NORMAL, weight="bold")
        if i == 0:
            after = f"after {self.k} update{'' if self.k == 1 else 's'}"
            self.text(WIDTH - 0.1, self.y - 0.25, after, SMALL, ha="right", color=FAINT)
        y = self.y - 0.58
        self.text(LEFT - 0.12, y, "fork →", SMALL, ha="right", color=FAINT)
        for t, token in enumerate(answers.tokens[i]):
            moved = abs(answers.z[self.k, i, t].exp() - 1) > 0.05
            look = {"weight": "bold", "color": "black"} if moved else {"color": FAINT}
            x = LEFT + (t + 0.5) * self.width
            self.text(x, y, token, LARGE, ha="center", family="monospace", **look)
        self.y -= HEAD

    def label(self, word: str, symbol: str = "", shade=None, height=ROW) -> None:
        """At the left of the next row: a word, a symbol, a method's colour."""
        x, y = LEFT - 0.12, self.y - height / 2
        if symbol:
            self.text(x, y, symbol, LARGE, ha="right")
            x -= 0.8 if word == "push" else 0.3
        if shade:
            self.rectangle(LEFT - 0.09, y - 0.12, 0.05, 0.24, shade)
            x -= 0.04
        self.text(x, y, word, NORMAL, ha="right")

    def row(self, name: str, parts: dict[str, Tensor], i: int) -> None:
        """One quantity of one response."""
        shown = parts["mask"][i].bool()
        values, largest = parts[name][i, shown], parts[name].abs().max().item()
        first = values[0].item()
        same = (values - first).abs().max() < 1e-6 * largest
        self.label(*ROWS[name], height=BARS if name == "push" else ROW)
        if name == "push":
            whole = parts["w"] * parts["r"] * parts["A"]
            largest = max(largest, whole.abs().max().item())
            self.bars(values / largest, whole[i, shown] / largest)
        elif name == "A":
            colour = SIGNED(0.5 + 0.4 * first / largest)
            once = _Cell(colour, _signed(first, 2)) if same else None
            self.cells(values, functools.partial(_advantage, largest), once)
        elif name == "w":
            once = _Cell(AMOUNT(0.5), f"1/{1 / first:.0f}") if same else None
            self.cells(values / largest, _weight, once)
        else:
            self.cells(values, {"r": _ratio, "c": _ratio, "g": _gate}[name])
        self.y -= BARS if name == "push" else ROW

    def cells(
        self, values: Tensor, cell: Callable[[float], _Cell], once: _Cell | None = None
    ) -> None:
        """A cell for each value, or one for all of them."""
        if once is not None:
            self.box(0, len(values), once)
            return
        for t, value in enumerate(values.tolist()):
            self.box(t, 1, cell(value))

    def box(self, t: int, count: int, cell: _Cell) -> None:
        """`count` cells, from token t on, as one."""
        x, width = LEFT + t * self.width, count * self.width
        edge = "#D5D5D5" if cell.text == CROSS else "none"
        y, size = self.y - ROW + 0.02, (width - 0.03, ROW - 0.04)
        self.rectangle(x + 0.015, y, *size, cell.colour, edge)
        look = {"ha": "center", "color": "white" if _dark(cell.colour) else INK}
        if cell.text == CROSS:
            self.closed = True
            look["weight"] = "bold"
        size = LARGE if cell.text == CROSS else SMALL
        self.text(x + width / 2, self.y - ROW / 2 - 0.01, cell.text, size, **look)

    def bars(self, values: Tensor, whole: Tensor) -> None:
        """Pushes as shares of the largest; up makes a token more probable.

        Outlines show what each push would be without the gate.
        """
        up, down = bool((whole > 0).any()), bool((whole < 0).any())
        room = (BARS - 0.08) / (2 if up and down else 1)
        base = self.y - 0.04 - (room if up else 0)
        for t, (value, full) in enumerate(zip(values.tolist(), whole.tolist())):
            place = LEFT + t * self.width + 0.015, base, self.width - 0.03
            self.rectangle(*place, room * value, style.GOOD if full > 0 else style.BAD)
            if abs(value - full) > 0.04 * abs(full):
                self.rectangle(*place, room * full, edge="#6B6B6B")
        self.rectangle(LEFT, base - 0.005, len(values) * self.width, 0.01, FAINT)

    def key(self, rows: Sequence[str]) -> None:
        """What colours and signs mean, in a line at the bottom."""
        x, y = 0.3, 0.24
        if "r" in rows or "c" in rows:
            self.ramp(x, y, "$r$", SHIFT, "⅓", "1", "3")
            x += 2.1
        if "g" in rows:
            self.ramp(x, y, "$g$", GATE, "0", "1", "3")
            x += 2.1
        if self.closed:
            self.text(x - 0.35, y, CROSS, LARGE, weight="bold", ha="center")
            self.text(x - 0.2, y, "closed: no gradient", SMALL)
            x += 1.85
        if "push" in rows:
            self.rectangle(x, y - 0.1, 0.2, 0.2, edge="#6B6B6B")
            self.text(x + 0.3, y, "push without gate", SMALL)

    def ramp(self, x, y, symbol, colours, low, middle, high) -> None:
        """A horizontal colour bar."""
        self.text(x, y, symbol, LARGE, ha="right")
        self.text(x + 0.24, y, low, SMALL, ha="right")
        for n in range(60):
            self.rectangle(x + 0.3 + n / 60, y - 0.09, 2 / 60, 0.18, colours(n / 59))
        self.text(x + 0.8, y, middle, SMALL, ha="center")
        self.text(x + 1.36, y, high, SMALL)


def _advantage(largest: float, A: float) -> _Cell:
    text = _signed(A).replace("0.", ".")
    return _Cell(SIGNED(0.5 + 0.4 * A / largest), text.replace("1.0", "1"))


def _dark(colour) -> bool:
    return sum(c * f for c, f in zip(to_rgb(colour), (0.3, 0.59, 0.11))) < 0.55
