"""Figures of chapter 17: a teacher's score for every token, and what students learn."""

from collections.abc import Mapping, Sequence

import torch
from matplotlib.figure import Figure

from course.distillation import distil
from course.kit import explorer, stakes
from course.kit.plots import primitives as draw
from course.kit.plots.stored import accuracies
from course.kit.plots.style import BAD, BLACK, COLOURS, FREE, GOOD, GREY, INK, PAPER

LOOKS = {"distilled": (FREE[0], "-"), "RL": (COLOURS["grpo"], "--")}
LOOKS |= {"told": (FREE[2], ":")}
TEACHER = "#D9A21B"
"""Light beside the student's dark, in grey as well."""
TOKENS = ("digit", "#", "?", "=", "end")
"""The first tokens of an answer that the explorer shows."""


def known(run: Mapping) -> tuple[list[float], list[float]]:
    """Thousands of sampled tokens so far, and held-out accuracy where it is known."""
    so_far = torch.tensor(run["tokens"]).cumsum(0) / 1000
    pairs = [(x, y) for x, y in zip(so_far.tolist(), run["accuracy"]) if y is not None]
    return tuple(zip(*pairs))


def learning(
    groups: Mapping[str, Mapping[str, Sequence[Mapping]]],
    title: str,
    lines: Mapping[str, Mapping[str, float]],
    here: Mapping | None = None,
    low: float = 0.0,
) -> Figure:
    """Accuracy, from `low` on, over sampled tokens: a panel per group, thin runs and
    thick medians; `lines` are accuracies to compare with, by group; `here` a run of
    the first."""
    figure, axes = draw.panel_grid(len(groups), (8, 3.6))
    for axis, (group, arms) in zip(axes, groups.items()):
        for label, runs in arms.items():
            colour, dash = LOOKS[label]
            each = [known(run) for run in runs]
            for x, y in each:
                axis.plot(x, y, color=colour, linewidth=0.8, alpha=0.45)
            middle = [draw.summary(side)[0] for side in zip(*each)]
            draw.line(axis, *middle, colour, dash, label, linewidth=2.6)
            draw.count_runs(axis, label, len(runs), draw.STRANDS)
        for name, y in lines.get(group, {}).items():
            draw.rule(axis, y=y, colour=INK, width=1.2)
            place = axis.get_yaxis_transform()
            axis.text(0.98, y + 0.015, name, transform=place, ha="right", color=INK)
        axis.set(title=group, ylim=(low, 1.06), xlabel="sampled tokens, thousands")
    if here:
        axes[0].plot(*known(here), color=BLACK, linewidth=1.6, label="made here")
    axes[0].set_ylabel("held-out accuracy")
    return draw.heading(figure, axes[-1 if len(axes) > 1 else 0], title)


def two_worlds(rows: Mapping[str, Sequence[Mapping]], title: str) -> Figure:
    """Held-out accuracy in each world: a row per student or teacher."""
    found = {
        name: {label: [run[key] for run in runs] for label, runs in rows.items()}
        for key, name in (("sums", "sums"), ("rows", "rows to sort"))
    }
    return accuracies(found, title=title)


def blind(
    found: Mapping[str, Mapping[int, float]], kl: Mapping[int, float], title: str
) -> Figure:
    """By number of terms: accuracy of teacher and student, and what the KL says."""
    figure, axes = draw.panel_grid(2, (8, 3.4))
    looks = ((INK, "--"), (FREE[0], "-"))
    for (label, by_terms), (colour, dash) in zip(found.items(), looks):
        draw.line(axes[0], [*by_terms], [*by_terms.values()], colour, dash, label)
    axes[0].set(ylim=(0, 1.04), ylabel="accuracy", xlabel="terms of the sum")
    axes[0].legend(loc="lower left")
    axes[1].bar(list(kl), list(kl.values()), color=FREE[0])
    axes[1].set(ylabel="KL, nats per token", xlabel="terms of the sum")
    for axis in axes:
        axis.axvspan(5.5, max(kl) + 0.5, color=GREY, alpha=0.18, linewidth=0)
    axes[0].text(5.6, 0.55, "never\ntrained", color=INK)
    told = "1 run; 128 held-out problems per number of terms"
    return draw.caption(draw.finding(figure, title), told)


def of_tokens(texts: Sequence[Sequence[str]], values, title: str) -> Figure:
    """Answers token by token, coloured by the teacher's advantage; the numbers that are
    far from 0 are written."""
    height = 0.95 * len(texts) + 0.9
    figure, axis = draw.canvas(8, height)
    widest = max(map(len, texts))
    size = min(0.42, 7.6 / widest)

    def write(x: float, y: float, text: str, **look) -> None:
        axis.text(x + size / 2, y, text, ha="center", va="center", **look)

    for row, (text, advantages) in enumerate(zip(texts, values)):
        y = height - 1.35 - 0.95 * row
        for column, (token, a) in enumerate(zip(text, advantages)):
            x, a = 0.2 + column * size, float(a)
            colour = GOOD if a > 0 else BAD
            shade = min(abs(a) / 2, 1) * 0.85
            axis.fill_between(
                [x, x + 0.92 * size], y, y + 0.5, color=colour, alpha=shade, linewidth=0
            )
            ink = PAPER if shade > 0.6 else INK
            write(x, y + 0.25, token, family="monospace", size=14, color=ink)
            if abs(a) > 0.5:
                number = f"{a:+.1f}".replace("-", "−")
                write(x, y - 0.14, number, size=9.5, color=INK)
    return draw.finding(figure, title)


def teacher_explorer() -> explorer.Explorer:
    """A first token with five choices: advantages, and what they do on average."""
    figure, axes = draw.panel_grid(3, (8, 3.6))
    places = torch.arange(len(TOKENS))
    titles = ("probability", "advantage when drawn", "expected push")
    bars = {}
    for axis, title in zip(axes, titles):
        axis.set_title(title)
        axis.set_xticks(places, TOKENS)
    for name, aside, colour in (("student", -0.2, FREE[0]), ("teacher", 0.2, TEACHER)):
        bars[name] = axes[0].bar(places + aside, 0.5, 0.38, color=colour, label=name)
    bars["advantage"] = axes[1].bar(places, 0.5, 0.7)
    bars["push"] = axes[2].bar(places, 0.5, 0.7)
    for axis, limit in zip(axes[1:], (5, 1.2)):
        axis.set_ylim(-limit, limit)
        draw.rule(axis, y=0, colour=INK, dash="-")
    axes[0].set_ylim(0, 1)
    said = axes[2].text(0.03, 0.03, "", transform=axes[2].transAxes)
    draw.heading(figure, axes[0])

    def shares(first: float, second: float) -> torch.Tensor:
        """`first` of the digit, `second` of the rest on #."""
        rest = torch.tensor([second, *[(1 - second) / 3] * 3]) * (1 - first)
        return torch.cat([torch.tensor([first]), rest]).double()

    def set_bars(name: str, values: torch.Tensor) -> list:
        for bar, value in zip(bars[name], values.tolist()):
            bar.set_height(value)
            if name in ("advantage", "push"):
                bar.set_color(GOOD if value > 0 else BAD)
        return [*bars[name]]

    def own(student: float) -> list:
        told = f"The digit's advantage acts in {student:.0%} of the draws, no more"
        return [*set_bars("student", shares(student, 0.6)), draw.say(figure, told)]

    def theirs(teacher: float, other: float) -> list:
        return set_bars("teacher", shares(teacher, other))

    def advantage(student: float, teacher: float, other: float) -> list:
        drawn, ratio = shares(student, 0.6), shares(teacher, other).log()
        ratio = ratio - drawn.log()
        said.set_text(f"KL = {-(drawn * ratio).sum().item():.2f} nats")
        return [*set_bars("advantage", ratio), said]

    def push(student: float, teacher: float, other: float, k: int) -> list:
        drawn, asked = shares(student, 0.6).log(), shares(teacher, other).log()
        moved = distil.push(drawn, asked - drawn)
        if k < len(TOKENS):
            moved = distil.top(drawn, asked, k)
        return set_bars("push", moved)

    return explorer.Explorer(
        figure,
        [own, theirs, advantage, push],
        {
            "student": explorer.slider(
                "the student's share of a digit", 0.3, 0.01, 0.97, 0.01
            ),
            "teacher": explorer.slider(
                "the teacher's share of a digit", 0.95, 0.01, 0.97, 0.01
            ),
            "other": explorer.slider(
                "of the rest, the teacher's share of #", 0.6, 0.05, 0.95, 0.05
            ),
            "k": explorer.slider("tokens that are compared, k", 5, 1, 5, 1),
        },
        {
            "a habit that the student hardly has": preset(0.02, 0.95, 5),
            "both are sure, and both may be wrong": preset(0.9, 0.9, 5),
            "only the likeliest token is compared": preset(0.02, 0.95, 1),
        },
        stakes=outcome(),
        prediction=stakes.Prediction(
            "The student hardly ever says a digit first, the teacher nearly always. Is "
            "the expected push on the digit large?",
            ("yes", "no"),
            "no",
            "The advantage is large, but the digit is rarely drawn.",
        ),
        name="17_teacher",
    )


def preset(student: float, teacher: float, k: int) -> dict:
    return {"student": student, "teacher": teacher, "k": k}


def outcome() -> str:
    """How the toy's stored students ended, beside those that reward trained."""
    runs = distil.read()
    said = [
        f"{name}: {stakes.right([run['accuracy'][-1] for run in runs[f'toy: {arm}']])}"
        for name, arm in (("Distilled", "distilled"), ("by reward alone", "RL"))
    ]
    return f"Stored runs of the toy (every token compared). {'; '.join(said)}."
