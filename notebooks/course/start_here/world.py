"""The explorer of chapter 00: habits, answers and the temperature."""

import matplotlib.pyplot as plt

from course.kit import explorer, stakes
from course.kit.plots import primitives as draw
from course.kit.plots.style import DASHES, GREY, HABIT_COLOURS, HABIT_INKS, INK
from refimpl.tasks.arithmetic import habit

SHOWN, WIDE, LINES = 7, 26, 2
"""Answers that stand beside the curves, letters in a line of one, and its lines."""


def temperature_explorer(table: dict) -> explorer.Explorer:
    """Habits and accuracy against the temperature, and answers at the chosen one.

    `table[terms][temperature]` is a `course.kit.habits.Survey`; nothing is sampled.
    """
    grid = list(next(iter(table.values())))
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 4.3), width_ratios=(1, 1.1))
    looks = {**HABIT_COLOURS, "right": INK}
    lines = [
        left.plot(grid, grid, dash, color=colour, label=name)[0]
        for (name, colour), dash in zip(looks.items(), DASHES)
    ]
    cursor = left.axvline(1, color=GREY, linewidth=1.2)
    left.set(xlabel="temperature", ylabel="share of answers", ylim=(-0.02, 1.02))
    right.axis("off")
    draw.heading(figure, left)
    right.set_title("prompts, and answers at this temperature", loc="left", fontsize=12)
    place = {"transform": right.transAxes, "family": "monospace", "fontsize": 10}
    place |= {"va": "top", "linespacing": 1.1}
    heights = [0.97 - k / SHOWN for k in range(SHOWN)]
    prompts = [right.text(0, y, "", color="#555555", **place) for y in heights]
    answers = [right.text(0.31, y, "", **place) for y in heights]

    def move(temperature: float, terms: int) -> list:
        surveys = table[terms]
        for line, name in zip(lines, looks):
            line.set_ydata([part_of(s, name) for s in surveys.values()])
        cursor.set_xdata([temperature] * 2)
        now = surveys[temperature]
        for asked, text, (prompt, answer, paid) in zip(prompts, answers, now.answers):
            asked.set_text(f"{'✓' if paid else '✗'} {prompt}")
            text.set_text(cut(answer))
            text.set_color(HABIT_INKS.get(habit(answer), GREY))
        favourite = max(now.shares, key=now.shares.get)
        told = f"{terms} terms, temperature {temperature:g}: {favourite} leads "
        told += f"({now.shares[favourite]:.0%}); {now.right:.0%} are right"
        return [*lines, cursor, *prompts, *answers, draw.say(figure, told)]

    return explorer.Explorer(
        figure,
        [move],
        {
            "temperature": explorer.stops("temperature", grid, 1.0),
            "terms": explorer.stops("terms in the sum", list(table), 3),
        },
        stakes="One policy is asked here at many temperatures, and nothing is trained. "
        "Every stored run of the course samples at a temperature of 1.",
        prediction=stakes.Prediction(
            "At the highest temperature, which sums lose more of their right answers?",
            ("those of two terms", "those of five terms", "both lose as much"),
            "those of five terms",
            "Every step is another chance of an error, and five terms need four steps.",
        ),
        name="00_temperature",
    )


def part_of(survey, name: str) -> float:
    return survey.right if name == "right" else survey.shares[name]


def cut(text: str) -> str:
    """At most `LINES` lines of at most `WIDE` characters."""
    lines = [text[i : i + WIDE] for i in range(0, len(text), WIDE)]
    return "\n".join(lines[:LINES]) + ("…" if len(lines) > LINES else "")
