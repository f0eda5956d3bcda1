"""Figures of chapter 01: gradient estimators, their noise, and stale data."""

import statistics

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course.plots import primitives as draw
from course.plots.style import (
    BAD,
    BLACK,
    BLUE,
    GOOD,
    GREEN,
    GREY,
    HABIT_COLOURS,
    ORANGE,
    RED,
)

WEIGHTS = {
    "token ratio": BLUE,
    "product over the response": RED,
    "geometric mean": GREEN,
}


def staircase(shift, one, few, expected, few_label: str) -> Figure:
    """The reward of one draw, the mean of a few, and the expectation."""
    figure, axis = plt.subplots(figsize=(7.4, 2.9))
    axis.step(shift, one, color=ORANGE, linewidth=1.2, label="one draw")
    axis.step(shift, few, color=BLUE, linewidth=1.2, label=few_label)
    axis.plot(shift, expected, color=BLACK, linewidth=2.2, label="expectation")
    axis.set(xlabel="added to the logit of 'careful'", ylabel="reward")
    axis.set_ylim(-0.03, 1.03)
    axis.legend(loc="upper left")
    return figure


def logit_push(cases: dict, labels) -> Figure:
    """Where one sampled token pushes every logit. `cases[title] = (gradient, token)`.

    The sampled token's bar is outlined.
    """
    rows = (len(cases) + 1) // 2
    figure, axes = draw.panel_grid(len(cases), (9, 2.4 * rows), 2, sharey=True)
    for axis, (title, (gradient, token)) in zip(axes, cases.items()):
        _push(axis, gradient, token, labels)
        axis.set_title(title)
    for axis in axes[::2]:
        axis.set_ylabel("push on the logit")
    return figure


def one_push(before, after, gradient, token: int, labels) -> Figure:
    """The same for one case, and the probabilities before and after a step."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 2.9))
    _push(left, gradient, token, labels)
    left.set(title="push on the logit", ylim=(-3.2, 3.2))
    bars = {"before": before, "after the step": after}
    draw.grouped_bars(right, bars, (GREY, BLUE), labels)
    right.set(title="probability", ylim=(0, 1.02))
    right.legend(loc="upper right")
    return figure


def _push(axis, gradient, token: int, labels) -> None:
    colours = [GOOD if g > 0 else BAD for g in gradient]
    edges = [BLACK if i == token else "none" for i in range(len(labels))]
    places = range(len(labels))
    axis.bar(places, gradient, 0.62, color=colours, edgecolor=edges, linewidth=1.8)
    axis.axhline(0, color=BLACK, linewidth=0.8)
    axis.set_xticks(places, labels)


def baseline(grid, noise, marks: dict, b: float, draws: dict, mean: float) -> Figure:
    """Noise against the baseline (left); what single draws say at `b` (right).

    `marks[label]` is a baseline worth naming; `draws[arm]` is (probability, estimate).
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3))
    left.plot(grid, noise, color=BLUE)
    for (label, x), dash, colour in zip(marks.items(), ("--", ":"), (GREEN, GREY)):
        left.axvline(x, 0, 0.68, color=colour, ls=dash, lw=1.6, label=label)
    height = noise[draw.nearest(grid, b)]
    left.plot(b, height, "o", color=RED, markersize=8, label=f"here: b = {b:.2f}")
    left.set(xlabel="baseline b", ylabel="variance of one draw", ylim=(0, None))
    box = {"frameon": True, "framealpha": 1, "edgecolor": "none", "fontsize": 9}
    left.legend(loc="upper center", **box)
    for arm, (probability, estimate) in draws.items():
        colour = HABIT_COLOURS[arm]
        right.vlines(estimate, 0, probability, color=colour, linewidth=5, label=arm)
    right.axvline(mean, 0, 0.78, color=BLACK, lw=1.4, label="mean: the gradient")
    right.set(xlabel="push on 'careful' from one draw", ylabel="probability")
    right.set(xlim=(-1.0, 1.5), ylim=(0, 0.72))
    right.legend(loc="upper right", ncols=2, **box)
    return figure


def stale_estimators(distance, errors: dict, length, ess: dict) -> Figure:
    """Exact: the error of three estimators, and what length does to a product."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3))
    colours = {"no ratio": GREY, "token ratio": BLUE, "product": RED}
    styles = [(colours[label], d) for label, d in zip(errors, ("--", "-", "-."))]
    draw.curve_panel(left, distance, errors, styles, "upper left", ylim=(-0.04, None))
    left.set_xlabel("distance moved since sampling (logits)")
    left.set_ylabel("bias / size of the gradient")
    styles = ((BLUE, "-"), (GREEN, "--"), (RED, "-."))
    draw.curve_panel(right, length, ess, styles, xscale="log", ylim=(-0.03, 1.5))
    right.set(xlabel="tokens in the response", ylabel="effective share of samples")
    right.set_yticks([0, 0.25, 0.5, 0.75, 1])
    right.legend(loc="upper center", ncols=3, title="standard deviation of a ratio")
    return figure


def gradients(projections: dict, noise: dict) -> Figure:
    """Every rollout's gradient on one axis (left), and noise against signal (right)."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(9.6, 3.3), sharey=True, width_ratios=(1.6, 1)
    )
    for row, (name, values) in enumerate(projections.items()):
        values = [float(v) for v in values]
        offsets = [row + 0.24 * ((i * 7 % 11) / 5 - 1) for i in range(len(values))]
        left.plot(values, offsets, ".", color=BLUE, alpha=0.55, markersize=5)
        mean = statistics.fmean(values)
        left.plot([mean, mean], [row - 0.36, row + 0.36], color=RED, linewidth=2.6)
        right.barh(row, noise[name], 0.6, color=BLUE)
        right.text(noise[name] + 0.1, row, f"{noise[name]:.1f}", va="center")
    draw.row_labels(left, projections)
    draw.rule(left, x=0, dash="-", width=1)
    left.set(title="each dot: one rollout's gradient", xlabel="along the mean gradient")
    right.set(title="noise", xlabel="standard deviation / size of the gradient")
    right.set_xlim(0, 1.18 * max(noise.values()))
    return figure


def loss_and_reward(history) -> Figure:
    """Reward, loss and gradient norm of one run, side by side."""
    figure, axes = plt.subplots(1, 3, figsize=(10, 2.7))
    columns = (("reward", GREEN), ("loss", RED), ("grad_norm", BLUE))
    for axis, (name, colour) in zip(axes, columns):
        axis.plot(draw.steps(history), history[name], color=colour, linewidth=1.3)
        axis.set(title=name.replace("_", " "), xlabel="rollout")
    draw.rule(axes[1], y=0, dash="-", width=1)
    return figure


def staleness(updates, effective: dict, largest: dict, spread: dict) -> Figure:
    """What happens to the weights of one rollout as the policy is updated on it.

    `effective[kind]` and `largest[kind]`: one row per seed, one column per entry of
    `updates`; `spread[kind]` is (lengths, log weights) of single responses.
    """
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.3))
    for (kind, colour), dash in zip(WEIGHTS.items(), ("-", "-.", "--")):
        draw.band(left, effective[kind], colour, kind, dash, updates)
        draw.band(middle, largest[kind], colour, kind, dash, updates)
    left.set(title="effective share of samples", ylim=(0, 1.03))
    left.legend(loc="lower left", fontsize=8.5)
    middle.set(title="largest weight", yscale="log", yticks=[1, 2, 5, 10, 20, 50])
    middle.set_yticklabels("1 2 5 10 20 50".split())
    middle.minorticks_off()
    for axis in (left, middle):
        _on_updates(axis, updates)
    for (kind, (length, log_weight)), mark in zip(spread.items(), ("x", ".")):
        style = {"color": WEIGHTS[kind], "alpha": 0.6, "markersize": 5, "label": kind}
        right.plot(length, log_weight, mark, **style)
    draw.rule(right, y=0, dash="-", width=1)
    right.set(title="after 16 updates", xlabel="response length (tokens)")
    right.set_ylabel("log weight (nats)")
    right.legend(loc="lower right", fontsize=8.5)
    return figure


def _on_updates(axis, updates) -> None:
    """0, 1, 2, 4, …: equal steps, 0 included."""
    axis.set_xscale("symlog", base=2, linthresh=1)
    axis.set_xticks(list(updates), [str(u) for u in updates])
    axis.set_xlim(-0.15, 1.15 * max(updates))
    axis.set_xlabel("updates on one rollout")


def ratios(token_z, length, log_weight, habits, title: str) -> Figure:
    """One snapshot: token log-ratios (left), each response's log weight (right)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.4, 3.2))
    draw.hist(left, token_z, [-4 + k / 8 for k in range(57)], BLUE, log=True)
    draw.rule(left, x=0, width=1.8)
    left.set(title="tokens", xlabel="log-ratio z (nats, cut at −4 and 3)")
    left.set(ylabel="count", ylim=(0.7, 3000))
    for name, colour in HABIT_COLOURS.items():
        own = [i for i, h in enumerate(habits) if h == name]
        x = [float(length[i]) for i in own]
        y = [max(float(log_weight[i]), -12) for i in own]
        right.plot(x, y, ".", color=colour, label=name)
    draw.rule(right, y=0, width=1.8)
    right.set(title="responses", xlabel="length (tokens)", ylim=(-12.4, 3))
    right.set_ylabel("Σ z  (nats, cut at −12)")
    right.legend(loc="lower right", fontsize=9, frameon=True, edgecolor="none")
    figure.suptitle(title, fontsize=11)
    return figure


def promise(updates, surrogate, accuracy) -> Figure:
    """What stale data promise (left) and what the policy can do (right)."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3))
    draw.band(left, surrogate, RED, x=updates)
    draw.band(right, accuracy, BLUE, x=updates)
    left.set(title="promised: the surrogate, on the old rollout")
    right.set(title="true: held-out accuracy", ylim=(0, 1))
    for axis in (left, right):
        _on_updates(axis, updates)
    return figure


def age(updates, without: dict, corrected: dict) -> Figure:
    """Accuracy against updates for data of several ages, without and with the ratio.

    Each dictionary: label → accuracies, one row per seed.
    """
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.1), sharey=True)
    panels = {"without the ratio": without, "with the ratio": corrected}
    styles = ((BLACK, "o-"), (BLUE, "o--"), (RED, "o-."))
    for axis, (title, named) in zip(axes, panels.items()):
        for (label, runs), (colour, dash) in zip(named.items(), styles):
            draw.band(axis, runs, colour, label, dash, updates, markersize=4)
        axis.set(title=title, xlabel="updates", ylim=(0, 1), xticks=list(updates))
        axis.legend(loc="lower right")
    axes[0].set_ylabel("held-out accuracy")
    return figure
