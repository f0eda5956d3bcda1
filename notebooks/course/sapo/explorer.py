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
from torch import Tensor

from course.kit import claims, explorer, stakes, stale
from course.kit.plots import primitives as draw
from course.kit.plots.style import BAD, FREE, GOOD, LOOKS, Dash
from experiments import grid
from experiments.arms import one_sided
from refimpl.algorithms import Algorithm
from refimpl.curves import curve
from refimpl.gate import from_gate
from refimpl.loop import train
from refimpl.validation import UserError, shown

EDGE = 0.2
"""A token has moved on, or come back, when its ratio is further than this from 1."""
LIMIT = 3.0  # ratios beyond are drawn at the edge
EDGES = torch.tensor([0.7999, 0.8, 0.9999, 1.2, 1.2001])
GRID = torch.cat([torch.linspace(0.005, LIMIT + 0.08, 400), EDGES])
GRID = GRID.sort().values.double()
FAINT, QUIET = "#E6E8EA", "#6B747C"
SIZES = {0.03: 2.8, 0.06: 4.2, math.inf: 6.0}
"""Up to which push a token's dot is so wide, in points."""
MINE = LOOKS["yours"][0]
GATES = ("SAPO", "one-sided")
PARTS = ("moving on", "coming back")
VEIL = slice(None, None, 3)
ROLLOUTS = 6
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


def setting_of(gate: Gate) -> str:
    """The setting of the nearest stored runs, which a reader's own run has, too."""
    return STORED[nearest(gate)][0]


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


class Picture:
    """The figure: a panel of gates and tokens per sign, shares of the push, rewards."""

    def __init__(self, own: Gate | None = None):
        self.own = own
        self.tokens = [Tokens(1), Tokens(-1)]
        self.trained: list[tuple[Gate, list[float]]] = []
        ratios = {"width_ratios": (6, 5)}
        self.figure, axes = plt.subplots(2, 2, figsize=(8, 4.7), **ratios)
        (good, share), (bad, reward) = axes
        self.columns = [self.panel(*one) for one in zip((good, bad), self.tokens)]
        self.bars, self.marks, self.shares = self.bar(share)
        self.survival(reward)
        draw.heading(self.figure, good)
        self.known = [self.known_gates(k) for k in range(len(self.tokens[0].ratio))]

    def panel(self, axis, tokens: Tokens) -> dict:
        good = tokens.sign > 0
        ink = GOOD if good else BAD
        axis.set(xlim=(-0.06, LIMIT + 0.08), ylim=(-0.14, 1.34), xlabel="ratio $r$")
        axis.set(xticks=range(4), yticks=(0, 1), ylabel="gate $g$")
        axis.grid(False)
        kind = "good tokens, Â > 0: up →" if good else "bad tokens, Â < 0: ← down"
        axis.set_title(kind, color=ink)
        for x in (1 - EDGE, 1 + EDGE):
            draw.rule(axis, x=x)
        sides = [(LIMIT, "right"), (0, "left")][:: tokens.sign]
        for part, (x, side) in zip(PARTS, sides):
            axis.text(x, 1.2, part, fontsize=10.5, color=QUIET, ha=side, va="center")
        for name, label in (("grpo", "GRPO's clip"), ("sapo", "SAPO as published")):
            draw.line(axis, GRID, tokens.gates(name, 0)[0], *LOOKS[name], label, lw=1.6)
        look = {"color": MINE, "linewidth": 2.6, "zorder": 4, "label": "this gate"}
        (line,) = axis.plot(GRID, GRID, **look)
        look = {"color": ink, "mew": 0, "zorder": 2.1}
        dots = [axis.plot([], [], "o", ms=size, **look)[0] for size in SIZES.values()]
        veil = axis.fill_between([0, 1], 0, 1, color="white", alpha=0.8, lw=0)
        veil.set_zorder(2.2)
        return {"line": line, "dots": dots, "veil": veil, "tokens": tokens}

    def bar(self, axis) -> tuple:
        """A bar for each part, marks where the known gates stand, and percentages."""
        axis.barh(PARTS, 1, 0.6, color=FAINT)
        bars = axis.barh(PARTS, 0, 0.6, color=MINE)
        marks = [
            [axis.plot([0, 0], [row - 0.4, row + 0.4], color=LOOKS[name][0])[0]
             for name in ("grpo", "sapo")]
            for row in range(2)
        ]  # fmt: skip
        look = {"fontsize": 22, "weight": "bold", "ha": "right", "va": "center"}
        texts = [axis.text(1.7, row, "", color=MINE, **look) for row in range(2)]
        axis.set(xlim=(0, 1.7), ylim=(1.5, -0.5), xticks=())
        axis.set(title="share of the push the gate keeps")
        axis.set_xlabel("marks: GRPO's clip and SAPO", fontsize=10.5, loc="left")
        axis.grid(False)
        axis.spines[:].set_visible(False)
        return bars, marks, texts

    def survival(self, axis) -> None:
        axis.set(xscale="log", xlim=(0.95, 31), ylim=(-0.03, 1.3), yticks=(0, 1))
        draw.plain_ticks(axis.xaxis, (1, 2, 3, 6, 12, 30))
        axis.set(title="reward in stored runs", xlabel="rollout")
        axis.grid(False)
        (self.grpo,) = axis.plot([], [], color=LOOKS["grpo"][0], linewidth=1.4)
        (self.middle,) = axis.plot([], [], linewidth=1.8)
        self.band = axis.fill_between([1, 2], [0, 0], linewidth=0, alpha=0.22)
        look = {"marker": "o", "markersize": 5, "lw": 2.8, "markeredgecolor": "white"}
        self.mine = [axis.plot([], [], zorder=5 - i / 10, **look)[0] for i in range(3)]
        look = {"fontsize": 10.5, "va": "center"}
        self.tips = [axis.text(0, 0, "", weight="bold", **look) for _ in self.mine]
        self.name = axis.text(1, 1.17, "", **look)

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
        for i, marks in enumerate(self.marks):
            for mark, share in zip(marks, self.known[k]):
                mark.set_xdata([share[i]] * 2)
            moved += marks
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
        for bar, text, share in zip(self.bars, self.shares, shares):
            bar.set(width=0 if math.isnan(share) else share)
            text.set(text=percent(share))
        title = draw.say(self.figure, finding(gate, shares))
        return [*self.bars, *self.shares, title]

    def known_gates(self, k: int) -> list[list[float]]:
        """What GRPO's clip and SAPO as published keep after k updates."""
        return [
            kept(self.tokens, k, [one.gates(name, k)[1] for one in self.tokens])
            for name in ("grpo", "sapo")
        ]

    def runs(self, tau_pos: float, tau_neg: float, gate: str) -> list:
        """The nearest stored runs, and the reader's own."""
        arm = nearest(self.chosen(gate, tau_pos, tau_neg))
        setting, stored = STORED[arm]
        count, (middle, low, high) = rewards(arm, setting)
        x = list(draw.steps(middle))
        colour, dash = stored.look if stored.known else (FREE[0], "-")
        self.grpo.set_data(x, rewards("GRPO", setting)[1][0])
        self.middle.set(data=(x, middle), color=colour, linestyle=dash)
        self.band.set_verts([[*zip(x, low), *zip(x[::-1], high[::-1])]])
        self.band.set_facecolor(colour)
        rate = "" if setting == "hard" else f", {setting} rate"
        # No runs of a reader's own gate are stored.
        beside = "to compare: " if gate == getattr(self.own, "kind", None) else ""
        self.name.set(text=f"{beside}{stored}, n = {count}{rate}", color=colour)
        like = [one for one in self.trained if setting_of(one[0]) == setting]
        newest = [*reversed(like), *[(stored, [])] * len(self.mine)]
        for line, tip, (mine, values) in zip(self.mine, self.tips, newest):
            line.set(data=(draw.steps(values), values), color=mine.look[0])
            tip.set(text=f" {mine}" if values else "", color=mine.look[0])
            tip.set_position((len(values) * 1.04, values[-1] if values else 0))
        moved = [self.band, self.grpo, self.middle, self.name]
        return [*moved, *self.mine, *self.tips]


def first_rollouts(gate: Gate, seed: int, hook: Callable) -> list[float]:
    """Reward by rollout of six rollouts at the rate of the nearest stored runs.

    `hook(run, step)` is called after each. Raises what ends the run early.
    """
    method, settings = gate.method()
    config = replace(
        grid.settings(grid.STALE[setting_of(gate)]),
        rollouts=ROLLOUTS,
        eval_every=ROLLOUTS,
        eval_problems=32,  # nobody looks at this accuracy
        seed=seed,
        hyperparameters=settings,
    )
    history = train(method, config=config, hooks=[hook], progress=False)
    if history.ended is not None:
        told = f"the run ended after {len(history)} rollouts: {history.ended}"
        raise RuntimeError(told)
    return list(history["reward"])


class Play(explorer.Explorer):
    """The picture with its sliders, and a button that trains with the gate."""

    def __init__(self, picture: Picture):
        self.picture = picture
        label = f"train {ROLLOUTS} rollouts with this gate"
        self.train = widgets.Button(description=label, layout=explorer.WIDE)
        self.train.button_style = "primary"
        self.train.on_click(lambda _: self.run())
        self.status = widgets.HTML(layout=explorer.WIDE)
        self.say("At the rate of the stored runs. It takes about ten seconds.")
        own = picture.own
        gates = (*GATES, own.kind) if own else GATES
        every = [(f"{tau:g}", tau) for tau in TAUS]
        published = {"tau_pos": 1.0, "tau_neg": 1.05, "gate": "SAPO"}
        narrow = {"tau_pos": 8.8, "tau_neg": 8.8}
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
                "paper (1.0, 1.05)": published,
                "half closed at 0.2 (8.8)": {**narrow, "gate": "SAPO"},
                "one-sided 8.8": {**narrow, "gate": "one-sided"},
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
            name="10_gates",
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
            told = f"{gate}: rollout {step + 1} of {ROLLOUTS}"
            self.say(f"{told}, reward {values[-1]:.2f}")
            self.redraw()

        self.locked(True)
        self.say(f"{gate}: rollout 1 of {ROLLOUTS} …")
        self.picture.trained.append((gate, values))
        try:
            values[:] = first_rollouts(gate, seed, show)
            rate = f"{grid.STALE[setting_of(gate)]:.0e}".replace("e-0", "e-")
            told = f"{gate}, rate {rate}, seed {seed}: reward"
            self.say(f"{told} {values[0]:.2f} → {values[-1]:.2f}.")
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


def sapo_explorer(gate: Callable | Algorithm | None = None) -> Play:
    """Gates over a stale rollout, what they keep of it, and rewards of such runs.

    `gate` is your own, as `from_gate` takes it, or a method such as `from_gate` makes.
    It can be chosen next to SAPO's, and is chosen at first. Raises `UserError` if it is
    no gate.
    """
    if gate is None:
        return Play(Picture())
    if not isinstance(gate, Algorithm):
        if not callable(gate):
            told = f"gate must be a function of (r, advantages), got {shown(gate)}"
            raise UserError(told)
        name = getattr(gate, "__name__", "yours")
        gate = from_gate(gate, "yours" if name == "<lambda>" else name)
    kind = f"{gate.name} (yours)" if gate.name in GATES else gate.name
    return Play(Picture(Gate(kind, 1.0, 1.0, gate)))
