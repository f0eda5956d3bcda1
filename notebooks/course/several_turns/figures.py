"""Figures of chapter 18: who wrote which token, and what a mean divides by."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure

from course.kit import explorer, stakes
from course.kit.plots import primitives as draw
from course.kit.plots.style import BAD, FREE, GOOD, INK
from refimpl import normalisers

OWN, TOOL = GOOD, "#D5D9E0"


def transcript(tokens: Sequence[str], mask: Sequence[float], title: str) -> Figure:
    """The characters of one answer: coloured where the policy wrote them."""
    figure, axis = plt.subplots(figsize=(8, 1.9))
    for x, (token, own) in enumerate(zip(tokens, mask)):
        box = plt.Rectangle((x - 0.46, -0.4), 0.92, 0.8, color=OWN if own else TOOL)
        axis.add_patch(box)
        ink = "#FFFFFF" if own else INK
        axis.text(x, 0, token, ha="center", va="center", color=ink, family="monospace")
        axis.text(x, -0.75, f"{own:.0f}", ha="center", va="center", fontsize=10)
    axis.set(xlim=(-2.2, len(tokens) - 0.4), ylim=(-1, 0.6), xticks=[], yticks=[])
    axis.text(-0.8, -0.75, "mask", ha="right", va="center", fontsize=10)
    axis.spines[:].set_visible(False)
    axis.grid(False)
    draw.finding(figure, title)
    return draw.caption(figure, "coloured: written by the policy, grey: by the tool")


def divisor_explorer() -> explorer.Explorer:
    """The weight of one own token, with the mask and with the span, in two answers."""
    means = {
        "mean per response": normalisers.seq_mean_token_mean,
        "token mean": normalisers.token_mean,
    }
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.7), sharey=True)
    names = ("answer\nwith calls", "direct\nanswer")
    looks = {"mask": (FREE[1], 0.2), "span": (BAD, -0.2)}
    bars, texts = {}, {}
    for axis, name in zip(axes, means):
        for label, (colour, side) in looks.items():
            places = [x - side for x in range(2)]
            bars[name, label] = axis.bar(
                places, [0.0] * 2, 0.36, color=colour, label=f"divided by the {label}"
            )
            texts[name, label] = [
                axis.text(x, 0, "", ha="center", va="bottom", fontsize=10)
                for x in places
            ]
        axis.set(title=name, ylim=(0, 0.16))
        axis.set_xticks(range(2), names)
        axis.grid(False)
    axes[0].set_ylabel("weight of one own token")
    draw.legend_outside(figure, axes[0], 2, "lower")

    def move(calls: int, observed: int, direct: int) -> list:
        own, width = 6 * calls + 4, 7 * 12 + 4
        span = own + calls * observed
        steps = torch.arange(max(width, span))
        lengths = {"mask": (own, direct), "span": (span, direct)}
        moved, first = [], {}
        for name, mean in means.items():
            for label in looks:
                # A mean looks at the mask alone: as many ones as it divides by.
                ones = (steps < torch.tensor(lengths[label])[:, None]).double()
                weights = mean(ones)[:, 0].tolist()
                first[name, label] = weights[0]
                for block, text, w in zip(
                    bars[name, label], texts[name, label], weights
                ):
                    block.set_height(min(w, 0.155))
                    text.set_y(min(w, 0.15))
                    text.set_text(f"{w:.3f}")
                    moved += [block, text]
        share = first["mean per response", "span"] / first["mean per response", "mask"]
        said = f"With the span, a caller's own tokens have {share:.0%} of their weight"
        return [*moved, draw.say(figure, said.replace("%", " %"))]

    return explorer.Explorer(
        figure,
        [move],
        {
            "calls": explorer.slider("calls in the first answer", 3, 1, 6, 1),
            "observed": explorer.slider("tokens of each tool answer", 4, 0, 12, 1),
            "direct": explorer.slider("tokens of the direct answer", 4, 4, 24, 1),
        },
        stakes="No stored run divides by the span; this picture is arithmetic.",
        prediction=stakes.Prediction(
            "The tool starts to return 12 tokens instead of 4. With the right mask, "
            "what happens to the weight of the caller's own tokens?",
            ("it falls", "nothing", "it rises"),
            "nothing",
            "The mask counts what the policy wrote, and that has not changed.",
        ),
        name="18_divisor",
    )
