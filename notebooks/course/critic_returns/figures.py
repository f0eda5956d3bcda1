"""The explorer of chapter 19: λ by length."""

import matplotlib.pyplot as plt
import torch

from course.kit import explorer, stakes
from course.kit.plots import primitives as draw
from course.kit.plots.style import FREE, GREY


def lambda_explorer() -> explorer.Explorer:
    """λ over the length, and how much of the reward reaches the first token."""
    lengths = torch.arange(2, 1001).double()
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.7))
    for axis in (left, right):
        draw.line(axis, lengths, 0 * lengths, FREE[0], "-", "by length, 1 − 1/(α l)")
        draw.line(axis, lengths, 0 * lengths, FREE[1], "--", "one λ for all lengths")
        axis.set(xscale="log", xlim=(2, 1000), xlabel="length $l$, tokens")
        draw.plain_ticks(axis.xaxis, (2, 10, 100, 1000))
    left.set(ylim=(-0.02, 1.04), title="λ")
    right.set(ylim=(-0.02, 1.04), title="reward that reaches token 1")
    (dot,) = right.plot([1000], [0.0], "o", color=FREE[0], markersize=8)
    draw.rule(right, y=0, colour=GREY, dash="-")
    draw.legend_outside(figure, left, 2, "lower")
    own, fixed_one = zip(*(axis.lines[:2] for axis in (left, right)))

    def by_length(alpha: float) -> list:
        mine = 1 - 1 / (alpha * lengths).clamp(min=1)
        for line, y in zip(own, (mine, mine ** (lengths - 1))):
            line.set_ydata(y)
        return [*own]

    def one_for_all(fixed: float) -> list:
        for line, y in zip(fixed_one, (fixed + 0 * lengths, fixed ** (lengths - 1))):
            line.set_ydata(y)
        return [*fixed_one]

    def reach(alpha: float, length: int) -> float:
        return (1 - 1 / max(1.0, alpha * length)) ** (length - 1)

    def first_token(alpha: float, length: int) -> list:
        dot.set_data([length], [reach(alpha, length)])
        return [dot]

    def said(alpha: float, fixed: float, length: int) -> list:
        told = (
            f"{length} tokens: the first gets {reach(alpha, length):.0%} of the "
            f"reward, with one λ {fixed ** (length - 1):.0%}"
        )
        return [draw.say(figure, told.replace("%", " %"))]

    return explorer.Explorer(
        figure,
        [by_length, one_for_all, first_token, said],
        {
            "alpha": explorer.log_slider("α", 1.5, 0.05, 10.0),
            "fixed": explorer.slider("one λ", 0.95, 0.8, 1.0, 0.01),
            "length": explorer.slider("length of an answer", 100, 2, 1000, 1),
        },
        stakes="The stored runs with λ by length have short answers; this picture is "
        "arithmetic.",
        prediction=stakes.Prediction(
            "With α = 1.5, does more of the reward reach the first token of a longer "
            "answer, or less?",
            ("more", "less", "about as much"),
            "about as much",
            "(1 − 1/(α l)) to the power of l − 1 tends to e^(−1/α), which is 0.51.",
        ),
        name="19_lambda",
    )
