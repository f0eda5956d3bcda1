"""Figures of the stored stress runs: chapters 09 and 10."""

import statistics
from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course.plots import BLACK, BLUE, COLOURS, GREEN, ORANGE, PINK, RED, SKY

ARMS = {  # the beginning of a label; the longest that fits counts
    "GRPO": BLUE,
    "GSPO": GREEN,
    "GMPO": PINK,
    "RSPO": COLOURS["rspo"],
    "SAPO": BLACK,
    "SAPO as published": COLOURS["sapo"],
    "SAPO 1.0": COLOURS["sapo"],
    "SAPO, τ = 1": COLOURS["sapo"],
    "SAPO 8.8": RED,
    "SAPO, τ = 8.8": RED,
    "one-sided": GREEN,
    "one-sided 8.8, Â > 0": SKY,
    "one-sided 8.8, Â < 0": ORANGE,
}


def colour(label: str) -> str:
    """One colour for an arm in every figure of a chapter."""
    return ARMS[max((a for a in ARMS if label.startswith(a)), key=len)]


def accuracies(
    settings: dict[str, dict[str, Sequence[float]]], start: float | None = None
) -> Figure:
    """Final accuracy of every seed, a panel a setting, a row an arm; bar: median."""
    height = 0.36 * max(map(len, settings.values())) + 1.1
    width = 8 if len(settings) == 1 else 10
    figure, axes = plt.subplots(
        1, len(settings), figsize=(width, height), squeeze=False
    )
    for axis, (setting, runs) in zip(axes[0], settings.items(), strict=True):
        for row, values in enumerate(runs.values()):
            axis.scatter(values, [row] * len(values), color=BLUE, alpha=0.7, s=24)
            middle = statistics.median(values)
            axis.plot([middle] * 2, [row - 0.3, row + 0.3], color=BLACK, linewidth=2)
        if start is not None:
            axis.axvline(
                start, color=GREEN, linestyle=":", label="rewards of\nrollout 1"
            )
            axis.legend(loc="upper right")
        axis.set_yticks(range(len(runs)), list(runs), fontsize=9)
        axis.set(xlim=(-0.02, 1.02), xlabel="held-out accuracy", title=setting)
        axis.invert_yaxis()
    return figure


def over_time(
    runs: dict[str, Sequence[Sequence[float]]], live: Sequence[float], title: str
) -> Figure:
    """Reward by rollout: median and range of the stored seeds, and a run made here."""
    figure, axis = plt.subplots(figsize=(8, 3.3))
    for label, table in runs.items():
        columns = list(zip(*table))
        steps = range(1, len(columns) + 1)
        middle = [statistics.median(c) for c in columns]
        axis.plot(steps, middle, color=colour(label), label=label)
        low, high = [min(c) for c in columns], [max(c) for c in columns]
        axis.fill_between(
            steps, low, high, color=colour(label), alpha=0.12, linewidth=0
        )
    axis.plot(
        range(1, len(live) + 1), live, color=BLACK, marker="o", ms=4, label="live run"
    )
    axis.set(xlabel="rollout", ylabel="reward (training)", title=title, ylim=(0, 1))
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=9)
    return figure
