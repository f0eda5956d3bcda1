"""Figures of chapter 01: gradient estimators, their noise, and stale data."""

import statistics
from collections.abc import Callable, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from course import explorer
from course.plots import primitives as draw
from course.plots.style import (
    BAD,
    BLACK,
    FREE,
    GOOD,
    GREY,
    HABIT_COLOURS,
    INK,
)
from refimpl.history import History

WEIGHTS = {
    "token ratio $r$": (FREE[1], "-"),
    r"product $\rho$": (FREE[0], "-."),
    "geometric mean $s$": (FREE[2], "--"),
}
LEFT_OUT, CORRECTED = "without the ratio", "with the ratio"
LOOKS = {LEFT_OUT: (FREE[0], "-"), CORRECTED: (FREE[1], "--")}


def staircase(shift, one, few, expected, few_label: str) -> Figure:
    """The reward of one draw, the mean of a few, and the expectation."""
    figure, axis = plt.subplots(figsize=(8, 3.4))
    axis.step(shift, one, color=FREE[3], linewidth=1.6, label="one draw")
    axis.step(shift, few, color=FREE[1], linewidth=1.4, label=few_label)
    axis.plot(shift, expected, color=BLACK, linewidth=2.6, label="expectation")
    axis.set(xlabel="added to the logit of 'careful'", ylabel="reward")
    axis.set_ylim(-0.03, 1.03)
    draw.heading(figure, axis, "A draw is a staircase; its expectation has a slope")
    return figure


def logit_push(cases: dict, labels) -> Figure:
    """Where one sampled token pushes every logit. `cases[title] = (gradient, token)`.

    The sampled token's bar is outlined.
    """
    rows = (len(cases) + 1) // 2
    figure, axes = draw.panel_grid(len(cases), (8, 2.3 * rows), 2, sharey=True)
    for axis, (title, (gradient, token)) in zip(axes, cases.items()):
        push_bars(axis, gradient, token, labels)
        axis.set_title(title)
    for axis in axes[::2]:
        axis.set_ylabel("push on the logit")
    draw.finding(figure, "A rare token is pushed hardest; the favourite pays or gains")
    return figure


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


def push_explorer(probs, push: Callable, labels: Sequence[str]) -> explorer.Explorer:
    """Choose the sampled token and its advantage; `push(token, advantage)` is (V,)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.4))
    bars = push_bars(left, probs, 0, labels)
    left.set(title="push on the logit", ylim=(-3.2, 3.2))
    draw.grouped_bars(right, {"before": probs, "after": probs}, (GREY, FREE[1]), labels)
    moved = right.containers[1]
    right.set(title="probability, after a step", ylim=(0, 1.02))
    right.legend(loc="upper right")

    def update(token: str, advantage: float) -> list:
        y = labels.index(token)
        gradient = push(y, advantage)
        colour_bars(bars, gradient, y)
        for bar, p in zip(moved, (probs.log() + gradient).softmax(-1)):
            bar.set_height(p)
        return [*bars, *moved]

    controls = {
        "token": explorer.stops("sampled token", labels, "c"),
        "advantage": explorer.slider("advantage A", 1.0, -3.0, 3.0, 0.1),
    }
    return explorer.Explorer(figure, update, controls)


def baseline(grid, noise, marks: dict, chosen, pushes: Callable, mean, b) -> Figure:
    """Noise against the baseline (left); the push of every draw at `b` (right).

    `marks[label]` is a baseline worth naming, `chosen[arm]` the arm's probability,
    and `pushes(b)` the push on 'careful' of each arm's draw.
    """
    figure, update = _baseline(grid, noise, marks, chosen, pushes, mean)
    update(b)
    title = "A baseline moves the draws and their noise, but not their mean"
    draw.finding(figure, title)
    return figure


def baseline_explorer(grid, noise, marks, chosen, pushes, mean) -> explorer.Explorer:
    figure, update = _baseline(grid, noise, marks, chosen, pushes, mean)
    controls = {"b": explorer.slider("baseline b", 0.0, -1.0, 2.0, 0.025)}
    return explorer.Explorer(figure, update, controls)


def _baseline(grid, noise, marks, chosen, pushes, mean):
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.6))
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
    label = "mean: the gradient"
    right.axvline(mean, color=BLACK, lw=1.6)
    right.text(mean + 0.05, -0.55, label, va="center", fontsize=11)
    draw.row_labels(right, [f"{arm}\n({p:.0%})" for arm, p in chosen.items()])
    right.set(xlabel="push on 'careful' from one draw", xlim=(-1.1, 1.6))
    right.set_ylim(2.6, -0.9)

    def update(b: float) -> list:
        here.set_data([b], [noise[draw.nearest(grid, b)]])
        for dot, x in zip(dots, pushes(b)):
            dot.set_xdata([x])
        return [here, *dots]

    return figure, update


def stale_estimators(distance, errors: dict, length, ess: dict) -> Figure:
    """Exact: the error of three estimators, and what length does to a product."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.6))
    styles = [(GREY, ":"), *list(WEIGHTS.values())[:2]]
    draw.curve_panel(left, distance, errors, styles, "upper left")
    left.set(xlabel="distance moved (logits)", ylabel="bias / size of the gradient")
    left.set(title="bias of the estimate")
    styles = ((FREE[2], "-"), (FREE[1], "--"), (FREE[0], "-."))
    draw.curve_panel(right, length, ess, styles, xscale="log", ylim=(-0.03, 1.03))
    right.set(xlabel="tokens in the response", ylabel="effective share of samples")
    right.set_title(r"what length does to $\rho$")
    draw.plain_ticks(right.xaxis, [1, 10, 100, 1000])
    right.legend(loc="lower left", title="sd of a ratio", alignment="left")
    draw.finding(figure, r"Only the product $\rho$ is exact, and length ruins it")
    return figure


def gradients(projections: dict, noise: dict) -> Figure:
    """Every rollout's gradient on one axis (left), and noise against signal (right)."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(8, 3.9), sharey=True, width_ratios=(1.5, 1)
    )
    for row, (name, values) in enumerate(projections.items()):
        values = [float(v) for v in values]
        offsets = [row + 0.24 * ((i * 7 % 11) / 5 - 1) for i in range(len(values))]
        left.plot(values, offsets, ".", color=FREE[1], alpha=0.7, markersize=6)
        mean = statistics.fmean(values)
        left.plot([mean, mean], [row - 0.36, row + 0.36], color=BLACK, linewidth=2.6)
        right.barh(row, noise[name], 0.6, color=FREE[1])
        right.text(noise[name] + 0.1, row, f"{noise[name]:.1f}", va="center")
    draw.row_labels(left, projections)
    draw.rule(left, x=0, dash="-", width=1)
    left.set(title="along the mean gradient", xlabel="projection")
    right.set(title="noise, all directions", xlabel="sd / size of the gradient")
    right.set_xlim(0, 1.25 * max(noise.values()))
    draw.finding(figure, "One mean, and a noise that depends on the reward's zero")
    one = len(next(iter(projections.values())))
    draw.caption(figure, f"dots: {one} rollouts of one policy, bar: mean")
    return figure


WINDOW = 8
"""Rollouts that are counted together: one has only a few answers of a rare habit."""
ENOUGH = 20
"""Answers from which an accuracy is drawn."""


def habits(histories: Sequence[History], title: str) -> Figure:
    """The share of each habit, and how often it is right, counted over all runs."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.8), sharey=True)
    for (name, colour), dash in zip(HABIT_COLOURS.items(), ("-", "--", "-.")):
        runs = [h[f"habit/{name}"] for h in histories]
        draw.band(left, runs, colour, name, dash)
        right.plot(*pooled(histories, name), dash, color=colour, marker="o")
    left.set(title="share of each habit", ylim=(-0.02, 1.02))
    right.set_title(f"share right, {WINDOW} rollouts pooled")
    for axis in (left, right):
        draw.rollout_axis(axis, 7)
    draw.heading(figure, left, title)
    return figure


def pooled(histories: Sequence[History], name: str) -> tuple[list, list]:
    """(middle of the window, accuracy of the habit in it), where it is not too rare."""
    places, accuracy = [], []
    for start in range(0, len(histories[0]), WINDOW):
        rows = [row for h in histories for row in h.rows[start : start + WINDOW]]
        counts = [row[f"habit/{name}"] * row["num_samples"] for row in rows]
        right = [
            n * (row[f"habit_accuracy/{name}"] or 0) for n, row in zip(counts, rows)
        ]
        if sum(counts) >= ENOUGH:
            places.append(start + (WINDOW + 1) / 2)
            accuracy.append(sum(right) / sum(counts))
    return places, accuracy


def loss_and_reward(histories: Sequence[History]) -> Figure:
    """Reward, loss and gradient norm, side by side."""
    figure, axes = plt.subplots(1, 3, figsize=(8, 3.2))
    titles = ("reward", "loss", "gradient norm")
    for axis, name, title in zip(axes, ("reward", "loss", "grad_norm"), titles):
        draw.band(axis, [h[name] for h in histories], FREE[0])
        axis.set(title=title)
        draw.rollout_axis(axis, 4)
    draw.rule(axes[1], y=0, dash="-", width=1)
    draw.finding(figure, "The policy got better, and the loss rose")
    return figure


def unclipped(with_ratio, without) -> Figure:
    """Objective and gradient coefficient of REINFORCE's two forms, for Â = 1."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.5))
    forms = {LEFT_OUT: without, CORRECTED: with_ratio}
    for label, one in forms.items():
        colour, dash = LOOKS[label]
        for axis, y in ((left, one.objective), (right, one.coefficient)):
            draw.line(axis, one.ratio, y, colour, dash, label, linewidth=2.8)
    left.set_title(r"objective, $\hat{A} = 1$")
    right.set_title("gradient coefficient $c$, either sign")
    for axis in (left, right):
        draw.rule(axis, x=1)
        axis.set_xlabel(r"ratio  $r = \pi_\theta\, /\, \pi_\mathrm{old}$")
    draw.heading(figure, left, "Neither form ever lets a token go")
    return figure


def wear(updates, effective: dict, vanished: dict, n: int) -> Figure:
    """The weights of `n` rollouts while a policy is updated on each.

    `effective[kind]` and `vanished[kind]`: one row per rollout, one column per entry of
    `updates`.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 4), sharey=True)
    for axis, table in ((left, effective), (right, vanished)):
        for kind, (colour, dash) in WEIGHTS.items():
            draw.band(axis, table[kind], colour, kind, dash, updates, what="rollout")
        on_updates(axis, updates)
        axis.set_ylim(-0.02, 1.03)
    left.set_title("effective share of samples")
    right.set_title("share of weights below 0.1")
    title = r"By $\rho$, about half of the responses have vanished after 16 updates"
    draw.heading(figure, left, title)
    return figure


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
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.9))
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
    right.set(ylim=(LOWEST - 0.5, 3.5), title="64 updates: effective share 100 %")
    for axis, side in ((left, {"x": 0}), (right, {"y": 0})):
        draw.rule(axis, width=1.6, **side)
    right.legend(loc="lower right", fontsize=10, frameon=True, edgecolor="none")

    def update(k: int) -> list:
        z = zs[updates.index(k)]
        for bar, count in zip(bars, counts[updates.index(k)]):
            bar.set_height(count)
        total = z.sum(-1)
        for chosen, line in dots.values():
            line.set_ydata(total[chosen].clamp(min=LOWEST))
        right.set_title(f"{k} updates: effective share {share(total.exp()):.0%}")
        return [*bars, *(line for _, line in dots.values()), right.title]

    controls = {"k": explorer.stops("updates on this rollout", updates, 8)}
    return explorer.Explorer(figure, update, controls)


def promise(updates, surrogate, accuracy) -> Figure:
    """What stale data promise (left) and what the policy can do (right)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.5))
    draw.band(left, surrogate, FREE[1], x=updates, what="rollout")
    draw.band(right, accuracy, FREE[0], x=updates, what="rollout")
    left.set(title="promised: the surrogate")
    right.set(title="true: held-out accuracy", ylim=(0, 1))
    for axis in (left, right):
        on_updates(axis, updates)
    draw.finding(figure, "The promise keeps growing; the accuracy turns around")
    return figure


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
    draw.finding(figure, title)
    return figure


def broken_run(right: History, broken: History) -> Figure:
    """Exercise 1.6: the right loop, and one that is broken in one line."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.4))
    for axis, name, title in zip(
        axes, ("reward", "grad_norm"), ("reward", "gradient norm")
    ):
        for label, one, colour, dash in (
            ("right", right, FREE[0], "-"),
            ("broken", broken, FREE[1], "--"),
        ):
            axis.plot(draw.steps(one), one[name], dash, color=colour, label=label)
        axis.set_title(title)
        draw.rollout_axis(axis, 6)
    axes[1].set_yscale("log")
    draw.plain_ticks(axes[1].yaxis, [0.1, 0.3, 1, 3, 10])
    draw.heading(figure, axes[0], "One line of the broken loop is wrong")
    draw.caption(figure, "one run each, the same seeds")
    return figure
