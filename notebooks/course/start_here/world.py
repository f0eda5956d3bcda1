"""Pictures of chapter 00 that its reader plays with: temperature, and a broken run."""

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from course.kit import explorer, stakes
from course.kit.plots import primitives as draw
from course.kit.plots.style import DASHES, FREE, GREY, HABIT_COLOURS, INK
from refimpl.tasks.world import habit


def broken_sft(right: list[float], broken: list[float]) -> Figure:
    """Exercise 0.6: the loss of the same training, right and broken in one line."""
    figure, axis = plt.subplots(figsize=(8, 2.9))
    for losses, label, dash, colour in (
        (right, "right run", "-", FREE[0]),
        (broken, "broken run", "--", FREE[1]),
    ):
        axis.plot(draw.steps(losses), losses, dash, color=colour, label=label)
    axis.set(xlabel="step", ylabel="loss (nats/token)", ylim=(0, 3.1))
    axis.legend(loc="upper right")
    draw.finding(figure, "The broken run's loss is lower. Is it the better model?")
    return draw.caption(figure, "one run each, the same batches")


SHOWN = 7
"""Answers that stand beside the curves."""


def temperature_explorer(table: dict) -> explorer.Explorer:
    """Habits and accuracy against the temperature, and answers at the chosen one.

    `table[terms][temperature]` is a `course.kit.habits.Survey`; nothing is sampled.
    """
    grid = list(next(iter(table.values())))
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.9), width_ratios=(1.1, 1))
    looks = {**HABIT_COLOURS, "right": INK}
    lines = [
        left.plot(grid, grid, dash, color=colour, label=name)[0]
        for (name, colour), dash in zip(looks.items(), DASHES)
    ]
    cursor = left.axvline(1, color=GREY, linewidth=1.2)
    left.set(xlabel="temperature", ylabel="share of answers", ylim=(-0.02, 1.02))
    left.legend(loc="upper right", fontsize=10)
    right.axis("off")
    draw.finding(figure, "A low temperature shows the favourite habit, not the best")
    right.set_title("seven answers at this temperature", loc="left")
    place = {"transform": right.transAxes, "family": "monospace", "fontsize": 10}
    texts = [
        right.text(0, 0.93 - k * 0.95 / SHOWN, "", va="top", linespacing=1.1, **place)
        for k in range(SHOWN)
    ]

    def update(temperature: float, terms: int) -> list:
        surveys = table[terms]
        for line, name in zip(lines, looks):
            line.set_ydata([part_of(s, name) for s in surveys.values()])
        cursor.set_xdata([temperature] * 2)
        for text, answer in zip(texts, surveys[temperature].answers):
            prompt, response, paid = answer
            text.set_text(cut(f"{'✓' if paid else '✗'} {prompt}{response}"))
            text.set_color(HABIT_COLOURS.get(habit(response), GREY))
        now = surveys[temperature]
        favourite = max(now.shares, key=now.shares.get)
        title = draw.say(
            figure,
            f"At temperature {temperature:g} the favourite habit is {favourite} "
            f"({now.shares[favourite]:.0%}); {now.right:.0%} are right",
        )
        return [*lines, cursor, *texts, title]

    return explorer.Explorer(
        figure,
        update,
        {
            "temperature": explorer.stops("temperature", grid, 1.0),
            "terms": explorer.stops("terms in the sum", list(table), 3),
        },
        stakes="One policy is asked here at many temperatures, and nothing is trained. "
        "Every stored run of the course samples at a temperature of 1.",
        prediction=stakes.Prediction(
            "Will a temperature of 0.2 bring more right answers than 1?",
            ("yes, more", "no, fewer or as many"),
            "no, fewer or as many",
            "A low temperature sharpens what the policy prefers, and it prefers to "
            "guess.",
        ),
    )


def part_of(survey, name: str) -> float:
    return survey.right if name == "right" else survey.shares[name]


def cut(text: str, width: int = 34) -> str:
    """At most two lines of at most `width` characters."""
    lines = [text[i : i + width] for i in range(0, len(text), width)]
    more = "…" if len(lines) > 2 else ""
    return "\n  ".join(lines[:2]) + more
