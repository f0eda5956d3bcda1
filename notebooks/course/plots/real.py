"""Figures of chapter 13: packed rows, and runs of a pretrained model."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course.plots import primitives as draw
from course.plots.style import FREE, GREY, INK, PAPER, arms, shade

Runs = Mapping[str, Sequence[Sequence[float]]]


def packed(prompt: int, answers: Sequence[int], title: str) -> Figure:
    """A group's tokens as repeated rows (left) and as one packed row (below)."""
    width = 8.0
    longest = prompt + max(answers)
    unit = (width - 0.4) / max(longest, prompt + sum(answers))
    height = 0.26 * len(answers) + 1.75
    figure, axis = draw.canvas(width, height)
    looks = [shade(FREE[1], i % 3 - 1) for i in range(len(answers))]

    def cells(x: float, y: float, count: int, colour: str, **style) -> float:
        for n in range(count):
            box = Rectangle((x + n * unit, y), 0.86 * unit, 0.2, color=colour, **style)
            axis.add_patch(box)
        return x + count * unit

    total = len(answers) * longest
    top = height - 0.75
    axis.text(0.2, top + 0.28, f"repeated and padded: {total} tokens", size=12)
    for i, (answer, colour) in enumerate(zip(answers, looks)):
        y = top - 0.26 * i
        x = cells(0.2, y, prompt, FREE[2])
        x = cells(x, y, answer, colour)
        cells(x, y, longest - prompt - answer, GREY, alpha=0.25)
    y = top - 0.26 * len(answers) - 0.42
    shared = prompt + sum(n - 1 for n in answers)
    axis.text(0.2, y + 0.28, f"packed: {shared} tokens", size=12)
    x = cells(0.2, y, prompt, FREE[2])
    for answer, colour in zip(answers, looks):
        x = cells(x, y, answer - 1, colour)
    axis.text(width - 0.2, top + 0.28, "green: prompt", ha="right", size=11, color=INK)
    axis.text(0.05, height - 0.22, title, size=13.5, weight="bold", color=INK)
    figure.set_facecolor(PAPER)
    return figure


def answers_by_form(shares: Mapping[str, Sequence[float]], title: str) -> Figure:
    """The share of each form of answer, by rollout, stacked."""
    figure, axis = plt.subplots(figsize=(8, 3.0))
    steps = draw.steps(next(iter(shares.values())))
    axis.stackplot(steps, *shares.values(), labels=list(shares), colors=FREE)
    axis.set(ylim=(0, 1), ylabel="share of answers", xlim=(1, len(steps)))
    draw.rollout_axis(axis, 6)
    draw.legend_beside(axis)
    draw.finding(figure, title)
    return figure


def reward(runs: Runs, title: str, name: str = "reward (training)") -> Figure:
    """A column by rollout: median and range of the runs of every arm."""
    figure, axis = plt.subplots(figsize=(8, 3.4))
    for (label, values), (colour, dash) in zip(runs.items(), arms(runs)):
        draw.band(axis, values, colour, label, dash)
    axis.set(ylabel=name)
    draw.rollout_axis(axis, 6)
    draw.legend_beside(axis)
    draw.finding(figure, title)
    return figure
