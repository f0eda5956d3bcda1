"""Figures of chapter 06: head-room under the clip, dead groups, the ramp, the parts."""

import statistics
from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from course.kit import explorer, stakes
from course.kit.plots import primitives as draw
from course.kit.plots.style import (
    BAD,
    COLOURS,
    FREE,
    GOOD,
    INK,
    METHOD_DASHES,
    RIGHT,
    WRONG,
    looks_of,
    shade,
)
from refimpl.advantages import Scored, group_relative
from refimpl.curves import curve
from refimpl.history import History
from refimpl.rewards import overlong_punishment

GRPO, DAPO = COLOURS["grpo"], COLOURS["dapo"]
WIDTHS = (GRPO, DAPO, shade(DAPO, 1), FREE[0])
"""ε_high = 0.2 (GRPO's), 0.28 (DAPO's), 0.4 and none, in every figure."""
STYLES = tuple(zip(WIDTHS, ("-", METHOD_DASHES["dapo"], "-.", ":")))
EPSILON = r"$\varepsilon_{\mathrm{high}}$"


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
    title = "A wider bound lifts rare tokens sooner, but likely ones no higher"
    return draw.finding(figure, title)


def room_explorer() -> explorer.Explorer:
    """The gradient coefficient of a good token, as its probability rises."""
    grid = torch.linspace(0.0005, 0.9995, 1999, dtype=torch.float64)
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 4.1))
    band = left.axvspan(0, 1, color=DAPO, alpha=0.3, linewidth=0)
    (line,) = left.plot(grid, grid, color=DAPO)
    here = left.axvline(0, color=INK, linewidth=1.2)
    name = left.text(0, 2.32, r"$\pi_{\mathrm{old}}$")
    left.set(xlabel="probability of the token now", ylim=(0, 2.6), xlim=(0, 1))
    left.set_title(r"coefficient $c = g\,r$, for $\hat{A} > 0$")
    right.plot(grid, 1 - grid, ":", color=FREE[1])
    right.text(0.53, 0.53, r"at most $1-\pi_{\mathrm{old}}$", color=FREE[1])
    (room,) = right.plot(grid, grid, color=DAPO)
    (dot,) = right.plot([0], [0], "o", color=DAPO, ms=10, mec=INK, clip_on=False)
    right.set(title="room to rise", ylim=(0, 0.8), xlim=(0, 1))
    right.set_xlabel(r"probability $\pi_{\mathrm{old}}$ of the token")
    right.set_yticks([0, 0.2, 0.4, 0.6, 0.8])

    def move(p: float, epsilon_high: float) -> list:
        # a hair beside p, so that no grid point sits exactly on the bound
        one = curve("dapo", 1.0, grid / (p + 1e-7), epsilon_high=epsilon_high)
        line.set_ydata(one.coefficient)
        top = min(1.0, p * (1 + epsilon_high))
        band.set(x=p, width=top - p)
        here.set_xdata([p, p])
        beside = (p + 0.015, "left") if p < 0.5 else (p - 0.015, "right")
        name.set(x=beside[0], ha=beside[1])
        room.set_ydata(torch.minimum(epsilon_high * grid, 1 - grid))
        dot.set_data([p], [top - p])
        end = "then the clip closes" if top < 1 else "never clipped"
        said = f"From {p:.2f} to {top:.3f}: a room of {top - p:.3f}, {end}"
        return [band, line, here, name, room, dot, draw.say(figure, said)]

    controls = {
        "p": explorer.slider("π_old of the token", 0.3, 0.01, 0.95, 0.01),
        "epsilon_high": explorer.log_slider("ε_high", 0.28, 0.05, 2.0),
    }
    both = {"p": 0.05, "epsilon_high": 0.28}
    presets = {"a rare token": both, "a common token": both | {"p": 0.85}}

    def outcome(epsilon_high: float) -> str:
        stored = {0.2: "DAPO 0.20", 0.28: "DAPO", 0.4: "DAPO 0.40"}
        near = stakes.nearest(epsilon_high, stored)
        return stakes.ended({f"DAPO, ε_high = {near:g}": stored[near]}, rate=1e-4)

    return explorer.Explorer(
        figure,
        [move],
        controls,
        presets,
        stakes=outcome,
        prediction=stakes.Prediction(
            "Which good token has more room before the clip closes: one of probability "
            "0.05, or one of 0.5?",
            ("0.05", "0.5", "both as much"),
            "0.5",
            "The clip bounds a ratio, so the room is ε_high times the probability.",
        ),
        name="06_room",
    )


def group_explorer(price_of: Callable) -> explorer.Explorer:
    """The advantages of one group, and where it stands on the curve of `price_of`."""
    p = torch.linspace(0.005, 0.995, 199, dtype=torch.float64)
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.8))
    (line,) = right.plot(p, p + 5, color=FREE[1])
    (dot,) = right.plot([], [], "o", color=DAPO, markersize=10, mec=INK)
    right.set(yscale="log", xlabel="solved with probability $p$", ylim=(1, 2000))
    right.set_title("a live group: 00000 responses")
    bars = left.bar(range(1, 17), [0.0] * 16)
    draw.rule(left, y=0, dash="-", width=1)
    dead = left.text(8.5, 0.4, "", ha="center", color=INK)
    left.set(title=r"advantage $\hat{A}$", xlabel="response")
    left.set(ylim=(-4.5, 4.5), xlim=(0.2, 16.8), xticks=range(2, 17, 2))

    def move(k: int, size: int) -> list:
        k = min(k, size)
        paid = (torch.arange(size) < k).double()
        values = group_relative(Scored(paid, torch.zeros(size, dtype=torch.long)))
        for i, bar in enumerate(bars):
            bar.set_height(values[i].item() if i < size else 0.0)
            bar.set_facecolor(GOOD if i < k else BAD)
        dead.set_text("" if values.any() else "dead: every Â is 0")
        line.set_ydata(price_of(size, p))
        live = 0 < k < size
        cost = price_of(size, k / size) if live else float("nan")
        dot.set_data([k / size] if live else [], [cost] if live else [])
        right.set_title(
            f"a live group: {cost:.1f} responses" if live else "a live group: never"
        )
        said = f"{k} of {size} right: {'kept' if live else 'thrown away'}"
        return [*bars, dead, line, dot, right.title, draw.say(figure, said)]

    controls = {
        "k": explorer.slider("right answers k, at most G", 1, 0, 16, 1),
        "size": explorer.slider("group size G", 8, 2, 16, 1),
    }
    common = {"rate": 2e-4, "updates": 4, "overlong_share": 0.2}
    usual = stakes.ended({"DAPO without dynamic sampling": "DAPO"}, **common)
    dynamic = stakes.ended({"with it": "DAPO"}, **common, dynamic_sampling=True)
    return explorer.Explorer(
        figure,
        [move],
        controls,
        stakes=f"{usual} {dynamic.partition('). ')[2]}",
        prediction=stakes.Prediction(
            "How much does a live group cost where nine answers in ten are right, "
            "compared with five in ten?",
            ("more", "as much", "less"),
            "more",
            "The more certain the policy is of a prompt, the rarer are groups whose "
            "answers differ, and all other groups are thrown away.",
        ),
        name="06_price",
    )


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
    return draw.finding(figure, title)


def ramp_explorer(right: Sequence[int], wrong: Sequence[int]) -> explorer.Explorer:
    """Eq. 13 with the reader's L_max and L_cache, over the lengths of answers."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 4.2))
    added, reached = axes
    lengths = torch.linspace(0, 60, 241)
    (line,) = added.plot(lengths, lengths, color=DAPO)
    added.set(title="added to the reward", ylim=(-1.1, 0.4))
    name = added.text(0, 0.24, r"$L_{\max}$", ha="right")
    over = added.text(0, 0.07, "ramp", ha="center")
    for label, held, colour, dash, place in (
        ("right answers", right, RIGHT, "-", (13, 0.68)),
        ("wrong answers", wrong, WRONG, "--", (2, 0.13)),
    ):
        share = [sum(n >= x for n in held) / len(held) for x in range(61)]
        reached.plot(range(61), share, dash, color=colour, ds="steps-pre")
        reached.text(*place, label, color=colour)
    reached.set(title="share at least as long", ylim=(0, 1.03))
    for axis in axes:
        axis.set_xlabel("length of the response (tokens)")
    look = {"color": DAPO, "alpha": 0.2, "linewidth": 0}
    spans = [axis.axvspan(0, 1, **look) for axis in axes]
    rules = [axis.axvline(0, color=INK, ls=":", lw=1) for axis in axes]
    number = len(right) + len(wrong)
    draw.caption(figure, f"{number} answers of the hasty policy and the warm start")

    def move(limit: int, cache: int) -> list:
        cache = min(cache, limit)
        line.set_ydata(overlong_punishment(lengths, limit, cache))
        name.set_x(limit - 0.6)
        over.set_x(limit - cache / 2)
        for span in spans:
            span.set(x=limit - cache, width=cache)
        for rule in rules:
            rule.set_xdata([limit, limit])
        punished = (
            f"{100 * statistics.fmean(n > limit - cache for n in held):.1f} %"
            for held in (right, wrong)
        )
        said = "Punished: {} of right answers, {} of wrong ones".format(*punished)
        return [line, name, over, *spans, *rules, draw.say(figure, said)]

    controls = {
        "limit": explorer.slider("L_max", 48, 8, 56, 1),
        "cache": explorer.slider("L_cache", 10, 1, 48, 1),
    }
    at = {"rate": 2e-4, "updates": 4}
    plain = stakes.ended({"DAPO without the ramp": "DAPO"}, **at)
    ramp = stakes.ended({"with L_cache = 10": "DAPO"}, **at, overlong_share=0.2)
    return explorer.Explorer(
        figure,
        [move],
        controls,
        stakes=f"{plain} {ramp.partition('). ')[2]}",
        prediction=stakes.Prediction(
            "Widen L_cache from 10 to 30. Which answers does the ramp then punish "
            "more often?",
            ("right answers", "wrong answers"),
            "right answers",
            "Careful answers write down their steps, so a wide ramp reaches them "
            "before it reaches the short guesses.",
        ),
        name="06_overlong",
    )


EQUAL = 0.15, 0.45
"""Between these rewards, which all runs pass, entropies are compared."""


def at_equal_reward(histories: Sequence[History]) -> float:
    """The mean entropy of the rollouts whose reward is in `EQUAL`."""
    pairs = [pair for h in histories for pair in zip(h["reward"], h["entropy"])]
    return statistics.fmean(e for r, e in pairs if EQUAL[0] < r < EQUAL[1])


def parts(runs: Mapping[str, Sequence[History]], late: Callable) -> Figure:
    """Left: GRPO's and DAPO's reward. Right: one row per variant, with `late(run)`."""
    widths = {"width_ratios": (2, 3)}
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 4.1), gridspec_kw=widths)
    pair = {name: runs[name] for name in ("GRPO", "DAPO")}
    for (name, histories), (colour, dash) in zip(pair.items(), looks_of(pair)):
        rewards = [h["reward"] for h in histories]
        draw.band(left, rewards, colour, name, dash, what="")
    left.set(title="reward (training)")
    left.set_ylim(bottom=0)
    left.legend(loc="upper left")
    draw.rollout_axis(left, 5)
    rows = {
        name.removeprefix("DAPO, "): [late(h) for h in histories]
        for name, histories in runs.items()
    }
    colours = [GRPO if name == "GRPO" else DAPO for name in rows]
    marks = ["s" if name == "GRPO" else "o" for name in rows]
    draw.dots(right, rows, colours, marks, what="")
    low, high = min(rows["DAPO"]), max(rows["DAPO"])
    right.axvspan(low, high, color=DAPO, alpha=0.2, linewidth=0, zorder=0)
    right.set_title("DAPO and its variants")
    right.set_xlabel("reward, mean of rollouts 6–8")
    title = "Token mean and sampling carry DAPO; the punishment costs it reward"
    draw.finding(figure, title)
    (count,) = {len(histories) for histories in runs.values()}
    note = f"{count} runs each; bar: median, band: range, shaded: DAPO's range"
    return draw.caption(figure, note)
