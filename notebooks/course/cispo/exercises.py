"""Exercises of chapter 07: CISPO's loss, its value, the mask, the two bounds."""

from dataclasses import replace

import torch

from course.kit.exercise import Exercise
from course.kit.usual import batch, usual
from refimpl.algorithms import ALGORITHMS, Objective, Tokens
from refimpl.importance import ratio


def cispo_loss(logp, old_logp, advantages, mask, max_ratio=5.0):
    """−(1/Σ|o|) Σ sg[min(r, r_max)] Â log π."""
    r = (logp - old_logp).exp()
    factor = r.clamp(max=max_ratio).detach()
    w = mask / mask.sum()
    return -(w * factor * advantages[:, None] * logp).sum()


TYPED = (
    Exercise(
        "07.cispo_loss",
        solution=cispo_loss,
        cases=((*batch(), 1.2), (*batch(), 1.6), batch(2.0)),
        gradient=True,
        mistakes={
            **usual(cispo_loss),
            "A gradient went through the ratio: detach it before the product.": {
                ".detach()": ""
            },
            "You detached log π. The gradient has to flow through it.": {
                ".detach()": "",
                "* logp)": "* logp.detach())",
            },
            "There is no lower bound: a token below 1 keeps its own ratio.": {
                "max=max_ratio": "1 / max_ratio, max_ratio"
            },
            "The cap is the ratio itself here, not 1 + cap.": {
                "max=max_ratio": "max=1 + max_ratio"
            },
            "A capped token is not dropped: its coefficient is the cap.": {
                ".clamp(max=max_ratio)": ".masked_fill(r > max_ratio, 0)"
            },
            "You did not cap the ratio.": {".clamp(max=max_ratio)": ""},
            "The importance ratio is missing: it multiplies log π, as a number.": {
                "factor * adv": "adv"
            },
            "That is the clipped surrogate, without log π. A capped token must keep "
            "its gradient.": {".detach()": "", " * logp)": ")"},
        },
    ),
)


def ppo_mask(ratios, advantages, epsilon_low, epsilon_high):
    """0 where Â has already moved r past its bound, else 1 (M1, Eq. 7)."""
    risen = (advantages > 0) & (ratios > 1 + epsilon_high)
    fallen = (advantages < 0) & (ratios < 1 - epsilon_low)
    return (~(risen | fallen)).float()


_MASK_CASES = (
    (torch.tensor([0.5, 0.5, 1.5, 1.5]), torch.tensor([1.0, -1, 1, -1]), 0.2, 0.28),
    (torch.tensor([0.85, 1.25, 1.25, 0.6]), torch.tensor([-1.0, 1, -1, -2]), 0.2, 0.2),
    (torch.tensor([0.75, 1.29, 1.0]), torch.tensor([-0.5, 0.5, 0.0]), 0.3, 0.28),
)


def _detached_elsewhere(t: Tokens) -> Objective:
    """The gradient goes through the ratio, and log π < 0 is a constant factor."""
    capped = ratio(t.z).clamp(max=5.0)
    return Objective(capped * t.advantages * t.logp.detach())


BROKEN = replace(ALGORITHMS["cispo"], objective=_detached_elsewhere)
"""The run of exercise 7.6."""


_CAP_OF_ONE = {
    "The forks are not silenced, so they go on learning at every turn.": (
        "like DAPO or below"
    ),
    "They are pushed with a coefficient of 1 instead of up to 5, which must cost "
    "something.": ("like CISPO or above"),
    "Answer with one of the three phrases.": "above",
}

EXERCISES = (
    Exercise(
        "7.1",
        solution="rise",
        why="−(0.04/0.01) log 0.04 = 12.9, and it began at −log 0.01 = 4.6. Yet the "
        "gradient asks for more of the token at every step.",
        choices=("fall", "rise", "stay"),
        mistakes={
            "It would, if −log π stood alone. What happens to the factor before it?": (
                "fall"
            ),
            "The ratio is a constant only for the gradient. Its value changes with "
            "every update.": "stay",
        },
    ),
    Exercise(
        "7.2",
        solution=ppo_mask,
        cases=_MASK_CASES,
        mistakes={
            "You mask both sides for both signs. A token that moves against Â must "
            "keep its gradient.": {
                "(advantages > 0) & ": "",
                "(advantages < 0) & ": "",
            },
            "The signs are swapped: Â > 0 stops above, Â < 0 below.": {
                "risen = (advantages > 0)": "risen = (advantages < 0)",
                "fallen = (advantages < 0)": "fallen = (advantages > 0)",
            },
            "That marks the tokens that are masked; M is 1 where they are kept.": {
                "~": ""
            },
            "Bad tokens have a bound too: Â < 0 and r < 1 − ε_low.": {" | fallen": ""},
        },
    ),
    Exercise(
        "7.3",
        solution="DAPO",
        why="A correction has c = r = 3 under DAPO; the cap holds the other two at 2.",
        choices=("DAPO", "CISPO", "CISPO, mask on"),
        mistakes={
            "The cap holds it at 2. Look for a line above, in the right panel.": (
                "CISPO"
            ),
            "The mask keeps this token, and the cap holds it at 2.": "CISPO, mask on",
        },
    ),
    Exercise(
        "7.4",
        solution="between",
        why="A coefficient of 1 is more than DAPO's 0, but less than a ratio of up to "
        "5.",
        choices=("like DAPO or below", "between", "like CISPO or above"),
        mistakes=_CAP_OF_ONE,
    ),
    Exercise(
        "7.5",
        solution=7.0,
        why="verl clamps at 1 + clip_ratio_high: 1 + 7 = 8.",
        mistakes={
            "verl adds 1: with 8 its cap would be 9.": 8.0,
            "You added 1; verl adds it for you.": 9.0,
            "That is verl's default for PPO; the cap would be 1.2.": 0.2,
        },
    ),
    Exercise(
        "7.6",
        lines=9,
        solution="6b",
        why="The stop-gradient stands on log π: through r the gradient is r Â log π "
        "∇log π, and log π < 0 turns its sign. It belongs on `capped`.",
        mistakes={
            "Line 5 is a cap without a floor, as CISPO's should be.": "5a",
            "The stop-gradient may well come after line 5. Does it, and on which "
            "factor?": "5b",
            "π_old stays what it was at the rollout, for all sixteen updates.": "4c",
            "That is the line. Some gradient does reach the policy: follow it through "
            "line 5 to line 4.": "6d",
        },
    ),
)
