"""Figures of chapter 01: gradient estimators, their noise, and stale data."""

from collections.abc import Callable, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from course.kit import explorer, stakes
from course.kit.plots import primitives as draw
from course.kit.plots.style import (
    BAD,
    BLACK,
    FREE,
    GOOD,
    GREY,
    HABIT_COLOURS,
    INK,
    RIGHT,
)
from refimpl.history import History

WEIGHTS = {
    "token ratio $r$": (FREE[1], "-"),
    r"product $\rho$": (FREE[0], "-."),
    "geometric mean $s$": (FREE[2], "--"),
}
LEFT_OUT, CORRECTED = "without the ratio", "with the ratio"
LOOKS = {LEFT_OUT: (GREY, "-"), CORRECTED: (FREE[1], "--")}


def flip(raised, careful, luck, slope: float) -> Figure:
    """Draw the reward of one draw (left) and of many (right) while a logit is raised.

    `careful` is the probability of the only habit that earns 1, by how far its logit
    is `raised`. A draw chooses it if its random number, one of `luck`, lies below. The
    first of them is drawn at the left. The mean of all is at the right, with the exact
    mean and its `slope` at the first logit.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.6), sharex=True)
    chosen = (careful[:, None] > luck).double()
    at = int(chosen[:, 0].argmax())  # where the first draw's choice flips
    x, end = float(raised[at]), float(raised[-1])
    draw.rule(left, x=x)
    for part, habit in ((slice(at), "guess"), (slice(at, None), "careful")):
        left.plot(raised[part], chosen[part, 0], color=HABIT_COLOURS[habit], lw=4.5)
    words = (
        *((x / 4, 0.06, "nothing\nhappens"), (3 * x / 4, 0.06, "nothing\nhappens")),
        *((x / 2, 0.28, "draws a guess"), ((x + end) / 2, 0.9, "draws\n'careful'")),
        ((x + end) / 2, 0.45, "the choice\nhas flipped"),
    )
    for place, height, text in words:
        va = "bottom" if height < 0.5 else "top"
        left.text(place, height, text, ha="center", va=va, fontsize=11)
    left.set(title="one draw", ylabel="reward")
    steps = {"color": GREY, "lw": 1.6, "drawstyle": "steps-post"}
    right.plot(raised, chosen.mean(1), label=f"{len(luck)} draws", **steps)
    draw.line(right, raised, careful, FREE[0], "-", "all draws", lw=2.6)
    touch = [float(careful[0]), float(careful[0] + 2 * slope)]
    look = {"label": f"slope {slope:.2f}", "lw": 2, "marker": "o", "markevery": [0]}
    draw.line(right, raised[0] + torch.tensor([0, 2]), touch, BLACK, "--", **look)
    right.legend(loc="lower right", fontsize=11)
    right.set(title="average over draws", ylabel="mean reward")
    for axis in (left, right):
        axis.set(xlabel="logit of 'careful', raised by", ylim=(-0.05, 1.05))
    title = "One draw's reward is a step without a slope, but the average has one"
    return draw.finding(figure, title)


def logit_push(cases: dict, labels) -> Figure:
    """Draw how a sampled token pushes the logits: `cases[title] = (gradient, token)`.

    The sampled token's bar is outlined.
    """
    rows = (len(cases) + 1) // 2
    figure, axes = draw.panel_grid(len(cases), (8, 2.3 * rows), 2, sharey=True)
    for axis, (title, (gradient, token)) in zip(axes, cases.items()):
        push_bars(axis, gradient, token, labels)
        axis.set_title(title)
    for axis in axes[::2]:
        axis.set_ylabel("push on the logit")
    title = "Push a rare token up and the favourite loses; "
    return draw.finding(figure, title + "push it down and the favourite gains")


def push_bars(axis, gradient, token: int, labels):
    """One bar per logit, the sampled token's outlined; returns the bars."""
    places = range(len(labels))
    bars = axis.bar(places, gradient, 0.62, linewidth=1.8)
    colour_bars(bars, gradient, token)
    axis.axhline(0, color=BLACK, linewidth=0.8)
    axis.set_xticks(places, labels)
    return bars


def colour_bars(bars, gradient, token: int) -> None:
    for i, (bar, g) in enumerate(zip(bars, gradient)):
        bar.set(height=g, facecolor=GOOD if g > 0 else BAD)
        bar.set_edgecolor(BLACK if i == token else "none")


def baseline_explorer(
    grid, noise, marks: dict, chosen: dict, pushes: Callable, mean: float
) -> explorer.Explorer:
    """Noise against the baseline (left); the push of every draw at `b` (right).

    `marks[label]` is a baseline worth naming, `chosen[arm]` the arm's probability,
    and `pushes(b)` the push on 'careful' of each arm's draw.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.9))
    left.plot(grid, noise, color=FREE[1])
    for (label, x), dash, side in zip(marks.items(), ("--", ":"), ("left", "right")):
        left.axvline(x, 0, 0.72, color=INK, ls=dash, lw=1.4)
        text, beside = f"{label}\n{x:.2f}", 0.05 if side == "left" else -0.05
        left.text(x + beside, 1.4, text, ha=side, va="top", fontsize=11)
    (here,) = left.plot([0], [0], "o", color=BLACK, markersize=9)
    left.set(xlabel="baseline $b$", ylabel="variance of one draw", ylim=(0, 1.95))
    dots = []
    for row, (arm, p) in enumerate(chosen.items()):
        colour, size = HABIT_COLOURS[arm], 8 + 26 * float(p)
        dots += right.plot([0], [row], "o", color=colour, markersize=size)
    right.axvline(mean, color=BLACK, lw=1.6)
    right.text(mean + 0.05, -0.55, "mean: the gradient", va="center", fontsize=11)
    draw.row_labels(right, [f"{arm}\n({p:.0%})" for arm, p in chosen.items()])
    right.set(xlabel="push on 'careful' from one draw", xlim=(-1.1, 1.6))
    right.set_ylim(2.6, -0.9)

    def move(b: float) -> list:
        variance = noise[draw.nearest(grid, b)]
        here.set_data([b], [variance])
        for dot, x in zip(dots, pushes(b)):
            dot.set_xdata([x])
        told = f"b = {b:.2f}: one draw has variance {variance:.2f}"
        return [here, *dots, draw.say(figure, told)]

    return explorer.Explorer(
        figure,
        [move],
        {"b": explorer.slider("baseline b", 0.0, -1.0, 2.0, 0.025)},
        stakes="This noise is exact, so no run is needed.",
        prediction=stakes.Prediction(
            "At b = 1, which draws push 'careful' up?",
            ("all three", "only guess and ramble", "none"),
            "only guess and ramble",
            "Guess and ramble are pushed down far more than a careful answer.",
        ),
        name="01_baseline",
    )


def stale_estimators(distance, errors: dict, length, ess: dict) -> Figure:
    """Draw the exact error of three estimators, and how length affects a product.

    Colours are estimators. The right panel shows the product; dashes are spreads.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.6))
    styles = [(GREY, ":"), *list(WEIGHTS.values())[:2]]
    draw.curve_panel(left, distance, errors, styles, "upper left")
    left.set(xlabel="distance moved (logits)", ylabel="bias / size of the gradient")
    left.set(title="bias of the estimate")
    styles = [(FREE[0], dash) for dash in ("-", "--", "-.")]
    draw.curve_panel(right, length, ess, styles, xscale="log", ylim=(-0.03, 1.03))
    right.set_yticks([0, 0.25, 0.5, 0.75, 1])
    right.set(xlabel="tokens in the response", ylabel="effective share of samples")
    right.set_title(r"what length does to $\rho$")
    draw.plain_ticks(right.xaxis, [1, 10, 100, 1000])
    for label, share in ess.items():
        at = draw.nearest(share, 0.5) if share[-1] < 0.5 else -20
        x, y = 1.2 * float(length[at]), float(share[at])
        right.text(x, y, f"sd {label}", color=FREE[0], fontsize=11, va="bottom")
    return draw.finding(
        figure, r"Only the product $\rho$ is exact, and length ruins it"
    )


def learned(histories: Sequence[History], title: str) -> Figure:
    """The share of each habit, the reward and the loss, side by side."""
    figure, axes = plt.subplots(1, 3, figsize=(8, 3.3))
    for (name, colour), dash in zip(HABIT_COLOURS.items(), ("-", "--", "-.")):
        runs = [h[f"habit/{name}"] for h in histories]
        draw.band(axes[0], runs, colour, name, dash)
    axes[0].legend(loc="center right", fontsize=10)
    for axis, name, colour in ((axes[1], "reward", BLACK), (axes[2], "loss", FREE[0])):
        draw.band(axis, [h[name] for h in histories], colour)
    for axis, name in zip(axes, ("share of each habit", "reward", "loss")):
        axis.set_title(name)
        draw.rollout_axis(axis, 4)
    for axis in axes[:2]:
        axis.set_ylim(-0.02, 1.02)
    draw.rule(axes[2], y=0, dash="-", width=1)
    return draw.finding(figure, title)


def on_updates(axis, updates) -> None:
    """0, 1, 2, 4, …: equal steps, 0 included."""
    axis.set_xscale("symlog", base=2, linthresh=1)
    axis.set_xticks(list(updates), [str(u) for u in updates])
    axis.set_xlim(-0.15, 1.15 * max(updates))
    axis.set_xlabel("updates on one rollout")


LOWEST = -12
"""Where log weights are cut (nats)."""


def wear_explorer(
    updates, zs: Sequence, mask, habits: Sequence[str], share: Callable
) -> explorer.Explorer:
    """Token log-ratios (left) and every response's log weight (right), by updates.

    `zs[k]` is (B, T) after `updates[k]`; `share(weights)` the effective share.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 4.1))
    edges = torch.linspace(-4, 3, 57)
    counts = [torch.histc(z[mask.bool()].clamp(-4, 3), 56, -4, 3) for z in zs]
    bars = left.bar(edges[:-1], counts[0] + 0.5, 0.125, align="edge", color=FREE[1])
    left.set(yscale="log", ylim=(0.7, 1.6 * float(counts[0].max())))
    left.set(title="tokens", xlabel="log-ratio $z$ (nats)", ylabel="count")
    length, dots = mask.sum(-1), {}
    for (name, colour), mark in zip(HABIT_COLOURS.items(), "os^"):
        chosen = torch.tensor([h == name for h in habits])
        look = {"color": colour, "label": name, "markersize": 6, "alpha": 0.8}
        (line,) = right.plot(length[chosen], length[chosen], mark, linestyle="", **look)
        dots[name] = chosen, line
    right.set(xlabel="length (tokens)", ylabel=r"$\log\rho$ (nats)")
    right.set(ylim=(LOWEST - 0.5, 5.5), title="64 updates: effective share 100 %")
    for axis, side in ((left, {"x": 0}), (right, {"y": 0})):
        draw.rule(axis, width=1.6, **side)
    right.legend(loc="upper right", fontsize=10, ncols=3, columnspacing=1)

    def move(k: int) -> list:
        z = zs[updates.index(k)]
        for bar, count in zip(bars, counts[updates.index(k)]):
            bar.set_height(count)
        total = z.sum(-1)
        for chosen, line in dots.values():
            line.set_ydata(total[chosen].clamp(min=LOWEST))
        worth = share(total.exp())
        right.set_title(f"{k} updates: effective share {worth:.0%}")
        told = f"After {k} updates the rollout is worth {worth:.0%} of its answers"
        moved = [*bars, *(line for _, line in dots.values()), right.title]
        return [*moved, draw.say(figure, told)]

    def outcome(k: int) -> str:
        updates = stakes.nearest(max(k, 1), (1, 4, 16))
        return stakes.ended({"GRPO": "GRPO"}, rate=8e-4, updates=updates)

    return explorer.Explorer(
        figure,
        [move],
        {"k": explorer.stops("updates on this rollout", updates, 2)},
        stakes=outcome,
        prediction=stakes.Prediction(
            "After how many updates is the rollout worth half of its answers?",
            ("about 8", "about 32", "never, within 64"),
            "about 8",
            "ρ multiplies the ratios of all tokens of an answer, so small movements "
            "of single tokens add up.",
        ),
        name="01_worn_rollout",
    )


def promise(updates, surrogate, accuracy) -> Figure:
    """What stale data promise (left) and what the policy can do (right)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.5))
    draw.band(left, surrogate, FREE[1], x=updates, what="rollout")
    draw.band(right, accuracy, RIGHT, x=updates, what="rollout")
    left.set(title="promised: the surrogate")
    right.set(title="true: held-out accuracy", ylim=(0, 1))
    for axis in (left, right):
        on_updates(axis, updates)
    return draw.finding(figure, "The promise keeps growing; the accuracy turns around")


def age(fresh: Sequence[float], aged: dict, start: float, title: str) -> Figure:
    """Held-out accuracy by the number of updates per rollout, one dot per run.

    `aged[K, corrected]` are the runs' accuracies; at K = 1 the two forms are one.
    """
    figure, axis = plt.subplots(figsize=(8, 3.8))
    rows = {"K = 1": (fresh, INK)}
    for (K, corrected), values in aged.items():
        kind = CORRECTED if corrected else LEFT_OUT
        rows[f"K = {K}, {kind}"] = values, LOOKS[kind][0]
    colours = [colour for _, colour in rows.values()]
    values = {label: runs for label, (runs, _) in rows.items()}
    draw.dots(axis, values, colours)
    axis.axvline(start, color=GREY, ls=":")
    axis.text(start, -0.62, "warm start", ha="center", va="bottom", fontsize=11)
    axis.set(xlim=(0, 1), xlabel="held-out accuracy after 48 updates")
    return draw.finding(figure, title)
