"""Figures of chapter 04: lengths in training, what each division climbs."""

from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from course.kit import explorer, stakes
from course.kit.plots import primitives as draw
from course.kit.plots.style import (
    BAD,
    COLOURS,
    GOOD,
    GREY,
    HABIT_COLOURS,
    INK,
    RIGHT,
    WRONG,
    colour,
)
from refimpl.advantages import Scored, gdpo, group_centred, group_relative
from refimpl.history import History

LETTERS = {"GRPO": COLOURS["grpo"], "Dr. GRPO": "#2E86C1"}
"""Dr. GRPO's light blue is too light for words."""


def wrong_habits(runs: Sequence[History], rollouts: Sequence[int]) -> dict[str, float]:
    """Compute the share of each habit among the wrong answers of these rollouts."""
    counts = dict.fromkeys(HABIT_COLOURS, 0.0)
    for history in runs:
        for row in (history.rows[i] for i in rollouts):
            for name in counts:
                right = row[f"habit_accuracy/{name}"]
                wrong = 1 - right if right == right and right is not None else 0.0
                counts[name] += row[f"habit/{name}"] * wrong
    return {name: count / sum(counts.values()) for name, count in counts.items()}


def growth(runs: Sequence[History]) -> Figure:
    """Lengths of right and wrong answers, and which habits the wrong ones have."""
    figure, (left, second) = plt.subplots(
        1, 2, figsize=(8, 3.7), width_ratios=(1.1, 1), layout="constrained"
    )
    for kind, ink, dash in (("correct", RIGHT, "-"), ("wrong", WRONG, "--")):
        label = f"{'right' if kind == 'correct' else 'wrong'} answers"
        draw.band(left, [h[f"length/{kind}"] for h in runs], ink, label, dash)
    draw.rollout_axis(left)
    left.set(title="length (tokens)", ylim=(0, 42))
    left.legend(loc="lower right")
    crowds = {"rollouts\n1–2": range(2), "rollouts\n8–10": range(7, 10)}
    crowds = {when: wrong_habits(runs, rows) for when, rows in crowds.items()}
    draw.stacked(second, crowds, HABIT_COLOURS)
    for bar in second.patches:
        if bar.get_width() > 0.08:
            text = f"{bar.get_width():.0%}"
            second.text(*bar.get_center(), text, ha="center", va="center")
    second.set(title="who is wrong", xlim=(0, 1), xticks=[], ylim=(2.1, -0.5))
    second.grid(False)
    second.spines[["bottom", "left"]].set_visible(False)
    second.legend(loc="lower center", ncols=3, columnspacing=1, handlelength=1.2)
    return draw.finding(
        figure, "Wrong answers grow, but they are no longer the same answers"
    )


def walk(
    named: Mapping[str, Mapping[str, Sequence[float]]], limit: int, title: str
) -> Figure:
    """Mean lengths of right and wrong responses while the expected loss is followed."""
    figure, axes = draw.panel_grid(len(named), (8, 3.7), sharey=True)
    for axis, (label, lengths) in zip(axes, named.items()):
        draw.rule(axis, y=limit, width=1)
        axis.plot(lengths["right"], color=RIGHT, label="right responses")
        axis.plot(lengths["wrong"], "--", color=WRONG, label="wrong responses")
        axis.set(title=label, xlabel="step", ylim=(0, limit * 1.16))
        axis.annotate(
            f"limit: {limit} tokens",
            (0.02, limit + 1),
            xycoords=("axes fraction", "data"),
            color="#666666",
            fontsize=11,
        )
    axes[0].set_ylabel("mean length (tokens)")
    draw.legend_outside(figure, axes[0], 2, "lower")
    return draw.finding(figure, title)


def climb_explorer(pull_of: Callable) -> explorer.Explorer:
    """The pulls of Dr. GRPO and GRPO for every group size, and what GRPO climbs.

    `pull_of(advantages, size, p)` is the expected pull on the log-odds.
    """
    p = torch.linspace(0.005, 0.995, 199, dtype=torch.float64)
    sizes = (2, 3, 4, 6, 8, 16, 32, 64)
    true = p * (1 - p)
    table = {
        size: [pull_of(f, size, p) for f in (group_centred, group_relative)]
        for size in sizes
    }

    def height(pull):
        """∫ pull dx, as a function of p, from 0 to 1: x is the log-odds."""
        summed = torch.cumulative_trapezoid(pull, torch.logit(p))
        summed = torch.cat([torch.zeros(1), summed])
        return summed / summed[-1]

    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.9))
    limit = true.sqrt(), 2 / torch.pi * torch.asin(p.sqrt())
    looks = {
        "Dr. GRPO": (COLOURS["dr_grpo"], "--"),
        "GRPO": (COLOURS["grpo"], "-"),
        "GRPO, large G": (GREY, ":"),
    }
    for axis, dotted in zip((left, right), limit):
        for (label, (ink, dash)), y in zip(looks.items(), (p, p, dotted)):
            draw.line(axis, p, y, ink, dash, label)
        axis.set_xlabel("probability $p$ of a right answer")
    left.set(title="pull on the log-odds", ylim=(0, 0.56))
    right.set(title="what is climbed", ylim=(0, 1.04), yticks=(0, 0.5, 1))
    right.legend(loc="upper left")

    def move(size: int) -> list:
        centred, divided = table[size]
        left.lines[0].set_ydata(centred)
        left.lines[1].set_ydata(divided)
        right.lines[1].set_ydata(height(divided))
        tenth, half = (draw.nearest(p, x) for x in (0.1, 0.5))
        shares = [100 * (y[tenth] / y[half]).item() for y in (divided, centred)]
        told = f"G = {size}: a prompt at p = 0.1 is pulled {shares[0]:.0f} % as hard"
        told += f" as one at 0.5 by GRPO, {shares[1]:.0f} % by Dr. GRPO"
        return [*left.lines[:2], right.lines[1], draw.say(figure, told)]

    both = {"GRPO": "GRPO", "Dr. GRPO": "Dr. GRPO"}
    return explorer.Explorer(
        figure,
        [move],
        {"size": explorer.stops("group size G", sizes, 8)},
        stakes=f"{stakes.ended(both, rate=6e-4)} All have groups of 8.",
        prediction=stakes.Prediction(
            "At which group size do both methods climb the same objective?",
            ("2", "8", "64"),
            "2",
            "Where one of two answers is right, the std is the same number for every "
            "prompt, and dividing by it changes nothing but the scale.",
        ),
        name="04_difficulty",
    )


def wrong_lengths(runs: Mapping[str, Sequence[History]]) -> Figure:
    """Length of wrong answers: a median for each method, a band for each normaliser."""
    figure, axis = plt.subplots(figsize=(8, 3.7))
    names = {"GRPO": r"divided by $|o|$", "Dr. GRPO": r"by $L_{\mathrm{max}}$"}
    counts = {}
    for method, name in names.items():
        own = {k: v for k, v in runs.items() if k.split(",")[0] == method}
        ink = colour(method)
        lengths = {k: [h["length/wrong"] for h in v] for k, v in own.items()}
        _, low, high = draw.summary([one for each in lengths.values() for one in each])
        steps = draw.steps(low)
        axis.fill_between(steps, low, high, color=ink, alpha=0.15, linewidth=0)
        ends = []
        for label, each in lengths.items():
            middle, _, _ = draw.summary(each)
            dash = "--" if "no std" in label or label == "Dr. GRPO" else "-"
            draw.line(axis, steps, middle, ink, dash)
            ends.append(middle[-1])
            counts[label] = len(each)
        look = {"color": LETTERS[method], "weight": "bold", "va": "center"}
        axis.text(steps[-1] + 0.15, sum(ends) / len(ends), name, **look)
    for dash, label in (("-", "with the std"), ("--", "without it")):
        axis.plot([], [], dash, color=INK, label=label)
    draw.rollout_axis(axis, 10)
    axis.set(ylabel="length of wrong answers", xlim=(0.8, 12.3), ylim=(0, 42))
    axis.set_xticks(steps)
    axis.legend(loc="lower right")
    draw.finding(figure, "Wrong answers stay shorter without 1/|o|, whatever the std")
    line = "lines: medians, bands: all of their runs"
    return draw.caption(figure, f"{draw.how_many(counts)} of each method; {line}")


KINDS = ("right", "right", "wrong", "wrong")


def push_explorer() -> explorer.Explorer:
    """Four answers as blocks: width tokens, height push on a token, area the whole."""
    paid, one = torch.tensor([1.0, 1, 0, 0]).double(), torch.zeros(4, dtype=torch.long)
    tops = {"GRPO": 0.062, "Dr. GRPO": 0.0031}
    scored = Scored(paid, one)
    values = {"GRPO": group_relative(scored), "Dr. GRPO": group_centred(scored)}
    figure, axes = plt.subplots(2, 1, figsize=(draw.NARROW, 5), sharex=True)
    blocks, texts = {}, {}
    for axis, (name, top) in zip(axes, tops.items()):
        shades = [GOOD if kind == "right" else BAD for kind in KINDS]
        blocks[name] = axis.bar([0] * 4, [0.0] * 4, 1.0, color=shades, align="edge")
        sides = "right", "center", "right", "center"
        texts[name] = [axis.text(0, 0, "", ha=side, fontsize=11) for side in sides]
        draw.rule(axis, y=0, colour=INK, dash="-")
        axis.set(xlim=(0, 165), ylim=(-1.5 * top, 1.5 * top), ylabel="push on a token")
        axis.grid(False)
        axis.yaxis.set_major_locator(MaxNLocator(5))
        axis.set_title(rf"{name}, $w = 1/(4\,|o_i|)$", color=INK)
    axes[1].set_xlabel("tokens of the four answers, side by side")
    draw.caption(figure, "numbers: sum over the answer's tokens")

    def panel(name: str, short: int, long: int, limit: int = 0) -> list:
        """The method's four answers, divided by their length or by the limit."""
        place = 16.0
        for i, n in enumerate((short, long, short, long)):
            push = values[name][i].item() / (4 * (limit or n))
            above = push > 0
            gap = 0.06 * tops[name] * (1 if above else -1)
            blocks[name][i].set(x=place, width=n, height=push)
            texts[name][i].set(
                position=(place + n / (1 + i % 2), push + gap),
                verticalalignment="bottom" if above else "top",
                text=f"{n * push:+.2f}".replace("-", "−"),
            )
            place += n + 1
        return [*blocks[name], *texts[name]]

    def by_length(short: int, long: int) -> list:
        said = f"A short answer's token: pushed {long / short:.1f} times as hard"
        title = draw.say(figure, f"{said} by GRPO, alike by Dr. GRPO")
        return [*panel("GRPO", short, long), title]

    def by_limit(short: int, long: int, limit: int) -> list:
        return panel("Dr. GRPO", short, long, limit)

    def divisor(limit: int) -> list:
        axes[1].set_title(rf"Dr. GRPO, $w = 1/(4 \cdot {limit})$")
        return [axes[1].title]

    controls = {
        "short": explorer.slider("short answers (tokens)", 8, 4, 24, 1),
        "long": explorer.slider("long answers (tokens)", 32, 24, 48, 1),
        "limit": explorer.slider("L_max (tokens)", 48, 48, 200, 4),
    }
    both = {"divided by the length": "GRPO", "by L_max = 48": "Dr. GRPO"}
    return explorer.Explorer(
        figure,
        [by_length, by_limit, divisor],
        controls,
        stakes=stakes.ended(both, rate=2e-4, updates=4),
        prediction=stakes.Prediction(
            "Make the long answers longer. What happens to the push on one token of a "
            "long wrong answer, under GRPO?",
            ("it grows", "it shrinks", "nothing"),
            "it shrinks",
            "More tokens share the answer's push, so rambling is punished less.",
        ),
        name="04_lengths",
    )


def rewards_explorer() -> explorer.Explorer:
    """How hard three kinds of answer are pushed, with two ways to combine rewards."""
    ways = {"sum, then normalise": group_relative, "normalise, then sum": gdpo}
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.7), sharey=True)
    bars, texts = [], []
    for axis, way in zip(axes, ways):
        shades = [GOOD, GREY, BAD]
        bars.append(axis.bar(range(3), [0.0] * 3, 0.7, color=shades))
        texts.append([axis.text(x, 0, "", ha="center", fontsize=11) for x in range(3)])
        draw.rule(axis, y=0, colour=INK, dash="-")
        axis.set(title=way, ylim=(-3.2, 3.2))
        axis.set_xticks(range(3), ["right", "well formed,\nwrong", "neither"])
        axis.grid(False)
    axes[0].set_ylabel("advantage")

    def move(right: int, formed: int, weight: float) -> list:
        place = torch.arange(8)
        parts = torch.stack(
            [place < right, (place >= right) & (place < right + formed)]
        )
        parts = parts.double().T
        weights = (1.0, float(weight))
        total = parts @ torch.tensor(weights).double()
        one = torch.zeros(8, dtype=torch.long)
        scored = Scored(total, one, components=parts, weights=weights)
        shown = [0, right if formed else None, right + formed]
        moved, pushes = [], {}
        for way, blocks, labels in zip(ways, bars, texts):
            values = ways[way](scored)
            for block, label, i in zip(blocks, labels, shown):
                a = 0.0 if i is None else values[i].item()
                block.set_height(a)
                label.set_position(
                    (label.get_position()[0], a + (0.12 if a >= 0 else -0.12))
                )
                label.set_verticalalignment("bottom" if a >= 0 else "top")
                label.set_text("none" if i is None else f"{a:+.2f}".replace("-", "−"))
                moved += [block, label]
            pushes[way] = values[0].item() - values[shown[1] or -1].item()
        first, second = (x > 0.01 for x in pushes.values())
        said = {
            (True, True): "Both ways prefer the right answer",
            (False, True): "Only GDPO prefers the right answer",
            (True, False): "Only the sum prefers the right answer",
            (False, False): "Neither way prefers the right answer",
        }[first, second]
        return [*moved, draw.say(figure, said)]

    return explorer.Explorer(
        figure,
        [move],
        {
            "right": explorer.slider("right answers of 8", 1, 1, 4, 1),
            "formed": explorer.slider("well-formed wrong ones", 3, 1, 3, 1),
            "weight": explorer.slider("weight of the format", 1.0, 0.0, 2.0, 0.1),
        },
        stakes="No runs with two rewards are stored; the cell above has trained nine.",
        prediction=stakes.Prediction(
            "Raise the weight of the format to 2. Does either way still prefer the "
            "right answer?",
            ("neither", "the sum", "GDPO"),
            "neither",
            "Normalising compares answers on one reward at a time. Only the weights "
            "say which reward matters more.",
        ),
        name="04_two_rewards",
    )
