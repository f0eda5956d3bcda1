"""More SFT against RL, from one warm start and with the same training problems."""

import copy
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from matplotlib.figure import Figure
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from course.kit.habits import imitate
from course.kit.plots.stored import accuracies
from course.kit.runs import say_at_bar
from refimpl import StalenessError, TrainConfig, sample, train
from refimpl.models import one_thread
from refimpl.seeds import salted
from refimpl.tasks import Arithmetic, verify

WORLD = Arithmetic()
LONGER = replace(WORLD, min_terms=6, max_terms=8)
"""Sums with more terms than any demonstration or rollout has had."""
UPDATES, BATCH = 160, 32
"""Updates of every learner; GRPO with its defaults needs 40 rollouts for these."""
LEARNING_RATE = 5e-4
"""Learning rate of SFT; the warm start learned its habits at this rate."""


def five_rollouts(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, reward: Callable
) -> float | None:
    """Return the accuracy after five rollouts of GRPO; None if nothing was rewarded."""
    given = {"model": model, "tokenizer": tokenizer, "reward": reward}
    config = TrainConfig(rollouts=5)
    with warnings.catch_warnings(action="ignore"):  # "no answer is right"
        try:
            return train("grpo", config=config, progress=False, **given).accuracy
        except StalenessError:  # all advantages were 0, so no weight moved
            return None


class FewProblems:
    """The arithmetic world, whose rollouts draw from a fixed set of problems."""

    habits = WORLD.habits
    habit, reward = staticmethod(WORLD.habit), staticmethod(WORLD.reward)

    def __init__(self, rows: list[dict]):
        self.rows = rows

    def sample(self, n: int, seed: int) -> list[dict]:
        return random.Random(f"few {salted(seed)}").sample(self.rows, n)

    def held_out(self, n: int, seed: int = 0) -> list[dict]:
        return WORLD.held_out(n, seed)


def taught(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: list[dict],
    seed: int,
) -> PreTrainedModel:
    """A copy of `model` after `UPDATES` updates of SFT on the completions of `rows`.

    Without rows every update has new worked solutions.
    """
    learner = copy.deepcopy(model)
    batches = _again(rows, seed) if rows else _endless(seed)
    with one_thread(learner):  # more threads are slower for a model this small
        imitate(learner, tokenizer, counted(batches), LEARNING_RATE)
    return learner


def counted(batches: Iterator[list[dict]]) -> Iterator[list[dict]]:
    """The same batches; the cell's bar says which update of SFT this is."""
    for update, batch in enumerate(batches, 1):
        say_at_bar(f"SFT, update {update} of {UPDATES}")
        yield batch


def _again(rows: list[dict], seed: int) -> Iterator[list[dict]]:
    chance = random.Random(f"again {salted(seed)}")
    return (chance.sample(rows, BATCH) for _ in range(UPDATES))


def _endless(seed: int) -> Iterator[list[dict]]:
    first = 1000 * (seed + 1)
    careful = (1.0, 0.0, 0.0)
    return (WORLD.demonstrations(BATCH, first + i, careful) for i in range(UPDATES))


class Grades(NamedTuple):
    """Shares of right answers."""

    seen: float  # to the problems of the training set
    new: float  # to 512 held-out sums of the same lengths
    longer: float  # to 256 held-out sums of six to eight terms


PANELS = ("128 training sums", "new sums, 2–5 terms", "longer sums, 6–8 terms")


def answered(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list[dict]
) -> list[str]:
    """One answer to each problem; 80 tokens are enough for eight terms."""
    prompts = [row["prompt"] for row in rows]
    rollout = sample(model, tokenizer, prompts, max_new_tokens=80, seed=7)
    return rollout.texts(tokenizer)


def grade(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, seen: list[dict]
) -> Grades:
    shares = []
    for rows in (seen, WORLD.held_out(512), LONGER.held_out(256)):
        texts = answered(model, tokenizer, rows)
        right = [verify(text, row["answer"]) for text, row in zip(texts, rows)]
        shares.append(sum(right) / len(right))
    return Grades(*shares)


def leaves_out(rows: list[dict], texts: list[str]) -> float:
    """The share of careful answers with fewer steps than their sum needs."""
    careful = [(row, text) for row, text in zip(rows, texts) if text[:1].isdigit()]
    short = [text.count(";") < row["terms"] - 1 for row, text in careful]
    return sum(short) / max(len(short), 1)


def compared(grades: dict[str, Sequence[Grades]], title: str) -> Figure:
    """One row for each learner and one panel for each kind of problem."""
    panels = {
        about: {name: [row[i] for row in rows] for name, rows in grades.items()}
        for i, about in enumerate(PANELS)
    }
    return accuracies(panels, title=title, what="share right")
