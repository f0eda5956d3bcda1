"""Exercises of chapter 06: room, climb, kept groups, punishment, prompts, a bug."""

import math

import torch

from course.kit.exercise import Exercise


def rollouts_to_climb(start: float, target: float, epsilon: float) -> int:
    """Each rollout multiplies by at most 1 + ε, so it takes a logarithm."""
    return math.ceil(math.log(target / start) / math.log(1 + epsilon))


def kept(rewards: torch.Tensor) -> torch.Tensor:
    """A prompt stays if some answer was right and some was wrong."""
    right = rewards.sum(-1)
    return (right > 0) & (right < rewards.shape[-1])


def punished(correct: float, length: int, max_length: int, buffer: int) -> float:
    """The correctness reward plus Eq. 13."""
    over = length - (max_length - buffer)
    return correct - min(max(over / buffer, 0.0), 1.0)


_FIRST = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
_SECOND = torch.tensor([[1.0, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0], [1.0] * 4])


def _unrounded(start, target, epsilon):
    return math.log(target / start) / math.log(1 + epsilon)


def _step_by_step(start, target, epsilon):
    """6.2 as a loop."""
    rollouts = 0
    while start < target:
        start, rollouts = start * (1 + epsilon), rollouts + 1
    return rollouts


def _less(punishment):
    """6.4 with a punishment of (length, L_max, L_cache)."""
    return lambda correct, *lengths: correct - punishment(*lengths)


def _in_three_cases(correct, length, max_length, buffer):
    """6.4 as Eq. 13 is printed."""
    start = max_length - buffer
    if length <= start:
        return correct
    if length > max_length:
        return correct - 1
    return correct + (start - length) / buffer


EXERCISES = (
    Exercise(
        "6.1",
        minutes=5,
        solution=0.83,
        why="1/1.2: from there on even GRPO's clip lies beyond probability 1, so both "
        "tokens are limited by 1 alone.",
        choices=(0.2, 0.5, 0.78, 0.83),
        mistakes={
            "That is ε, the bound on the ratio. Read where the curves meet.": 0.2,
            "At 0.5 the room is 0.10 for GRPO and 0.14 for DAPO.": 0.5,
            "From 1/1.28 on DAPO's clip has no effect, but GRPO's still has one.": 0.78,
            "Right place: 1/1.2. Of the four answers that is 0.83.": 1 / 1.2,
        },
    ),
    Exercise(
        "6.2",
        minutes=10,
        solution=rollouts_to_climb,
        also=(_step_by_step,),
        cases=((0.01, 0.5, 0.2), (0.01, 0.5, 0.28), (0.001, 0.5, 0.4), (0.2, 0.5, 0.2)),
        mistakes={
            "Growth is by a factor each time, not by the same amount: use logs.": (
                lambda start, target, epsilon: math.ceil(
                    (target - start) / (start * epsilon)
                )
            ),
            "Round up: a whole rollout is needed for the last bit.": (
                lambda *case: math.floor(_unrounded(*case))
            ),
            "A number of rollouts is whole: round up.": _unrounded,
            "log(1 + ε) is not ε: at ε = 0.2 that is 10 % off.": (
                lambda start, target, epsilon: math.ceil(
                    math.log(target / start) / epsilon
                )
            ),
        },
    ),
    Exercise(
        "6.3",
        minutes=5,
        solution=kept,
        also=(lambda rewards: rewards.std(-1) > 0,),
        cases=((_FIRST,), (_SECOND,)),
        mistakes={
            "You kept the groups that are all right: they have no gradient either.": (
                lambda rewards: rewards.sum(-1) > 0
            ),
            "You kept the groups that are all wrong: they have no gradient either.": (
                lambda rewards: rewards.sum(-1) < rewards.shape[-1]
            ),
            "That is what is thrown away. The question is what stays.": (
                lambda rewards: ~kept(rewards)
            ),
            "One answer per prompt, not per response: a group stays whole.": (
                lambda rewards: kept(rewards)[:, None].expand_as(rewards).clone()
            ),
            "Those are single responses with reward 1. Judge the group.": (
                lambda rewards: rewards == 1
            ),
        },
    ),
    Exercise(
        "6.4",
        minutes=10,
        solution=punished,
        also=(_in_three_cases,),
        cases=(
            (1.0, 10000, 20480, 4096),
            (1.0, 17408, 20480, 4096),
            (0.0, 19456, 20480, 4096),
            (1.0, 20480, 20480, 4096),
            (0.0, 25000, 20480, 4096),
        ),
        mistakes={
            "One point per token past L_max? The ramp lies before it, and ends.": (
                _less(lambda length, limit, buffer: max(0, length - limit))
            ),
            "The ramp lies before L_max: it starts at L_max − L_cache.": (
                lambda correct, length, limit, buffer: punished(
                    correct, length - buffer, limit, buffer
                )
            ),
            "Past L_max the punishment stays at −1: bound it.": _less(
                lambda length, limit, buffer: max((length - limit) / buffer + 1, 0.0)
            ),
            "A short response is not rewarded for being short: bound it by 0.": _less(
                lambda length, limit, buffer: min((length - limit) / buffer + 1, 1.0)
            ),
            "The punishment is added to the correctness reward, not in its place.": (
                lambda correct, *lengths: punished(0.0, *lengths)
            ),
            "The ramp is L_cache long: divide by L_cache, not by L_max.": _less(
                lambda length, limit, buffer: min(
                    max((length - limit + buffer) / limit, 0.0), 1.0
                )
            ),
        },
    ),
    Exercise(
        "6.5",
        minutes=10,
        solution="an eighth",
        why="A group of 16 is live with probability 1.00 at p = 0.5, and 0.149 at p = "
        "0.99. So the easy prompts are 0.149/(1.00 + 0.149) = 13 % of the batch.",
        choices=("half", "an eighth", "none"),
        mistakes={
            "Half of what is drawn; but at 0.99 most groups are all right: dead.": (
                "half"
            ),
            "Of 16 answers at 0.99 one is sometimes wrong: 15 % of groups are live.": (
                "none"
            ),
            "At 0.99 a group of 16 is live in 15 % of cases, at 0.5 always.": (
                "a quarter"
            ),
        },
    ),
    Exercise(
        "6.6",
        minutes=15,
        solution=6,
        why="Dead or alive is a matter of being right: `live = right.std(1) > 0`. With "
        "the punishment in it, a group of wrong answers of which one runs long counts "
        "as live, and trains the policy on brevity alone.",
        mistakes={
            "Line 1 is right: the batch starts empty and is filled below.": 1,
            "Line 2 is right: it draws until the batch is full.": 2,
            "Line 3 is right: new prompts in every round, G answers to each.": 3,
            "Line 4 is right: the verifier's verdict, without any punishment.": 4,
            "Line 5 is right: Eq. 13 is added to the correctness reward. "
            "But who reads R next, and should it?": 5,
            "Line 7 is right: whole groups are kept, with their punished rewards.": 7,
            "Line 8 is right: what was drawn beyond the batch is dropped.": 8,
            "Line 9 is right: the punishment belongs in the advantages.": 9,
        },
    ),
)
