"""Show what a setting does to a policy: the nearest stored runs, and a prediction.

A picture of a loss shows what a setting does to a gradient. Only stored runs show what
it does to a policy, so a strip under the picture names the nearest ones. If none are
stored, a sentence says why.
"""

import csv
import html
import json
import math
import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache

import ipywidgets as widgets

from course import DATA
from refimpl.validation import UserError, shown


@dataclass(frozen=True)
class Prediction:
    """A question before the first drag; the answer follows for those who predicted.

    Raises `UserError` unless `answer` is one of `options`.
    """

    question: str
    options: tuple[str, ...]
    answer: str
    because: str

    def __post_init__(self):
        if self.answer not in self.options:
            raise UserError(
                f"the answer must be one of {shown(self.options)}, got "
                f"{shown(self.answer)}"
            )

    def verdict(self, chosen: str) -> str:
        """The reply to a prediction, after a drag."""
        begins = "As you predicted: " if chosen == self.answer else "No: "
        return f"{begins}{self.answer}. {self.because}"


@cache
def _ended() -> dict[tuple, str]:
    """Say for every cell of stored runs how its runs ended."""
    with open(DATA / "ended.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {
        (r["arm"], float(r["rate"]), int(r["updates"]), r["world"], r["changed"]): (
            _right(*(float(r[name]) for name in ("median", "least", "most")), r["runs"])
        )
        for r in rows
    }


def _right(median: float, least: float, most: float, runs: int | str) -> str:
    words = f"{median:.0%} right at the end ({least:.0%} to {most:.0%} in {runs} runs)"
    return words.replace("%", " %")


def right(accuracies: Collection[float]) -> str:
    """The words of `ended` for these runs."""
    ends = min(accuracies), max(accuracies)
    return _right(statistics.median(accuracies), *ends, len(accuracies))


WORLDS = {
    "sums": "",
    "moe": ", a mixture of experts",
    "rare": ", a rare careful habit",
}
"""Words for a world other than that of sums."""


def ended(
    arms: Mapping[str, str],
    rate: float = 4e-4,
    updates: int = 16,
    world: str = "sums",
    **changed,
) -> str:
    """Say how the stored runs of these arms ended, under their labels.

    "Nearest stored runs (30 rollouts × 16 updates, learning rate 4e-4). GRPO: 82 %
    right at the end (73 % to 89 % in 10 runs)." Held-out accuracy: median, least, most.
    Raises `UserError` if no such run is stored.
    """
    said, settings = [], json.dumps(changed, sort_keys=True)
    for label, arm in arms.items():
        key = arm, rate, updates, world, settings
        if key not in _ended():
            raise UserError(f"no run of {shown(key)} is stored")
        said.append(f"{label}: {_ended()[key]}")
    times = f"{updates} update{'s' * (updates > 1)}"
    at = f"{rate:.0e}".replace("e-0", "e-")
    where = f"30 rollouts × {times}, learning rate {at}{WORLDS[world]}"
    told = "; ".join(said)
    return f"Nearest stored runs ({where}). {told[0].upper()}{told[1:]}."


def nearest(at: float, stored: Collection[float]) -> float:
    """Return the number whose logarithm is nearest to that of `at`."""
    return min(stored, key=lambda one: abs(math.log(one / at)))


NOW_DRAG = "Now drag, and see."


class Panel:
    """Both as widgets, to stand under the picture: `strip`, then `ask`."""

    def __init__(self, prediction: Prediction | None):
        self.prediction, self.dragged = prediction, False
        self.strip = widgets.HTML()
        self.said = widgets.HTML()
        self.chosen = widgets.RadioButtons(
            options=prediction.options if prediction else (),
            value=None,
            layout={"width": "auto"},
        )
        self.chosen.observe(self.answer, names="value")

    @property
    def ask(self) -> list[widgets.Widget]:
        if self.prediction is None:
            return []
        question = f"<b>Predict, then drag.</b> {html.escape(self.prediction.question)}"
        return [widgets.HTML(question), self.chosen, self.said]

    def follow(self, outcome: str) -> None:
        """The strip's words now."""
        if self.strip.value != (words := html.escape(outcome)):
            self.strip.value = words

    def drag(self) -> None:
        """After a control was moved, say whether the prediction was right."""
        self.dragged = True
        self.answer()

    def answer(self, _=None) -> None:
        """Remember the prediction; without one the question stays open."""
        if self.prediction is None or self.chosen.value is None:
            return
        if not self.dragged:
            self.said.value = NOW_DRAG
            return
        verdict = self.prediction.verdict(self.chosen.value)
        self.said.value, self.chosen.disabled = html.escape(verdict), True
