"""Exercises of chapter 06: room, climb, kept groups, punishment, price, K."""

import math

import torch

from course.exercises import Exercise
from course.exercises.solutions import chapter06 as solutions

_FIRST = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
_SECOND = torch.tensor([[1.0, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0], [1.0] * 4])

EXERCISES = (
    Exercise(
        "6.1",
        "Room to rise",
        difficulty=1,
        minutes=5,
        solution=solutions.highest,
        cases=((0.01, 0.2), (0.5, 0.28), (0.9, 0.2), (0.8, 0.28)),
        mistakes={
            "A probability cannot pass 1: take the smaller of the two.": (
                lambda p, epsilon: p * (1 + epsilon)
            ),
            "ε bounds the ratio, not the difference: multiply by 1 + ε.": (
                lambda p, epsilon: min(1.0, p + epsilon)
            ),
            "ε bounds the ratio, not the difference; and 1 is the end in any case.": (
                lambda p, epsilon: p + epsilon
            ),
            "That is how far it may rise. Asked is where it ends: add π_old.": (
                lambda p, epsilon: min(1.0, p * (1 + epsilon)) - p
            ),
            "1 − ε is the lower bound. A good token meets the upper one.": (
                lambda p, epsilon: p * (1 - epsilon)
            ),
        },
    ),
    Exercise(
        "6.2",
        "The climb",
        difficulty=2,
        minutes=10,
        solution=solutions.rollouts_to_climb,
        cases=((0.01, 0.5, 0.2), (0.01, 0.5, 0.28), (0.001, 0.5, 0.4), (0.2, 0.5, 0.2)),
        mistakes={
            "Growth is by a factor each time, not by the same amount: use logs.": (
                lambda start, target, epsilon: math.ceil(
                    (target - start) / (start * epsilon)
                )
            ),
            "Round up: a whole rollout is needed for the last bit.": (
                lambda start, target, epsilon: math.floor(
                    math.log(target / start) / math.log(1 + epsilon)
                )
            ),
            "A number of rollouts is whole: round up.": (
                lambda start, target, epsilon: (
                    math.log(target / start) / math.log(1 + epsilon)
                )
            ),
            "log(1 + ε) is not ε: at ε = 0.2 that is 10 % off.": (
                lambda start, target, epsilon: math.ceil(
                    math.log(target / start) / epsilon
                )
            ),
        },
    ),
    Exercise(
        "6.3",
        "Which groups stay",
        difficulty=2,
        minutes=5,
        solution=solutions.kept,
        cases=((_FIRST,), (_SECOND,)),
        mistakes={
            "You kept the groups that are all right: they have no gradient either.": (
                lambda rewards: rewards.sum(-1) > 0
            ),
            "You kept the groups that are all wrong: they have no gradient either.": (
                lambda rewards: rewards.sum(-1) < rewards.shape[-1]
            ),
            "That is what is thrown away. Asked is what stays.": (
                lambda rewards: ~solutions.kept(rewards)
            ),
            "One answer a prompt, not one a response: a group stays whole.": (
                lambda rewards: (
                    solutions.kept(rewards)[:, None].expand_as(rewards).clone()
                )
            ),
            "Those are single responses with reward 1. Judge the group.": (
                lambda rewards: rewards == 1
            ),
        },
    ),
    Exercise(
        "6.4",
        "The punished reward",
        difficulty=2,
        minutes=10,
        solution=solutions.punished,
        cases=(
            (1.0, 10000, 20480, 4096),
            (1.0, 17408, 20480, 4096),
            (0.0, 19456, 20480, 4096),
            (1.0, 20480, 20480, 4096),
            (0.0, 25000, 20480, 4096),
        ),
        mistakes={
            "One point a token past the limit: the ramp lies before L_max, and ends.": (
                lambda correct, length, max_length, buffer: (
                    correct - max(0, length - max_length)
                )
            ),
            "The ramp lies before L_max: it starts at L_max − L_cache.": (
                lambda correct, length, max_length, buffer: (
                    correct - min(max((length - max_length) / buffer, 0.0), 1.0)
                )
            ),
            "Past L_max the punishment stays at −1: bound it.": (
                lambda correct, length, max_length, buffer: (
                    correct - max((length - max_length + buffer) / buffer, 0.0)
                )
            ),
            "A short response is not rewarded for being short: bound it by 0.": (
                lambda correct, length, max_length, buffer: (
                    correct - min((length - max_length + buffer) / buffer, 1.0)
                )
            ),
            "The punishment is added to the correctness reward, not in its place.": (
                lambda correct, length, max_length, buffer: solutions.punished(
                    0.0, length, max_length, buffer
                )
            ),
            "The ramp is L_cache long: divide by L_cache, not by L_max.": (
                lambda correct, length, max_length, buffer: (
                    correct
                    - min(max((length - max_length + buffer) / max_length, 0.0), 1.0)
                )
            ),
        },
    ),
    Exercise(
        "6.5",
        "The price of a live group",
        difficulty=3,
        minutes=10,
        solution=solutions.price,
        cases=((0.5, 8), (0.95, 8), (0.1, 16), (0.3, 2)),
        mistakes={
            "All wrong is dead too: subtract (1 − p)^G as well.": (
                lambda p, size: size / (1 - p**size)
            ),
            "All right is dead too: subtract p^G as well.": (
                lambda p, size: size / (1 - (1 - p) ** size)
            ),
            "That is how many groups it takes. Count responses: times G.": (
                lambda p, size: 1 / (1 - p**size - (1 - p) ** size)
            ),
            "That is the chance that a group is live. Its inverse says how many.": (
                lambda p, size: 1 - p**size - (1 - p) ** size
            ),
        },
    ),
    Exercise(
        "6.6",
        "One epoch, many updates",
        difficulty=1,
        minutes=5,
        solution=solutions.UPDATES,
        mistakes={
            "One pass over the data is not one update: count the mini-batches.": 1,
            "That is as if the 512 were prompts. A mini-batch is counted in responses,"
            " and there are 16 to a prompt.": 512,
            "That is the number of responses in the rollout. Divide it by 512.": 8192,
            "The first update has ratio 1, but it is an update too.": 15,
        },
    ),
)
