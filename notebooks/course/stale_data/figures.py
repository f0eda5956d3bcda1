"""Figures of chapter 01b: what corrects stale data, and how far they can be trusted."""

from collections.abc import Callable, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from course.kit import explorer, stakes
from course.kit.plots import primitives as draw
from course.kit.plots.style import FREE, GREY, HABIT_COLOURS, INK, RIGHT

WEIGHTS = {
    "token ratio $r$": (FREE[1], "-"),
    r"product $\rho$": (FREE[0], "-."),
    "geometric mean $s$": (FREE[2], "--"),
}
LEFT_OUT, CORRECTED = "without the ratio", "with the ratio"
LOOKS = {LEFT_OUT: (GREY, "-"), CORRECTED: (FREE[1], "--")}


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

    return explorer.Explorer(
        figure,
        [move],
        {"k": explorer.stops("updates on this rollout", updates, 2)},
        prediction=stakes.Prediction(
            "After how many updates is the rollout worth half of its answers?",
            ("about 8", "about 32", "never, within 64"),
            "about 8",
            "ρ multiplies the ratios of all tokens of an answer, so small movements "
            "of single tokens add up.",
        ),
        name="01b_worn_rollout",
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
