"""Figures of chapter 06: head-room under the clip, dead groups, lengths, the parts."""

import statistics
from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from course import explorer
from course.plots import primitives as draw
from course.plots.style import (
    BAD,
    COLOURS,
    DASHES,
    FREE,
    INK,
    METHOD_DASHES,
    RIGHT,
    WRONG,
    looks_of,
    shade,
)
from refimpl.advantages import Scored, group_relative
from refimpl.curves import Curve, curve
from refimpl.history import History
from refimpl.rewards import overlong_punishment

GRPO, DAPO = COLOURS["grpo"], COLOURS["dapo"]
WIDTHS = (GRPO, DAPO, shade(DAPO, 1), FREE[0])
"""ε_high = 0.2 (GRPO's), 0.28 (DAPO's), 0.4 and none, in every figure."""
MARKS = "osx^"
STYLES = tuple(zip(WIDTHS, ("-", METHOD_DASHES["dapo"], "-.", ":")))
EPSILON = r"$\varepsilon_{\mathrm{high}}$"


def problem(runs: Mapping[str, Sequence[History]]) -> Figure:
    """GRPO from an easy and a hard start: reward, dead groups, entropy."""
    figure, axes = draw.panel_grid(3, (8, 3.9))
    panels = (
        ("reward", "reward (training)"),
        ("frac_reward_zero_std", "share of dead groups"),
        ("entropy", "entropy (nats/token)"),
    )
    styles = ((GRPO, "-"), (shade(GRPO, 2), "--"))
    draw.metric_panels(axes, runs, panels, styles, ticks=5)
    draw.legend_outside(figure, axes[0], 2)
    title = "GRPO is slow from the hasty policy, where many groups are dead"
    draw.finding(figure, title)
    return figure


def headroom(
    start: Sequence[float], reach: Mapping[float, Sequence[float]], climbs: Mapping
) -> Figure:
    """How far one rollout may lift a token, and how a rare one climbs.

    `reach` and `climbs` by ε_high.
    """
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.9))
    room = {
        f"{EPSILON} = {e}": [b - a for a, b in zip(start, end)]
        for e, end in reach.items()
    }
    draw.curve_panel(left, start, room, STYLES, "upper right")
    left.set(
        title="room to rise in one rollout",
        ylabel=r"highest $\pi - \pi_{\mathrm{old}}$",
    )
    left.set_xlabel(r"probability $\pi_{\mathrm{old}}$ of a token")
    left.set_ylim(0, 0.45)
    marks = zip(climbs.items(), STYLES, "os^")
    for (_, path), (colour, dash), mark in marks:
        style = {"marker": mark, "markersize": 4}
        draw.line(right, range(len(path)), path, colour, dash, **style)
        right.annotate(
            f"{len(path) - 1}",
            (len(path) - 1, path[-1]),
            (0, 5),
            textcoords="offset points",
            ha="center",
        )
    draw.rule(right, y=0.5, width=1)
    right.set(title="a token at 1 %, always good", xlabel="rollout", ylim=(0, 0.75))
    right.set_ylabel("its probability")
    title = "A wider bound lifts rare tokens sooner, nearly sure ones no further"
    draw.finding(figure, title)
    return figure


def room_explorer() -> explorer.Explorer:
    """The gradient coefficient of a good token, as its probability rises."""
    grid = torch.linspace(0.0005, 0.9995, 1999, dtype=torch.float64)
    figure, axis = plt.subplots(figsize=(8, 3.6))
    band = axis.axvspan(0, 1, color=DAPO, alpha=0.3, linewidth=0)
    (line,) = axis.plot(grid, grid, color=DAPO)
    here = axis.axvline(0, color=INK, linewidth=1.2)
    name = axis.text(0, 2.32, r"$\pi_{\mathrm{old}}$")
    axis.set_title("from 0.000 to 0.000: a room of 0.000, then the clip closes")
    axis.set_xlabel("probability of the token now (its advantage is positive)")
    axis.set_ylabel("gradient coefficient  c = g·r")
    axis.set(xlim=(0, 1), ylim=(0, 2.6))

    def update(p: float, epsilon_high: float) -> list:
        # a hair beside p, so that no grid point sits exactly on the bound
        one = curve("dapo", 1.0, grid / (p + 1e-7), epsilon_high=epsilon_high)
        line.set_ydata(one.coefficient)
        top = min(1.0, p * (1 + epsilon_high))
        band.set(x=p, width=top - p)
        here.set_xdata([p, p])
        name.set_x(p + 0.01)
        end = "then the clip closes" if top < 1 else "never clipped"
        axis.set_title(f"from {p:.2f} to {top:.3f}: a room of {top - p:.3f}, {end}")
        return [band, line, here, name, axis.title]

    controls = {
        "p": explorer.slider("π_old of the token", 0.3, 0.01, 0.95, 0.01),
        "epsilon_high": explorer.log_slider("ε_high", 0.28, 0.05, 2.0),
    }
    both = {"p": 0.05, "epsilon_high": 0.28}
    presets = {"a rare token": both, "a common token": both | {"p": 0.85}}
    return explorer.Explorer(figure, update, controls, presets)


def up_clipped(clipped: Sequence[float], rising: Sequence[float]) -> Figure:
    """π_old of the tokens that the upper clip stops, beside all good tokens."""
    figure, axis = plt.subplots(figsize=(8, 3.7))
    edges = [i / 20 for i in range(21)]
    for values, colour, label in (
        (rising, FREE[3], r"all tokens with $\hat{A} > 0$"),
        (clipped, FREE[0], "those that the upper clip stops"),
    ):
        draw.hist(axis, values, edges, colour, len(values), alpha=0.75, label=label)
    mean = statistics.fmean(clipped)
    draw.rule(axis, x=mean, colour=FREE[0], dash="--", width=1.8)
    draw.rule(axis, x=1 / 1.2, colour=INK, width=1.8)
    axis.text(1 / 1.2 - 0.01, 0.5, "1/1.2: beyond it\nnone is clipped", ha="right")
    axis.text(mean + 0.01, 0.66, f"their mean: {mean:.2f}", color=FREE[0])
    axis.set(xlabel=r"$\pi_{\mathrm{old}}$ of the token", ylabel="share", ylim=(0, 1))
    axis.legend(loc="upper center")
    draw.finding(figure, "The upper clip stops rare tokens, not the common ones")
    draw.caption(figure, "six rollouts of the hasty policy, 16 updates on each")
    return figure


def price(curves: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Figure:
    """Responses to sample for one live group, against how often a prompt is solved."""
    figure, axis = plt.subplots(figsize=(8, 3.4))
    for (label, (p, cost)), style in zip(curves.items(), zip(FREE, DASHES)):
        draw.curve_panel(axis, p, {label: cost}, [style])
    axis.set(yscale="log", xlabel="a prompt is solved with probability $p$")
    axis.set_ylabel("responses per live group")
    axis.legend(loc="upper center")
    draw.finding(figure, "Near p = 0 and p = 1 a live group becomes very expensive")
    return figure


def group_explorer(price_of: Callable) -> explorer.Explorer:
    """The advantages of one group, and where it stands on the curve of `price`."""
    p = torch.linspace(0.005, 0.995, 199, dtype=torch.float64)
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.8))
    (line,) = right.plot(p, p + 5, color=FREE[1])
    (dot,) = right.plot([], [], "o", color=DAPO, markersize=10, mec=INK)
    right.set(yscale="log", xlabel="solved with probability $p$", ylim=(1, 2000))
    right.set_title("a live group: 00000 responses")
    draw.finding(figure, "16 of 16 right: thrown away, nothing to learn")
    bars = left.bar(range(1, 17), [0.0] * 16)
    draw.rule(left, y=0, dash="-", width=1)
    dead = left.text(8.5, 0.4, "", ha="center", color=BAD)
    left.set(title=r"advantage $\hat{A}$", xlabel="response")
    left.set(ylim=(-4.5, 4.5), xlim=(0.2, 16.8), xticks=range(2, 17, 2))

    def update(k: int, size: int) -> list:
        k = min(k, size)
        paid = (torch.arange(size) < k).double()
        values = group_relative(Scored(paid, torch.zeros(size, dtype=torch.long)))
        for i, bar in enumerate(bars):
            bar.set_height(values[i].item() if i < size else 0.0)
            bar.set_facecolor(RIGHT if i < k else WRONG)
        dead.set_text("" if values.any() else "dead: every Â is 0")
        line.set_ydata(price_of(size, p))
        live = 0 < k < size
        cost = price_of(size, k / size) if live else float("nan")
        dot.set_data([k / size] if live else [], [cost] if live else [])
        text = f"{cost:.1f} responses" if live else "never"
        right.set_title(f"a live group costs: {text}")
        kept = "kept" if live else "thrown away"
        figure._suptitle.set_text(f"{k} of {size} right: {kept}")
        return [*bars, dead, line, dot, right.title, figure._suptitle]

    controls = {
        "k": explorer.slider("right answers k", 1, 0, 16, 1),
        "size": explorer.slider("group size G", 8, 2, 16, 1),
    }
    return explorer.Explorer(figure, update, controls)


def ramp(
    punishment: Callable, limit: float, cache: float, right: Sequence, wrong: Sequence
) -> Figure:
    """Eq. 13 against length; below it, how many right and wrong answers are as long.

    `punishment(lengths)` is what is added to the reward.
    """
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(8, 5), sharex=True)
    lengths = torch.linspace(0, 60, 241)
    upper.plot(lengths, punishment(lengths), color=DAPO)
    upper.set(ylabel="added to the reward", ylim=(-1.1, 0.35))
    upper.text(limit + 0.4, 0.12, r"$L_{\max}$")
    upper.text(limit - cache / 2, 0.12, "ramp", ha="center")
    for name, held, colour, dash in (
        ("right answers", right, RIGHT, "-"),
        ("wrong answers", wrong, WRONG, "--"),
    ):
        share = [sum(n >= x for n in held) / len(held) for x in range(61)]
        lower.plot(range(61), share, dash, color=colour, label=name, ds="steps-pre")
    lower.set(ylabel="share at least as long", ylim=(0, 1.03))
    lower.set_xlabel("length of the response (tokens)")
    lower.legend(loc="upper right", bbox_to_anchor=(0.62, 1))  # beside the ramp
    for axis in (upper, lower):
        axis.axvspan(limit - cache, limit, color=DAPO, alpha=0.2, linewidth=0)
        draw.rule(axis, x=limit, colour=INK, width=1)
    draw.finding(figure, "The ramp touches wrong answers, and hardly any right one")
    number = len(right) + len(wrong)
    draw.caption(figure, f"{number} answers of the hasty policy and the warm start")
    return figure


def ramp_explorer(right: Sequence[int], wrong: Sequence[int]) -> explorer.Explorer:
    """Eq. 13 with the reader's L_max and L_cache, over the lengths of answers."""

    def punishment(limit: float, cache: float) -> Callable:
        return lambda x: overlong_punishment(x, limit, min(cache, limit))

    figure = ramp(punishment(48, 10), 48, 10, right, wrong)
    draw.finding(figure, "punished: 100 % of right answers, 100 % of wrong ones")
    upper, lower = figure.axes
    (line,) = upper.lines[:1]
    moved = [line, *upper.texts, *upper.patches, *lower.patches]
    rules = [upper.lines[-1], lower.lines[-1]]
    lengths = torch.linspace(0, 60, 241)

    def update(limit: int, cache: int) -> list:
        cache = min(cache, limit)
        line.set_ydata(punishment(limit, cache)(lengths))
        upper.texts[0].set_x(limit + 0.4)
        upper.texts[1].set_x(limit - cache / 2)
        for span in (*upper.patches, *lower.patches):
            span.set(x=limit - cache, width=cache)
        for rule in rules:
            rule.set_xdata([limit, limit])
        hit = [
            100 * statistics.fmean(n > limit - cache for n in held)
            for held in (right, wrong)
        ]
        text = (
            f"punished: {hit[0]:.0f} % of right answers, {hit[1]:.0f} % of wrong ones"
        )
        figure._suptitle.set_text(text)
        return [*moved, *rules, figure._suptitle]

    controls = {
        "limit": explorer.slider("L_max", 48, 8, 56, 1),
        "cache": explorer.slider("L_cache", 10, 1, 48, 1),
    }
    return explorer.Explorer(figure, update, controls)


def good_tokens(named: Mapping[str, Curve]) -> Figure:
    """Objective and gradient coefficient for Â > 0."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.7), sharex=True)
    for (label, one), (colour, dash) in zip(named.items(), STYLES):
        draw.line(axes[0], one.ratio, one.objective, colour, dash, label)
        draw.line(axes[1], one.ratio, one.coefficient, colour, dash)
    for axis in axes:
        draw.rule(axis, x=1)
        axis.set(xlabel=r"ratio $r = \pi_\theta / \pi_{\mathrm{old}}$", xlim=(0.5, 1.8))
    axes[0].set(title=r"objective, $\hat{A} = 1$", ylim=(0.4, 1.6))
    axes[1].set(title=r"gradient coefficient $c = g\,r$", ylim=(-0.05, 1.6))
    axes[0].legend(loc="upper left")
    draw.finding(
        figure,
        r"A good token keeps its gradient until $r=1+\varepsilon_{\mathrm{high}}$",
    )
    return figure


def widths(
    runs: Mapping[str, Sequence[History]], panels: Sequence[tuple[str, str]]
) -> Figure:
    """Columns of histories for several ε_high; last, entropy against reward."""
    figure, (*axes, last) = draw.panel_grid(4, (8, 6.2), 2)
    draw.metric_panels(axes, runs, panels, STYLES)
    for histories, colour, mark in zip(runs.values(), WIDTHS, MARKS):
        style = {"color": colour, "alpha": 0.8, "markersize": 5}
        for h in histories:
            last.plot(h["reward"], h["entropy"], mark, **style)
    last.set(title="entropy (nats/token) at equal reward", xlabel="reward (training)")
    last.set_ylim(bottom=0)
    draw.legend_outside(figure, axes[0], 4)
    for handle, mark in zip(figure.legends[0].get_lines(), MARKS):
        handle.set_marker(mark)  # the dots of the last panel
    draw.finding(
        figure, "Only a missing bound changes what is learned, not 0.28 or 0.4"
    )
    return figure


def overlong(runs: Mapping[str, Sequence[History]]) -> Figure:
    """DAPO, without the punishment, and with the filter: cut answers and lengths."""
    figure, axes = draw.panel_grid(3, (8, 3.9))
    panels = (
        ("completions/clipped_ratio", "cut off at the limit"),
        ("completions/mean_length", "response length (tokens)"),
        ("habit/ramble", "share of rambles"),
    )
    draw.metric_panels(axes, runs, panels, looks_of(runs), ticks=5)
    axes[0].yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    draw.legend_outside(figure, axes[0], 3)
    draw.finding(figure, "The punishment ends overlong answers; the filter does not")
    return figure


def by_updates_and_samples(runs: Mapping[str, Sequence], updates: int) -> Figure:
    """Reward against updates, and against the responses that were sampled."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 4), sharey=True)
    for (label, histories), (colour, dash) in zip(runs.items(), looks_of(runs)):
        rewards = [h["reward"] for h in histories]
        samples, _, _ = draw.summary([h["num_samples"] for h in histories])
        # A rollout's reward is that of the policy before its updates.
        taken = [updates * i for i in range(len(samples))]
        for axis, x in ((left, taken), (right, [0, *samples[:-1]])):
            draw.band(axis, rewards, colour, label, dash, x=x)
    left.set(xlabel="updates", ylabel="reward (training)")
    left.set_ylim(bottom=0)
    right.set(xlabel="responses sampled")
    draw.legend_outside(figure, left, 2)
    title = "Dynamic sampling is ahead per update and behind per response"
    draw.finding(figure, title)
    return figure


def parts(named: Mapping[str, Sequence[float]]) -> Figure:
    """One row per variant: one dot per seed, a bar at the median, DAPO's range."""
    figure, axis = plt.subplots(figsize=(8, 4.1))
    colours = [GRPO if name == "GRPO" else DAPO for name in named]
    draw.dots(axis, named, colours, ["s" if c == GRPO else "o" for c in colours])
    low, high = min(named["DAPO"]), max(named["DAPO"])
    axis.axvspan(low, high, color=DAPO, alpha=0.2, linewidth=0, zorder=0)
    axis.set_xlabel("reward, mean of rollouts 6–8; shaded: DAPO's range")
    title = "DAPO is ahead of GRPO; the token mean and the sampling carry it"
    draw.finding(figure, title)
    return figure


def bug(named: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Figure:
    """Share of groups thrown away, and of groups trained on with no right answer."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.8), sharex=True, sharey=True)
    titles = ("groups thrown away", "groups trained on with\nno right answer")
    for axis, title, i in zip(axes, titles, (0, 1)):
        for (label, shares), (colour, dash) in zip(
            named.items(), ((DAPO, "-"), (FREE[0], "--"))
        ):
            steps = draw.steps(shares[i])
            draw.line(axis, steps, shares[i], colour, dash, label, marker="o")
        axis.set(title=title, ylim=(-0.03, 1))
        axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        draw.rollout_axis(axis, 5)
    axes[1].legend(loc="upper right")
    draw.finding(figure, "The broken run trains on groups in which nobody is right")
    draw.caption(figure, "1 run each, same seed")
    return figure
