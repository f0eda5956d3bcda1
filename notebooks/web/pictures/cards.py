"""Cards: small figures, one finding each, that open a chapter or stand in the README.

A card is drawn for a width of 400 px: its curves come from the losses by autograd, its
runs from the stored runs; one looks at nine rollouts. `draw_all()` saves them all.
"""

import math
import textwrap
from collections import Counter
from collections.abc import Callable

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from course import DATA
from course.kit import claims, plots
from course.kit.plots import primitives as draw
from course.kit.plots.style import (
    BAD,
    BLACK,
    COLOURS,
    FREE,
    GOOD,
    GREY,
    INK,
    LOOKS,
    PAPER,
    RIGHT,
    WRONG,
)
from course.late_sampler import late
from course.scaling_out import ranks
from experiments import finding, grid, store
from experiments.arms import AT_PACE
from experiments.effects import Mean
from experiments.statistics import estimate
from refimpl import kl, normalisers
from refimpl.advantages import Scored, group_relative
from refimpl.algorithms import ALGORITHMS
from refimpl.curves import curve
from refimpl.tasks import Arithmetic, verify
from refimpl.tasks.world import HABITS, habit

SIZE = (4.0, 3.0)  # inches: at 400 px a point is 1.4 px
DPI = 200
TITLE, TEXT = 13.5, 12
FAINT = "#E4E7EC"
ANSWER = "3+9=12;#12"
DRIFT = (0.01, -0.02, 0.03, 0.0, 0.55, 0.04, -0.01, 0.02, 0.0, 0.01)
"""Log-ratios of its tokens: one of them moved."""


def blank(title: str) -> tuple[Figure, plt.Axes]:
    """A card's panel under its finding."""
    figure, axis = plt.subplots(figsize=SIZE)
    title = title if "\n" in title else textwrap.fill(title, 33)
    figure.suptitle(title, x=0.02, ha="left", fontsize=TITLE, linespacing=1.15)
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.06)
    axis.grid(False)
    axis.tick_params(labelsize=TEXT)
    axis.xaxis.label.set_size(TEXT)
    axis.yaxis.label.set_size(TEXT)
    return figure, axis


def say(axis, x, y, text, colour=INK, **look) -> None:
    axis.text(x, y, text, color=colour, **{"fontsize": TEXT, "va": "center"} | look)


def clip_or_fade() -> Figure:
    """The gate g of GRPO and of SAPO against the ratio, for Â > 0."""
    figure, axis = blank("The clip drops a token at once, the soft gate fades it out")
    hard, soft = curve("grpo"), curve("sapo", tau_pos=8.8, tau_neg=8.8)
    (blue, _), (red, _) = LOOKS["grpo"], LOOKS["sapo 8.8"]
    axis.fill_between(hard.ratio, hard.gate, color=blue, alpha=0.1, linewidth=0)
    axis.plot(hard.ratio, hard.gate, color=blue, linewidth=3)
    axis.plot(soft.ratio, soft.gate, "--", color=red, linewidth=3)
    say(axis, 0.06, 1.1, "GRPO: clip", blue, weight="bold")
    say(axis, 1.32, 0.62, r"SAPO, $\tau$ = 8.8", red, weight="bold")
    axis.set(xlim=(0, 2.2), ylim=(0, 1.2), xticks=[0, 1, 2], yticks=[0, 1])
    axis.set(xlabel=r"ratio $r$   ($\hat{A} > 0$)", ylabel="gate $g$")
    return figure


def _two_signs(axis) -> None:
    """A row for each sign of Â, along the ratio and PPO's bounds."""
    draw.row_labels(axis, [r"$\hat{A} > 0$", r"$\hat{A} < 0$"], fontsize=TITLE)
    axis.tick_params("y", length=0)
    axis.spines["left"].set_visible(False)
    axis.set(xlim=(0, 2), xticks=[0, 0.8, 1.2, 2], xlabel="ratio $r$")


def sign_trap() -> Figure:
    """Where PPO's clip passes a token, for both signs of Â."""
    figure, axis = blank("The sign of the advantage decides which side the clip cuts")
    for row, (sign, ink) in enumerate(((1, GOOD), (-1, BAD))):
        one = curve("ppo", sign, torch.linspace(0.002, 2, 500))
        passed = one.ratio[one.gate > 0.5]
        low, high = passed.min().item(), passed.max().item()
        axis.barh(row, 2, 0.56, color=FAINT)
        axis.barh(row, high - low, 0.56, low, color=ink)
        say(axis, (low + high) / 2, row, "learns", PAPER, ha="center", weight="bold")
        cut = (high + 2) / 2 if low < 0.1 else low / 2
        say(axis, cut, row, "cut", "#555555", ha="center")
    axis.axvline(1, color=INK, linewidth=1, linestyle=":")
    _two_signs(axis)
    return figure


def weight_by_length() -> Figure:
    """A token's weight against its response's length, relative to the batch's mean."""
    figure, axis = blank(
        "GRPO: the longer the answer,\nthe less each of its tokens weighs"
    )
    lengths = torch.arange(8, 49)
    mask = (torch.arange(48) < lengths[:, None]).double()
    named = {
        "grpo": (normalisers.seq_mean_token_mean(mask), "GRPO: 1/|o|", 12.1, 2.75),
        "dapo": (normalisers.token_mean(mask), "DAPO: token mean", 48, 1.24),
        "dr_grpo": (normalisers.constant(mask, 48), "Dr. GRPO: constant", 12.2, 0.37),
    }
    even = 1 / mask.sum()
    for name, (weight, label, x, y) in named.items():
        ink, dash = LOOKS[name]
        share = (weight[:, 0] / even).tolist()
        draw.line(axis, lengths, share, ink, dash, lw=3)
        dark = {"dapo": "#A36F00", "dr_grpo": "#2E86C1"}.get(name, ink)
        side = "right" if x > 40 else "left"
        say(axis, x, y, label, dark, weight="bold", ha=side)
    axis.set(xlim=(6, 48), ylim=(0, 3.7), yticks=[0, 1, 2, 3], xticks=[8, 24, 48])
    axis.set(xlabel="length of the answer (tokens)", ylabel="weight (mean: 1)")
    return figure


def one_ratio() -> Figure:
    """Which tokens of one response have a gradient, under token and sequence ratios."""
    figure, axis = blank("One token drifts: GRPO cuts it, GSPO cuts the whole answer")
    rows = {"GRPO": _passes("grpo"), "GSPO": _passes("gspo")}
    for column, (token, z) in enumerate(zip(ANSWER, DRIFT)):
        bold = "bold" if abs(z) > 0.2 else "normal"
        look = {"ha": "center", "family": "monospace", "weight": bold}
        say(axis, column, -0.95, token, **look, fontsize=15)
        for row, (name, passes) in enumerate(rows.items()):
            face = COLOURS[name.lower()] if passes[column] else FAINT
            corner = (column - 0.45, row - 0.36)
            axis.add_patch(plt.Rectangle(corner, 0.9, 0.72, facecolor=face))
            if not passes[column]:
                say(axis, column, row, "×", "#777777", ha="center")
    moved = max(range(len(DRIFT)), key=lambda i: abs(DRIFT[i]))
    ratio = torch.tensor(DRIFT[moved]).exp().item()
    say(axis, moved, -1.6, f"$r$ = {ratio:.1f}", ha="center")
    draw.row_labels(axis, rows, fontsize=TEXT, weight="bold")
    axis.set(xlim=(-0.6, len(ANSWER) - 0.4), ylim=(1.5, -2), xticks=[])
    axis.set_xlabel(r"filled: the token has a gradient ($\hat{A} > 0$)")
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    return figure


def _passes(name: str) -> list[bool]:
    """Token by token: has it a gradient, with Â = 1?"""
    z = torch.tensor([DRIFT], dtype=torch.float64, requires_grad=True)
    one = torch.ones_like(z)
    ALGORITHMS[name].policy_loss(z, 0 * one, one, mask=one).loss.backward()
    return [x != 0 for x in z.grad[0].tolist()]


def capped() -> Figure:
    """The gradient coefficient of DAPO and CISPO for a good token, up to r = 8."""
    figure, axis = blank(
        "DAPO drops a token that has\nmoved far, CISPO caps its weight"
    )
    ratios = torch.linspace(0.01, 8, 800)
    for name in ("cispo", "dapo"):
        ink, dash = LOOKS[name]
        one = curve(name, 1, ratios)
        axis.fill_between(one.ratio, one.coefficient, color=ink, alpha=0.1, lw=0)
        draw.line(axis, one.ratio, one.coefficient, ink, dash, lw=3)
    say(axis, 7.9, 4.4, "CISPO", COLOURS["cispo"], ha="right", weight="bold")
    say(axis, 7.9, 0.45, "DAPO", "#A36F00", ha="right", weight="bold")
    axis.set(xlim=(0, 8), ylim=(-0.12, 5.6), xticks=[0, 1, 4, 8], yticks=[0, 1, 5])
    axis.set(xlabel=r"ratio $r$   ($\hat{A} > 0$)", ylabel="coefficient $c$")
    return figure


COMPARED = "soft, τ = 8.8: area at GRPO's pace"


def way_back() -> Figure:
    """Mean reward by learning rate, where each gate moves the weights as GRPO does."""
    title = "Moved equally far, gates that\nclose on the way back fall first"
    figure, axis = blank(title)
    every, rates = claims.everything(), finding.HALF_OCTAVES
    (asked,) = [one for one in finding.FINDING if str(one.number) == COMPARED]
    whole = asked.effect.pairs(every).keys()  # starts that have all of its runs
    every = every[every["start"].isin(whole)]
    for pair, ink in zip(("hard", "soft, τ = 8.8"), FREE):
        for arm, dash in zip(finding.PAIRS[pair], ("-", "--")):
            cells = [grid.Cell(AT_PACE.get(arm, arm), rate, 16) for rate in rates]
            found = [estimate(Mean("area", cell).pairs(every)) for cell in cells]
            means = [one.effect for one in found]
            axis.plot(rates, means, color=ink, linestyle=dash, linewidth=2.8)
    say(axis, 6.3e-4, 0.74, "open", weight="bold")
    say(axis, 4.1e-4, 0.46, "closed", weight="bold", ha="right")
    say(axis, 2e-4, 0.1, "clip", FREE[0], weight="bold")
    say(axis, 2.8e-4, 0.1, "soft", FREE[1], weight="bold")
    axis.set(xscale="log", ylim=(0, 1), yticks=[0, 0.5, 1])
    draw.plain_ticks(axis.xaxis, rates[::2])
    axis.set_ylabel("reward")
    axis.set_xlabel(f"learning rate  (mean of {found[0].starts} runs)")
    return figure


def far_enough() -> Figure:
    """Arrows along the ratio: PPO's gradient coefficient, for both signs of Â."""
    figure, axis = blank("PPO pushes a token until it has moved far enough")
    ratios = torch.tensor([0.2, 0.6, 1.0, 1.45, 1.8])
    for row, (sign, ink) in enumerate(((1, GOOD), (-1, BAD))):
        one = curve("ppo", sign, ratios.double())
        for r, c in zip(one.ratio.tolist(), one.coefficient.tolist()):
            axis.plot(r, row, "o", color=ink if c else "#B8BDC6", markersize=9)
            if c:
                look = {"arrowstyle": "-|>", "color": ink, "lw": 3, "shrinkA": 0}
                end = r + sign * (0.1 + 0.1 * c)
                axis.annotate("", (end, row), (r, row), arrowprops=look)
        stop = 1 + 0.2 * sign
        axis.plot([stop, stop], [row - 0.36, row + 0.36], color=INK, linewidth=2)
        x, side = (1.98, "right") if sign > 0 else (0.02, "left")
        say(axis, x, row - 0.33, "no push", "#555555", ha=side)
    _two_signs(axis)
    return figure


def three_pulls() -> Figure:
    """The slopes of k1, k2 and k3 as losses, against log π_θ − log π_ref."""
    figure, axis = blank("One price in three forms: as losses they pull differently")
    d = torch.linspace(-2.2, 2.2, 201).double().requires_grad_()
    looks = {kl.k1: (GREY, "--"), kl.k2: (FREE[1], "-."), kl.k3: (INK, "-")}
    for estimator, (ink, dash) in looks.items():
        (slope,) = torch.autograd.grad(estimator(d, torch.zeros_like(d)).sum(), d)
        draw.line(axis, d.detach(), slope, ink, dash, lw=3)
    big = {"fontsize": 16, "weight": "bold"}
    say(axis, -2.0, 1.8, "$k_1$", "#555555", **big)
    say(axis, -2.0, -1.0, "$k_2$", FREE[1], **big)
    say(axis, -1.4, -5.0, "$k_3$", INK, **big)
    axis.axhline(0, color=INK, linewidth=0.8)
    axis.set(xlim=(-2.2, 2.2), ylim=(-8, 3), xticks=[-2, 0, 2], yticks=[-6, -3, 0, 3])
    axis.set_xlabel(r"$\log\pi_\theta-\log\pi_{\mathrm{ref}}$")
    axis.set_ylabel("slope of the loss")
    return figure


def group_judges() -> Figure:
    """The advantages of eight answers, of which 1, 4, 7 or 8 are right."""
    figure, axis = blank("Eight answers to one question\njudge each other")
    group, rights = torch.zeros(8, dtype=torch.long), (1, 4, 7, 8)
    for place, right in enumerate(rights):
        rewards = (torch.arange(8) < right).double()
        for i, a in enumerate(group_relative(Scored(rewards, group)).tolist()):
            x = 9.5 * place + i
            axis.bar(x, a, 0.8, color=GOOD if a > 0 else BAD)
            if a == 0:
                axis.plot(x, 0, "o", color=GREY, markersize=4)
    say(axis, 9.5 * 3 + 3.5, 0.5, "dead", "#555555", ha="center")
    axis.axhline(0, color=INK, linewidth=1)
    middles = [9.5 * place + 3.5 for place in range(len(rights))]
    axis.set_xticks(middles, [str(right) for right in rights])
    axis.set(yticks=[-2, 0, 2], ylabel=r"advantage $\hat{A}$")
    axis.set_xlabel("right answers out of 8")
    axis.tick_params("x", length=0)
    return figure


def hacking() -> Figure:
    """What each habit would be paid for its steps, and how often it is right."""
    figure, axis = blank("Pay for shown work, and rambling earns most")
    rows = Arithmetic().demonstrations(4000, seed=1, mix=(1 / 3, 1 / 3, 1 / 3))
    for row, name in enumerate(HABITS):
        of = [one for one in rows if habit(one["completion"]) == name]
        paid = [min(one["completion"].count(";"), 6) / 6 for one in of]
        right = [verify(one["completion"], one["answer"]) for one in of]
        for shift, values, ink in ((-0.2, paid, FREE[3]), (0.2, right, RIGHT)):
            share = sum(values) / len(of)
            axis.barh(row + shift, share, 0.38, color=ink)
            axis.plot([0, 0], [row - 0.4, row + 0.4], color=INK, linewidth=1)
            beside = {"ha": "right", "colour": PAPER} if share > 0.9 else {}
            x = share - 0.02 if share > 0.9 else share + 0.02
            say(axis, x, row + shift, f"{share:.0%}", **beside)
    say(axis, 0.52, 0.8, "paid", "#7D7245", weight="bold")
    say(axis, 0.52, 1.2, "right", RIGHT, weight="bold")
    draw.row_labels(axis, HABITS, fontsize=TEXT)
    axis.tick_params("y", length=0)
    axis.set(xlim=(0, 1.02), xticks=[0, 0.5, 1])
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:.0%}")
    axis.set_xlabel("demonstrations of each habit, on average")
    return figure


def staircase() -> Figure:
    """The reward of one draw and its expectation, over a logit."""
    figure, axis = blank("A draw jumps or stands still;\nits expectation has a slope")
    shift = torch.linspace(-4, 4, 401).double()
    chosen = torch.tensor([0.30, 0.45, 0.25]).double()
    pays = torch.tensor([0.96, 0.08, 0.02]).double()
    probs = (chosen.log() + shift[:, None] * torch.tensor([1.0, 0, 0])).softmax(-1)
    drawn = pays[(probs.cumsum(-1) < 0.5).sum(-1)]
    axis.step(shift, drawn, color="#A3976A", linewidth=2.2)
    axis.plot(shift, probs @ pays, color=BLACK, linewidth=3)
    say(axis, 0.65, 0.9, "one draw", "#7D7245", ha="right", weight="bold")
    say(axis, 3.95, 0.42, "expectation", ha="right", weight="bold")
    axis.set(xlim=(-4, 4), ylim=(-0.02, 1.02), xticks=[-4, 0, 4], yticks=[0, 0.5, 1])
    axis.set(xlabel="added to the logit of 'careful'", ylabel="reward")
    return figure


def groups_that_agree() -> Figure:
    """Four groups of eight answers; where all agree, every advantage is 0."""
    figure, axis = blank("Groups that agree teach nothing: DAPO draws others")
    group = torch.zeros(8, dtype=torch.long)
    counts = (0, 2, 6, 8)
    for row, count in enumerate(counts):
        paid = (torch.arange(8) < count).double()
        live = bool(group_relative(Scored(paid, group)).any())
        for column, right in enumerate(paid.tolist()):
            edge = RIGHT if right else WRONG
            face = edge if live else FAINT
            axis.plot(column, row, "o", color=face, mec=edge, mew=2, markersize=13)
        if live:
            say(axis, 7.8, row, "learns", weight="bold")
        else:
            say(axis, 7.8, row, r"$\hat{A}$ = 0", "#777777")
    axis.set(xlim=(-0.6, 10.2), ylim=(len(counts) - 0.4, -0.6), xticks=[])
    draw.row_labels(axis, [f"{n} of 8" for n in counts], fontsize=TEXT)
    axis.set_xlabel("answers to one prompt; green: right")
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    return figure


def router_drift() -> Figure:
    """γ against the drift of a token's routing: an exponential that ends on a floor."""
    figure, axis = blank(
        "RSPO: the further a token's\nrouting drifts, the less it counts"
    )
    ink, floor = COLOURS["rspo"], 0.7
    drift = torch.linspace(0, 0.8, 161)
    gamma = (-drift).exp().clamp(min=floor)
    axis.fill_between(drift, gamma, color=ink, alpha=0.1, linewidth=0)
    axis.plot(drift, gamma, color=ink, linewidth=3)
    for at, text, side in ((0.0, "same routing", 0.04), (0.6, "drifted far", -0.09)):
        height = max(math.exp(-at), floor)
        axis.plot(at, height, "o", color=ink, markersize=10, clip_on=False, zorder=3)
        say(axis, at + side, height + (0.005 if at == 0 else 0.08), text, ink)
    axis.axhline(floor, color=INK, linewidth=1, linestyle=":")
    say(axis, 0.02, floor - 0.06, "floor 0.7", "#555555")
    axis.set(xlim=(-0.02, 0.8), ylim=(0.4, 1.06), xticks=[0, 0.4, 0.8])
    axis.set(yticks=[0.5, 1], ylabel=r"$\gamma$, multiplies $r$")
    axis.set_xlabel("drift of its routing (nats)")
    return figure


def one_product() -> Figure:
    """The four factors of every method, each with two of its choices."""
    figure, axis = blank("Eleven methods are one product\nof the same four factors")
    axis.set_axis_off()
    parts = (
        ("$w$", "weight", _weights),
        ("$g$", "gate", _gates),
        ("$r$", "ratio", _ratios),
        (r"$\hat{A}$", "advantage", _advantages),
    )
    for column, (symbol, word, sketch) in enumerate(parts):
        left = 0.02 + 0.25 * column
        say(axis, left + 0.105, 0.93, symbol, fontsize=22, ha="center")
        say(axis, left + 0.105, 0.78, word, ha="center")
        if column:
            say(axis, left - 0.02, 0.93, "·", fontsize=22, ha="center")
        panel = axis.inset_axes((left, 0.27, 0.21, 0.43))
        panel.grid(False)
        panel.set(xticks=[], yticks=[])
        panel.spines[["top", "right"]].set_visible(False)
        first, second = sketch(panel)
        say(axis, left + 0.105, 0.17, first[0], first[1], ha="center")
        say(axis, left + 0.105, 0.05, second[0], second[1], ha="center")
    axis.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[])
    return figure


def _weights(axis):
    """A token's weight by its response's length."""
    mask = (torch.arange(24) < torch.arange(6, 25)[:, None]).double()
    inks = COLOURS["grpo"], "#A36F00"
    for weight, ink in zip(
        (normalisers.seq_mean_token_mean(mask), normalisers.token_mean(mask)), inks
    ):
        axis.plot(weight[:, 0], color=ink, linewidth=2.5)
    axis.set(ylim=(0, None))
    return ("1/|o|", inks[0]), ("even", inks[1])


def _gates(axis):
    """A clip and a soft gate against the ratio."""
    inks = LOOKS["grpo"][0], LOOKS["sapo 8.8"][0]
    for name, ink, given in (
        ("grpo", inks[0], {}),
        ("sapo", inks[1], {"tau_pos": 8.8, "tau_neg": 8.8}),
    ):
        one = curve(name, 1, torch.linspace(0.2, 1.8, 200), **given)
        axis.plot(one.ratio, one.gate, color=ink, linewidth=2.5)
    axis.set(ylim=(0, 1.15))
    return ("clip", inks[0]), ("fade", inks[1])


def _ratios(axis):
    """The ratios of ten tokens, and their geometric mean."""
    inks = COLOURS["grpo"], COLOURS["gspo"]
    z = torch.tensor(DRIFT)
    axis.bar(range(len(z)), z.exp(), color=inks[0], width=0.6)
    axis.axhline(z.mean().exp().item(), color=inks[1], linewidth=2.5)
    axis.set(ylim=(0, 2))
    return ("token's", inks[0]), ("answer's", inks[1])


def _advantages(axis):
    """A group's rewards against their mean, over their standard deviation."""
    A = ALGORITHMS["grpo"].advantages(
        Scored(torch.tensor([1.0, 0, 0, 1, 0]), torch.zeros(5).long())
    )
    axis.bar(range(5), A, color=[GOOD if a > 0 else BAD for a in A], width=0.6)
    axis.axhline(0, color=INK, linewidth=1)
    return ("good", GOOD), ("bad", BAD)


def form_changes() -> Figure:
    """Right answers and sentences by rollout: stored runs of GRPO on SmolLM2."""
    figure, axis = blank("Paid for right numbers, SmolLM2 stops writing sentences")
    runs, rows = store.read(DATA / "real")
    chosen = runs[(runs["setting"] == "gentle") & (runs["arm"] == "GRPO")]["run"]
    looks = {
        "reward": ("right answers", RIGHT, "-", 23.5, 0.7, "right"),
        "habit/sentence": ("sentences", INK, "--", 4.2, 0.42, "left"),
    }
    for name, (label, ink, dash, x, y, side) in looks.items():
        values = [rows[rows["run"] == run][name].tolist() for run in chosen]
        draw.band(axis, values, ink, label, dash, what="", linewidth=3)
        say(axis, x, y, label, ink, ha=side, weight="bold")
    axis.set(xlim=(0.5, 24.5), ylim=(-0.03, 1.06), xticks=[1, 12, 24])
    axis.set(yticks=[0, 0.5, 1], ylabel="share of answers")
    axis.set_xlabel(f"rollout  ({len(chosen)} runs: median and range)")
    return figure


def own_divisors() -> Figure:
    """Chapter 14's gradient on two ranks, with the batch's divisor and with their own.

    Averaged as DDP does, here in one process.
    """
    figure, axis = blank("One wrong divisor, and the gradient of two ranks turns round")
    mean = sum(map(sum, ranks.LENGTHS)) / len(ranks.LENGTHS)
    found = {"one process": ranks.in_one_process()}
    for label, divisor in (
        ("all tokens,\ntwo ranks", mean),
        ("own tokens,\ntwo ranks", 0),
    ):
        parts = [
            ranks.gradient(
                own, range(4 * rank, 4 * rank + 4), sum(own) / (divisor or sum(own))
            )
            for rank, own in enumerate(ranks.LENGTHS)
        ]
        found[label] = (sum(parts) / len(parts)).item()
    for row, (value, ink) in enumerate(zip(found.values(), (INK, INK, FREE[0]))):
        axis.barh(row, value, 0.6, color=ink)
        say(axis, 0.06, row, f"{value:+.2f}".replace("-", "−"), ink, weight="bold")
    axis.axvline(0, color=INK, linewidth=1)
    draw.row_labels(axis, found, fontsize=TEXT)
    axis.tick_params("y", length=0)
    axis.spines["left"].set_visible(False)
    axis.set(xlim=(-0.42, 0.25), xticks=[-0.4, -0.2, 0, 0.2])
    axis.set_xlabel(r"$dL/d\theta$ of the same eight answers")
    return figure


def same_clip() -> Figure:
    """How far a probability may fall within a clip of the ratio, by where it was."""
    figure, axis = blank("The same clip holds a rare token and lets a likely one go")
    tokens = (0.001, 0.5, 0.99)
    for row, p in enumerate(tokens):
        axis.barh(row, 0.2 * p, 0.5, color=LOOKS["grpo"][0])
        say(axis, 0.2 * p + 0.006, row, f"{0.2 * p:.2g}", weight="bold")
    ink = LOOKS["dppo_tv"][0]
    axis.axvline(0.1, color=ink, linewidth=2.4, linestyle="--")
    say(axis, 0.104, -0.42, r"DPPO, $\delta$ = 0.1", ink, weight="bold")
    draw.row_labels(axis, [f"p = {p:g}" for p in tokens], fontsize=TEXT)
    axis.tick_params("y", length=0)
    axis.set(xlim=(0, 0.26), ylim=(2.5, -0.75), xticks=[0, 0.1, 0.2])
    axis.set_xlabel("may fall by, at a ratio of 0.8")
    return figure


def every_token() -> Figure:
    """Chapter 17: one number per answer, or per token, as measured there."""
    figure, axis = blank("A reward has one word per answer, a teacher one per token")
    answer = "#26"
    rows = {"reward": (-0.6,) * 3, "teacher": (-6.8, -0.6, 1.0)}
    for row, values in enumerate(rows.values()):
        for column, (token, value) in enumerate(zip(answer, values)):
            shade, ink = min(0.4 * abs(value), 0.9), GOOD if value > 0 else BAD
            corner = (column - 0.45, row - 0.36)
            box = plt.Rectangle(corner, 0.9, 0.72, facecolor=ink, alpha=shade)
            axis.add_patch(box)
            ink, look = PAPER if shade > 0.5 else INK, {"ha": "center"}
            say(axis, column, row - 0.1, token, ink, **look, fontsize=17)
            number = f"{value:+.1f}".replace("-", "−")
            say(axis, column, row + 0.2, number, ink, **look)
    draw.row_labels(axis, rows, fontsize=TEXT, weight="bold")
    axis.set(xlim=(-0.6, 2.6), ylim=(1.6, -0.6), xticks=[])
    axis.set_xlabel("a guess: one word from a reward,\nthree from a teacher")
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    return figure


def two_lambdas() -> Figure:
    """Chapter 19: how much of the last token's reward reaches the first."""
    figure, axis = blank("One λ for all lengths is deaf to a long answer's end")
    lengths = torch.arange(2, 1001).double()
    by_length = (1 - 1 / (1.5 * lengths)) ** (lengths - 1)
    axis.plot(lengths, by_length, color=FREE[0], linewidth=3)
    axis.plot(lengths, 0.95 ** (lengths - 1), "--", color=FREE[1], linewidth=3)
    say(axis, 60, 0.58, "λ = 1 − 1/(1.5 l)", FREE[0], weight="bold")
    say(axis, 60, 0.12, "λ = 0.95", FREE[1], weight="bold")
    axis.set(xscale="log", ylim=(0, 1.02), yticks=[0, 0.5, 1])
    draw.plain_ticks(axis.xaxis, (2, 10, 100, 1000))
    axis.set_xlabel("tokens of the answer")
    axis.set_ylabel("reward that reaches token 1")
    return figure


def own_words() -> Figure:
    """Chapter 18: an answer with two calls; what the calculator wrote has no loss."""
    figure, axis = blank("The tool's words are read, and not trained on")
    rows = (("[3+9]", 1), ("=12;", 0)), (("[12+4]", 1), ("=16;", 0)), (("#16", 1),)
    for row, parts in enumerate(rows):
        place = 0
        for text, own in parts:
            for token in text:
                shade = GOOD if own else FAINT
                box = plt.Rectangle((place - 0.46, row - 0.36), 0.92, 0.72, color=shade)
                axis.add_patch(box)
                look = {"ha": "center", "fontsize": 15, "family": "monospace"}
                say(axis, place, row, token, PAPER if own else INK, **look)
                place += 1
    say(axis, 3.4, 2, "policy: mask 1", GOOD, weight="bold")
    say(axis, 3.4, 2.55, "calculator: mask 0", INK)
    axis.set(xlim=(-0.6, 9.8), ylim=(2.9, -0.6), xticks=[], yticks=[])
    axis.spines[:].set_visible(False)
    return figure


def late_clip() -> Figure:
    """Before a late rollout's first update: tokens outside 1 ± 0.2, by either ratio."""
    figure, axis = blank("A late sampler, and a clip that sees nothing of it")
    shares = [100 * share for share in late.rollout_by_update()[0][:2]]
    bars = axis.barh((0, 1), shares, 0.5, color=(GREY, LOOKS["grpo"][0]))
    axis.bar_label(bars, [f" {x:.0f} %" for x in shares], fontsize=TEXT, weight="bold")
    names = (r"$\pi_\theta/\pi_{\mathrm{old}}$", r"$\pi_\theta/\mu$")
    draw.row_labels(axis, names, fontsize=TEXT)
    axis.tick_params("y", length=0)
    axis.set(xlim=(0, 1.35 * max(shares)), ylim=(1.6, -0.6), xticks=[0, 5, 10])
    axis.set_xlabel("tokens outside 1 ± 0.2, %")
    return figure


def wild_token() -> Figure:
    """Ten tokens of which one has run away: both means of their ratios."""
    z = torch.tensor([0.02, 3.0, -0.04, 0.05, 0.0, 0.01, -0.03, 0.04, 0.0, -0.02])
    r = z.double().exp()
    means = {"mean of ratios": r.mean(), "geometric mean": z.double().mean().exp()}
    figure, axis = blank("One wild token: the geometric mean hardly moves")
    axis.bar(range(len(r)), r, color=[FREE[1] if x < 2 else BAD for x in r])
    for (name, mean), look in zip(means.items(), ("--", "-")):
        ink = LOOKS["gmpo"][0] if name.startswith("geo") else GREY
        axis.axhline(mean, linestyle=look, color=ink, linewidth=2.5)
        height = mean + 0.35
        say(axis, 9.5, height, f"{name} {mean:.2f}", ink, ha="right", va="bottom")
    axis.set(yscale="log", ylim=(0.7, 30), xticks=[], yticks=[1, 3, 10])
    draw.plain_ticks(axis.yaxis, (1, 3, 10))
    axis.set(xlabel="tokens of one answer", ylabel="ratio r")
    return figure


def verdicts() -> Figure:
    """The ledger, counted."""
    found = Counter(line["verdict"].partition(":")[0] for line in claims.claimed())
    held, turned = found["reproduced"], found["contradicted"]
    total = f"Of {found.total()} claims {held} reproduce, {turned} are contradicted"
    figure, axis = blank(total)
    inks = {"reproduced": RIGHT, "contradicted": WRONG}
    names, counts = zip(*found.most_common())
    bars = axis.barh(names, counts, 0.6, color=[inks.get(n, GREY) for n in names])
    axis.bar_label(bars, fontsize=TEXT, weight="bold", padding=4)
    axis.invert_yaxis()
    axis.set(xticks=[], xlim=(0, 1.15 * max(counts)))
    axis.tick_params("y", length=0)
    axis.spines[:].set_visible(False)
    return figure


CARDS: dict[str, Callable[[], Figure]] = {
    one.__name__: one
    for one in (
        clip_or_fade,
        late_clip,
        sign_trap,
        weight_by_length,
        one_ratio,
        capped,
        way_back,
        far_enough,
        three_pulls,
        group_judges,
        hacking,
        staircase,
        groups_that_agree,
        router_drift,
        one_product,
        form_changes,
        own_divisors,
        same_clip,
        every_token,
        wild_token,
        verdicts,
        own_words,
        two_lambdas,
    )
}


def draw_all() -> None:
    """Save every card as `notebooks/figures/card_<name>.png`."""
    for name, make in CARDS.items():
        figure = make()
        path = plots.folder(plots.LINKED) / f"card_{name}.png"
        figure.savefig(path, dpi=DPI, metadata={"Software": None})
        plt.close(figure)
