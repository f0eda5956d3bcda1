"""Figures of chapter 13: a broken run, and long ones."""

from pathlib import Path

from matplotlib.figure import Figure

from course.kit.plots import primitives as draw
from course.kit.plots.style import FREE, looks_of
from experiments import long
from refimpl.history import History


def broken(right: History, other: History, title: str) -> Figure:
    """Exercise 13.1: loss, reward and answers without an end, every ten steps."""
    panels = {"loss": "nats/token", "reward": "mean", "cut_off": "share"}
    names = ("loss", "mean reward", "answers cut off")
    figure, axes = draw.panel_grid(3, (8, 3.2))
    for axis, column, name, unit in zip(axes, panels, names, panels.values()):
        for label, run, dash, colour in (
            ("right", right, "-", FREE[0]),
            ("with the bug", other, "--", FREE[1]),
        ):
            over = [10 * n for n in draw.steps(run[column])]
            draw.line(axis, over, run[column], colour, dash, label)
        axis.set(xlabel="step", title=name, ylabel=unit)
        axis.set_ylim(bottom=0) if column == "loss" else axis.set_ylim(-0.03, 1.05)
    draw.heading(figure, axes[0], title)
    return draw.caption(figure, "one run each, the same seeds")


EACH = 10
"""Rollouts that are averaged for one point of a noisy curve."""


def long_runs(path: str | Path, title: str) -> Figure:
    """Stored long runs: the reward by tens of rollouts, and both accuracies.

    Only seeds count of which the runs of all methods are stored.
    """
    runs, rows = long.whole(path)
    rewards = rows.groupby(["run", rows["step"] // EACH])["reward"].mean()
    measured = long.moments(path).set_index("run").loc[runs["run"]]
    figure, axes = draw.panel_grid(3, (8, 3.4), sharex=True, sharey=True)
    arms = dict.fromkeys(measured["arm"])
    for arm, (colour, dash) in zip(arms, looks_of(arms)):
        own = [one for _, one in measured[measured["arm"] == arm].groupby("run")]
        values = [rewards[one.index[0]].tolist() for one in own]
        centres = [EACH * (n + 0.5) for n in range(len(values[0]))]
        draw.band(axes[0], values, colour, arm, dash, centres)
        times = own[0]["rollouts"].tolist()
        for axis, column in zip(axes[1:], ("mean", "pass")):
            values = [one[column].tolist() for one in own]
            draw.band(axis, values, colour, arm, dash, times, marker="o")
    names = ("reward (training)", "mean@8 (held out)", "pass@8 (held out)")
    for axis, name in zip(axes, names):
        axis.set_title(name)
        draw.rollout_axis(axis, 4)
    axes[0].set_ylim(0, 1)
    return draw.heading(figure, axes[0], title)
