"""SAPO's gate in the reader's hand: what it does to a stale rollout, and to a policy.

The dots are tokens of `stale.load()` after k updates, each at its ratio, at a random
height between 0 and 1: so the part of the dots under the gate's curve is the part of
their push that passes. Dots above it are pale. Two bars count the push that the gate
keeps of the tokens that moved on and of those that came back; a button trains with it.
"""

import functools
import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import ipywidgets as widgets
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from torch import Tensor

from course.kit import claims, explorer, stakes, stale
from course.kit.plots import primitives as draw
from course.kit.plots.style import BAD, FREE, GOOD, GREY, INK, LOOKS, Dash
from experiments import grid
from experiments.arms import one_sided
from refimpl.algorithms import Algorithm, from_gate
from refimpl.curves import curve
from refimpl.loop import train
from refimpl.sft import warm_start
from refimpl.validation import UserError, shown

SIZE, DPI = (7.6, 4.2), 100
EDGE = 0.2
"""A token has moved on, or come back, when its ratio is further than this from 1."""
LIMIT = 3.0  # ratios beyond are drawn at the edge
GRID = torch.cat([torch.linspace(0.005, LIMIT + 0.08, 400), torch.tensor([0.8, 1.2])])
GRID = torch.cat([GRID, torch.tensor([0.7999, 1.2001, 0.9999])]).sort().values.double()
CUT, FAINT, QUIET = "#C9CDD1", "#E6E8EA", "#6B747C"
SHADES = 8
SIZES = {0.03: 2.8, 0.06: 4.2, math.inf: 6.0}
"""Up to which push a token's dot is so wide, in points."""
MINE = LOOKS["yours"][0]
GATES = ("SAPO", "one-sided")
PARTS = ("moving on", "coming back")
VEIL = slice(None, None, 3)
ROLLOUTS, KEPT = 6, 3
TAKEN = (0, 1, 2, 4, 7, 11, 16)
"""Updates after which the tokens are shown."""
TAUS = (0.1, 0.2, 0.5, 1.0, 1.05, 1.5, 2.0, 2.5, 3.0, 3.5)
TAUS += (4.0, 4.3, 5.0, 6.0, 7.0, 8.8, 12.0, 17.6, 30.0, 100.0)


@dataclass(frozen=True)
class Gate:
    """SAPO's gate or the one-sided one, with a temperature for each sign of Â.

    `own` is a reader's method instead; its gate has no temperatures.
    """

    kind: str
    tau_pos: float
    tau_neg: float
    own: Algorithm | None = None

    @property
    def taus(self) -> tuple[float, float]:
        return self.tau_pos, self.tau_neg

    @property
    def look(self) -> tuple[str, Dash]:
        """Its look in the other figures, if it appears there."""
        return LOOKS[self.known or "yours"]

    @property
    def known(self) -> str | None:
        names = {
            ("SAPO", (1.0, 1.05)): "sapo",
            ("SAPO", (8.8, 8.8)): "sapo 8.8",
            ("one-sided", (8.8, 8.8)): "one-sided",
        }
        return None if self.own else names.get((self.kind, self.taus))

    def __str__(self) -> str:
        if self.own:
            return self.kind
        taus = " / ".join(f"{tau:g}" for tau in dict.fromkeys(self.taus))
        return f"{self.kind} {taus}"

    def method(self) -> tuple[Algorithm | str, dict]:
        """What `train` and `curve` take: a method and its hyperparameters."""
        if self.own:
            return self.own, {}
        if self.kind == "SAPO":
            return "sapo", {"tau_pos": self.tau_pos, "tau_neg": self.tau_neg}
        up, down = map(one_sided, self.taus)
        gate = lambda r, A: torch.where(A > 0, up(r, A), down(r, A))  # noqa: E731
        return from_gate(gate, "one_sided"), {}


STORED = {
    "SAPO 1.0": ("hard", Gate("SAPO", 1.0, 1.05)),
    "SAPO 4.4": ("medium", Gate("SAPO", 4.4, 4.4)),
    "SAPO 8.8": ("hard", Gate("SAPO", 8.8, 8.8)),
    "SAPO 8.8, neg ½": ("hard", Gate("SAPO", 8.8, 4.4)),
    "SAPO 8.8, neg 2": ("hard", Gate("SAPO", 8.8, 17.6)),
    "SAPO 17.6": ("medium", Gate("SAPO", 17.6, 17.6)),
    "one-sided 4.4": ("medium", Gate("one-sided", 4.4, 4.4)),
    "one-sided 8.8": ("hard", Gate("one-sided", 8.8, 8.8)),
    "one-sided 17.6": ("medium", Gate("one-sided", 17.6, 17.6)),
}
"""The arms with such gates, each at the highest rate at which it was run."""


def nearest(gate: Gate) -> str:
    """The stored arm of the same kind whose temperatures' logarithms are nearest.

    No runs of a reader's gate are stored; beside it stand those of SAPO 8.8.
    """
    if gate.own:
        return "SAPO 8.8"

    def far(arm: str) -> float:
        pairs = zip(gate.taus, STORED[arm][1].taus)
        return math.hypot(*(math.log(a / b) for a, b in pairs))

    return min((a for a in STORED if STORED[a][1].kind == gate.kind), key=far)


@functools.cache
def rewards(arm: str, setting: str) -> tuple[int, list[list[float]]]:
    """How many runs, and their median, lowest and highest reward by rollout."""
    runs = claims.column("reward", grid.Cell(arm, grid.STALE[setting]))
    return len(runs), list(draw.summary(runs))


class Tokens:
    """The stored rollout's tokens with Â of one sign, flat: (K + 1, N) or (N,)."""

    def __init__(self, sign: int):
        rollout = stale.load()
        rows = rollout.advantages.sign() == sign
        live = rollout.mask[rows].bool()
        size = rollout.advantages[rows, None].abs() * rollout.mask[rows]
        size = size / rollout.mask[rows].sum(-1, keepdim=True)
        self.sign = sign
        self.ratio = rollout.z[:, rows][:, live].double().exp()
        self.push = self.ratio * size[live].double()  # without a gate
        on = (self.ratio - 1) * sign
        self.parts = torch.stack([on > EDGE, on < -EDGE])  # (2, K + 1, N)
        generator = torch.Generator().manual_seed(0)
        jitter = torch.rand(2, self.ratio.shape[1], generator=generator) - 0.5
        self.x = (self.ratio + 0.08 * jitter[0]).clamp(max=LIMIT)
        self.lift = 0.16 * jitter[1]
        self.seen = torch.arange(len(self.lift)) % 2 == 0  # half of them are drawn
        self.remembered: dict = {}

    def gates(self, method, k: int, **settings) -> tuple[Tensor, Tensor]:
        """g over `GRID`, and of every token after k updates, from the real loss."""
        every = torch.cat([GRID, self.ratio[k]])
        return curve(method, self.sign, every, **settings).gate.split(
            [len(GRID), self.ratio.shape[1]]
        )

    def of(self, gate: "Gate", k: int) -> tuple[Tensor, Tensor]:
        """`gates` of this one; remembered under the temperature of this sign."""
        tau = gate.tau_pos if self.sign > 0 else gate.tau_neg
        key = gate.kind, tau, k
        if key not in self.remembered:
            method, settings = replace(gate, tau_pos=tau, tau_neg=tau).method()
            self.remembered[key] = self.gates(method, k, **settings)
        return self.remembered[key]

    def pushes(self, k: int, g: Tensor | float = 1.0) -> Tensor:
        """Σ g · push of the tokens that moved on, and of those that came back."""
        return (self.parts[:, k] * (g * self.push[k])).sum(-1)


def kept(every: Sequence[Tokens], k: int, gates: Sequence[Tensor]) -> list[float]:
    """The share of the push that gates leave, moving on and coming back; NaN: no push.

    `gates` has g of every token after k updates, for each element of `every`.
    """
    left = sum(tokens.pushes(k, g) for tokens, g in zip(every, gates))
    return (left / sum(tokens.pushes(k) for tokens in every)).tolist()


def percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{100 * share:.0f} %"


def finding(gate: Gate, shares: Sequence[float]) -> str:
    """What the picture shows now, as its title."""
    if math.isnan(shares[0]):
        return f"{gate}: before the first update no token has moved"
    on, back = map(percent, shares)
    return f"{gate} keeps {on} of what moves on, {back} of what comes back"


def colours(sign: int, g: Tensor) -> Tensor:
    """From grey, where nothing passes, to the sign's colour: RGBA of every token."""
    from_, to = (torch.tensor(to_rgb(c)) for c in (CUT, GOOD if sign > 0 else BAD))
    shade = (g.clamp(0, 1) * SHADES).round()[:, None] / SHADES
    return torch.lerp(from_.double(), to.double(), shade)


class Picture:
    """The figure: two panels with gates and tokens, two bars, and rewards.

    Every word belongs to a panel, so that a phone can show one below the other.
    """

    def __init__(self, own: Gate | None = None):
        self.own = own
        self.figure: Figure = plt.figure(figsize=SIZE, dpi=DPI, layout="none")
        self.tokens = [Tokens(1), Tokens(-1)]
        self.trained: list[tuple[Gate, list[float]]] = []
        look = {"ha": "left", "fontsize": 12.5, "parse_math": False}
        self.title = self.figure.suptitle(" ", x=0.015, y=0.985, **look)
        self.columns = [self.panel(*one) for one in zip(self.tokens, (0.535, 0.085))]
        self.name = self.legend()
        self.bars = [self.bar(*one) for one in zip(PARTS, (0.735, 0.585))]
        self.curves = self.survival()
        self.known = [self.known_gates(k) for k in range(len(self.tokens[0].ratio))]

    def text(self, axis, x: float, y: float, text: str, **look):
        """A panel's words, at a place of the figure."""
        look = {"fontsize": 10.5, "color": QUIET, "va": "center"} | look
        return axis.text(x, y, text, transform=self.figure.transFigure, **look)

    def panel(self, tokens: Tokens, bottom: float) -> dict:
        axis = self.figure.add_axes((0.06, bottom, 0.425, 0.3))
        good = tokens.sign > 0
        axis.set(xlim=(-0.06, LIMIT + 0.08), ylim=(-0.14, 1.3))
        axis.set_xticks([0, 1, 2, 3], [*"0123"], fontsize=10)
        axis.set_yticks([0, 1], ["0", "1"], fontsize=10)
        axis.grid(False)
        axis.tick_params(length=3, pad=2)
        kind = (
            "good tokens, Â > 0: pushed up →"
            if good
            else "bad tokens, Â < 0: ← pushed down"
        )
        axis.set_title(kind, fontsize=11, color=GOOD if good else BAD, pad=2)
        for x in (1 - EDGE, 1 + EDGE):
            axis.axvline(x, color=GREY, linewidth=0.8, linestyle=":")
        on, back = (LIMIT, "right"), (0, "left")
        for part, (x, side) in zip(PARTS, (on, back) if good else (back, on)):
            axis.text(x, 1.2, part, fontsize=10, color=QUIET, ha=side, va="center")
        axis.text(1.45, -0.3, "ratio r", fontsize=10, ha="center", va="center")
        axis.set_ylabel("gate g", fontsize=10, labelpad=-4)
        for name in ("grpo", "sapo"):
            colour, dash = LOOKS[name]
            g, _ = tokens.gates(name, 0)
            draw.line(axis, GRID, g, colour, dash, lw=1.6)
        (line,) = axis.plot(GRID, GRID, color=MINE, linewidth=2.6, zorder=4)
        look = {"color": GOOD if good else BAD, "mew": 0, "zorder": 2.1}
        dots = [axis.plot([], [], "o", ms=size, **look)[0] for size in SIZES.values()]
        veil = axis.fill_between([0, 1], 0, 1, color="white", alpha=0.8, lw=0)
        veil.set_zorder(2.2)
        return {"line": line, "dots": dots, "veil": veil, "tokens": tokens}

    def legend(self):
        """The names of the three gates; that of the reader's own moves."""
        axis = self.figure.add_axes((0.02, 0.9, 0.3, 0.03))
        axis.axis("off")
        # Not seen, as those of the bars: for the picture's words.
        axis.set_ylabel("GRPO's clip, SAPO as published, your gate")
        x = 0.02
        for label, name, wide in (
            ("GRPO's clip", "grpo", 0.175),
            ("SAPO as published", "sapo", 0.255),
        ):
            colour, dash = LOOKS[name]
            self.stroke(axis, x, colour, dash, 1.8)
            self.text(axis, x + 0.045, 0.915, label, color=colour)
            x += wide
        name = self.text(axis, x + 0.045, 0.915, "", weight="bold", color=MINE)
        self.stroke(axis, x, MINE, "-", 2.6)
        return name

    def stroke(self, axis, x: float, colour: str, dash: Dash, width: float):
        (line,) = axis.plot(
            [x, x + 0.037], [0.915] * 2, transform=self.figure.transFigure,
            color=colour, linestyle=dash, linewidth=width, clip_on=False,
        )  # fmt: skip
        return line

    def bar(self, part: str, y: float) -> dict:
        """A bar with its large percentage, and marks where the known gates stand."""
        axis = self.figure.add_axes(
            (0.545, y - 0.035, 0.27, 0.07), xlim=(0, 1), ylim=(0, 1)
        )
        axis.axis("off")
        axis.set_ylabel(f"the share of the push {part} that the gate keeps")
        axis.barh(0.5, 1, 1, color=FAINT)
        (fill,) = axis.barh(0.5, 0, 1, color=MINE)
        marks = [
            axis.plot([0, 0], [-0.15, 1.15], color=LOOKS[name][0], clip_on=False)[0]
            for name in ("grpo", "sapo")
        ]
        self.text(axis, 0.545, y + 0.065, part, fontsize=11.5, color=INK)
        if part == PARTS[0]:
            self.text(axis, 0.545, 0.86, "share of the push the gate keeps", color=INK)
        else:
            told = "marks: GRPO's clip, SAPO as published"
            self.text(axis, 0.545, 0.52, told, fontsize=10)
        look = {"fontsize": 26, "weight": "bold", "ha": "right", "color": MINE}
        return {
            "fill": fill,
            "marks": marks,
            "text": self.text(axis, 0.985, y, "", **look),
        }

    def survival(self) -> dict:
        axis = self.figure.add_axes((0.575, 0.085, 0.41, 0.265))
        axis.set(xscale="log", xlim=(0.95, 31), ylim=(-0.03, 1.03))
        axis.set_xticks(
            [1, 2, 3, 6, 12, 30], ["1", "2", "3", "6", "12", "30"], fontsize=10
        )
        axis.set_xticks([], minor=True)
        axis.set_yticks([0, 1], ["0", "1"], fontsize=10)
        axis.grid(False)
        axis.tick_params(length=3, pad=2)
        told = "reward, nearest stored runs"
        axis.set_ylabel(f"{told} and GRPO", visible=False)
        self.text(axis, 0.545, 0.44, told, color=INK)
        (grpo,) = axis.plot([], [], color=LOOKS["grpo"][0], linewidth=1.4)
        (middle,) = axis.plot([], [], linewidth=1.8)
        band = axis.fill_between([1, 2], [0, 0], [0, 0], linewidth=0, alpha=0.22)
        look = {
            "marker": "o",
            "markersize": 5,
            "linewidth": 2.8,
            "markeredgecolor": "white",
        }
        mine = [axis.plot([], [], zorder=5 - i / 10, **look)[0] for i in range(KEPT)]
        tips = [
            axis.text(0, 0, "", fontsize=10, weight="bold", va="center") for _ in mine
        ]
        self.text(axis, 0.985, 0.44, "GRPO", color=LOOKS["grpo"][0], ha="right")
        name = self.text(axis, 0.545, 0.39, "")
        return {
            "grpo": grpo,
            "middle": middle,
            "band": band,
            "mine": mine,
            "tips": tips,
            "name": name,
        }

    def chosen(self, gate: str, tau_pos: float, tau_neg: float) -> Gate:
        """The gate that the controls ask for."""
        if self.own and gate == self.own.kind:
            return self.own
        return Gate(gate, tau_pos, tau_neg)

    @property
    def moves(self) -> list[Callable]:
        return [self.drift, self.good, self.bad, self.bars_of, self.runs]

    def drift(self, k: int) -> list:
        """The tokens, and what the known gates keep of them."""
        moved = []
        for column in self.columns:
            tokens, low = column["tokens"], 0.0
            for high, dots in zip(SIZES, column["dots"]):
                of = (tokens.push[k] >= low) & (tokens.push[k] < high) & tokens.seen
                dots.set_data(tokens.x[k][of], 0.5 + tokens.lift[of] / 0.16)
                moved, low = [*moved, dots], high
        for i, bar in enumerate(self.bars):
            for mark, share in zip(bar["marks"], self.known[k]):
                mark.set_xdata([share[i]] * 2)
            moved += bar["marks"]
        return moved

    def good(self, tau_pos: float, gate: str) -> list:
        return self.side(self.columns[0], self.chosen(gate, tau_pos, tau_pos))

    def bad(self, tau_neg: float, gate: str) -> list:
        return self.side(self.columns[1], self.chosen(gate, tau_neg, tau_neg))

    def side(self, column: dict, gate: Gate) -> list:
        """A sign's gate, which looks at its own temperature alone."""
        line, veil = column["line"], column["veil"]
        heights = column["tokens"].of(gate, 0)[0].numpy()
        line.set_ydata(heights)
        x, below = GRID.numpy()[VEIL], heights[VEIL]
        above = np.maximum(below, 1.0)
        veil.set_verts([[*zip(x, below), *zip(x[::-1], above[::-1])]])
        return [veil, line]

    def bars_of(self, tau_pos: float, tau_neg: float, gate: str, k: int) -> list:
        """What this gate keeps, and its name."""
        gate = self.chosen(gate, tau_pos, tau_neg)
        shares = kept(self.tokens, k, [one.of(gate, k)[1] for one in self.tokens])
        moved = []
        for bar, share in zip(self.bars, shares):
            bar["fill"].set(width=0 if math.isnan(share) else share)
            bar["text"].set(text=percent(share))
            moved += [bar["fill"], bar["text"]]
        self.title.set_text(finding(gate, shares))
        return [*moved, self.title]

    def known_gates(self, k: int) -> list[list[float]]:
        """What GRPO's clip and SAPO as published keep after k updates."""
        return [
            kept(self.tokens, k, [one.gates(name, k)[1] for one in self.tokens])
            for name in ("grpo", "sapo")
        ]

    def runs(self, tau_pos: float, tau_neg: float, gate: str) -> list:
        """The gate's name, the nearest stored runs, and the reader's own."""
        gate = self.chosen(gate, tau_pos, tau_neg)
        self.name.set(text=str(gate))
        arm = nearest(gate)
        setting, stored = STORED[arm]
        count, (middle, low, high) = rewards(arm, setting)
        x = list(draw.steps(middle))
        colour, dash = stored.look if stored.known else (FREE[0], "-")
        parts = self.curves
        parts["grpo"].set_data(x, rewards("GRPO", setting)[1][0])
        parts["middle"].set(data=(x, middle), color=colour, linestyle=dash)
        parts["band"].set_verts([[*zip(x, low), *zip(x[::-1], high[::-1])]])
        parts["band"].set_facecolor(colour)
        rate = "" if setting == "hard" else f", {setting} rate"
        parts["name"].set(text=f"{stored}, n = {count}{rate}", color=colour)
        for i, (line, tip) in enumerate(zip(parts["mine"], parts["tips"])):
            line.set_data([], [])
            tip.set_text("")
            if i < len(self.trained) and (values := self.trained[-1 - i][1]):
                mine = self.trained[-1 - i][0]
                line.set(data=([*draw.steps(values)], values), color=mine.look[0])
                tip.set(text=f" {mine}", color=mine.look[0])
                tip.set_position((len(values) * 1.04, values[-1]))
        moved = [parts[name] for name in ("band", "grpo", "middle", "name")]
        return [self.name, *moved, *parts["mine"], *parts["tips"]]


def first_rollouts(gate: Gate, seed: int, hook: Callable) -> list[float]:
    """Reward by rollout of six rollouts at the hard setting, from the shipped start.

    `hook(run, step)` is called after each. Raises what ends the run early.
    """
    config = replace(
        grid.settings(grid.STALE["hard"]),
        rollouts=ROLLOUTS,
        eval_every=ROLLOUTS,
        eval_problems=32,  # nobody looks at this accuracy
        seed=seed,
    )
    method, settings = gate.method()
    if settings:
        config = replace(config, hyperparameters=settings)
    model, tokenizer, _ = warm_start()
    history = train(
        method,
        config=config,
        model=model,
        tokenizer=tokenizer,
        hooks=[hook],
        progress=False,
    )
    if history.ended is not None:
        raise RuntimeError(
            f"the run ended after {len(history)} rollouts: {history.ended}"
        )
    return list(history["reward"])


class Play(explorer.Explorer):
    """The picture with its sliders, and a button that trains with the gate."""

    def __init__(self, picture: Picture):
        self.picture = picture
        label = f"train {ROLLOUTS} rollouts with this gate"
        self.train = widgets.Button(
            description=label, button_style="primary", layout=explorer.WIDE
        )
        self.train.on_click(lambda _: self.run())
        self.status = widgets.HTML(layout=explorer.WIDE)
        self.say("K = 16, learning rate 6e-4. It takes about ten seconds.")
        own = picture.own
        gates = (*GATES, own.kind) if own else GATES
        every = [(f"{tau:g}", tau) for tau in TAUS]
        super().__init__(
            picture.figure,
            picture.moves,
            {
                "tau_pos": explorer.stops("τ_pos, for Â > 0", every, 1.0),
                "tau_neg": explorer.stops("τ_neg, for Â < 0", every, 1.05),
                "gate": explorer.choice("gate", gates, own.kind if own else "SAPO"),
                "k": explorer.stops("updates taken, k", TAKEN, 16),
            },
            {
                "paper (1.0, 1.05)": preset(1.0, 1.05),
                "half closed at 0.2 (8.8)": preset(8.8, 8.8),
                "one-sided 8.8": preset(8.8, 8.8, "one-sided"),
            },
            below=[self.train, self.status],
            prediction=stakes.Prediction(
                "Raise both τ until SAPO keeps half of the push of tokens that come "
                "back. How much does it then keep of what moves on?",
                ("almost nothing", "about a third", "almost all of it"),
                "about a third",
                "Its gate depends on how far a ratio is from 1, not on the direction. "
                "The tokens that moved on have gone a little further here.",
            ),
        )
        self.controls["gate"].observe(lambda _: self.locked(False), names="value")
        self.locked(False)

    def run(self) -> None:
        """Train, drawing each reward as it comes; what goes wrong is said."""
        chosen = {k: v for k, v in self.values.items() if k != "k"}
        gate = self.picture.chosen(**chosen)
        seed = sum(gate == other for other, _ in self.picture.trained)
        values: list[float] = []

        def show(run, step: int) -> None:
            values.append(run.history.rows[-1]["reward"])
            self.say(
                f"{gate}: rollout {step + 1} of {ROLLOUTS}, reward {values[-1]:.2f}"
            )
            self.redraw()

        self.locked(True)
        self.say(f"{gate}: rollout 1 of {ROLLOUTS} …")
        self.picture.trained.append((gate, values))
        try:
            values[:] = first_rollouts(gate, seed, show)
            self.say(f"{gate}, seed {seed}: reward {values[0]:.2f} → {values[-1]:.2f}.")
        except (Exception, KeyboardInterrupt) as error:
            self.say(f"Training stopped: {str(error) or type(error).__name__}")
        finally:
            if not values:
                self.picture.trained.pop()
            self.locked(False)
            self.redraw()

    def say(self, text: str) -> None:
        close = '<div style="line-height: 1.3">'
        self.status.value = f"{close}{html.escape(text)}</div>"

    def locked(self, busy: bool) -> None:
        """While a run goes on the kernel answers no slider, so they say so.

        A reader's own gate has no temperatures to set.
        """
        for one in (self.train, *self.buttons.values(), *self.controls.values()):
            one.disabled = busy
        own = self.picture.own and self.controls["gate"].value == self.picture.own.kind
        for side in ("tau_pos", "tau_neg"):
            self.controls[side].disabled = busy or bool(own)


def preset(tau_pos: float, tau_neg: float, gate: str = "SAPO") -> dict:
    return {"tau_pos": tau_pos, "tau_neg": tau_neg, "gate": gate}


def sapo_explorer(gate: Callable | Algorithm | None = None) -> Play:
    """Gates over a stale rollout, what they keep of it, and rewards of such runs.

    `gate` is your own, as `from_gate` takes it, or a method such as `from_gate` makes.
    It can be chosen next to SAPO's, and is chosen at first. Raises `UserError` if it is
    no gate.
    """
    return Play(Picture(None if gate is None else yours(gate)))


def yours(gate: Callable | Algorithm) -> Gate:
    """A reader's gate under its own name."""
    if not isinstance(gate, Algorithm):
        if not callable(gate):
            raise UserError(
                f"gate must be a function of (r, advantages), got {shown(gate)}"
            )
        name = getattr(gate, "__name__", "yours")
        gate = from_gate(gate, "yours" if name == "<lambda>" else name)
    kind = f"{gate.name} (yours)" if gate.name in GATES else gate.name
    return Gate(kind, 1.0, 1.0, gate)
