"""The step inspector of chapter 11: what two methods push, token by token.

It shows answers of the stored rollout of `course.kit.stale`, eight per prompt, and the
ratios of their tokens after 0 to 16 updates. A bar is −∂loss/∂log π of a token, by
autograd from the loss that trains, with all 64 answers in one mini-batch.
"""

from functools import cache

import matplotlib.pyplot as plt
import numpy as np

from course.kit import explorer, stakes, stale
from course.kit.plots import primitives as draw
from course.kit.plots import style, tokens
from refimpl import normalisers
from refimpl.algorithms import ALGORITHMS

METHODS = ("reinforce", "grpo", "dr_grpo", "dapo", "gspo", "cispo", "gmpo", "sapo")
TITLES = [(ALGORITHMS[name].title, name) for name in METHODS]
PROMPTS = ("6+4+7+2=", "4+4=", "8+4+8+7=", "9+2+9=")
UPDATES = (0, 1, 4, 16)
LONGEST = 48
"""The longest length allowed, by which Dr. GRPO divides."""

PANELS = {"left": 0.13, "right": 0.985, "top": 0.78, "bottom": 0.03, "hspace": 0.45}
LINE = 72 * draw.NARROW * (PANELS["right"] - PANELS["left"])
"""Points: the line of an answer's letters, of which it holds at least `LETTERS`."""
LETTERS, EM = 34, 0.602


@cache
def pushes(method: str, updates: int) -> np.ndarray:
    """−∂loss/∂log π of every token of the rollout, (64, T)."""
    rollout, normaliser = stale.load(), ALGORITHMS[method].normaliser
    sizes = {"group": rollout.group, "max_length": LONGEST}
    weight = normalisers.apply(normaliser, rollout.mask.double(), **sizes)
    settings = {"answers": rollout, "k": updates, "weight": weight}
    return tokens.numbers(method, **settings)["push"].numpy()


@cache
def largest(row: int) -> float:
    """The largest push on a token of this answer, by any method at any time."""
    return max(np.abs(pushes(m, k)[row]).max() for m in METHODS for k in UPDATES)


def strokes(x, low, high, lean=0.0) -> np.ndarray:
    """A line's data, (2, 3n): a stroke at each x, from `low` to `high`, and gaps."""
    x, low, high = np.broadcast_arrays(x, low, high)
    ends = [[x - lean, low], [x + lean, high], np.full((2, *x.shape), np.nan)]
    return np.stack(ends, -1).reshape(2, -1)


class Panel:
    """The bars of a method, with a cross for a token that gets nothing."""

    def __init__(self, axis):
        axis.set(ylim=(0, 1), xticks=(), yticks=(), ylabel="push")
        self.said = axis.set_title("", loc="left", fontsize=11.5)
        (self.bars,) = axis.plot([], [])
        (self.crosses,) = axis.plot([], [], color=style.INK, linewidth=1.8)

    def draw(self, row: int, method: str, updates: int, x, width: float) -> list:
        push = pushes(method, updates)[row, : len(x)]
        height, up = np.abs(push) / largest(row), stale.load().advantages[row] > 0
        base = 0.0 if up else 1.0  # what is pushed down hangs
        self.bars.set_data(*strokes(x, base, np.abs(base - height)))
        self.bars.set(linewidth=0.8 * width, color=style.GOOD if up else style.BAD)
        shut = x[push == 0]
        sides = [strokes(shut, *ends, 0.01) for ends in ((0.43, 0.57), (0.57, 0.43))]
        self.crosses.set_data(*np.concatenate(sides, -1))
        name, where = ALGORITHMS[method].title, "up" if up else "down"
        told = f"{name}: {len(x) - len(shut)} of {len(x)} tokens {where}"
        self.said.set_text(f"{told}, in all by {1000 * np.abs(push).sum():.1f}/1000")
        return [self.bars, self.crosses, self.said]


def step_explorer() -> explorer.Explorer:
    """A stored answer, its ratios, and under them the pushes of two methods."""
    rollout = stale.load()
    figure, axes = plt.subplots(3, 1, figsize=(draw.NARROW, 4.8), layout="none")
    figure.subplots_adjust(**PANELS)
    drift, *others = axes
    drift.set(yscale="log", ylim=(0.2, 5), ylabel="ratio", xticks=())
    draw.plain_ticks(drift.yaxis, (0.25, 1, 4))
    for bound in (0.8, 1.2):
        draw.rule(drift, y=bound)
    (ratios,) = drift.plot([], [], color=style.FREE[0])
    letters = drift.text(0, 5.5, "", family="monospace", va="bottom")
    panels = [Panel(axis) for axis in others]
    for axis in axes:
        axis.grid(visible=False)
        axis.set_xlim(0, 1)
        axis.yaxis.set_label_coords(-0.11, 0.5)  # on a phone panels stay aligned

    def at(prompt: str, answer: int) -> tuple[int, list[str], np.ndarray, float]:
        row = rollout.prompts.index(prompt) + answer - 1
        count = len(rollout.tokens[row])
        slots = max(count, LETTERS)
        x = (np.arange(count) + 0.5) / slots
        return row, rollout.tokens[row], x, LINE / slots

    def written(prompt: str, answer: int) -> list:
        _, text, _, width = at(prompt, answer)
        letters.set(text="".join(text), fontsize=width / EM)
        return [letters]

    def drifted(prompt: str, answer: int, updates: int) -> list:
        row, _, x, width = at(prompt, answer)
        r = rollout.z[updates, row, : len(x)].exp().numpy()
        ratios.set_data(*strokes(x, 1, r.clip(0.2, 5)))
        ratios.set_linewidth(0.8 * width)
        return [ratios]

    def first(prompt: str, answer: int, updates: int, method: str) -> list:
        row, _, x, width = at(prompt, answer)
        return panels[0].draw(row, method, updates, x, width)

    def second(prompt: str, answer: int, updates: int, beside: str) -> list:
        row, _, x, width = at(prompt, answer)
        return panels[1].draw(row, beside, updates, x, width)

    def said(prompt: str, answer: int, updates: int) -> list:
        row, _, x, _ = at(prompt, answer)
        far = (rollout.z[updates, row, : len(x)].exp() - 1).abs() > 0.2
        kind = "Right" if rollout.rewards[row] else "Wrong"
        advantage = f"{rollout.advantages[row]:+.2f}".replace("-", "−")
        times = f"{updates} update{'s' * (updates != 1)}"
        told = f"{far.sum()} of {len(x)} ratios left 1 ± 0.2 in {times}"
        return [draw.say(figure, f"{kind} answer, advantage {advantage}: {told}")]

    return explorer.Explorer(
        figure,
        [written, drifted, first, second, said],
        {
            "prompt": explorer.choice("prompt", PROMPTS, PROMPTS[0]),
            "answer": explorer.stops("answer", range(1, 9), 4),
            "updates": explorer.stops("updates on this rollout", UPDATES, 16),
            "method": explorer.choice("method", TITLES, "grpo"),
            "beside": explorer.choice("below it", TITLES, "cispo"),
        },
        prediction=stakes.Prediction(
            "One token of this answer became three times as likely. How many of its 27 "
            "tokens does GSPO still push?",
            ("all 27", "all but that one", "none"),
            "none",
            "GSPO has one ratio for the whole answer, and one token moved it past the "
            "narrow bound.",
        ),
        stakes="This is a single step. The explorer under Play says how runs ended.",
        name="11_one_step",
    )
