"""Exercises of chapter 18: credit by state, an update on observations, ids, a bug."""

import torch

from course.kit.exercise import Exercise


def anchored(returns, states):
    """Each turn's return minus the mean over turns that began in the same state."""
    A = torch.zeros_like(returns)
    for state in states.unique():
        same = states == state
        if same.sum() > 1:
            A[same] = returns[same] - returns[same].mean()
    return A


_CASES = (
    (torch.tensor([0.9, 1.0, 0.0, 0.0]), torch.tensor([0, 1, 0, 1])),
    (torch.tensor([0.9, 0.0, 1.0, 0.0, 0.95]), torch.tensor([0, 0, 0, 0, 7])),
    (torch.tensor([1.0, 0.5, 0.0]), torch.tensor([3, 4, 3])),
)

TYPED = (
    Exercise(
        "18.anchored",
        solution=anchored,
        cases=_CASES,
        mistakes={
            "Compare only turns that began in the same state. You took the mean over "
            "all.": lambda returns, states: returns - returns.mean(),
            "A turn whose state nobody else saw has nothing to be compared with, so "
            "its advantage is 0.": {"torch.zeros_like(returns)": "returns.clone()"},
            "The mean includes the turn itself. You left it out.": {
                ".mean()\n": (
                    ".mean()\n            A[same] *= same.sum() / (same.sum() - 1)\n"
                )
            },
            "No division by the std here: F = 1.": {
                ".mean()\n": (
                    ".mean()\n            A[same] /= returns[same].std() + 1e-6\n"
                )
            },
            "The other way round: a return above the mean is positive.": {
                "return A": "return -A"
            },
            "Those are the means. Subtract them from the returns.": {
                "return A": "return returns - A"
            },
        },
    ),
)

EXERCISES = (
    Exercise(
        "18.1",
        solution="the tool's",
        why="The policy has never been trained to write them, so their log-probs are "
        "far below those of its own, and so are their gradients above.",
        choices=("its own", "both alike", "the tool's"),
        mistakes={
            "Its own tokens are likely already, and a likely token has a small "
            "gradient.": "its own",
            "A token's gradient grows with its surprise. Which ones surprise the "
            "policy?": "both alike",
        },
    ),
    Exercise(
        "18.2",
        solution=4.0,
        why="It is 0.6 / (0.3 · 0.5). The policy has not moved at all, but the ratio "
        "claims that it has.",
        mistakes={
            "That would be true if the tokens were the same.": 1.0,
            "That is the quotient with one of the two sampled tokens alone.": 2.0,
            "The other way round: divide the new probability by the old one.": 0.25,
            "That is the difference of the logarithms; take exp.": 1.386,
        },
    ),
    Exercise(
        "18.3",
        solution="mean per response",
        why="In that mean a response's own tokens share one weight, and tool tokens "
        "in the length take part of it away. Under the token mean all tokens "
        "become equally lighter.",
        choices=("mean per response", "token mean", "both alike"),
        mistakes={
            "In that mean every token of the batch becomes lighter, including those "
            "of the other answer. Compare the two answers.": "token mean",
            "Compare one answer's bars with the other's.": "both alike",
        },
    ),
    Exercise(
        "18.4",
        lines=9,
        solution="4b",
        why="`mask[:, t]` belongs to the token at t, whose log-prob comes from the "
        "logits at t − 1. Shifted by one, the first token of each observation is "
        "trained on, and the first of each turn is not. Write `mask[:, 1:]`.",
        mistakes={
            "Line 2 is right: the logits at t score the token at t + 1.": "2b",
            "The tool's tokens should be read, and only not be trained on.": "1a",
            "The whole batch's model tokens are a fine divisor: line 9 is right.": "9c",
            "That is the line, but it divides nothing: look at what the mask is "
            "multiplied with.": "4c",
            "The reward belongs to the trajectory, and all its turns get it: line 6 is "
            "right.": "6d",
        },
    ),
)
