"""Figures of chapter 14: who waits for whom, ranks, old samplers, newer methods."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from course.kit import explorer, stakes
from course.kit.plots import primitives as draw
from course.kit.plots.style import FREE, GREY, INK, PAPER
from course.kit.plots.style import colour as colour_of
from refimpl.algorithms import ALGORITHMS, Algorithm
from refimpl.curves import curve

LATE_RUNS = "dots, squares: single runs, lines: medians"
SAMPLER, LEARNER = 1.5, 1.0
"""How long either takes in `parts`, in units of the learner."""


def parts(title: str, rollouts: int = 4) -> Figure:
    """Draw sampler and learner over time, waiting for each other and not waiting."""
    figure, axis = draw.canvas(8, 3.7)
    unit, left = 0.6, 1.35

    def block(row: float, start: float, length: float, text: str, colour: str):
        box = Rectangle(
            (left + start * unit, row), length * unit - 0.04, 0.4, color=colour
        )
        axis.add_patch(box)
        middle = left + (start + length / 2) * unit - 0.02
        axis.text(middle, row + 0.2, text, ha="center", va="center", color=PAPER)

    def cut(top: float, name: str, pace: float, behind: int) -> None:
        axis.text(0.1, top + 0.56, name, size=12, weight="bold", color=INK)
        for row, who in ((top, "sampler"), (top - 0.5, "learner")):
            axis.text(left - 0.12, row + 0.2, who, ha="right", va="center", size=12)
        for n in range(rollouts):
            start, policy = pace * n, max(0, n - behind)
            block(top, start, SAMPLER, f"π{_sub(policy)}", FREE[0])
            learns = f"→ π{_sub(n + 1)}"
            block(top - 0.5, start + SAMPLER, LEARNER, learns, FREE[2])

    cut(2.3, "each waits for the other", SAMPLER + LEARNER, behind=0)
    cut(0.85, "the sampler goes on", SAMPLER, behind=1)
    axis.text(left, 0.14, "time →", size=11, color=GREY)
    return draw.finding(figure, title)


def _sub(n: int) -> str:
    return str(n).translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))


def ranks(lengths: Sequence[Sequence[int]], title: str) -> Figure:
    """Draw each token's weight with its rank's divisor and with the batch's."""
    total = sum(map(sum, lengths))
    figure, axes = draw.panel_grid(2, (8, 3.2), sharey=True)
    names = ("each rank divides by its own", "all divide by the whole batch's")
    for axis, name, alone in zip(axes, names, (True, False)):
        for rank, (of_rank, colour) in enumerate(zip(lengths, FREE[1:3])):
            tokens = sum(of_rank) * len(lengths) if alone else total
            places = [rank * len(of_rank) + i + 1 for i in range(len(of_rank))]
            axis.bar(
                places, [1 / tokens] * len(places), color=colour, label=f"rank {rank}"
            )
        axis.set_xticks(range(1, 9), [n for of_rank in lengths for n in of_rank])
        axis.set(title=name, xlabel="tokens in the answer")
    axes[0].set_ylabel("weight of one token")
    return draw.heading(figure, axes[0], title)


def delays(
    by_method: Mapping[str, Mapping[str, Mapping[int, Sequence[float]]]], title: str
) -> Figure:
    """Accuracy by how far the sampler lags: a panel per method, two corrections."""
    figure, axes = draw.panel_grid(len(by_method), (8, 3.4), sharey=True)
    for axis, (method, by_weight) in zip(axes, by_method.items()):
        looks = ((colour_of(method), "-", "o", -0.1), (INK, "--", "s", 0.1))
        for (label, by_delay), look in zip(by_weight.items(), looks):
            colour, dash, mark, aside = look
            places = range(len(by_delay))
            middle = [draw.median(values) for values in by_delay.values()]
            axis.plot(places, middle, dash, color=colour, label=label)
            for x, values in zip(places, by_delay.values()):
                beside = [x + aside] * len(values)
                axis.plot(beside, values, mark, color=colour, alpha=0.5, markersize=4.5)
            draw.count_runs(axis, label, len(values), LATE_RUNS)
        axis.set_xticks(places, list(by_delay))
        axis.set(title=method, ylim=(-0.03, 1.03), xlabel="rollouts behind")
    axes[0].set(ylabel="held-out accuracy")
    draw.heading(figure, axes[-1], title)
    for line in figure.legends[0].get_lines():
        line.set_color(INK)  # each panel has a colour of its own
    return figure


def distinct(counts: Mapping[str, Sequence[int]], title: str) -> Figure:
    """Exercise 14.4: how many of a group's eight answers differ."""
    figure, axis = plt.subplots(figsize=(8, 3.0))
    ticks = range(1, 9)
    draw.grouped_bars(
        axis,
        {label: [of.count(n) for n in ticks] for label, of in counts.items()},
        FREE,
        ticks,
    )
    axis.set(xlabel="different answers in a group of eight", ylabel="groups")
    draw.heading(figure, axis, title)
    groups = len(next(iter(counts.values())))
    return draw.caption(figure, f"1 rollout of {groups} groups each")


def coefficient(
    algorithm: Algorithm,
    ratio: Float[Tensor, " N"],
    old: float = 0.2,
    sign: int = 1,
    **hyperparameters: float,
) -> Float[Tensor, " N"]:
    """−dL/d log π of answers of one token each, that had the probability `old`."""
    return sign * curve(algorithm, sign, ratio, old, **hyperparameters).coefficient


def newer_explorer() -> explorer.Explorer:
    """Coefficients of a good token: of VESPO, and of DPPO beside GRPO's."""
    figure, (left, right) = draw.panel_grid(2, (8, 3.6), sharey=True)
    ratio = torch.linspace(0.02, 3.5, 300, dtype=torch.float64)
    fixed = coefficient(ALGORITHMS["grpo"], ratio)
    (vespo,) = left.plot(ratio, fixed, color=FREE[2])
    (grpo,) = right.plot(ratio, fixed, color=colour_of("grpo"), label="GRPO")
    (dppo,) = right.plot(ratio, fixed, "--", color=FREE[0], label="DPPO")
    draw.rule(left, x=1)
    left.set(xlabel="ratio r of an answer", ylabel="coefficient, Â = 1", ylim=(0, 3.6))
    right.set(xlabel="ratio r of a token", title="DPPO: a bound on the probability")
    right.legend(loc="upper left")

    def kernel(k: float, rate: float) -> list:
        given = {"k_pos": k, "k_neg": k, "lambda_pos": rate, "lambda_neg": rate}
        vespo.set_ydata(coefficient(ALGORITHMS["vespo"], ratio, **given))
        left.set_title(f"VESPO: its peak is at r = {k / rate:.2f}")
        return [vespo, left.title]

    def bounded(old: float, bound: float) -> list:
        bounds = {"delta_low": bound, "delta_high": bound}
        y = coefficient(ALGORITHMS["dppo_tv"], ratio, old, **bounds)
        for line, values in ((grpo, fixed), (dppo, y)):  # there is no p above 1
            line.set_ydata(values.masked_fill(ratio * old > 1, torch.nan))
        ends = [min(top, 1 / old) for top in (1.2, 1 + bound / old)]
        told = "A good token may rise to r = {:.2f} (GRPO), {:.2f} (DPPO)"
        return [grpo, dppo, draw.say(figure, told.format(*ends))]

    def outcome(bound: float) -> str:
        near = stakes.nearest(bound, (0.1, 0.2))
        arms = {f"DPPO-TV, δ = {near:g}": f"DPPO-TV {near:g}", "GRPO": "GRPO"}
        return stakes.ended(arms, rate=2e-4, updates=4)

    return explorer.Explorer(
        figure,
        [kernel, bounded],
        {
            "old": explorer.slider("π_old of the token", 0.3, 0.02, 0.98, 0.02),
            "bound": explorer.slider("DPPO's bound δ", 0.2, 0.02, 0.6, 0.02),
            "k": explorer.slider("VESPO's k", 2.0, 0.5, 4.0, 0.5),
            "rate": explorer.slider("VESPO's λ", 3.0, 0.5, 4.0, 0.5),
        },
        {
            "a rare token": {"old": 0.02, "bound": 0.2},
            "a likely token": {"old": 0.8, "bound": 0.2},
        },
        stakes=outcome,
        prediction=stakes.Prediction(
            "A good token had probability 0.02. Which bound stops it first?",
            ("GRPO's", "DPPO's"),
            "GRPO's",
            "The ratio reaches 1.2 at 0.024, but DPPO waits until 0.22.",
        ),
        name="14_newer_gates",
    )
